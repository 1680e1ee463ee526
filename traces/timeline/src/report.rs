//! Where the time and the memory of a step went, as numbers.
//!
//! For every rank, in picoseconds:
//!
//! ```text
//! step time = compute + exposed communication and copies + bubble
//! ```

use crate::actions::extents;
use crate::memory::{MemoryByKind, changes_of, levels};
use crate::sweep::{Activities, spans_of, sweep};
use crate::timeline::{Activity, RankTrack, Span, Timeline};
use serde::{Serialize, Serializer};
use std::ops::Range;
use trainwright_spec::program::{Axis, CopyDirection, MemoryKind, Stream};
use trainwright_spec::schedule::{Action, ActionKind};
use trainwright_spec::units::{Bytes, Picoseconds};

/// Time and memory of a step. Serializes with the unit in every field's name.
#[derive(Debug, Clone, PartialEq, Serialize)]
pub struct Report {
    /// From the step's start to the end of its last span.
    #[serde(rename = "step_time_s", serialize_with = "in_seconds")]
    pub step_time: Picoseconds,
    /// How many ranks took part, including those that another one stands for.
    pub rank_count: usize,
    /// The mean over all of them.
    pub mean: TimeShares,
    /// The highest peak of any rank.
    #[serde(rename = "peak_memory_bytes")]
    pub peak_memory: Bytes,
    /// The ranks of the timeline, in its order.
    pub ranks: Vec<RankReport>,
}

/// Time and memory of one rank.
#[derive(Debug, Clone, PartialEq, Serialize)]
pub struct RankReport {
    /// The global rank.
    pub rank: usize,
    /// Ranks with equal spans, including this one.
    pub stands_for: usize,
    /// Its coordinate on the pipeline axis.
    pub pipeline_rank: usize,
    /// Where its time went.
    #[serde(flatten)]
    pub time: TimeShares,
    /// Its memory.
    pub memory: MemoryReport,
}

/// Where the time of a step went: `compute + exposed + bubble` is the step time.
#[derive(Debug, Clone, Copy, PartialEq, Serialize)]
pub struct TimeShares {
    /// While a kernel ran.
    #[serde(rename = "compute_s", serialize_with = "in_seconds")]
    pub compute: Picoseconds,
    /// While data moved, or the node's processors worked, and no kernel ran.
    #[serde(rename = "exposed_s", serialize_with = "in_seconds")]
    pub exposed: Picoseconds,
    /// While neither happened: waiting, or nothing to do.
    #[serde(rename = "bubble_s", serialize_with = "in_seconds")]
    pub bubble: Picoseconds,
    /// The bubble as a part of the step time, 0 to 1.
    pub bubble_share: f64,
    /// For each axis, in the order of `Axis::ALL`; only those that communicate are written.
    #[serde(serialize_with = "communicating")]
    pub communication: [AxisTime; Axis::ALL.len()],
    /// For each stream between GPU and host, in the order of `Stream::OFFLOAD`; written if there are any.
    #[serde(skip_serializing_if = "nothing_offloaded")]
    pub offload: [OffloadTime; Stream::OFFLOAD.len()],
}

/// How long a stream between a GPU and its node's processors was busy.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize)]
pub struct OffloadTime {
    /// Which one.
    pub stream: Stream,
    /// While it was busy, whatever else ran.
    #[serde(rename = "total_s", serialize_with = "in_seconds")]
    pub total: Picoseconds,
    /// The part of it during which a kernel ran.
    #[serde(rename = "overlapped_s", serialize_with = "in_seconds")]
    pub overlapped: Picoseconds,
    /// The part of it during which no kernel ran, no data moved over an axis and no earlier stream was busy either.
    #[serde(rename = "exposed_s", serialize_with = "in_seconds")]
    pub exposed: Picoseconds,
}

/// How long data moved over one axis of the mesh.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize)]
pub struct AxisTime {
    /// Which one.
    pub axis: Axis,
    /// While data moved, whatever else ran.
    #[serde(rename = "total_s", serialize_with = "in_seconds")]
    pub total: Picoseconds,
    /// The part of it during which a kernel ran.
    #[serde(rename = "overlapped_s", serialize_with = "in_seconds")]
    pub overlapped: Picoseconds,
    /// The part of it during which no kernel ran and no earlier axis communicated either, so that the exposed
    /// times of all axes add up.
    #[serde(rename = "exposed_s", serialize_with = "in_seconds")]
    pub exposed: Picoseconds,
}

