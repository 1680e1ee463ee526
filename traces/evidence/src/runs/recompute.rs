//! Recomputation by the names that software gives it.
//!
//! ```text
//! none   full   full:uniform:1   full:block:4   full 12/48   full 0.97 0.93 0.41
//! selective   selective (mlp+core_attn)   core_attn, moe_act   selective-layer   minimal
//! ```

use trainwright_spec::plan::{Piece, Recompute, StageBlocks};
use trainwright_spec::stack::Stack;

/// Modules of a block by the names that software gives them.
const PIECES: [(&str, Piece); 19] = [
    ("core_attn", Piece::Core),
    ("core_attention", Piece::Core),
    ("core", Piece::Core),
    ("layernorm", Piece::Norm),
    ("layer_norm", Piece::Norm),
    ("rmsnorm", Piece::Norm),
    ("norm", Piece::Norm),
    ("moe_act", Piece::Activation),
    ("mlp_act", Piece::Activation),
    ("activation", Piece::Activation),
    ("swiglu", Piece::Activation),
    ("gelu", Piece::Activation),
    ("mlp", Piece::Mlp),
    ("ffn", Piece::Mlp),
    ("moe", Piece::Experts),
    ("experts", Piece::Experts),
    ("mla_up_proj", Piece::UpProjection),
    ("up_proj", Piece::UpProjection),
    ("up-projection", Piece::UpProjection),
];

/// MaxText's policies that keep the results of the matrix products, as the modules that they recompute.
///
/// Source: AI-Hypercomputer/maxtext, MaxText/layers/models.py, `get_remat_policy` (2024): `minimal` keeps the results
/// of products without a batch dimension, hence not those of attention.
const POLICIES: [(&str, &[Piece]); 4] = [
    ("minimal", &[Piece::Core, Piece::Norm, Piece::Activation]),
    ("minimal_flash", &[Piece::Norm, Piece::Activation]),
    ("minimal_with_context", &[Piece::Norm, Piece::Activation]),
    ("save_dot_except_mlp", &[Piece::Core, Piece::Norm, Piece::Mlp]),
];

/// What blocks recompute, as a row says it.
#[derive(Debug, Clone, PartialEq)]
pub(super) enum Chosen {
    /// The choice of every n-th block; the others recompute nothing.
    Every(Recompute, usize),
    /// The first blocks of each stage in full.
    First(usize),
    /// The fraction of blocks in full of each stage, or one fraction for all of them.
    Fractions(Vec<f64>),
}

impl Chosen {
    /// Reads a cell; `None` if it has another form. `stack` defines `selective`, and is changed to one that can
    /// recompute modules if the row does.
    pub(super) fn read(text: &str, stack: &mut Stack) -> Option<Self> {
        let text = text.trim().to_lowercase();
        let words = text.as_str();
        match words {
            "" | "none" | "no" | "off" | "false" => return Some(Chosen::Every(Recompute::None, 1)),
            "full" | "yes" | "on" | "true" | "all" | "full:uniform" | "full:uniform:1" => {
                return Some(Chosen::Every(Recompute::Full, 1));
            }
            // torchtitan's choices: every second block whole, or every second product of all blocks, the same work.
            "selective-layer" | "selective-op" | "selective op" => {
                return Some(Chosen::Every(Recompute::Full, 2));
            }
            "selective" => {
                if let Some(blocks) = &stack.selective_blocks {
                    return Some(Chosen::Every(Recompute::Full, blocks.value));
                }
                stack.selective_recompute = true;
                return Some(Chosen::Every(Recompute::Selective, 1));
            }
            _ => {}
        }
        if let Some(rest) = words.strip_prefix("full:block:") {
            return rest.parse().ok().map(Chosen::First);
        }
        if let Some(fractions) = words.strip_prefix("full ").and_then(fractions) {
            return Some(Chosen::Fractions(fractions));
        }
        let policy = POLICIES.iter().find(|(name, _)| *name == words).map(|(_, pieces)| pieces.to_vec());
        let pieces = policy.or_else(|| pieces(words))?;
        stack.selective_recompute = true;
        Some(Chosen::Every(Recompute::of(&pieces), 1))
    }

    /// Whether it has a fraction for each of this number of stages.
    pub(super) fn suits(&self, stages: usize) -> bool {
        match self {
            Chosen::Fractions(fractions) => [1, stages].contains(&fractions.len()),
            _ => true,
        }
    }

