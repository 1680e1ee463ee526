//! Extreme questions that are legal: an answer whose numbers are numbers, or one line. JSON has no infinity: what is not
//! finite would be null where the schema has a number.

use crate::{Folder, small_plan};
use serde_json::Value;

/// Whether a schema allows a type at a place.
fn allows(schema: &Value, name: &str) -> bool {
    match &schema["type"] {
        Value::String(only) => only == name,
        Value::Array(names) => names.iter().any(|known| known == name),
        _ => true,
    }
}

/// Places where an answer is null and its schema has a number alone, and numbers that no quantity reaches.
fn faults(answer: &Value, schema: &Value, at: &str, found: &mut Vec<String>) {
    match answer {
        Value::Null if !allows(schema, "null") => found.push(format!("{at} is null")),
        Value::Number(number) if number.as_f64().is_none_or(|number| number.abs() > 1e60) => {
            found.push(format!("{at} is {number}"));
        }
        Value::Array(values) => {
            values.iter().for_each(|value| faults(value, &schema["items"], &format!("{at}[]"), found));
        }
        Value::Object(fields) => {
            let of = |name: &str| &schema["properties"][name];
            fields.iter().for_each(|(name, value)| faults(value, of(name), &format!("{at}.{name}"), found));
        }
        _ => {}
    }
}

/// A small model of the LLaMA family, with a part of its configuration replaced.
fn config(replaced: &[(&str, u64)]) -> String {
    let mut config = serde_json::json!({"model_type": "llama", "hidden_size": 256, "num_attention_heads": 4,
        "num_key_value_heads": 4, "num_hidden_layers": 4, "intermediate_size": 512, "vocab_size": 1000, "hidden_act": "silu",
        "tie_word_embeddings": false, "max_position_embeddings": 1000000, "rms_norm_eps": 1e-5});
    replaced.iter().for_each(|(key, value)| config[*key] = (*value).into());
    config.to_string()
}

const CONFIGS: [(&str, &[(&str, u64)]); 9] = [
    ("usual.json", &[]),
    ("letters-1.json", &[("vocab_size", 1)]),
    ("letters-10M.json", &[("vocab_size", 10_000_000)]),
    ("letters-100M.json", &[("vocab_size", 100_000_000)]),
    (
        "wide.json",
        &[("hidden_size", 1_000_000), ("num_attention_heads", 10_000), ("num_key_value_heads", 10_000)],
    ),
    (
        "narrow.json",
        &[
            ("hidden_size", 1),
            ("num_attention_heads", 1),
            ("num_key_value_heads", 1),
            ("intermediate_size", 1),
        ],
    ),
    ("inner.json", &[("intermediate_size", 10_000_000)]),
    ("deep.json", &[("num_hidden_layers", 200)]),
    (
        "all.json",
        &[
            ("hidden_size", 1_000_000),
            ("num_attention_heads", 1_000_000),
            ("num_key_value_heads", 1),
            ("num_hidden_layers", 200),
            ("intermediate_size", 10_000_000),
            ("vocab_size", 100_000_000),
        ],
    ),
];

/// Questions with a model.
const OF_MODELS: [&str; 4] = [
    "plan --model ./MODEL --cluster dgx-h100:1 --seq 1 --global-batch 8 --space core --time-limit 0",
    "plan --model ./MODEL --cluster dgx-h100:1 --seq 1000000 --global-batch 8 --space core --time-limit 0",
    "serve --model ./MODEL --cluster dgx-h100 --tensor 1 --batch 2 --input 100 --output 2",
    "what-if largest-model --model ./MODEL --cluster dgx-h100:1 --seq 64 --global-batch 8 --space core --time-limit 0",
];

