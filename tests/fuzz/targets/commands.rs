//! Whole commands, from a file to what they print: what was read must not fail later.

use super::{CHAKRA, CSV, JSON, JSON_LINES, SQLITE, TEXT, TOML, Target, reader};
use crate::files;
use crate::mutate::Damage;
use serde_json::{Map, Value, json};
use std::collections::BTreeMap;
use std::sync::Arc;
use trainwright::{Failure, Request, Watch, answer};

type Seeds = fn() -> Vec<Vec<u8>>;

pub fn targets() -> Vec<Target> {
    let pins = json!({"seq": 64, "global_batch": 8, "tensor": 1, "pipeline": 1, "micro_batch": 1, "recompute": "none",
        "data_sharding": "zero1", "time_limit": 0, "cluster": "dgx-a100", "model": "config.json"});
    let planning = |more: Value| merged(&pins, more);
    let serving = |more: Value| {
        let load = json!({"model": "llama-3-8b", "cluster": "dgx-a100", "engine": "vllm-v1"});
        merged(&load, more)
    };
    let to = |tool: &str| json!({"plan": "FILE", "to": tool, "out": "out", "lossy": true});
    vec![
        command("simulate", plans, TOML, 60, json!({"plan": "FILE", "trace": "out", "report": "page"})),
        command("stragglers", plans, TOML, 40, json!({"plan": "FILE", "jitter": 0.1, "samples": 3})),
        command("goodput", plans, TOML, 40, json!({"plan": "FILE", "tokens": "1e12"})),
        command("export", plans, TOML, 150, to("megatron-lm")),
        command("export", plans, TOML, 150, to("torchtitan")).named("export-torchtitan"),
        command(
            "what-if",
            plans,
            TOML,
            20,
            json!({"plan": "FILE", "vary": "micro_batch=1,2", "tokens": "1B"}),
        ),
        command("plan", configs, JSON, 30, planning(json!({"model": "FILE"}))).named("plan-config"),
        command("plan", clusters, TOML, 30, planning(json!({"cluster": "FILE"}))).named("plan-cluster"),
        command("plan", choices, TOML, 30, planning(json!({"choices": "FILE"}))).named("plan-choices"),
        command("plan", calibrations, TOML, 30, planning(json!({"calibration": "FILE"})))
            .named("plan-calibration"),
        command("serve", requests, CSV, 60, serving(json!({"trace": "FILE"}))).named("serve-trace"),
        command("serve", benches, JSON, 60, serving(json!({"measured": "FILE"}))).named("serve-measured"),
        command("serve", configs, JSON, 40, serving(json!({"model": "FILE", "batch": 2, "output": 4})))
            .named("serve-config"),
        command("serve-plan", requests, CSV, 6, serving(json!({"trace": "FILE", "rate": 1}))),
        command(
            "compare",
            kinetos,
            JSON,
            40,
            json!({"trace": "FILE", "plan": "plan.toml", "report": "page"}),
        ),
        command(
            "profile",
            nsights,
            SQLITE,
            150,
            json!({"trace": "FILE", "gpu": "cpu", "precision": "bf16", "out": "out"}),
        ),
        command(
            "replay",
            traces,
            CHAKRA,
            60,
            json!({"traces": ["FILE"], "groups": "groups.json", "cluster": "dgx-a100"}),
        ),
        command(
            "replay",
            groups,
            JSON,
            60,
            json!({"traces": ["trace.et"], "groups": "FILE", "cluster": "dgx-a100"}),
        )
        .named("replay-groups"),
        command(
            "network",
            logs,
            TEXT,
            100,
            json!({"cluster": "dgx-a100:2", "log": "FILE", "write_profile": "out"}),
        ),
        command("fit", runs, CSV, 15, json!({"measurements": "FILE", "quality": "A,B", "out": "out"})),
        command("predict", runs, CSV, 25, json!({"cases": "FILE", "out": "out"})),
        command("curves", metrics, JSON_LINES, 150, json!({"metrics": ["FILE"], "svg": "page"})),
    ]
}

impl Target {
    fn named(self, name: &str) -> Self {
        Self { name: name.into(), ..self }
    }
}

fn merged(options: &Value, more: Value) -> Value {
    let mut options = options.as_object().unwrap().clone();
    options.extend(more.as_object().unwrap().clone());
    options.into()
}

