//! Documents that are packed into sequences train as if each were alone, under any plan.

use crate::drafts::{BATCH, Draft, settings};
use crate::parity::{Tolerance, check_equal};
use std::fs;
use std::num::NonZeroUsize;
use std::path::Path;
use std::sync::Mutex;
use trainwright_executor::{
    DataFile, DataOptions, DeviceKind, LearningRate, Outcome, Remark, Saving, Settings, Start, Tokens,
    Validation, train,
};
use trainwright_spec::job::Job;
use trainwright_spec::plan::{Plan, Recompute};

/// The tokens of documents of bytes.
fn tokens(folder: &Path, documents: &[String]) -> Tokens {
    let path = folder.join("documents.jsonl");
    let line = |text: &String| format!("{}\n", serde_json::json!({ "text": text }));
    fs::write(&path, documents.iter().map(line).collect::<String>()).unwrap();
    let options = DataOptions { documents: true, ..DataOptions::default() };
    Tokens::open(&[DataFile { path: &path, format: None, weight: None }], &options).unwrap()
}

/// Documents of 1 to 14 characters, all of which are tokens of the drafts' models, 1,500 or more together.
fn documents() -> Vec<String> {
    let mut state = 9u64;
    let mut next = |below: u64| {
        state = state.wrapping_mul(6_364_136_223_846_793_005).wrapping_add(1_442_695_040_888_963_407);
        (state >> 33) % below
    };
    let mut documents: Vec<String> = Vec::new();
    while documents.iter().map(String::len).sum::<usize>() < 1500 {
        let length = 1 + next(14);
        documents.push((0..length).map(|_| char::from(b'#' + next(32) as u8)).collect());
    }
    documents
}

fn masking(steps: usize) -> Settings {
    Settings { document_mask: true, ..settings(steps) }
}

/// One step of gradient descent with a batch of one sequence: the loss, and what it adds to each parameter.
fn one_step(model: &'static str, sequence: usize, tokens: &Tokens, masks: bool) -> (f64, Vec<Vec<f64>>) {
    let plan = Draft { optimizer: "sgd", gradient_clipping: false, ..Draft::of(model) }.plan();
    let plan = Plan { job: Job { sequence, global_batch: 1, ..plan.job }, ..plan };
    let run = |rate: f32| {
        let learning_rate = LearningRate::constant(rate);
        let settings = Settings { document_mask: masks, learning_rate, weight_decay: 0.0, ..settings(1) };
        train(&plan, tokens, &settings, &mut |_| {}).unwrap()
    };
    let (before, after) = (run(0.0).weights.unwrap(), run(1.0));
    let weights = after.weights.unwrap();
    let moved = weights.iter().map(|(key, weights)| {
        weights.iter().zip(&before[key]).map(|(after, before)| f64::from(after - before)).collect()
    });
    (after.steps[0].loss, moved.collect())
}

/// 17 tokens in documents of 6, 1, 7 and 3: of a document of n tokens n − 1 are predicted.
#[test]
fn loss_and_gradients_are_those_of_the_documents_alone_by_their_tokens() {
    let folder = tempfile::tempdir().unwrap();
    let documents = ["0@1A2;", "7", "B()09>=", "!5*"].map(String::from);
    let packed = tokens(folder.path(), &documents);
    for model in ["gpt", "llama", "mixtral"] {
        let (loss, moved) = one_step(model, 16, &packed, true);
        let (crossing, _) = one_step(model, 16, &packed, false);
        assert!((loss / crossing - 1.0).abs() > 1e-5, "{model}: the mask changes nothing: {loss} {crossing}");
        let (mut expected, mut of_documents) =
            (0.0, moved.iter().map(|of| vec![0.0; of.len()]).collect::<Vec<_>>());
        for text in documents.iter().filter(|text| text.len() > 1) {
            let share = (text.len() - 1) as f64 / 13.0;
            let (loss, moved) = one_step(model, text.len() - 1, &Tokens::bytes(text.as_bytes()), false);
            expected += share * loss;
            for (sum, moved) in of_documents.iter_mut().flatten().zip(moved.iter().flatten()) {
                *sum += share * moved;
            }
        }
        assert!((loss / expected - 1.0).abs() < 1e-6, "{model}: {loss} {expected}");
        for (index, (moved, expected)) in moved.iter().zip(&of_documents).enumerate() {
            let norm = |x: &mut dyn Iterator<Item = f64>| x.map(|x| x * x).sum::<f64>().sqrt();
            let error = norm(&mut moved.iter().zip(expected).map(|(a, b)| a - b));
            let size = norm(&mut expected.iter().copied());
            // Weights near 1 are rounded to 6e-8 before the difference is formed.
            assert!(error <= 1e-4 * size + 1e-6, "{model}: tensor {index} is {error} beside, of {size}");
        }
    }
}

