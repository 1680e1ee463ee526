//! The planner's answer against layouts that one would write down, against its own answers to narrower questions, and against
//! `plan`.

mod even_layouts;

use super::engines::engines;
use super::loops::{divisions, loop_of};
use super::*;
use crate::{Pins, Question, Risk, Scope, Verdict, plan_within};
use even_layouts::even_layouts;
use trainwright_sim::rl::{Generated, assembled, generate, training_times};
use trainwright_spec::model::preset::preset;
use trainwright_spec::rl::{ResponseLengths, algorithm};
use trainwright_spec::serving::ServingPlan;
use trainwright_spec::units::Bytes;

fn question(model: &str, cluster: &str, algorithm_name: &str) -> RlQuestion {
    let format = || String::from("bfloat16");
    RlQuestion {
        model: preset(model).unwrap(),
        cluster: Cluster::from_name(cluster).unwrap(),
        job: RlJob {
            algorithm: algorithm(algorithm_name).unwrap(),
            prompts: 8,
            rollouts: 4,
            prompt: 100,
            responses: ResponseLengths::new(200.0, 1000),
            mini_batches: 2,
            epochs: 1,
            engine_log_probs: false,
        },
        modes: vec![
            Mode::Colocated { offload: true },
            Mode::Colocated { offload: false },
            Mode::Disaggregated,
            Mode::Streamed { parts: 2 },
            Mode::OneStepOff,
            Mode::Async { staleness: 0.5 },
        ],
        stack: Stack::from_name("megatron-core").unwrap(),
        calibration: None,
        residuals: Arc::default(),
        precision: Precision::Bf16,
        pack: 2048,
        engine: Engine::from_name("vllm-v1").unwrap(),
        colocated_share: 0.5,
        weights: [format(), format()],
        sync: SyncMethod::Broadcast,
        controller: Controller::plain(),
        pins: RlPins::default(),
    }
}

fn best(question: &RlQuestion) -> Option<RlCandidate> {
    plan_rl(question, None).unwrap().found.into_iter().next()
}

/// The least step of a mode over all divisions, even layouts and engines.
fn by_brute_force(question: &RlQuestion, mode: Mode) -> Option<Seconds> {
    let mut least: Option<Seconds> = None;
    for [of_training, of_generation] in divisions(question, mode, &question.cluster) {
        let first = part_of(&question.cluster, of_training).unwrap();
        let second = part_of(&question.cluster, of_generation).unwrap();
        let engines = engines(question, &second, mode.splits_gpus());
        let mut served: Vec<Option<Generated>> = vec![None; engines.len()];
        for actor in even_layouts(question, &first) {
            let of = |engine: &ServingPlan| loop_of(question, mode, actor.clone(), &second, engine.clone());
            let Ok(times) = training_times(&of(&engines[0])) else { continue };
            for (engine, generated) in engines.iter().zip(&mut served) {
                let plan = of(engine);
                let generated = generated.get_or_insert_with(|| generate(&plan).unwrap());
                let forecast = assembled(&plan, &times, generated.clone());
                if forecast.faults().is_empty() {
                    least = Some(least.map_or(forecast.step, |least| least.min(forecast.step)));
                }
            }
        }
    }
    least
}

#[test]
fn no_layout_with_even_stages_is_faster() {
    for (model, cluster, name, modes) in [
        ("llama-3.2-1b", "dgx-h100:1", "grpo", 0..6),
        ("qwen3-8b", "dgx-h100:2", "dapo", 1..3),
        ("llama-3.2-1b", "dgx-a100:1", "ppo", 0..2),
    ] {
        let question = question(model, cluster, name);
        let mut compared = 0;
        for mode in &question.modes[modes.clone()] {
            let found = best(&RlQuestion { modes: vec![*mode], ..question.clone() });
            let found = found.map(|best| best.forecast.step);
            let even = by_brute_force(&question, *mode);
            println!("{model} on {cluster}, {mode:?}: {found:?}, even {even:?}");
            assert!(even.is_none_or(|even| found.is_some_and(|found| found <= 1.0005 * even)));
            compared += usize::from(found.is_some());
        }
        assert_eq!(compared, modes.len(), "{model} on {cluster}: modes with a plan");
    }
}

