//! What a program says about itself without its plan: which runs of modules keep and release what, and where the tensor of a
//! pass comes from and goes to.

use std::collections::{BTreeMap, BTreeSet};
use trainwright_lower::{lower, lower_every_rank, lower_lengths};
use trainwright_spec::adapters::{Adapters, BaseFormat};
use trainwright_spec::plan::Plan;
use trainwright_spec::precision::Precision;
use trainwright_spec::program::{
    Channel, Layer, Module, ModuleStep, Op, Pass, Program, StageEnd, Stream, Task, Work,
};
use trainwright_spec::schedule::{Action, ActionKind, PipelineShape, schedule};
use trainwright_spec::sourced::Sourced;
use trainwright_spec::stack::Stack;
use trainwright_spec::units::Seconds;

/// GPT-2 of 12 blocks on two H100, in a pipeline of two or on two tensor ranks.
fn program(pipeline: usize, schedule: &str, virtual_stages: usize, recompute: &str) -> Program {
    lower_every_rank(&plan(pipeline, schedule, virtual_stages, recompute))
}

fn plan(pipeline: usize, schedule: &str, virtual_stages: usize, recompute: &str) -> Plan {
    let count = pipeline * virtual_stages;
    // With a stage for each block and one at each end, those have the embedding and the head alone.
    let blocks = |stage: usize| match count {
        14 => usize::from(stage != 0 && stage != 13),
        _ => 12 / count,
    };
    let stages: Vec<String> = (0..count).map(|stage| format!("\"{} {recompute}\"", blocks(stage))).collect();
    let stages = stages.join(", ");
    let text = format!(
        r#"
        model = "gpt2"
        cluster = "h100-pcie-pair"
        stack = "trainwright"
        job = {{ sequence = 64, global_batch = 8, precision = "bf16", optimizer = "adamw", gradient_clipping = true }}
        mesh = {{ tensor = {}, pipeline = {pipeline}, data = 1 }}
        micro_batch = 1
        schedule = "{schedule}"
        virtual_stages = {virtual_stages}
        sequence_parallel = {}
        data_sharding = "none"
        stages = [{stages}]
        "#,
        2 / pipeline,
        pipeline == 1,
    );
    Plan::from_toml(&text, "plan.toml").unwrap()
}

fn programs() -> impl Iterator<Item = (String, Program)> {
    let schedules = [
        (1, "1f1b", 1),
        (2, "gpipe", 1),
        (2, "interleaved", 2),
        (2, "interleaved", 7),
        (2, "zb-h1", 1),
        (2, "zb-v", 2),
        (2, "dualpipev", 2),
    ];
    let recompute = [
        "none",
        "selective",
        "full",
        "selective(norm)",
        "selective(mlp)",
        "selective(norm+activation)",
        "selective(core+norm)",
    ];
    schedules.into_iter().flat_map(move |(pipeline, schedule, virtual_stages)| {
        recompute.map(|recompute| {
            let name =
                format!("{schedule} on {pipeline} pipeline ranks x {virtual_stages}, recompute {recompute}");
            (name, program(pipeline, schedule, virtual_stages, recompute))
        })
    })
}

/// The ops of all calls of a stage for its first microbatch on a rank, in order.
fn ops_of_first_microbatch(program: &Program, rank: usize, stage: usize) -> Vec<&Op> {
    let calls = program.ranks[rank].calls.iter();
    let first = calls.filter(|call| call.action.is_some_and(|it| it.stage == stage && it.microbatch == 0));
    first.flat_map(|call| &program.segments[call.segment].ops).collect()
}

