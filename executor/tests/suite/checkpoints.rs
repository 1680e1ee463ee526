//! A run that was stopped goes on as if it had not been, under the same plan or another one.

use crate::drafts::{Draft, model, settings, tokens};
use crate::parity::{Tolerance, check_equal};
use std::collections::BTreeMap;
use std::fs;
use std::num::NonZeroUsize;
use std::path::Path;
use trainwright_executor::{
    LearningRate, ModelFolder, Outcome, PositionLimit, Remark, RunError, Saving, Settings, Start, Tokens,
    train,
};
use trainwright_spec::model::hf::from_hugging_face;
use trainwright_spec::plan::Offload;
use trainwright_spec::precision::Precision;
use trainwright_spec::program::Place;

const WEIGHTS: &str = "model.safetensors";

fn saving(folder: &Path) -> Option<Saving> {
    let [every, keep] = [2, 2].map(|number| NonZeroUsize::new(number).unwrap());
    Some(Saving { folder: folder.into(), every: Some(every), keep })
}

fn resume(folder: &Path, steps: usize) -> Settings {
    // Another seed than the run's: the checkpoint has it.
    Settings { start: Start::Resume(folder.into()), seed: 99, ..settings(steps) }
}

fn run(draft: &Draft, settings: &Settings) -> Result<Outcome, RunError> {
    train(&draft.plan(), &tokens(), settings, &mut |_| {})
}

fn losses(outcome: &Outcome) -> Vec<(usize, f64)> {
    outcome.steps.iter().map(|step| (step.step, step.loss)).collect()
}

/// Drafts whose states are divided in every way there is.
fn drafts() -> Vec<Draft> {
    let adamw = |model| Draft { optimizer: "adamw", ..Draft::of(model) };
    let bf16 = |model| Draft { precision: Precision::Bf16, ..adamw(model) };
    let fp8 = |model| Draft { precision: Precision::Fp8, ..adamw(model) };
    let on = |place| Offload { optimizer: Some(place), ..Offload::default() };
    vec![
        adamw("gpt"),
        Draft { mesh: [2, 2, 1], sequence_parallel: true, ..Draft::of("gpt") },
        Draft { mesh: [1, 2, 2], data_sharding: "zero1", ..adamw("gpt") },
        Draft { mesh: [1, 2, 2], data_sharding: "zero1", ..bf16("gpt") },
        Draft { mesh: [1, 1, 4], shard: 2, data_sharding: "zero2", ..fp8("gpt") },
        adamw("llama"),
        Draft { mesh: [2, 1, 2], data_sharding: "zero2", ..adamw("llama") },
        Draft { mesh: [1, 2, 2], data_sharding: "zero3", ..adamw("llama") },
        bf16("llama"),
        Draft { mesh: [2, 1, 2], data_sharding: "zero3", ..bf16("llama") },
        Draft { mesh: [2, 1, 1], ..fp8("llama") },
        Draft { mesh: [1, 2, 2], data_sharding: "zero1", ..fp8("llama") },
        Draft { mesh: [1, 1, 2], precision: Precision::Bf16, optimizer: "sgd", ..Draft::of("llama") },
        adamw("mixtral"),
        Draft { mesh: [1, 2, 2], expert: [2, 1, 0], ..adamw("mixtral") },
        Draft { mesh: [2, 1, 2], expert: [4, 1, 1], sequence_parallel: true, ..adamw("mixtral") },
        Draft { mesh: [1, 1, 4], expert: [2, 1, 0], data_sharding: "zero3", ..bf16("mixtral") },
        Draft { mesh: [2, 1, 2], expert: [2, 1, 0], data_sharding: "zero1", ..bf16("mixtral") },
        Draft { mesh: [1, 2, 2], data_sharding: "zero1", offload: on(Place::Nvme), ..adamw("llama") },
        Draft { mesh: [1, 1, 2], data_sharding: "zero1", offload: on(Place::Nvme), ..bf16("gpt") },
        Draft { offload: on(Place::Host), ..bf16("gpt") },
    ]
}

