//! A slot: what the layers are split over when ranks do not depend on each other.
//!
//! With one stage per rank a slot is a stage. With several stages per rank and layers all alike, which of the layers a
//! rank gets does not matter, only how many: a slot is then a whole rank, which deals its layers out among its stages.

use super::layers::Layers;
use super::mixes::{Mix, Mixes};
use super::placement::Placement;
use super::spread::{Share, Spread};
use super::{Problem, RankLimit};

/// The slots of a problem with their costs, each computed once.
pub(super) struct Slots<'a> {
    layers: &'a Layers,
    mixes: Mixes<'a>,
    pub list: Vec<Slot>,
    /// Per slot and composition: seconds, infinite if it does not fit, not a number if not yet known.
    times: Vec<Vec<f64>>,
}

/// A stage, or a rank with all its stages.
pub(super) struct Slot {
    pub rank: usize,
    /// Its stages, those with most in flight first.
    pub stages: Vec<usize>,
    /// Its stages' own times, in seconds.
    pub time: f64,
    /// Bytes for layers and activations.
    room: f64,
    /// Bytes of `room` that only the rounding which [`super::fits`] allows grants.
    tolerance: f64,
    shares: Vec<Share>,
}

impl Slot {
    /// The layers it must have.
    pub fn least(&self) -> usize {
        self.stages.len()
    }

    /// Whether a layer weighs the same on each of its stages.
    fn uniform(&self) -> bool {
        self.shares.iter().all(|share| share.in_flight == self.shares[0].in_flight)
    }
}

impl<'a> Slots<'a> {
    /// Needs one stage per rank, or one class of layers.
    pub fn new(problem: &Problem, layers: &'a Layers) -> Self {
        let mut of_rank: Vec<Vec<usize>> = vec![Vec::new(); problem.ranks.len()];
        let mut order = Vec::new();
        for (index, stage) in problem.stages.iter().enumerate() {
            if of_rank[stage.rank].is_empty() {
                order.push(stage.rank);
            }
            of_rank[stage.rank].push(index);
        }
        let list: Vec<Slot> = order
            .into_iter()
            .map(|rank| {
                let mut stages = std::mem::take(&mut of_rank[rank]);
                let in_flight = |stage: usize| problem.stages[stage].in_flight;
                stages.sort_by(|&a, &b| in_flight(b).total_cmp(&in_flight(a)));
                let fixed: f64 = stages.iter().map(|&stage| problem.stages[stage].memory.get()).sum();
                Slot {
                    rank,
                    time: stages.iter().map(|&stage| layers.stage_times[stage]).sum(),
                    room: with_tolerance(problem.ranks[rank]) - fixed,
                    tolerance: with_tolerance(problem.ranks[rank]) - problem.ranks[rank].memory.get(),
                    shares: stages
                        .iter()
                        .map(|&stage| Share { stage, in_flight: in_flight(stage), fixed: None })
                        .collect(),
                    stages,
                }
            })
            .collect();
        let times = vec![Vec::new(); list.len()];
        Self { layers, mixes: Mixes::new(layers), list, times }
    }

    /// Least seconds of a slot with layers `from..to`, whatever the memory.
    pub fn least_time(&mut self, slot: usize, from: usize, to: usize) -> f64 {
        let id = self.mixes.interval(from, to - from);
        self.list[slot].time + self.mixes.totals(id).time
    }

    /// Least seconds of a slot with layers `from..to` within its memory; infinite if there is no such mix.
    pub fn time(&mut self, slot: usize, from: usize, to: usize) -> f64 {
        let id = self.mixes.interval(from, to - from);
        let known = &mut self.times[slot];
        if known.len() <= id {
            known.resize(id + 1, f64::NAN);
        }
        if known[id].is_nan() {
            let place = &self.list[slot];
            let totals = self.mixes.totals(id);
            let room = place.room - totals.state;
            let layers_time = if place.uniform() {
                self.mixes.fastest(id, place.shares[0].in_flight, room).map(|(time, _)| time)
            } else {
                spread(self.layers, place).fastest(totals.layers, room).map(|(time, _)| time)
            };
            self.times[slot][id] = layers_time.map_or(f64::INFINITY, |time| place.time + time);
        }
        self.times[slot][id]
    }

    /// Bytes by which a slot with layers `from..to` exceeds its room however they are run; negative if they fit.
    pub fn excess(&mut self, slot: usize, from: usize, to: usize) -> f64 {
        let id = self.mixes.interval(from, to - from);
        let place = &self.list[slot];
        let totals = self.mixes.totals(id);
        let activations = if place.uniform() {
            self.mixes.least_memory(id, place.shares[0].in_flight)
        } else {
            spread(self.layers, place).least_memory_of(totals.layers)
        };
        totals.state + activations - (place.room - place.tolerance)
    }

    /// What each stage of a slot holds when the slot has layers `from..to`, which must fit.
    pub fn place(&mut self, slot: usize, from: usize, to: usize) -> Vec<(usize, Placement)> {
        let id = self.mixes.interval(from, to - from);
        let place = &self.list[slot];
        let totals = self.mixes.totals(id);
        let room = place.room - totals.state;
        if let [stage] = place.stages[..] {
            let mix = self.mixes.fastest(id, place.shares[0].in_flight, room);
            let (_, mix) = mix.expect("a path uses only intervals that fit");
            let taken = self.mixes.choice_counts(id, mix);
            return vec![(stage, Placement { length: totals.layers, taken })];
        }
        let spread = spread(self.layers, place);
        let counts = if place.uniform() {
            let mix = self.mixes.fastest(id, place.shares[0].in_flight, room).map(|(_, mix)| mix);
            self.mixes.choice_counts(id, mix.unwrap_or(Mix::Fastest)).swap_remove(0)
        } else {
            spread.fastest(totals.layers, room).expect("a path uses only intervals that fit").1
        };
        let lengths = spread.lengths(&counts, room - spread.peak(&counts));
        let dealt = spread.deal(&lengths, &counts);
        let stages = place.stages.iter().zip(lengths).zip(dealt);
        stages.map(|((&stage, length), taken)| (stage, Placement { length, taken: vec![taken] })).collect()
    }
}

fn spread<'a>(layers: &'a Layers, slot: &'a Slot) -> Spread<'a> {
    Spread { class: &layers.classes[0], shares: &slot.shares }
}

/// A rank's limit in bytes with the rounding that [`super::fits`] allows.
pub(super) fn with_tolerance(limit: RankLimit) -> f64 {
    limit.memory.get() + limit.memory.get().abs() * 1e-9
}
