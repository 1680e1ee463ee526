//! The loss of held-out tokens: that of their sequences under any plan, without a trace in the training.

use crate::drafts::{BATCH, Draft, settings, tokens};
use std::num::NonZeroUsize;
use trainwright_executor::{LearningRate, Outcome, RunError, Settings, Tokens, Validation, train};
use trainwright_spec::plan::{Offload, Recompute};
use trainwright_spec::program::Place;

fn validation(tokens: Tokens, batches: usize) -> Option<Validation> {
    let [every, batches] = [2, batches].map(|number| NonZeroUsize::new(number).unwrap());
    Some(Validation { tokens, every, batches })
}

fn run(draft: &Draft, settings: &Settings) -> Result<Outcome, RunError> {
    train(&draft.plan(), &tokens(), settings, &mut |_| {})
}

fn adamw(model: &'static str) -> Draft {
    Draft { optimizer: "adamw", ..Draft::of(model) }
}

fn losses(outcome: &Outcome) -> Vec<Option<f64>> {
    outcome.steps.iter().map(|step| step.validation_loss).collect()
}

/// 17 tokens for each of two batches; the tokens behind them are no whole batch.
fn held_out() -> Tokens {
    Tokens::synthetic(67, 2 * BATCH * 16 + 20, 8)
}

#[test]
fn every_plan_has_the_loss_of_one_rank_and_trains_as_if_there_were_none() {
    let drive = Offload { activations: Some(Place::Nvme), ..Offload::default() };
    let drafts = [
        Draft { mesh: [2, 2, 1], sequence_parallel: true, ..adamw("gpt") },
        Draft { mesh: [1, 4, 1], schedule: "zb-h1", micro_batch: 1, ..adamw("gpt") },
        Draft { mesh: [1, 2, 1], virtual_stages: 2, schedule: "dualpipev", micro_batch: 1, ..adamw("gpt") },
        Draft { mesh: [1, 1, 2], data_sharding: "zero1", ..adamw("gpt") },
        Draft { mesh: [1, 1, 2], data_sharding: "zero3", ..adamw("gpt") },
        Draft { context: [2, 1], mesh: [1, 1, 1], ..adamw("gpt") },
        Draft { recompute: Recompute::Full, ..adamw("gpt") },
        Draft { offload: drive, ..adamw("gpt") },
    ];
    let with = Settings { validation: validation(held_out(), 5), ..settings(3) };
    let alone = losses(&run(&adamw("gpt"), &with).unwrap());
    // Behind every second step and the last one.
    assert_eq!(alone.iter().map(Option::is_some).collect::<Vec<_>>(), [false, true, true]);
    for draft in drafts {
        let validated = run(&draft, &with).unwrap_or_else(|error| panic!("{draft:?}: {error}"));
        for (found, expected) in losses(&validated).iter().zip(&alone) {
            let difference =
                found.zip(*expected).map_or(0.0, |(found, expected)| (found / expected - 1.0).abs());
            assert!(found.is_some() == expected.is_some() && difference < 1e-4, "{draft:?}: {found:?}");
        }
        let without = run(&draft, &settings(3)).unwrap();
        assert_eq!(validated.weights, without.weights, "{draft:?}");
        assert_eq!(validated.steps[2].loss.to_bits(), without.steps[2].loss.to_bits(), "{draft:?}");
        assert_eq!(validated.timeline.ranks.len(), without.timeline.ranks.len());
    }
}

/// Trained at a rate of 0 on the tokens that are also held out, in one step that reads them all.
#[test]
fn it_is_the_training_loss_of_the_same_sequences_without_dropout() {
    let tokens = Tokens::synthetic(67, BATCH * 16 + 1, 8);
    let loss = |model, validates: bool| {
        let validation = validates.then(|| validation(tokens.clone(), 1).unwrap());
        let learning_rate = LearningRate::constant(0.0);
        let settings = Settings { validation, learning_rate, ..settings(1) };
        train(&adamw(model).plan(), &tokens, &settings, &mut |_| {}).unwrap().steps[0].clone()
    };
    let trained = loss("gpt", true);
    assert!((trained.validation_loss.unwrap() / trained.loss - 1.0).abs() < 1e-6, "{trained:?}");
    let dropping = loss("gpt-dropping", true);
    assert!((dropping.validation_loss.unwrap() / trained.loss - 1.0).abs() < 1e-6, "{dropping:?}");
    assert!((dropping.loss / trained.loss - 1.0).abs() > 1e-4, "{dropping:?}");
    assert_eq!(loss("gpt", false).validation_loss, None);
}

#[test]
fn held_out_tokens_that_do_not_suit_are_refused() {
    let check = |tokens: Tokens, expected: &str| {
        let error =
            run(&adamw("gpt"), &Settings { validation: validation(tokens, 1), ..settings(1) }).unwrap_err();
        assert!(error.to_string().contains(expected), "{error}");
    };
    check(
        Tokens::synthetic(67, BATCH * 16, 8),
        "7 sequences of validation data are fewer than the 8 of a step",
    );
    check(
        Tokens::synthetic(67, 16, 8),
        "16 tokens are fewer than one sequence of 16 and the token behind it (validation data)",
    );
    check(Tokens::synthetic(68, 5000, 8), "is not in the model's vocabulary of 67 (validation data)");
    check(Tokens::bytes(&[1; 1000]), "another tokenizer");
}
