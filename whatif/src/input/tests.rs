//! Inputs are set, and what cannot be is refused.

use super::*;
use crate::scenario::Rates;
use trainwright_planner::{Pins, Question, Risk};
use trainwright_spec::job::Job;
use trainwright_spec::units::{Bytes, BytesPerSecond};

fn scenario() -> Scenario {
    let question = Question {
        model: preset("llama-3-8b").unwrap(),
        cluster: Cluster::from_name("dgx-h100:4").unwrap(),
        job: Job::new(8192, 64, Precision::Bf16),
        stack: Stack::from_name("megatron-core").unwrap(),
        pins: Pins::default(),
        risk: Risk::default(),
    };
    Scenario {
        base: Base::Question(Box::new(question)),
        rates: Rates { price: None, pue: 1.1, tokens: None },
        calibration: None,
    }
}

fn with(name: &str, value: &str) -> Scenario {
    let mut scenario = scenario();
    set(&mut scenario, name, value).unwrap_or_else(|error| panic!("{name}={value}: {error}"));
    scenario
}

#[test]
fn named_inputs_and_paths_are_set() {
    assert_eq!(with("nodes", "16").cluster().gpus(), 128);
    assert_eq!(with("nodes", "x2").cluster().gpus(), 64);
    assert_eq!(with("gpus", "4").cluster().gpus(), 4);
    assert_eq!(with("gpus", "64").cluster().nodes, 8);
    assert_eq!(with("node", "dgx-a100").cluster().gpus(), 32);
    assert_eq!(with("gpu", "h200-sxm").cluster().node.gpu.name, "h200-sxm");
    assert_eq!(with("memory", "40GiB").cluster().node.gpu.memory.value, 40.0 * Bytes::GIB);
    let nics = |scenario: Scenario| scenario.cluster().node.nics.clone().unwrap();
    assert_eq!(nics(with("nic-bandwidth", "x2")).bandwidth.value, BytesPerSecond::new(100e9));
    assert_eq!(nics(with("cluster.node.nics.count", "4")).count.value, 4);
    assert_eq!(nics(with("nic-bandwidth", "x2")).bandwidth.source, "varied: x2");
    assert_eq!(with("seq", "4096").job().sequence, 4096);
    assert_eq!(with("job.global_batch", "x2").job().global_batch, 128);
    assert_eq!(with("precision", "fp8").job().precision, Precision::Fp8);
    assert_eq!(with("model.vocab", "50304").model().vocab, 50304);
    assert_eq!(with("layers", "16").model().layers(), 16);
    assert_eq!(with("oversubscription", "2").cluster().fabric.tapers()[0].oversubscription.value, 2.0);
    assert_eq!(with("tokens", "15T").rates.tokens, Some(15e12));
    let Base::Question(question) = with("tensor", "4").base else { panic!("a question stays one") };
    assert_eq!(question.pins.tensor, Some(4));
}

#[test]
fn a_factor_of_one_changes_nothing_but_the_source() {
    for input in INPUTS {
        let mut changed = scenario();
        if set(&mut changed, input.name, "x1").is_ok() {
            assert_eq!(changed.cluster().gpus(), scenario().cluster().gpus(), "{}", input.name);
            assert_eq!(changed.job(), scenario().job(), "{}", input.name);
            assert_eq!(changed.model(), scenario().model(), "{}", input.name);
        }
    }
}

#[test]
fn invalid_values_are_refused_in_one_line() {
    let check = |name: &str, value: &str, part: &str| {
        let error = set(&mut scenario(), name, value).unwrap_err();
        assert!(error.contains(part) && !error.contains('\n'), "{name}={value}: {error}");
    };
    check("nodse", "4", "no input is called `nodse` (nearest: node");
    check("nodes", "0", "at least 1");
    check("nodes", "four", "invalid type");
    check("seq", "0", "`seq` is 0; it should be 1 or more");
    check("global-batch", "0", "it should be 1 or more");
    check("nodes", "x0.3", "not whole");
    check("gpus", "12", "12 GPUs are no whole number of nodes of 8");
    check("memory", "80 parsec", "is not a number followed by one of");
    check("memory", "x-1", "not a factor above zero");
    check("peak", "989", "not a factor");
    check("precision", "nvfp4", "computes in");
    check("cluster.node.nics", "4", "whole table");
    check("cluster.node.nix.count", "4", "there is no `cluster.node.nix.count`");
    check("job.sequense", "4", "sequense");
    check("micro_batch.x", "4", "give --plan");
    check("gpu", "h300", "unknown gpu `h300`");
    check("pue", "0.9", "below 1");
    check("model-size", "1000", "less than a single block");
}

#[test]
fn scaled_models_have_about_as_many_parameters_and_the_same_heads() {
    for name in ["llama-3-8b", "llama-3-70b", "gpt3-175b", "mixtral-8x7b", "gpt2"] {
        let model = preset(name).unwrap();
        for factor in [0.3, 2.0, 10.0] {
            let wanted = factor * model.parameters() as f64;
            let Ok(other) = scaled(&model, wanted) else { continue };
            let error = other.parameters() as f64 / wanted - 1.0;
            assert!(error.abs() < 0.1, "{name} x{factor}: {error}");
            let width = |model: &Model| model.hidden / model.blocks[0].block.attention.heads;
            assert_eq!(width(&other), width(&model), "{name} x{factor}");
        }
    }
    // A tenfold LLaMA 3 8B is about as wide and as deep as LLaMA 3 70B: 8192 wide, 80 deep.
    let large = scaled(&preset("llama-3-8b").unwrap(), 70.6e9).unwrap();
    assert!((8192..=9216).contains(&large.hidden), "{}", large.hidden);
    assert!((60..=80).contains(&large.layers()), "{}", large.layers());
}

use trainwright_spec::model::Model;