    /// Gives each block of each stage its choice.
    pub(super) fn apply(&self, stages: &mut [StageBlocks]) {
        let mut block = 0usize;
        for (index, stage) in stages.iter_mut().enumerate() {
            let count = stage.0.len();
            for (place, choice) in stage.0.iter_mut().enumerate() {
                *choice = match self {
                    Chosen::Every(choice, every) if (block + 1).is_multiple_of(*every) => *choice,
                    Chosen::First(first) if place < *first => Recompute::Full,
                    Chosen::Fractions(fractions)
                        if is_part(place, count, fractions[index % fractions.len()]) =>
                    {
                        Recompute::Full
                    }
                    _ => Recompute::None,
                };
                block += 1;
            }
        }
    }
}

/// Whether a block is one of the first round(fraction · count) of its stage.
fn is_part(place: usize, count: usize, fraction: f64) -> bool {
    place < (fraction * count as f64).round() as usize
}

/// Reads `12/48`, `12 of 48 layers`, `(12 of 48)` and `0.97 0.93 0.41`: fractions from 0 to 1.
fn fractions(text: &str) -> Option<Vec<f64>> {
    let text = text.trim_matches(['(', ')']).trim_end_matches("layers").trim_end_matches("blocks").trim();
    let one = |word: &str| match word.split_once('/') {
        Some((part, whole)) => Some(part.trim().parse::<f64>().ok()? / whole.trim().parse::<f64>().ok()?),
        None => word.parse::<f64>().ok(),
    };
    let text = text.replace(" of ", "/");
    let read: Option<Vec<f64>> = text.split_whitespace().map(one).collect();
    read.filter(|all| !all.is_empty() && all.iter().all(|fraction| (0.0..=1.0).contains(fraction)))
}

/// Reads `selective (mlp+core_attn)`, `selective: mlp, core_attn` and `mlp+core_attn`.
fn pieces(text: &str) -> Option<Vec<Piece>> {
    let list = text.strip_prefix("selective").unwrap_or(text).trim_start_matches([':', ' ', '(']);
    let names = list.trim_end_matches(')').split(['+', ',', ';']).map(str::trim);
    names.map(|name| PIECES.iter().find(|(known, _)| *known == name).map(|(_, piece)| *piece)).collect()
}

#[cfg(test)]
mod tests {
    use super::*;

    fn stack() -> Stack {
        Stack::from_name("megatron-core").unwrap()
    }

    /// The blocks of two stages of four, as a plan writes them.
    fn blocks(text: &str) -> Option<String> {
        let chosen = Chosen::read(text, &mut stack())?;
        let mut stages = vec![StageBlocks(vec![Recompute::None; 4]), StageBlocks(vec![Recompute::None; 4])];
        chosen.apply(&mut stages);
        Some(stages.iter().map(ToString::to_string).collect::<Vec<_>>().join(" | "))
    }

    #[test]
    fn names_of_software_become_choices_of_blocks() {
        let check = |text: &str, expected: &str| {
            assert_eq!(blocks(text).as_deref(), Some(expected), "{text}");
        };
        check("none", "4 none | 4 none");
        check("Full", "4 full | 4 full");
        check("full:uniform:1", "4 full | 4 full");
        check("full:block:1", "1 full, 3 none | 1 full, 3 none");
        check("full 2/8", "1 full, 3 none | 1 full, 3 none");
        check("full (6 of 8 layers)", "3 full, 1 none | 3 full, 1 none");
        check("full 1 0.3", "4 full | 1 full, 3 none");
        check("selective", "4 selective | 4 selective");
        check("selective (mlp+core_attn)", "4 selective(core+mlp) | 4 selective(core+mlp)");
        check("core_attn", "4 selective | 4 selective");
        check("moe_act, layernorm", "4 selective(norm+activation) | 4 selective(norm+activation)");
        check("mla_up_proj", "4 selective(up-projection) | 4 selective(up-projection)");
        check("minimal", "4 selective(core+norm+activation) | 4 selective(core+norm+activation)");
        check("selective-layer", "1 none, 1 full, 1 none, 1 full | 1 none, 1 full, 1 none, 1 full");
    }

    #[test]
    fn other_texts_have_no_meaning() {
        for text in
            ["mixed per-op", "selective (sofa)", "full 1.5", "full 1/0", "full:block:x", "full of", "+"]
        {
            assert_eq!(blocks(text), None, "{text}");
        }
        assert!(!Chosen::read("full 0.5 0.5 0.5", &mut stack()).unwrap().suits(2));
        assert!(Chosen::read("full 0.5", &mut stack()).unwrap().suits(2));
    }
}
