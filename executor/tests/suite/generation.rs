//! Generation: logits with a cache against those without, every plan against one rank, samples of a training against its
//! checkpoints, weights in fewer bits.

use crate::drafts::{BATCH, Draft, settings, tokens};
use std::num::NonZeroUsize;
use std::path::Path;
use trainwright_executor::{
    Completion, Generation, GenerationMemory, LearningRate, ModelFolder, Remark, RunError, Sampling, Saving,
    Settings, Start, Tokens, TrainingSample, WeightFormat, generate, tensor_and_pipeline_ranks, train,
};
use trainwright_spec::model::Mask;
use trainwright_spec::plan::Plan;
use trainwright_spec::precision::Precision;

/// Every family: learned positions, grouped keys with rotary positions, experts.
const MODELS: [&str; 3] = ["gpt", "llama", "mixtral"];

fn wanted(prompts: &[&[u32]], tokens: usize) -> Generation {
    Generation {
        prompts: prompts.iter().map(|prompt| prompt.to_vec()).collect(),
        tokens: NonZeroUsize::new(tokens).unwrap(),
        stop: None,
        sampling: None,
        weights: WeightFormat::Fp32,
        return_logits: false,
    }
}

fn run(plan: &Plan, start: Start, generation: Generation) -> Result<Vec<Completion>, RunError> {
    let settings = Settings { start, generation: Some(generation), ..settings(1) };
    generate(plan, &settings, &mut |_| {})
}

fn with_logits(plan: &Plan, start: &Start, prompts: &[&[u32]], tokens: usize) -> Vec<Completion> {
    let generation = Generation { return_logits: true, ..wanted(prompts, tokens) };
    run(plan, start.clone(), generation).unwrap()
}

fn tokens_of(completions: &[Completion]) -> Vec<Vec<u32>> {
    completions.iter().map(|made| made.tokens.clone()).collect()
}

/// A plan whose queries see three tokens.
fn windowed(draft: &Draft) -> Plan {
    let mut plan = draft.plan();
    plan.model.blocks[0].block.attention.mask = Mask::Window(3);
    plan
}

#[test]
fn windows_generate_and_do_not_train() {
    let made = |plan: &Plan| tokens_of(&run(plan, Start::Anew, wanted(&PROMPTS, 8)).unwrap());
    let one_rank = made(&windowed(&Draft::of("llama")));
    assert_ne!(one_rank, made(&Draft::of("llama").plan()));
    for mesh in [[2, 1, 1], [1, 2, 1]] {
        assert_eq!(made(&windowed(&Draft { mesh, ..Draft::of("llama") })), one_rank, "{mesh:?}");
    }
    let trained = train(&windowed(&Draft::of("llama")), &tokens(), &settings(1), &mut |_| {});
    let error = trained.unwrap_err().to_string();
    assert!(error.contains("it trains with causal and full attention"), "{error}");
}

/// A pass without a cache is one over all tokens so far. Every product and every query is computed row by row in one order, so
/// that not a bit differs.
#[test]
fn logits_with_a_cache_have_the_bits_of_those_without() {
    let mut multi_query = Draft::of("llama").plan();
    multi_query.model.blocks[0].block.attention.kv_heads = 1;
    let mut half_rotary = Draft::of("llama").plan();
    half_rotary.model.blocks[0].block.attention.rotary_head_dim = Some(4);
    let more = [multi_query, half_rotary, windowed(&Draft::of("llama"))];
    let plans = MODELS.map(|model| Draft::of(model).plan()).into_iter().chain(more);
    for (number, plan) in plans.enumerate() {
        let prompt: [u32; 5] = [3, 66, 0, 17, 40];
        let cached = with_logits(&plan, &Start::Anew, &[&prompt], 9).remove(0);
        assert_eq!((cached.tokens.len(), cached.logits.len()), (9, 9));
        let mut all = prompt.to_vec();
        for (place, token) in cached.tokens.iter().enumerate() {
            let alone = with_logits(&plan, &Start::Anew, &[&all], 1).remove(0);
            assert_eq!(alone.logits[0], cached.logits[place], "model {number}, token {place}");
            assert_eq!(alone.logits[0].len(), 67);
            assert_eq!(alone.tokens, [*token]);
            all.push(*token);
        }
    }
}

