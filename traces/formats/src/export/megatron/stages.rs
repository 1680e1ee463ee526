//! The blocks of each stage, the schedule, and recomputation.

use super::Arguments;
use crate::export::coverage::Coverage;
use crate::export::shared::blocks_per_stage;
use serde_json::Value;
use std::collections::BTreeSet;
use trainwright_spec::model::Mlp;
use trainwright_spec::plan::{Piece, Plan, Recompute, StageBlocks};

/// The arguments of pipeline and recomputation.
pub fn arguments(plan: &Plan, further: usize, coverage: &mut Coverage, out: &mut Arguments) {
    coverage.express(&["stages", "virtual_stages"]);
    layout(plan, further, out);
    schedule(plan, coverage, out);
    recompute(plan, coverage, out);
}

/// Stages of equal size need only their number; others are listed.
fn layout(plan: &Plan, further: usize, out: &mut Arguments) {
    if blocks_per_stage(plan).is_none() {
        let counts: Vec<usize> = plan.stages.iter().map(|stage| stage.0.len()).collect();
        let layout = layout_text(&counts, further);
        out.set("--pipeline-model-parallel-layout", layout, "model.pipeline_model_parallel_layout");
    } else if plan.virtual_stages > 1 {
        out.set(
            "--num-virtual-stages-per-pipeline-rank",
            plan.virtual_stages,
            "model.virtual_pipeline_model_parallel_size",
        );
    }
}

/// `Et*2|t*3|t*2mL`: embedding, blocks, those of further predictions and loss, with `|` between stages.
fn layout_text(counts: &[usize], further: usize) -> String {
    let blocks = |count: &usize| match count {
        0 => String::new(),
        count => format!("t*{count}"),
    };
    let stages: Vec<String> = counts.iter().map(blocks).collect();
    format!("E{}{}L", stages.join("|"), "m".repeat(further))
}

fn schedule(plan: &Plan, coverage: &mut Coverage, out: &mut Arguments) {
    coverage.express(&["schedule"]);
    let (p, v, m) = (plan.mesh.pipeline, plan.virtual_stages, plan.microbatches());
    let groups = (m / p).max(1);
    if plan.schedule == "interleaved-groups" && m.is_multiple_of(groups) && m / groups > p {
        out.set(
            "--microbatch-group-size-per-virtual-pipeline-stage",
            m / groups,
            "model.microbatch_group_size_per_vp_stage",
        );
    } else if plan.schedule != if v > 1 { "interleaved" } else { "1f1b" } {
        coverage.omit("schedule", "only 1F1B, and with several stages on a rank interleaved 1F1B");
    }
}

/// Parts of a block by their names in `--recompute-modules`.
pub(crate) const MODULES: [(&str, Piece); 6] = [
    ("core_attn", Piece::Core),
    ("layernorm", Piece::Norm),
    ("moe_act", Piece::Activation),
    ("mlp", Piece::Mlp),
    ("moe", Piece::Experts),
    ("mla_up_proj", Piece::UpProjection),
];

fn module(part: Piece) -> &'static str {
    MODULES.iter().find(|(_, known)| *known == part).map(|(name, _)| *name).expect("every part has a name")
}

fn recompute(plan: &Plan, coverage: &mut Coverage, out: &mut Arguments) {
    coverage.express(&["stages.recompute"]);
    let granularity = |out: &mut Arguments, kind: &'static str| {
        out.set("--recompute-granularity", kind, "model.recompute_granularity");
    };
    let full = |out: &mut Arguments, method: &'static str, blocks: usize| {
        granularity(out, "full");
        out.set("--recompute-method", method, "model.recompute_method");
        out.set("--recompute-num-layers", blocks, "model.recompute_num_layers");
    };
    let mut choices: Vec<Recompute> = plan.stages.iter().flat_map(|stage| stage.0.clone()).collect();
    choices.sort();
    choices.dedup();
    match choices.as_slice() {
        [Recompute::None] => {}
        [Recompute::Full] => full(out, "uniform", 1),
        [selective] if selective.name() == "selective" => {
            let pieces = selective.pieces();
            let only_experts = plan.model.blocks.iter().all(|run| matches!(run.block.mlp, Mlp::Experts(_)));
            if pieces.contains(Piece::Activation) && !only_experts {
                coverage.omit("stages.recompute", "activations are computed again in experts only");
            }
            granularity(out, "selective");
            let modules: Vec<Value> = pieces.iter().map(|piece| module(piece).into()).collect();
            out.several("--recompute-modules", modules, "model.recompute_modules");
        }
        mixed => match first_blocks(plan) {
            Some(blocks) => full(out, "block", blocks),
            None => {
                let why = "one choice for all stages, or the first blocks of each";
                // At least the blocks of the plan recompute, so that the exported plan fits wherever this one does.
                if mixed.contains(&Recompute::Full) {
                    let most = plan.stages.iter().map(recomputing).max().unwrap_or(0);
                    coverage
                        .omit("stages.recompute", format!("{why}; the first {most} of each stage in full"));
                    match plan.stages.iter().all(|stage| stage.0.len() <= most) {
                        true => full(out, "uniform", 1),
                        false => full(out, "block", most),
                    }
                } else {
                    let pieces: BTreeSet<&str> =
                        mixed.iter().flat_map(|choice| choice.pieces().iter()).map(module).collect();
                    let names: Vec<&str> = pieces.iter().copied().collect();
                    coverage.omit("stages.recompute", format!("{why}; {} in all blocks", names.join(", ")));
                    granularity(out, "selective");
                    let modules = names.into_iter().map(Value::from).collect();
                    out.several("--recompute-modules", modules, "model.recompute_modules");
                }
            }
        },
    }
}

/// How many blocks of a stage recompute anything.
fn recomputing(stage: &StageBlocks) -> usize {
    stage.0.iter().filter(|choice| **choice != Recompute::None).count()
}

/// n, if the first n blocks of every stage, or all of a shorter one, are recomputed in full and no others recompute.
fn first_blocks(plan: &Plan) -> Option<usize> {
    let full = |blocks: &[Recompute]| blocks.iter().take_while(|choice| **choice == Recompute::Full).count();
    let most = plan.stages.iter().map(|stage| full(&stage.0)).max()?;
    let fits = plan.stages.iter().all(|stage| {
        let first = most.min(stage.0.len());
        full(&stage.0) == first && stage.0[first..].iter().all(|choice| *choice == Recompute::None)
    });
    fits.then_some(most)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn layouts_name_embedding_and_loss() {
        assert_eq!(layout_text(&[2, 3, 2], 0), "Et*2|t*3|t*2L");
        assert_eq!(layout_text(&[2, 1], 1), "Et*2|t*1mL");
        assert_eq!(layout_text(&[0, 3, 0], 0), "E|t*3|L");
    }
}
