//! Any plan gives the losses and weights of one rank, up to rounding, and always the same ones.

use crate::drafts::{BATCH, Draft};
use trainwright_executor::Outcome;
use trainwright_spec::plan::Recompute;

/// Losses within 10⁻⁴ of each other, and each parameter within 10⁻⁴ of its norm.
fn check_equal(name: &str, own: &Outcome, reference: &Outcome) {
    for (own, expected) in own.steps.iter().zip(&reference.steps) {
        let error = (own.loss / expected.loss - 1.0).abs();
        assert!(error < 1e-4, "{name} step {}: loss {} is not {}", own.step, own.loss, expected.loss);
        let norms = own.gradient_norm.zip(expected.gradient_norm);
        assert!(norms.is_none_or(|(own, expected)| (own / expected - 1.0).abs() < 1e-4), "{name}: {norms:?}");
    }
    let (own, reference) = (own.weights.as_ref().unwrap(), reference.weights.as_ref().unwrap());
    assert_eq!(own.keys().collect::<Vec<_>>(), reference.keys().collect::<Vec<_>>(), "{name}");
    for (key, expected) in reference {
        let squares = |x: &mut dyn Iterator<Item = f32>| x.map(|x| f64::from(x).powi(2)).sum::<f64>().sqrt();
        let error = squares(&mut own[key].iter().zip(expected).map(|(own, expected)| own - expected));
        let norm = squares(&mut expected.iter().copied());
        assert!(error <= 1e-4 * norm, "{name}: {key:?} is {error} beside, of {norm}");
    }
}

/// Every draft against one rank with the same model and optimizer, twice.
fn check(drafts: &[Draft]) {
    let mut references: Vec<(String, Outcome)> = Vec::new();
    for draft in drafts {
        let key = format!("{} {} {}", draft.model, draft.optimizer, draft.gradient_clipping);
        if !references.iter().any(|(known, _)| *known == key) {
            let alone = Draft {
                micro_batch: BATCH,
                optimizer: draft.optimizer,
                gradient_clipping: draft.gradient_clipping,
                ..Draft::of(draft.model)
            };
            references.push((key.clone(), alone.train().unwrap()));
        }
        let (_, reference) = references.iter().find(|(known, _)| *known == key).unwrap();
        let name = format!("{draft:?}");
        let own = draft.train().unwrap_or_else(|error| panic!("{name}: {error}"));
        check_equal(&name, &own, reference);
        let again = draft.train().unwrap();
        let bits = |outcome: &Outcome| -> Vec<u64> {
            outcome.steps.iter().map(|step| step.loss.to_bits()).collect()
        };
        assert_eq!(bits(&own), bits(&again), "{name}: losses differ from run to run");
        assert_eq!(own.weights, again.weights, "{name}: weights differ from run to run");
    }
}

const MODELS: [&str; 2] = ["gpt", "llama"];

#[test]
fn one_rank_with_any_microbatch_and_recomputation() {
    let mut drafts = Vec::new();
    for model in MODELS {
        for recompute in [
            "none",
            "selective",
            "full",
            "selective(norm+activation)",
            "selective(mlp)",
            "selective(core+norm)",
        ] {
            drafts.push(Draft { recompute: recompute.parse().unwrap(), micro_batch: 2, ..Draft::of(model) });
        }
        for optimizer in ["adamw", "sgd"] {
            drafts.push(Draft { optimizer, gradient_clipping: false, ..Draft::of(model) });
        }
    }
    check(&drafts);
}

#[test]
fn data_ranks() {
    let mut drafts = Vec::new();
    for model in MODELS {
        for (data, data_sharding) in [(2, "none"), (2, "zero1"), (4, "none"), (4, "zero1"), (8, "zero1")] {
            drafts.push(Draft { mesh: [1, 1, data], data_sharding, optimizer: "adamw", ..Draft::of(model) });
        }
        drafts.push(Draft { mesh: [1, 1, 4], micro_batch: 2, data_sharding: "zero1", ..Draft::of(model) });
    }
    check(&drafts);
}

