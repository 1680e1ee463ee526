//! Hugging Face configurations: every family reads one, and nonsense is refused in a line that says what to do.

use serde_json::{Value, json};
use std::collections::BTreeSet;
use std::path::PathBuf;
use trainwright_spec::error::SpecError;
use trainwright_spec::model::flops::AttentionCount;
use trainwright_spec::model::hf::{Shapes, families, from_files, from_hugging_face};
use trainwright_spec::model::{Activation, BlockRun, Indexer, Mask, Mlp, Model, Position};

fn fixture_text(name: &str) -> String {
    let folder = PathBuf::from(env!("CARGO_MANIFEST_DIR")).join("tests/fixtures/configs");
    let path = folder.join(format!("{name}.json"));
    std::fs::read_to_string(&path).unwrap_or_else(|error| panic!("{}: {error}", path.display()))
}

fn fixture(name: &str) -> Model {
    from_hugging_face(&fixture_text(name), name).unwrap_or_else(|error| panic!("{error}"))
}

/// Weights counted with the transformers library 5.23 from the same files, except where noted.
const SIZES: &[(&str, u64)] = &[
    ("bamba-small", 5_071_296),
    ("bert-base", 109_514_298),
    ("bert-base-encoder", 109_482_240),
    // The library counts 1538 more: the next-sentence head, which this reader leaves out.
    ("bert-base-pretraining", 110_104_890),
    ("bert-large-encoder", 335_141_888),
    ("bloom-560m", 559_214_592),
    // Not in the library: 3 blocks of 2 · 256² queries and output, 3 · 256 · 512 feed-forward and 2 · 256 norms; 4 + 2 + 1 heads of
    // keys and values, 2 · 32 wide, from 256; embedding and head of 1000 · 256; final norm.
    ("decilm-small", 3 * (2 * 65_536 + 393_216 + 512) + 7 * 64 * 256 + 512_000 + 256),
    ("deepseek-v2-lite", 15_706_484_224),
    // The library holds the 58 · 256 correction biases of the routers as buffers and counts 671,026,404,352.
    ("deepseek-v3", 671_026_419_200),
    // As deepseek-v3: 2 · 8 correction biases of the routers more.
    ("deepseek-v3.2-small", 2_965_216 + 16),
    ("glm-5-small", 2_965_216 + 16),
    ("falcon-11b", 11_102_822_400),
    ("falcon-40b-refined-web", 41_303_293_952),
    ("falcon-7b-refined-web", 6_921_720_704),
    ("falcon-rw-1b", 1_311_625_216),
    // The library now ties all of T5's heads: 222,903,552 and the head of 32128 · 768 that the checkpoint has.
    ("flan-t5-base", 247_577_856),
    ("gemma-2-2b", 2_614_341_888),
    ("gemma-2b", 2_506_172_416),
    ("gemma-3-1b", 999_885_952),
    ("gpt2", 124_439_808),
    ("gpt2-hf-names", 81_912_576),
    // The library counts 24 · 64 more: the sinks of attention, which this reader leaves out.
    ("gpt-oss-20b", 20_914_755_648),
    ("gptj-6b", 6_050_882_784),
    // Not in the library: 64 blocks of 88,080,384 attention, 49,152 router, 8 · 603,979,776 experts and 24,576
    // norms; embedding 131072 · 6144; final norm 6144.
    ("grok-1", 64 * (88_080_384 + 49_152 + 8 * 603_979_776 + 24_576) + 805_306_368 + 6_144),
    ("llama-3.2-1b", 1_235_814_400),
    ("llama-4-small", 256_197_120),
    ("llama-7b-old", 6_738_415_616),
    ("llama-with-biases", 112_145_152),
    // The library counts 4 · (1024 + 256 − 256) more, its norms of queries and keys being as wide as all heads, and 4 · 8 fewer, the
    // correction biases of the routers.
    ("minimax-m2-small", 222_713_376),
    ("minitron-4b", 4_190_509_056),
    ("mistral-7b-v0.2", 7_241_732_096),
    ("mixtral-8x7b", 46_702_792_704),
    // The library counts 3 · (8 · 32 + 2 · 32 − 2 · 32) more, its norms of queries and keys being as wide as all heads.
    ("olmo-2-small", 2_185_920 - 768),
    ("opt-350m", 331_196_416),
    // Not in the library: 3 blocks of 2 · 256 · 512 queries and output, 256 · 2 · 64 keys and values, 3 · 256 · 1024 feed-forward
    // and 256 norm; embedding of 1000 · 256; final norm.
    ("palm-small", 3 * (262_144 + 32_768 + 786_432 + 256) + 256_000 + 256),
    ("phi-3-small", 2_184_960),
    ("pythia-70m", 70_426_624),
    ("qwen1.5-moe-a2.7b", 14_315_784_192),
    ("qwen2-0.5b", 494_032_768),
    ("qwen2-moe-sparse-steps", 517_828_608),
    ("qwen3-0.6b", 596_049_920),
    ("qwen3-30b-a3b", 30_532_122_624),
    ("qwen3-next-small", 5_791_808),
    ("qwen3.5-moe-small", 4_933_136),
    ("qwen3.5-small", 2_600_800),
    ("t5-small", 60_506_624),
];

