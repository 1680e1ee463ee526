//! What a training run says while it goes on.

use super::words;
use trainwright_executor::{StepReport, Tokens};
use trainwright_spec::model::flops::AttentionCount;
use trainwright_spec::plan::Plan;

/// What is trained, with what.
pub fn title(plan: &Plan, tokens: &Tokens) -> String {
    format!(
        "{} ({}), {}, {} sequences of {} tokens a step, {} tokens of data\n",
        plan.model.name,
        words::parameters(&plan.model),
        words::mesh(&plan.mesh),
        plan.job.global_batch,
        plan.job.sequence,
        words::grouped(tokens.count() as f64),
    )
}

/// `step    12  loss 2.4417  norm  1.31   5,121 tokens/s`
pub fn step(plan: &Plan, report: &StepReport) -> String {
    let norm = report.gradient_norm.map(|norm| format!("  norm {norm:7.3}")).unwrap_or_default();
    let rate = words::grouped((plan.job.tokens() as f64 / report.seconds).round());
    format!("step {:5}  loss {:8.4}{norm}  {rate:>9} tokens/s\n", report.step, report.loss)
}

/// The rate of all steps but the first, which warms up.
pub fn end(plan: &Plan, steps: &[StepReport]) -> String {
    let warm = if steps.len() > 1 { &steps[1..] } else { steps };
    let seconds: f64 = warm.iter().map(|step| step.seconds).sum();
    let rate = (plan.job.tokens() * warm.len()) as f64 / seconds;
    let flops = plan.model.training_flops(plan.job.sequence, AttentionCount::CausalHalved).get();
    let flops = flops / plan.job.sequence as f64 * rate;
    let rate = words::grouped(rate.round());
    format!("{rate} tokens/s, {:.1} GFLOP/s of the model's own work\n", flops / 1e9)
}