/// The kernels of training are others: tiles instead of rows. Its loss is that of the probabilities of a generation, but for
/// rounding to 24 bits.
#[test]
fn the_loss_of_training_is_that_of_the_logits() {
    let data: Vec<u8> = (0..BATCH * 16 + 1).map(|at| ((at * at * 7 + at / 3) % 67) as u8).collect();
    for model in MODELS {
        let plan = Draft { micro_batch: BATCH, ..Draft::of(model) }.plan();
        let at_rate_0 = Settings { learning_rate: LearningRate::constant(0.0), ..settings(1) };
        let trained = train(&plan, &Tokens::bytes(&data), &at_rate_0, &mut |_| {}).unwrap().steps[0].loss;
        let all: Vec<u32> = data.iter().map(|byte| u32::from(*byte)).collect();
        let prefixes: Vec<&[u32]> = (0..BATCH * 16).map(|at| &all[at - at % 16..=at]).collect();
        let made = with_logits(&plan, &Start::Anew, &prefixes, 1);
        let losses = made.iter().zip(&all[1..]).map(|(made, next)| {
            let logits: Vec<f64> = made.logits[0].iter().map(|logit| f64::from(*logit)).collect();
            logits.iter().map(|logit| logit.exp()).sum::<f64>().ln() - logits[*next as usize]
        });
        let loss = losses.sum::<f64>() / (BATCH * 16) as f64;
        assert!((loss / trained - 1.0).abs() < 1e-6, "{model}: {loss} {trained}");
    }
}

const PROMPTS: [&[u32]; 3] = [&[3, 66, 0, 17, 40], &[1], &[9, 8, 7, 6, 5, 4, 3, 2]];

fn grid(model: &'static str) -> Vec<Draft> {
    let of = |mesh| Draft { mesh, ..Draft::of(model) };
    let experts = |mesh, expert| Draft { expert, ..of(mesh) };
    let mut drafts = vec![
        Draft { sequence_parallel: true, ..of([2, 1, 1]) },
        of([1, 2, 1]),
        of([1, 4, 1]),
        of([1, 1, 2]),
        of([1, 1, 4]),
        of([2, 2, 1]),
        Draft { data_sharding: "zero3", ..of([2, 1, 2]) },
        of([1, 2, 2]),
        of([2, 2, 2]),
        Draft { virtual_stages: 2, schedule: "interleaved", ..of([1, 2, 1]) },
        Draft { virtual_stages: 2, schedule: "dualpipev", ..of([1, 2, 1]) },
    ];
    if model == "mixtral" {
        drafts.push(experts([1, 1, 2], [2, 1, 0]));
        drafts.push(experts([2, 1, 2], [2, 1, 0]));
    }
    drafts
}

/// Tensor ranks add their sums in another order, so that logits differ in the last bits; tokens do not.
#[test]
fn every_plan_generates_what_one_rank_does() {
    let draws = Sampling { temperature: 0.9, top_k: NonZeroUsize::new(40), top_p: 0.95, seed: 3 };
    for model in MODELS {
        for sampling in [None, Some(draws)] {
            let generation = || Generation { sampling, ..wanted(&PROMPTS, 8) };
            let alone = tokens_of(&run(&Draft::of(model).plan(), Start::Anew, generation()).unwrap());
            assert_eq!(alone.iter().map(Vec::len).collect::<Vec<_>>(), [8; 3]);
            for draft in grid(model) {
                let made = run(&draft.plan(), Start::Anew, generation());
                let made = made.unwrap_or_else(|error| panic!("{draft:?}: {error}"));
                assert_eq!(tokens_of(&made), alone, "{draft:?}");
            }
        }
    }
}

/// A prompt and what Transformers puts behind it.
#[derive(serde::Deserialize)]
struct Continued {
    prompt: Vec<u32>,
    tokens: Vec<u32>,
}

