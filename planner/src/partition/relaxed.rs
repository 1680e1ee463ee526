//! Bounds for coupled problems: forget the order of the layers, and let every stage of a rank hold as few microbatches as
//! the one of them that holds fewest, but for one layer each.
//!
//! What is left is how many layers of each class each rank gets, a dynamic program over ranks with the counts so far.

use super::Problem;
use super::layers::Layers;
use super::mixes::Mixes;
use super::slots::with_tolerance;

/// Above this many counts the plain bounds have to do: the dynamic program would take longer than it saves.
const MOST_COUNTS: usize = 1024;

/// The least slowest time and the least sum of ranks' times, each on its own, of splits that cost less than `most` seconds.
pub(super) fn bounds(problem: &Problem, layers: &Layers, mixes: &mut Mixes, most: f64) -> (f64, f64) {
    let fastest_sum = layers.fastest() + layers.stage_times.iter().sum::<f64>();
    let plain = (fastest_sum / problem.ranks.len() as f64, fastest_sum);
    let cap = (most - problem.ramp * fastest_sum) / problem.steady;
    let Some(shares) = Shares::new(layers, mixes, cap).filter(|_| problem.steady > 0.0) else { return plain };
    let offers: Vec<Vec<(&Share, f64)>> = (0..problem.ranks.len())
        .map(|rank| {
            let rank = Room::new(problem, layers, rank);
            let mut time = |share: &Share| rank.time(mixes, share).filter(|time| *time <= cap);
            shares.list.iter().filter_map(|share| Some((share, time(share)?))).collect()
        })
        .collect();
    let top = shares.least(&offers, 0.0, f64::max);
    let sum = shares.least(&offers, 0.0, |a, b| a + b);
    // No way at all means that nothing beats the split known; the plain bound is still right.
    if sum.is_finite() { (top.max(plain.0), sum.max(plain.1)) } else { plain }
}

/// Whether some rank lacks memory however the layers are dealt out; false also if that is too much work to know.
pub(super) fn never_fits(problem: &Problem, layers: &Layers, mixes: &mut Mixes) -> bool {
    let Some(shares) = Shares::new(layers, mixes, f64::INFINITY) else { return false };
    let offers: Vec<Vec<(&Share, f64)>> = (0..problem.ranks.len())
        .map(|rank| {
            let rank = Room::new(problem, layers, rank);
            let fits = |share: &Share| rank.fits(mixes, share);
            shares.list.iter().filter(|share| fits(share)).map(|share| (share, 0.0)).collect()
        })
        .collect();
    shares.least(&offers, 0.0, f64::max).is_infinite()
}

/// Counts of layers that a rank could get.
struct Shares {
    totals: Vec<usize>,
    list: Vec<Share>,
}

struct Share {
    counts: Vec<usize>,
    /// Its place among all counts.
    code: usize,
    composition: usize,
    layers: usize,
}

impl Shares {
    /// Those whose layers take up to `cap` seconds at their fastest; none if there are too many counts.
    fn new(layers: &Layers, mixes: &mut Mixes, cap: f64) -> Option<Self> {
        let mut totals = vec![0usize; layers.classes.len()];
        for &class in &layers.sequence {
            totals[class] += 1;
        }
        let mut shares = Self { totals, list: Vec::new() };
        if shares.number().is_none_or(|number| number > MOST_COUNTS) {
            return None;
        }
        for (code, counts) in shares.every_count().into_iter().enumerate() {
            let classes = layers.classes.iter().zip(&counts);
            let time: f64 = classes.map(|(class, &count)| count as f64 * class.choices[0].time).sum();
            if time <= cap {
                let composition = mixes.named(counts.iter().map(|&count| count as u32).collect());
                shares.list.push(Share { layers: counts.iter().sum(), counts, code, composition });
            }
        }
        Some(shares)
    }

    fn number(&self) -> Option<usize> {
        self.totals.iter().try_fold(1usize, |product, total| product.checked_mul(total + 1))
    }

    /// Every count from none to all, the first class fastest.
    fn every_count(&self) -> Vec<Vec<usize>> {
        let mut counts = vec![vec![]];
        for total in &self.totals {
            counts = (0..=*total)
                .flat_map(|more| counts.iter().map(move |count| [&count[..], &[more]].concat()))
                .collect();
        }
        counts
    }

    /// The least combined cost of giving each rank one of its offers so that all layers are given out.
    fn least(&self, offers: &[Vec<(&Share, f64)>], start: f64, combine: fn(f64, f64) -> f64) -> f64 {
        let every = self.every_count();
        let mut least = vec![f64::INFINITY; every.len()];
        least[0] = start;
        for of_rank in offers {
            let mut next = vec![f64::INFINITY; every.len()];
            for (code, have) in every.iter().enumerate().filter(|(code, _)| least[*code].is_finite()) {
                for (share, cost) in of_rank {
                    let counts = share.counts.iter().zip(have).zip(&self.totals);
                    if counts.clone().all(|((more, have), all)| more + have <= *all) {
                        let to = code + share.code;
                        next[to] = next[to].min(combine(least[code], *cost));
                    }
                }
            }
            least = next;
        }
        least[every.len() - 1]
    }
}

/// What a rank has at the least besides its layers.
struct Room {
    stages: usize,
    /// Seconds of its stages themselves.
    time: f64,
    /// Fewest microbatches that one of its stages holds.
    in_flight: f64,
    /// Bytes for layers and activations.
    room: f64,
}

impl Room {
    fn new(problem: &Problem, layers: &Layers, rank: usize) -> Self {
        let stages = || problem.stages.iter().enumerate().filter(|(_, stage)| stage.rank == rank);
        let in_flight = stages().map(|(_, stage)| stage.in_flight).fold(f64::INFINITY, f64::min);
        let choices = layers.classes.iter().flat_map(|class| &class.choices);
        let least_kept = choices.map(|choice| choice.kept).fold(f64::INFINITY, f64::min);
        // One layer at least on each stage is held for all that the stage has in flight.
        let held = |stage: &super::Stage| stage.memory.get() + (stage.in_flight - in_flight) * least_kept;
        let fixed: f64 = stages().map(|(_, stage)| held(stage)).sum();
        let limit = with_tolerance(problem.ranks[rank]);
        Self {
            stages: stages().count(),
            time: stages().map(|(index, _)| layers.stage_times[index]).sum(),
            in_flight,
            // The sum above may round up.
            room: limit - fixed + 1e-9 * fixed,
        }
    }

    /// Least seconds of the rank with a share; none if that never fits.
    fn time(&self, mixes: &mut Mixes, share: &Share) -> Option<f64> {
        let room = self.room - mixes.totals(share.composition).state;
        let enough = share.layers >= self.stages;
        let (time, _) = mixes.fastest(share.composition, self.in_flight, room).filter(|_| enough)?;
        Some(self.time + time)
    }

    /// Whether the rank might hold a share.
    fn fits(&self, mixes: &Mixes, share: &Share) -> bool {
        let totals = mixes.totals(share.composition);
        let needs = totals.state + mixes.least_memory(share.composition, self.in_flight);
        share.layers >= self.stages && needs <= self.room
    }
}