fn command(
    name: &'static str,
    seeds: Seeds,
    damages: &'static [Damage],
    inputs: u64,
    options: Value,
) -> Target {
    let options: Map<String, Value> = options.as_object().unwrap().clone();
    let read = move |bytes: &[u8]| {
        let mut given = BTreeMap::from([
            ("plan.toml".to_string(), files::plan().to_toml().into_bytes()),
            ("config.json".to_string(), files::CONFIG.into()),
            ("groups.json".to_string(), serde_json::to_vec(files::chakra_groups()).unwrap()),
            ("trace.et".to_string(), files::chakra().0),
        ]);
        // `--model` takes what has such a name for a file.
        let options = serde_json::to_string(&options).unwrap().replace("FILE", FILE);
        given.insert(FILE.into(), bytes.to_vec());
        let request = Request {
            command: name.into(),
            options: serde_json::from_str(&options).unwrap(),
            inputs: given,
            kept: vec!["out".into(), "page".into()],
            threads: Some(1),
        };
        match answer(request, Arc::new(Nobody)) {
            Ok(answer) => {
                if !answer.printed.is_empty() && answer.printed.starts_with('{') {
                    serde_json::from_str::<Value>(&answer.printed).expect("an answer is JSON");
                }
                Ok(())
            }
            Err(Failure::BadInput(line) | Failure::Failed(3, line)) => {
                assert!(!line.contains(char::is_control), "a refusal is one line: {line:?}");
                Err(line)
            }
            Err(other) => panic!("{other:?}"),
        }
    };
    Target { inputs, ..reader(name, seeds, damages, &[], read) }
}

/// The name of the damaged file.
const FILE: &str = "given/file.json";

struct Nobody;

impl Watch for Nobody {
    fn progress(&self, _: &str, _: usize, _: usize) {}

    fn is_stopped(&self) -> bool {
        false
    }
}

fn plans() -> Vec<Vec<u8>> {
    vec![files::plan().to_toml().into(), files::mixture().to_toml().into()]
}

fn configs() -> Vec<Vec<u8>> {
    let llama = r#"{"model_type": "llama", "hidden_size": 64, "num_attention_heads": 4, "num_key_value_heads": 2,
        "num_hidden_layers": 2, "intermediate_size": 128, "vocab_size": 256, "max_position_embeddings": 2048,
        "rms_norm_eps": 1e-5, "rope_theta": 10000.0, "hidden_act": "silu", "tie_word_embeddings": false}"#;
    vec![llama.into()]
}

fn clusters() -> Vec<Vec<u8>> {
    vec![files::cluster().into()]
}

fn choices() -> Vec<Vec<u8>> {
    vec![files::CHOICES.replace("[1, 2]", "1").replace("[4, 8]", "4").into()]
}

fn calibrations() -> Vec<Vec<u8>> {
    vec![files::CALIBRATION.into()]
}

fn requests() -> Vec<Vec<u8>> {
    vec!["arrival_s,input_tokens,output_tokens,cached_tokens,first_token_s,last_token_s\n0,2358,31,0,0.7,17.5\n0.3,1034,69,5,0.7,25.6\n\
          0.4,1320,6,0,0.9,25.7\n1.5,1,1,0,1.9,1.9\n".into()]
}

fn benches() -> Vec<Vec<u8>> {
    vec![br#"{"completed": 3, "total_input_tokens": 3072, "total_output_tokens": 48, "request_rate": "inf", "max_concurrency": 2,
        "input_lens": [1024, 1024, 1024], "output_lens": [16, 16, 16], "mean_ttft_ms": 120.5, "p99_tpot_ms": 31.0}"#.to_vec()]
}

fn kinetos() -> Vec<Vec<u8>> {
    vec![files::KINETO.into()]
}

fn nsights() -> Vec<Vec<u8>> {
    let mut all = vec![super::file("traces/formats/tests/data/two-steps.sqlite")];
    all.push(files::KINETO.into());
    all
}

fn traces() -> Vec<Vec<u8>> {
    vec![files::chakra().0]
}

fn groups() -> Vec<Vec<u8>> {
    vec![serde_json::to_vec(files::chakra_groups()).unwrap()]
}

fn logs() -> Vec<Vec<u8>> {
    vec![files::NCCL.into()]
}

fn runs() -> Vec<Vec<u8>> {
    vec![files::RUNS.into()]
}

fn metrics() -> Vec<Vec<u8>> {
    let line = |step: usize| {
        format!(
            "{{\"step\": {step}, \"loss\": 5.5, \"validation_loss\": 5.6, \"gradient_norm\": 1.5, \"tokens_per_second\": 100.0}}\n"
        )
    };
    vec![(1..6).map(line).collect::<String>().into_bytes()]
}
