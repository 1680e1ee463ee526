//! Models against what their papers and checkpoints say: sizes, FLOPs, splits.

use trainwright_spec::model::flops::AttentionCount::{CausalHalved, Full};
use trainwright_spec::model::preset::{preset, presets};
use trainwright_spec::model::weights::Weight;
use trainwright_spec::model::{Attention, Mask, Mlp, Model, Rule};

fn model(name: &str) -> Model {
    preset(name).unwrap_or_else(|error| panic!("{error}"))
}

#[test]
fn every_preset_has_the_size_that_its_file_gives() {
    let mut checked = 0;
    for (name, file) in presets() {
        assert!(!file.source.is_empty(), "{name} has no source");
        let parameters = model(name).parameters();
        if let Some(published) = file.published_parameters {
            assert_eq!(parameters, published, "{name}");
        }
        if let Some(printed) = &file.published_size {
            assert_rounds_to(parameters, printed, name);
        }
        checked += 1;
    }
    assert!(checked >= 60, "only {checked} presets were found");
}

/// Two experts of eight, eight of 128, and so on: what a token passes through, as printed.
#[test]
fn active_parameters_are_those_that_papers_print() {
    let cases = [
        ("mixtral-8x7b", "13B"),    // arXiv 2401.04088, section 1
        ("mixtral-8x22b", "39B"),   // Mistral's announcement of 2024-04-17
        ("deepseek-v2", "21B"),     // arXiv 2405.04434, abstract
        ("qwen3-235b-a22b", "22B"), // arXiv 2505.09388, table 2
    ];
    for (name, printed) in cases {
        assert_rounds_to(model(name).active_parameters(), printed, name);
    }
    assert_eq!(model("gpt3-175b").active_parameters(), model("gpt3-175b").parameters());
}

/// Asserts that a count rounds to `175B`, `1.7B` or `1T` at its last printed digit.
fn assert_rounds_to(count: u64, printed: &str, name: &str) {
    let (digits, unit) = printed.split_at(printed.len() - 1);
    let scale = match unit {
        "M" => 1e6,
        "B" => 1e9,
        "T" => 1e12,
        _ => panic!("{name}: `{printed}` ends in neither M, B nor T"),
    };
    let decimals = digits.split_once('.').map_or(0, |(_, decimals)| decimals.len());
    assert_eq!(format!("{:.decimals$}", count as f64 / scale), digits, "{name} has {count} parameters");
}

/// 72 B s l h² (1 + s/(6h) + V/(12 l h)) multiplied out, in integers: 72 s l h² + 12 s² l h + 6 s h V per sequence.
#[test]
fn gpt_flops_are_the_closed_form() {
    let cases = ["gpt2", "gpt3-1.3b", "gpt3-175b", "megatron-22b", "megatron-18.4b"];
    for name in cases {
        let model = model(name);
        let (l, h, v) = (model.blocks[0].count as u64, model.hidden as u64, model.vocab as u64);
        for s in [128, 2048] {
            let blocks = 72 * s * l * h * h;
            let scores = 12 * s * s * l * h;
            let head = 6 * s * h * v;
            let flops = |count| model.training_flops(s as usize, count).get();
            assert_eq!(flops(Full), (blocks + scores + head) as f64, "{name} of {s} tokens");
            assert_eq!(flops(CausalHalved), (blocks + scores / 2 + head) as f64, "{name} of {s} tokens");
        }
    }
}

/// 96 B s l h² (1 + s/(6h) + V/(16 l h)) for GPT-3 at batch 1536: 4.38e18 · (1 + 0.0278 + 0.0027) = 4.51e18. The
/// blocks run forward once more, the head does not.
#[test]
fn gpt3_iteration_with_full_recompute_takes_4_5_exaflop() {
    let model = model("gpt3-175b");
    let block = model.blocks[0].block.forward_flops(model.hidden, 2048, Full);
    let recompute = model.blocks[0].count as f64 * block;
    let iteration = 1536.0 * (model.training_flops(2048, Full) + recompute);
    assert!((iteration.get() / 4.5e18 - 1.0).abs() < 0.02, "{iteration}");
}

