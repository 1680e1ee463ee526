//! The most requests a second that an instance keeps within the limits of latency, by simulation.
//!
//! More requests never make others faster, so the rate that is kept is searched between one that is and one that is not, to 2 %.
//! Rates have three digits, so that a printed one is the one that was simulated.

use super::apart::{decode_load, kv_move, prefill_load};
use super::options::{Role, ServingOption};
use super::{LatencyLimits, ServingQuestion, Traffic};
use trainwright_sim::serving::{Instance, Load, Served, ServingError};
use trainwright_spec::statistics::quantile;
use trainwright_spec::units::Seconds;

/// The rate that is kept and the next that is not differ by less than this factor.
const FINE: f64 = 1.02;
/// No rate is larger, in requests a second.
const MOST_RATE: f64 = 1e6;
/// Length of a simulation's arrivals over the time of a request: first of one alone, then of the last that were served.
const SPANS: f64 = 10.0;
/// The last requests take no more than this factor of the time of those before them where as many end as come.
const STEADY: f64 = 1.1;
/// Requests of a simulation, at least and at most.
const REQUESTS: [f64; 2] = [500.0, 50_000.0];

/// What an instance gives at a rate.
#[derive(Debug, Clone, Copy, PartialEq)]
pub struct Point {
    /// Requests a second.
    pub rate: f64,
    /// Requests that were simulated.
    pub requests: usize,
    /// Time to the first token that the limits' part of the requests does not exceed; zero where the first token is there already.
    pub ttft: Seconds,
    /// Time for each token after the first, likewise; zero where there is none.
    pub tpot: Seconds,
    /// Mean time for each token after the first.
    pub mean_tpot: Seconds,
    /// Tokens of answers a second.
    pub output_rate: f64,
}

/// Why a rate is not kept.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Broken {
    /// The limit of the time to the first token, of all requests or of the last quarter: then a queue grows.
    Ttft,
    /// The limit of the time for each token after the first.
    Tpot,
}

/// The rate that an option keeps.
#[derive(Debug, Clone, PartialEq)]
pub struct Capacity {
    /// At the highest rate that keeps the limits.
    pub kept: Point,
    /// At the least rate that was seen not to; `None` if all that were tried do.
    pub over: Option<(Point, Broken)>,
    /// At every rate that was simulated.
    pub points: Vec<Point>,
}

/// Simulations of an option at rates.
pub(super) struct Trial<'a> {
    option: &'a ServingOption,
    traffic: &'a Traffic,
    limits: LatencyLimits,
    instance: Option<Instance<'a>>,
    /// A request alone.
    alone: Seconds,
    points: Vec<Point>,
}

impl<'a> Trial<'a> {
    /// The option with a request alone.
    ///
    /// # Errors
    /// If weights or a sequence do not fit, or the GPU lacks something.
    pub fn new(question: &'a ServingQuestion, option: &'a ServingOption) -> Result<Self, ServingError> {
        let cluster = &question.kinds[option.kind].cluster;
        let mut trial = Self {
            option,
            traffic: &question.traffic,
            limits: question.limits,
            instance: None,
            alone: Seconds::ZERO,
            points: Vec::new(),
        };
        let load = trial.of_role(Load::Open(vec![question.traffic.mean()]));
        let instance = Instance::new(&question.model, &option.plan, cluster, &load, None)?;
        let served = trial.serve(instance, &load)?;
        trial.alone = served.mean_latency();
        Ok(trial)
    }

    /// How many requests are simulated at a rate at first.
    fn requests(&self, rate: f64) -> usize {
        (rate * SPANS * self.alone.get()).ceil().clamp(REQUESTS[0], REQUESTS[1]) as usize
    }

    /// What the instance gives at a rate, and why that is not kept.
    ///
    /// # Errors
    /// Those of `Instance::serve`.
    pub fn at(&mut self, rate: f64) -> Result<(Point, Option<Broken>), ServingError> {
        let mut requests = self.requests(rate);
        loop {
            let load = self.of_role(self.traffic.at_rate(rate, requests));
            let instance =
                self.instance.take().expect("it is given back by every simulation").for_load(&load)?;
            let served = self.serve(instance, &load)?;
            let (point, broken) = self.judge(rate, &served);
            if broken.is_some() || requests >= REQUESTS[1] as usize || is_steady(rate, &served) {
                self.points.push(point);
                return Ok((point, broken));
            }
            requests = (2 * requests).min(REQUESTS[1] as usize);
        }
    }

