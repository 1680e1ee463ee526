//! Cells in the words of other tables, as the words of this one.
//!
//! Each function returns `None` for a text that it does not know.

use super::cluster::NODES;
use std::sync::LazyLock;
use trainwright_spec::model::Model;
use trainwright_spec::model::preset::{preset, presets};
use trainwright_spec::optimizer::OPTIMIZERS;

/// Every model of the catalog, read once for all rows.
pub(super) static MODELS: LazyLock<Vec<Model>> =
    LazyLock::new(|| presets().filter_map(|(name, _)| preset(name).ok()).collect());

/// The number format of matrix products: `fp16` of `16-mixed`, `mxfp8` of `FP8-MX`.
pub(super) fn precision(text: &str) -> Option<&'static str> {
    let text = text.to_lowercase();
    let has = |parts: &[&str]| parts.iter().any(|part| text.contains(part));
    let eight = has(&["fp8", "e4m3", "float8"]);
    Some(match () {
        () if eight && has(&["mx"]) => "mxfp8",
        () if eight && has(&["block"]) => "fp8-block",
        () if eight => "fp8",
        () if has(&["fp4"]) => "nvfp4",
        () if has(&["bf16", "bfloat16"]) => "bf16",
        () if has(&["fp16", "float16", "half", "16-mixed", "amp"]) => "fp16",
        () if has(&["tf32"]) => "tf32",
        () if has(&["fp32", "float32", "32-true"]) => "fp32",
        () if has(&["int8"]) => "int8",
        () => return None,
    })
}

/// The state that data ranks divide: `zero3` of `FSDP` and `full_shard`.
pub(super) fn data_sharding(text: &str) -> Option<&'static str> {
    let text = text.to_lowercase().replace(['-', '_', ' '], "");
    let has = |parts: &[&str]| parts.iter().any(|part| text.contains(part));
    Some(match () {
        () if has(&["hybrid", "hsdp"]) => "hsdp",
        () if has(&["shardgradop"]) => "zero2-fsdp",
        () if has(&["zero3", "stage3", "fsdp", "fullshard"]) => "zero3",
        () if has(&["zero2", "stage2"]) => "zero2",
        () if has(&["zero1", "stage1", "distributedoptimizer", "distopt"]) => "zero1",
        () if has(&["ddp", "none", "noshard", "replica"]) || text == "dp" => "ddp",
        () => return None,
    })
}

/// The optimizer: `adam` of `distributed Adam`.
pub(super) fn optimizer(text: &str) -> Option<&'static str> {
    let text = text.to_lowercase();
    let mut words = text.split(|letter: char| !letter.is_alphanumeric());
    words.find_map(|word| OPTIMIZERS.iter().map(|known| known.name()).find(|name| *name == word))
}

/// How attention is computed: `flash2` of `FlashAttention-2`.
pub(super) fn attention_kernel(text: &str) -> Option<&'static str> {
    let text = text.to_lowercase().replace(['-', '_', ' '], "");
    let flash = text.contains("flash") || text.starts_with("fa");
    Some(match () {
        () if flash && text.contains('3') => "flash3",
        () if flash && text.contains('2') => "flash2",
        () if flash && text.contains('1') => "flash1",
        () if text.contains("softmax") => "fused-softmax",
        () if ["unfused", "eager", "naive"].contains(&text.as_str()) => "unfused",
        () => return None,
    })
}

/// The catalog's name of a GPU: `a100-80gb-sxm` of `NVIDIA A100-SXM4-80GB`.
///
/// The longest name of a chip counts; of the catalog's variants of this chip the one with the most words in common, then
/// the first that is not on a PCIe card.
pub(super) fn gpu(text: &str) -> Option<&'static str> {
    let words = words(text);
    let chip = |name: &str| chip(name).concat();
    let known = NODES.iter().map(|node| node.gpu.name.as_str());
    let known: Vec<&str> = known.filter(|name| names(&words, &chip(name))).collect();
    let longest = known.iter().map(|name| chip(name).len()).max()?;
    let alike = |name: &str| {
        let variant = self::words(name);
        let common = variant.iter().filter(|word| words.iter().any(|own| own.starts_with(word.as_str())));
        (common.count(), !name.contains("pcie"), std::cmp::Reverse(variant.len()))
    };
    known.into_iter().filter(|name| chip(name).len() == longest).max_by_key(|name| alike(name))
}

/// Whether a word of a text, or two of them joined, are the chip; `8xH100` is one word with a count.
fn names(words: &[String], chip: &str) -> bool {
    let is_chip = |word: &str| {
        let counted = word.trim_start_matches(|letter: char| letter.is_ascii_digit());
        !chip.is_empty() && (word == chip || counted.strip_prefix('x') == Some(chip) && counted != word)
    };
    words.iter().any(|word| is_chip(word)) || words.windows(2).any(|pair| is_chip(&pair.concat()))
}