/// The twin of the FLOP formulas: every weight matrix multiplies each token once, two FLOPs an element, and the
/// pairs of query and key are counted one by one.
#[test]
fn flops_are_those_of_the_weight_matrices_and_of_visible_pairs() {
    let seq = 48;
    for (name, _) in presets() {
        let mut model = model(name);
        shrink_windows(&mut model, 20);
        for count in [Full, CausalHalved] {
            let mut expected = head_flops(&model, seq);
            for run in &model.blocks {
                let block = &run.block;
                let visited = match &block.mlp {
                    Mlp::Dense(_) => 1,
                    Mlp::Experts(experts) => experts.per_token as u64,
                };
                let weights = block.weights(model.hidden);
                let elements = weights
                    .iter()
                    .filter(|weight| is_matrix(weight))
                    .map(|weight| if weight.routed { weight.elements * visited } else { weight.total() });
                let products = 2.0 * (seq as u64 * elements.sum::<u64>()) as f64;
                let attentions = [Some(&block.attention), block.cross_attention.as_ref()];
                let cores = attentions.into_iter().flatten().map(|attention| {
                    let widths = attention.heads * (attention.head_dim + attention.value_head_dim);
                    let pairs = counted_pairs(attention, seq, count == CausalHalved);
                    match (&attention.recurrence, &attention.indexer) {
                        // Token by token: the state is changed and read, with the delta rule also read before.
                        (Some(recurrence), _) => {
                            let products = if recurrence.rule == Rule::GatedDelta { 3 } else { 2 };
                            let state = attention.heads * attention.head_dim * attention.value_head_dim;
                            (2 * products * seq * state) as f64
                        }
                        // Of so few tokens all keys are picked.
                        (None, Some(indexer)) => {
                            2.0 * (widths + indexer.heads * indexer.head_dim) as f64 * pairs
                        }
                        (None, None) => 2.0 * widths as f64 * pairs,
                    }
                });
                expected += run.count as f64 * (products + cores.sum::<f64>());
            }
            assert_eq!(model.forward_flops(seq, count).get(), expected, "{name}, {count:?}");
        }
    }
}

fn shrink_windows(model: &mut Model, window: usize) {
    for run in &mut model.blocks {
        if let Mask::Window(keys) = &mut run.block.attention.mask {
            *keys = window;
        }
    }
}

fn is_matrix(weight: &Weight) -> bool {
    !["bias", "norm", "gain", "decay", "convolution"].iter().any(|what| weight.name.contains(what))
}

fn head_flops(model: &Model, seq: usize) -> f64 {
    let projection = seq * model.vocab * model.hidden;
    let transform = if model.head.transform { seq * model.hidden * model.hidden } else { 0 };
    2.0 * (projection + transform) as f64
}

/// Visible pairs; halving leaves out half of the diagonal, which a full count includes with all that is above it.
fn counted_pairs(attention: &Attention, seq: usize, halved: bool) -> f64 {
    let window = match attention.mask {
        Mask::Full => return (seq * seq) as f64,
        Mask::Causal => seq,
        Mask::Window(window) => window.min(seq),
    };
    if !halved {
        return (seq * window) as f64;
    }
    let visible = |query: usize| (0..=query).filter(|key| query - key < window).count();
    let pairs: usize = (0..seq).map(visible).sum();
    pairs as f64 - window as f64 / 2.0
}

/// Per rank of a GPT block, t of them: 12 h²/t of matrices, 7 h/t of column-parallel biases, and on every rank the
/// two row-parallel biases and two norms, 6 h.
#[test]
fn tensor_parallelism_divides_a_gpt_block_as_megatron_does() {
    let h = 12288;
    let block = &model("gpt3-175b").blocks[0].block;
    for t in [1, 2, 8, 96] {
        let held: u64 = block.weights(h).iter().map(|weight| weight.elements_on_rank(t)).sum();
        let (h, t) = (h as u64, t as u64);
        assert_eq!(held, (12 * h * h + 7 * h) / t + 6 * h, "{t} ranks");
    }
}

#[test]
fn weights_on_a_rank() {
    // LLaMA-2 70B has 8 key and value heads of 128, and 8192 hidden; Mixtral 8 experts of 14336 and 4096 hidden;
    // DeepSeek-V3 compresses 7168 to 512 + 64; BERT has 30522 entries, which four ranks cannot share evenly.
    let cases = [
        ("llama-2-70b", "key and value", 4, 8192 * 8 * 256 / 4),
        ("llama-2-70b", "key and value", 8, 8192 * 256),
        ("llama-2-70b", "key and value", 16, 8192 * 256),
        ("llama-2-70b", "query", 16, 8192 * 8192 / 16),
        ("llama-2-70b", "norm gain", 16, 2 * 8192),
        ("mixtral-8x7b", "expert fc1", 4, 8 * 2 * 4096 * 14336 / 4),
        ("mixtral-8x7b", "router", 4, 4096 * 8),
        ("deepseek-v3", "key and value down", 8, 7168 * 576),
        ("deepseek-v3", "key and value up", 8, 512 * 128 * 256 / 8),
        ("qwen3-8b", "query and key norm", 8, 2 * 128),
        ("gpt2", "token embedding", 2, 50257 * 768 / 2),
        ("gpt2", "position embedding", 2, 1024 * 768),
        ("bert-base", "head bias", 4, 30522 / 4 + 1),
    ];
    for (name, weight_name, tensor, expected) in cases {
        let model = model(name);
        let blocks = model.blocks.iter().flat_map(|run| run.block.weights(model.hidden));
        let ends = [model.embedding_weights(model.vocab), model.head_weights(model.vocab)];
        let mut weights = blocks.chain(ends.into_iter().flatten());
        let weight = weights.find(|weight| weight.name == weight_name).expect(weight_name);
        assert_eq!(weight.elements_on_rank(tensor), expected, "{name}: {weight_name} on {tensor} ranks");
    }
}

