//! Any plan gives the losses and weights of one rank, up to rounding, and always the same ones.

use crate::drafts::{BATCH, Draft};
use crate::long::cases;
use trainwright_executor::{Outcome, Route};
use trainwright_spec::plan::{Offload, Recompute};
use trainwright_spec::precision::Precision;
use trainwright_spec::program::{Axis, Place};

/// Relative: of each loss, of gradients' norms and of each parameter by its norm. Biases begin at zero, so what they differ by is
/// what their gradients differ by.
#[derive(Debug, Clone, Copy)]
pub struct Tolerance {
    pub losses: f64,
    pub weights: f64,
    pub biases: f64,
}

/// The largest differences of losses and of the rest, all of them within a tolerance.
pub fn check_equal(name: &str, outcome: &Outcome, reference: &Outcome, tolerance: Tolerance) -> [f64; 2] {
    let mut largest = [0.0f64; 2];
    for (step, expected) in outcome.steps.iter().zip(&reference.steps) {
        let error = (step.loss / expected.loss - 1.0).abs();
        assert!(
            error < tolerance.losses,
            "{name} step {}: loss {} is not {}",
            step.step,
            step.loss,
            expected.loss
        );
        largest[0] = largest[0].max(error);
        let norms = step.gradient_norm.zip(expected.gradient_norm);
        assert!(
            norms.is_none_or(|(step, expected)| (step / expected - 1.0).abs() < tolerance.weights),
            "{name}: {norms:?}"
        );
    }
    let (found, reference) = (outcome.weights.as_ref().unwrap(), reference.weights.as_ref().unwrap());
    assert_eq!(found.keys().collect::<Vec<_>>(), reference.keys().collect::<Vec<_>>(), "{name}");
    for (key, expected) in reference {
        let squares = |x: &mut dyn Iterator<Item = f32>| x.map(|x| f64::from(x).powi(2)).sum::<f64>().sqrt();
        let error = squares(&mut found[key].iter().zip(expected).map(|(found, expected)| found - expected));
        let norm = squares(&mut expected.iter().copied());
        let allowed = if format!("{key:?}").contains("Bias") { tolerance.biases } else { tolerance.weights };
        assert!(error <= allowed * norm, "{name}: {key:?} is {error} beside, of {norm}");
        largest[1] = if norm > 0.0 { largest[1].max(error / norm) } else { largest[1] };
    }
    largest
}

/// Drafts that are always all compared: each has something that no other one has.
const SHORT: usize = 8;

/// Drafts against one rank with the same model and optimizer, the first ones twice. Of a table of more than `SHORT` all in long tests, else two of
/// five, or the percentage that `TRAINWRIGHT_PARITY` says; the first is one of them. They are spread by the golden section, so that
/// no period of a table hides a choice.
pub fn check(drafts: &[Draft]) {
    check_within(drafts, 1e-4);
}

/// `check` with another tolerance.
pub fn check_within(drafts: &[Draft], tolerance: f64) {
    check_apart(drafts, Tolerance { losses: tolerance, weights: tolerance, biases: tolerance });
}

/// `check` with a tolerance for each kind of number.
pub fn check_apart(drafts: &[Draft], tolerance: Tolerance) {
    let part = cases("TRAINWRIGHT_PARITY", 40, 100) as f64 / 100.0;
    let runs = |index: usize| drafts.len() <= SHORT || (0.618_034 * index as f64).fract() < part;
    let chosen = drafts.iter().enumerate().filter(|(index, _)| runs(*index));
    check_each(&chosen.map(|(_, draft)| draft.clone()).collect::<Vec<_>>(), tolerance);
}

/// `check` of every draft, however few the settings ask for.
pub fn check_all(drafts: &[Draft]) {
    check_each(drafts, Tolerance { losses: 1e-4, weights: 1e-4, biases: 1e-4 });
}

fn check_each(drafts: &[Draft], tolerance: Tolerance) {
    let mut references: Vec<(String, Outcome)> = Vec::new();
    let mut largest = [0.0f64; 2];
    let repeats = cases("TRAINWRIGHT_REPEATS", 1, usize::MAX);
    for (index, draft) in drafts.iter().enumerate() {
        let Draft { model, optimizer, gradient_clipping, precision, steps, .. } = draft.clone();
        let key = format!("{model} {optimizer} {gradient_clipping} {precision} {steps}");
        if !references.iter().any(|(known, _)| *known == key) {
            let alone = Draft {
                micro_batch: BATCH,
                optimizer,
                gradient_clipping,
                precision,
                steps,
                ..Draft::of(model)
            };
            references.push((key.clone(), alone.train().unwrap()));
        }
        let (_, reference) = references.iter().find(|(known, _)| *known == key).unwrap();
        let name = format!("{draft:?}");
        let outcome = draft.train().unwrap_or_else(|error| panic!("{name}: {error}"));
        let found = check_equal(&name, &outcome, reference, tolerance);
        largest = [0, 1].map(|at| largest[at].max(found[at]));
        if index < repeats {
            check_same(&outcome, &draft.train().unwrap(), &name);
        }
        check_routes(draft, &outcome, &name);
    }
    let [losses, rest] = largest;
    println!(
        "{} plans, the largest relative difference {losses:.1e} of losses, {rest:.1e} of the rest",
        drafts.len()
    );
}

