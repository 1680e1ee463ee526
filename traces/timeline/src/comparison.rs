//! A forecast step compared with measured ones, figure by figure.
//!
//! Both are timelines of the same program; only the caller knows which is which. Of several measured steps
//! every figure is the median.

use crate::report::Report;
use crate::timeline::{Activity, Timeline};
use serde::Serialize;
use std::collections::BTreeMap;
use trainwright_spec::program::{MemoryKind, Pass};
use trainwright_spec::units::{Bytes, Seconds};

/// A figure in both.
#[derive(Debug, Clone, Copy, PartialEq, Serialize)]
pub struct Pair<T> {
    /// As it was forecast.
    pub forecast: T,
    /// As it was measured.
    pub measured: T,
}

impl Pair<f64> {
    fn map<T>(self, unit: fn(f64) -> T) -> Pair<T> {
        Pair { forecast: unit(self.forecast), measured: unit(self.measured) }
    }
}

impl Pair<Seconds> {
    /// The forecast over the measurement, less one; `None` if nothing was measured.
    pub fn error(&self) -> Option<f64> {
        (self.measured > Seconds::ZERO).then(|| self.forecast / self.measured - 1.0)
    }
}

impl Pair<Bytes> {
    /// The forecast over the measurement, less one; `None` if nothing was measured.
    pub fn error(&self) -> Option<f64> {
        (self.measured > Bytes::ZERO).then(|| self.forecast / self.measured - 1.0)
    }
}

/// Both, figure by figure.
#[derive(Debug, Clone, PartialEq, Serialize)]
pub struct Comparison {
    /// How long a step takes.
    #[serde(rename = "step_time_s")]
    pub step_time: Pair<Seconds>,
    /// How many steps were measured.
    pub steps: usize,
    /// From the shortest to the longest measured step, as a part of the median.
    pub spread: f64,
    /// Ops by module and pass, in the mean over ranks, the longest first.
    pub kinds: Vec<KindPair>,
    /// By pipeline rank, the bubble as a part of the step, in the mean over its ranks, 0 to 1.
    pub bubble_by_pipeline_rank: Vec<Pair<f64>>,
    /// The bubble in the mean over all ranks.
    pub bubble: Pair<f64>,
    /// Communication that no kernel hides, in the mean over ranks.
    #[serde(rename = "exposed_communication_s")]
    pub exposed: Pair<Seconds>,
    /// The most memory of any rank.
    #[serde(rename = "peak_memory_bytes")]
    pub peak_memory: Pair<Bytes>,
    /// The most of each kind on any rank.
    #[serde(rename = "peak_bytes_by_kind")]
    pub memory: Vec<(MemoryKind, Pair<Bytes>)>,
}

/// Ops of one module and pass.
#[derive(Debug, Clone, PartialEq, Serialize)]
pub struct KindPair {
    /// Module and pass: `qkv forward`.
    pub kind: String,
    /// How often they run on a rank.
    pub count: f64,
    /// How long all of them take.
    #[serde(rename = "time_s")]
    pub time: Pair<Seconds>,
}

/// The figures of one timeline.
struct Figures {
    kinds: BTreeMap<String, (f64, f64)>,
    bubbles: Vec<f64>,
    bubble: f64,
    exposed: f64,
    peak: f64,
    by_kind: [f64; MemoryKind::ALL.len()],
}

impl Comparison {
    /// Compares a forecast step with measured ones; `step_times` are the times from the end of one to that of the next.
    ///
    /// # Panics
    /// If nothing was measured.
    pub fn new(forecast: &Timeline, measured: &[Timeline], step_times: &[Seconds]) -> Self {
        assert!(!measured.is_empty() && !step_times.is_empty(), "there is a measured step");
        let expected = Figures::of(forecast);
        let found: Vec<Figures> = measured.iter().map(Figures::of).collect();
        let pair = |figure: &dyn Fn(&Figures) -> f64| Pair {
            forecast: figure(&expected),
            measured: median(found.iter().map(figure).collect()),
        };
        let bytes = |figure: &dyn Fn(&Figures) -> f64| pair(figure).map(Bytes::new);
        let time = |figure: &dyn Fn(&Figures) -> f64| pair(figure).map(Seconds::new);
        let mut kinds: Vec<KindPair> = all_kinds(&expected, &found)
            .into_iter()
            .map(|kind| {
                let of = |figures: &Figures| figures.kinds.get(&kind).copied().unwrap_or_default();
                let count = of(&expected).0.max(of(&found[0]).0);
                KindPair { count, time: time(&|figures| of(figures).1), kind }
            })
            .collect();
        kinds.sort_by(|a, b| b.time.measured.get().total_cmp(&a.time.measured.get()));
        let step = median(step_times.iter().map(|time| time.get()).collect());
        let ends =
            |best: fn(f64, f64) -> f64, from| step_times.iter().map(|time| time.get()).fold(from, best);
        Self {
            step_time: Pair { forecast: forecast.duration.into(), measured: Seconds::new(step) },
            steps: step_times.len(),
            spread: (ends(f64::max, 0.0) - ends(f64::min, f64::INFINITY)) / step,
            kinds,
            bubble_by_pipeline_rank: (0..expected.bubbles.len())
                .map(|stage| pair(&|figures| figures.bubbles.get(stage).copied().unwrap_or(0.0)))
                .collect(),
            bubble: pair(&|figures| figures.bubble),
            exposed: time(&|figures| figures.exposed),
            peak_memory: bytes(&|figures| figures.peak),
            memory: MemoryKind::ALL
                .map(|kind| (kind, bytes(&|figures| figures.by_kind[kind as usize])))
                .to_vec(),
        }
    }
}

