//! Label smoothing and the z-loss: the same under any plan, and not in the loss of held-out tokens.

use crate::drafts::{BATCH, Draft, settings, tokens};
use crate::parity::{Tolerance, check_equal};
use std::num::NonZeroUsize;
use trainwright_executor::{LearningRate, Outcome, Settings, Tokens, Validation, train};

fn run(draft: &Draft, tokens: &Tokens, settings: &Settings) -> Outcome {
    train(&draft.plan(), tokens, settings, &mut |_| {}).unwrap_or_else(|error| panic!("{draft:?}: {error}"))
}

/// The vocabulary of 67 is padded on tensor ranks: what is not an entry takes no part in either term.
#[test]
fn every_plan_has_the_terms_of_one_rank() {
    let settings = Settings { z_loss: 0.01, label_smoothing: 0.2, ..settings(3) };
    for (model, tensor) in [("gpt", 4), ("llama", 2)] {
        let of = || Draft::of(model);
        let alone = run(&Draft { micro_batch: BATCH, ..of() }, &tokens(), &settings);
        let drafts = [
            Draft { mesh: [tensor, 1, 1], micro_batch: 2, ..of() },
            Draft { mesh: [2, 2, 1], sequence_parallel: true, ..of() },
            Draft { mesh: [4, 1, 1], tensor_rows: 2, micro_batch: 2, ..of() },
            Draft { mesh: [1, 2, 2], data_sharding: "zero1", schedule: "zb-h1", ..of() },
        ];
        let tolerance = Tolerance { losses: 1e-4, weights: 1e-4, biases: 1e-4 };
        for draft in drafts {
            let outcome = run(&draft, &tokens(), &settings);
            check_equal(&format!("{draft:?}"), &outcome, &alone, tolerance);
            for (step, expected) in outcome.steps.iter().zip(&alone.steps) {
                let (found, expected) = (step.z_loss.unwrap(), expected.z_loss.unwrap());
                assert!((found / expected - 1.0).abs() < 1e-4, "{draft:?}: {found} {expected}");
            }
        }
    }
}

/// Trained at a rate of 0 on the tokens that are also held out, in one step that reads them all.
#[test]
fn held_out_tokens_have_their_plain_cross_entropy() {
    let tokens = Tokens::synthetic(67, BATCH * 16 + 1, 8);
    let one = NonZeroUsize::MIN;
    let step = |z_loss: f64, label_smoothing: f64| {
        let validation = Some(Validation { tokens: tokens.clone(), every: one, batches: one });
        let learning_rate = LearningRate::constant(0.0);
        let settings = Settings { z_loss, label_smoothing, validation, learning_rate, ..settings(1) };
        run(&Draft { micro_batch: 4, ..Draft::of("gpt") }, &tokens, &settings).steps[0].clone()
    };
    let plain = step(0.0, 0.0);
    assert_eq!(plain.z_loss, None);
    let with_z = step(0.01, 0.0);
    // ln Z is near ln 67 = 4.2 for a new model, so that the z-loss is near 0.01 · 4.2² = 0.18.
    let z_loss = with_z.z_loss.unwrap();
    assert!((0.15..0.21).contains(&z_loss), "{z_loss}");
    assert!((with_z.loss - z_loss - plain.loss).abs() < 1e-6, "{with_z:?} {plain:?}");
    let smoothed = step(0.0, 0.5);
    assert!((smoothed.loss - plain.loss).abs() > 1e-4, "{smoothed:?} {plain:?}");
    for step in [&with_z, &smoothed] {
        let (found, expected) = (step.validation_loss.unwrap(), plain.loss);
        assert!((found / expected - 1.0).abs() < 1e-6, "{found} {expected}");
    }
}
