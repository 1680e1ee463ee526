//! Plans with every schedule: they are lowered, simulated, written and read back.

use crate::common::Draft;
use trainwright_sim::costs::ClusterCosts;

use trainwright_lower::memory::plan_memory;
use trainwright_lower::{lower, lower_steps};
use trainwright_sim::{Detail, forecast, simulate, step_time, step_time_for_ranking};
use trainwright_spec::plan::{Plan, ScheduleChoice};
use trainwright_spec::program::{Axis, Program, Work};
use trainwright_spec::schedule::{ActionKind, Custom, SCHEDULES, Schedule, schedule};
use trainwright_spec::units::{Bytes, Picoseconds};

/// GPT-2 XL over 4 pipeline ranks and 2 data ranks.
fn plan_of(schedule: &dyn Schedule) -> Plan {
    let draft = |virtual_stages| {
        let like = if virtual_stages == 1 { "1f1b" } else { "interleaved" };
        let draft =
            Draft { schedule: like, virtual_stages, microbatches: 16, ..Draft::of("gpt2-xl", [1, 4, 2]) };
        let mut plan = draft.plan();
        plan.schedule = schedule.name().into();
        plan.job.gradient_clipping = schedule.flushes();
        plan
    };
    let plans = [draft(1), draft(2)];
    plans.into_iter().find(|plan| plan.check("draft").is_ok()).expect("one or two stages suit every schedule")
}

fn costs(plan: &Plan) -> ClusterCosts<'_> {
    ClusterCosts::new(&plan.cluster)
}

fn time(plan: &Plan) -> Picoseconds {
    step_time(&lower(plan), &costs(plan)).unwrap()
}

/// Bytes of all collectives of the first rank over an axis.
fn reduced(program: &Program, rank: usize, wanted: Axis) -> Bytes {
    let calls = program.ranks[rank].calls.iter();
    let ops = calls.flat_map(|call| &program.segments[call.segment].ops);
    ops.filter_map(|op| match op.work {
        Work::Collective { axis, bytes, .. } if axis == wanted => Some(bytes),
        _ => None,
    })
    .sum()
}

#[test]
fn plans_with_every_schedule_run_and_read_back_equal() {
    for known in SCHEDULES {
        let plan = plan_of(*known);
        let name = known.name();
        assert_eq!(Plan::from_toml(&plan.to_toml(), name).unwrap(), plan, "{name}");
        let (forecast, timeline) = forecast(&plan, &costs(&plan)).unwrap();
        assert_eq!(
            Picoseconds::from(forecast.step_time),
            step_time_for_ranking(&plan, &costs(&plan)).unwrap(),
            "{name}"
        );
        // Whether backward runs in one or in halves, the matrix products are the same.
        let flops = forecast.hardware_flops;
        let other = plan_of(schedule("1f1b").unwrap());
        let expected = forecast_flops(&other);
        assert!((flops.get() / expected - 1.0).abs() < 1e-9, "{name}: {} for {expected}", flops.get());
        // Each rank's data axis carries the gradients of its weights once, of both copies where there are two.
        let program = lower(&plan);
        let memory = plan_memory(&plan);
        for (index, rank) in program.ranks.iter().enumerate() {
            let gradients = memory[rank.pipeline_rank].gradients;
            let found = reduced(&program, index, Axis::Data);
            assert!((found.get() - gradients.get()).abs() < 1.0, "{name}: {found} for {gradients}");
            let mirrored = reduced(&program, index, Axis::Mirror);
            let copies = if known.copies() > 1 { gradients } else { Bytes::ZERO };
            assert!((mirrored.get() - copies.get()).abs() < 1.0, "{name}: {mirrored} for {copies}");
        }
        assert!(timeline.duration > Picoseconds::ZERO, "{name}");
    }
}

fn forecast_flops(plan: &Plan) -> f64 {
    forecast(plan, &costs(plan)).unwrap().0.hardware_flops.get()
}

#[test]
fn given_actions_run_as_the_schedule_they_were_taken_from() {
    for name in ["1f1b", "zb-h1", "zb-v", "chimera"] {
        let named = plan_of(schedule(name).unwrap());
        let mut with_list = named.clone();
        let custom = Custom::new(named.schedule().lists(named.pipeline_shape())).unwrap();
        with_list.schedule = ScheduleChoice::Actions(Box::new(custom));
        let read = Plan::from_toml(&with_list.to_toml(), name).unwrap();
        assert_eq!(read, with_list, "{name}");
        assert_eq!(time(&read), time(&named), "{name}");
        assert_eq!(plan_memory(&read), plan_memory(&named), "{name}");
        with_list.job.global_batch *= 2;
        let refused = with_list.check("plan").unwrap_err().to_string();
        assert!(refused.contains("the actions are for 4 ranks"), "{refused}");
    }
}

#[test]
fn putting_weight_gradients_off_shortens_the_step() {
    let of = |name| time(&plan_of(schedule(name).unwrap()));
    assert!(of("zb-h1") < of("1f1b"));
    assert!(of("zb-v") < of("zb-h1"));
    let memory = |name| {
        let memory = plan_memory(&plan_of(schedule(name).unwrap()));
        memory.iter().map(|rank| rank.activations.get()).fold(0.0, f64::max)
    };
    assert!(memory("v-min") < memory("v-half") && memory("v-half") < memory("zb-v"));
}

#[test]
fn pipedream_2bw_takes_a_ranks_work_for_a_step_and_two_versions_of_weights() {
    let plan = plan_of(schedule("pipedream-2bw").unwrap());
    let flushing = {
        let mut plan = plan.clone();
        plan.schedule = "1f1b".into();
        plan
    };
    let pipelined = step_time_for_ranking(&plan, &costs(&plan)).unwrap();
    assert!(pipelined < time(&flushing));
    // Once the pipeline is full each more step takes as long.
    let after = |steps| step_time(&lower_steps(&plan, steps), &costs(&plan)).unwrap();
    let (third, fourth) = (after(3) - after(2), after(4) - after(3));
    assert_eq!(pipelined, third);
    assert!((fourth.0 as f64 / third.0 as f64 - 1.0).abs() < 0.01, "{third} and {fourth}");
    for (held, other) in plan_memory(&plan).iter().zip(plan_memory(&flushing)) {
        assert_eq!(held.weights, 2.0 * other.weights);
        assert_eq!(held.activations, other.activations);
    }
    let mut clipped = plan;
    clipped.job.gradient_clipping = true;
    let refused = clipped.check("plan").unwrap_err().to_string();
    assert!(refused.contains("job.gradient_clipping"), "{refused}");
}

#[test]
fn weights_follow_inputs_in_the_simulated_step() {
    let plan = plan_of(schedule("zb-h1").unwrap());
    let timeline = simulate(&lower(&plan), &costs(&plan), Detail::Calls).unwrap();
    let actions = timeline.calls.iter().filter_map(|call| call.action);
    let of = |kind| actions.clone().filter(|action| action.kind == kind).count();
    assert_eq!(of(ActionKind::Input), of(ActionKind::Weight));
    assert_eq!(of(ActionKind::Backward), 0);
}
