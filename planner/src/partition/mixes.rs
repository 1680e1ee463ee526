//! The best mix of choices for a count of layers of each class.
//!
//! The layers of an interval are interchangeable within their class, so its cost depends on the counts alone. For each
//! count, and each cap on the peak, an exact Pareto front of (time, kept bytes) is built by adding one layer to the front
//! of the count before it.

use super::counted_layers::{Class, CountedLayers};
use std::collections::HashMap;

/// Counts of layers per class, with the fronts of those that were asked for.
pub(super) struct Mixes<'a> {
    layers: &'a CountedLayers,
    /// Those of one kind of device.
    classes: &'a [Class],
    counts: Vec<Vec<u32>>,
    totals: Vec<Totals>,
    ids: HashMap<Vec<u32>, usize>,
    /// Entry `id · classes + class`: the composition with one more layer of the class.
    more: Vec<Option<usize>>,
    /// Entry `id · peaks + level`: the front of choices whose peak is at most `peaks[level]`.
    fronts: Vec<Option<Vec<Point>>>,
    /// Entry `[start][length]`: the composition of those layers.
    intervals: Vec<Vec<usize>>,
}

/// What a composition has whichever choices it takes, and with the fastest ones.
#[derive(Clone, Copy, Default)]
pub(super) struct Totals {
    pub state: f64,
    pub idle: f64,
    pub time: f64,
    kept: f64,
    peak: f64,
}

/// One mix of a front: seconds and kept bytes of one microbatch.
#[derive(Clone, Copy)]
struct Point {
    time: f64,
    kept: f64,
    before: u32,
    choice: u32,
}

/// A mix of a composition, by name.
#[derive(Clone, Copy, Debug, PartialEq)]
pub(super) enum Mix {
    /// Every layer takes its fastest choice.
    Fastest,
    /// A point of the front below a cap on the peak.
    Front { level: usize, point: usize },
}

impl<'a> Mixes<'a> {
    pub fn new(layers: &'a CountedLayers, classes: &'a [Class]) -> Self {
        let mut mixes = Self {
            layers,
            classes,
            counts: Vec::new(),
            totals: Vec::new(),
            ids: HashMap::new(),
            more: Vec::new(),
            fronts: Vec::new(),
            intervals: Vec::new(),
        };
        let empty = mixes.named(vec![0; classes.len()]);
        // An empty interval may stand behind the last layer.
        mixes.intervals = vec![vec![empty]; layers.sequence.len() + 1];
        mixes
    }

    /// The composition with these counts.
    fn named(&mut self, counts: Vec<u32>) -> usize {
        if let Some(&id) = self.ids.get(&counts) {
            return id;
        }
        let mut totals = Totals::default();
        for (class, &count) in self.classes.iter().zip(&counts).filter(|(_, count)| **count > 0) {
            let fastest = class.choices[0];
            totals.state += f64::from(count) * class.state;
            totals.idle += f64::from(count) * class.idle;
            totals.time += f64::from(count) * fastest.time;
            totals.kept += f64::from(count) * fastest.kept;
            totals.peak = totals.peak.max(fastest.peak);
        }
        let id = self.counts.len();
        self.counts.push(counts.clone());
        self.totals.push(totals);
        self.ids.insert(counts, id);
        self.more.extend(self.classes.iter().map(|_| None));
        self.fronts.extend(self.layers.peaks.iter().map(|_| None));
        id
    }

    /// The composition of `length` layers from `start` on.
    pub fn interval(&mut self, start: usize, length: usize) -> usize {
        while self.intervals[start].len() <= length {
            let known = self.intervals[start].len() - 1;
            let class = self.layers.sequence[start + known];
            let next = self.one_more(self.intervals[start][known], class);
            self.intervals[start].push(next);
        }
        self.intervals[start][length]
    }

    fn one_more(&mut self, id: usize, class: usize) -> usize {
        let entry = id * self.classes.len() + class;
        if let Some(next) = self.more[entry] {
            return next;
        }
        let mut counts = self.counts[id].clone();
        counts[class] += 1;
        let next = self.named(counts);
        self.more[entry] = Some(next);
        next
    }

    /// What a composition has whichever choices it takes, and its least time.
    pub fn totals(&self, id: usize) -> Totals {
        self.totals[id]
    }

