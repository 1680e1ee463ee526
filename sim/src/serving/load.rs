//! What is asked of an engine.

use crate::mix::{self, mixed};
use trainwright_spec::units::Seconds;

/// A request.
#[derive(Debug, Clone, Copy, PartialEq)]
pub struct Request {
    /// When it arrives.
    pub arrival: Seconds,
    /// Tokens of its prompt.
    pub input: usize,
    /// Tokens of the answer, at least 1.
    pub output: usize,
    /// Tokens at the beginning of its prompt whose keys and values the engine has, fewer than `input`.
    pub cached: usize,
}

impl Request {
    /// A request of whose prompt the engine has nothing.
    pub fn new(arrival: Seconds, input: usize, output: usize) -> Self {
        Self { arrival, input, output, cached: 0 }
    }
}

/// How requests come.
#[derive(Debug, Clone, PartialEq)]
pub enum Load {
    /// At their own times, in the order of arrival.
    Open(Vec<Request>),
    /// Each of so many clients asks again as soon as it has its answer; arrivals of the requests do not count.
    Closed {
        /// Clients.
        clients: usize,
        /// The requests in the order in which they are asked.
        requests: Vec<Request>,
    },
}

/// How far lengths of `Load::closed` are from their mean at most, 0.1 for 10 %.
const SPREAD: f64 = 0.1;

impl Load {
    /// A batch that is there at once.
    pub fn batch(sequences: usize, input: usize, output: usize) -> Self {
        Load::Open(vec![Request::new(Seconds::ZERO, input, output); sequences])
    }

    /// Clients that ask `rounds` times each, with lengths evenly spread by ±10 %: equal ones would keep all in step for ever.
    /// The same in every run.
    pub fn closed(clients: usize, rounds: usize, input: usize, output: usize) -> Self {
        let request = |index: usize| {
            let input = spread(input, index, 0.618_033_988_749_895);
            Request::new(Seconds::ZERO, input, spread(output, index, 0.414_213_562_373_095))
        };
        Load::Closed { clients, requests: (0..clients * rounds).map(request).collect() }
    }

    /// `requests` requests at `rate` a second, with the gaps of a Poisson process: the quantiles (i + ½) / n of the exponential
    /// distribution, in an order as if drawn at random; the same in every run, and about the same for more requests.
    pub fn at_rate(rate: f64, requests: usize, input: usize, output: usize) -> Self {
        let mut by_quantile: Vec<usize> = (0..requests).collect();
        by_quantile.sort_by_key(|request| mixed(mix::spread(*request as u64 + 1)));
        let mut gaps = vec![Seconds::ZERO; requests];
        for (index, request) in by_quantile.into_iter().enumerate() {
            let quantile = (index as f64 + 0.5) / requests as f64;
            gaps[request] = Seconds::new(-libm::log(1.0 - quantile) / rate);
        }
        let mut arrival = Seconds::ZERO;
        let request = |gap: Seconds| {
            arrival += gap;
            Request::new(arrival, input, output)
        };
        Load::Open(gaps.into_iter().map(request).collect())
    }

    /// These requests, the gaps between their arrivals stretched so that `rate` come a second.
    ///
    /// # Panics
    /// If all arrive at once: `mean_rate` tells.
    pub fn stretched(mut requests: Vec<Request>, rate: f64) -> Self {
        let factor = mean_rate(&requests).expect("they arrive at different times") / rate;
        let first = requests[0].arrival;
        for request in &mut requests {
            request.arrival = factor * (request.arrival - first);
        }
        Load::Open(requests)
    }

    /// The same load, where the engine has up to so many tokens at the beginning of each prompt.
    pub fn with_cached(mut self, tokens: usize) -> Self {
        let (Load::Open(requests) | Load::Closed { requests, .. }) = &mut self;
        for request in requests {
            request.cached = tokens.min(request.input - 1);
        }
        self
    }

    /// The requests.
    pub fn requests(&self) -> &[Request] {
        match self {
            Load::Open(requests) | Load::Closed { requests, .. } => requests,
        }
    }
}

/// Requests a second, from the first arrival to the last; `None` if all arrive at once.
pub fn mean_rate(requests: &[Request]) -> Option<f64> {
    let [first, .., last] = requests else { return None };
    let span = last.arrival - first.arrival;
    (span > Seconds::ZERO).then(|| (requests.len() - 1) as f64 / span.get())
}

/// The length of the request `index`: multiples of an irrational `step`, without their whole part, fill the interval evenly.
fn spread(mean: usize, index: usize, step: f64) -> usize {
    let place = (index as f64 * step).fract() - 0.5;
    (mean as f64 * (1.0 + 2.0 * SPREAD * place)).round().max(1.0) as usize
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn closed_lengths_have_their_mean_and_stay_near_it() {
        let Load::Closed { requests, .. } = Load::closed(50, 20, 1000, 500) else { unreachable!() };
        let mean = |of: fn(&Request) -> usize| requests.iter().map(of).sum::<usize>() as f64 / 1000.0;
        assert!((mean(|request| request.input) - 1000.0).abs() < 2.0);
        assert!((mean(|request| request.output) - 500.0).abs() < 2.0);
        assert!(requests.iter().all(|request| (900..=1100).contains(&request.input)));
        let distinct: std::collections::BTreeSet<usize> =
            requests.iter().map(|request| request.input).collect();
        assert!(distinct.len() > 150, "{}", distinct.len());
    }
}
