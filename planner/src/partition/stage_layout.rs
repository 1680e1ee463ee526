//! From how many layers of each kind a stage holds to which layers they are.

use super::counted_layers::CountedLayers;
use std::ops::Range;

/// What one stage holds.
#[derive(Clone, Debug, Default)]
pub(super) struct StageMix {
    /// How many layers.
    pub length: usize,
    /// The kind of its device.
    pub device: usize,
    /// Per class, per undominated choice, how many layers take it.
    pub taken: Vec<Vec<u32>>,
}

/// A split as the solution gives it.
pub(super) struct Split {
    pub intervals: Vec<Range<usize>>,
    pub choices: Vec<usize>,
}

/// Lays the stages out one after the other; among equal layers of a stage those that keep less come first.
pub(super) fn lay_out(layers: &CountedLayers, stages: &[StageMix]) -> Split {
    let mut intervals = Vec::with_capacity(stages.len());
    let mut choices = Vec::with_capacity(layers.sequence.len());
    for stage in stages {
        let start = choices.len();
        let classes = &layers.classes[stage.device];
        let mut queues: Vec<Vec<usize>> = Vec::with_capacity(classes.len());
        for (class, taken) in classes.iter().zip(&stage.taken) {
            let most_kept_first =
                class.by_kept.iter().rev().flat_map(|&choice| {
                    std::iter::repeat_n(class.choices[choice].index, taken[choice] as usize)
                });
            queues.push(most_kept_first.collect());
        }
        for &class in &layers.sequence[start..start + stage.length] {
            choices.push(queues[class].pop().expect("a mix counts the layers of its interval"));
        }
        intervals.push(start..choices.len());
    }
    Split { intervals, choices }
}