impl AxisTime {
    /// Whether no data moved.
    pub fn is_zero(&self) -> bool {
        self.total == Picoseconds::ZERO
    }
}

/// How much memory a rank held.
#[derive(Debug, Clone, PartialEq, Serialize)]
pub struct MemoryReport {
    /// The most it held at once.
    #[serde(rename = "peak_bytes")]
    pub peak: Bytes,
    /// The first time at which it held that much.
    #[serde(rename = "peak_time_s", serialize_with = "in_seconds")]
    pub peak_time: Picoseconds,
    /// The schedule's action that ran at the peak, such as `2F0`; `None` outside of the actions.
    #[serde(serialize_with = "as_text")]
    pub peak_action: Option<Action>,
    /// The span that started at the peak, or else was running.
    pub peak_span: Option<String>,
    /// Forward actions that had started at the peak less backward actions that had ended: the microbatches whose
    /// activations were held, one counted once for each of the rank's stages that it was in.
    pub in_flight_at_peak: usize,
    /// For each kind, in the order of `MemoryKind::ALL`.
    pub kinds: [KindMemory; MemoryKind::ALL.len()],
}

/// How much a rank held of one kind of memory.
#[derive(Debug, Clone, Copy, PartialEq, Serialize)]
pub struct KindMemory {
    /// Which one.
    pub kind: MemoryKind,
    /// When the rank held most of all kinds together.
    #[serde(rename = "at_peak_bytes")]
    pub at_peak: Bytes,
    /// The most of this kind at any time.
    #[serde(rename = "peak_bytes")]
    pub peak: Bytes,
}

impl Report {
    /// Reads a timeline, in time linear in its spans and memory changes.
    pub fn new(timeline: &Timeline) -> Report {
        let ranks: Vec<RankReport> = timeline
            .ranks
            .iter()
            .enumerate()
            .map(|(index, track)| RankReport {
                rank: track.rank,
                stands_for: track.stands_for,
                pipeline_rank: track.pipeline_rank,
                time: rank_time(spans_of(timeline, index), timeline.duration),
                memory: rank_memory(timeline, index),
            })
            .collect();
        Report {
            step_time: timeline.duration,
            rank_count: ranks.iter().map(|rank| rank.stands_for).sum(),
            mean: mean(
                timeline.duration,
                &ranks.iter().map(|rank| (rank.stands_for, rank.time)).collect::<Vec<_>>(),
            ),
            peak_memory: ranks.iter().map(|rank| rank.memory.peak).fold(Bytes::ZERO, Bytes::max),
            ranks,
        }
    }
}

impl TimeShares {
    /// The shares of a step of which compute and communication are known; the bubble is the rest.
    fn new(
        duration: Picoseconds,
        compute: Picoseconds,
        communication: [AxisTime; Axis::ALL.len()],
        offload: [OffloadTime; Stream::OFFLOAD.len()],
    ) -> TimeShares {
        let over_axes = communication.iter().map(|axis| axis.exposed);
        let exposed: Picoseconds = over_axes.chain(offload.iter().map(|stream| stream.exposed)).sum();
        let bubble = duration - compute - exposed;
        let bubble_share =
            if duration == Picoseconds::ZERO { 0.0 } else { bubble.0 as f64 / duration.0 as f64 };
        TimeShares { compute, exposed, bubble, bubble_share, communication, offload }
    }

    /// Of a step that contains another `times` times more.
    fn and(self, other: TimeShares, times: u64) -> TimeShares {
        let sum = |one: Picoseconds, more: Picoseconds| Picoseconds(one.0 + times * more.0);
        let communication = std::array::from_fn(|index| {
            let (one, more) = (self.communication[index], other.communication[index]);
            AxisTime {
                axis: one.axis,
                total: sum(one.total, more.total),
                overlapped: sum(one.overlapped, more.overlapped),
                exposed: sum(one.exposed, more.exposed),
            }
        });
        let offload = std::array::from_fn(|index| {
            let (one, more) = (self.offload[index], other.offload[index]);
            OffloadTime {
                stream: one.stream,
                total: sum(one.total, more.total),
                overlapped: sum(one.overlapped, more.overlapped),
                exposed: sum(one.exposed, more.exposed),
            }
        });
        let all = |shares: &TimeShares| shares.compute + shares.exposed + shares.bubble;
        let duration = sum(all(&self), all(&other));
        TimeShares::new(duration, sum(self.compute, other.compute), communication, offload)
    }
}

