//! Whether all layers of a model, in their order, find time and memory on pipeline ranks of one stage each.

use super::block_mixes::{ALMOST, RankRoom, convex_increments};
use trainwright_spec::units::Seconds;

/// The layers of a model on a pipeline.
#[derive(Debug, Clone)]
pub(super) struct LayersInOrder {
    /// Blocks of each run.
    pub counts: Vec<usize>,
    pub ranks: Vec<RankRoom>,
    pub ramp: Ramp,
    pub microbatches: f64,
}

/// What a rank waits because of the blocks on the ranks before it.
#[derive(Debug, Clone)]
pub(super) struct Ramp {
    /// What any block adds at least.
    of_block: Seconds,
    /// The run whose blocks add more where the ranks before cannot hold them all in their fastest way.
    run: usize,
    /// By rank: what 0, 1, … blocks of that run on the ranks before add at least. More blocks do not fit there.
    of_run: Vec<Vec<Seconds>>,
}

impl Ramp {
    /// Every block adds as much.
    pub fn even(of_block: Seconds) -> Self {
        Self { of_block, run: 0, of_run: Vec::new() }
    }

    /// A block adds a pass of its own, in its way. Of `blocks` blocks of a run each rank takes those that cost it least.
    ///
    /// What a rank's k-th block costs more than k − 1 of them is replaced by its lower convex hull over k: then the cheapest
    /// blocks of all ranks together are the least work.
    pub fn of_passes(ranks: &[RankRoom], of_block: Seconds, run: usize, blocks: usize) -> Self {
        let mut cheapest: Vec<f64> = Vec::new();
        let mut of_run = Vec::with_capacity(ranks.len());
        for rank in ranks {
            let sums = cheapest.iter().scan(0.0, |sum, cost| {
                *sum += cost;
                Some(Seconds::new(*sum))
            });
            of_run.push(std::iter::once(Seconds::ZERO).chain(sums).collect());
            let time = |count: usize| Some((rank.least_time(&[(run, count)])? - rank.time).get());
            cheapest.extend(convex_increments((1..=blocks).map_while(time)));
            cheapest.sort_by(f64::total_cmp);
            cheapest.truncate(blocks);
        }
        Self { of_block, run, of_run }
    }

    /// What these blocks on the ranks before `rank` add at least, or less if they do not fit there.
    fn of(&self, rank: usize, counts: &[usize]) -> Seconds {
        let all: usize = counts.iter().sum();
        let more = self.of_run.get(rank).and_then(|of_run| of_run.get(counts[self.run]));
        match more {
            Some(more) => *more + self.of_block * (all - counts[self.run]) as f64,
            None => self.of_block * all as f64,
        }
    }
}

impl LayersInOrder {
    /// Whether every layer finds room in steps of `time`, of which `before` is each rank's time without work.
    ///
    /// From the last rank on each takes as many of the last layers that are left as it can. No other split leaves less to the
    /// ranks before, and a rank has no less time if those behind it take more: then fewer blocks are before it.
    pub fn fit(&self, time: Seconds, before: &[Seconds]) -> bool {
        let mut left = self.counts.clone();
        let mut taken: Vec<(usize, usize)> = Vec::new();
        for (index, (rank, before)) in self.ranks.iter().zip(before).enumerate().rev() {
            let mut counts = left.clone();
            taken.clear();
            while let Some(run) = counts.iter().rposition(|count| *count > 0) {
                match taken.last_mut() {
                    Some((last, count)) if *last == run => *count += 1,
                    _ => taken.push((run, 1)),
                }
                counts[run] -= 1;
                let Some(least) = rank.least_time(&taken) else { break };
                let least = *before + least * self.microbatches * (1.0 - ALMOST);
                if least > time {
                    break;
                }
                // Where it has no time for so many it may have for more: then fewer are before it.
                if least + self.ramp.of(index, &counts) <= time {
                    left.clone_from(&counts);
                }
            }
        }
        left.iter().all(|count| *count == 0)
    }
}

#[cfg(test)]
mod tests {
    use super::super::block_mixes::{Trade, Way};
    use super::*;
    use trainwright_spec::units::Bytes;

    fn way(time: f64, memory: f64) -> Way {
        Way { time: Seconds::new(time), memory: Bytes::new(memory) }
    }

    fn rank(memory: f64, ways: &[&[Way]]) -> RankRoom {
        let runs = ways.iter().map(|ways| Trade::of(ways)).collect();
        RankRoom { time: Seconds::ZERO, memory: Bytes::new(memory), runs, must_have: Vec::new() }
    }

    /// Every split of every small case, its time by definition, against the greedy answer: the same where every block before adds
    /// as much, and no later where it adds what it takes.
    #[test]
    fn no_split_is_faster_than_the_least_time_in_which_the_layers_fit() {
        let ways: [&[Way]; 2] = [&[way(1.0, 4.0), way(2.0, 1.0)], &[way(1.5, 3.0), way(1.75, 2.0)]];
        let (mut checked, mut close) = (0, 0);
        for case in 0..1000_usize {
            let of = |place: u32, limit: usize| (case / 2 * 7919 + 31) / 5_usize.pow(place) % limit;
            let counts = vec![of(0, 4), 1 + of(1, 4)];
            let memory = |rank: u32| 3.0 + 3.0 * of(rank + 2, 5) as f64;
            let ranks: Vec<RankRoom> = (0..3).map(|at| rank(memory(at), &ways)).collect();
            let is_even = case % 2 == 0;
            let ramp = match is_even {
                true => Ramp::even(Seconds::new(1.0)),
                false => Ramp::of_passes(&ranks, Seconds::new(1.0), case / 2 % 2, counts[case / 2 % 2]),
            };
            let before: Vec<Seconds> = (0..3).map(|at| Seconds::new(of(at + 1, 3) as f64)).collect();
            let layers = LayersInOrder { counts: counts.clone(), ranks, ramp, microbatches: 2.0 };
            let all = counts[0] + counts[1];
            let time_of = |cuts: [usize; 4]| {
                let of_rank = |at: usize| {
                    let first = |place: usize| place.min(counts[0]);
                    let of_first = first(cuts[at + 1]) - first(cuts[at]);
                    let blocks = [(0, of_first), (1, cuts[at + 1] - cuts[at] - of_first)];
                    layers.ranks[at].least_time(&blocks).map(Seconds::get)
                };
                let mut waits = 0.0;
                let times = (0..3).map(|at| {
                    let least = of_rank(at)?;
                    let ramp = if is_even { cuts[at] as f64 } else { waits };
                    waits += least;
                    let is_idle = cuts[at] == cuts[at + 1];
                    Some(if is_idle { 0.0 } else { before[at].get() + ramp + 2.0 * least })
                });
                times.collect::<Option<Vec<f64>>>().map(|times| times.into_iter().fold(0.0, f64::max))
            };
            let splits = (0..=all).flat_map(|a| (a..=all).map(move |b| [0, a, b, all]));
            let best = splits.filter_map(time_of).fold(f64::INFINITY, f64::min);
            if best.is_finite() {
                assert!(layers.fit(Seconds::new(best), &before), "{case}: {best}");
                let is_close = !layers.fit(Seconds::new(best - 0.01), &before);
                assert!(is_close || !is_even, "{case}: {best}");
                checked += 1;
                close += usize::from(is_close && !is_even);
            } else {
                assert!(!layers.fit(Seconds::new(1e9), &before), "{case}");
            }
        }
        assert!(checked > 400 && close > 100, "{checked}, {close}");
    }
}