    /// The highest rate that keeps the limits, no less than `least` if that is given.
    ///
    /// # Errors
    /// The least rate that was seen not to keep them, if none does; those of `Instance::serve`.
    pub fn capacity(mut self, least: Option<f64>) -> Result<Result<Capacity, (Point, Broken)>, ServingError> {
        let mut rate = three_digits_down(least.unwrap_or(0.05 / self.alone.get().max(1e-9)));
        let mut kept = match self.at(rate)? {
            (point, Some(broken)) => return Ok(Err((point, broken))),
            (point, None) => point,
        };
        let mut over = None;
        while over.is_none() && rate < MOST_RATE {
            rate = three_digits(4.0 * rate);
            match self.at(rate)? {
                (point, Some(broken)) => over = Some((point, broken)),
                (point, None) => kept = point,
            }
        }
        while let Some((high, _)) = over
            && high.rate / kept.rate > FINE
        {
            let middle = three_digits((high.rate * kept.rate).sqrt());
            if middle <= kept.rate || middle >= high.rate {
                break;
            }
            match self.at(middle)? {
                (point, Some(broken)) => over = Some((point, broken)),
                (point, None) => kept = point,
            }
        }
        Ok(Ok(Capacity { kept, over, points: self.points }))
    }

    /// The part of a load that the option's role takes.
    fn of_role(&self, load: Load) -> Load {
        match self.option.role {
            Role::Whole => load,
            Role::Prefill => prefill_load(load),
            Role::Decode => decode_load(load),
        }
    }

    fn serve(&mut self, mut instance: Instance<'a>, load: &Load) -> Result<Served, ServingError> {
        let served = instance.serve(load)?;
        self.instance = Some(instance);
        Ok(served)
    }

    fn judge(&self, rate: f64, served: &Served) -> (Point, Option<Broken>) {
        let LatencyLimits { ttft: most_ttft, tpot: most_tpot, part } = self.limits;
        let instance = self.instance.as_ref().expect("it is given back by every simulation");
        let late = &served.requests[served.requests.len() * 3 / 4..];
        let at = |times: Vec<f64>| Seconds::new(quantile(&times, part));
        let (ttft, late_ttft, tpot, mean_tpot) = match self.option.role {
            Role::Whole | Role::Prefill => {
                let late = at(late.iter().map(|request| request.ttft().get()).collect());
                (served.ttft_at(part), late, served.tpot_at(part), served.mean_tpot())
            }
            Role::Decode => {
                // The first token is there when the keys and values begin to move.
                let tpots = |requests: &[_]| -> Vec<f64> {
                    let tpot = |request: &trainwright_sim::serving::ServedRequest| {
                        (request.latency() + kv_move(instance, request.input)) / request.output as f64
                    };
                    requests.iter().map(tpot).map(Seconds::get).collect()
                };
                let all = tpots(&served.requests);
                let mean = all.iter().sum::<f64>() / all.len().max(1) as f64;
                (Seconds::ZERO, Seconds::ZERO, at(all).max(at(tpots(late))), Seconds::new(mean))
            }
        };
        let point = Point {
            rate,
            requests: served.requests.len(),
            ttft,
            tpot,
            mean_tpot,
            output_rate: served.output_rate(),
        };
        let broken = match () {
            () if ttft.max(late_ttft) > most_ttft => Some(Broken::Ttft),
            () if tpot > most_tpot => Some(Broken::Tpot),
            () => None,
        };
        (point, broken)
    }
}

/// Whether the requests of a simulation show what later ones would: as many are served at a time as will ever be, and no queue grows.
fn is_steady(rate: f64, served: &Served) -> bool {
    let all = &served.requests;
    let mean = |part: std::ops::Range<usize>| {
        let times = all[part.clone()].iter().map(|request| request.latency());
        times.sum::<Seconds>() / part.len().max(1) as f64
    };
    let (half, late) = (all.len() / 2, all.len() * 3 / 4);
    let (before, last) = (mean(half..late), mean(late..all.len()));
    last <= before * STEADY && last * SPANS <= Seconds::new(all.len() as f64 / rate)
}

/// A rate with three digits, not above `rate`: what does not keep it does not keep `rate`.
fn three_digits_down(rate: f64) -> f64 {
    let digits = three_digits(rate);
    if digits <= rate {
        digits
    } else {
        three_digits(digits - libm::pow(10.0, libm::log10(rate).floor() - 2.0))
    }
}

/// A rate with three digits.
fn three_digits(rate: f64) -> f64 {
    format!("{rate:.2e}").parse().expect("a number was written")
}