    /// The fastest mix, and its time, with in_flight · kept + peak within `room` bytes, the peak `least_peak` or more.
    pub fn fastest(&mut self, id: usize, in_flight: f64, least_peak: f64, room: f64) -> Option<(f64, Mix)> {
        let totals = self.totals[id];
        if in_flight * totals.kept + totals.peak.max(least_peak) <= room {
            return Some((totals.time, Mix::Fastest));
        }
        let mut best: Option<(f64, Mix)> = None;
        for level in 0..self.layers.peaks.len() {
            let left = room - self.layers.peaks[level].max(least_peak);
            if self.least_kept(id, level).is_none_or(|kept| in_flight * kept > left) {
                continue;
            }
            let front = self.front(id, level);
            let point = front.partition_point(|point| in_flight * point.kept > left);
            if best.is_none_or(|(time, _)| front[point].time < time) {
                best = Some((front[point].time, Mix::Front { level, point }));
            }
        }
        best
    }

    /// The least in_flight · kept + peak of any mix, in bytes, the peak `least_peak` or more.
    pub fn least_memory(&self, id: usize, in_flight: f64, least_peak: f64) -> f64 {
        if self.counts[id].iter().all(|count| *count == 0) {
            return least_peak;
        }
        let levels = self.layers.peaks.iter().enumerate();
        levels
            .filter_map(|(level, peak)| Some(in_flight * self.least_kept(id, level)? + peak.max(least_peak)))
            .fold(f64::INFINITY, f64::min)
    }

    /// The least kept bytes with peaks up to a level; `None` if a class has no such choice.
    fn least_kept(&self, id: usize, level: usize) -> Option<f64> {
        let cap = self.layers.peaks[level];
        let classes = self.classes.iter().zip(&self.counts[id]).filter(|(_, count)| **count > 0);
        let mut kept = 0.0;
        for (class, &count) in classes {
            let allowed = class.choices.iter().filter(|choice| choice.peak <= cap);
            let least = allowed.map(|choice| choice.kept).min_by(f64::total_cmp)?;
            kept += f64::from(count) * least;
        }
        Some(kept)
    }

    /// The mixes that none beats in both time and kept bytes, with peaks up to a level; fastest first.
    fn front(&mut self, id: usize, level: usize) -> &[Point] {
        let entry = id * self.layers.peaks.len() + level;
        if self.fronts[entry].is_none() {
            let front = self.build_front(id, level);
            self.fronts[entry] = Some(front);
        }
        self.fronts[entry].as_deref().expect("the line above filled it")
    }

    fn build_front(&mut self, id: usize, level: usize) -> Vec<Point> {
        let (layers, classes) = (self.layers, self.classes);
        let Some((before, class)) = self.one_less(id) else {
            return vec![Point { time: 0.0, kept: 0.0, before: 0, choice: 0 }];
        };
        let smaller = self.front(before, level);
        let mut points = Vec::with_capacity(smaller.len() * 2);
        for (choice, option) in classes[class].choices.iter().enumerate() {
            if option.peak <= layers.peaks[level] {
                points.extend(smaller.iter().enumerate().map(|(index, point)| Point {
                    time: point.time + option.time,
                    kept: point.kept + option.kept,
                    before: index as u32,
                    choice: choice as u32,
                }));
            }
        }
        points.sort_by(|a, b| a.time.total_cmp(&b.time).then(a.kept.total_cmp(&b.kept)));
        let mut least = f64::INFINITY;
        points.retain(|point| {
            let better = point.kept < least;
            least = least.min(point.kept);
            better
        });
        points
    }

    /// The composition without one layer of its last class, and that class.
    fn one_less(&mut self, id: usize) -> Option<(usize, usize)> {
        let class = self.counts[id].iter().rposition(|&count| count > 0)?;
        let mut counts = self.counts[id].clone();
        counts[class] -= 1;
        Some((self.named(counts), class))
    }

    /// How many layers of each class take each of its (undominated) choices.
    pub fn choice_counts(&mut self, id: usize, mix: Mix) -> Vec<Vec<u32>> {
        let mut taken: Vec<Vec<u32>> =
            self.classes.iter().map(|class| vec![0; class.choices.len()]).collect();
        match mix {
            Mix::Fastest => {
                for (class, &count) in self.counts[id].iter().enumerate() {
                    taken[class][0] = count;
                }
            }
            Mix::Front { level, point } => {
                let (mut id, mut point) = (id, point);
                while let Some((before, class)) = self.one_less(id) {
                    let step = self.front(id, level)[point];
                    taken[class][step.choice as usize] += 1;
                    (id, point) = (before, step.before as usize);
                }
            }
        }
        taken
    }
}