/// Others.
const OTHERS: [&str; 23] = [
    "plan --model ./usual.json --cluster dgx-h100:1250000 --seq 64 --global-batch 10000000 --space core --tensor 8 --pipeline 1 --time-limit 0",
    "plan --model ./usual.json --cluster dgx-h100:1250000 --seq 64 --global-batch 8 --space core --time-limit 0",
    "plan --model llama-3-405b --cluster dgx-h100:1250000 --seq 10000000 --global-batch 10000000 --time-limit 0",
    "plan --model ./usual.json --cluster dgx-h100:1 --seq 10000000 --global-batch 1 --space core --time-limit 0",
    "goodput plan.toml --tokens 1e15",
    "goodput plan.toml --tokens 1",
    "what-if --plan plan.toml --vary micro_batch=1 --tokens 1e15",
    "what-if --plan plan.toml --vary micro_batch=1 --tokens 1e15 --price 1e6",
    "what-if --plan plan.toml --vary nic-bandwidth=x1e-6,x1e6 --tokens 1e15",
    "what-if --plan plan.toml --vary gpu-memory=x1e-6 --tokens 1e15",
    "what-if compute-optimal --model ./usual.json --cluster dgx-h100:1 --seq 64 --global-batch 8 --flops 1e40",
    "what-if compute-optimal --model ./usual.json --cluster dgx-h100:1 --seq 64 --global-batch 8 --flops 1",
    "network --cluster dgx-h100:1250000 --collective all_reduce --bytes 1..1024T --factor 1048576",
    "network --cluster dgx-h100:1250000 --collective all_to_all --bytes 8,1024T",
    "network --cluster dgx-h100:1 --gpus 1 --collective all_reduce --bytes 1",
    "stragglers plan.toml --jitter 2 --network-jitter 2 --gpu-jitter 2 --slow 1x1000 --samples 3",
    "stragglers plan.toml --slow-rank 0=1e-300 --samples 2",
    "serve --model llama-3-8b --cluster dgx-h100 --batch 1 --input 10000000 --output 1",
    "serve --model llama-3-8b --cluster dgx-h100 --clients 4294967296",
    "serve --model llama-3-8b --cluster dgx-h100 --rate 4 --requests 4294967296",
    "serve --model llama-3-8b --cluster dgx-h100 --batch 18446744073709551615",
    "serve --model llama-3-8b --cluster dgx-h100 --rate 1e9 --requests 20 --input 1 --output 1",
    "serve-plan --model llama-3-8b --cluster dgx-h100:2 --rate 1e9",
];

#[test]
fn extreme_questions_have_an_answer_of_numbers_or_one_line() {
    let folder = Folder::new();
    folder.write("plan.toml", &small_plan().to_toml());
    for (name, replaced) in CONFIGS {
        folder.write(name, &config(replaced));
    }
    let of_models = OF_MODELS.iter().flat_map(|line| CONFIGS.map(|(name, _)| line.replace("MODEL", name)));
    let lines: Vec<String> = of_models.chain(OTHERS.map(String::from)).collect();
    let mut wrong = Vec::new();
    let mut answers = 0;
    for line in &lines {
        let ran = folder.run(&format!("{line} --json"));
        let command = line.split(' ').next().expect("a command");
        let errors = ran.stderr.lines().filter(|line| line.starts_with("error: ")).count();
        if ![0, 2, 3].contains(&ran.code) || ran.stderr.contains("panicked") || errors > 1 {
            wrong.push(format!("{line}: {} {}", ran.code, ran.stderr));
            continue;
        }
        let Ok(answer) = serde_json::from_str::<Value>(&ran.stdout) else {
            if errors != 1 || ran.code == 0 {
                wrong.push(format!("{line}: {ran:?}"));
            }
            continue;
        };
        answers += 1;
        let path = format!("{}/src/schemas/{command}.json", env!("CARGO_MANIFEST_DIR"));
        let schema: Value = serde_json::from_str(&std::fs::read_to_string(path).unwrap()).unwrap();
        let mut found = Vec::new();
        faults(&answer, &schema, command, &mut found);
        found.truncate(4);
        wrong.extend(found.into_iter().map(|fault| format!("{line}: {fault}")));
    }
    assert!(wrong.is_empty(), "{} wrong:\n{}", wrong.len(), wrong.join("\n"));
    assert!(answers > 25, "{answers} of {} questions have an answer", lines.len());
}