#[test]
fn a_model_of_several_inputs_is_planned_as_its_language_model() {
    let text = include_str!("fixtures/configs/llama-3.2-1b.json");
    let nested = format!("{{\"model_type\": \"llava\", \"text_config\": {text}}}");
    let inner = from_hugging_face(text, "config.json").unwrap();
    assert_eq!(from_hugging_face(&nested, "config.json").unwrap(), inner);
}

#[test]
fn fixtures_have_the_size_of_their_checkpoints() {
    for (name, parameters) in SIZES {
        let model = fixture(name);
        assert_eq!(model.parameters(), *parameters, "{name}");
        assert_eq!(&model.name, name);
    }
}

#[test]
fn every_family_has_a_fixture() {
    let model_type = |name: &&str| {
        let keys: Value = serde_json::from_str(&fixture_text(name)).expect("fixtures are JSON");
        keys["model_type"].as_str().expect("fixtures name their family").to_string()
    };
    let tested: BTreeSet<String> = SIZES.iter().map(|(name, _)| model_type(name)).collect();
    // A plain decoder is what no file calls itself.
    let known: BTreeSet<String> = families().filter(|name| *name != "decoder").map(str::to_string).collect();
    assert_eq!(tested, known);
}

/// What counts alone do not show.
#[test]
fn families_differ_in_more_than_size() {
    let windows = |name: &str| -> Vec<(usize, Mask)> {
        fixture(name).blocks.iter().map(|run| (run.count, run.block.attention.mask)).collect()
    };
    assert_eq!(windows("mistral-7b-v0.2"), [(32, Mask::Causal)]);
    let without_key = r#"{"model_type": "mistral", "hidden_size": 64, "num_attention_heads": 8, "vocab_size": 9,
        "num_hidden_layers": 2, "intermediate_size": 64}"#;
    let mistral = from_hugging_face(without_key, "test").expect("a window has a default");
    assert_eq!(mistral.blocks[0].block.attention.mask, Mask::Window(4096));
    assert_eq!(windows("gemma-2-2b")[..2], [(1, Mask::Window(4096)), (1, Mask::Causal)]);
    assert_eq!(windows("gemma-3-1b")[..2], [(5, Mask::Window(512)), (1, Mask::Causal)]);
    assert_eq!(windows("gemma-3-1b").last(), Some(&(2, Mask::Window(512))));
    assert_eq!(windows("t5-small"), [(6, Mask::Full), (6, Mask::Causal)]);

    let dense: Vec<(usize, bool)> = fixture("qwen2-moe-sparse-steps")
        .blocks
        .iter()
        .map(|run| (run.count, matches!(run.block.mlp, Mlp::Dense(_))))
        .collect();
    // Every second block has experts, counted from one; the fourth is excluded; even blocks below 6 have a window.
    let expected = [true, false, true, true, true, false, true, false].map(|dense| (1, dense));
    assert_eq!(dense, expected);

    let shapes = [
        // name, norms, parallel, key and value heads, position, dropout, tied
        ("falcon-rw-1b", 2, false, 32, Position::Alibi, false, true),
        ("falcon-7b-refined-web", 1, true, 1, Position::Rotary, false, true),
        ("falcon-40b-refined-web", 2, true, 8, Position::Rotary, false, true),
        ("falcon-11b", 1, true, 8, Position::Rotary, false, false),
        ("pythia-70m", 2, true, 8, Position::Rotary, false, false),
        ("gpt2", 2, false, 12, Position::Learned(1024), true, true),
        ("opt-350m", 2, false, 16, Position::Learned(2050), true, true),
        ("bert-base", 2, false, 12, Position::Learned(512), true, true),
        ("grok-1", 4, false, 8, Position::Rotary, false, true),
        ("llama-with-biases", 2, false, 4, Position::Rotary, true, false),
    ];
    for (name, norms, parallel, kv_heads, position, dropout, tied) in shapes {
        let model = fixture(name);
        let block = &model.blocks[0].block;
        let read = (block.norms, block.parallel, block.attention.kv_heads, model.embedding.position);
        assert_eq!(read, (norms, parallel, kv_heads, position), "{name}");
        assert_eq!((model.dropout, model.head.tied), (dropout, tied), "{name}");
    }

    let activation = |name: &str| match &fixture(name).blocks[0].block.mlp {
        Mlp::Dense(mlp) => (mlp.gated, mlp.activation),
        Mlp::Experts(experts) => (experts.expert.gated, experts.expert.activation),
    };
    assert_eq!(activation("minitron-4b"), (false, Activation::SquaredRelu));
    assert_eq!(activation("grok-1"), (true, Activation::Gelu));
    assert_eq!(activation("flan-t5-base"), (true, Activation::Gelu));
    assert_eq!(activation("t5-small"), (false, Activation::Relu));
    assert_eq!(activation("llama-7b-old"), (true, Activation::Silu));
}