/// The words of a name that say which chip it is: without memory, form and power.
fn chip(name: &str) -> Vec<String> {
    let is_size = |word: &str| word.strip_suffix("gb").or(word.strip_suffix('w')).is_some_and(is_number);
    let is_form = |word: &str| ["sxm", "pcie", "nvl", "die", "hbm"].iter().any(|form| word.starts_with(form));
    let says_variant = |word: &String| is_size(word) || is_form(word);
    words(name).into_iter().filter(|word| !says_variant(word)).collect()
}

fn is_number(text: &str) -> bool {
    text.parse::<u32>().is_ok()
}

fn words(text: &str) -> Vec<String> {
    let text = text.to_lowercase();
    let words = text.split(|letter: char| !letter.is_ascii_alphanumeric());
    words.filter(|word| !word.is_empty()).map(String::from).collect()
}

/// The catalog's model that a text names: the longest of its names that the text contains, and not further off than 15 %
/// from the number of parameters, if that is known.
pub(super) fn model(text: &str, parameters: Option<f64>) -> Option<&'static Model> {
    // The releases 3.1 and 3.3 of LLaMA 3 have its shapes.
    let plain = |text: &str| words(&text.to_lowercase().replace("3.1", "3").replace("3.3", "3")).concat();
    let text = plain(text);
    let contains = |model: &&Model| {
        let name = plain(&model.name);
        text.match_indices(&name)
            .any(|(at, _)| !text[at + name.len()..].starts_with(|next: char| next.is_ascii_digit()))
    };
    let fits = |model: &&Model| {
        parameters.is_none_or(|parameters| (model.parameters() as f64 / parameters - 1.0).abs() < 0.15)
    };
    MODELS.iter().filter(contains).filter(fits).max_by_key(|model| model.name.len())
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn gpus_are_known_by_other_names() {
        for (text, name) in [
            ("NVIDIA A100-SXM4-80GB", "a100-80gb-sxm"),
            ("a100-40gb", "a100-40gb-sxm"),
            ("A100 80GB PCIe", "a100-80gb-pcie"),
            ("H100", "h100-80gb-sxm"),
            ("8xH100", "h100-80gb-sxm"),
            ("h100 pcie", "h100-80gb-pcie"),
            ("v100-32gb-sxm3", "v100-32gb-sxm2"),
            ("GH200", "gh200-96gb"),
            ("H20", "h20"),
            ("NVIDIA L40S", "l40s"),
            ("l40s-48gb", "l40s"),
            ("TPUv5p", "tpu-v5p"),
            ("TPU v4", "tpu-v4"),
            ("T4", "t4"),
            ("GeForce RTX 4090", "rtx-4090"),
        ] {
            assert_eq!(gpu(text), Some(name), "{text}");
        }
        for text in ["abacus", "", "A1000", "amdinstinct(8ranks;seereadme)", "h2"] {
            assert_eq!(gpu(text), None, "{text}");
        }
    }

    #[test]
    fn optimizers_are_known_by_other_names() {
        for (text, name) in [
            ("Muon", Some("muon")),
            ("distributed Adam", Some("adam")),
            ("AdamW (fused)", Some("adamw")),
            ("Adafactor", None),
            ("", None),
        ] {
            assert_eq!(optimizer(text), name, "{text}");
        }
    }

    #[test]
    fn models_are_known_by_other_names() {
        let name =
            |text: &str, parameters: Option<f64>| model(text, parameters).map(|model| model.name.as_str());
        assert_eq!(name("Llama-3.1-8B-Instruct", Some(8e9)), Some("llama-3-8b"));
        assert_eq!(name("LLAMA2-7B", None), Some("llama-2-7b"));
        assert_eq!(name("meta-llama/Llama-3-70B", None), Some("llama-3-70b"));
        assert_eq!(name("GPT-NeoX-20B", Some(20e9)), Some("gpt-neox-20b"));
        assert_eq!(name("gpt-20b", None), None);
        assert_eq!(name("gpt2-xl", None), Some("gpt2-xl"));
        // Another size than the name says.
        assert_eq!(name("llama-2-7b", Some(13e9)), None);
    }

    #[test]
    fn formats_are_known_by_other_names() {
        for (text, name) in [
            ("bfloat16", Some("bf16")),
            ("16-mixed", Some("fp16")),
            ("FP8-MX", Some("mxfp8")),
            ("FP8_CS", Some("fp8")),
            ("posit", None),
        ] {
            assert_eq!(precision(text), name, "{text}");
        }
        for (text, name) in [
            ("FSDP full_shard", Some("zero3")),
            ("ZeRO-2", Some("zero2")),
            ("distributed optimizer", Some("zero1")),
            ("HYBRID_SHARD", Some("hsdp")),
            ("gossip", None),
        ] {
            assert_eq!(data_sharding(text), name, "{text}");
        }
        for (text, name) in [("FlashAttention-2", Some("flash2")), ("FA3", Some("flash3")), ("sdpa", None)] {
            assert_eq!(attention_kernel(text), name, "{text}");
        }
    }
}