fn run(draft: &Draft, tokens: &Tokens, settings: &Settings) -> Outcome {
    train(&draft.plan(), tokens, settings, &mut |_| {}).unwrap_or_else(|error| panic!("{draft:?}: {error}"))
}

fn validating(tokens: &Tokens) -> Option<Validation> {
    let [every, batches] = [NonZeroUsize::new(2).unwrap(); 2];
    Some(Validation { tokens: tokens.clone(), every, batches })
}

#[test]
fn every_plan_gives_the_losses_of_one_rank() {
    let folder = tempfile::tempdir().unwrap();
    let tokens = tokens(folder.path(), &documents());
    let core = "selective(core+norm)".parse().unwrap();
    for model in ["gpt", "llama"] {
        let of = || Draft::of(model);
        let mut drafts = vec![
            Draft { micro_batch: 2, recompute: Recompute::Full, ..of() },
            Draft { mesh: [2, 1, 1], sequence_parallel: true, micro_batch: 2, recompute: core, ..of() },
            Draft { mesh: [1, 4, 1], schedule: "zb-h1", ..of() },
            Draft { mesh: [1, 2, 1], virtual_stages: 2, schedule: "dualpipev", ..of() },
            Draft { mesh: [1, 1, 4], data_sharding: "zero1", ..of() },
            Draft { mesh: [1, 1, 2], data_sharding: "zero3", ..of() },
            Draft { mesh: [4, 1, 1], tensor_rows: 2, micro_batch: 2, ..of() },
            Draft { mesh: [2, 2, 1], context: [2, 1], ..of() },
        ];
        for (context_scheme, context) in
            [("ring", [4, 1]), ("all-gather", [2, 1]), ("ulysses", [2, 1]), ("hybrid", [4, 2])]
        {
            drafts.push(Draft { context_scheme, context, micro_batch: 2, ..of() });
        }
        let settings = Settings { validation: validating(&tokens), ..masking(3) };
        let alone = run(&Draft { micro_batch: BATCH, ..of() }, &tokens, &settings);
        let tolerance = Tolerance { losses: 1e-4, weights: 1e-4, biases: 1e-4 };
        for draft in drafts {
            let outcome = run(&draft, &tokens, &settings);
            check_equal(&format!("{draft:?}"), &outcome, &alone, tolerance);
            let [found, expected] = [&outcome, &alone].map(|of| of.steps[2].validation_loss.unwrap());
            assert!((found / expected - 1.0).abs() < 1e-4, "{draft:?}: {found} {expected}");
        }
    }
}

/// At a rate of 0 the loss of held-out documents is the training loss of the same sequences in one step.
#[test]
fn a_validation_keeps_documents_apart_too() {
    let folder = tempfile::tempdir().unwrap();
    let mut texts = documents();
    let mut count = 0;
    texts.retain(|text| {
        count += text.len();
        count <= BATCH * 16 + 16
    });
    let tokens = tokens(folder.path(), &texts);
    let learning_rate = LearningRate::constant(0.0);
    let step = |document_mask: bool| {
        let validation = validating(&tokens);
        let settings = Settings { document_mask, learning_rate, validation, ..settings(1) };
        run(&Draft { micro_batch: 2, ..Draft::of("llama") }, &tokens, &settings).steps[0].clone()
    };
    let [masked, crossing] = [true, false].map(step);
    let validation_loss = masked.validation_loss.unwrap();
    assert!((validation_loss / masked.loss - 1.0).abs() < 1e-6, "{masked:?}");
    assert!((crossing.validation_loss.unwrap() / validation_loss - 1.0).abs() > 1e-6, "{crossing:?}");
}

