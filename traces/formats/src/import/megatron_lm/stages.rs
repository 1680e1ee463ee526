//! The blocks of each stage, the schedule, and recomputation.

use super::super::arguments::Arguments;
use super::super::{Request, stages};
use crate::export::MODULES;
use trainwright_spec::error::SpecError;
use trainwright_spec::limits::{LAYERS, SEQUENCES};
use trainwright_spec::plan::{Piece, Plan, Recompute, StageBlocks};

/// Reads the arguments of pipeline and recomputation.
pub fn read(given: &Arguments, request: &Request, plan: &mut Plan) -> Result<(), SpecError> {
    let counts = counts(given, request, plan)?;
    let p = plan.mesh.pipeline;
    plan.virtual_stages = counts.len() / p;
    let group = given.optional_count("--microbatch-group-size-per-virtual-pipeline-stage", SEQUENCES)?;
    plan.schedule = match (plan.virtual_stages, group) {
        (1, _) => "1f1b".into(),
        (_, Some(group)) if group != p => {
            let m = plan.microbatches();
            let fits = (m / p).max(1).saturating_mul(group) == m;
            if !fits {
                let flag = "--microbatch-group-size-per-virtual-pipeline-stage";
                let allowed = format!("{p}, or equal groups of the {m} microbatches, as small as can be");
                return Err(request.bad(flag, group, allowed));
            }
            "interleaved-groups".into()
        }
        _ => "interleaved".into(),
    };
    plan.stages = recompute(given, request, &counts)?;
    Ok(())
}

/// Blocks of each stage.
fn counts(given: &Arguments, request: &Request, plan: &Plan) -> Result<Vec<usize>, SpecError> {
    let (p, blocks) = (plan.mesh.pipeline, plan.model.layers());
    let layout = "--pipeline-model-parallel-layout";
    if let Some(text) = given.text(layout) {
        let counts = layout_counts(text).map_err(|allowed| request.bad_text(layout, text, allowed))?;
        let placed: usize = counts.iter().sum();
        if placed != blocks {
            return Err(request.bad(
                layout,
                format!("of {placed} blocks"),
                format!("the model has {blocks}"),
            ));
        }
        return match counts.len().is_multiple_of(p) && !counts.is_empty() {
            true => Ok(counts),
            false => {
                let value = format!("of {} stages", counts.len());
                Err(request.bad(layout, value, format!("a multiple of the {p} pipeline ranks")))
            }
        };
    }
    let number = "--num-virtual-stages-per-pipeline-rank";
    let size = "--num-layers-per-virtual-pipeline-stage";
    let ends = ["--decoder-first-pipeline-num-layers", "--decoder-last-pipeline-num-layers"];
    let block_count = |flag: &str| given.optional_count(flag, LAYERS.or_zero());
    let [first, last] = [block_count(ends[0])?, block_count(ends[1])?];
    let account = ["--account-for-embedding-in-pipeline-split", "--account-for-loss-in-pipeline-split"];
    let [embedding, loss] = account.map(|flag| usize::from(given.has(flag)));
    // The embedding and the loss each count as a block.
    let counted = blocks + embedding + loss;
    let v = match given.optional_count(size, LAYERS.or_zero())? {
        Some(layers) if layers > 0 => {
            let of_rank = counted / p;
            if counted.is_multiple_of(p) && !of_rank.is_multiple_of(layers) {
                let allowed =
                    format!("it must divide the {of_rank} blocks of each of the {p} pipeline ranks");
                return Err(request.bad(size, layers, allowed));
            }
            of_rank / layers
        }
        _ => given.count_or(number, 1, LAYERS)?,
    };
    let stages = p * v.max(1);
    if first.is_none() && last.is_none() {
        let share = counted / stages;
        if share * stages != counted {
            let value = format!("of {blocks} blocks");
            let allowed =
                format!("{stages} stages have equal shares: --pipeline-model-parallel-layout has others");
            return Err(request.bad("--num-layers", value, allowed));
        }
        let mut counts = vec![share; stages];
        counts[0] = counts[0].saturating_sub(embedding);
        counts[stages - 1] = counts[stages - 1].saturating_sub(loss);
        return Ok(counts);
    }
    let given_ends = usize::from(first.is_some()) + usize::from(last.is_some());
    let taken = first.unwrap_or(0) + last.unwrap_or(0);
    let middle = stages.saturating_sub(given_ends);
    if v > 1 || middle == 0 || taken > blocks || !(blocks - taken).is_multiple_of(middle) {
        let flag = if first.is_some() { ends[0] } else { ends[1] };
        let allowed =
            format!("the other {middle} stages have equal shares of the rest of {blocks} blocks, one a rank");
        return Err(request.bad(flag, taken, allowed));
    }
    let share = (blocks - taken) / middle;
    let mut counts = vec![share; stages];
    counts[0] = first.unwrap_or(share);
    counts[stages - 1] = last.unwrap_or(share);
    Ok(counts)
}

