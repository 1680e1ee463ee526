//! The ways to run blocks on a pipeline rank, and the least time of several blocks in its memory.

use trainwright_spec::units::{Bytes, Seconds};

/// One way to run a block: its time, and the memory that it takes.
#[derive(Debug, Clone, Copy)]
pub(super) struct Way {
    pub time: Seconds,
    pub memory: Bytes,
}

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

/// What a pipeline rank has left for blocks.
#[derive(Debug, Clone)]
pub(super) struct RankRoom {
    /// What embedding, head and messages in line take of each microbatch's time.
    pub time: Seconds,
    /// Memory for blocks.
    pub memory: Bytes,
    /// The ways to run a block: by run of the model, then further ones.
    pub runs: Vec<Trade>,
    /// Blocks of the longest run that its stages must have: so many in the ways of a run, those that take least memory first.
    pub must_have: Vec<(usize, usize)>,
}

/// Combinations of ways up to which all are tried.
const FEW: usize = 256;

impl RankRoom {
    /// The least time of so many blocks of these runs, a microbatch; `None` if they do not fit in memory.
    ///
    /// Exact where the combinations of ways are few. Else of fractions of blocks, a fractional knapsack: from the fastest way of
    /// each block on, memory is saved where it costs least time.
    pub fn least_time(&self, blocks: &[(usize, usize)]) -> Option<Seconds> {
        let most = |(run, count): &(usize, usize)| combinations(*count, self.runs[*run].ways.len());
        let least = match blocks.iter().map(most).fold(1, usize::saturating_mul) <= FEW {
            true => self.least_of_all(blocks, self.memory.get() * (1.0 + ALMOST)),
            false => self.least_of_fractions(blocks),
        };
        least.map(|least| self.time + Seconds::new(least))
    }

    /// The least times of 0, 1, … blocks of a run, a microbatch, up to `most` of them or until they do not fit in memory. Its
    /// stages have those that they must have first.
    pub fn least_times(&self, run: usize, most: usize) -> Vec<Seconds> {
        let least = |count: usize| {
            let mut left = count;
            let mut blocks: Vec<(usize, usize)> = Vec::with_capacity(self.must_have.len() + 1);
            for (own, most) in self.must_have.iter().copied().chain([(run, usize::MAX)]) {
                let these = left.min(most);
                left -= these;
                match blocks.iter_mut().find(|(known, _)| *known == own) {
                    Some((_, count)) => *count += these,
                    None if these > 0 => blocks.push((own, these)),
                    None => {}
                }
            }
            self.least_time(&blocks)
        };
        (0..=most).map_while(least).collect()
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
        if let ([slower], []) = (others, rest) {
            return least_of_two([way, slower], count, memory);
        }
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

/// The least time of `count` blocks in two ways, the faster one first: as many in that one as memory allows.
fn least_of_two([faster, slower]: [&Way; 2], count: usize, memory: f64) -> Option<f64> {
    let left = |fast: usize| {
        memory - faster.memory.get() * fast as f64 - slower.memory.get() * (count - fast) as f64
    };
    if left(0) < 0.0 {
        return None;
    }
    let room = left(0) / (faster.memory - slower.memory).get();
    // Rounding may be off by one.
    let most = if room < count as f64 { (room as usize + 1).min(count) } else { count };
    let fast = (0..=most).rev().find(|fast| left(*fast) >= 0.0)?;
    Some(slower.time.get() * (count - fast) as f64 + faster.time.get() * fast as f64)
}

/// In how many ways `count` equal blocks can be run, each in one of `ways` ways; not exact where it is beyond `FEW`.
fn combinations(count: usize, ways: usize) -> usize {
    // C(count + ways − 1, ways − 1), each partial product a whole number.
    (1..ways).fold(1, |product: usize, at| product.saturating_mul(count + at) / at)
}

/// What rounding may lack of memory that is used up, as a part.
pub(super) const ALMOST: f64 = 1e-9;

/// The increments of the lower convex hull of 0 and these values.
pub(super) fn convex_increments(values: impl Iterator<Item = f64>) -> Vec<f64> {
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

#[cfg(test)]
mod tests {
    use super::*;

    fn way(time: f64, memory: f64) -> Way {
        Way { time: Seconds::new(time), memory: Bytes::new(memory) }
    }

    fn rank(memory: f64, ways: &[&[Way]]) -> RankRoom {
        let runs = ways.iter().map(|ways| Trade::of(ways)).collect();
        RankRoom { time: Seconds::ZERO, memory: Bytes::new(memory), runs, must_have: Vec::new() }
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

    #[test]
    fn of_two_ways_the_faster_one_takes_what_memory_allows() {
        let mut state = 11u64;
        let mut random = move |below: u64| {
            state = state.wrapping_mul(6364136223846793005).wrapping_add(1442695040888963407);
            ((state >> 33) % below) as f64
        };
        let (mut fits, mut mixed) = (0, 0);
        for case in 0..2000 {
            let (time, small) = (1.0 + random(100) / 7.0, 1.0 + random(100) / 7.0);
            let ways = [way(time, small + 0.1 + random(50) / 3.0), way(time + 0.1 + random(50) / 3.0, small)];
            let (count, memory) = (1 + random(12) as usize, random(4000) / 13.0);
            let needs = |fast: usize| {
                memory - ways[0].memory.get() * fast as f64 - ways[1].memory.get() * (count - fast) as f64
            };
            let takes =
                |fast: usize| ways[1].time.get() * (count - fast) as f64 + ways[0].time.get() * fast as f64;
            let all = (0..=count).filter(|fast| needs(*fast) >= 0.0);
            let expected = all.map(takes).min_by(f64::total_cmp);
            let found = least_of_two([&ways[0], &ways[1]], count, memory);
            assert_eq!(found, expected, "{case}: {ways:?}, {count} blocks in {memory}");
            fits += usize::from(found.is_some());
            mixed += usize::from(found.is_some_and(|found| found != takes(0) && found != takes(count)));
        }
        assert!(fits > 1000 && mixed > 200, "{fits}, {mixed}");
        // Three of 2 B use 6 B up; with 8 B one may have 4 B.
        let ways = [way(1.0, 4.0), way(2.0, 2.0)];
        let of = |memory: f64| least_of_two([&ways[0], &ways[1]], 3, memory);
        assert_eq!([of(5.9), of(6.0), of(8.0)], [None, Some(6.0), Some(5.0)]);
    }

    #[test]
    fn stages_have_the_blocks_first_that_they_must_have() {
        let ways: [&[Way]; 3] = [&[way(1.0, 1.0)], &[way(1.0, 2.0)], &[way(1.0, 4.0)]];
        let rank = RankRoom { must_have: vec![(0, 1), (1, 1), (2, 1)], ..rank(9.0, &ways) };
        let times: Vec<f64> = rank.least_times(0, 9).into_iter().map(Seconds::get).collect();
        // 1, 3, 7, 8 and 9 B.
        assert_eq!(times, [0.0, 1.0, 2.0, 3.0, 4.0, 5.0]);
    }

    #[test]
    fn increments_are_those_of_the_convex_hull() {
        let values = [2.0, 3.0, 6.0, 7.0, 8.0];
        assert_eq!(convex_increments(values.into_iter()), [1.5, 1.5, 5.0 / 3.0, 5.0 / 3.0, 5.0 / 3.0]);
        assert_eq!(convex_increments([1.0, 3.0].into_iter()), [1.0, 2.0]);
    }
}
