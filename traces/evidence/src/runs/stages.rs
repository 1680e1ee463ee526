//! How software cuts a model into stages, for rows without a layout.

use trainwright_spec::model::{Mlp, Model};
use trainwright_spec::plan::{Recompute, StageBlocks};
use trainwright_spec::stack::Cut;

/// The blocks of each stage, without recomputation: those that `notes` state, else as the software cuts.
pub(super) fn stages(model: &Model, stages: usize, cut: Cut, notes: &str) -> Vec<StageBlocks> {
    let cut = || match cut {
        Cut::Blocks => by_blocks(model.layers(), stages),
        Cut::Weights => by_weights(model, stages),
    };
    let sizes = noted(notes, model.layers(), stages).unwrap_or_else(cut);
    sizes.into_iter().map(|size| StageBlocks(vec![Recompute::None; size])).collect()
}

/// Whether the stages are one for each block and one for the head alone, or also one for the embedding alone.
pub(super) fn ends_alone(layers: usize, stages: usize) -> bool {
    [layers.checked_add(1), layers.checked_add(2)].contains(&Some(stages))
}

/// `layers per stage [5, 7, 7, 7]` of this many stages: of all blocks, or with embedding and head as one each. `None` if the
/// notes state nothing of the kind.
fn noted(notes: &str, layers: usize, stages: usize) -> Option<Vec<usize>> {
    let (_, list) = notes.split_once("layers per stage [")?;
    let (list, _) = list.split_once(']')?;
    let mut sizes: Vec<usize> =
        list.split(',').map(|size| size.trim().parse().ok()).collect::<Option<_>>()?;
    if sizes.len() != stages {
        return None;
    }
    if sizes.iter().sum::<usize>() == layers + 2 {
        for end in [0, stages - 1] {
            sizes[end] = sizes[end].checked_sub(1)?;
        }
    }
    (sizes.iter().sum::<usize>() == layers).then_some(sizes)
}

/// l / s to each, and the remainder one each to the first stages; but
/// if l + 2 or l + 1 divides, both ends or the last stage get one block less than the others.
fn by_blocks(layers: usize, stages: usize) -> Vec<usize> {
    let even = |count: usize| vec![count / stages; stages];
    if stages > 1 && !layers.is_multiple_of(stages) {
        for (extra, ends) in [(2, vec![0, stages - 1]), (1, vec![stages - 1])] {
            if (layers + extra).is_multiple_of(stages) {
                let mut sizes = even(layers + extra);
                ends.into_iter().for_each(|stage| sizes[stage] -= 1);
                return sizes;
            }
        }
    }
    let mut sizes = even(layers);
    (0..layers % stages).for_each(|stage| sizes[stage] += 1);
    sizes
}

