//! A forecast with failures: how often to write a checkpoint, and which part of the time steps take.

use serde::Serialize;
use trainwright_spec::optimizer::Rule;
use trainwright_spec::plan::Plan;
use trainwright_spec::reliability::Reliability;
use trainwright_spec::units::{Bytes, Seconds};

/// Time lost to failures and checkpoints.
#[derive(Debug, Clone, Copy, PartialEq, Serialize)]
pub struct Goodput {
    /// Mean time between failures of the whole job, M.
    #[serde(rename = "between_failures_s")]
    pub between_failures: Seconds,
    /// Size of a checkpoint: weights, master weights and moments.
    #[serde(rename = "checkpoint_bytes")]
    pub checkpoint: Bytes,
    /// How long it takes to write, with nobody training meanwhile, δ.
    #[serde(rename = "checkpoint_s")]
    pub checkpoint_time: Seconds,
    /// From a failure to the first step after it, R.
    #[serde(rename = "restart_s")]
    pub restart: Seconds,
    /// Young's interval between checkpoints.
    #[serde(rename = "young_interval_s")]
    pub young_interval: Seconds,
    /// Daly's interval between checkpoints, which is taken.
    #[serde(rename = "interval_s")]
    pub interval: Seconds,
    /// The part of the time in which steps are done that are not done again, 0 to 1: passes that the optimizer needs beside
    /// those of each step are lost time too, as long as those.
    pub goodput: f64,
}

/// Failures and checkpoints of a plan.
pub fn goodput(plan: &Plan, reliability: &Reliability) -> Goodput {
    let between_failures = reliability.between_failures(&plan.cluster);
    let matrices = plan.job.trained_matrices(&plan.model);
    let others = plan.job.trained_parameters(&plan.model) - matrices;
    let of = |rule, parameters: u64| {
        let state = plan.state_bytes_by(rule);
        (state.weight + state.optimizer()) * parameters as f64
    };
    let checkpoint = of(Rule::Elements, others) + of(Rule::Matrices, matrices);
    let checkpoint_time = checkpoint / plan.cluster.nodes as f64 / reliability.checkpoint_bandwidth.value;
    let restart = reliability.restart.value;
    let interval = daly_interval(checkpoint_time, between_failures);
    Goodput {
        between_failures,
        checkpoint,
        checkpoint_time,
        restart,
        young_interval: young_interval(checkpoint_time, between_failures),
        interval,
        goodput: useful_part(interval, checkpoint_time, restart, between_failures)
            / (1.0 + plan.job.optimizer().extra_passes()),
    }
}

/// Steps between checkpoints: τ = √(2 δ M).
///
/// δ time of a checkpoint, M mean time between failures. Assumes δ ≪ M.
/// Source: Young 1974, Communications of the ACM 17(9), 530–531.
pub fn young_interval(checkpoint: Seconds, between_failures: Seconds) -> Seconds {
    Seconds::new((2.0 * checkpoint.get() * between_failures.get()).sqrt())
}

/// Steps between checkpoints: τ = √(2 δ M) [1 + ⅓ √(δ / 2M) + ⅑ (δ / 2M)] − δ for δ < 2 M, else M.
///
/// δ time of a checkpoint, M mean time between failures. Assumes exponentially distributed failures.
/// Source: Daly 2006, Future Generation Computer Systems 22(3), 303–312, equation 37.
pub fn daly_interval(checkpoint: Seconds, between_failures: Seconds) -> Seconds {
    if checkpoint >= 2.0 * between_failures {
        return between_failures;
    }
    let ratio = checkpoint / (2.0 * between_failures);
    young_interval(checkpoint, between_failures) * (1.0 + ratio.sqrt() / 3.0 + ratio / 9.0) - checkpoint
}

/// The part of the time that is of use: τ / (M e^{R/M} (e^{(τ+δ)/M} − 1)).
///
/// τ steps between checkpoints, δ time of a checkpoint, R restart, M mean time between failures. Assumes
/// exponentially distributed failures, which may also hit checkpoints and restarts.
/// Source: Daly 2006, Future Generation Computer Systems 22(3), 303–312, equation 20.
pub fn useful_part(
    interval: Seconds,
    checkpoint: Seconds,
    restart: Seconds,
    between_failures: Seconds,
) -> f64 {
    let m = between_failures;
    let segment = m * libm::exp(restart / m) * libm::expm1((interval + checkpoint) / m);
    interval / segment
}

#[cfg(test)]
mod tests {
    use super::*;

    const HOUR: f64 = 3600.0;

    #[test]
    fn intervals_by_hand() {
        // δ = 1 min, M = 2 h: √(2 · 60 · 7200) = 929.5 s; δ/2M = 1/240, so Daly adds 2.15 % and 0.046 %, less 60 s.
        let (checkpoint, failures) = (Seconds::new(60.0), Seconds::new(2.0 * HOUR));
        assert!((young_interval(checkpoint, failures).get() - 929.516).abs() < 1e-3);
        assert!((daly_interval(checkpoint, failures).get() - 889.946).abs() < 1e-3);
        assert_eq!(daly_interval(5.0 * failures, failures), failures);
    }

    /// The slow twin: segments of steps and a checkpoint are tried until they get through, failures drawn one by one.
    #[test]
    fn the_useful_part_is_that_of_a_simulation() {
        let (tau, delta, restart, m) = (1200.0, 90.0, 300.0, 2.0 * HOUR);
        let mut seed = 0x2545_f491_4f6c_dd1du64;
        let mut exponential = || {
            seed ^= seed << 13;
            seed ^= seed >> 7;
            seed ^= seed << 17;
            -m * libm::log(1.0 - (seed >> 11) as f64 / (1u64 << 53) as f64)
        };
        let (segments, mut time) = (200_000, 0.0);
        let mut next = exponential();
        for _ in 0..segments {
            let mut need = tau + delta;
            loop {
                if next >= need {
                    (time, next) = (time + need, next - need);
                    break;
                }
                (time, next) = (time + next, exponential());
                // A restart goes before the segment, and may itself be hit.
                need = restart + tau + delta;
            }
        }
        let simulated = segments as f64 * tau / time;
        let part =
            useful_part(Seconds::new(tau), Seconds::new(delta), Seconds::new(restart), Seconds::new(m));
        assert!((simulated / part - 1.0).abs() < 5e-3, "{simulated} {part}");
    }

    #[test]
    fn no_other_interval_is_much_better() {
        for checkpoint in [1.0, 30.0, 600.0] {
            let (checkpoint, failures) = (Seconds::new(checkpoint), Seconds::new(3.0 * HOUR));
            let part = |interval| useful_part(interval, checkpoint, Seconds::new(600.0), failures);
            let chosen = daly_interval(checkpoint, failures);
            let best = (1..400).map(|step| part(chosen * (step as f64 / 100.0))).fold(0.0, f64::max);
            assert!(part(chosen) > 0.999 * best, "{checkpoint:?}");
            assert!(part(chosen) > part(2.0 * chosen) && part(chosen) > part(chosen / 2.0));
        }
    }
}
