//! Whether all layers of a model, in their order, find time and memory on pipeline ranks of one stage each.

use super::block_mixes::Way;
use trainwright_spec::units::{Bytes, Seconds};

/// The ways to run a block that are worth it.
#[derive(Debug, Clone)]
pub(super) struct Trade {
    /// Those that no other one is as fast and as small as, the fastest first.
    ways: Vec<Way>,
    /// What each next one on their lower convex hull saves in memory for its time, the cheapest first.
    savings: Vec<Saving>,
}

/// Time for memory.
#[derive(Debug, Clone, Copy)]
struct Saving {
    memory: f64,
    time: f64,
}

impl Saving {
    fn price(&self) -> f64 {
        self.time / self.memory
    }
}

impl Trade {
    pub fn of(all: &[Way]) -> Self {
        let mut sorted = all.to_vec();
        sorted.sort_by(|a, b| {
            a.time.get().total_cmp(&b.time.get()).then(a.memory.get().total_cmp(&b.memory.get()))
        });
        let mut ways: Vec<Way> = Vec::with_capacity(sorted.len());
        for way in sorted {
            if ways.last().is_none_or(|last| way.memory < last.memory) {
                ways.push(way);
            }
        }
        let (mut at, mut savings) = (0, Vec::new());
        while at + 1 < ways.len() {
            let saving = |to: usize| Saving {
                memory: (ways[at].memory - ways[to].memory).get(),
                time: (ways[to].time - ways[at].time).get(),
            };
            // Of equal prices the farthest.
            let all = (at + 1..ways.len()).rev().map(|to| (saving(to), to));
            let next = all.min_by(|a, b| a.0.price().total_cmp(&b.0.price()));
            let (saving, to) = next.expect("a way is left");
            savings.push(saving);
            at = to;
        }
        Self { ways, savings }
    }
}

/// A pipeline rank with room for blocks.
#[derive(Debug, Clone)]
pub(super) struct OrderedRank {
    /// What embedding, head and messages in line take of each microbatch's time.
    pub time: Seconds,
    /// Memory for blocks.
    pub memory: Bytes,
    /// By run of the model.
    pub runs: Vec<Trade>,
}

/// Combinations of ways up to which all are tried.
const FEW: usize = 256;

impl OrderedRank {
    /// The least time of so many blocks of these runs, a microbatch; `None` if they do not fit in memory.
    ///
    /// Exact where the combinations of ways are few. Else of fractions of blocks, a fractional knapsack: from the fastest way of
    /// each block on, memory is saved where it costs least time.
    fn least_time(&self, blocks: &[(usize, usize)]) -> Option<Seconds> {
        let most = |(run, count): &(usize, usize)| combinations(*count, self.runs[*run].ways.len());
        let least = match blocks.iter().map(most).fold(1, usize::saturating_mul) <= FEW {
            true => self.least_of_all(blocks, self.memory.get() * (1.0 + ALMOST)),
            false => self.least_of_fractions(blocks),
        };
        least.map(|least| self.time + Seconds::new(least))
    }

    /// The least time of all combinations of ways with this memory.
    fn least_of_all(&self, blocks: &[(usize, usize)], memory: f64) -> Option<f64> {
        match blocks {
            [] => (memory >= 0.0).then_some(0.0),
            [(run, count), rest @ ..] => self.least_of_run(&self.runs[*run].ways, *count, memory, rest),
        }
    }

    /// That, `count` more blocks of a run in one of `ways`, and the blocks of further runs.
    fn least_of_run(&self, ways: &[Way], count: usize, memory: f64, rest: &[(usize, usize)]) -> Option<f64> {
        let (way, others) = ways.split_first().expect("a block can be run");
        let of = |these: usize| {
            let left = memory - way.memory.get() * these as f64;
            let least = match count - these {
                0 => self.least_of_all(rest, left),
                more => self.least_of_run(others, more, left, rest),
            };
            least.map(|least| least + way.time.get() * these as f64)
        };
        let fewest = if others.is_empty() { count } else { 0 };
        (fewest..=count).filter_map(of).min_by(f64::total_cmp)
    }

