//! The optimizer's settings: their effect is that of their formulas, under any plan and after a resume.

use crate::drafts::{Draft, settings, tokens};
use std::num::NonZeroUsize;
use trainwright_executor::{
    LearningRate, Outcome, ParameterName, RATE_SCHEDULES, Saving, Settings, Start, train,
};

fn run(draft: &Draft, settings: &Settings) -> Outcome {
    train(&draft.plan(), &tokens(), settings, &mut |_| {}).unwrap()
}

fn adamw() -> Draft {
    Draft { optimizer: "adamw", ..Draft::of("gpt") }
}

/// Settings of which none is the default.
fn unusual(schedule: usize, steps: usize) -> Settings {
    let schedule = RATE_SCHEDULES[schedule];
    let rate = LearningRate { warmup: 2, schedule, end: 6, cooldown: 2, floor: 0.001, peak: 0.02 };
    Settings {
        learning_rate: rate,
        decays_embeddings: false,
        betas: [0.8, 0.9],
        largest_gradient_norm: 0.3,
        ..settings(steps)
    }
}

#[test]
fn settings_are_the_same_under_every_plan_and_after_a_resume() {
    let plans = [
        Draft { mesh: [2, 2, 1], sequence_parallel: true, ..adamw() },
        Draft { mesh: [1, 2, 2], data_sharding: "zero1", ..adamw() },
        Draft { mesh: [1, 1, 2], data_sharding: "zero3", ..adamw() },
    ];
    for (number, schedule) in RATE_SCHEDULES.iter().enumerate() {
        let alone = run(&adamw(), &unusual(number, 6));
        let plan = &plans[number % plans.len()];
        let uninterrupted = run(plan, &unusual(number, 6));
        for (step, expected) in uninterrupted.steps.iter().zip(&alone.steps) {
            assert!((step.loss / expected.loss - 1.0).abs() < 1e-4, "{schedule:?}: {step:?} {expected:?}");
        }
        let folder = tempfile::tempdir().unwrap();
        let saving = Saving { folder: folder.path().into(), every: None, keep: NonZeroUsize::MIN };
        run(plan, &Settings { saving: Some(saving), ..unusual(number, 3) });
        let rest = Settings { start: Start::Resume(folder.path().into()), ..unusual(number, 6) };
        assert_eq!(run(plan, &rest).weights, uninterrupted.weights, "{schedule:?}");
    }
}

/// AdamW's decay does not change its moments: what does not decay has the weights of a run without any decay.
#[test]
fn matrices_decay_but_no_vectors_and_embeddings_only_if_asked() {
    let weights = |weight_decay, decays_embeddings| {
        let settings = Settings { weight_decay, decays_embeddings, ..settings(1) };
        run(&adamw(), &settings).weights.unwrap()
    };
    let [all, matrices, none] = [weights(0.5, true), weights(0.5, false), weights(0.0, true)];
    for (key, of_none) in &none {
        let name = format!("{:?}", key.1);
        let is_embedding = matches!(key.1, ParameterName::TokenEmbedding | ParameterName::PositionEmbedding);
        let is_vector = name.contains("Bias") || name.contains("Gain");
        assert_eq!(all[key] == *of_none, is_vector, "{key:?}");
        assert_eq!(matrices[key] == *of_none, is_vector || is_embedding, "{key:?}");
    }
}

/// At the first step Adam's moments are (1 - β) times those of the gradient, so the update does not depend on β. Behind it does.
#[test]
fn betas_matter_from_the_second_step_on_and_the_bound_scales_a_plain_step() {
    let of = |betas, steps| run(&adamw(), &Settings { betas, ..settings(steps) });
    let [usual, other] = [[0.9, 0.95], [0.5, 0.7]].map(|betas| of(betas, 3));
    let difference = |step: usize| (usual.steps[step].loss / other.steps[step].loss - 1.0).abs();
    assert!(difference(1) < 1e-4 && difference(2) > 1e-4, "{} {}", difference(1), difference(2));
    // A step of plain gradient descent that is clipped to half the norm is half as long.
    let start = run(&Draft { optimizer: "sgd", ..Draft::of("gpt") }, &plain(0.0, 0.2)).weights.unwrap();
    let moved = |bound: f64| -> f64 {
        let weights =
            run(&Draft { optimizer: "sgd", ..Draft::of("gpt") }, &plain(0.1, bound)).weights.unwrap();
        let squares = weights.iter().flat_map(|(key, after)| {
            after.iter().zip(&start[key]).map(|(after, before)| f64::from(after - before).powi(2))
        });
        squares.sum::<f64>().sqrt()
    };
    let [whole, half] = [0.2, 0.1].map(moved);
    assert!((whole / 0.02 - 1.0).abs() < 1e-3 && (half / 0.01 - 1.0).abs() < 1e-3, "{whole} {half}");
}

/// One step without decay.
fn plain(rate: f32, bound: f64) -> Settings {
    let learning_rate = LearningRate::constant(rate);
    Settings { learning_rate, weight_decay: 0.0, largest_gradient_norm: bound, ..settings(1) }
}
