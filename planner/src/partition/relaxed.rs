//! Bounds for coupled problems: forget the order of the layers, and let every stage of a rank hold as few microbatches as
//! the one of them that holds fewest.
//!
//! What is left is how many layers of each class each rank gets, a dynamic program over ranks with the counts so far.

use super::Problem;
use super::layers::Layers;
use super::mixes::Mixes;
use super::slots::with_tolerance;

/// Above this many counts the plain bound has to do: the dynamic program would take longer than it saves.
const MOST_COUNTS: usize = 4096;

/// The least slowest time and the least sum of ranks' times, each on its own, of splits that cost less than `most` seconds.
pub(super) fn bounds(problem: &Problem, layers: &Layers, mixes: &mut Mixes, most: f64) -> (f64, f64) {
    let fastest_sum = layers.fastest() + layers.stage_times.iter().sum::<f64>();
    let plain = (fastest_sum / problem.ranks.len() as f64, fastest_sum);
    let mut totals = vec![0usize; layers.classes.len()];
    for &class in &layers.sequence {
        totals[class] += 1;
    }
    // Number of counts; saturating, as many classes overflow it.
    let counts = totals.iter().fold(1usize, |product, total| product.saturating_mul(total + 1));
    if counts > MOST_COUNTS || problem.steady == 0.0 {
        return plain;
    }
    let cap = (most - problem.ramp * fastest_sum) / problem.steady;
    let shares = Shares::new(layers, mixes, &totals, cap);
    let mut tops = vec![f64::INFINITY; counts];
    let mut sums = vec![f64::INFINITY; counts];
    (tops[0], sums[0]) = (0.0, 0.0);
    for rank in 0..problem.ranks.len() {
        let options = shares.of_rank(problem, layers, mixes, rank, cap);
        let mut next = (vec![f64::INFINITY; counts], vec![f64::INFINITY; counts]);
        for (code, have) in shares.every_count().enumerate().filter(|(code, _)| sums[*code].is_finite()) {
            for (share, time) in &options {
                let fits = share
                    .counts
                    .iter()
                    .zip(&have)
                    .zip(&totals)
                    .all(|((more, have), all)| more + have <= *all);
                if fits {
                    let to = code + share.code;
                    next.0[to] = next.0[to].min(tops[code].max(*time));
                    next.1[to] = next.1[to].min(sums[code] + time);
                }
            }
        }
        (tops, sums) = next;
    }
    let (top, sum) = (tops[counts - 1], sums[counts - 1]);
    // No way at all means that nothing beats the split known; the plain bound is still right.
    if sum.is_finite() { (top.max(plain.0), sum.max(plain.1)) } else { plain }
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
    /// Those whose layers take up to `cap` seconds at their fastest.
    fn new(layers: &Layers, mixes: &mut Mixes, totals: &[usize], cap: f64) -> Self {
        let mut shares = Self { totals: totals.to_vec(), list: Vec::new() };
        let all: Vec<Vec<usize>> = shares.every_count().collect();
        for (code, counts) in all.into_iter().enumerate() {
            let classes = layers.classes.iter().zip(&counts);
            let time: f64 = classes.map(|(class, &count)| count as f64 * class.choices[0].time).sum();
            if time <= cap {
                let composition = mixes.named(counts.iter().map(|&count| count as u32).collect());
                shares.list.push(Share { layers: counts.iter().sum(), counts, code, composition });
            }
        }
        shares
    }

    /// Every count from none to all, the first class fastest.
    fn every_count(&self) -> impl Iterator<Item = Vec<usize>> + '_ {
        let number: usize = self.totals.iter().map(|total| total + 1).product();
        (0..number).map(|mut code| {
            let digit = |total: &usize| {
                let count = code % (total + 1);
                code /= total + 1;
                count
            };
            self.totals.iter().map(digit).collect()
        })
    }

    /// The shares that fit a rank within `cap` seconds, with their least times.
    fn of_rank(
        &self,
        problem: &Problem,
        layers: &Layers,
        mixes: &mut Mixes,
        rank: usize,
        cap: f64,
    ) -> Vec<(&Share, f64)> {
        let stages = || problem.stages.iter().enumerate().filter(|(_, stage)| stage.rank == rank);
        let own: f64 = stages().map(|(index, _)| layers.stage_times[index]).sum();
        let fixed: f64 = stages().map(|(_, stage)| stage.memory.get()).sum();
        let in_flight = stages().map(|(_, stage)| stage.in_flight).fold(f64::INFINITY, f64::min);
        let room = with_tolerance(problem.ranks[rank]) - fixed;
        let enough = self.list.iter().filter(|share| share.layers >= stages().count());
        let mut options = Vec::new();
        for share in enough {
            let totals = mixes.totals(share.composition);
            if own + totals.time > cap {
                continue;
            }
            if let Some((time, _)) = mixes.fastest(share.composition, in_flight, room - totals.state)
                && own + time <= cap
            {
                options.push((share, own + time));
            }
        }
        options
    }
}
