//! Pipelines: the tensor flows through the group in pieces, each along the same lanes.

use super::steps::{Chunks, Effect, Phase, Transfer};
use std::sync::Arc;

/// One hop of every piece.
#[derive(Debug, Clone, Copy)]
pub(super) struct Lane {
    /// The sender.
    pub from: usize,
    /// The receiver.
    pub to: usize,
    /// Which parts of the tensor take this lane. Each part has separate pieces.
    pub parts: Chunks,
    /// What the receiver does with it.
    pub effect: Effect,
    /// The step in which the first piece takes it. The following pieces do so in the following steps.
    pub start: usize,
}

/// The steps of pieces 0..`pieces` of every part over `lanes`; piece j of part i is chunk i · pieces + j.
///
/// A phase ends where a lane starts or stops, so that all steps of a phase use the same lanes.
pub(super) fn pipeline(mut lanes: Vec<Lane>, pieces: usize) -> Vec<Phase> {
    lanes.sort_by_key(|lane| lane.start);
    let mut times: Vec<usize> = lanes.iter().flat_map(|lane| [lane.start, lane.start + pieces]).collect();
    times.sort_unstable();
    times.dedup();
    let lanes: Arc<[Lane]> = lanes.into();
    let phase = |window: &[usize]| {
        let (lanes, begin, end) = (lanes.clone(), window[0], window[1]);
        // Sorted by start, the lanes in use are neighbours.
        let stopped = lanes.partition_point(|lane| lane.start + pieces <= begin);
        let started = lanes.partition_point(|lane| lane.start <= begin);
        Phase::new(end - begin, move |index| {
            lanes[stopped..started].iter().map(|lane| lane.transfer(begin + index, pieces)).collect()
        })
    };
    times.windows(2).map(phase).collect()
}

impl Lane {
    fn transfer(&self, step: usize, pieces: usize) -> Transfer {
        let chunks = Chunks {
            first: self.parts.first * pieces + (step - self.start),
            count: self.parts.count,
            stride: self.parts.stride * pieces,
        };
        Transfer::new(self.from, self.to, chunks, self.effect)
    }
}