/// Experts, a window and θ of a folder that Transformers wrote; `tests/torch/make_mixtral.py` makes it.
#[test]
fn a_mixtral_of_hugging_face_generates_what_transformers_does() {
    let path = Path::new(env!("CARGO_MANIFEST_DIR")).join("tests/torch/mixtral");
    let folder = ModelFolder::open(&path, Remark::default()).unwrap();
    let all = std::fs::read_to_string(path.join("tokens.json")).unwrap();
    let all: Vec<Continued> = serde_json::from_str(&all).unwrap();
    let prompts: Vec<&[u32]> = all.iter().map(|continued| &continued.prompt[..]).collect();
    let expected: Vec<Vec<u32>> = all.iter().map(|continued| continued.tokens.clone()).collect();
    for [tensor, pipeline] in [[1, 1], [1, 2]] {
        let plan = tensor_and_pipeline_ranks(folder.model.clone().unwrap(), tensor, pipeline);
        let made = run(&plan, Start::Weights(path.clone()), wanted(&prompts, expected[0].len())).unwrap();
        assert_eq!(tokens_of(&made), expected, "{pipeline} stages");
    }
}

/// A text ends with the token that stops it, also where ranks that share experts go on.
#[test]
fn a_token_that_stops_is_the_last() {
    for draft in [Draft::of("gpt"), Draft { mesh: [1, 1, 2], expert: [2, 1, 0], ..Draft::of("mixtral") }] {
        let all = tokens_of(&run(&draft.plan(), Start::Anew, wanted(&PROMPTS, 8)).unwrap());
        let stop = all[2][3];
        let until = |tokens: &Vec<u32>| {
            let end = tokens.iter().position(|token| *token == stop).map_or(8, |end| end + 1);
            tokens[..end].to_vec()
        };
        let stopped = run(&draft.plan(), Start::Anew, Generation { stop: Some(stop), ..wanted(&PROMPTS, 8) });
        let expected: Vec<Vec<u32>> = all.iter().map(until).collect();
        assert!(expected[2].len() <= 4);
        assert_eq!(tokens_of(&stopped.unwrap()), expected, "{draft:?}");
    }
}

/// Trains a few steps and saves them.
fn trained(draft: &Draft, folder: &Path, sample: Option<TrainingSample>) -> Vec<Option<Vec<u32>>> {
    let one = NonZeroUsize::MIN;
    let saving = Saving { folder: folder.into(), every: Some(one), keep: NonZeroUsize::new(9).unwrap() };
    let with = Settings { saving: Some(saving), sample, return_weights: false, ..settings(3) };
    let ran = train(&draft.plan(), &tokens(), &with, &mut |_| {});
    ran.unwrap_or_else(|error| panic!("{draft:?}: {error}"))
        .steps
        .into_iter()
        .map(|step| step.sample)
        .collect()
}