#[test]
fn no_division_that_is_pinned_is_faster() {
    for mode in [Mode::Disaggregated, Mode::OneStepOff] {
        let free = RlQuestion { modes: vec![mode], ..question("llama-3.2-1b", "dgx-h100:3", "grpo") };
        let found = best(&free).unwrap().forecast.step;
        let mut least = Seconds::new(f64::INFINITY);
        for [_, generation] in divisions(&free, mode, &free.cluster) {
            let pins = RlPins { generation: Some(generation), ..RlPins::default() };
            least = least.min(best(&RlQuestion { pins, ..free.clone() }).unwrap().forecast.step);
        }
        assert_eq!(found, least, "{mode:?}");
    }
}

#[test]
fn no_ranks_that_are_pinned_are_faster() {
    // A critic and a reference stay on the GPUs of training.
    let free = RlQuestion { modes: vec![Mode::Disaggregated], ..question("llama-3-8b", "dgx-h100:2", "ppo") };
    let found = best(&free).unwrap().forecast.step;
    let tensor = |ranks: usize| RlPins { tensor: Some(ranks), ..RlPins::default() };
    let pipeline = |ranks: usize| RlPins { pipeline: Some(ranks), ..RlPins::default() };
    for pins in [tensor(1), tensor(8), pipeline(2), pipeline(4)] {
        let pinned = best(&RlQuestion { pins, ..free.clone() }).map(|best| best.forecast.step);
        assert!(pinned.is_none_or(|pinned| found <= 1.001 * pinned), "{pins:?}: {found:?} {pinned:?}");
    }
}

#[test]
fn more_tokens_in_a_microbatch_are_never_slower_and_never_needed() {
    let of = |pack: usize| {
        let question = RlQuestion {
            modes: vec![Mode::Colocated { offload: true }],
            pack,
            ..question("llama-3.2-1b", "dgx-h100:1", "grpo")
        };
        best(&question).unwrap().forecast.step
    };
    let steps = [1100, 2200, 4400, 8800].map(of);
    assert!(steps.is_sorted_by(|less, more| more <= less), "{steps:?}");
}

/// The slow twin asks every question of every division for all its plans. Two more loops with `TRAINWRIGHT_LONG`.
#[test]
fn what_bounds_leave_out_is_not_the_answer() {
    let mut fewer = 0;
    let loops = if std::env::var_os("TRAINWRIGHT_LONG").is_some() { 4 } else { 2 };
    let all = [
        ("llama-3.2-1b", "dgx-h100:1", "grpo", 2),
        ("llama-3.2-1b", "dgx-h100:3", "grpo", 1),
        ("qwen3-8b", "dgx-h100:2", "dapo", 1),
        ("llama-3-8b", "dgx-a100:2", "ppo", 3),
    ];
    for (model, cluster, name, mini_batches) in all.into_iter().take(loops) {
        let mut question = question(model, cluster, name);
        question.job.mini_batches = mini_batches;
        let of = |is_bounded: bool| {
            let mut loops = Loops::new(&question);
            loops.is_bounded = is_bounded;
            loops.plan(&question.cluster, None).unwrap()
        };
        let (fast, slow) = (of(true), of(false));
        let answers = |verdict: &RlVerdict| format!("{:?} {:?}", verdict.found, verdict.reasons);
        assert_eq!(answers(&fast), answers(&slow), "{model} on {cluster}");
        println!("{model} on {cluster}: {:?} of {:?} loops", fast.tried, slow.tried);
        fewer += usize::from(fast.tried[0] < slow.tried[0]);
    }
    assert!(fewer > 0, "{fewer} answers with fewer looks");
}

#[test]
fn the_answer_does_not_depend_on_the_number_of_threads() {
    let question = question("llama-3.2-1b", "dgx-h100:1", "grpo");
    let with = |threads: usize| {
        let pool = rayon::ThreadPoolBuilder::new().num_threads(threads).build().unwrap();
        format!("{:?}", pool.install(|| plan_rl(&question, None).unwrap()))
    };
    assert_eq!(with(1), with(3));
}

/// The update of a loop is the step of `plan` for the same samples, microbatches and ranks.
#[test]
fn training_is_what_the_planner_answers() {
    for (model, cluster) in [("qwen3-8b", "dgx-h100:1"), ("llama-3-8b", "dgx-a100:2")] {
        let mut question = question(model, cluster, "grpo");
        question.modes = vec![Mode::Colocated { offload: true }];
        question.job.mini_batches = 1;
        let found = best(&question).unwrap();
        let actor = &found.plan.actor;
        let asked = Question {
            model: actor.model.clone(),
            cluster: actor.cluster.clone(),
            job: actor.job.clone(),
            stack: actor.stack.clone(),
            pins: Pins {
                data: Some(actor.mesh.data),
                micro_batch: Some(actor.micro_batch),
                data_sharding: Some(actor.data_sharding.clone()),
                ..Pins::default()
            },
            risk: Risk::default(),
        };
        let Verdict::Found(planned) = plan_within(&asked, Scope::BEST, &|_| {}).unwrap() else {
            panic!("{model} on {cluster}: no plan")
        };
        let step = planned.ranked[0].forecast.step_time;
        let update = found.forecast.time(trainwright_spec::rl::Phase::ActorUpdate);
        let copies = found.forecast.phases.iter().map(|phase| phase.copies).sum::<Seconds>();
        assert!(((update - copies) / step - 1.0).abs() < 1e-3, "{model} on {cluster}: {update:?} {step:?}");
    }
}