/// The files of a step's checkpoint by name.
fn files(folder: &Path, step: usize) -> BTreeMap<String, Vec<u8>> {
    let entries = fs::read_dir(folder.join(format!("step-{step:08}"))).unwrap().map(Result::unwrap);
    entries.map(|entry| (entry.file_name().into_string().unwrap(), fs::read(entry.path()).unwrap())).collect()
}

#[test]
fn a_resumed_run_is_the_same_to_the_last_bit() {
    for draft in drafts() {
        let [folder, other] = [tempfile::tempdir().unwrap(), tempfile::tempdir().unwrap()];
        let uninterrupted = run(&draft, &settings(5)).unwrap();
        let whole = run(&draft, &Settings { saving: saving(other.path()), ..settings(5) }).unwrap();
        assert_eq!(losses(&whole), losses(&uninterrupted), "{draft:?}: saving changes the run");
        run(&draft, &Settings { saving: saving(folder.path()), ..settings(4) }).unwrap();
        let resumed = Settings { saving: saving(folder.path()), ..resume(folder.path(), 5) };
        let rest = run(&draft, &resumed).unwrap();
        assert_eq!(losses(&rest), losses(&uninterrupted)[4..], "{draft:?}");
        assert_eq!(rest.weights, uninterrupted.weights, "{draft:?}");
        // Moments and f32 weights, too.
        let [found, expected] = [&folder, &other].map(|folder| files(folder.path(), 5));
        for (name, expected) in &expected {
            assert!(found[name] == *expected, "{draft:?}: {name} has other bits");
        }
        let names: Vec<_> =
            fs::read_dir(folder.path()).unwrap().map(|entry| entry.unwrap().file_name()).collect();
        assert_eq!(names.len(), 2, "two checkpoints and nothing else: {names:?}");
    }
}

/// How much the losses and weights of two plans may differ: in 16 bits the order of sums shows in the third digit, and operands of 8
/// bits have gradients that differ in the second one.
fn tolerance(one: &Draft, other: &Draft) -> Tolerance {
    let has = |precision| [one, other].iter().any(|draft| draft.precision == precision);
    match (has(Precision::Fp8), has(Precision::Bf16)) {
        (true, _) => Tolerance { losses: 1e-3, weights: 0.06, biases: 0.5 },
        (_, true) => Tolerance { losses: 2e-4, weights: 0.03, biases: 0.3 },
        _ => Tolerance { losses: 1e-5, weights: 1e-4, biases: 1e-3 },
    }
}

#[test]
fn any_plan_goes_on_with_the_checkpoint_of_any_other() {
    let drafts: Vec<Draft> = drafts().into_iter().filter(|draft| draft.optimizer == "adamw").collect();
    for from in &drafts {
        let folder = tempfile::tempdir().unwrap();
        run(from, &Settings { saving: saving(folder.path()), ..settings(2) }).unwrap();
        let expected = run(from, &resume(folder.path(), 4)).unwrap();
        let written = files(folder.path(), 2);
        for to in drafts.iter().filter(|to| to.model == from.model) {
            let name = format!("{from:?} to {to:?}");
            check_equal(&name, &run(to, &resume(folder.path(), 4)).unwrap(), &expected, tolerance(from, to));
            // What is read is what was written: behind a step at a rate of 0 the weights have the same bits.
            let other = tempfile::tempdir().unwrap();
            let learning_rate = LearningRate::constant(0.0);
            let still = Settings { learning_rate, saving: saving(other.path()), ..resume(folder.path(), 3) };
            run(to, &still).unwrap();
            let found = files(other.path(), 3);
            assert!(found[WEIGHTS] == written[WEIGHTS], "{name}: other weights");
        }
    }
}