/// Runs a stage's ops on a model of a rank's memory in which every tensor is a name.
///
/// A module's backward needs its input and what its run made. Forward or a second run makes them; the module before
/// makes the input again.
fn interpret(ops: &[&Op]) -> Result<(), String> {
    let mut inputs: BTreeMap<(Layer, Module), bool> = BTreeMap::new();
    let mut made: BTreeMap<(Layer, Module), bool> = BTreeMap::new();
    let (mut order, mut recomputed, mut in_backward) = (Vec::new(), BTreeSet::new(), BTreeSet::new());
    let mut open: Option<(Layer, Module, Pass)> = None;
    for op in ops {
        let Task::Module(ModuleStep { module, first, last, keeps, keeps_input, refills, releases, .. }) =
            op.task
        else {
            continue;
        };
        let layer = op.model_layer().expect("a module is part of a layer");
        let place = (layer, module);
        let run = (layer, module, op.pass);
        if first != (open != Some(run)) {
            return Err(format!("{run:?} begins inside {open:?} or without a first step"));
        }
        open = (!last).then_some(run);
        match op.pass {
            Pass::Forward if first => {
                inputs.insert(place, keeps_input);
                made.insert(place, keeps);
                order.push((place, keeps_input));
            }
            Pass::Recompute if last => {
                recomputed.insert(place);
                if !keeps || made.insert(place, true) == Some(true) {
                    return Err(format!("{place:?} is recomputed for nothing"));
                }
                if let Some(reader) = refills
                    && inputs.insert((layer, reader), true) == Some(true)
                {
                    return Err(format!("the input of {reader:?} of {layer} was there already"));
                }
            }
            Pass::Backward if first => {
                if inputs.get(&place) != Some(&true) || made.get(&place) != Some(&true) {
                    return Err(format!("backward of {place:?} finds no input or nothing made"));
                }
                let behind = order.windows(2).find(|pair| pair[1].0 == place && pair[0].0.0 == layer);
                if let Some([(before, _), (_, true)]) = behind
                    && in_backward.insert(place)
                    && recomputed.contains(before)
                {
                    return Err(format!(
                        "forward keeps the input of {place:?}, which {before:?} makes again"
                    ));
                }
            }
            _ => {}
        }
        if op.pass != Pass::Recompute && refills.is_some() {
            return Err(format!("{run:?} refills an input and does not recompute"));
        }
        if releases && (op.pass != Pass::Backward || !last || inputs.remove(&place).is_none()) {
            return Err(format!("{run:?} releases what is not there or is still needed"));
        }
    }
    match inputs.keys().next() {
        Some(place) => Err(format!("{place:?} is never released")),
        None => Ok(()),
    }
}

#[test]
fn backward_finds_what_it_reads_and_everything_is_released_once() {
    for (name, program) in programs() {
        for (stage, placed) in program.stages.iter().enumerate() {
            let rank =
                program.ranks.iter().position(|rank| rank.pipeline_rank == placed.pipeline_rank).unwrap();
            let ops = ops_of_first_microbatch(&program, rank, stage);
            interpret(&ops).unwrap_or_else(|error| panic!("{name}, stage {stage}: {error}"));
        }
    }
}

#[test]
fn a_tensor_between_ranks_has_a_message_and_one_between_stages_of_a_rank_has_none() {
    for (name, program) in programs() {
        let mut left = 0;
        for call in program.ranks.iter().flat_map(|rank| &rank.calls) {
            let Some(action) = call.action else { continue };
            let ops = || program.segments[call.segment].ops.iter().map(|op| op.work);
            let sent = ops()
                .find_map(|work| if let Work::Send { channel, .. } = work { Some(channel) } else { None });
            let received = ops()
                .find_map(|work| if let Work::Receive { channel, .. } = work { Some(channel) } else { None });
            let message = |end: Option<StageEnd>| match end {
                Some(StageEnd::OtherRank(channel)) => Some(channel),
                _ => None,
            };
            let (source, destination) = (program.source(action), program.destination(action));
            assert_eq!(message(source), received, "{name}: {action}");
            assert_eq!(message(destination), sent, "{name}: {action}");
            left += usize::from(matches!(destination, Some(StageEnd::SameRank(_))));
        }
        // The bottom of a V: the first rank's or the last rank's two stages are neighbours.
        let turns = name.starts_with("zb-v") || name.starts_with("dualpipev");
        assert_eq!(left > 0, turns, "{name}");
    }
}

/// Also where a stage's backward has no work of its own: a frozen embedding alone.
#[test]
fn every_pass_waits_for_what_it_receives() {
    let frozen = |mut plan: Plan| {
        plan.job.adapters = Some(Adapters::of_all(8, BaseFormat::Full, &plan.model));
        plan.stack = Stack::from_name("megatron-core").unwrap();
        lower_every_rank(&plan)
    };
    let alone = ["none", "full"].map(|recompute| frozen(plan(2, "interleaved", 7, recompute)));
    let named = alone.into_iter().map(|program| ("beside adapters".to_owned(), program));
    let mut overlapped = 0;
    for (name, program) in programs().chain(named) {
        for segment in &program.segments {
            for (index, op) in segment.ops.iter().enumerate() {
                let receives = matches!(op.work, Work::Receive { .. }) && op.stream != Stream::Compute;
                overlapped += usize::from(receives);
                let waits = |op: &Op| op.stream == Stream::Compute && op.after.contains(&index);
                assert!(!receives || segment.ops.iter().any(waits), "{name}: {}", segment.name);
            }
        }
    }
    assert!(overlapped > 50, "{overlapped} messages are received beside kernels");
}

#[test]
fn the_calls_of_joint_passes_are_joint() {
    for (name, virtual_stages) in [("dualpipe", 1), ("dualpipev", 2), ("1f1b", 1)] {
        let lists =
            schedule(name).unwrap().lists(PipelineShape { ranks: 2, virtual_stages, microbatches: 8 });
        let program = program(2, name, virtual_stages, "none");
        for (rank, at) in program.ranks.iter().zip(0..) {
            let passes = rank.calls.iter().filter(|call| call.action.is_some());
            let joint = passes.enumerate().filter(|(_, call)| call.joint).map(|(at, _)| at);
            assert_eq!(joint.collect::<Vec<_>>(), lists.joint[at], "{name}, rank {at}");
        }
        assert_eq!(lists.joint.iter().any(|joint| !joint.is_empty()), name != "1f1b", "{name}");
    }
}

