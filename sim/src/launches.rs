//! The time that a rank's process needs to launch a step's work.

use trainwright_lower::lower;
use trainwright_spec::plan::Plan;
use trainwright_spec::program::{Program, Work};
use trainwright_spec::schedule::shorter_step;
use trainwright_spec::units::Seconds;

/// The time that the process of the first rank needs for a step: launches, messages, the end of the step.
///
/// Passes repeat, so a step of few microbatches is lowered and scaled.
pub(crate) fn launches(plan: &Plan) -> Seconds {
    if plan.stack.host.is_none() {
        return Seconds::ZERO;
    }
    let few = few_microbatches(plan);
    let mut shorter = plan.clone();
    shorter.job.global_batch = few * plan.micro_batch * plan.mesh.data;
    launches_of(plan, &lower(&shorter), few)
}

/// The microbatches of the step that shows what the process of the first rank does.
pub(crate) fn few_microbatches(plan: &Plan) -> usize {
    let microbatches = plan.microbatches();
    let few = shorter_step(plan.schedule(), plan.pipeline_shape()).map(|shape| shape.microbatches);
    few.filter(|few| *few < microbatches && plan.schedule().flushes()).unwrap_or(microbatches)
}

/// The time that the process of the first rank needs for a step of a plan, from the program of one with `few` microbatches.
pub(crate) fn launches_of(plan: &Plan, program: &Program, few: usize) -> Seconds {
    let rank = &program.ranks[0];
    let ops = rank.calls.iter().flat_map(|call| &program.segments[call.segment].ops);
    let times = ops.map(|op| if let Work::Process(time) = op.work { time } else { Seconds::ZERO });
    times.sum::<Seconds>() * (plan.microbatches() as f64 / few as f64)
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::costs::ClusterCosts;
    use crate::quick_forecast;
    use trainwright_spec::stack::Stack;

    #[test]
    fn launches_that_wait_for_their_ops_add_to_them() {
        let text = r#"
            model = "gpt2"
            cluster = "dgx-a100:1"
            stack = "megatron-deepspeed"
            job = { sequence = 1024, global_batch = 16, precision = "bf16", optimizer = "adamw", gradient_clipping = true }
            mesh = { tensor = 1, pipeline = 1, data = 8 }
            micro_batch = 1
            schedule = "1f1b"
            virtual_stages = 1
            sequence_parallel = false
            data_sharding = "none"
            stages = ["12 none"]
            "#;
        let plan = Plan::from_toml(text, "plan.toml").unwrap();
        // The step, and what the process does in it, where a launch takes so long.
        let step = |launch: f64, waits: bool| {
            let mut plan = plan.clone();
            if waits {
                plan.stack.wait_for_ops();
            }
            let host = plan.stack.host.as_mut().unwrap();
            host.launch.value = Seconds::new(launch);
            let forecast = quick_forecast(&plan, &ClusterCosts::new(&plan.cluster)).unwrap();
            (Seconds::from(forecast.step_time).get(), launches(&plan).get())
        };
        let (alone, rest) = step(0.0, true);
        for launch in [1e-6, 50e-6, 1e-3] {
            let (waiting, process) = step(launch, true);
            let sum = alone + process - rest;
            assert!((waiting / sum - 1.0).abs() < 1e-6, "{launch}: {waiting}, not {sum}");
            assert!(step(launch, false).0 < waiting, "{launch}");
        }
        // What overlaps in other stacks no longer does.
        let mut stack = Stack::from_name("megatron-core-2025").unwrap();
        stack.wait_for_ops();
        assert!(!stack.overlap_gradient_reduction && !stack.overlap_weight_gather);
    }

    #[test]
    fn forecasts_know_what_a_lowered_step_tells() {
        let check = |schedule: &str, microbatches: usize| {
            let text = format!(
                r#"
                model = "gpt2"
                cluster = "dgx-a100:1"
                stack = "megatron-core-2024"
                job = {{ sequence = 1024, global_batch = {}, precision = "bf16", optimizer = "adamw", gradient_clipping = true }}
                mesh = {{ tensor = 2, pipeline = 2, data = 2 }}
                micro_batch = 1
                schedule = "{schedule}"
                virtual_stages = 1
                sequence_parallel = true
                data_sharding = "none"
                stages = ["6 none", "6 none"]
                "#,
                2 * microbatches
            );
            let plan = Plan::from_toml(&text, "plan.toml").unwrap();
            assert!(plan.stack.host.is_some());
            let forecast = quick_forecast(&plan, &ClusterCosts::new(&plan.cluster)).unwrap();
            let expected = launches(&plan);
            assert!(expected > Seconds::ZERO);
            assert_eq!(forecast.launches, Some(expected), "{schedule}, {microbatches} microbatches");
        };
        // Up to 6 microbatches a rank they are those of the step itself, beyond that of a shorter one that is lowered with it.
        check("1f1b", 4);
        check("1f1b", 12);
        check("1f1b", 20);
        check("1f1b", 31);
        check("1f1b", 64);
    }
}
