//! The adapters of a row, from its words for them.

use super::assumptions::{Completed, Kind};
use super::{NoPlan, Run};
use trainwright_spec::adapters::{Adapters, BaseFormat, Target};
use trainwright_spec::model::Model;
use trainwright_spec::plan::adapters_allowed;

/// Kinds of training that leave the model's weights as they are.
const KINDS: [&str; 4] = ["lora", "qlora", "dora", "adapter"];

/// Adapters of which a row does not say how wide they are: their rank changes little of a step.
const RANK: usize = 16;

/// Words for several matrices; other words are the names of one.
const GROUPS: [(&str, &[Target]); 4] = [
    ("mlp", &[Target::Gate, Target::Up, Target::Down]),
    ("qkv", &[Target::Qkv]),
    ("proj", &[Target::Output]),
    (
        "linear",
        &[Target::Query, Target::Key, Target::Value, Target::Output, Target::Gate, Target::Up, Target::Down],
    ),
];

/// Which of a row's words are trained: all weights, or adapters beside them.
impl Run {
    /// Whether adapters are trained: its kind says so, or the model's name.
    pub(super) fn has_adapters(&self) -> bool {
        KINDS.contains(&self.kind.as_str()) || self.model_name.to_lowercase().contains("lora")
    }

    /// The adapters of a completed row beside the matrices of a model; `None` if its weights are trained.
    ///
    /// # Errors
    /// `Unsupported` if the model has no such matrices.
    pub(super) fn adapters(&self, model: &Model) -> Result<Option<Adapters>, NoPlan> {
        if !self.has_adapters() {
            return Ok(None);
        }
        let base = match (self.kind.as_str(), self.base_weight_bits) {
            (_, Some(4)) | ("qlora", None) => BaseFormat::Nf4,
            (_, Some(8)) => BaseFormat::Int8,
            _ => BaseFormat::Full,
        };
        let rank = self.lora_rank.unwrap_or(RANK);
        let named = Adapters { rank, targets: targets(&self.lora_targets), base };
        // Words like `mlp` and `all linear` name matrices that not every model has.
        let of_model = |target: &Target| {
            let one = Adapters { targets: vec![*target], ..named.clone() };
            adapters_allowed(&one, model).is_ok()
        };
        let targets = named.targets.iter().copied().filter(of_model).collect();
        let adapters = Adapters { targets, ..named };
        match adapters_allowed(&adapters, model) {
            Ok(()) => Ok(Some(adapters)),
            Err(allowed) => Err(NoPlan::Unsupported(format!("adapters: {allowed}"))),
        }
    }
}

impl Completed {
    /// What a row with adapters does not say of them.
    pub(super) fn settle_adapters(&mut self) {
        if !self.run.has_adapters() {
            return;
        }
        let mut assumed = Vec::new();
        if self.run.kind == "adapter" {
            assumed.push("LoRA stands in for other adapters".to_string());
        }
        if self.run.lora_rank.is_none() {
            assumed.push(format!("`lora_rank` {RANK}"));
            self.run.lora_rank = Some(RANK);
        }
        if targets(&self.run.lora_targets).is_empty() {
            assumed.push("`lora_targets` qkv".into());
            self.run.lora_targets = "qkv".into();
        }
        if !assumed.is_empty() {
            self.assume(Kind::Kernels, assumed.join(", "));
        }
    }
}

/// The matrices that words name, in any software's words; others are left out.
fn targets(text: &str) -> Vec<Target> {
    let text = text.to_lowercase();
    let words = text.split(|letter: char| !letter.is_alphanumeric() && letter != '_');
    let mut found: Vec<Target> = words.flat_map(of_word).collect();
    found.sort_unstable();
    found.dedup();
    let joint = found.contains(&Target::Qkv);
    found.retain(|target| !(joint && [Target::Query, Target::Key, Target::Value].contains(target)));
    found
}

fn of_word(word: &str) -> Vec<Target> {
    let group = GROUPS.iter().find(|(name, _)| *name == word).map(|(_, targets)| targets.to_vec());
    group.unwrap_or_else(|| Target::from_name(word).into_iter().collect())
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn words_of_other_software_name_matrices() {
        use Target::{Down, Gate, Head, Key, Output, Qkv, Query, Up, Value};
        let check = |text: &str, expected: &[Target]| assert_eq!(targets(text), expected, "{text}");
        check("q_proj,v_proj", &[Query, Value]);
        check("qkv and attention projection (benchmark rule)", &[Qkv, Output]);
        check("query,key,value,projection,mlp,head", &[Query, Key, Value, Output, Gate, Up, Down, Head]);
        check("all linear", &[Query, Key, Value, Output, Gate, Up, Down]);
        check("attention_qkv", &[Qkv]);
        check("the usual ones", &[]);
    }
}