/// Two runs of one plan have the same bits.
fn check_same(outcome: &Outcome, again: &Outcome, name: &str) {
    let bits =
        |outcome: &Outcome| -> Vec<u64> { outcome.steps.iter().map(|step| step.loss.to_bits()).collect() };
    assert_eq!(bits(outcome), bits(again), "{name}: losses differ from run to run");
    assert_eq!(outcome.weights, again.weights, "{name}: weights differ from run to run");
}

/// Ranks that share a GPU communicate there along every axis; ranks on separate GPUs by NCCL, but for messages from stage
/// to stage. What modules do in steps goes through the host. Ranks on processors have no routes.
fn check_routes(draft: &Draft, outcome: &Outcome, name: &str) {
    let alone = draft.device == "cpu" || draft.plan().mesh.ranks() == 1;
    assert_eq!(outcome.routes.is_empty(), alone, "{name}: {:?}", outcome.routes);
    for (axis, route) in &outcome.routes {
        let expected = match (draft.device, axis) {
            // Rows of tokens go to experts of tensor ranks too.
            (_, Axis::Tensor) if draft.model == "mixtral" => Route::Host,
            ("emulated", Axis::Tensor | Axis::Data | Axis::Shard | Axis::Replica | Axis::Pipeline)
            | ("emulated-gpus", Axis::Pipeline) => Route::Device,
            ("emulated-gpus", Axis::Tensor | Axis::Data | Axis::Shard | Axis::Replica) => Route::Nccl,
            _ => continue,
        };
        assert_eq!(*route, expected, "{name}: {axis:?}");
    }
}

