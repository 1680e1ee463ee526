//! The ops of a step by the time that they take.

use super::table::Table;
use super::words::{heading, percent};
use trainwright_sim::costs::ClusterCosts;
use trainwright_sim::{Forecast, OpTime, step_program, time_by_op};
use trainwright_spec::plan::Plan;
use trainwright_spec::units::Seconds;

/// The ops of the first rank, the longest first: calls, time, part of the step, and what products reach of the GPU's peak.
pub fn ops(plan: &Plan, forecast: &Forecast) -> String {
    let ops = time_by_op(&step_program(plan), 0, &ClusterCosts::new(&plan.cluster));
    let peak = plan.node(0).gpu.peak.get(&plan.job.precision);
    let reached = |op: &OpTime| {
        let peak = peak.filter(|_| op.flops.get() > 0.0 && op.time > Seconds::ZERO)?;
        Some(format!("{:.1}", 100.0 * (op.flops / op.time / peak.value)))
    };
    let table = Table::of(&ops)
        .left("op", |op| &op.op)
        .left("work", |op| &op.work)
        .right("calls", |op| op.calls)
        .right("ms", |op| format!("{:.3}", 1e3 * op.time.get()))
        .right("% of step", |op| percent(op.time / forecast.step_time))
        .right("% of peak", |op| reached(op).unwrap_or_default());
    heading("Ops of the first rank, each alone") + &table.text()
}
