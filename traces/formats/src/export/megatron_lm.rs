//! Arguments of Megatron-LM's `pretrain_gpt.py`, a line each.

use super::coverage::Coverage;
use super::megatron::{Argument, arguments};
use super::shared::LAUNCHER;
use super::{ExportedFile, Exporter, Request};

/// Megatron-LM.
pub struct MegatronLm;

impl Exporter for MegatronLm {
    fn name(&self) -> &'static str {
        "megatron-lm"
    }

    fn summary(&self) -> &'static str {
        "arguments of Megatron-LM's pretrain_gpt.py, one a line"
    }

    fn source(&self) -> &'static str {
        "Megatron-LM, megatron/training/arguments.py as packaged with megatron-core 0.19.2"
    }

    fn files(&self, request: &Request, coverage: &mut Coverage) -> Vec<ExportedFile> {
        coverage.elsewhere("cluster", format!("{LAUNCHER}, or --to slurm"));
        let lines: Vec<String> = arguments(request, coverage).0.iter().map(line).collect();
        vec![ExportedFile { name: "megatron-lm.args".into(), text: lines.join("\n") + "\n" }]
    }
}

/// An argument as a shell reads it.
pub fn line(argument: &Argument) -> String {
    let plain =
        |text: &str| text.chars().all(|letter| letter.is_ascii_alphanumeric() || "-_.,+".contains(letter));
    let value = |text: &String| if plain(text) { text.clone() } else { format!("'{text}'") };
    let words = std::iter::once(argument.flag.to_string()).chain(argument.values.iter().map(value));
    words.collect::<Vec<String>>().join(" ")
}
