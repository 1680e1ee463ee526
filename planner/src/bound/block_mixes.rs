//! How many equal blocks ranks can run, and the work of them, where each block may be run in several ways.

use trainwright_spec::units::{Bytes, Seconds};

/// One way to run a block: its time, and the memory that it takes.
#[derive(Debug, Clone, Copy)]
pub(super) struct Way {
    pub time: Seconds,
    pub memory: Bytes,
}

/// What a pipeline rank has left for blocks.
#[derive(Debug, Clone)]
pub(super) struct RankRoom {
    /// What embedding and head take of each microbatch's time.
    pub time: Seconds,
    /// Memory for blocks.
    pub memory: Bytes,
    /// The ways in which it can run a block.
    pub ways: Vec<Way>,
}

impl RankRoom {
    /// The most blocks that it can run within a time, embedding and head aside, and hold.
    pub fn most_blocks(&self, time: Seconds) -> f64 {
        most_blocks(time, self.memory, &self.ways)
    }
}

/// The most blocks, fractions allowed, within a time and a memory, each block run in one of several ways.
///
/// A linear program of two rows: an optimum uses one way, or two with both rows tight.
fn most_blocks(time: Seconds, memory: Bytes, ways: &[Way]) -> f64 {
    if time <= Seconds::ZERO || memory <= Bytes::ZERO {
        return 0.0;
    }
    let mut most: f64 = 0.0;
    for (index, first) in ways.iter().enumerate() {
        most = most.max((time / first.time).min(memory / first.memory));
        for other in &ways[index + 1..] {
            // x a + y b = time, x c + y d = memory, in units of both limits.
            let (a, b) = (first.time / time, other.time / time);
            let (c, d) = (first.memory / memory, other.memory / memory);
            let determinant = a * d - b * c;
            let (x, y) = ((d - b) / determinant, (a - c) / determinant);
            if x >= 0.0 && y >= 0.0 && (x + y).is_finite() {
                most = most.max(x + y);
            }
        }
    }
    most
}

/// The least work of `blocks` blocks on these ranks, fractions allowed, of which each takes no more than its cap.
///
/// On a rank n blocks with memory M take the least work where none of them recomputes more than it must: as many as M
/// allows run the fastest way; beyond, each more makes others change to a way that keeps less. The work is convex and
/// piecewise linear in n, with a kink at M / s_c for each way c, so that the cheapest segments of all ranks are taken first.
pub(super) fn least_work(ranks: &[RankRoom], caps: &[f64], blocks: f64) -> Seconds {
    // Work per block, and how many blocks take so much.
    let mut segments: Vec<(f64, f64)> = Vec::with_capacity(3 * ranks.len());
    for (rank, cap) in ranks.iter().zip(caps) {
        // Blocks that fit under each way, and the time of one.
        let fit = |way: &Way| (rank.memory / way.memory.max(Bytes::new(1.0)), way.time.get());
        let mut points: Vec<(f64, f64)> = rank.ways.iter().map(fit).collect();
        points.sort_by(|a, b| a.1.total_cmp(&b.1).then(b.0.total_cmp(&a.0)));
        let (mut at, mut done) = (0.0, 0.0);
        while at < *cap {
            // Of the ways under which more fit, that which makes a block more cheapest.
            let slope = |(fit, time): &(f64, f64)| ((fit * time - done) / (fit - at), *fit);
            let next = points.iter().filter(|(fit, _)| *fit > at * (1.0 + 1e-12) + 1e-12).map(slope);
            let Some((slope, fit)) = next.min_by(|a, b| a.0.total_cmp(&b.0).then(b.1.total_cmp(&a.1))) else {
                break;
            };
            let end = fit.min(*cap);
            segments.push((slope, end - at));
            done += slope * (end - at);
            at = end;
        }
    }
    segments.sort_by(|a, b| a.0.total_cmp(&b.0));
    let (mut left, mut work) = (blocks, 0.0);
    for (slope, length) in segments {
        let taken = length.min(left);
        work += slope * taken;
        left -= taken;
    }
    Seconds::new(work)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn blocks_are_mixed_to_use_both_time_and_memory() {
        // Fast blocks take 1 s and 4 B, slow ones 2 s and 1 B.
        let way = |time, memory| Way { time: Seconds::new(time), memory: Bytes::new(memory) };
        let ways = [way(1.0, 4.0), way(2.0, 1.0)];
        let check = |time: f64, memory: f64, expected: f64| {
            let most = most_blocks(Seconds::new(time), Bytes::new(memory), &ways);
            assert!((most - expected).abs() < 1e-12, "{most}, not {expected}");
        };
        check(10.0, 1000.0, 10.0); // memory enough for ten fast ones
        check(1000.0, 10.0, 10.0); // time enough for ten slow ones
        check(9.0, 15.0, 6.0); // three of each: 3 + 6 s, 12 + 3 B
        check(0.0, 10.0, 0.0);
    }
}