/// Which blocks have a state, which of them experts, and what indexers pick.
#[test]
fn mixers_are_chosen_block_by_block() {
    let states = |name: &str| -> Vec<(usize, bool)> {
        let run = |run: &BlockRun| (run.count, run.block.attention.recurrence.is_some());
        fixture(name).blocks.iter().map(run).collect()
    };
    assert_eq!(states("bamba-small"), [(1, true), (1, false), (2, true), (1, false), (1, true)]);
    assert_eq!(states("qwen3.5-small"), [(2, true), (1, false), (1, true)]);
    // The second block has no experts, the fourth attention.
    assert_eq!(states("qwen3-next-small"), [(1, true), (1, true), (1, true), (1, false), (1, true)]);
    let next = fixture("qwen3-next-small");
    assert!(matches!(next.blocks[1].block.mlp, Mlp::Dense(_)));
    assert!(next.blocks[3].block.attention.output_gate && !next.blocks[0].block.attention.rotary);
    assert_eq!(next.blocks[3].block.attention.rotary_head_dim, Some(16));
    let glm = fixture("glm-5-small");
    assert_eq!(glm.blocks[1].block.attention.indexer, Some(Indexer { heads: 2, head_dim: 32, keys: 64 }));
    assert_eq!(glm.blocks, fixture("deepseek-v3.2-small").blocks);
}

/// What the presets do not have: 2 s (V w + 2 h w) where OPT 350M bridges 512 and 1024, and BERT's pooler, 2 h² on
/// one token, beside 2 s V h.
#[test]
fn flops_outside_the_blocks() {
    let cases = [
        ("opt-350m", 2_u64 * 100 * (50_272 * 512 + 2 * 1024 * 512)),
        ("bert-base-encoder", 2_u64 * 100 * 30_522 * 768 + 2 * 768 * 768),
        ("bert-base-pretraining", 2 * 100 * (30_522 * 768 + 768 * 768) + 2 * 768 * 768),
    ];
    for (name, expected) in cases {
        let model = fixture(name);
        let run = &model.blocks[0];
        let blocks = run.count as f64 * run.block.forward_flops(model.hidden, 100, AttentionCount::Full);
        let outside = model.forward_flops(100, AttentionCount::Full) - blocks;
        assert_eq!(outside.get(), expected as f64, "{name}");
    }
}