#[test]
fn names_within_a_block_are_unique_and_experts_are_marked() {
    for (name, _) in presets() {
        let model = model(name);
        for run in &model.blocks {
            let weights = run.block.weights(model.hidden);
            let mut names: Vec<&str> = weights.iter().map(|weight| weight.name).collect();
            names.sort_unstable();
            names.dedup();
            assert_eq!(names.len(), weights.len(), "{name}");
            let routed = weights.iter().any(|weight| weight.routed);
            assert_eq!(routed, matches!(run.block.mlp, Mlp::Experts(_)), "{name}");
        }
    }
}

#[test]
fn padding_the_vocabulary_enlarges_both_ends_alone() {
    let model = model("llama-3-8b");
    let more = |weights: &[Weight]| weights.iter().map(Weight::total).sum::<u64>();
    let padding = more(&model.embedding_weights(128_512)) - more(&model.embedding_weights(128_256));
    assert_eq!(padding, 256 * 4096);
    let padding = more(&model.head_weights(128_512)) - more(&model.head_weights(128_256));
    assert_eq!(padding, 256 * 4096);
    assert!(
        preset("gpt2").is_ok_and(|gpt2| gpt2.head_weights(50257).is_empty()),
        "the head of GPT-2 is tied"
    );
}

/// An encoder-decoder ends each stack in a norm: T5 counts two.
#[test]
fn final_norms() {
    for (name, expected) in [("t5-11b", 2 * 1024), ("gpt2", 2 * 768), ("llama-7b", 4096), ("bert-base", 0)] {
        let held: u64 = model(name).final_weights().iter().map(Weight::total).sum();
        assert_eq!(held, expected, "{name}");
    }
}

#[test]
fn a_model_written_as_toml_reads_back_equal() {
    for (name, _) in presets() {
        let model = model(name);
        let text = toml::to_string(&model).unwrap_or_else(|error| panic!("{name}: {error}"));
        let back: Model = toml::from_str(&text).unwrap_or_else(|error| panic!("{name}: {error}\n{text}"));
        assert_eq!(back, model, "{name}");
    }
}

#[test]
fn presets_are_found_by_name() {
    assert_eq!(model("Llama-3-8B").name, "llama-3-8b");
    let error = preset("lama-3-8b").expect_err("no such preset").to_string();
    assert!(error.starts_with("unknown model `lama-3-8b` (nearest: llama-3-8b, "), "{error}");
}

/// A Mamba-2 block of Bamba by hand: 8192 columns x and z, 2 · 128 of B and C, 128 steps from 4096; 8448 channels of 4 and a bias;
/// decay, offset, input factor of 128 heads; norm of 8192; output; feed-forward 3 · 4096 · 14336; two norms.
#[test]
fn a_block_with_a_state_has_the_weights_and_flops_of_its_formulas() {
    let bamba = model("bamba-9b");
    let block = &bamba.blocks[0].block;
    let [h, v, f] = [4096_u64, 8192, 14_336];
    let (input, conv) = (2 * v + 2 * 128 + 128, v + 2 * 128);
    let mixer = h * input + 5 * conv + 3 * 128 + v + v * h;
    let weights: u64 = block.weights(4096).iter().map(Weight::total).sum();
    assert_eq!(weights, mixer + 3 * h * f + 2 * h);
    // Over a sequence of s tokens: products with weights 2 each, 4 · 128 · 64 · 128 heads for the states, whatever counts.
    let s = 1000;
    let per_token = 2 * (h * input + v * h + 3 * h * f) + 4 * 128 * 64 * 128;
    for count in [Full, CausalHalved] {
        assert_eq!(block.forward_flops(4096, s, count).get(), (s as u64 * per_token) as f64);
    }
    // Twice the tokens, twice the work: nothing grows with the square.
    let twice = block.forward_flops(4096, 2 * s, Full).get();
    assert_eq!(twice, 2.0 * block.forward_flops(4096, s, Full).get());
}

/// An indexer's scores are of all pairs, the attention's of at most 2048 keys a token.
#[test]
fn picked_keys_bound_the_products_of_attention() {
    let (sparse, dense) = (model("deepseek-v3.2"), model("deepseek-v3"));
    let flops = |model: &Model, s: usize| model.blocks[0].block.forward_flops(7168, s, Full).get();
    let s = 32_768.0;
    let indexer = s * 2.0 * (1536.0 * 64.0 * 128.0 + 7168.0 * (128.0 + 64.0)) + 2.0 * 64.0 * 128.0 * s * s;
    let spared = 2.0 * 128.0 * (192.0 + 128.0) * s * (s - 2048.0);
    assert_eq!(flops(&sparse, 32_768), flops(&dense, 32_768) + indexer - spared);
    assert!(flops(&sparse, 1024) > flops(&dense, 1024), "short sequences only pay for the indexer");
}