#[test]
fn the_ends_of_the_model_are_the_first_and_the_last_stage() {
    let alone = program(2, "interleaved", 7, "full");
    let program = program(2, "interleaved", 2, "none");
    let forward = |stage| Action { stage, kind: ActionKind::Forward, microbatch: 0 };
    let ends = |stage| (program.source(forward(stage)), program.destination(forward(stage)));
    assert_eq!(ends(0), (Some(StageEnd::Model), Some(StageEnd::OtherRank(Channel::Activation(0)))));
    assert_eq!(ends(3), (Some(StageEnd::OtherRank(Channel::Activation(2))), Some(StageEnd::Model)));
    let layers: Vec<Layer> = program.stages.iter().flat_map(|stage| stage.layers.clone()).collect();
    let blocks = (0..12).map(Layer::Block);
    assert_eq!(layers, [Layer::Embedding].into_iter().chain(blocks).chain([Layer::Head]).collect::<Vec<_>>());
    assert_eq!(alone.stages[0].layers, [Layer::Embedding]);
    assert_eq!(alone.stages[13].layers, [Layer::Head]);
}

/// Time of the host to launch a forward and a backward pass of Mixtral 8x7B with four experts on each rank.
fn launches(grouped: &[(Precision, Seconds)]) -> [Seconds; 2] {
    let text = r#"
        model = "mixtral-8x7b"
        cluster = "dgx-b200"
        stack = "megatron-core-2025"
        job = { sequence = 1024, global_batch = 8, precision = "mxfp8", optimizer = "adamw", gradient_clipping = true }
        mesh = { tensor = 1, pipeline = 1, data = 8, expert = 2 }
        micro_batch = 1
        schedule = "1f1b"
        virtual_stages = 1
        sequence_parallel = false
        data_sharding = "zero1"
        stages = ["32 none"]
    "#;
    let mut plan = Plan::from_toml(text, "plan.toml").unwrap();
    let host = plan.stack.host.as_mut().unwrap();
    let sourced = |value| Sourced::new(value, "test");
    host.grouped = grouped.iter().map(|(precision, time)| (*precision, sourced(*time))).collect();
    let program = lower_every_rank(&plan);
    [Pass::Forward, Pass::Backward].map(|pass| {
        let mut ops = program.segments.iter().flat_map(|segment| &segment.ops);
        let launch = ops.find(|op| op.module == "launch" && op.pass == pass).unwrap();
        match launch.work {
            Work::Process(time) => time,
            ref other => panic!("launching is {other:?}"),
        }
    })
}

#[test]
fn the_host_takes_time_for_each_product_of_a_group_in_its_precision() {
    let of_product = Seconds::new(1e-4);
    let without = launches(&[]);
    let added = |grouped: &[(Precision, Seconds)]| {
        let with = launches(grouped);
        [0, 1].map(|pass| ((with[pass] - without[pass]).get() * 1e6).round())
    };
    // 32 blocks, 4 experts, 2 products forward and 4 backward of 100 µs each.
    assert_eq!(added(&[(Precision::MxFp8, of_product)]), [25_600.0, 51_200.0]);
    assert_eq!(added(&[(Precision::Fp8, of_product)]), [0.0, 0.0]);
}

#[test]
fn programs_of_several_lengths_are_those_of_plans_with_as_many_microbatches() {
    for (schedule, virtual_stages) in
        [("1f1b", 1), ("interleaved", 2), ("zb-h1", 1), ("zb-v", 2), ("dualpipev", 2)]
    {
        let plan = plan(2, schedule, virtual_stages, "full");
        let lengths = [10, 6, 12];
        let mut programs = lower_lengths(&plan, &lengths);
        // In any order, and again.
        for index in [0, 2, 1, 0] {
            let mut other = plan.clone();
            other.job.global_batch = lengths[index];
            let (one, program) = (lower(&other), programs.program(index));
            let name = format!("{schedule}, {} microbatches", lengths[index]);
            assert_eq!(program.segments, one.segments, "{name}");
            assert_eq!(program.groups, one.groups, "{name}");
            assert_eq!(program.ranks.len(), one.ranks.len(), "{name}");
            for (rank, of_one) in program.ranks.iter().zip(&one.ranks) {
                assert_eq!(rank.calls, of_one.calls, "{name}");
                assert_eq!(
                    (rank.rank, rank.stands_for, &rank.groups),
                    (of_one.rank, of_one.stands_for, &of_one.groups),
                    "{name}"
                );
            }
        }
    }
}
