//! A training run: its steps, time, money and energy.

use crate::price::list_price;
use crate::scenario::Rates;
use serde::Deserialize;
use trainwright_spec::catalog;
use trainwright_spec::cluster::Cluster;
use trainwright_spec::job::Job;
use trainwright_spec::sourced::Sourced;
use trainwright_spec::units::{Dollars, Flops, FlopsPerSecond, Joules, Seconds, Watts};

/// Steps, time, cost and energy of training a number of tokens.
#[derive(Debug, Clone, Copy, PartialEq)]
pub struct Run {
    /// Steps.
    pub steps: f64,
    /// From the first to the last, without interruptions.
    pub time: Seconds,
    /// GPUs times hours.
    pub gpu_hours: f64,
    /// `None` if no price of the GPUs is known.
    pub cost: Option<Dollars>,
    /// `None` if the GPUs' power is not known.
    pub energy: Option<Joules>,
}

/// How the steps of a run are counted.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Steps {
    /// The last step is trained to its end: a complete run.
    Whole,
    /// As many as the tokens are of a step's: a part of a run, to compare by.
    Fraction,
}

/// How fast a plan trains on what.
#[derive(Debug, Clone, Copy)]
pub struct Pace<'a> {
    /// The cluster.
    pub cluster: &'a Cluster,
    /// Sequences and tokens of a step.
    pub job: &'a Job,
    /// Time of a step.
    pub step: Seconds,
}

impl Run {
    /// The run of `tokens` tokens.
    ///
    /// n = D / d steps, rounded up for a complete run, T = n t, cost = G T c, energy as `energy` says.
    ///
    /// D tokens of the run, d of a step, t a step's time, G GPUs, c the price of one for an hour. Assumes that nothing
    /// fails and that every GPU is paid from the first to the last step.
    pub fn of(tokens: f64, steps: Steps, pace: &Pace, rates: &Rates) -> Run {
        let parts = tokens / pace.job.tokens() as f64;
        let steps = match steps {
            Steps::Whole => parts.ceil(),
            Steps::Fraction => parts,
        };
        let time = steps * pace.step;
        let gpus = pace.cluster.gpus() as f64;
        let price = rates.price.clone().or_else(|| list_price(pace.cluster));
        let power = pace.cluster.node.gpu.power.as_ref();
        Run {
            steps,
            time,
            gpu_hours: gpus * time.as_hours(),
            cost: price.map(|price| gpus * (price.per_gpu * time)),
            energy: power.map(|power| energy(gpus * time, power.value, rates.pue)),
        }
    }
}

/// Power of the facility while GPUs train.
///
/// E = T P PUE
///
/// T the time of all GPUs together, P what one draws, PUE the facility's power over that of its GPUs. Assumes that a GPU
/// draws its limit all the time, and counts processors, network and cooling as PUE alone.
/// Source: Touvron et al. 2023, arXiv 2302.13971, section 6, after Wu et al. 2022, arXiv 2111.00364.
pub fn energy(gpu_time: Seconds, power: Watts, pue: f64) -> Joules {
    power * gpu_time * pue
}

/// Time of a run by the rule of thumb.
///
/// T = k D P / (n X)
///
/// D tokens, P parameters, n GPUs, X what one reaches in FLOP/s. k is 6 FLOPs for a parameter and token, forward and
/// backward, and 8 if all blocks are computed twice. Leaves out attention's scores.
/// Source: Narayanan et al. 2021, arXiv 2104.04473, section 5.5, equation 4.
pub fn rule_of_thumb(flops: Flops, gpus: usize, reached: FlopsPerSecond) -> Seconds {
    flops / (gpus as f64 * reached)
}

#[derive(Deserialize)]
struct Facility {
    pue: Sourced<f64>,
}

/// The default power usage effectiveness, with its source.
pub fn default_pue() -> Sourced<f64> {
    let text = catalog::text("facilities", "hyperscale").expect("the catalog has this facility");
    toml::from_str::<Facility>(text).expect("the catalog's facilities can be read").pue
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::price::Price;
    use trainwright_spec::precision::Precision;
    use trainwright_spec::units::DollarsPerHour;

    #[test]
    fn a_run_costs_its_gpu_hours() {
        // 1e9 tokens in steps of 1024 x 1000: 976.6, so 977 steps of 36 s are 9.77 hours of 16 GPUs at 2 dollars.
        let cluster = Cluster::from_name("dgx-h100:2").unwrap();
        let job = Job::new(1000, 1024, Precision::Bf16);
        let price = Price { per_gpu: DollarsPerHour::new(2.0), source: "test".into() };
        let rates = Rates { price: Some(price), pue: 1.5, tokens: None };
        let run = Run::of(
            1e9,
            Steps::Whole,
            &Pace { cluster: &cluster, job: &job, step: Seconds::new(36.0) },
            &rates,
        );
        assert_eq!(run.steps, 977.0);
        assert!((run.gpu_hours - 156.32).abs() < 1e-9);
        assert!((run.cost.unwrap().get() - 312.64).abs() < 1e-9);
        // 156.32 h x 700 W x 1.5 = 164.136 kWh.
        assert!((run.energy.unwrap().as_mwh() - 0.164136).abs() < 1e-9);
    }
}