/// Sorts the instants of a rank's step by what it does in them, and adds up.
fn rank_time(spans: &[Span], duration: Picoseconds) -> TimeShares {
    // For each set of concurrent activities: its time with a kernel and without one.
    let mut moving: Vec<(Activities, [Picoseconds; 2])> = Vec::new();
    sweep(spans, duration, |stretch| {
        let others = stretch.others;
        let known = moving.iter().position(|(known, _)| *known == others).unwrap_or_else(|| {
            moving.push((others, [Picoseconds::ZERO; 2]));
            moving.len() - 1
        });
        moving[known].1[usize::from(stretch.computing.is_none())] += stretch.length();
    });

    let sum = |alone: usize, counts: &dyn Fn(Activities) -> bool| -> Picoseconds {
        moving.iter().filter(|(others, _)| counts(*others)).map(|(_, times)| times[alone]).sum()
    };
    // Total, overlapped and exposed time of an activity.
    let times = |activity| {
        let overlapped = sum(0, &|others| others.contains(activity));
        let total = overlapped + sum(1, &|others| others.contains(activity));
        (total, overlapped, sum(1, &|others| others.is_first(activity)))
    };
    let communication = Axis::ALL.map(|axis| {
        let (total, overlapped, exposed) = times(Activity::Communication(axis));
        AxisTime { axis, total, overlapped, exposed }
    });
    let offload = Stream::OFFLOAD.map(|stream| {
        let (total, overlapped, exposed) = times(match stream {
            Stream::ToHost => Activity::Copy(CopyDirection::ToHost),
            Stream::FromHost => Activity::Copy(CopyDirection::FromHost),
            _ => Activity::Host,
        });
        OffloadTime { stream, total, overlapped, exposed }
    });
    TimeShares::new(duration, sum(0, &|_| true), communication, offload)
}

/// Where the time of a step went in the mean over all ranks: `Report::mean`, without the rest of the report. Reads neither
/// labels nor memory.
pub fn mean_shares(timeline: &Timeline) -> TimeShares {
    mean_shares_with_rounds(timeline, Picoseconds::ZERO..Picoseconds::ZERO, 0)
}

/// The same of a step in which what happens in `round` happens `more` times more.
pub fn mean_shares_with_rounds(timeline: &Timeline, round: Range<Picoseconds>, more: usize) -> TimeShares {
    let of_rank = |(index, track): (usize, &RankTrack)| {
        let spans = spans_of(timeline, index);
        let all = rank_time(spans, timeline.duration);
        let again = match more {
            0 => all,
            _ => all.and(rank_time(&within(spans, &round), round.end - round.start), more as u64),
        };
        (track.stands_for, again)
    };
    let times: Vec<(usize, TimeShares)> = timeline.ranks.iter().enumerate().map(of_rank).collect();
    mean(timeline.duration + Picoseconds(more as u64 * (round.end - round.start).0), &times)
}

/// The parts of spans in a window, counted from its start.
fn within(spans: &[Span], window: &Range<Picoseconds>) -> Vec<Span> {
    let parts = spans.iter().map(|span| {
        let clamped = |time: Picoseconds| time.clamp(window.start, window.end) - window.start;
        Span { start: clamped(span.start), end: clamped(span.end), ..*span }
    });
    parts.filter(|part| part.start < part.end).collect()
}