pub const MODELS: [&str; 2] = ["gpt", "llama"];

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
        for optimizer in ["adam", "adamw", "lamb", "lars", "sgd"] {
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

/// Divided gradients and weights, alone and with other axes.
#[test]
fn divided_gradients_and_weights() {
    let mut drafts = Vec::new();
    for (model, data_sharding) in [("gpt", "zero2"), ("llama", "zero2"), ("llama", "zero3"), ("gpt", "zero3")]
    {
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

/// Every schedule that ends a step with an empty pipeline, where it exists.
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
            if schedule.check(shape).is_err() || !schedule.flushes() {
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
fn embedding_and_head_in_stages_without_blocks() {
    let mut drafts = Vec::new();
    for model in MODELS {
        let shapes = [
            ([1, 4, 1], "1f1b", 1),
            ([2, 4, 1], "gpipe", 1),
            ([1, 4, 2], "zb-h1", 1),
            ([1, 2, 1], "interleaved", 3),
            ([1, 2, 2], "hanayo", 2),
            ([1, 2, 1], "zb-v", 2),
            ([1, 2, 1], "dualpipev", 2),
            ([1, 4, 1], "chimera", 1),
        ];
        for (mesh, schedule, virtual_stages) in shapes {
            let alone = Draft { mesh, schedule, virtual_stages, ends_alone: true, ..Draft::of(model) };
            match mesh[2] {
                1 => drafts.extend([
                    Draft { recompute: Recompute::Full, ..alone.clone() },
                    Draft { sequence_parallel: mesh[0] > 1, ..alone },
                ]),
                _ => drafts
                    .extend(["zero1", "zero3"].map(|data_sharding| Draft { data_sharding, ..alone.clone() })),
            }
        }
    }
    drafts.retain(|draft| draft.try_plan().is_ok());
    assert!(drafts.len() >= 28, "{}", drafts.len());
    check_all(&drafts);
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

/// Tensor ranks in a grid of 2 x 2.
#[test]
fn grids() {
    let mut drafts = Vec::new();
    for model in MODELS {
        for (mesh, data_sharding, recompute) in [
            ([4, 1, 1], "none", Recompute::None),
            ([4, 1, 1], "none", Recompute::Full),
            ([4, 1, 1], "none", "selective(core+norm+activation)".parse().unwrap()),
            ([4, 2, 1], "none", Recompute::None),
            ([4, 1, 2], "zero1", Recompute::None),
            ([4, 2, 2], "none", Recompute::None),
        ] {
            let draft = Draft { mesh, data_sharding, recompute, tensor_rows: 2, ..Draft::of(model) };
            drafts.push(Draft { micro_batch: 2, ..draft });
        }
    }
    check(&drafts);
}

/// Layer-wise optimizers compare tensors of which each rank has a part.
#[test]
fn layer_wise_optimizers() {
    let mut drafts = Vec::new();
    for optimizer in ["lamb", "lars"] {
        for (mesh, data_sharding) in
            [([2, 1, 1], "none"), ([1, 1, 2], "zero1"), ([2, 2, 2], "zero1"), ([1, 1, 2], "zero3")]
        {
            for sequence_parallel in [false, true] {
                let sequence_parallel = sequence_parallel && mesh[0] > 1;
                drafts.push(Draft { mesh, data_sharding, optimizer, sequence_parallel, ..Draft::of("gpt") });
            }
        }
        drafts.push(Draft { mesh: [2, 1, 2], expert: [2, 1, 0], optimizer, ..Draft::of("mixtral") });
    }
    check(&drafts);
}

/// In bf16 the order of sums shows in the third digit.
#[test]
fn sixteen_bits() {
    let mut drafts = Vec::new();
    for model in MODELS {
        for mesh in [[1, 1, 2], [2, 1, 1], [1, 2, 1], [2, 2, 2]] {
            let precision = Precision::Bf16;
            drafts.push(Draft { mesh, precision, optimizer: "adamw", ..Draft::of(model) });
        }
    }
    check_within(&drafts, 0.02);
    let losses = |precision| {
        let outcome = Draft { precision, ..Draft::of("gpt") }.train().unwrap();
        outcome.steps.iter().map(|step| step.loss).collect::<Vec<_>>()
    };
    let [wide, narrow] = [losses(Precision::Fp32), losses(Precision::Bf16)];
    assert!(
        wide != narrow && wide.iter().zip(&narrow).all(|(a, b)| (a / b - 1.0).abs() < 0.01),
        "{narrow:?}"
    );
}

/// Of plans in fp8.
pub const EIGHT_BITS: Tolerance = Tolerance { losses: 3e-4, weights: 0.01, biases: 0.3 };

/// In fp8 each rank's part of a tensor has a separate scale, and what is rounded up on one way is rounded down on another.
#[test]
fn fp8() {
    let precision = Precision::Fp8;
    let mut drafts = Vec::new();
    for model in MODELS {
        for mesh in [[1, 1, 2], [2, 1, 1], [1, 2, 1], [2, 2, 2]] {
            drafts.push(Draft { mesh, precision, ..Draft::of(model) });
        }
        let recompute = "selective(norm+activation)".parse().unwrap();
        drafts.push(Draft { precision, recompute, micro_batch: BATCH, ..Draft::of(model) });
    }
    check_apart(&drafts, EIGHT_BITS);
    for model in MODELS {
        let losses = |precision| {
            let outcome = Draft { precision, steps: 6, ..Draft::of(model) }.train().unwrap();
            outcome.steps.iter().map(|step| step.loss).collect::<Vec<_>>()
        };
        let [wide, narrow] = [losses(Precision::Bf16), losses(precision)];
        let is_near = |(a, b): (&f64, &f64)| (a / b - 1.0).abs() < 1e-3;
        assert!(wide != narrow && wide.iter().zip(&narrow).all(is_near), "{wide:?} {narrow:?}");
    }
}

/// What goes to a drive or to the host comes back as it was.
#[test]
fn offload() {
    let mut drafts = Vec::new();
    for place in [Place::Host, Place::Nvme] {
        let optimizer = Offload { optimizer: Some(place), ..Offload::default() };
        let activations = Offload { activations: Some(place), ..Offload::default() };
        let some = Offload { activation_blocks: Some(1), ..activations };
        let both = Offload { optimizer: Some(place), ..activations };
        for (offload, mesh, data_sharding, recompute) in [
            (optimizer, [1, 1, 1], "none", Recompute::None),
            (optimizer, [1, 2, 2], "zero1", Recompute::None),
            (activations, [1, 1, 1], "none", Recompute::Selective),
            (activations, [2, 2, 1], "none", Recompute::Full),
            (some, [1, 2, 1], "none", Recompute::None),
            (both, [1, 1, 2], "zero1", Recompute::None),
        ] {
            drafts.push(Draft {
                offload,
                mesh,
                data_sharding,
                recompute,
                optimizer: "adamw",
                ..Draft::of("llama")
            });
        }
    }
    check(&drafts);
}

/// Actions that somebody wrote, also for a pipeline in both directions.
#[test]
fn written_schedules() {
    let one_way = "0F0 0F1 0F2 0B0 0B1 0F3 0B2 0F4 0F5 0B3 0B4 0B5 0F6 0F7 0B6 0B7\n\
                   1F0 1B0 1F1 1I1 1W1 1F2 1B2 1F3 1B3 1F4 1F5 1I4 1I5 1W4 1W5 1F6 1B6 1F7 1B7\n";
    check(&[Draft { mesh: [1, 2, 1], schedule: one_way, ..Draft::of("gpt") }]);
}