/// Divided gradients and weights, alone and with other axes. A tied embedding is not divided.
#[test]
fn divided_gradients_and_weights() {
    let mut drafts = Vec::new();
    for (model, data_sharding) in [("gpt", "zero2"), ("llama", "zero2"), ("llama", "zero3")] {
        for (mesh, schedule) in [
            ([1, 1, 2], "1f1b"),
            ([1, 1, 4], "1f1b"),
            ([2, 1, 2], "1f1b"),
            ([1, 2, 2], "1f1b"),
            ([2, 2, 2], "gpipe"),
        ] {
            for recompute in [Recompute::None, Recompute::Full] {
                let sequence_parallel = mesh[0] > 1;
                let draft = Draft { mesh, schedule, recompute, sequence_parallel, ..Draft::of(model) };
                drafts.push(Draft { data_sharding, optimizer: "adamw", ..draft });
            }
        }
    }
    check(&drafts);
}

#[test]
fn tensor_ranks() {
    let mut drafts = Vec::new();
    for (model, tensor) in [("gpt", 2), ("gpt", 4), ("llama", 2)] {
        for sequence_parallel in [false, true] {
            for (recompute, micro_batch) in
                [(Recompute::None, 1), (Recompute::Selective, 2), (Recompute::Full, 2)]
            {
                let mesh = [tensor, 1, 1];
                drafts.push(Draft { mesh, sequence_parallel, recompute, micro_batch, ..Draft::of(model) });
            }
        }
    }
    check(&drafts);
}

/// Every schedule that ends a step with an empty pipeline and holds each stage once, where it exists.
#[test]
fn schedules() {
    let mut drafts = Vec::new();
    let shapes = [(2, 1), (4, 1), (2, 2)];
    for (pipeline, virtual_stages) in shapes {
        for schedule in trainwright_spec::schedule::SCHEDULES {
            let shape = trainwright_spec::schedule::PipelineShape {
                ranks: pipeline,
                virtual_stages,
                microbatches: 8,
            };
            if schedule.check(shape).is_err() || schedule.copies() > 1 || !schedule.flushes() {
                continue;
            }
            for model in MODELS {
                let mesh = [1, pipeline, 1];
                drafts.push(Draft { mesh, schedule: schedule.name(), virtual_stages, ..Draft::of(model) });
            }
        }
    }
    assert!(drafts.len() >= 24, "{}", drafts.len());
    check(&drafts);
}

#[test]
fn axes_together() {
    let mut drafts = Vec::new();
    for model in MODELS {
        for (mesh, schedule, virtual_stages) in [
            ([2, 2, 1], "1f1b", 1),
            ([2, 2, 2], "gpipe", 1),
            ([2, 2, 2], "zb-h1", 1),
            ([1, 2, 2], "interleaved", 2),
            ([2, 2, 1], "interleaved", 2),
            ([2, 2, 2], "dualpipev", 2),
            ([1, 4, 2], "1f1b", 1),
            ([2, 4, 2], "1f1b", 1),
            ([2, 1, 2], "1f1b", 1),
            ([2, 1, 4], "1f1b", 1),
            ([2, 2, 1], "zb-v", 2),
        ] {
            for (sequence_parallel, data_sharding, recompute) in [
                (false, "none", Recompute::None),
                (true, "zero1", Recompute::Selective),
                (true, "none", Recompute::Full),
            ] {
                let draft = Draft { mesh, schedule, virtual_stages, ..Draft::of(model) };
                let [tensor, _, data] = mesh;
                let sequence_parallel = sequence_parallel && tensor > 1;
                let data_sharding = if data > 1 { data_sharding } else { "none" };
                drafts.push(Draft { sequence_parallel, data_sharding, recompute, ..draft });
            }
        }
    }
    check(&drafts);
}
