//! The schedule's view of a timeline: when each rank was busy with which action.

use crate::sweep::spans_of;
use crate::timeline::{Activity, Span, Timeline};
use trainwright_spec::program::Stream;
use trainwright_spec::schedule::Action;
use trainwright_spec::units::Picoseconds;

/// When one call kept its rank busy.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Extent {
    /// `None` for the work before the first and after the last action.
    pub action: Option<Action>,
    /// From the start of the step.
    pub start: Picoseconds,
    /// From the start of the step.
    pub end: Picoseconds,
}

impl Extent {
    /// Its length.
    pub fn length(&self) -> Picoseconds {
        self.end - self.start
    }
}

/// The extents of one rank's calls, in order and never overlapping.
///
/// A call extends from the start of its first to the end of its last span on the compute stream, spans of waiting
/// and of no length left out. The other streams are left out too: their messages and reductions belong to a call
/// but may run while the next one's kernels do. A call with nothing on the compute stream has no extent.
pub fn extents(timeline: &Timeline, rank: usize) -> Vec<Extent> {
    let extent = |span: Span| Extent {
        action: timeline.calls[span.call as usize].action,
        start: span.start,
        end: span.end,
    };
    calls_of(timeline, rank).into_iter().map(extent).collect()
}

/// One span for each extent of a rank's calls: the first of the call, as long as the extent.
fn calls_of(timeline: &Timeline, rank: usize) -> Vec<Span> {
    let spans = spans_of(timeline, rank);
    let kernels = &spans[..spans.partition_point(|span| span.stream == Stream::Compute)];
    let mut calls: Vec<Span> = Vec::new();
    for span in kernels.iter().filter(|span| span.activity != Activity::Wait && span.start < span.end) {
        match calls.last_mut() {
            Some(call) if call.call == span.call => call.end = span.end,
            _ => calls.push(*span),
        }
    }
    calls
}

/// The timeline with one span for each extent of a call, and without memory: a drawing of it is the same.
pub fn outline(timeline: &Timeline) -> Timeline {
    Timeline {
        ranks: timeline.ranks.clone(),
        labels: timeline.labels.clone(),
        calls: timeline.calls.clone(),
        spans: (0..timeline.ranks.len()).flat_map(|rank| calls_of(timeline, rank)).collect(),
        memory: Vec::new(),
        duration: timeline.duration,
    }
}

/// Indices into `Timeline::ranks` in the order of the rows of a picture: by pipeline rank, then by rank.
pub fn rows(timeline: &Timeline) -> Vec<usize> {
    let mut rows: Vec<usize> = (0..timeline.ranks.len()).collect();
    rows.sort_by_key(|&index| (timeline.ranks[index].pipeline_rank, timeline.ranks[index].rank));
    rows
}

/// The stages that a rank's actions belong to, ascending: more than one with virtual stages.
pub fn stages(extents: &[Extent]) -> Vec<usize> {
    let mut stages: Vec<usize> = extents.iter().filter_map(|e| e.action).map(|action| action.stage).collect();
    stages.sort_unstable();
    stages.dedup();
    stages
}