/// The mean over all ranks, each of the timeline's counted as often as it stands for one.
///
/// Compute and communication are rounded down, so that they never add up to more than the step, and the bubble is
/// the rest: the shares of the mean add up exactly too.
fn mean(duration: Picoseconds, ranks: &[(usize, TimeShares)]) -> TimeShares {
    let count = ranks.iter().map(|(stands_for, _)| *stands_for as u128).sum::<u128>().max(1);
    let mean_of = |time: &dyn Fn(&TimeShares) -> Picoseconds| {
        let sum: u128 =
            ranks.iter().map(|(stands_for, shares)| *stands_for as u128 * time(shares).0 as u128).sum();
        Picoseconds((sum / count) as u64)
    };
    let communication = Axis::ALL.map(|axis| {
        let index = axis as usize;
        AxisTime {
            axis,
            total: mean_of(&|time| time.communication[index].total),
            overlapped: mean_of(&|time| time.communication[index].overlapped),
            exposed: mean_of(&|time| time.communication[index].exposed),
        }
    });
    let offload = std::array::from_fn(|index| OffloadTime {
        stream: Stream::OFFLOAD[index],
        total: mean_of(&|time| time.offload[index].total),
        overlapped: mean_of(&|time| time.offload[index].overlapped),
        exposed: mean_of(&|time| time.offload[index].exposed),
    });
    TimeShares::new(duration, mean_of(&|time| time.compute), communication, offload)
}

fn rank_memory(timeline: &Timeline, rank: usize) -> MemoryReport {
    let mut peak = Bytes::ZERO;
    let mut peak_time = Picoseconds::ZERO;
    let mut at_peak = MemoryByKind::default();
    let mut kind_peaks = MemoryByKind::default();
    for level in levels(changes_of(timeline, rank)) {
        if level.total() > peak {
            (peak, peak_time, at_peak) = (level.total(), level.time, level.held);
        }
        for (kind_peak, held) in kind_peaks.iter_mut().zip(level.held) {
            *kind_peak = kind_peak.max(held);
        }
    }

    let extents = extents(timeline, rank);
    let count_of = |kinds: &[ActionKind], so_far: &dyn Fn(Picoseconds, Picoseconds) -> bool| {
        let is_kind = |action: Option<Action>| action.is_some_and(|action| kinds.contains(&action.kind));
        extents.iter().filter(|e| is_kind(e.action) && so_far(e.start, e.end)).count()
    };
    let started = count_of(&[ActionKind::Forward], &|start, _| start <= peak_time);
    let ended = count_of(&[ActionKind::Backward, ActionKind::Weight], &|_, end| end <= peak_time);
    let span = span_at(spans_of(timeline, rank), peak_time);
    MemoryReport {
        peak,
        peak_time,
        peak_action: span.and_then(|span| timeline.calls[span.call as usize].action),
        peak_span: span.map(|span| timeline.labels[span.label as usize].clone()),
        in_flight_at_peak: started.saturating_sub(ended),
        kinds: MemoryKind::ALL.map(|kind| KindMemory {
            kind,
            at_peak: at_peak[kind as usize],
            peak: kind_peaks[kind as usize],
        }),
    }
}

/// The span of one rank that explains its memory at a time: memory is taken when an op starts, so one that starts there comes
/// before one that is running, and the compute stream before the others.
fn span_at(spans: &[Span], time: Picoseconds) -> Option<&Span> {
    let latest = spans.chunk_by(|a, b| a.stream == b.stream).filter_map(|stream| {
        let started = stream.partition_point(|span| span.start <= time);
        stream[..started].last().filter(|span| span.start == time || span.end > time)
    });
    latest.min_by_key(|span| (span.start < time, span.activity == Activity::Wait, span.stream))
}

/// Divides rather than multiplies by 10⁻¹², which no `f64` is: `0.0012` and not `0.0012000000000000001`.
fn in_seconds<S: Serializer>(time: &Picoseconds, serializer: S) -> Result<S::Ok, S::Error> {
    serializer.serialize_f64(time.0 as f64 / 1e12)
}

fn communicating<S: Serializer>(axes: &[AxisTime], serializer: S) -> Result<S::Ok, S::Error> {
    serializer.collect_seq(axes.iter().filter(|axis| !axis.is_zero()))
}

fn nothing_offloaded(offload: &[OffloadTime]) -> bool {
    offload.iter().all(|stream| stream.total == Picoseconds::ZERO)
}

fn as_text<S: Serializer>(action: &Option<Action>, serializer: S) -> Result<S::Ok, S::Error> {
    match action {
        Some(action) => serializer.collect_str(action),
        None => serializer.serialize_none(),
    }
}
