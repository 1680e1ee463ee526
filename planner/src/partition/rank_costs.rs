//! What a rank costs under a pattern, given how many layers of each run it gets.

use super::Problem;
use super::columns::Chain;
use super::layers::Layers;
use super::patterns::{Pattern, Place};
use super::placement::Placement;
use super::slots::with_tolerance;
use super::spread::{Share, Spread, SpreadMix};
use std::collections::HashMap;
use std::rc::Rc;

/// The stages of one rank under a pattern.
pub(super) struct RankPattern {
    rank: usize,
    /// Per run that it takes part in: the run and its stages' shares, most in flight first.
    pub parts: Vec<(usize, Vec<Share>)>,
    /// Seconds of its stages themselves.
    pub time: f64,
    /// Bytes for layers and activations.
    room: f64,
}

impl RankPattern {
    /// The least number of layers of part `part`, and whether there may be more.
    pub fn least(&self, part: usize) -> (usize, bool) {
        let shares = &self.parts[part].1;
        let least = shares.iter().map(|share| share.fixed.unwrap_or(1)).sum();
        (least, shares.iter().any(|share| share.fixed.is_none()))
    }
}

/// Every rank's stages under a pattern.
pub(super) fn rank_patterns(
    problem: &Problem,
    layers: &Layers,
    chain: &Chain,
    pattern: &Pattern,
) -> Vec<RankPattern> {
    let one = |rank: usize| {
        let stages = || (0..chain.ranks.len()).filter(|&stage| chain.ranks[stage] == rank);
        let mut parts: Vec<(usize, Vec<Share>)> = Vec::new();
        let mut add = |run: usize, stage: usize, fixed: Option<usize>| {
            let share = Share { stage, in_flight: problem.stages[stage].in_flight, fixed };
            match parts.iter_mut().find(|part| part.0 == run) {
                Some(part) => part.1.push(share),
                None => parts.push((run, vec![share])),
            }
        };
        for stage in stages() {
            match &pattern[stage] {
                Place::Inside(run) => add(*run, stage, None),
                Place::Across(taken) => taken.iter().for_each(|&(run, count)| add(run, stage, Some(count))),
            }
        }
        for (_, shares) in &mut parts {
            shares.sort_by(|a, b| b.in_flight.total_cmp(&a.in_flight));
        }
        let fixed: f64 = stages().map(|stage| problem.stages[stage].memory.get()).sum();
        RankPattern {
            rank,
            parts,
            time: stages().map(|stage| layers.stage_times[stage]).sum(),
            room: with_tolerance(problem.ranks[rank]) - fixed,
        }
    };
    (0..problem.ranks.len()).map(one).collect()
}

/// Costs of ranks, each computed once: most ranks are the same under most patterns.
pub(super) struct RankCosts<'a> {
    layers: &'a Layers,
    chain: &'a Chain,
    fronts: HashMap<Vec<u64>, Rc<Vec<SpreadMix>>>,
    mixes: HashMap<Vec<u64>, Option<Rc<RankMix>>>,
}

/// The fastest mix of a rank.
pub(super) struct RankMix {
    /// Seconds, the rank's stages themselves included.
    pub time: f64,
    /// Per part, layers per choice.
    counts: Vec<Vec<u32>>,
}

impl<'a> RankCosts<'a> {
    pub fn new(layers: &'a Layers, chain: &'a Chain) -> Self {
        Self { layers, chain, fronts: HashMap::new(), mixes: HashMap::new() }
    }

    /// Least seconds of `counts` layers per part, whatever the memory.
    pub fn least_time(&self, rank: &RankPattern, counts: &[usize]) -> f64 {
        let parts = rank.parts.iter().zip(counts);
        let layers: f64 =
            parts.map(|((run, _), &count)| count as f64 * self.class(*run).choices[0].time).sum();
        rank.time + layers
    }