/// The message for a fixture with one key set to another value, or removed by `null`.
fn message(fixture: &str, key: &str, value: Value) -> String {
    let mut keys: Value = serde_json::from_str(&fixture_text(fixture)).expect("fixtures are JSON");
    keys[key] = value;
    refusal(&keys.to_string()).to_string()
}

fn refusal(text: &str) -> SpecError {
    from_hugging_face(text, "c.json").expect_err("this configuration makes no sense")
}

#[test]
fn nonsense_is_refused_with_key_value_and_what_is_allowed() {
    let hidden = "it holds the width of the residual stream, a whole number from 1 to 1000000";
    let layers = "it holds the number of blocks, a whole number from 1 to 2000";
    let cases = [
        ("llama-3.2-1b", "hidden_size", json!(null), format!("`hidden_size` is missing; {hidden}")),
        ("llama-3.2-1b", "hidden_size", json!(0), format!("`hidden_size` is 0; {hidden}")),
        ("llama-3.2-1b", "hidden_size", json!(-4096), format!("`hidden_size` is -4096; {hidden}")),
        ("llama-3.2-1b", "hidden_size", json!(4096.5), format!("`hidden_size` is 4096.5; {hidden}")),
        ("llama-3.2-1b", "hidden_size", json!("4096"), format!("`hidden_size` is \"4096\"; {hidden}")),
        ("llama-3.2-1b", "hidden_size", json!([4096]), format!("`hidden_size` is a list of 1; {hidden}")),
        ("llama-3.2-1b", "hidden_size", json!(1_000_001), format!("`hidden_size` is 1000001; {hidden}")),
        ("llama-3.2-1b", "num_hidden_layers", json!(1e9 as u64), format!(
            "`num_hidden_layers` is 1000000000; {layers}"
        )),
        ("llama-3.2-1b", "num_hidden_layers", json!(u64::MAX), format!(
            "`num_hidden_layers` is 18446744073709551615; {layers}"
        )),
        ("gpt2", "n_layer", json!(null), format!("`n_layer` is missing; {layers}")),
        ("llama-7b-old", "num_attention_heads", json!(30), "`hidden_size` is 4096; it must be a multiple of \
            `num_attention_heads`, 30".into()),
        ("gpt2", "n_head", json!(7), "`n_embd` is 768; it must be a multiple of `n_head`, 7".into()),
        ("llama-3.2-1b", "num_key_value_heads", json!(5), "`num_key_value_heads` is 5; it must divide \
            `num_attention_heads`, 32".into()),
        ("falcon-40b-refined-web", "n_head_kv", json!(256), "`n_head_kv` is 256; it must divide `n_head`, 128".into()),
        ("mixtral-8x7b", "num_experts_per_tok", json!(9), "`num_experts_per_tok` is 9; it cannot exceed \
            `num_local_experts`, 8".into()),
        ("deepseek-v3", "kv_lora_rank", json!(null), "`kv_lora_rank` is missing; it holds the rank of a compression, \
            a whole number from 1 to 1000000".into()),
        ("llama-3.2-1b", "attention_bias", json!("no"), "`attention_bias` is \"no\"; true or false should stand \
            here".into()),
        ("gpt2", "attn_pdrop", json!(10), "`attn_pdrop` is 10; a probability from 0 to 1 should stand here".into()),
        ("llama-3.2-1b", "hidden_act", json!("sliu"), "`hidden_act` is \"sliu\"; known are gelu, gelu_10, gelu_fast, \
            gelu_new, gelu_python, gelu_pytorch_tanh, quick_gelu, relu, relu2, silu, swish".into()),
        ("t5-small", "feed_forward_proj", json!("gated-sliu"), "`feed_forward_proj` is \"gated-sliu\"; known are gelu, \
            gelu_10, gelu_fast, gelu_new, gelu_python, gelu_pytorch_tanh, quick_gelu, relu, relu2, silu, swish, each \
            also after `gated-`".into()),
        ("gemma-2-2b", "layer_types", json!(["full_attention"]), "`layer_types` is a list of 1; it holds \
            \"full_attention\" or \"sliding_attention\" for each block of the 26".into()),
        ("qwen3-30b-a3b", "mlp_only_layers", json!(["1"]), "`mlp_only_layers` is a list of 1; it holds the indices of \
            blocks without experts".into()),
        ("gpt2", "model_type", json!(null), "`model_type` is missing; it holds the family, such as \"llama\"".into()),
        ("gpt2", "model_type", json!(2), "`model_type` is 2; it holds the family, such as \"llama\"".into()),
    ];
    for (fixture, key, value, expected) in cases {
        assert_eq!(message(fixture, key, value), format!("c.json: {expected}"), "{fixture}");
    }
}

