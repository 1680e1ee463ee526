//! Prompts, what followed them, and how fast.

use super::json::print;
use super::words;
use crate::error::CliError;
use serde_json::json;
use trainwright_executor::{Completion, GenerationMemory, ModelFolder, TextCoder, WeightFormat};
use trainwright_spec::plan::Plan;

/// What is gone on from.
pub struct Prompt {
    /// Its text, if it was given as one.
    pub text: Option<String>,
    /// Its tokens.
    pub tokens: Vec<u32>,
}

/// `gpt2 (124.4M parameters), tensor 1 × pipeline 1 × data 1: 497.8 MB of fp32 weights, 2.4 MB of keys and values, …`
pub fn memory(plan: &Plan, memory: &GenerationMemory, weights: WeightFormat) -> String {
    format!(
        "{} ({}), {}: {} of memory, {} of it {} weights and {} keys and values",
        plan.model.name,
        words::parameters(&plan.model),
        words::mesh(&plan.mesh),
        memory.total(),
        memory.weights,
        weights.name(),
        memory.cache,
    )
}

/// Each prompt with what followed it, as text if there is a tokenizer and else as tokens between commas.
pub fn texts(
    prompts: &[Prompt],
    completions: &[Completion],
    coder: Option<&TextCoder>,
) -> Result<String, CliError> {
    let mut page = String::new();
    for (prompt, completion) in prompts.iter().zip(completions) {
        let all = [&prompt.tokens[..], &completion.tokens].concat();
        page += &match coder {
            Some(coder) => coder.decode(&all)?,
            None => all.iter().map(u32::to_string).collect::<Vec<_>>().join(","),
        };
        page.push('\n');
    }
    Ok(page)
}

/// `3 prompts: prefill 12.1 ms for 9 tokens, then 4.31 ms a token, 232 tokens/s of a sequence`
pub fn timing(prompts: &[Prompt], completions: &[Completion]) -> String {
    let prefill: f64 = completions.iter().map(|made| made.prefill).sum();
    let prompt_tokens: usize = prompts.iter().map(|prompt| prompt.tokens.len()).sum();
    let prompts = if prompts.len() == 1 { String::new() } else { format!("{} prompts: ", prompts.len()) };
    let of_prompts = format!("{prompts}prefill {:.1} ms for {prompt_tokens} tokens", 1e3 * prefill);
    match per_token(completions) {
        Some(seconds) => {
            let rate = 1.0 / seconds;
            format!("{of_prompts}, then {:.2} ms a token, {rate:.1} tokens/s of a sequence", 1e3 * seconds)
        }
        None => of_prompts,
    }
}

/// Seconds of a token behind the first; `None` if there is none.
fn per_token(completions: &[Completion]) -> Option<f64> {
    let count: usize = completions.iter().map(|made| made.tokens.len() - 1).sum();
    let seconds: f64 = completions.iter().map(|made| made.decode).sum();
    (count > 0).then(|| seconds / count as f64)
}

/// Everything as data.
pub fn json(
    plan: &Plan,
    folder: &ModelFolder,
    prompts: &[Prompt],
    completions: &[Completion],
    coder: Option<&TextCoder>,
    memory: &GenerationMemory,
) -> Result<String, CliError> {
    let mut all = Vec::new();
    for (prompt, completion) in prompts.iter().zip(completions) {
        let text = coder.map(|coder| coder.decode(&completion.tokens)).transpose()?;
        let mut one = json!({
            "prompt": prompt.text,
            "prompt_tokens": prompt.tokens,
            "tokens": completion.tokens,
            "text": text,
            "prefill_seconds": completion.prefill,
            "seconds_per_token": per_token(std::slice::from_ref(completion)),
        });
        if !completion.logits.is_empty() {
            one["logits"] = json!(completion.logits);
        }
        all.push(one);
    }
    let page = json!({
        "model": plan.model.name,
        "step": folder.step,
        "ranks": plan.mesh.ranks(),
        "memory_bytes": {
            "weights": memory.weights.get(),
            "cache": memory.cache.get(),
            "all": memory.total().get(),
        },
        "seconds_per_token": per_token(completions),
        "completions": all,
    });
    Ok(print(&page))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn times_are_of_a_prompt_and_of_each_token_behind_the_first() {
        let prompt = |count: usize| Prompt { text: None, tokens: vec![1; count] };
        let made = |count: usize| Completion {
            tokens: vec![2; count],
            prefill: 0.25,
            decode: 0.5 * (count - 1) as f64,
            logits: Vec::new(),
        };
        let all = [prompt(3), prompt(4)];
        let expected =
            "2 prompts: prefill 500.0 ms for 7 tokens, then 500.00 ms a token, 2.0 tokens/s of a sequence";
        assert_eq!(timing(&all, &[made(5), made(1)]), expected);
        assert_eq!(timing(&all[..1], &[made(1)]), "prefill 250.0 ms for 3 tokens");
        assert_eq!(texts(&all[..1], &[made(2)], None).unwrap(), "1,1,1,2,2\n");
    }
}
