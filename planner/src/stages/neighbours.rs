//! Stages that are like others: a block stands elsewhere, or is recomputed otherwise.

use std::collections::BTreeSet;
use trainwright_spec::plan::{Recompute, StageBlocks};

/// From how many stages on a block is not tried on all others, which are about the square of that.
const MANY_STAGES: usize = 8;

/// Stages that differ from these by a block, or by the blocks of an end, each once.
pub(crate) fn neighbours(stages: &[StageBlocks], options: &[Recompute]) -> Vec<Vec<StageBlocks>> {
    let mut found = Neighbours::of(stages, options);
    for from in 0..stages.len() {
        found.other_choices(from);
    }
    found.all_moved();
    for end in BTreeSet::from([0, stages.len() - 1]) {
        found.emptied(end);
        found.filled(end);
    }
    found.found
}

/// Stages that differ from these by two blocks, recomputed as before, each once.
pub(crate) fn second_neighbours(stages: &[StageBlocks]) -> Vec<Vec<StageBlocks>> {
    let moved = |stages: &[StageBlocks]| {
        let mut found = Neighbours::of(stages, &[]);
        found.all_moved();
        found.found
    };
    let mut found = Neighbours::of(stages, &[]);
    for once in moved(stages) {
        for twice in moved(&once) {
            found.add(twice);
        }
    }
    found.found
}

/// All splits of these stages' blocks, if these make one choice and there are at most `most` splits. The first stage and the last
/// may have no block.
pub(crate) fn every_split(stages: &[StageBlocks], most: usize) -> Option<Vec<Vec<StageBlocks>>> {
    let choices: BTreeSet<Recompute> = stages.iter().flat_map(distinct).collect();
    let [choice] = choices.into_iter().collect::<Vec<_>>()[..] else { return None };
    let blocks = stages.iter().map(|stage| stage.0.len()).sum();
    let mut splits = vec![(Vec::new(), blocks)];
    for stage in 0..stages.len() {
        let later: usize = (stage + 1..stages.len()).map(|later| least_blocks(later, stages.len())).sum();
        let is_last = stage + 1 == stages.len();
        let longer = |(lengths, left): &(Vec<usize>, usize)| {
            let least = if is_last { *left } else { least_blocks(stage, stages.len()) };
            let lengths = lengths.clone();
            let left = *left;
            (least..=left - later).map(move |length| ([&lengths[..], &[length]].concat(), left - length))
        };
        // Every beginning goes on to a split, so that there are no fewer splits than beginnings.
        splits = splits.iter().flat_map(longer).take(most + 1).collect();
    }
    let stages = |(lengths, _): (Vec<usize>, usize)| {
        lengths.into_iter().map(|length| StageBlocks(vec![choice; length])).collect()
    };
    (splits.len() <= most).then(|| splits.into_iter().map(stages).collect())
}

/// Stages with a block of one of `from` on one of `to`, recomputed as before.
pub(crate) fn moved(
    stages: &[StageBlocks],
    from: impl Iterator<Item = usize>,
    to: impl Iterator<Item = usize> + Clone,
) -> Vec<Vec<StageBlocks>> {
    let mut found = Neighbours::of(stages, &[]);
    for from in from {
        for to in to.clone() {
            found.one_moved(from, to);
        }
    }
    found.found
}

/// Stages with a block of one of `from` on any other stage, or with another choice.
pub(crate) fn relieved(
    stages: &[StageBlocks],
    from: impl Iterator<Item = usize>,
    options: &[Recompute],
) -> Vec<Vec<StageBlocks>> {
    let mut found = Neighbours::of(stages, options);
    for from in from {
        found.other_choices(from);
        for to in (0..stages.len()).filter(|to| *to != from) {
            found.one_moved(from, to);
        }
    }
    found.found
}

/// The neighbours that were found.
struct Neighbours<'a> {
    stages: &'a [StageBlocks],
    options: &'a [Recompute],
    seen: BTreeSet<Vec<Vec<Recompute>>>,
    found: Vec<Vec<StageBlocks>>,
}