    fn least_of_fractions(&self, blocks: &[(usize, usize)]) -> Option<f64> {
        let all = || blocks.iter().map(|(run, count)| (&self.runs[*run], *count as f64));
        let mut time: f64 = all().map(|(run, count)| run.ways[0].time.get() * count).sum();
        let memory: f64 = all().map(|(run, count)| run.ways[0].memory.get() * count).sum();
        let mut lacking = memory - self.memory.get();
        if lacking <= 0.0 {
            return Some(time);
        }
        let mut savings: Vec<(Saving, f64)> =
            all().flat_map(|(run, count)| run.savings.iter().map(move |saving| (*saving, count))).collect();
        savings.sort_by(|a, b| a.0.price().total_cmp(&b.0.price()));
        for (saving, count) in savings {
            let part = (lacking / saving.memory).min(count);
            time += saving.time * part;
            lacking -= saving.memory * part;
            if part < count {
                return Some(time);
            }
        }
        (lacking <= memory * ALMOST).then_some(time)
    }
}

/// In how many ways `count` equal blocks can be run, each in one of `ways` ways; not exact where it is beyond `FEW`.
fn combinations(count: usize, ways: usize) -> usize {
    // C(count + ways − 1, ways − 1), each partial product a whole number.
    (1..ways).fold(1, |product: usize, at| product.saturating_mul(count + at) / at)
}

/// What rounding may lack of memory that is used up, as a part.
const ALMOST: f64 = 1e-9;

/// The layers of a model on a pipeline.
#[derive(Debug, Clone)]
pub(super) struct LayersInOrder {
    /// Blocks of each run.
    pub counts: Vec<usize>,
    pub ranks: Vec<OrderedRank>,
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
    pub fn of_passes(ranks: &[OrderedRank], of_block: Seconds, run: usize, blocks: usize) -> Self {
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

/// The increments of the lower convex hull of 0 and these values.
fn convex_increments(values: impl Iterator<Item = f64>) -> Vec<f64> {
    // Length and slope of each part of the hull.
    let mut parts: Vec<(f64, f64)> = Vec::new();
    let mut last = 0.0;
    for value in values {
        let mut part = (1.0, value - last);
        last = value;
        while let Some(before) = parts.last().filter(|before| before.1 > part.1) {
            let length = before.0 + part.0;
            part = (length, (before.0 * before.1 + part.0 * part.1) / length);
            parts.pop();
        }
        parts.push(part);
    }
    parts.into_iter().flat_map(|(length, slope)| std::iter::repeat_n(slope, length as usize)).collect()
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
    use super::*;

    fn way(time: f64, memory: f64) -> Way {
        Way { time: Seconds::new(time), memory: Bytes::new(memory) }
    }

    fn rank(memory: f64, ways: &[&[Way]]) -> OrderedRank {
        let runs = ways.iter().map(|ways| Trade::of(ways)).collect();
        OrderedRank { time: Seconds::ZERO, memory: Bytes::new(memory), runs }
    }

    #[test]
    fn memory_is_saved_where_it_costs_least_time() {
        // Two kinds of blocks: 3 B cost 1 s, and 1 B costs 2 s. The way of 5 s is never worth it.
        let ways: [&[Way]; 2] =
            [&[way(1.0, 4.0), way(5.0, 3.5), way(2.0, 1.0)], &[way(1.0, 2.0), way(3.0, 1.0)]];
        let blocks = [(0, 2), (1, 2)];
        let check = |memory: f64, whole: Option<f64>, fractions: Option<f64>| {
            let rank = rank(memory, &ways);
            assert_eq!(rank.least_time(&blocks).map(Seconds::get), whole, "{memory} B");
            assert_eq!(rank.least_of_fractions(&blocks), fractions, "{memory} B");
        };
        check(12.0, Some(4.0), Some(4.0));
        check(10.5, Some(5.0), Some(4.5));
        check(9.0, Some(5.0), Some(5.0));
        check(6.0, Some(6.0), Some(6.0));
        check(5.5, Some(8.0), Some(7.0));
        check(4.0, Some(10.0), Some(10.0));
        check(3.5, None, None);
        assert_eq!([combinations(2, 3), combinations(0, 3), combinations(5, 1)], [6, 1, 1]);
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
            let ranks: Vec<OrderedRank> = (0..3).map(|at| rank(memory(at), &ways)).collect();
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
