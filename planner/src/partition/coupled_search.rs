//! A split to beat, by local search, and bounds, by forgetting the order of the layers.

use super::Problem;
use super::columns::Chain;
use super::greedy::{GreedyMix, Group, greedy_mix};
use super::layers::Layers;
use super::mixes::Mixes;
use super::placement::{Placement, Split, lay_out};
use super::slots::with_tolerance;
use std::collections::HashMap;
use trainwright_spec::units::Bytes;

/// A split and its costs with the mixes of [`greedy_mix`].
#[derive(Clone)]
pub(super) struct State {
    cuts: Vec<usize>,
    /// Bytes that all ranks lack.
    excess: f64,
    /// Seconds.
    pub objective: f64,
    /// Seconds of the slowest rank.
    pub slowest: f64,
    squares: f64,
}

impl State {
    pub fn fits(&self) -> bool {
        self.excess <= 0.0
    }

    /// Less lacking, else less time, else more even.
    fn better_than(&self, other: &Self) -> bool {
        (self.excess, self.objective, self.squares) < (other.excess, other.objective, other.squares)
    }
}

/// Moves layers between stages as long as that helps.
pub(super) struct LocalSearch<'a, 'm> {
    problem: &'a Problem,
    layers: &'a Layers,
    chain: &'a Chain,
    pub mixes: &'m mut Mixes<'a>,
    of_rank: Vec<Vec<usize>>,
    /// (rank, compositions of its stages) to (seconds, bytes lacking).
    known: HashMap<Vec<usize>, (f64, f64)>,
}

impl<'a, 'm> LocalSearch<'a, 'm> {
    pub fn new(problem: &'a Problem, layers: &'a Layers, chain: &'a Chain, mixes: &'m mut Mixes<'a>) -> Self {
        let mut of_rank = vec![Vec::new(); problem.ranks.len()];
        for (stage, &rank) in chain.ranks.iter().enumerate() {
            of_rank[rank].push(stage);
        }
        Self { problem, layers, chain, mixes, of_rank, known: HashMap::new() }
    }

    /// Cuts that give each stage about the same time.
    pub fn even_cuts(&self) -> Vec<usize> {
        let (stages, layers) = (self.chain.ranks.len(), self.layers.sequence.len());
        let times = self.layers.sequence.iter().map(|&class| self.layers.classes[class].choices[0].time);
        let times: Vec<f64> = times.collect();
        let own = &self.layers.stage_times;
        let share = (times.iter().sum::<f64>() + own.iter().sum::<f64>()) / stages as f64;
        let mut cuts = vec![0];
        let mut passed = 0.0;
        for stage in 0..stages - 1 {
            let mut cut = cuts[stage] + 1;
            passed += own[stage] + times[cut - 1];
            let target = share * (stage + 1) as f64;
            while cut < layers - (stages - stage - 1) && passed + times[cut] / 2.0 <= target {
                passed += times[cut];
                cut += 1;
            }
            cuts.push(cut);
        }
        cuts.push(layers);
        cuts
    }

    /// Moves one layer from stage to stage, all cuts between them along, until no move helps.
    pub fn descend(&mut self, cuts: Vec<usize>) -> State {
        let mut best = self.state(cuts);
        loop {
            let mut improved = false;
            for first in 1..best.cuts.len() - 1 {
                for last in first..best.cuts.len() - 1 {
                    for forward in [false, true] {
                        let mut cuts = best.cuts.clone();
                        for cut in &mut cuts[first..=last] {
                            *cut = if forward { *cut + 1 } else { *cut - 1 };
                        }
                        if cuts[first] <= cuts[first - 1] || cuts[last] >= cuts[last + 1] {
                            continue;
                        }
                        let state = self.state(cuts);
                        if state.better_than(&best) {
                            best = state;
                            improved = true;
                        }
                    }
                }
            }
            if !improved {
                return best;
            }
        }
    }

    fn state(&mut self, cuts: Vec<usize>) -> State {
        let mut state = State { cuts, excess: 0.0, objective: 0.0, slowest: 0.0, squares: 0.0 };
        let mut sum = 0.0;
        for rank in 0..self.of_rank.len() {
            let (time, excess) = self.rank_cost(rank, &state.cuts);
            state.slowest = state.slowest.max(time);
            sum += time;
            state.excess += excess;
            state.squares += time * time;
        }
        state.objective = self.problem.objective(state.slowest, sum);
        state
    }

    fn rank_cost(&mut self, rank: usize, cuts: &[usize]) -> (f64, f64) {
        let mut key = vec![rank];
        for &stage in &self.of_rank[rank] {
            key.push(self.mixes.interval(cuts[stage], cuts[stage + 1] - cuts[stage]));
        }
        if let Some(&cost) = self.known.get(&key) {
            return cost;
        }
        let (_, mix) = self.rank_mix(rank, cuts);
        let own: f64 = self.of_rank[rank].iter().map(|&stage| self.layers.stage_times[stage]).sum();
        let cost = (own + mix.time, mix.excess);
        self.known.insert(key, cost);
        cost
    }

    /// A rank's layers and a mix of them.
    fn rank_mix(&mut self, rank: usize, cuts: &[usize]) -> (Vec<Group>, GreedyMix) {
        let mut room = with_tolerance(self.problem.ranks[rank]);
        let mut groups = Vec::new();
        for &stage in &self.of_rank[rank] {
            let own = self.problem.stages[stage];
            let composition = self.mixes.interval(cuts[stage], cuts[stage + 1] - cuts[stage]);
            room -= own.memory.get() + self.mixes.totals(composition).state;
            let counts = self.mixes.counts(composition).iter().enumerate();
            for (class, &count) in counts.filter(|(_, count)| **count > 0) {
                groups.push(Group { stage, class, count, in_flight: own.in_flight });
            }
        }
        let mix = greedy_mix(self.layers, &groups, room);
        (groups, mix)
    }

    /// The rank that lacks most memory, and how much.
    pub fn worst(&mut self, state: &State) -> (usize, Bytes) {
        let mut worst = (0, 0.0);
        for rank in 0..self.of_rank.len() {
            let (_, excess) = self.rank_cost(rank, &state.cuts);
            if excess > worst.1 {
                worst = (rank, excess);
            }
        }
        (worst.0, Bytes::new(worst.1))
    }

    /// The layers and choices of a state.
    pub fn split(&mut self, state: &State) -> Split {
        let none: Vec<Vec<u32>> =
            self.layers.classes.iter().map(|class| vec![0; class.choices.len()]).collect();
        let lengths = state.cuts.windows(2).map(|cuts| cuts[1] - cuts[0]);
        let mut placements: Vec<Placement> =
            lengths.map(|length| Placement { length, taken: none.clone() }).collect();
        for rank in 0..self.of_rank.len() {
            let (groups, mix) = self.rank_mix(rank, &state.cuts);
            for (group, counts) in groups.iter().zip(mix.taken) {
                placements[group.stage].taken[group.class] = counts;
            }
        }
        lay_out(self.layers, &placements)
    }
}
