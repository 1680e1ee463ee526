//! The ops of a step by the time that they take.

use super::table::{Column, table};
use super::words::heading;
use Column::{Left, Right};
use trainwright_sim::costs::ClusterCosts;
use trainwright_sim::{Forecast, OpTime, step_program, time_by_op};
use trainwright_spec::plan::Plan;
use trainwright_spec::units::Seconds;

/// The ops of the first rank, the longest first: calls, time, part of the step, and what products reach of the GPU's peak.
pub fn ops(plan: &Plan, forecast: &Forecast) -> String {
    let ops = time_by_op(&step_program(plan), 0, &ClusterCosts::new(&plan.cluster));
    let part = |time: Seconds| format!("{:.1}", 100.0 * (time / forecast.step_time));
    let peak = plan.node(0).gpu.peak.get(&plan.job.precision);
    let row = |op: &OpTime| {
        let reached = peak.filter(|_| op.flops.get() > 0.0 && op.time > Seconds::ZERO);
        let reached = reached.map(|peak| format!("{:.1}", 100.0 * (op.flops / op.time / peak.value)));
        vec![
            op.op.clone(),
            op.work.to_string(),
            op.calls.to_string(),
            format!("{:.3}", 1e3 * op.time.get()),
            part(op.time),
            reached.unwrap_or_default(),
        ]
    };
    let columns =
        [Left("op"), Left("work"), Right("calls"), Right("ms"), Right("% of step"), Right("% of peak")];
    heading("Ops of the first rank, each alone") + &table(&columns, ops.iter().map(row).collect())
}