/// The files of a checkpoint are those of Hugging Face: a configuration that says the same model, and shapes that
/// `GPT2LMHeadModel`, `LlamaForCausalLM` and `MixtralForCausalLM` have.
#[test]
fn names_and_shapes_are_hugging_faces() {
    for (name, tensor, shape) in [
        ("gpt", "transformer.h.3.attn.c_attn.weight", "[32,96]"),
        ("gpt", "transformer.h.0.mlp.c_proj.weight", "[128,32]"),
        ("gpt", "transformer.wpe.weight", "[20,32]"),
        ("llama", "model.layers.2.self_attn.k_proj.weight", "[16,32]"),
        ("llama", "model.layers.0.mlp.gate_proj.weight", "[48,32]"),
        ("llama", "lm_head.weight", "[67,32]"),
        ("mixtral", "model.layers.3.block_sparse_moe.experts.2.w1.weight", "[24,32]"),
        ("mixtral", "model.layers.1.block_sparse_moe.experts.3.w2.weight", "[32,24]"),
        ("mixtral", "model.layers.0.block_sparse_moe.gate.weight", "[4,32]"),
    ] {
        let folder = tempfile::tempdir().unwrap();
        // In bf16 it is the f32 weights that the optimizer changes.
        let draft = Draft { precision: Precision::Bf16, ..Draft::of(name) };
        run(&draft, &Settings { saving: saving(folder.path()), ..settings(1) }).unwrap();
        let saved = folder.path().join("step-00000001");
        let config = fs::read_to_string(saved.join("config.json")).unwrap();
        // What the plan's model leaves to the executor, the file says.
        let mut said = model(name);
        said.norm_epsilon = Some(1e-5);
        for attention in said.blocks.iter_mut().map(|run| &mut run.block.attention) {
            attention.rotary_base = attention.rotary.then_some(10_000.0);
        }
        assert_eq!(from_hugging_face(&config, name).unwrap(), said);
        assert!(!config.contains("max_position_embeddings"), "{config}");
        let file = fs::read(saved.join("model.safetensors")).unwrap();
        let header = String::from_utf8_lossy(&file[8..8 + file[0] as usize + 256 * file[1] as usize]);
        let entry = format!(r#""{tensor}":{{"dtype":"F32","shape":{shape}"#);
        assert!(header.contains(&entry), "{entry} is not in {header}");
        // A folder like that begins another run.
        let begun = run(&draft, &Settings { start: Start::Weights(saved), ..settings(1) }).unwrap();
        assert_eq!(begun.steps[0].step, 1);
    }
}

#[test]
fn what_does_not_suit_is_one_clear_error() {
    let folder = tempfile::tempdir().unwrap();
    let draft = Draft { optimizer: "adamw", ..Draft::of("gpt") };
    run(&draft, &Settings { saving: saving(folder.path()), ..settings(2) }).unwrap();
    let saved = folder.path().join("step-00000002");
    let check = |draft: &Draft, tokens: &Tokens, steps, expected: &str| {
        let error = train(&draft.plan(), tokens, &resume(folder.path(), steps), &mut |_| {}).unwrap_err();
        let text = error.to_string();
        assert!(matches!(error, RunError::Checkpoint(_)) && text.contains(expected), "{text}");
    };
    check(&draft, &tokens(), 2, "`step` is 2; the run is to end with step 2");
    check(&draft, &Tokens::synthetic(67, 1000, 6), 3, "`data` is ");
    check(&draft, &Tokens::bytes(&[1; 100]), 3, "`tokenizer` is none; the data was made with bytes");
    check(&Draft::of("gpt"), &tokens(), 3, "`optimizer` is adamw; the plan has momentum");
    let other = Draft { optimizer: "adamw", ..Draft::of("llama") };
    check(&other, &tokens(), 3, "config.json: `model.embedding.position` is {\"learned\":20}");
    fs::remove_file(saved.join("config.json")).unwrap();
    check(&other, &tokens(), 3, "has no tensor `model.embed_tokens.weight`");
    let weights = saved.join("model.safetensors");
    let bytes = fs::read(&weights).unwrap();
    fs::write(&weights, &bytes[..bytes.len() - 1]).unwrap();
    check(&draft, &tokens(), 3, "model.safetensors is damaged: its checksum is ");
    // A checkpoint of an earlier version has no checksums.
    let trainer = fs::read_to_string(saved.join("trainer.json")).unwrap();
    let earlier = format!("{}\n}}", &trainer[..trainer.find(",\n  \"checksums\"").unwrap()]);
    fs::write(saved.join("trainer.json"), earlier).unwrap();
    for length in [0, 5, 100, bytes.len() - 1] {
        fs::write(&weights, &bytes[..length]).unwrap();
        check(&draft, &tokens(), 3, &format!("model.safetensors is damaged: it has {length} bytes"));
    }
    let renamed = String::from_utf8_lossy(&bytes[..600]).replace("[67,32]", "[32,67]");
    fs::write(&weights, [&bytes[..8], &renamed.as_bytes()[renamed.len() - 592..], &bytes[600..]].concat())
        .unwrap();
    check(
        &draft,
        &tokens(),
        3,
        "tensor `transformer.wte.weight` has the shape [32, 67], the plan's model wants [67, 32]",
    );
    fs::write(saved.join("trainer.json"), "{").unwrap();
    check(&draft, &tokens(), 3, "trainer.json is damaged");
    fs::remove_dir_all(&saved).unwrap();
    check(&draft, &tokens(), 3, "has no complete checkpoint");
}

/// Rotary positions have no table that ends: what the configuration states goes on with the weights.
#[test]
fn a_checkpoint_states_the_positions_that_the_configuration_states() {
    let limit = |origin: &str, positions| Some(PositionLimit { origin: origin.into(), positions });
    for name in ["llama", "mixtral"] {
        let folder = tempfile::tempdir().unwrap();
        let draft = Draft::of(name);
        let begin = Settings { position_limit: limit("own.json", 64), ..settings(2) };
        run(&draft, &Settings { saving: saving(folder.path()), ..begin.clone() }).unwrap();
        // Whoever goes on has the folder alone.
        let resumed = Settings { saving: saving(folder.path()), ..resume(folder.path(), 3) };
        run(&draft, &resumed).unwrap();
        let saved = folder.path().join("step-00000003");
        let config = saved.join("config.json");
        let opened = ModelFolder::open(folder.path(), Remark::default()).unwrap();
        assert_eq!(opened.limit, limit(&config.display().to_string(), 64));
        assert!(opened.check_length(64).is_ok());
        let error = opened.check_length(65).unwrap_err().to_string();
        let expected =
            format!("{}: `max_position_embeddings` is 64; a sequence of 65 tokens", config.display());
        assert!(error.starts_with(&expected) && !error.contains('\n'), "{error}");
        // The plan's sequences have 16 tokens.
        let shorter = fs::read_to_string(&config).unwrap().replace(": 64", ": 15");
        fs::write(&config, shorter).unwrap();
        for settings in [
            Settings { start: Start::Weights(saved), ..settings(1) },
            resume(folder.path(), 4),
            Settings { position_limit: limit("own.json", 15), ..settings(1) },
        ] {
            let error = run(&draft, &settings).unwrap_err().to_string();
            let expected = "json: `max_position_embeddings` is 15; a sequence of 16 tokens is longer";
            assert!(error.contains(expected), "{error}");
        }
    }
}

/// A byte of the state: the last checkpoint is passed over with a line, and the one before it goes on.
#[test]
fn a_damaged_state_is_found_and_an_earlier_checkpoint_used() {
    let folder = tempfile::tempdir().unwrap();
    let draft = Draft { optimizer: "adamw", ..Draft::of("gpt") };
    run(&draft, &Settings { saving: saving(folder.path()), ..settings(4) }).unwrap();
    let path = folder.path().join("step-00000004/trainer.json");
    let text = fs::read_to_string(&path).unwrap();
    // Another seed would be another order of the data.
    fs::write(&path, text.replace("\"seed\": 11", "\"seed\": 10")).unwrap();
    let steps = run(&draft, &resume(folder.path(), 5)).unwrap().steps;
    assert_eq!(steps.iter().map(|step| step.step).collect::<Vec<_>>(), [3, 4, 5]);
    fs::remove_dir_all(folder.path().join("step-00000002")).unwrap();
    let error = run(&draft, &resume(folder.path(), 5)).unwrap_err().to_string();
    assert!(error.contains("trainer.json is damaged: its checksum is ") && !error.contains('\n'), "{error}");
}