fn all_kinds(expected: &Figures, found: &[Figures]) -> Vec<String> {
    let mut kinds: Vec<String> = expected.kinds.keys().chain(found[0].kinds.keys()).cloned().collect();
    kinds.sort_unstable();
    kinds.dedup();
    kinds
}

impl Figures {
    fn of(timeline: &Timeline) -> Self {
        let report = Report::new(timeline);
        let ranks = timeline.ranks.len().max(1) as f64;
        let mut kinds: BTreeMap<String, (f64, f64)> = BTreeMap::new();
        for span in timeline.spans.iter().filter(|span| span.activity != Activity::Wait) {
            let label = &timeline.labels[span.label as usize];
            let module = label
                .strip_prefix("block ")
                .and_then(|rest| rest.split_once(' '))
                .map_or(&**label, |(_, module)| module);
            let pass = if span.pass == Pass::Recompute { Pass::Forward } else { span.pass };
            let (count, time) = kinds.entry(format!("{module} {}", pass.name())).or_default();
            *count += 1.0 / ranks;
            *time += Seconds::from(span.end - span.start).get() / ranks;
        }
        let stages = timeline.ranks.iter().map(|rank| rank.pipeline_rank + 1).max().unwrap_or(0);
        let bubble_of = |stage| {
            let of_stage = report.ranks.iter().filter(|rank| rank.pipeline_rank == stage);
            let (count, sum) =
                of_stage.fold((0.0, 0.0), |(count, sum), rank| (count + 1.0, sum + rank.time.bubble_share));
            sum / f64::max(count, 1.0)
        };
        let most = |kind: usize| {
            report.ranks.iter().map(|rank| rank.memory.kinds[kind].peak.get()).fold(0.0, f64::max)
        };
        Self {
            kinds,
            bubbles: (0..stages).map(bubble_of).collect(),
            bubble: report.mean.bubble_share,
            exposed: Seconds::from(report.mean.exposed).get(),
            peak: report.peak_memory.get(),
            by_kind: std::array::from_fn(most),
        }
    }
}

/// The median; of an even count the upper one of both.
fn median(mut numbers: Vec<f64>) -> f64 {
    numbers.sort_by(f64::total_cmp);
    numbers[numbers.len() / 2]
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::timeline::{CallTrack, RankTrack, Span};
    use trainwright_spec::program::Stream;
    use trainwright_spec::units::Picoseconds;

    /// A rank that computes in block 3 until `end` of a step of 100.
    fn step(end: u64) -> Timeline {
        let span = Span {
            rank: 0,
            label: 0,
            call: 0,
            stream: Stream::Compute,
            pass: Pass::Forward,
            activity: Activity::Compute,
            start: Picoseconds(0),
            end: Picoseconds(end),
        };
        Timeline {
            ranks: vec![RankTrack { rank: 0, stands_for: 1, pipeline_rank: 0 }],
            labels: vec!["block 3 qkv".into()],
            calls: vec![CallTrack { rank: 0, action: None }],
            spans: vec![span],
            memory: Vec::new(),
            duration: Picoseconds(100),
        }
    }

    #[test]
    fn figures_are_put_beside_the_median_of_the_measured_steps() {
        let measured = [step(50), step(80), step(90)];
        let times = [1.0, 2.0, 4.0].map(Seconds::new);
        let both = Comparison::new(&step(75), &measured, &times);
        assert_eq!(both.step_time.measured, Seconds::new(2.0));
        assert_eq!((both.steps, both.spread), (3, 1.5));
        assert!((both.bubble.forecast - 0.25).abs() < 1e-12 && (both.bubble.measured - 0.2).abs() < 1e-12);
        let [qkv] = &both.kinds[..] else { panic!("one kind of op") };
        assert_eq!((qkv.kind.as_str(), qkv.count), ("qkv forward", 1.0));
        assert!((qkv.time.error().unwrap() - (75.0 / 80.0 - 1.0)).abs() < 1e-9);
    }
}
