//! What one rank does at each instant, whichever of its streams does it.

use crate::timeline::{Activity, Span, Timeline};
use trainwright_spec::program::Axis;
use trainwright_spec::units::Picoseconds;

/// A stretch of time in which a rank does the same all along.
#[derive(Debug, Clone, Copy)]
pub(crate) struct Stretch<'a> {
    pub start: Picoseconds,
    pub end: Picoseconds,
    /// The kernel that runs; the one of the first stream in drawing order should there be several.
    pub computing: Option<&'a Span>,
    /// Over which axes data moves.
    pub communicating: Axes,
}

impl Stretch<'_> {
    pub fn length(&self) -> Picoseconds {
        self.end - self.start
    }
}

/// A set of axes: bit `i` stands for `Axis::ALL[i]`.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
pub(crate) struct Axes(u32);

impl Axes {
    pub fn insert(&mut self, axis: Axis) {
        self.0 |= 1 << axis as u8;
    }

    pub fn contains(self, axis: Axis) -> bool {
        self.0 & (1 << axis as u8) != 0
    }

    pub fn is_empty(self) -> bool {
        self.0 == 0
    }

    /// The first member in the order of `Axis::ALL`.
    pub fn first(self) -> Option<Axis> {
        Axis::ALL.into_iter().find(|&axis| self.contains(axis))
    }
}

/// The spans of one rank, ordered by stream, then start.
pub(crate) fn spans_of(timeline: &Timeline, rank: usize) -> &[Span] {
    let first = timeline.spans.partition_point(|span| (span.rank as usize) < rank);
    let count = timeline.spans[first..].partition_point(|span| span.rank as usize == rank);
    &timeline.spans[first..first + count]
}

/// Visits the stretches of one rank's step in order; together they cover it from zero to `duration`.
///
/// `spans` are those of `spans_of`. Every stream is a queue whose head is running or is the next to start, so the
/// step from one stretch to the next looks only at the few heads: time linear in the spans.
pub(crate) fn sweep<'a>(spans: &'a [Span], duration: Picoseconds, mut visit: impl FnMut(Stretch<'a>)) {
    debug_assert!(spans.is_sorted_by_key(|span| (span.stream, span.start)), "spans are ordered");
    let mut queues: Vec<&[Span]> = spans.chunk_by(|a, b| a.stream == b.stream).collect();
    let mut now = Picoseconds::ZERO;
    while now < duration {
        let mut next = duration;
        let mut computing = None;
        let mut communicating = Axes::default();
        for queue in &mut queues {
            while let [head, rest @ ..] = *queue
                && head.end <= now
            {
                *queue = rest;
            }
            let Some(head) = queue.first() else { continue };
            if head.start > now {
                next = next.min(head.start);
                continue;
            }
            next = next.min(head.end);
            match head.activity {
                Activity::Compute => computing = computing.or(Some(head)),
                Activity::Communication(axis) => communicating.insert(axis),
                Activity::Wait => {}
            }
        }
        visit(Stretch { start: now, end: next, computing, communicating });
        now = next;
    }
}
