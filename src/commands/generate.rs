//! `generate`: goes on from prompts with the weights of a checkpoint.

use crate::arguments::GenerateArguments;
use crate::error::{CliError, Outcome, refuse};
use crate::render::generation::{self, Prompt};
use crate::{inputs, output};
use std::num::NonZeroUsize;
use std::path::Path;
use trainwright_executor::{
    Generation, GenerationMemory, ModelFolder, Remark, Sampling, Settings, Start, TextCoder, generate,
    generate_in_processes, one_rank,
};
use trainwright_spec::plan::Plan;

/// Runs the command.
///
/// # Errors
/// Bad input, a checkpoint that cannot be read, too little memory, a rank that stops.
pub fn run(arguments: &GenerateArguments) -> Result<Outcome, CliError> {
    let folder = ModelFolder::open(Path::new(&arguments.checkpoint), Remark(output::remark))?;
    let coder = folder.tokenizer(arguments.tokenizer.as_deref().map(Path::new))?;
    let plan = plan(arguments, &folder)?;
    let prompts = prompts(arguments, coder.as_ref())?;
    let generation = Generation {
        prompts: prompts.iter().map(|prompt| prompt.tokens.clone()).collect(),
        tokens: NonZeroUsize::new(arguments.tokens).unwrap_or(NonZeroUsize::MIN),
        stop: stop(arguments, coder.as_ref(), plan.model.vocab)?,
        sampling: sampling(arguments),
        weights: arguments.weights,
        return_logits: arguments.logits,
    };
    folder.check_length(generation.longest())?;
    let place = inputs::launched::place(inputs::launched::transport(arguments.transport))?;
    let cores = || std::thread::available_parallelism().unwrap_or(NonZeroUsize::MIN);
    let threads = match (arguments.threads, &place) {
        (Some(threads), _) => threads,
        (None, Some(place)) => inputs::launched::threads(place.world)?,
        (None, None) => cores(),
    };
    let settings = Settings {
        start: Start::Weights(folder.folder.clone()),
        generation: Some(generation),
        remark: Remark(output::remark),
        threads,
        ..Settings::default()
    };
    let mut memory = None;
    let leads = place.as_ref().is_none_or(|place| place.rank == 0);
    let mut state = |needed: &GenerationMemory| {
        if leads {
            output::remark(&generation::memory(&plan, needed, arguments.weights));
        }
        memory = Some(*needed);
    };
    let completions = match &place {
        Some(place) => generate_in_processes(place, &plan, &settings, &mut state)?,
        None => Some(generate(&plan, &settings, &mut state)?),
    };
    // Rank 0 alone knows of all.
    let Some(completions) = completions else { return Ok(Outcome::Done) };
    match arguments.json {
        true => {
            let needed = memory.expect("it was stated before");
            output::print(&generation::json(
                &plan,
                &folder,
                &prompts,
                &completions,
                coder.as_ref(),
                &needed,
            )?)?;
        }
        false => output::print(&generation::texts(&prompts, &completions, coder.as_ref())?)?,
    }
    output::remark(&generation::timing(&prompts, &completions));
    Ok(Outcome::Done)
}

/// The layout: that of `--plan`, whose model the checkpoint's must be, or one rank.
fn plan(arguments: &GenerateArguments, folder: &ModelFolder) -> Result<Plan, CliError> {
    match (&arguments.plan, &folder.model) {
        (Some(path), _) => inputs::plan(path, &[], None),
        (None, Some(model)) => Ok(one_rank(model.clone())),
        (None, None) => {
            let allowed = "it has no config.json: say with --plan what its model is";
            Err(refuse("--checkpoint", &arguments.checkpoint, allowed))
        }
    }
}

/// The prompts in the order of the arguments: texts, lines, tokens.
fn prompts(arguments: &GenerateArguments, coder: Option<&TextCoder>) -> Result<Vec<Prompt>, CliError> {
    let lines = match &arguments.prompts {
        Some(path) => inputs::text(Some("--prompts"), path)?.lines().map(str::to_string).collect(),
        None => Vec::new(),
    };
    let mut prompts = Vec::new();
    for (argument, text) in arguments
        .prompt
        .iter()
        .map(|text| ("--prompt", text))
        .chain(lines.iter().map(|text| ("--prompts", text)))
    {
        let Some(coder) = coder else {
            let allowed =
                "the checkpoint has no tokenizer: name one with --tokenizer, or give --prompt-tokens";
            return Err(refuse(argument, text, allowed));
        };
        let tokens = coder.encode(text)?;
        if tokens.is_empty() {
            return Err(refuse(argument, text, "a prompt has at least one token"));
        }
        prompts.push(Prompt { text: Some(text.clone()), tokens });
    }
    prompts
        .extend(arguments.prompt_tokens.iter().map(|tokens| Prompt { text: None, tokens: tokens.0.clone() }));
    match prompts.is_empty() {
        true => Err(refuse("--prompts", arguments.prompts.as_deref().unwrap_or(""), "it has no line")),
        false => Ok(prompts),
    }
}

/// The token that ends a text, one of the model's vocabulary.
fn stop(
    arguments: &GenerateArguments,
    coder: Option<&TextCoder>,
    vocabulary: usize,
) -> Result<Option<u32>, CliError> {
    let Some(text) = &arguments.stop else { return Ok(None) };
    let token = match coder {
        Some(coder) => coder.token(text)?,
        None => text.parse().map_err(|_| refuse("--stop", text, "without a tokenizer it is a number"))?,
    };
    match (token as usize) < vocabulary {
        true => Ok(Some(token)),
        false => {
            let allowed = format!("token {token} is not in the model's vocabulary of {vocabulary}");
            Err(refuse("--stop", text, allowed))
        }
    }
}

/// How tokens are drawn; `None` for the likeliest.
fn sampling(arguments: &GenerateArguments) -> Option<Sampling> {
    let GenerateArguments { temperature, top_k, top_p, seed, .. } = *arguments;
    let otherwise = if top_k.is_some() || top_p.is_some() { 1.0 } else { 0.0 };
    let temperature = temperature.unwrap_or(otherwise);
    (temperature > 0.0).then_some(Sampling { temperature, top_k, top_p: top_p.unwrap_or(1.0), seed })
}
