//! Coupled problems with few runs: for each pattern of stages over runs, ranks no longer depend on each other.
//!
//! A path then leads through (rank, layers of each run given out so far), and the bounds of [`super::separable`] prove the
//! best path of each pattern, or that it has none better than the best of those before.

use super::Problem;
use super::columns::Chain;
use super::layers::Layers;
use super::network::{Arc, Network, Path};
use super::patterns::Pattern;
use super::placement::{Placement, Split, lay_out};
use super::rank_costs::{RankCosts, RankPattern, rank_patterns};
use super::separable;

/// The best split over all patterns if it costs less than `known`; its objective is proved least.
pub(super) fn best_split(
    problem: &Problem,
    layers: &Layers,
    chain: &Chain,
    patterns: &[Pattern],
    known: f64,
    least_sum: f64,
) -> Option<Split> {
    let codes = Codes::new(chain);
    let mut costs = RankCosts::new(layers, chain);
    let mut best: Option<(Vec<RankPattern>, Path)> = None;
    for pattern in patterns {
        let most = best.as_ref().map_or(known, |(_, path)| path.objective);
        let ranks = rank_patterns(problem, layers, chain, pattern);
        let cap = (most - problem.ramp * least_sum) / problem.steady;
        let Some(network) = network(&codes, &mut costs, &ranks, cap) else { continue };
        let beaten = Path { intervals: Vec::new(), slowest: cap, objective: most };
        let found = separable::by_bounds(problem, &network, beaten).best;
        if found.objective < most {
            let evenest = network.best_path(found.slowest, problem).unwrap_or(found);
            best = Some((ranks, evenest));
        }
    }
    let (ranks, path) = best?;
    let none = layers.classes.iter().map(|class| vec![0; class.choices.len()]).collect();
    let mut placements = vec![Placement { length: 0, taken: none }; chain.ranks.len()];
    for (rank, step) in ranks.iter().zip(&path.intervals) {
        let given = codes.counts(step.end - step.start);
        let counts: Vec<usize> = rank.parts.iter().map(|(run, _)| given[*run]).collect();
        costs.place(rank, &counts, &mut placements);
    }
    Some(lay_out(layers, &placements))
}

/// Layers of each run as one number, the first run fastest; codes of parts that do not overflow add up.
struct Codes {
    /// Layers of each run.
    totals: Vec<usize>,
    /// What one layer of each run adds.
    units: Vec<usize>,
    number: usize,
}

/// How many codes there are; none if too many to list.
pub(super) fn codes(chain: &Chain) -> Option<usize> {
    chain.runs.iter().try_fold(1usize, |product, run| product.checked_mul(run.count + 1))
}

impl Codes {
    fn new(chain: &Chain) -> Self {
        let totals: Vec<usize> = chain.runs.iter().map(|run| run.count).collect();
        let mut units = Vec::with_capacity(totals.len());
        let mut number = 1;
        for total in &totals {
            units.push(number);
            number *= total + 1;
        }
        Self { totals, units, number }
    }

    fn counts(&self, code: usize) -> Vec<usize> {
        let digits = self.units.iter().zip(&self.totals);
        digits.map(|(unit, total)| code / unit % (total + 1)).collect()
    }
}

/// What a rank may get: layers of each run, as a list and as a code, and its time in seconds.
struct Offer {
    counts: Vec<usize>,
    code: usize,
    time: f64,
}

/// The network of a pattern; none if a rank has no way to stay within `cap` seconds.
fn network(codes: &Codes, costs: &mut RankCosts, ranks: &[RankPattern], cap: f64) -> Option<Network> {
    let mut offers: Vec<Vec<Offer>> = Vec::with_capacity(ranks.len());
    for rank in ranks {
        let mut of_rank = Vec::new();
        offer(codes, costs, rank, cap, &mut Vec::new(), &mut of_rank);
        if of_rank.is_empty() {
            return None;
        }
        offers.push(of_rank);
    }
    // The least and the most of each run that all ranks from one on can take: what is left must lie between.
    let runs = codes.totals.len();
    let mut takes = vec![(vec![0; runs], vec![0; runs])];
    for of_rank in offers.iter().rev() {
        let (mut least, mut most) = takes[takes.len() - 1].clone();
        for run in 0..runs {
            let counts = || of_rank.iter().map(|offer| offer.counts[run]);
            least[run] += counts().min().unwrap_or(0);
            most[run] += counts().max().unwrap_or(0);
        }
        takes.push((least, most));
    }
    takes.reverse();
    let mut reached = vec![false; codes.number];
    reached[0] = true;
    let mut slots = Vec::with_capacity(ranks.len());
    for (of_rank, (least, most)) in offers.iter().zip(&takes[1..]) {
        let mut next = vec![false; codes.number];
        let mut arcs = Vec::new();
        for from in (0..codes.number).filter(|&code| reached[code]) {
            let have = codes.counts(from);
            for offer in of_rank {
                let possible = (0..runs).all(|run| {
                    let left = codes.totals[run].checked_sub(have[run] + offer.counts[run]);
                    left.is_some_and(|left| (least[run]..=most[run]).contains(&left))
                });
                if possible {
                    arcs.push(Arc { from, to: from + offer.code, time: offer.time });
                    next[from + offer.code] = true;
                }
            }
        }
        slots.push(arcs);
        reached = next;
    }
    Some(Network { slots, cuts: codes.number })
}

/// Lists what a rank may get, part by part.
fn offer(
    codes: &Codes,
    costs: &mut RankCosts,
    rank: &RankPattern,
    cap: f64,
    counts: &mut Vec<usize>,
    list: &mut Vec<Offer>,
) {
    let part = counts.len();
    if part == rank.parts.len() {
        if let Some(mix) = costs.fastest(rank, counts).filter(|mix| mix.time <= cap) {
            let mut of_run = vec![0; codes.totals.len()];
            for ((run, _), &count) in rank.parts.iter().zip(counts.iter()) {
                of_run[*run] = count;
            }
            let code = of_run.iter().zip(&codes.units).map(|(count, unit)| count * unit).sum();
            list.push(Offer { counts: of_run, code, time: mix.time });
        }
        return;
    }
    let (least, more) = rank.least(part);
    let most = if more { codes.totals[rank.parts[part].0] } else { least };
    for count in least..=most {
        counts.push(count);
        let within = costs.least_time(rank, counts) <= cap;
        if within {
            offer(codes, costs, rank, cap, counts, list);
        }
        counts.pop();
        if !within {
            break;
        }
    }
}