/// The blocks of each stage of `Et*2|(t*3|)*2t,L`: `t` a block, `E` the embedding, `L` the loss, `|` between stages.
fn layout_counts(text: &str) -> Result<Vec<usize>, String> {
    let text: String = text.chars().filter(|letter| *letter != ',' && !letter.is_whitespace()).collect();
    let spelt_out = repeated(&text)?;
    let stage = |stage: &str| {
        let known = stage.chars().all(|letter| "EtLm".contains(letter));
        known.then(|| stage.matches('t').count()).ok_or_else(|| "E, t, L and | should stand here".to_string())
    };
    spelt_out.split('|').map(stage).collect()
}

/// The most letters that a layout may have.
const MOST: usize = 1_000_000;

/// A layout with `x*3` and `(…)*3` written out.
fn repeated(text: &str) -> Result<String, String> {
    let mut out = String::new();
    let mut rest = text;
    while let Some(letter) = rest.chars().next() {
        let (part, after) = match letter {
            '(' => {
                let end = rest.find(')').ok_or("a bracket is not closed")?;
                (repeated(&rest[1..end])?, &rest[end + 1..])
            }
            letter => (letter.to_string(), &rest[letter.len_utf8()..]),
        };
        let digits = after.strip_prefix('*').map(|after| {
            let end = after.find(|letter: char| !letter.is_ascii_digit()).unwrap_or(after.len());
            after.split_at(end)
        });
        let times = match digits {
            Some((digits, after)) => {
                rest = after;
                digits.parse::<usize>().map_err(|_| "a number should follow `*`")?
            }
            None => {
                rest = after;
                1
            }
        };
        if out.len().saturating_add(part.len().saturating_mul(times)) > MOST {
            return Err(format!("more than {MOST} letters"));
        }
        out += &part.repeat(times);
    }
    Ok(out)
}

fn recompute(given: &Arguments, request: &Request, counts: &[usize]) -> Result<Vec<StageBlocks>, SpecError> {
    let blocks = given.count_or("--recompute-num-layers", 1, LAYERS.or_zero())?;
    let method = given.text("--recompute-method").unwrap_or("uniform");
    let modules = given.list("--recompute-modules");
    let selective = given.has("--recompute-activations");
    let granularity = given.text("--recompute-granularity").or(selective.then_some("selective"));
    match (granularity, method) {
        (None, _) => Ok(stages(counts, Recompute::None)),
        (Some("full"), "block") => {
            let stage = |count: &usize| {
                let full = blocks.min(*count);
                let choices = [vec![Recompute::Full; full], vec![Recompute::None; count - full]];
                StageBlocks(choices.concat())
            };
            Ok(counts.iter().map(stage).collect())
        }
        (Some("full"), _) if blocks == 1 => Ok(stages(counts, Recompute::Full)),
        (Some("full"), _) => {
            let allowed = "1: blocks are computed again one by one";
            Err(request.bad("--recompute-num-layers", blocks, allowed))
        }
        (Some("selective"), _) => {
            let core = ["core_attn".to_string()];
            let pieces = modules.unwrap_or(&core).iter().map(|name| piece(name, request));
            let pieces = pieces.collect::<Result<Vec<Piece>, SpecError>>()?;
            Ok(stages(counts, Recompute::of(&pieces)))
        }
        (Some(other), _) => Err(request.bad_text("--recompute-granularity", other, "full or selective")),
    }
}

fn piece(name: &str, request: &Request) -> Result<Piece, SpecError> {
    let known = MODULES.iter().find(|(module, _)| *module == name).map(|(_, part)| *part);
    let allowed = "core_attn, layernorm, moe_act, mlp, moe or mla_up_proj";
    known.ok_or_else(|| request.bad_text("--recompute-modules", name, allowed))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn layouts_are_counted() {
        let check = |text: &str, expected: &[usize]| assert_eq!(layout_counts(text).unwrap(), expected);
        check("Et*2|t*3|t*2L", &[2, 3, 2]);
        check("E|(t|)*3,L", &[0, 1, 1, 1, 0]);
        check("Et*3|(tt|)*14,L", &[3, 2, 2, 2, 2, 2, 2, 2, 2, 2, 2, 2, 2, 2, 2, 0]);
        assert!(layout_counts("Ex|L").is_err());
        assert!(layout_counts("(t").is_err());
        assert!(layout_counts("t*99999999").is_err());
    }
}
