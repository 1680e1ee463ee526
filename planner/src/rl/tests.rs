//! The planner's answer against every combination, forecast as a whole.

use super::layouts::{engines, part_of, trainings};
use super::*;
use trainwright_sim::rl::rl_forecast;
use trainwright_spec::model::preset::preset;
use trainwright_spec::rl::{ResponseLengths, algorithm};

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

/// The least step of a mode over all combinations, each forecast by itself.
fn by_brute_force(question: &RlQuestion, mode: Mode) -> Option<Seconds> {
    let mut least: Option<Seconds> = None;
    for [of_training, of_generation] in splits(question, mode) {
        let first = part_of(&question.cluster, of_training).unwrap();
        let second = part_of(&question.cluster, of_generation).unwrap();
        for actor in trainings(question, &first) {
            for engine in engines(question, &second, mode.splits_gpus()) {
                let plan = loop_of(question, mode, actor.clone(), &second, engine);
                let Ok(forecast) = rl_forecast(&plan) else { continue };
                if forecast.faults().is_empty() {
                    least = Some(least.map_or(forecast.step, |least| least.min(forecast.step)));
                }
            }
        }
    }
    least
}

#[test]
fn no_combination_of_the_options_is_faster() {
    for (model, cluster, name) in [
        ("llama-3.2-1b", "dgx-h100:1", "grpo"),
        ("qwen3-8b", "dgx-h100:2", "dapo"),
        ("llama-3.2-1b", "dgx-a100:1", "ppo"),
    ] {
        let question = question(model, cluster, name);
        let mut compared = 0;
        for mode in &question.modes {
            let one = plan_rl(&RlQuestion { modes: vec![*mode], ..question.clone() });
            let found = one.found.first().map(|best| best.forecast.step);
            assert_eq!(found, by_brute_force(&question, *mode), "{model} on {cluster}, {mode:?}");
            compared += usize::from(found.is_some());
        }
        assert!(compared >= 4, "{model} on {cluster}: {compared} modes have a plan");
    }
}

#[test]
fn fewer_gpus_than_the_answer_do_not_do() {
    let question = RlQuestion {
        modes: vec![Mode::Colocated { offload: true }, Mode::OneStepOff],
        ..question("qwen3-8b", "dgx-h100:2", "grpo")
    };
    let (fewest, verdict) = fewest_gpus(&question, None);
    let fewest = fewest.unwrap();
    assert!(fewest > 1 && !verdict.found.is_empty());
    for gpus in (1..fewest).filter(|gpus| gpus.is_power_of_two()) {
        let cluster = part_of(&question.cluster, gpus).unwrap();
        let less = plan_rl(&RlQuestion { cluster, ..question.clone() });
        assert!(less.found.is_empty() && !less.reasons.is_empty(), "{gpus}");
    }
    let step = verdict.found[0].forecast.step;
    let (more, verdict) = fewest_gpus(&question, Some(0.6 * step));
    assert!(more.is_some_and(|more| more > fewest), "{more:?}");
    assert!(verdict.found[0].forecast.step <= 0.6 * step);
    let (none, verdict) = fewest_gpus(&question, Some(Seconds::new(1e-3)));
    assert!(none.is_none() && verdict.reasons[0].contains("a step takes"), "{:?}", verdict.reasons);
}