    fn class(&self, run: usize) -> &'a super::layers::Class {
        &self.layers.classes[self.chain.runs[run].class]
    }

    /// The fastest mix of `counts` layers per part that fits the rank.
    pub fn fastest(&mut self, rank: &RankPattern, counts: &[usize]) -> Option<Rc<RankMix>> {
        let mut key = vec![rank.rank as u64];
        for ((run, shares), &count) in rank.parts.iter().zip(counts) {
            key.extend([*run as u64, count as u64]);
            key.extend(
                shares.iter().flat_map(|share| [share.stage as u64, share.fixed.map_or(0, |n| n as u64 + 1)]),
            );
        }
        if let Some(mix) = self.mixes.get(&key) {
            return mix.clone();
        }
        let mix = self.find(rank, counts).map(Rc::new);
        self.mixes.insert(key, mix.clone());
        mix
    }

    fn find(&mut self, rank: &RankPattern, counts: &[usize]) -> Option<RankMix> {
        let runs = rank.parts.iter().zip(counts);
        let states: f64 = runs.map(|((run, _), &count)| count as f64 * self.class(*run).state).sum();
        let room = rank.room - states;
        let fastest: Vec<Vec<u32>> = rank
            .parts
            .iter()
            .zip(counts)
            .map(|((run, _), &count)| {
                let mut taken = vec![0; self.class(*run).choices.len()];
                taken[0] = count as u32;
                taken
            })
            .collect();
        if self.memory(rank, &fastest) <= room {
            return Some(RankMix { time: self.least_time(rank, counts), counts: fastest });
        }
        let mut best: Option<RankMix> = None;
        for &cap in &self.layers.peaks {
            let fronts: Vec<Rc<Vec<SpreadMix>>> =
                rank.parts.iter().zip(counts).map(|(part, &count)| self.front(part, count, cap)).collect();
            combine(&fronts, rank.time, room - cap, &mut Vec::new(), &mut best);
        }
        best
    }

    /// Least Σ in_flight · kept + peak of a mix, in bytes.
    fn memory(&self, rank: &RankPattern, counts: &[Vec<u32>]) -> f64 {
        let (mut kept, mut peak) = (0.0, 0.0f64);
        for ((run, shares), counts) in rank.parts.iter().zip(counts) {
            let spread = Spread { class: self.class(*run), shares };
            kept += spread.least_kept(counts);
            peak = peak.max(spread.peak(counts));
        }
        kept + peak
    }

    fn front(&mut self, part: &(usize, Vec<Share>), count: usize, cap: f64) -> Rc<Vec<SpreadMix>> {
        let class = self.class(part.0);
        let mut key = vec![self.chain.runs[part.0].class as u64, count as u64, cap.to_bits()];
        let shares = part.1.iter();
        key.extend(
            shares.flat_map(|share| [share.in_flight.to_bits(), share.fixed.map_or(0, |n| n as u64 + 1)]),
        );
        let front = self
            .fronts
            .entry(key)
            .or_insert_with(|| Rc::new(Spread { class, shares: &part.1 }.front(count, cap)));
        Rc::clone(front)
    }

    /// Adds what each of the rank's stages holds to `placements`, given the layers per part.
    pub fn place(&mut self, rank: &RankPattern, counts: &[usize], placements: &mut [Placement]) {
        let mix = self.fastest(rank, counts).expect("a path uses only counts that fit");
        let runs = rank.parts.iter().zip(counts);
        let states: f64 = runs.map(|((run, _), &count)| count as f64 * self.class(*run).state).sum();
        let mut spare = rank.room - states - self.memory(rank, &mix.counts);
        for ((run, shares), counts) in rank.parts.iter().zip(&mix.counts) {
            let spread = Spread { class: self.class(*run), shares };
            let least = spread.least_kept(counts);
            let lengths = spread.lengths(counts, least + spare.max(0.0));
            spare -= spread.kept(&lengths, counts) - least;
            let class = self.chain.runs[*run].class;
            for ((share, length), taken) in shares.iter().zip(&lengths).zip(spread.deal(&lengths, counts)) {
                let placement = &mut placements[share.stage];
                placement.length += length;
                placement.taken[class].iter_mut().zip(taken).for_each(|(sum, more)| *sum += more);
            }
        }
    }
}

/// The fastest combination of one mix per part that keeps at most `room` bytes, if faster than `best`.
fn combine(
    fronts: &[Rc<Vec<SpreadMix>>],
    time: f64,
    room: f64,
    chosen: &mut Vec<usize>,
    best: &mut Option<RankMix>,
) {
    let Some(front) = fronts.get(chosen.len()) else { return };
    let beaten = |time: f64, best: &Option<RankMix>| best.as_ref().is_some_and(|best| time >= best.time);
    if chosen.len() + 1 == fronts.len() {
        let point = front.partition_point(|mix| mix.kept > room);
        if let Some(mix) = front.get(point).filter(|mix| !beaten(time + mix.time, best)) {
            let mut counts: Vec<Vec<u32>> =
                chosen.iter().zip(fronts).map(|(&point, front)| front[point].counts.clone()).collect();
            counts.push(mix.counts.clone());
            *best = Some(RankMix { time: time + mix.time, counts });
        }
        return;
    }
    for (point, mix) in front.iter().enumerate() {
        if beaten(time + mix.time, best) {
            break;
        }
        if mix.kept <= room {
            chosen.push(point);
            combine(fronts, time + mix.time, room - mix.kept, chosen, best);
            chosen.pop();
        }
    }
}