/// With less memory for training there is another plan of it, or none; never one that needs more.
#[test]
fn training_keeps_within_its_part_of_the_memory() {
    let mut question = question("llama-3-8b", "dgx-h100:1", "grpo");
    question.modes = vec![Mode::Colocated { offload: false }, Mode::Disaggregated];
    for found in plan_rl(&question, None).unwrap().found {
        assert!(found.forecast.faults().is_empty());
        let most = found.forecast.memory.iter().map(|phase| phase.total()).fold(Bytes::ZERO, Bytes::max);
        question.cluster.node.gpu.memory.value = most * 0.97;
        let less = plan_rl(&RlQuestion { modes: vec![found.plan.mode], ..question.clone() }, None).unwrap();
        for less in less.found {
            assert!(less.forecast.faults().is_empty() && less.plan.actor != found.plan.actor);
        }
    }
}

/// On GPUs and hosts of several sizes there is a colocated loop if one of the layouts that one would write down fits, and it is as fast;
/// where none of them fits, the reason says what of the memory.
#[test]
fn a_colocated_loop_is_found_where_a_layout_fits() {
    let (mut found, mut refused) = ([0, 0], [0, 0]);
    for (index, offload) in [false, true].into_iter().enumerate() {
        for (name, gib) in [("grpo", 5.0), ("grpo", 7.0), ("ppo", 11.5), ("ppo", 12.0)] {
            let mode = Mode::Colocated { offload };
            let mut question =
                RlQuestion { modes: vec![mode], ..question("llama-3.2-1b", "dgx-h100:1", name) };
            if offload {
                // The GPUs have enough, the host not always.
                let processors = question.cluster.node.processors.as_mut().unwrap();
                processors.memory.value = Bytes::GIB * (3.0 * gib);
            } else {
                question.cluster.node.gpu.memory.value = Bytes::GIB * gib;
            }
            let verdict = plan_rl(&question, None).unwrap();
            let step = verdict.found.first().map(|best| best.forecast.step);
            let even = by_brute_force(&question, mode);
            println!("{name}, {mode:?}, {gib}: {step:?}, even {even:?} {:?}", verdict.reasons);
            assert!(even.is_none_or(|even| step.is_some_and(|step| step <= 1.0005 * even)), "{name} {gib}");
            assert!(step.is_some() || verdict.reasons[0].contains(" needs "), "{:?}", verdict.reasons);
            found[index] += usize::from(even.is_some());
            refused[index] += usize::from(step.is_none());
        }
    }
    assert!(found.iter().chain(&refused).all(|count| *count > 0), "found {found:?}, refused {refused:?}");
}

#[test]
fn fewer_gpus_than_the_answer_do_not_do() {
    let question = RlQuestion {
        modes: vec![Mode::Colocated { offload: true }, Mode::OneStepOff],
        ..question("qwen3-8b", "dgx-h100:2", "grpo")
    };
    let (fewest, verdict) = fewest_gpus(&question, None).unwrap();
    let fewest = fewest.unwrap();
    assert!(fewest > 1 && !verdict.found.is_empty());
    for gpus in (1..fewest).filter(|gpus| gpus.is_power_of_two()) {
        let cluster = part_of(&question.cluster, gpus).unwrap();
        let less = plan_rl(&RlQuestion { cluster, ..question.clone() }, None).unwrap();
        assert!(less.found.is_empty() && !less.reasons.is_empty(), "{gpus}");
    }
    let step = verdict.found[0].forecast.step;
    let (more, verdict) = fewest_gpus(&question, Some(0.6 * step)).unwrap();
    assert!(more.is_some_and(|more| more > fewest), "{more:?}");
    assert!(verdict.found[0].forecast.step <= 0.6 * step);
    let (none, verdict) = fewest_gpus(&question, Some(Seconds::new(1e-3))).unwrap();
    assert!(none.is_none() && verdict.reasons[0].contains("a step takes"), "{:?}", verdict.reasons);
}
