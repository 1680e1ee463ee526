//! Dropout: every plan drops the same elements, backward the same as forward, and a resumed run those of one that was not stopped.

use crate::drafts::{Draft, settings, tokens};
use crate::parity::{MODELS, check};
use std::num::NonZeroUsize;
use trainwright_executor::{LearningRate, Saving, Settings, Start, train};
use trainwright_spec::model::DropoutRates;
use trainwright_spec::plan::Recompute;

/// Every axis and what it changes of the tensors that are dropped out of.
#[test]
fn every_plan_drops_the_same() {
    let gpt = || Draft::of("gpt-dropping");
    let mut drafts = vec![
        Draft { micro_batch: 2, ..gpt() },
        Draft { recompute: Recompute::Full, ..gpt() },
        Draft { recompute: "selective(core+norm)".parse().unwrap(), micro_batch: 4, ..gpt() },
        Draft { mesh: [1, 1, 4], data_sharding: "zero3", ..gpt() },
        Draft { mesh: [2, 1, 1], ..gpt() },
        Draft { mesh: [4, 1, 1], sequence_parallel: true, micro_batch: 2, ..gpt() },
        Draft { mesh: [1, 2, 1], schedule: "zb-h1", ..gpt() },
        Draft { mesh: [1, 2, 2], schedule: "interleaved", virtual_stages: 2, ..gpt() },
        Draft { mesh: [2, 2, 2], sequence_parallel: true, recompute: Recompute::Full, ..gpt() },
    ];
    for (context_scheme, context) in
        [("ring", [2, 1]), ("all-gather", [2, 1]), ("ulysses", [4, 1]), ("hybrid", [4, 2])]
    {
        drafts.push(Draft { context, context_scheme, micro_batch: 2, ..gpt() });
    }
    drafts.push(Draft { context: [2, 1], context_scheme: "ulysses", mesh: [2, 1, 1], ..gpt() });
    // Query heads that share keys.
    let llama = || Draft::of("llama-dropping");
    drafts.push(Draft { mesh: [2, 1, 1], ..llama() });
    drafts.push(Draft { context: [4, 1], context_scheme: "ulysses", ..llama() });
    check(&drafts);
}

#[test]
fn what_is_dropped_changes_the_loss_and_a_resumed_run_drops_the_same() {
    assert_eq!(MODELS[0], "gpt");
    let first = |model| Draft::of(model).train().unwrap().steps[0].loss;
    assert_ne!(first("gpt-dropping"), first("gpt"), "the same weights, batches and no dropout");
    let folder = tempfile::tempdir().unwrap();
    let plan = Draft { optimizer: "adamw", ..Draft::of("gpt-dropping") }.plan();
    let run = |settings: &Settings| train(&plan, &tokens(), settings, &mut |_| {}).unwrap();
    let uninterrupted = run(&settings(4));
    let saving = Saving { folder: folder.path().into(), every: None, keep: NonZeroUsize::MIN };
    run(&Settings { saving: Some(saving), ..settings(2) });
    let rest = run(&Settings { start: Start::Resume(folder.path().into()), seed: 99, ..settings(4) });
    assert_eq!(rest.weights, uninterrupted.weights);
}

/// With the same masks, as they are of seed and step, a small step against the gradient g lowers the loss by ε |g|², but for
/// terms in ε².
#[test]
fn a_small_step_lowers_the_loss_by_what_the_gradient_says() {
    const STEP: f32 = 2e-3;
    let mut plan = Draft { optimizer: "sgd", ..Draft::of("gpt-dropping") }.plan();
    plan.model.dropout_rates = Some(DropoutRates::all(0.5));
    let folder = tempfile::tempdir().unwrap();
    let saving = Saving { folder: folder.path().into(), every: None, keep: NonZeroUsize::MIN };
    let once = Settings {
        learning_rate: LearningRate::constant(STEP),
        weight_decay: 0.0,
        largest_gradient_norm: 1e9,
        ..settings(1)
    };
    let run = |settings: &Settings| train(&plan, &tokens(), settings, &mut |_| {}).unwrap().steps[0].clone();
    let before = run(&Settings { saving: Some(saving), ..once.clone() });
    let weights = folder.path().join("step-00000001");
    let after = run(&Settings { start: Start::Weights(weights), ..once });
    let expected = f64::from(STEP) * before.gradient_norm.unwrap().powi(2);
    let ratio = (before.loss - after.loss) / expected;
    assert!((ratio - 1.0).abs() < 0.02, "{ratio}");
}
