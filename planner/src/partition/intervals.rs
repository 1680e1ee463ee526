//! What an interval of layers costs on a stage.

use super::counted_layers::CountedLayers;
use super::mixes::{Mix, Mixes};
use super::problem::{Problem, TOLERANCE};
use super::stage_layout::StageMix;

/// The stages with the costs of their intervals, each computed once.
pub(super) struct Intervals<'a> {
    /// Of each kind of device.
    mixes: Vec<Mixes<'a>>,
    stages: Vec<StageRoom>,
    /// Per stage and composition: seconds, infinite if it does not fit, not a number if not yet known.
    times: Vec<Vec<f64>>,
}

/// A stage as its layers see it.
struct StageRoom {
    /// What it runs besides its layers, in seconds.
    time: f64,
    in_flight: f64,
    /// Bytes for layers and activations.
    left: f64,
    /// Bytes of `left` that only the allowance for rounding grants.
    tolerance: f64,
    /// Bytes that the stage needs besides its layers while it runs.
    peak: f64,
    /// Bytes for what layers leave between steps.
    idle: f64,
    /// Bytes of `idle` that only the allowance for rounding grants.
    idle_tolerance: f64,
    /// The kind of its device.
    device: usize,
}

impl<'a> Intervals<'a> {
    pub fn new(problem: &Problem, layers: &'a CountedLayers) -> Self {
        let stages = problem.stages.iter().zip(&layers.stage_times).map(|(stage, &time)| {
            let limit = stage.limit.get();
            // Half of what the check from outside allows, so that rounding cannot set the two at odds.
            let tolerance = limit.abs() * TOLERANCE / 2.0;
            let idle_limit = stage.idle_limit.get();
            let idle_tolerance =
                if idle_limit.is_finite() { idle_limit.abs() * TOLERANCE / 2.0 } else { 0.0 };
            StageRoom {
                time,
                in_flight: stage.in_flight,
                left: limit + tolerance - stage.memory.get(),
                tolerance,
                peak: stage.peak.get(),
                idle: idle_limit + idle_tolerance - stage.idle.get(),
                idle_tolerance,
                device: stage.device,
            }
        });
        let stages: Vec<StageRoom> = stages.collect();
        let times = vec![Vec::new(); stages.len()];
        let mixes = layers.classes.iter().map(|classes| Mixes::new(layers, classes)).collect();
        Self { mixes, stages, times }
    }

    /// Least seconds of a stage with layers `from..to`, whatever the memory.
    pub fn least_time(&mut self, stage: usize, from: usize, to: usize) -> f64 {
        let (mixes, id) = self.named(stage, from, to);
        let time = mixes.totals(id).time;
        self.stages[stage].time + time
    }

    /// Least seconds of a stage with layers `from..to` within its memory; infinite if there is no such mix.
    pub fn time(&mut self, stage: usize, from: usize, to: usize) -> f64 {
        let (_, id) = self.named(stage, from, to);
        let known = &mut self.times[stage];
        if known.len() <= id {
            known.resize(id + 1, f64::NAN);
        }
        if known[id].is_nan() {
            let ends = self.stages[stage].time;
            let time = self.fastest(stage, id).map_or(f64::INFINITY, |(time, _)| ends + time);
            self.times[stage][id] = time;
        }
        self.times[stage][id]
    }

    /// What the stage's device makes of layers, and the name of these.
    fn named(&mut self, stage: usize, from: usize, to: usize) -> (&mut Mixes<'a>, usize) {
        let mixes = &mut self.mixes[self.stages[stage].device];
        let id = mixes.interval(from, to - from);
        (mixes, id)
    }

    fn fastest(&mut self, stage: usize, id: usize) -> Option<(f64, Mix)> {
        let room = &self.stages[stage];
        let mixes = &mut self.mixes[room.device];
        if mixes.totals(id).idle > room.idle {
            return None;
        }
        let left = room.left - mixes.totals(id).state;
        mixes.fastest(id, room.in_flight, room.peak, left)
    }

    /// Bytes by which a stage with layers `from..to` exceeds its limits however they are run; negative if they fit.
    pub fn excess(&mut self, stage: usize, from: usize, to: usize) -> f64 {
        let (_, id) = self.named(stage, from, to);
        let room = &self.stages[stage];
        let mixes = &self.mixes[room.device];
        let activations = mixes.least_memory(id, room.in_flight, room.peak);
        let running = mixes.totals(id).state + activations - (room.left - room.tolerance);
        running.max(mixes.totals(id).idle - (room.idle - room.idle_tolerance))
    }

    /// How a stage runs layers `from..to`, which must fit.
    pub fn place(&mut self, stage: usize, from: usize, to: usize) -> StageMix {
        let (_, id) = self.named(stage, from, to);
        let (_, mix) = self.fastest(stage, id).expect("a path uses only intervals that fit");
        let device = self.stages[stage].device;
        StageMix { length: to - from, device, taken: self.mixes[device].choice_counts(id, mix) }
    }
}
