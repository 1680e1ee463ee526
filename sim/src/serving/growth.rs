//! Whether requests come faster than an engine begins them, so that its queue grows as long as they come.

use super::simulate::{Sample, Served};
use trainwright_spec::units::Seconds;

/// Parts of the time in which requests come.
const PARTS: usize = 8;
/// The queue's growth in each of the last parts that counts, over the requests that come in it: of those that are left a smaller
/// part may be chance.
const LEAST: f64 = 0.01;

/// A queue that grows as long as requests come.
#[derive(Debug, Clone, Copy, PartialEq)]
pub struct Growth {
    /// Requests a second that come.
    pub come: f64,
    /// How many of them stay in the queue.
    pub stay: f64,
}

impl Served {
    /// How the queue grows, in the second half of the time in which requests come; `None` if it does not.
    ///
    /// In each of the last four eighths the mean length of the queue is at least one in a hundred of the eighth's requests more
    /// than in the eighth before. A burst makes the queue longer once; a queue that was filled grows less and less.
    pub fn growth(&self) -> Option<Growth> {
        let (first, last) = (self.requests.first()?.arrival, self.requests.last()?.arrival);
        let part = (last - first) / PARTS as f64;
        if part <= Seconds::ZERO {
            return None;
        }
        let begin = |index: usize| first + index as f64 * part;
        let lengths: Vec<f64> =
            (PARTS / 2 - 1..PARTS).map(|index| self.mean_waiting(begin(index), begin(index + 1))).collect();
        let come = |from: Seconds, to: Seconds| {
            let within = |arrival: Seconds| arrival > from && arrival <= to;
            self.requests.iter().filter(|request| within(request.arrival)).count() as f64
        };
        let grows = |(index, pair): (usize, &[f64])| {
            let (from, to) = (begin(PARTS / 2 + index), begin(PARTS / 2 + index + 1));
            let growth = pair[1] - pair[0];
            growth > 0.0 && growth >= LEAST * come(from, to)
        };
        if !lengths.windows(2).enumerate().all(grows) {
            return None;
        }
        let half = (PARTS / 2) as f64 * part;
        let rate = come(begin(PARTS / 2), last) / half.get();
        let growth = (lengths[lengths.len() - 1] - lengths[0]) / half.get();
        Some(Growth { come: rate, stay: growth.min(rate) })
    }

    /// Requests that wait, in the mean over a time. After a step as many wait as until the end of the next.
    fn mean_waiting(&self, from: Seconds, to: Seconds) -> f64 {
        let mut sum = Seconds::ZERO;
        let mut before = Seconds::ZERO;
        for Sample { at, waiting, .. } in &self.samples {
            let (start, end) = (before.max(from), (*at).min(to));
            if end > start {
                sum += *waiting as f64 * (end - start);
            }
            before = *at;
        }
        sum / (to - from)
    }
}

#[cfg(test)]
mod tests {
    use super::super::simulate::ServedRequest;
    use super::*;

    /// 800 requests, one a second, and what waits at the end of each second.
    fn check(waiting: impl Fn(usize) -> usize, expected: Option<[f64; 2]>) {
        let second = |index: usize| Seconds::new(index as f64);
        let request = |index: usize| ServedRequest {
            input: 1,
            output: 1,
            arrival: second(index),
            first: second(index),
            last: second(index),
        };
        let sample =
            |index: usize| Sample { at: second(index), running: 1, waiting: waiting(index), blocks: 0 };
        let served = Served {
            requests: (0..=800).map(request).collect(),
            samples: (0..=800).map(sample).collect(),
            ..Served::default()
        };
        let found = served.growth().map(|Growth { come, stay }| [come, stay]);
        let digits = |rates: [f64; 2]| rates.map(|rate| (1e2 * rate).round() as i64);
        assert_eq!(found.map(digits), expected.map(digits));
    }

    #[test]
    fn a_queue_grows_without_end_where_it_does_to_the_last_arrival() {
        // A fifth of what comes stays.
        check(|second| second / 5, Some([1.0, 0.2]));
        // The same, once running sequences have filled the cache.
        check(|second| second.saturating_sub(300) / 5, Some([1.0, 0.2]));
        // One in a thousand: chance, as is a queue that swings.
        check(|second| second / 1000, None);
        check(|second| (second % 10) * 3, None);
        // A burst, at the end too; one that takes long to serve.
        check(|second| if second > 750 { 500 } else { 0 }, None);
        check(|second| 500_usize.saturating_sub(second), None);
        // Filled once.
        check(|second| second.min(400) / 2, None);
    }

    #[test]
    fn requests_that_come_at_once_have_no_rate() {
        assert_eq!(Served::default().growth(), None);
    }
}
