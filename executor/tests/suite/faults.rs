//! What is refused before a run, and what ends one.

use crate::drafts::{Draft, settings, tokens};
use trainwright_executor::{Fault, LearningRate, RunError, Settings, Tokens, train};
use trainwright_spec::cluster::Cluster;
use trainwright_spec::model::DropoutRates;
use trainwright_spec::plan::Plan;
use trainwright_spec::precision::Precision;

#[test]
fn what_there_is_not_is_refused_with_its_name() {
    let check = |change: &dyn Fn(&mut Plan), expected: &str| {
        let mut plan = Draft::of("gpt").plan();
        change(&mut plan);
        let error = train(&plan, &tokens(), &settings(1), &mut |_| {}).unwrap_err().to_string();
        assert!(error.contains(expected), "{error}");
    };
    for (gpus, precision, expected) in [
        ("dgx-a100", Precision::Fp16, "`job.precision` is `fp16`; it has `fp32`, `bf16` and `fp8`"),
        ("dgx-a100", Precision::Int8, "`job.precision` is `int8`; "),
        ("dgx-h100", Precision::Fp8Block, "`job.precision` is `fp8-block`; "),
        ("dgx-b200", Precision::MxFp8, "`job.precision` is `mxfp8`; "),
        ("dgx-b200", Precision::NvFp4, "`job.precision` is `nvfp4`; "),
    ] {
        let in_precision = |plan: &mut Plan| {
            plan.cluster.node.gpu = Cluster::from_name(&format!("{gpus}:1")).unwrap().node.gpu;
            plan.job.precision = precision;
        };
        check(&in_precision, expected);
    }
    let experts = Draft { precision: Precision::Fp8, ..Draft::of("mixtral") };
    let error = experts.train().unwrap_err().to_string();
    assert!(error.contains("`job.precision` is `fp8`; products of experts are in 16 bits"), "{error}");
    let drops_all_twice = |plan: &mut Plan| {
        plan.model.dropout = true;
        plan.model.dropout_rates = Some(DropoutRates::all(2.0));
    };
    check(&drops_all_twice, "each is a probability from 0 to 1");
    check(&|plan| plan.model.blocks[0].block.parallel = true, "`model.blocks.parallel` is true");
}

#[test]
fn a_loss_that_is_no_number_names_rank_and_op() {
    let plan = Draft { mesh: [1, 2, 2], ..Draft::of("gpt") }.plan();
    let steps =
        Settings { learning_rate: LearningRate::constant(f32::MAX), weight_decay: 0.0, ..settings(5) };
    match train(&plan, &tokens(), &steps, &mut |_| {}).unwrap_err() {
        RunError::Rank { rank, step, op, fault: Fault::NotFinite { .. } } => {
            // The losses are on the last stage: ranks 2 and 3.
            assert!(rank >= 2 && step == 2 && op.contains("forward"), "rank {rank} step {step} {op}");
        }
        other => panic!("{other}"),
    }
}

#[test]
fn tokens_that_do_not_suit_are_refused() {
    let plan = Draft::of("gpt").plan();
    let error =
        train(&plan, &Tokens::bytes(b"zzzzzzzzzzzzzzzzzzzzzz"), &settings(1), &mut |_| {}).unwrap_err();
    assert!(error.to_string().contains("token 122 is not in the model's vocabulary of 67"), "{error}");
}
