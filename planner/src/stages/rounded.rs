//! Stages of whole blocks from parts of blocks.

use super::best_stages::MemoryLimits;
use super::neighbours::{put, take};
use trainwright_spec::plan::{Plan, Recompute, StageBlocks};

/// How many blocks are recomputed more than the parts say, until they fit.
const MORE: usize = 32;

/// What is left of a block by rounding errors alone.
const NOTHING: f64 = 1e-6;

/// Stages of `blocks` blocks that are as near as whole ones can be to `parts`, by stage and recompute choice: a stage ends where that
/// is nearest to where its parts do, and blocks that keep less are rounded up. `options` are the choices.
pub(crate) fn rounded(parts: &[Vec<f64>], options: &[Recompute], blocks: usize) -> Vec<StageBlocks> {
    let last = parts.len() - 1;
    let mut by_kept: Vec<usize> = (0..options.len()).collect();
    by_kept.sort_by_key(|option| options[*option]);
    let (keeps_most, others) = by_kept.split_last().expect("there is a choice");
    let (mut begin, mut sum) = (0, 0.0);
    let of_stage = |(stage, parts): (usize, &Vec<f64>)| {
        let of_all: f64 = parts.iter().sum();
        sum += of_all;
        // Each stage between the ends has one block or more.
        let (least, later) = (begin + usize::from(stage > 0), last.saturating_sub(stage + 1));
        let end = if stage == last { blocks } else { (sum.round() as usize).min(blocks - later).max(least) };
        let length = end - begin;
        begin = end;
        let mut of_stage = Vec::with_capacity(length);
        for option in others {
            let part = parts[*option] * length as f64 / of_all.max(NOTHING);
            let count = (part - NOTHING).ceil().max(0.0) as usize;
            of_stage.extend(vec![options[*option]; count.min(length - of_stage.len())]);
        }
        of_stage.resize(length, options[*keeps_most]);
        StageBlocks(of_stage)
    };
    parts.iter().enumerate().map(of_stage).collect()
}

/// The plan if it fits, or with some more blocks that are recomputed as `most`, which keeps least: those of the fullest rank, and of
/// its first stages, which hold most microbatches. `None` if that does not help.
pub(crate) fn recomputed_to_fit(limits: &MemoryLimits, mut plan: Plan, most: Recompute) -> Option<Plan> {
    for _ in 0..MORE {
        let fullest = limits.fullest(&plan);
        if fullest.fits() {
            return limits.fit(&plan).then_some(plan);
        }
        let (shape, schedule) = (plan.pipeline_shape(), plan.schedule());
        let mut of_rank =
            (0..plan.stages.len()).filter(|stage| schedule.rank_of(*stage, shape) == fullest.rank);
        let keeps =
            |stage: &usize| plan.stages[*stage].0.iter().copied().filter(|choice| *choice != most).max();
        let (stage, choice) = of_rank.find_map(|stage| Some((stage, keeps(&stage)?)))?;
        take(&mut plan.stages[stage], choice);
        put(&mut plan.stages[stage], most);
    }
    None
}

/// How many of `blocks` each stage has if the last ones have equally many, as few as that takes, where the head counts as `head` blocks
/// of the last; the first has what is left, and stages between the ends one or more. There are `stages`, two or more, and no more
/// between the ends than blocks.
pub(crate) fn filled_from_behind(stages: usize, blocks: usize, head: f64) -> Vec<usize> {
    let most = ((blocks as f64 + head) / stages as f64).ceil();
    let mut lengths = vec![0; stages];
    let mut left = blocks;
    for stage in (1..stages).rev() {
        let room = if stage + 1 == stages { (most - head).max(0.0) as usize } else { most as usize };
        lengths[stage] = room.min(left - (stage - 1));
        left -= lengths[stage];
    }
    lengths[0] = left;
    lengths
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn late_stages_are_full_and_the_first_have_the_rest() {
        // LLaMA 3 8B has 32 blocks and a head of 2.4: in ten stages 4 at most, of which the last has room for one.
        assert_eq!(filled_from_behind(10, 32, 2.4), [0, 3, 4, 4, 4, 4, 4, 4, 4, 1]);
        assert_eq!(filled_from_behind(16, 32, 2.4), [0, 1, 1, 1, 1, 1, 3, 3, 3, 3, 3, 3, 3, 3, 3, 0]);
        for stages in 2..12 {
            for blocks in (stages - 2).max(1)..40 {
                for head in [0.0, 0.3, 2.0, 50.0] {
                    let lengths = filled_from_behind(stages, blocks, head);
                    assert_eq!(lengths.iter().sum::<usize>(), blocks);
                    assert!(lengths[1..stages - 1].iter().all(|length| *length > 0), "{lengths:?}");
                }
            }
        }
    }

    #[test]
    fn stages_are_as_near_as_whole_blocks_can_be_and_recompute_no_less() {
        let options = [Recompute::None, Recompute::Full];
        let mut state = 5u64;
        let mut random = move || {
            state = state.wrapping_mul(6364136223846793005).wrapping_add(1442695040888963407);
            (state >> 33) as f64 / 2f64.powi(31)
        };
        let mut shorter = 0;
        for stages in [1, 2, 3, 5, 8, 16] {
            for blocks in [16, 17, 40] {
                // Parts of all blocks, where stages between the ends have one or more.
                let inner = stages.max(2) - 2;
                let free: Vec<f64> = (0..stages).map(|_| random().powi(2)).collect();
                let scale = (blocks - inner) as f64 / free.iter().sum::<f64>();
                let inside = |stage: usize| f64::from(u8::from(stage > 0 && stage + 1 < stages));
                let parts: Vec<Vec<f64>> = (0..stages)
                    .map(|stage| {
                        let (length, full) = (free[stage] * scale + inside(stage), random());
                        vec![length * (1.0 - full), length * full]
                    })
                    .collect();
                let rounded = rounded(&parts, &options, blocks);
                assert_eq!(rounded.iter().map(|stage| stage.0.len()).sum::<usize>(), blocks);
                for (stage, (StageBlocks(of_stage), parts)) in rounded.iter().zip(&parts).enumerate() {
                    let length = of_stage.len();
                    let of_all: f64 = parts.iter().sum();
                    assert!(length >= inside(stage) as usize, "{rounded:?} of {parts:?}");
                    assert!((length as f64 - of_all).abs() < 1.0 + 1e-9, "{rounded:?} of {parts:?}");
                    let full = of_stage.iter().filter(|choice| **choice == Recompute::Full).count();
                    let wanted = parts[1] / of_all * length as f64;
                    assert!(
                        (wanted - 1e-3..wanted + 1.0).contains(&(full as f64)),
                        "{rounded:?} of {parts:?}"
                    );
                    shorter += usize::from((length as f64) < of_all);
                }
            }
        }
        assert!(shorter > 20, "{shorter} stages are shorter than their parts");
    }
}