#[test]
fn a_sample_of_a_training_is_what_its_checkpoint_generates() {
    for draft in [
        Draft::of("gpt"),
        Draft { micro_batch: 2, ..Draft::of("gpt-dropping") },
        Draft { mesh: [2, 2, 1], sequence_parallel: true, ..Draft::of("llama") },
        Draft { mesh: [1, 1, 2], data_sharding: "zero3", ..Draft::of("gpt") },
        Draft { mesh: [2, 1, 2], data_sharding: "zero2", sequence_parallel: true, ..Draft::of("llama") },
        Draft { mesh: [1, 2, 1], virtual_stages: 2, schedule: "interleaved", ..Draft::of("gpt") },
        Draft { mesh: [1, 2, 1], virtual_stages: 2, schedule: "dualpipev", ..Draft::of("llama") },
        Draft { mesh: [1, 1, 2], expert: [2, 1, 0], ..Draft::of("mixtral") },
    ] {
        let folder = tempfile::tempdir().unwrap();
        let (prompt, two) = (vec![3, 66, 0, 17], NonZeroUsize::new(2).unwrap());
        let sample =
            TrainingSample { prompt: prompt.clone(), tokens: NonZeroUsize::new(9).unwrap(), every: two };
        let samples = trained(&draft, folder.path(), Some(sample));
        // Behind every second step and the last one.
        assert_eq!(samples.iter().map(Option::is_some).collect::<Vec<_>>(), [false, true, true]);
        for (step, sample) in
            samples.into_iter().enumerate().filter_map(|(at, sample)| Some((at + 1, sample?)))
        {
            let path = folder.path().join(format!("step-0000000{step}"));
            let opened = ModelFolder::open(&path, Remark::default()).unwrap();
            assert_eq!(opened.step, Some(step));
            let plan = trainwright_executor::one_rank(opened.model.unwrap());
            let made = run(&plan, Start::Weights(opened.folder), wanted(&[&prompt], 9)).unwrap();
            assert_eq!(made[0].tokens, sample, "{draft:?} step {step}");
        }
    }
    // One rank samples what two do that share experts.
    let sample = TrainingSample {
        prompt: vec![1, 2],
        tokens: NonZeroUsize::new(6).unwrap(),
        every: NonZeroUsize::MIN,
    };
    let samples = |draft: &Draft| -> Vec<Option<Vec<u32>>> {
        let with = Settings { sample: Some(sample.clone()), ..settings(2) };
        train(&draft.plan(), &tokens(), &with, &mut |_| {})
            .unwrap()
            .steps
            .into_iter()
            .map(|step| step.sample)
            .collect()
    };
    let shared = Draft { mesh: [1, 1, 2], expert: [2, 1, 0], ..Draft::of("mixtral") };
    assert_eq!(samples(&shared), samples(&Draft::of("mixtral")));
    // What it samples changes nothing in a training.
    let draft = Draft { mesh: [2, 1, 1], sequence_parallel: true, ..Draft::of("llama") };
    let sample = TrainingSample { prompt: vec![1], tokens: NonZeroUsize::MIN, every: NonZeroUsize::MIN };
    let weights = |sample: Option<TrainingSample>| {
        train(&draft.plan(), &tokens(), &Settings { sample, ..settings(2) }, &mut |_| {}).unwrap().weights
    };
    assert_eq!(weights(Some(sample)), weights(None));
}

/// Largest difference of logits, by the largest logit.
fn error(found: &Completion, expected: &Completion) -> f64 {
    let pairs = || found.logits[0].iter().zip(&expected.logits[0]);
    let apart = pairs().map(|(a, b)| f64::from((a - b).abs())).fold(0.0, f64::max);
    apart / pairs().map(|(_, b)| f64::from(b.abs())).fold(0.0, f64::max)
}

/// A number of bf16 is at most 2⁻⁹ beside its own, one of int8 at most 1/254 of its row's largest. Sums over 32 to 128 of them
/// through four blocks were at most 0.23 % and 0.97 % of the largest logit beside.
#[test]
fn weights_in_fewer_bits_are_a_little_beside_in_every_plan_alike() {
    for model in ["gpt", "llama"] {
        let folder = tempfile::tempdir().unwrap();
        trained(&Draft::of(model), folder.path(), None);
        let start = Start::Weights(folder.path().join("step-00000003"));
        let plan = Draft::of(model).plan();
        let exact = with_logits(&plan, &start, &PROMPTS, 1);
        for (weights, most) in [(WeightFormat::Bf16, 0.005), (WeightFormat::Int8, 0.02)] {
            let generation = Generation { weights, return_logits: true, ..wanted(&PROMPTS, 6) };
            let made = run(&plan, start.clone(), generation.clone()).unwrap();
            for (found, exact) in made.iter().zip(&exact) {
                let error = error(found, exact);
                println!("{model} {}: {error:.4}", weights.name());
                assert!(error > 1e-5 && error < most, "{model} {}: {error}", weights.name());
            }
            for draft in grid(model) {
                let by_plan = run(&draft.plan(), start.clone(), generation.clone()).unwrap();
                assert_eq!(tokens_of(&by_plan), tokens_of(&made), "{draft:?}");
            }
            let anew = run(&plan, Start::Anew, generation).unwrap_err();
            assert!(anew.to_string().contains("new weights are not rounded"), "{anew}");
        }
    }
}

