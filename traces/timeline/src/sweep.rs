//! The activities of one rank at each instant, over all of its streams.

use crate::timeline::{Activity, Span, Timeline};
use trainwright_spec::program::{Axis, CopyDirection};
use trainwright_spec::units::Picoseconds;

/// A stretch of time in which the activities of a rank do not change.
#[derive(Debug, Clone, Copy)]
pub struct Stretch<'a> {
    /// From the start of the step.
    pub start: Picoseconds,
    /// From the start of the step.
    pub end: Picoseconds,
    /// The kernel that runs; if there are several, the one of the first stream in drawing order.
    pub computing: Option<&'a Span>,
    /// Everything else that runs.
    pub others: Activities,
}

impl Stretch<'_> {
    /// Its length.
    pub fn length(&self) -> Picoseconds {
        self.end - self.start
    }
}

/// Activities other than kernels: bit `i` stands for `Axis::ALL[i]`, and the bits after those for copies out of the GPU,
/// copies into it and work of the processors.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
pub struct Activities(u32);

impl Activities {
    /// The bit of an activity; `None` for kernels and waiting.
    fn bit(activity: Activity) -> Option<u32> {
        let axes = Axis::ALL.len() as u32;
        match activity {
            Activity::Communication(axis) => Some(axis as u32),
            Activity::Copy(CopyDirection::ToHost) => Some(axes),
            Activity::Copy(CopyDirection::FromHost) => Some(axes + 1),
            Activity::Host => Some(axes + 2),
            Activity::Compute | Activity::Wait => None,
        }
    }

    fn insert(&mut self, activity: Activity) {
        self.0 |= Self::bit(activity).map_or(0, |bit| 1 << bit);
    }

    /// Whether an activity is in the set.
    pub fn contains(self, activity: Activity) -> bool {
        Self::bit(activity).is_some_and(|bit| self.0 & (1 << bit) != 0)
    }

    /// The first of them: axes come before copies and those before the processors; `None` if nothing but kernels runs.
    pub fn first(self) -> Option<Activity> {
        let axes = Axis::ALL.len();
        match self.0.trailing_zeros() as usize {
            axis if axis < axes => Some(Activity::Communication(Axis::ALL[axis])),
            bit if bit == axes => Some(Activity::Copy(CopyDirection::ToHost)),
            bit if bit == axes + 1 => Some(Activity::Copy(CopyDirection::FromHost)),
            bit if bit == axes + 2 => Some(Activity::Host),
            _ => None,
        }
    }

    /// Whether the activity is the first of them: axes come before copies and those before the processors.
    pub fn is_first(self, activity: Activity) -> bool {
        self.first() == Some(activity)
    }
}

/// The spans of one rank, ordered by stream, then start.
pub fn spans_of(timeline: &Timeline, rank: usize) -> &[Span] {
    let first = timeline.spans.partition_point(|span| (span.rank as usize) < rank);
    let count = timeline.spans[first..].partition_point(|span| span.rank as usize == rank);
    &timeline.spans[first..first + count]
}

/// Visits the stretches of one rank's step in order; together they cover it from zero to `duration`.
///
/// `spans` are those of `spans_of`. Every stream is a queue whose head is running or is the next to start, so the
/// step from one stretch to the next looks only at the few heads: time linear in the spans.
pub fn sweep<'a>(spans: &'a [Span], duration: Picoseconds, mut visit: impl FnMut(Stretch<'a>)) {
    debug_assert!(spans.is_sorted_by_key(|span| (span.stream, span.start)), "spans are ordered");
    let mut queues: Vec<&[Span]> = spans.chunk_by(|a, b| a.stream == b.stream).collect();
    let mut now = Picoseconds::ZERO;
    while now < duration {
        let mut next = duration;
        let mut computing = None;
        let mut others = Activities::default();
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
                other => others.insert(other),
            }
        }
        visit(Stretch { start: now, end: next, computing, others });
        now = next;
    }
}