#[test]
fn an_unknown_family_lists_the_nearest_and_all() {
    let known = families().collect::<Vec<_>>().join(", ");
    assert_eq!(
        message("gpt2", "model_type", json!("lama")),
        format!(
            "c.json: `model_type` is \"lama\"; nearest are llama, llama4_text, bamba; known are {known}, or a plain decoder with `--map model_type=decoder`"
        )
    );
    assert_eq!(
        message("gpt2", "model_type", json!("zzz")),
        format!(
            "c.json: `model_type` is \"zzz\"; known are {known}, or a plain decoder with `--map model_type=decoder`"
        )
    );
}

#[test]
fn broken_json_is_located() {
    let cases = [
        ("{\n  \"model_type\": \"gpt2\"\n  \"n_embd\": 768\n}", "expected `,` or `}` at line 3 column 3"),
        ("{\"model_type\": \"gpt2\"", "EOF while parsing an object at line 1 column 21"),
        ("", "EOF while parsing a value at line 1 column 0"),
        ("[1, 2]", "a JSON object should stand here, this is a list"),
    ];
    for (text, expected) in cases {
        assert_eq!(refusal(text).to_string(), format!("c.json: {expected}"));
    }
}

/// Sizes of which each is within its limit, but not all together, are refused by their parameters; nothing overflows on the way.
#[test]
fn the_largest_sizes_allowed_are_too_many_parameters() {
    let mut keys: Value = serde_json::from_str(&fixture_text("mixtral-8x7b")).expect("fixtures are JSON");
    for key in ["hidden_size", "num_attention_heads", "num_key_value_heads"] {
        keys[key] = json!(1_000_000);
    }
    keys["num_hidden_layers"] = json!(2_000);
    keys["head_dim"] = json!(100_000);
    keys["intermediate_size"] = json!(10_000_000);
    keys["num_local_experts"] = json!(100_000);
    keys["num_experts_per_tok"] = json!(100_000);
    keys["vocab_size"] = json!(100_000_000);
    let refused = from_hugging_face(&keys.to_string(), "huge").unwrap_err().to_string();
    assert!(refused.contains(&format!("`mixtral` of {} parameters", u64::MAX)), "{refused}");
    // A hundredth of the experts and of their width is counted.
    keys["num_local_experts"] = json!(1_000);
    keys["num_experts_per_tok"] = json!(1_000);
    keys["intermediate_size"] = json!(10_000);
    keys["num_attention_heads"] = json!(10_000);
    keys["num_key_value_heads"] = json!(10_000);
    keys["head_dim"] = json!(128);
    let model = from_hugging_face(&keys.to_string(), "large").expect("so many parameters are allowed");
    assert!(model.parameters() > 10_000_000_000_000_000, "{}", model.parameters());
}

#[test]
fn the_part_of_a_head_that_is_rotated_is_read() {
    // Pythia: a quarter of 64 columns. Minitron: half of 128. A missing key is the family's default.
    let rotated = |model: &Model| model.blocks[0].block.attention.rotary_head_dim;
    assert_eq!(rotated(&fixture("pythia-70m")), Some(16));
    assert_eq!(rotated(&fixture("minitron-4b")), Some(64));
    assert_eq!(rotated(&fixture("llama-3.2-1b")), None);
    let with = |name: &str, key: &str, value: Value| {
        let mut keys: Value = serde_json::from_str(&fixture_text(name)).unwrap();
        keys.as_object_mut().unwrap().insert(key.into(), value);
        from_hugging_face(&keys.to_string(), name)
    };
    assert_eq!(rotated(&with("pythia-70m", "rotary_pct", Value::Null).unwrap()), Some(16));
    assert_eq!(rotated(&with("pythia-70m", "rotary_pct", json!(1.0)).unwrap()), None);
    let nested = json!({ "rope_type": "default", "partial_rotary_factor": 0.5 });
    assert_eq!(rotated(&with("qwen3-0.6b", "rope_parameters", nested).unwrap()), Some(64));
    let error = with("pythia-70m", "rotary_pct", json!(1.5)).unwrap_err().to_string();
    assert!(error.contains("rotary_pct") && error.contains("above 0 and up to 1"), "{error}");
}