#[test]
fn a_resumed_run_has_the_same_bits_and_another_plan_the_same_losses() {
    let folder = tempfile::tempdir().unwrap();
    let tokens = tokens(folder.path(), &documents());
    let draft = Draft { mesh: [1, 2, 1], optimizer: "adamw", ..Draft::of("llama") };
    let saving = Saving {
        folder: folder.path().join("checkpoints"),
        every: NonZeroUsize::new(2),
        keep: NonZeroUsize::new(9).unwrap(),
    };
    let whole = run(&draft, &tokens, &masking(4));
    run(&draft, &tokens, &Settings { saving: Some(saving.clone()), ..masking(2) });
    let resumed = Settings { start: Start::Resume(saving.folder), ..masking(4) };
    let rest = run(&draft, &tokens, &resumed);
    assert_eq!(rest.weights, whole.weights);
    let bits = |outcome: &Outcome, from: usize| -> Vec<u64> {
        outcome.steps[from..].iter().map(|step| step.loss.to_bits()).collect()
    };
    assert_eq!(bits(&rest, 0), bits(&whole, 2));
    let other = Draft { mesh: [2, 1, 1], context: [2, 1], micro_batch: 4, ..draft };
    for (step, expected) in run(&other, &tokens, &resumed).steps.iter().zip(&whole.steps[2..]) {
        assert!((step.loss / expected.loss - 1.0).abs() < 1e-4, "{step:?} {expected:?}");
    }
}

#[test]
fn what_cannot_keep_documents_apart_is_refused() {
    let folder = tempfile::tempdir().unwrap();
    let check = |tokens: &Tokens, settings: &Settings, expected: &str| {
        let error = train(&Draft::of("gpt").plan(), tokens, settings, &mut |_| {}).unwrap_err().to_string();
        assert!(error.contains(expected) && !error.contains('\n'), "{error}");
    };
    check(&crate::drafts::tokens(), &masking(1), "its documents are not known");
    let known = tokens(folder.path(), &documents());
    let device = DeviceKind::from_name("emulated").unwrap();
    check(&known, &Settings { device, ..masking(1) }, "document mask");
    check(&known, &Settings { device, z_loss: 1e-4, ..settings(1) }, "z-loss");
    check(&known, &Settings { device, label_smoothing: 0.1, ..settings(1) }, "label smoothing");
}

/// The lines of `a_step_without_targets_says_why_its_loss_is_zero`.
static LINES: Mutex<Vec<String>> = Mutex::new(Vec::new());

/// Two sequences of 16 tokens: documents of one token each, and one document. Each is a step.
#[test]
fn a_step_without_targets_says_why_its_loss_is_zero() {
    let folder = tempfile::tempdir().unwrap();
    let mut texts = vec!["1".to_string(); 17];
    texts.push("0@1A2;7B()09>=!5".into());
    let plan = Draft::of("llama").plan();
    let plan = Plan { job: Job { global_batch: 1, ..plan.job }, ..plan };
    let remark = Remark(|line| LINES.lock().unwrap().push(line.into()));
    let settings = Settings { remark, ..masking(2) };
    let steps = train(&plan, &tokens(folder.path(), &texts), &settings, &mut |_| {}).unwrap().steps;
    let without: Vec<usize> = steps.iter().filter(|step| step.loss == 0.0).map(|step| step.step).collect();
    let lines = LINES.lock().unwrap();
    assert!(without.len() == 1 && lines.len() == 1, "{steps:?} {lines:?}");
    let expected = format!("step {}: none of its documents has two tokens in a sequence", without[0]);
    assert!(lines[0].starts_with(&expected), "{lines:?}");
}

/// Processes of a run compare what they train on: the beginnings of documents are part of it.
#[test]
fn other_documents_are_other_data() {
    let folder = tempfile::tempdir().unwrap();
    let [one, two] = [["abc", "de"], ["ab", "cde"]]
        .map(|texts| serde_json::to_string(&tokens(folder.path(), &texts.map(String::from))).unwrap());
    assert_ne!(one, two);
    let masked = |document_mask| serde_json::to_value(Settings { document_mask, ..settings(1) }).unwrap();
    assert_ne!(masked(true), masked(false));
}