#[test]
fn the_memory_is_that_of_weights_and_cache() {
    let plan = Draft::of("gpt").plan();
    let folder = tempfile::tempdir().unwrap();
    trained(&Draft::of("gpt"), folder.path(), None);
    let memory = |weights| -> GenerationMemory {
        let generation = Generation { weights, ..wanted(&[&[1, 2, 3]], 7) };
        let start = Start::Weights(folder.path().join("step-00000003"));
        let with = Settings { start, generation: Some(generation), ..settings(1) };
        let mut stated = None;
        generate(&plan, &with, &mut |needed| stated = Some(*needed)).unwrap();
        stated.unwrap()
    };
    // Four blocks of 12 · 32² and 13 · 32 numbers, 67 + 20 rows of 32, and a norm.
    let (matrices, vectors) = (4 * 12 * 1024 + 67 * 32, 4 * 13 * 32 + 20 * 32 + 64);
    // Rows of the table, of queries, keys and values, of the projection, and of both of the feed-forward layer.
    let rows = 67 + 4 * (96 + 32 + 128 + 32);
    for (format, bytes) in [
        (WeightFormat::Fp32, 4 * matrices + 4 * vectors),
        (WeightFormat::Bf16, 2 * matrices + 4 * vectors),
        (WeightFormat::Int8, matrices + 4 * rows + 4 * vectors),
    ] {
        let stated = memory(format);
        assert_eq!(stated.weights.get(), f64::from(bytes), "{}", format.name());
        // A key and a value of 32 in each of four blocks for each of 10 tokens.
        assert_eq!(stated.cache.get(), f64::from(4 * 10 * 4 * 64));
    }
}

#[test]
fn what_cannot_be_generated_is_refused() {
    let check = |plan: &Plan, generation: Generation, expected: &str| {
        let error = run(plan, Start::Anew, generation).unwrap_err().to_string();
        assert!(error.contains(expected), "{error}");
    };
    let plan = Draft::of("gpt").plan();
    check(&plan, wanted(&[&[1; 13]], 8), "are 21 tokens, and the model has 20 positions");
    check(&plan, wanted(&[&[1], &[]], 8), "prompt 2 has no token");
    check(&plan, wanted(&[&[66, 67]], 8), "the token 67, which is not in the model's vocabulary of 67");
    let beyond = |stop| Generation { stop: Some(stop), ..wanted(&[&[1]], 8) };
    check(&plan, beyond(67), "the token 67, which is to end texts, is not in the model's vocabulary of 67");
    assert!(run(&plan, Start::Anew, beyond(66)).is_ok());
    let context = Draft { context: [2, 1], ..Draft::of("gpt") }.plan();
    check(&context, wanted(&[&[1]], 8), "generate with `context = 1`");
    let on_grid = Draft { mesh: [4, 1, 1], tensor_rows: 2, micro_batch: 2, ..Draft::of("gpt") }.plan();
    check(&on_grid, wanted(&[&[1]], 8), "`1d` tensor ranks only");
    let mut full = plan.clone();
    full.model.blocks[0].block.attention.mask = Mask::Full;
    check(&full, wanted(&[&[1]], 8), "cannot be generated before them");
}

#[test]
fn samples_that_cannot_be_made_are_refused_before_a_training() {
    let check = |draft: Draft, prompt: &[u32], expected: &str| {
        let (tokens_of_sample, every) = (NonZeroUsize::new(8).unwrap(), NonZeroUsize::MIN);
        let sample = Some(TrainingSample { prompt: prompt.into(), tokens: tokens_of_sample, every });
        let error =
            train(&draft.plan(), &tokens(), &Settings { sample, ..settings(1) }, &mut |_| {}).unwrap_err();
        assert!(error.to_string().contains(expected), "{error}");
    };
    let gpt = || Draft::of("gpt");
    check(gpt(), &[1; 13], "the model has 20 positions");
    check(gpt(), &[67], "vocabulary of 67");
    check(gpt(), &[], "must have tokens");
    let alone = Draft { mesh: [2, 1, 1], expert: [2, 1, 1], sequence_parallel: true, ..Draft::of("mixtral") };
    check(alone, &[1], "samples need a plan that could go without sequence parallelism");
    check(Draft { context: [2, 1], ..gpt() }, &[1], "samples need one context rank");
    check(Draft { mesh: [4, 1, 1], tensor_rows: 2, micro_batch: 2, ..gpt() }, &[1], "`1d` tensor ranks");
    check(Draft { precision: Precision::Fp8, ..gpt() }, &[1], "operands in 16 bits");
}