/// Transformers 5 writes θ into a table of its own.
#[test]
fn the_base_of_rotary_positions_is_read_where_it_stands() {
    let config = |rotary: &str| {
        let text = format!(
            r#"{{"model_type": "llama", "hidden_size": 32, "num_attention_heads": 4, "num_hidden_layers": 2,
                "intermediate_size": 48, "vocab_size": 67, "hidden_act": "silu"{rotary}}}"#
        );
        from_hugging_face(&text, "config.json").map(|model| model.blocks[0].block.attention.rotary_base)
    };
    let nested = r#", "rope_parameters": {"rope_theta": 50000.0, "rope_type": "default"}"#;
    assert_eq!(config("").unwrap(), None);
    assert_eq!(config(r#", "rope_theta": 20000.0"#).unwrap(), Some(20_000.0));
    assert_eq!(config(nested).unwrap(), Some(50_000.0));
    assert_eq!(config(&format!(r#"{nested}, "rope_theta": 20000.0"#)).unwrap(), Some(20_000.0));
    assert!(config(r#", "rope_parameters": {"rope_theta": -1}"#).is_err());
}

#[test]
fn windows_alternate_block_by_block() {
    // Gemma 2: every other block has a window; Gemma 3: all but every sixth.
    let masks = |name: &str| -> Vec<bool> {
        let model = fixture(name);
        let runs = model.blocks.iter();
        let windowed =
            |block: &trainwright_spec::model::Block| matches!(block.attention.mask, Mask::Window(_));
        runs.flat_map(|run| std::iter::repeat_n(windowed(&run.block), run.count)).collect()
    };
    for (name, pattern) in [("gemma-2-2b", 2), ("gemma-3-1b", 6)] {
        let expected: Vec<bool> = (1..=26).map(|layer: usize| !layer.is_multiple_of(pattern)).collect();
        assert_eq!(masks(name), expected, "{name}");
    }
}

/// Pairs of keys as `--map` has them.
fn pairs(map: &[&str]) -> Vec<(String, String)> {
    let pair = |text: &&str| text.split_once('=').map(|(key, from)| (key.to_string(), from.to_string()));
    map.iter().map(|text| pair(text).unwrap()).collect()
}

/// Configurations of families that are not known, by their published numbers of parameters.
#[test]
fn plain_decoders_are_read_by_meaning() {
    // InternLM2-7B and ChatGLM3-6B, whose weights have these numbers of elements.
    let internlm = r#"{"model_type": "internlm2", "hidden_size": 4096, "intermediate_size": 14336, "hidden_act": "silu",
        "num_attention_heads": 32, "num_hidden_layers": 32, "num_key_value_heads": 8, "bias": false, "vocab_size": 92544,
        "tie_word_embeddings": false, "rope_theta": 1000000, "rms_norm_eps": 1e-5}"#;
    let glm = r#"{"model_type": "chatglm", "hidden_size": 4096, "ffn_hidden_size": 13696, "num_attention_heads": 32,
        "num_layers": 28, "multi_query_group_num": 2, "kv_channels": 128, "add_qkv_bias": true, "add_bias_linear": false,
        "padded_vocab_size": 65024, "tie_word_embeddings": false}"#;
    for (text, parameters) in [(internlm, 7_737_708_544), (glm, 6_243_584_000)] {
        let model = from_files(text, "c.json", &pairs(&["model_type=decoder"]), None).unwrap();
        assert_eq!(model.parameters(), parameters);
        assert!(from_files(text, "c.json", &[], None).is_err());
    }
    // Keys that nobody else has, and what no key says; the family follows.
    let odd = r#"{"width": 64, "stack": 3, "n_heads": 4, "ff": 256, "n_vocab": 100, "bias": true}"#;
    let map = pairs(&[
        "hidden_size=width",
        "num_hidden_layers=stack",
        "intermediate_size=ff",
        "gated=false",
        "mlp_bias=bias",
    ]);
    let model = from_files(odd, "c.json", &map, None).unwrap();
    let block = 4 * 64 * 64 + 2 * 64 * 256 + 256 + 64 + 2 * 64;
    assert_eq!(model.parameters(), 2 * 100 * 64 + 3 * block + 64);
    let fault =
        |text: &str, map: &[&str]| from_files(text, "c.json", &pairs(map), None).unwrap_err().to_string();
    assert_eq!(
        fault(odd, &["hidden_size=widht"]),
        "c.json: `hidden_size` is mapped from `widht`; the file has no such key, the nearest are width"
    );
    let two = r#"{"d_model": 64, "n_embd": 32, "n_layers": 3, "n_heads": 4, "d_ff": 256, "n_vocab": 100}"#;
    assert_eq!(
        fault(two, &["model_type=decoder"]),
        "c.json: `n_embd` is 32; `d_model` is another, and both may be `hidden_size`: map one of them"
    );
    assert!(from_files(two, "c.json", &pairs(&["hidden_size=d_model"]), None).is_ok());
}

/// The header of a safetensors file with these shapes.
fn header(shapes: &[(String, Vec<u64>)]) -> Vec<u8> {
    let tensor =
        |(name, shape): &(String, Vec<u64>)| (name.clone(), json!({"dtype": "BF16", "shape": shape}));
    serde_json::to_vec(&shapes.iter().map(tensor).collect::<serde_json::Map<_, _>>()).unwrap()
}

#[test]
fn the_shapes_of_weights_are_the_truth() {
    // Two blocks, 64 wide, with grouped heads of 16, biases of queries, keys and values, no gate, a tied output layer.
    let block = |layer: usize| {
        let weights: [(&str, Vec<u64>); 9] = [
            ("self_attn.q_proj.weight", vec![64, 64]),
            ("self_attn.q_proj.bias", vec![64]),
            ("self_attn.k_proj.weight", vec![32, 64]),
            ("self_attn.k_proj.bias", vec![32]),
            ("self_attn.v_proj.weight", vec![32, 64]),
            ("self_attn.v_proj.bias", vec![32]),
            ("self_attn.o_proj.weight", vec![64, 64]),
            ("mlp.up_proj.weight", vec![256, 64]),
            ("mlp.down_proj.weight", vec![64, 256]),
        ];
        let norms =
            ["input_layernorm.weight", "post_attention_layernorm.weight"].map(|name| (name, vec![64]));
        let named = |(name, shape): (&str, Vec<u64>)| (format!("model.layers.{layer}.{name}"), shape);
        weights.into_iter().chain(norms).map(named).collect::<Vec<_>>()
    };
    let ends = [
        ("model.embed_tokens.weight".to_string(), vec![100, 64]),
        ("model.norm.weight".to_string(), vec![64]),
    ];
    let all: Vec<(String, Vec<u64>)> = (0..2).flat_map(block).chain(ends).collect();
    let mut shapes = Shapes::default();
    shapes.add_header(&header(&all), "model.safetensors").unwrap();
    // The file says of heads alone what shapes do not.
    let text = r#"{"model_type": "mine", "n_heads": 4, "n_kv_heads": 2}"#;
    let map = pairs(&["model_type=decoder"]);
    let model = from_files(text, "c.json", &map, Some(&shapes)).unwrap();
    assert_eq!(model.parameters(), shapes.parameters());
    assert_eq!((model.layers(), model.hidden, model.vocab), (2, 64, 100));
    // A file that says something else.
    let other = text.replace("}", r#", "intermediate_size": 300}"#);
    let fault = from_files(&other, "c.json", &map, Some(&shapes)).unwrap_err().to_string();
    let expected = format!(
        "c.json: `model_type` is \"decoder\"; read so it has {} parameters, and the weights beside the file are {}",
        shapes.parameters() + 2 * 2 * 44 * 64,
        shapes.parameters()
    );
    assert_eq!(fault, expected);
    let fault = shapes.add_header(b"[]", "model.safetensors").unwrap_err().to_string();
    assert!(fault.starts_with("model.safetensors: "), "{fault}");
}
