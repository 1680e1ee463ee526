//! The model and the tokens on which a budget is spent best.

use super::point;
use crate::answer::Answer;
use crate::law::{Optimum, ScalingLaw};
use crate::scenario::Scenario;
use crate::sweep::{Watch, answers};
use trainwright_spec::units::{Flops, Seconds};

/// The budget.
#[derive(Debug, Clone, Copy, PartialEq)]
pub enum Budget {
    /// Model FLOPs.
    Flops(Flops),
    /// The scenario's cluster for so long, as fast as the planner's best plan makes it.
    Time(Seconds),
}

/// A model in the shape of the scenario's, with the tokens that go with it.
#[derive(Debug, Clone, PartialEq)]
pub struct ComputeOptimal {
    /// FLOPs, as the law counts them: 6 for each parameter and token.
    pub budget: Flops,
    /// The law's optimum.
    pub optimum: Optimum,
    /// The model on the scenario's cluster, its run being the optimum's tokens.
    pub answer: Answer,
}

/// Part of the peak that is assumed before the first plan is made.
const FIRST_GUESS: f64 = 0.4;

/// With a budget of time, a model's size follows from its speed, which depends on the size: these rounds are enough to settle.
const ROUNDS: usize = 4;

/// The optimum of a budget by a law.
///
/// A time T buys the C whose optimum the cluster trains in T, by the best plan for a model of that size. Starts with 0.4 of
/// the peak, C = 0.4 n X T on n GPUs with peak X, and repeats with C T / t where the run took t. C = 6 N D leaves out
/// attention's scores and the embedding's products; t does not.
///
/// # Errors
/// The scenario's model cannot have the size that the law asks for.
pub fn compute_optimal(
    base: &Scenario,
    budget: Budget,
    law: &ScalingLaw,
    watch: Watch,
) -> Result<ComputeOptimal, String> {
    let at = |budget: Flops| -> Result<ComputeOptimal, String> {
        let optimum = law.optimum(budget);
        let size = ("model-size", format!("{:.0}", optimum.parameters));
        let tokens = ("tokens", format!("{:.0}", optimum.tokens));
        let (point, scenario) = point(base, &[size, tokens]);
        let answer = answers(vec![(point, Ok(scenario?))], watch).remove(0);
        Ok(ComputeOptimal { budget, optimum, answer })
    };
    let time = match budget {
        Budget::Flops(flops) => return at(flops),
        Budget::Time(time) => time,
    };
    let peak = base.cluster().node.gpu.peak.get(&base.job().precision);
    let peak = peak.ok_or_else(|| format!("the GPU does not compute in {}", base.job().precision))?.value;
    let guess = FIRST_GUESS * base.cluster().gpus() as f64 * peak.get() * time.get();
    let mut found = at(Flops::new(guess))?;
    for _ in 1..ROUNDS {
        match found.answer.wanted_run() {
            Some(run) => found = at(found.budget * (time / run.time))?,
            None => break,
        }
    }
    Ok(found)
}