impl<'a> Neighbours<'a> {
    fn of(stages: &'a [StageBlocks], options: &'a [Recompute]) -> Self {
        Self { stages, options, seen: BTreeSet::new(), found: Vec::new() }
    }

    fn add(&mut self, stages: Vec<StageBlocks>) {
        if self.seen.insert(stages.iter().map(|stage| stage.0.clone()).collect()) {
            self.found.push(stages);
        }
    }

    /// A block of a stage makes another choice.
    fn other_choices(&mut self, stage: usize) {
        for before in distinct(&self.stages[stage]) {
            for after in self.options.iter().filter(|after| **after != before) {
                let mut stages = self.stages.to_vec();
                take(&mut stages[stage], before);
                put(&mut stages[stage], *after);
                self.add(stages);
            }
        }
    }

    /// A block of any stage stands on any other one; of many stages, on one next to it, or to or from an end.
    fn all_moved(&mut self) {
        let last = self.stages.len() - 1;
        let is_end = |stage: usize| stage == 0 || stage == last;
        for from in 0..=last {
            for to in (0..=last).filter(|to| *to != from) {
                if last < MANY_STAGES || from.abs_diff(to) == 1 || is_end(from) || is_end(to) {
                    self.one_moved(from, to);
                }
            }
        }
    }

    /// A block of a stage stands on another one, with its choice or any of the options.
    fn one_moved(&mut self, from: usize, to: usize) {
        if self.stages[from].0.len() <= least_blocks(from, self.stages.len()) {
            return;
        }
        for before in distinct(&self.stages[from]) {
            for after in BTreeSet::from_iter(self.options.iter().copied().chain([before])) {
                let mut stages = self.stages.to_vec();
                take(&mut stages[from], before);
                put(&mut stages[to], after);
                self.add(stages);
            }
        }
    }

    /// The first or the last stage gives all its blocks to another, or each to the shortest of the others.
    fn emptied(&mut self, end: usize) {
        if self.stages.len() == 1 {
            return;
        }
        for to in (0..self.stages.len()).filter(|stage| *stage != end) {
            let mut stages = self.stages.to_vec();
            for choice in std::mem::take(&mut stages[end].0) {
                put(&mut stages[to], choice);
            }
            self.add(stages);
        }
        let mut stages = self.stages.to_vec();
        while let Some(choice) = stages[end].0.pop() {
            let others = (0..stages.len()).filter(|stage| *stage != end);
            let shortest = others.min_by_key(|stage| stages[*stage].0.len()).expect("there are others");
            put(&mut stages[shortest], choice);
        }
        self.add(stages);
    }

    /// The first or the last stage takes blocks from the longest of the others, as long as these have more.
    fn filled(&mut self, end: usize) {
        let mut stages = self.stages.to_vec();
        loop {
            let others = (0..stages.len()).filter(|stage| *stage != end);
            let Some(longest) = others.max_by_key(|stage| stages[*stage].0.len()) else { return };
            if stages[longest].0.len() <= stages[end].0.len() + 1 {
                return;
            }
            let choice = stages[longest].0.pop().expect("it has more than the end");
            put(&mut stages[end], choice);
            self.add(stages.clone());
        }
    }
}

/// How many blocks a stage holds at least: the first may have the embedding alone, the last the head.
fn least_blocks(stage: usize, stages: usize) -> usize {
    usize::from((stage > 0 && stage + 1 < stages) || stages == 1)
}

/// The choices that a stage's blocks make.
fn distinct(stage: &StageBlocks) -> BTreeSet<Recompute> {
    stage.0.iter().copied().collect()
}

/// Takes a block with this choice away, which the stage has.
pub(super) fn take(stage: &mut StageBlocks, choice: Recompute) {
    let at = stage.0.iter().rposition(|of| *of == choice).expect("a choice of this stage");
    stage.0.remove(at);
}

/// Adds a block with this choice, behind those that recompute as much or more.
pub(super) fn put(stage: &mut StageBlocks, choice: Recompute) {
    let at = stage.0.iter().rposition(|of| *of <= choice).map_or(0, |at| at + 1);
    stage.0.insert(at, choice);
}
