//! A run that was stopped goes on as if it had not been, under the same plan or another one.

use crate::drafts::{Draft, model, settings, tokens};
use std::fs;
use std::num::NonZeroUsize;
use std::path::Path;
use trainwright_executor::{Outcome, RunError, Saving, Settings, Start, Tokens, train};
use trainwright_spec::model::hf::from_hugging_face;

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
    vec![
        adamw("gpt"),
        Draft { mesh: [2, 2, 1], sequence_parallel: true, ..Draft::of("gpt") },
        Draft { mesh: [1, 2, 2], data_sharding: "zero1", ..adamw("gpt") },
        adamw("llama"),
        Draft { mesh: [2, 1, 2], data_sharding: "zero2", ..adamw("llama") },
        Draft { mesh: [1, 2, 2], data_sharding: "zero3", ..adamw("llama") },
    ]
}

#[test]
fn a_resumed_run_is_the_same_to_the_last_bit() {
    for draft in drafts() {
        let folder = tempfile::tempdir().unwrap();
        let uninterrupted = run(&draft, &settings(5)).unwrap();
        let first = run(&draft, &Settings { saving: saving(folder.path()), ..settings(4) }).unwrap();
        assert_eq!(losses(&first), losses(&uninterrupted)[..4], "{draft:?}: saving changes the run");
        let rest = run(&draft, &resume(folder.path(), 5)).unwrap();
        assert_eq!(losses(&rest), losses(&uninterrupted)[4..], "{draft:?}");
        assert_eq!(rest.weights, uninterrupted.weights, "{draft:?}");
        let names: Vec<_> =
            fs::read_dir(folder.path()).unwrap().map(|entry| entry.unwrap().file_name()).collect();
        assert_eq!(names.len(), 2, "two checkpoints and nothing else: {names:?}");
    }
}

#[test]
fn any_plan_goes_on_with_the_checkpoint_of_any_other() {
    let drafts: Vec<Draft> = drafts().into_iter().filter(|draft| draft.optimizer == "adamw").collect();
    for from in &drafts {
        let folder = tempfile::tempdir().unwrap();
        run(from, &Settings { saving: saving(folder.path()), ..settings(2) }).unwrap();
        let expected = run(from, &resume(folder.path(), 3)).unwrap();
        for to in drafts.iter().filter(|to| to.model == from.model) {
            let resumed = run(to, &resume(folder.path(), 3)).unwrap();
            let error = (resumed.steps[0].loss / expected.steps[0].loss - 1.0).abs();
            assert!(error < 1e-5, "{from:?} to {to:?}: {error}");
            // What is read is what was written: saved again without a step it would be the same; so are the weights
            // but for the rounding of one step.
            let (resumed, expected) = (resumed.weights.as_ref().unwrap(), expected.weights.as_ref().unwrap());
            for (key, expected) in expected {
                let largest =
                    resumed[key].iter().zip(expected).map(|(a, b)| (a - b).abs()).fold(0.0, f32::max);
                assert!(largest < 1e-4, "{from:?} to {to:?}: {key:?} is {largest} beside");
            }
        }
    }
}

/// The files of a checkpoint are those of Hugging Face: a configuration that says the same model, and shapes that
/// `GPT2LMHeadModel` and `LlamaForCausalLM` have.
#[test]
fn names_and_shapes_are_hugging_faces() {
    for (name, tensor, shape) in [
        ("gpt", "transformer.h.3.attn.c_attn.weight", "[32,96]"),
        ("gpt", "transformer.h.0.mlp.c_proj.weight", "[128,32]"),
        ("gpt", "transformer.wpe.weight", "[20,32]"),
        ("llama", "model.layers.2.self_attn.k_proj.weight", "[16,32]"),
        ("llama", "model.layers.0.mlp.gate_proj.weight", "[48,32]"),
        ("llama", "lm_head.weight", "[67,32]"),
    ] {
        let folder = tempfile::tempdir().unwrap();
        run(&Draft::of(name), &Settings { saving: saving(folder.path()), ..settings(1) }).unwrap();
        let saved = folder.path().join("step-00000001");
        let config = fs::read_to_string(saved.join("config.json")).unwrap();
        // What the plan's model leaves to the executor, the file says.
        let mut said = model(name);
        said.norm_epsilon = Some(1e-5);
        for attention in said.blocks.iter_mut().map(|run| &mut run.block.attention) {
            attention.rotary_base = attention.rotary.then_some(10_000.0);
        }
        assert_eq!(from_hugging_face(&config, name).unwrap(), said);
        let file = fs::read(saved.join("model.safetensors")).unwrap();
        let header = String::from_utf8_lossy(&file[8..8 + file[0] as usize + 256 * file[1] as usize]);
        let entry = format!(r#""{tensor}":{{"dtype":"F32","shape":{shape}"#);
        assert!(header.contains(&entry), "{entry} is not in {header}");
        // A folder like that begins another run.
        let begun = run(&Draft::of(name), &Settings { start: Start::Weights(saved), ..settings(1) }).unwrap();
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