/// Blocks in the order of the model, each to the stage at hand, up to the block with which the weights so far reach
/// (i + 1) / s of all on stage i. The head's weights count, the embedding's do not: it multiplies nothing.
/// Source: huggingface/nanotron, `src/nanotron/models/base.py`, `build_model`, where they must exceed it; but 16 blocks
/// whose head weighs four of them are measured as if 5, 10 and 15 blocks ended a stage of four.
fn by_weights(model: &Model, stages: usize) -> Vec<usize> {
    let blocks: Vec<f64> = model
        .blocks
        .iter()
        .flat_map(|run| {
            let attention = &run.block.attention;
            let width = match &run.block.mlp {
                Mlp::Dense(mlp) => mlp.width,
                Mlp::Experts(experts) => experts.expert.width * experts.per_token,
            };
            let weights = 4 * attention.heads * attention.head_dim + 3 * width;
            std::iter::repeat_n((weights * model.hidden) as f64, run.count)
        })
        .collect();
    let all = blocks.iter().sum::<f64>() + (model.vocab * model.hidden) as f64;
    let mut sizes = vec![0; stages];
    let (mut so_far, mut stage) = (0.0, 0);
    for block in blocks {
        sizes[stage] += 1;
        so_far += block;
        if stage + 1 < stages && so_far >= all * (stage + 1) as f64 / stages as f64 {
            stage += 1;
        }
    }
    // That software has the head's norm, casts or loss on stages that are left without a block. Plans have them with the
    // head on the last stage, so a stage in front of it needs a block.
    for empty in 0..stages.saturating_sub(1) {
        if sizes[empty] == 0
            && let Some(rich) = (0..empty).rev().find(|stage| sizes[*stage] > 1)
        {
            sizes[rich] -= 1;
            sizes[empty] += 1;
        }
    }
    sizes
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_block_that_exceeds_a_stages_weights_stays_on_it() {
        // A block of LLaMA 3 8B has 4 x 4096^2 + 3 x 14336 x 4096 = 243 M weights, the head 525 M = 2.16 blocks: 34.16 / 8 =
        // 4.27 a stage, exceeded with blocks 5, 9, 13, 18, 22, 26 and 30.
        let model = trainwright_spec::model::preset::preset("llama-3-8b").unwrap();
        assert_eq!(by_weights(&model, 8), [5, 4, 4, 5, 4, 4, 4, 2]);
        assert_eq!(by_weights(&model, 1), [32]);
        // 1.07 a stage: the first and the 15th take two blocks, which leaves the last two none. The head needs one of them; the
        // other gets a block of the 15th.
        let sizes = by_weights(&model, 32);
        assert_eq!((sizes[0], sizes[14], sizes[30], sizes[31]), (2, 1, 1, 0));
        assert_eq!(sizes.iter().sum::<usize>(), 32);
    }

    #[test]
    fn notes_state_the_blocks_of_each_stage_with_or_without_the_ends() {
        let ends = "memory GiB; layers per stage [5, 7, 7, 7] (incl. embedding/head)";
        assert_eq!(noted(ends, 24, 4), Some(vec![4, 7, 7, 6]));
        assert_eq!(noted("layers per stage [26]", 24, 1), Some(vec![24]));
        assert_eq!(noted("layers per stage [10, 14]", 24, 2), Some(vec![10, 14]));
        // Another number of stages or of blocks, and no numbers.
        assert_eq!(noted(ends, 24, 2), None);
        assert_eq!(noted(ends, 25, 4), None);
        assert_eq!(noted("layers per stage [a, b]", 24, 2), None);
        assert_eq!(noted("", 24, 4), None);
        let model = trainwright_spec::model::preset::preset("llama-3-8b").unwrap();
        let sizes = |notes| {
            stages(&model, 2, Cut::Blocks, notes).iter().map(|stage| stage.0.len()).collect::<Vec<_>>()
        };
        assert_eq!(sizes("layers per stage [15, 17]"), [15, 17]);
        assert_eq!(sizes(""), [16, 16]);
    }

    #[test]
    fn blocks_are_cut_evenly_and_the_ends_count_if_that_makes_it_even() {
        assert_eq!(by_blocks(8, 4), [2, 2, 2, 2]);
        // 70 blocks on 12 stages: 72 / 12 = 6, an end has one less (BLOOM's cut).
        assert_eq!(by_blocks(70, 12), [5, 6, 6, 6, 6, 6, 6, 6, 6, 6, 6, 5]);
        // 31 on 4: 32 / 4 = 8, the last has one less.
        assert_eq!(by_blocks(31, 4), [8, 8, 8, 7]);
        // 9 on 4: neither 10 nor 11 divides.
        assert_eq!(by_blocks(9, 4), [3, 2, 2, 2]);
        assert_eq!(by_blocks(3, 1), [3]);
        // A stage for the embedding alone and one for the head alone, or for the head.
        assert_eq!(by_blocks(2, 4), [0, 1, 1, 0]);
        assert_eq!(by_blocks(3, 4), [1, 1, 1, 0]);
    }
}
