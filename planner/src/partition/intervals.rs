//! What an interval of layers costs on a stage.

use super::layers::Layers;
use super::mixes::{Mix, Mixes};
use super::placement::Placement;
use super::{Problem, TOLERANCE};

/// The stages with the costs of their intervals, each computed once.
pub(super) struct Intervals<'a> {
    mixes: Mixes<'a>,
    stages: Vec<Room>,
    /// Per stage and composition: seconds, infinite if it does not fit, not a number if not yet known.
    times: Vec<Vec<f64>>,
}

/// A stage as its layers see it.
struct Room {
    /// Its own time, in seconds.
    time: f64,
    in_flight: f64,
    /// Bytes for layers and activations.
    left: f64,
    /// Bytes of `left` that only the allowance for rounding grants.
    tolerance: f64,
    /// Bytes that the stage's own part needs for a moment.
    peak: f64,
}

impl<'a> Intervals<'a> {
    pub fn new(problem: &Problem, layers: &'a Layers) -> Self {
        let stages = problem.stages.iter().zip(&layers.stage_times).map(|(stage, &time)| {
            let limit = stage.limit.get();
            // Half of what the check from outside allows, so that rounding cannot set the two at odds.
            let tolerance = limit.abs() * TOLERANCE / 2.0;
            Room {
                time,
                in_flight: stage.in_flight,
                left: limit + tolerance - stage.memory.get(),
                tolerance,
                peak: stage.peak.get(),
            }
        });
        let stages: Vec<Room> = stages.collect();
        let times = vec![Vec::new(); stages.len()];
        Self { mixes: Mixes::new(layers), stages, times }
    }

    /// Least seconds of a stage with layers `from..to`, whatever the memory.
    pub fn least_time(&mut self, stage: usize, from: usize, to: usize) -> f64 {
        let id = self.mixes.interval(from, to - from);
        self.stages[stage].time + self.mixes.totals(id).time
    }

    /// Least seconds of a stage with layers `from..to` within its memory; infinite if there is no such mix.
    pub fn time(&mut self, stage: usize, from: usize, to: usize) -> f64 {
        let id = self.mixes.interval(from, to - from);
        let known = &mut self.times[stage];
        if known.len() <= id {
            known.resize(id + 1, f64::NAN);
        }
        if known[id].is_nan() {
            let own = self.stages[stage].time;
            let time = self.fastest(stage, id).map_or(f64::INFINITY, |(time, _)| own + time);
            self.times[stage][id] = time;
        }
        self.times[stage][id]
    }

    fn fastest(&mut self, stage: usize, id: usize) -> Option<(f64, Mix)> {
        let room = &self.stages[stage];
        let left = room.left - self.mixes.totals(id).state;
        self.mixes.fastest(id, room.in_flight, room.peak, left)
    }

    /// Bytes by which a stage with layers `from..to` exceeds its limit however they are run; negative if they fit.
    pub fn excess(&mut self, stage: usize, from: usize, to: usize) -> f64 {
        let id = self.mixes.interval(from, to - from);
        let room = &self.stages[stage];
        let activations = self.mixes.least_memory(id, room.in_flight, room.peak);
        self.mixes.totals(id).state + activations - (room.left - room.tolerance)
    }

    /// How a stage runs layers `from..to`, which must fit.
    pub fn place(&mut self, stage: usize, from: usize, to: usize) -> Placement {
        let id = self.mixes.interval(from, to - from);
        let (_, mix) = self.fastest(stage, id).expect("a path uses only intervals that fit");
        Placement { length: to - from, taken: self.mixes.choice_counts(id, mix) }
    }
}
