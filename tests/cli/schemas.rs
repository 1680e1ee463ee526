//! The schemas of `schema`, and that real answers keep to them.
//!
//! `TRAINWRIGHT_BLESS=1` adds to the files what new answers have; it takes nothing away and retypes nothing. A field that an
//! answer loses or that changes its type therefore fails here until the version of the format is another one: then the
//! files are made anew.

use crate::run::tiny_plan;
use crate::{Folder, small_plan};
use serde_json::{Map, Value, json};
use std::collections::BTreeSet;
use std::path::Path;

/// Where the files are.
const SCHEMAS: &str = concat!(env!("CARGO_MANIFEST_DIR"), "/src/schemas");

/// What every schema begins with.
const DIALECT: &str = "https://json-schema.org/draft/2020-12/schema";

const PLAN: &str =
    "plan --model gpt2 --cluster dgx-a100 --seq 512 --global-batch 16 --space core --sensitivity";

/// Commands with answers of every shape: the exit code and the arguments.
const ANSWERS: &[(i32, &str)] = &[
    (0, "doctor"),
    (0, PLAN),
    (
        0,
        "plan --model gpt2 --cluster dgx-a100:2 --seq 512 --global-batch 16 --space core --memory-reserve 1GiB --risk 0.9",
    ),
    (0, "plan --model gpt2 --cluster dgx-a100 --seq 512 --global-batch 16 --calibration none --top 1"),
    (0, "plan --model gpt2 --cluster dgx-h100:2 --seq 1024 --global-batch 32"),
    (
        0,
        "plan --model llama-3.2-1b --cluster dgx-a100 --seq 512 --global-batch 16 --space core --lora 8 --base-format nf4",
    ),
    (0, "plan --model llama-3.2-1b --cluster dgx-a100 --seq 512 --global-batch 16 --space core --lora 8"),
    (3, "plan --model llama-3-70b --cluster dgx-1v --seq 512 --global-batch 8"),
    (3, "plan --model gpt2 --cluster dgx-a100 --seq 512 --global-batch 8 --pin data=8 --pin micro-batch=8"),
    (0, "simulate plan.toml"),
    (0, "simulate plan.toml --calibration none"),
    (0, "predict runs.csv"),
    (0, "predict published.csv"),
    (0, "predict --kernels kernels.csv"),
    (0, "predict --kernels kernels.csv --scoreboard scores"),
    (0, "predict --inference serving.csv"),
    (0, "predict --inference published_serving.csv"),
    (0, "fit fit.csv"),
    (
        0,
        "what-if --model gpt2 --cluster dgx-a100 --seq 512 --global-batch 16 --space core --vary seq=512,1024 --tokens 1B",
    ),
    (
        0,
        "what-if gpus-needed --model gpt2 --cluster dgx-a100 --seq 512 --global-batch 16 --space core --tokens 1B --days 1 --up-to 16",
    ),
    // A number of nodes that no network joins.
    (
        0,
        "what-if gpus-needed --model gpt2 --cluster rtx-4090 --seq 512 --global-batch 16 --space core --tokens 1B --days 1 --up-to 2",
    ),
    (3, "what-if --model llama-3-70b --cluster dgx-1v --seq 512 --global-batch 8 --vary seq=512"),
    (0, "network --cluster dgx-h100:2 --collective all_reduce --bytes 1M..4M"),
    (0, "network --cluster dgx-h100:2 --collective all_reduce --bytes 1M --algorithm ring --by-steps"),
    (0, "network --cluster dgx-a100:1 --collective all_reduce --bytes 8..1M"),
    (0, "network --cluster dgx-h100 --log nccl.log"),
    (0, "network --cluster dgx-a100:2 --log run.log"),
    (0, "kernel --gpu h100-80gb-sxm --gemm 4096,4096,4096"),
    (0, "kernel --cluster dgx-h100 --all-reduce 8,1048576"),
    (0, "serve --model llama-3-8b --cluster dgx-h100 --clients 4 --requests 8"),
    (0, "serve --model llama-3-8b --cluster dgx-h100 --trace served.csv"),
    (0, "serve --model llama-3-8b --cluster dgx-h100 --batch 2 --output 1"),
    (3, "serve --model llama-3-8b --cluster dgx-h100 --batch 1 --input 9000000"),
    (0, "serve-plan --model llama-3-8b --cluster dgx-h100 --rate 20"),
    (0, "serve-plan --model llama-3-8b --cluster dgx-h100 --cluster dgx-a100 --rate 20 --apart --least cost"),
    (0, "serve-plan --model llama-3-8b --cluster rtx-4090 --rate 2"),
    (3, "serve-plan --model llama-3-70b --cluster dgx-a100 --rate 20 --ttft 1 --tpot 1"),
    (0, "fleet jobs.toml --cluster dgx-a100 --what-if"),
    (0, "fleet measured.toml --cluster dgx-a100:2 --objective deadlines --price 2"),
    (0, "fleet measured.toml --cluster dgx-a100:2 --observed log.csv"),
    (0, "fleet users.toml --cluster dgx-a100:3"),
    (0, "fleet measured.toml --cluster alps-gh200:2"),
    (0, "fleet preempted.toml --cluster rtx-4090 --objective completion --preempt"),
    (0, "fleet-online of_users.csv --throughputs speeds.csv --nodes dgx-a100:2x8 --quota ann:8"),
    (0, "fleet-online arrivals.csv --throughputs speeds.csv --nodes dgx-a100:2x8"),
    (0, "fleet-run fleet.toml --out fleet --profile machine"),
    (1, "fleet-run failing.toml --out failing --profile machine"),
    (0, "rl --model llama-3.2-1b --cluster dgx-h100 --prompts 8 --rollouts 4 --response 512"),
    (
        0,
        "rl --model llama-3.2-1b --cluster dgx-h100 --prompts 8 --rollouts 4 --response 512 --algorithm ppo --fewest",
    ),
    (3, "rl --model llama-3-70b --cluster rtx-4090 --prompts 8 --rollouts 4 --response 512"),
    (0, "goodput plan.toml --tokens 1B"),
    (0, "goodput plan.toml"),
    (0, "stragglers plan.toml --jitter 0.1 --slow-rank 5=1.5 --samples 20"),
    (0, "replay traces --plan plan.toml"),
    (
        0,
        "run tiny.toml --data text --steps 2 --save ck --save-every 2 --metrics run.jsonl --validate-every 2 --validation-fraction 0.5 --sample-prompt abc --sample-every 2 --sample-tokens 3",
    ),
    (0, "curves run.jsonl"),
    (0, "run tiny.toml --data text --steps 2 --metrics unvalidated.jsonl"),
    (0, "curves unvalidated.jsonl"),
    (0, "generate --checkpoint ck --prompt abc --tokens 3 --logits"),
    (0, "validate tiny.toml --steps 3"),
    (0, "validate tiny.toml --steps 3 --rounds 2"),
    (0, "serve-bench --model ./config.json --input 12 --output 6 --batch 3 --max-tokens 16"),
    (
        0,
        "serve-bench --model ./config.json --input 12 --output 6 --clients 2 --requests 4 --max-tokens 16 --validate --rounds 2",
    ),
];

/// The folder that the arguments name files of.
fn prepared() -> Folder {
    let folder = Folder::new();
    folder.write("plan.toml", &small_plan().to_toml());
    folder.write("tiny.toml", &tiny_plan().to_toml());
    folder.write("text", &"abcdefg".repeat(60));
    folder.write("jobs.toml", crate::fleet::JOBS);
    folder.write("measured.toml", crate::fleet::MEASURED);
    folder.write("users.toml", crate::fleet::OF_USERS);
    folder.write("preempted.toml", crate::fleet::PREEMPTED);
    folder.write("one.csv", crate::fleet::ONE);
    folder.write("of_users.csv", crate::fleet_online::OF_USERS);
    folder.write("speeds.csv", crate::fleet::SPEEDS);
    folder.write("log.csv", crate::fleet::LOG);
    crate::machine::write_profile(&folder);
    let jobs = "[[job]]\nname = \"a\"\nmodel = \"./config.json\"\nseq = 16\nglobal_batch = 2\nsteps = 3\n";
    folder.write("fleet.toml", jobs);
    folder.write("failing.toml", &format!("{jobs}run = [\"--data\", \"none\"]\n"));
    folder.write("arrivals.csv", crate::fleet_online::ARRIVALS);
    let header = "id,quality,layers,hidden,heads,vocab,seq_len,gpu,gpus,tp,pp,micro_batch,global_batch,framework,\
                  measured_step_time_s,measured_peak_memory_gb,outcome\n";
    let row = |id: &str, gpus: usize, tensor: usize, step: f64| {
        format!(
            "{id},A,24,2048,16,51200,1024,a100-80gb-sxm,{gpus},{tensor},2,2,32,Megatron-LM,{step},30,ok\n"
        )
    };
    let rows = [row("a-1", 8, 2, 1.5), row("a-2", 8, 4, 1.7), row("b-1", 8, 2, 1.4), row("b-2", 4, 2, 2.9)];
    folder.write("fit.csv", &format!("{header}{}", rows.concat()));
    let refused = "c-1,A,many,2048,16,51200,1024,a100-80gb-sxm,8,2,2,2,32,Megatron-LM,1.5,,ok\n";
    folder.write("runs.csv", &format!("{header}{}{refused}", rows.concat()));
    for (file, published, rows) in [
        ("kernels.csv", "inference/gemm.csv", 0..20),
        ("published.csv", "training.csv", 440..500),
        ("published_serving.csv", "inference/serving.csv", 1377..1389),
    ] {
        let published = Path::new(env!("CARGO_MANIFEST_DIR")).join("traces/published").join(published);
        let text = std::fs::read_to_string(published).unwrap();
        let (header, lines) = text.split_once('\n').unwrap();
        let lines = lines.lines().skip(rows.start).take(rows.len()).map(|line| format!("{line}\n"));
        folder.write(file, &format!("{header}\n{}", lines.collect::<String>()));
    }
    folder.write("run.log", &crate::network::log());
    folder.write(
        "serving.csv",
        "id,source,quality,model_name,gpu,gpus,tp,precision_weights,engine,date,batch,concurrency,input_len,output_len,tpot_ms\n\
         a,here,A,Llama-3.1-8B,H100 SXM,1,1,bf16,vllm,2026-01,,4,100,50,8\n\
         b,here,A,abacus-9b,H100 SXM,1,1,bf16,vllm,2026-01,,4,100,50,8\n",
    );
    folder.write(
        "served.csv",
        "arrival_s,input_tokens,output_tokens,first_token_s,last_token_s\n0,20,6,0.1,0.2\n0,7,3,0.1,0.2\n",
    );
    let config = r#"{"model_type": "llama", "hidden_size": 32, "num_attention_heads": 4, "num_key_value_heads": 2,
        "num_hidden_layers": 2, "intermediate_size": 48, "vocab_size": 67, "hidden_act": "silu",
        "tie_word_embeddings": false, "max_position_embeddings": 64}"#;
    folder.write("config.json", config);
    for line in [
        "network --cluster dgx-h100 --collective all_reduce --bytes 1M..4M --write-log nccl.log",
        "simulate plan.toml --chakra traces",
    ] {
        let ran = folder.run(line);
        assert_eq!(ran.code, 0, "{line}: {}", ran.stderr);
    }
    folder
}

/// What a value is, as a schema: every field of an object is required.
fn schema_of(value: &Value) -> Value {
    match value {
        Value::Null => json!({ "type": "null" }),
        Value::Bool(_) => json!({ "type": "boolean" }),
        Value::String(_) => json!({ "type": "string" }),
        Value::Number(number) if number.is_f64() => json!({ "type": "number" }),
        Value::Number(_) => json!({ "type": "integer" }),
        Value::Array(values) => {
            let items = values.iter().map(schema_of).reduce(|one, other| joined(&one, &other));
            json!({ "type": "array", "items": items.unwrap_or(json!({})) })
        }
        Value::Object(fields) => {
            let properties: Map<String, Value> =
                fields.iter().map(|(name, value)| (name.clone(), schema_of(value))).collect();
            let required: Vec<&String> = fields.keys().collect();
            json!({ "type": "object", "properties": properties, "required": required })
        }
    }
}

/// Parts of a plan whose keys are those of its TOML file: they depend on the model and on the hardware.
const OF_TOML: [&str; 3] = ["cluster", "model", "stack"];

/// Objects whose keys are data: the varied inputs of a point, the axes of a run's mesh.
const MAPS: [&str; 2] = ["point", "communication"];

/// A schema without keys that are data.
fn coarse(schema: Value) -> Value {
    let Value::Object(entries) = schema else { return schema };
    let is_plan = entries.get("properties").is_some_and(|fields| fields.get("mesh").is_some());
    let entry = |(key, value): (String, Value)| {
        let value = match (key.as_str(), value) {
            ("properties", Value::Object(fields)) => fields
                .into_iter()
                .map(|(name, schema)| {
                    let is_part = is_plan && OF_TOML.contains(&name.as_str());
                    let is_map = MAPS.contains(&name.as_str()) && schema["type"] == "object";
                    let schema = if is_part || is_map { json!({ "type": "object" }) } else { coarse(schema) };
                    (name, schema)
                })
                .collect(),
            ("items", items) => coarse(items),
            (_, other) => other,
        };
        (key, value)
    };
    entries.into_iter().map(entry).collect()
}

/// Commands that measure: of what took no time there is no rate, and a number is null.
const MEASURING: [&str; 5] = ["run", "generate", "validate", "serve-bench", "fleet-run"];

/// A schema in which every number may be null.
fn nullable(schema: &Value) -> Value {
    match schema {
        Value::Object(entries) => entries
            .iter()
            .map(|(key, value)| match (key.as_str(), value) {
                ("type", Value::String(name)) if name == "number" => (key.clone(), json!(["null", "number"])),
                _ => (key.clone(), nullable(value)),
            })
            .collect(),
        other => other.clone(),
    }
}

/// The types that a schema allows.
fn types(schema: &Value) -> BTreeSet<&str> {
    match &schema["type"] {
        Value::String(name) => [name.as_str()].into(),
        Value::Array(names) => names.iter().filter_map(Value::as_str).collect(),
        _ => BTreeSet::new(),
    }
}

/// What either schema allows; required is what both require.
fn joined(one: &Value, other: &Value) -> Value {
    let (of_one, of_other) = (types(one), types(other));
    let mut names: BTreeSet<&str> = of_one.union(&of_other).copied().collect();
    if names.contains("number") {
        names.remove("integer");
    }
    let mut all = Map::new();
    match names.iter().collect::<Vec<_>>()[..] {
        [] => return json!({}),
        [name] => all.insert("type".into(), json!(name)),
        _ => all.insert("type".into(), json!(names)),
    };
    if names.contains("array") {
        let items = [one, other].map(|of| of.get("items").cloned().unwrap_or(json!({})));
        all.insert("items".into(), joined(&items[0], &items[1]));
    }
    if names.contains("object") {
        let fields = |of: &Value| of["properties"].as_object().cloned().unwrap_or_default();
        let mut properties = fields(one);
        for (name, schema) in fields(other) {
            let both = properties.get(&name).map_or(schema.clone(), |earlier| joined(earlier, &schema));
            properties.insert(name, both);
        }
        let is_object = |of: &BTreeSet<&str>| of.contains("object");
        let requires = |of: &Value, name: &str| {
            of["required"].as_array().is_some_and(|names| names.iter().any(|known| known == name))
        };
        let required = properties.keys().filter(|name| {
            (requires(one, name) || !is_object(&of_one)) && (requires(other, name) || !is_object(&of_other))
        });
        all.insert("required".into(), required.cloned().collect());
        all.insert("properties".into(), Value::Object(properties));
    }
    Value::Object(all)
}

/// Where `schema` allows less than `wider`, or names a field that this one does not.
fn narrower(schema: &Value, wider: &Value, at: &str, faults: &mut Vec<String>) {
    if wider == &json!({}) || schema == &json!({}) {
        return if wider == &json!({}) && schema != wider {
            faults.push(format!("{at}: its type is new"))
        };
    }
    let (has, allowed) = (types(schema), types(wider));
    let is_allowed =
        |name: &&&str| !(allowed.contains(**name) || **name == "integer" && allowed.contains("number"));
    for name in has.iter().filter(is_allowed) {
        faults.push(format!("{at}: it is {name}, the file has {allowed:?}"));
    }
    if let (Some(items), Some(wider)) = (schema.get("items"), wider.get("items")) {
        narrower(items, wider, &format!("{at}[]"), faults);
    }
    let Some(properties) = schema["properties"].as_object() else { return };
    for (name, schema) in properties {
        match wider["properties"].get(name) {
            Some(wider) => narrower(schema, wider, &format!("{at}.{name}"), faults),
            None => faults.push(format!("{at}.{name}: it is not in the file")),
        }
    }
    let names = |of: &Value| -> BTreeSet<String> {
        of["required"]
            .as_array()
            .into_iter()
            .flatten()
            .filter_map(|name| Some(name.as_str()?.into()))
            .collect()
    };
    for name in names(wider).difference(&names(schema)) {
        faults.push(format!("{at}.{name}: it is required by the file and not always there"));
    }
}

/// What of a file no answer has: `schema` is of all answers.
fn unseen(file: &Value, schema: &Value, at: &str, faults: &mut Vec<String>) {
    if let (Some(file), Some(schema)) = (file.get("items"), schema.get("items")) {
        unseen(file, schema, &format!("{at}[]"), faults);
    }
    for (name, file) in file["properties"].as_object().into_iter().flatten() {
        match schema["properties"].get(name) {
            Some(schema) => unseen(file, schema, &format!("{at}.{name}"), faults),
            None => faults.push(format!("{at}.{name}: no answer has it")),
        }
    }
}

/// A schema as its file has it.
fn file_of(command: &str, version: &Value, schema: &Value) -> String {
    let mut schema = schema.clone();
    schema["properties"]["version"] = json!({ "const": version });
    let mut all = Map::new();
    all.insert("$schema".into(), DIALECT.into());
    all.insert("title".into(), format!("trainwright {command} --json, version {version}").into());
    all.extend(schema.as_object().expect("answers are objects").clone());
    format!("{:#}\n", Value::Object(all))
}

#[test]
fn answers_keep_to_the_schemas_of_their_commands() {
    let folder = prepared();
    let mut found: Vec<(&str, Value, Value)> = Vec::new();
    let mut faults = Vec::new();
    for (code, line) in ANSWERS {
        let ran = folder.run(&format!("{line} --json"));
        let (true, Ok(answer)) = (ran.code == *code, serde_json::from_str::<Value>(&ran.stdout)) else {
            faults.push(format!("{line}: {ran:?}"));
            continue;
        };
        let command = line.split(' ').next().expect("lines begin with a command");
        let version = answer["version"].clone();
        assert!(version.is_u64(), "{line}: no version");
        match found.iter_mut().find(|(name, ..)| *name == command) {
            Some((_, schema, _)) => *schema = joined(schema, &coarse(schema_of(&answer))),
            None => found.push((command, coarse(schema_of(&answer)), version)),
        }
    }
    let bless = std::env::var_os("TRAINWRIGHT_BLESS").is_some();
    for (command, schema, version) in &mut found {
        if MEASURING.contains(command) {
            *schema = nullable(schema);
        }
        let path = Path::new(SCHEMAS).join(format!("{command}.json"));
        let file: Option<Value> =
            std::fs::read_to_string(&path).ok().map(|text| serde_json::from_str(&text).unwrap());
        let mut file = file.filter(|file| file["properties"]["version"]["const"] == *version);
        if let Some(file) = &mut file {
            file["properties"]["version"] = json!({ "type": "integer" });
        }
        if bless {
            let with_new = match &file {
                None => schema.clone(),
                Some(file) => added(file, schema),
            };
            std::fs::write(&path, file_of(command, version, &with_new)).unwrap();
            file = Some(with_new);
        }
        let Some(file) = file else {
            faults.push(format!("{command}: there is no schema of version {version}"));
            continue;
        };
        narrower(schema, &file, command, &mut faults);
        unseen(&file, schema, command, &mut faults);
    }
    // Every command with `--json` is asked.
    let help = folder.run("--help").stdout;
    let commands = help.lines().filter_map(|line| line.strip_prefix("  ")?.split(' ').next());
    for command in commands.filter(|name| !name.is_empty() && *name != "help") {
        let help = folder.run(&format!("{command} --help")).stdout;
        let has_json = help.lines().any(|line| line.trim() == "--json" || line.trim().starts_with("--json "));
        let is_asked = found.iter().any(|(name, ..)| *name == command);
        assert_eq!(has_json, is_asked, "{command}");
    }
    assert!(faults.is_empty(), "{}", faults.join("\n"));
}

/// A field without any other type would deny the first answer that has a value.
#[test]
fn no_field_is_always_null() {
    fn look(schema: &Value, at: &str, found: &mut Vec<String>) {
        if schema["type"] == "null" {
            found.push(at.to_string());
        }
        for (name, of) in schema["properties"].as_object().into_iter().flatten() {
            look(of, &format!("{at}.{name}"), found);
        }
        if let Some(items) = schema.get("items") {
            look(items, &format!("{at}[]"), found);
        }
    }
    let mut found = Vec::new();
    for file in std::fs::read_dir(SCHEMAS).unwrap() {
        let path = file.unwrap().path();
        let schema = serde_json::from_str(&std::fs::read_to_string(&path).unwrap()).unwrap();
        look(&schema, &path.file_name().unwrap().to_string_lossy(), &mut found);
    }
    assert!(found.is_empty(), "{found:?}");
}

/// A file with the fields that only the answers have; what it says stays.
fn added(file: &Value, schema: &Value) -> Value {
    let mut all = file.clone();
    if file == &json!({}) {
        return schema.clone();
    }
    if let (Some(items), Some(new)) = (file.get("items"), schema.get("items")) {
        all["items"] = added(items, new);
    }
    for (name, new) in schema["properties"].as_object().into_iter().flatten() {
        all["properties"][name] = match file["properties"].get(name) {
            Some(known) => added(known, new),
            None => new.clone(),
        };
    }
    all
}

#[test]
fn a_field_that_goes_or_changes_its_type_is_a_fault_and_a_new_one_must_be_written_down() {
    let file = schema_of(&json!({ "a": 1.5, "b": [{ "c": "x" }, { "c": null, "d": true }] }));
    let check = |answer: Value, expected: &[&str]| {
        let (schema, mut faults) = (schema_of(&answer), Vec::new());
        narrower(&schema, &file, "", &mut faults);
        unseen(&file, &schema, "", &mut faults);
        let found: Vec<&str> = faults.iter().filter_map(|fault| fault.split(':').next()).collect();
        assert_eq!(found, expected, "{faults:?}");
        // Blessing heals what is new, and nothing else.
        let mut left = Vec::new();
        narrower(&schema, &added(&file, &schema), "", &mut left);
        let heals = faults.iter().filter(|fault| fault.contains("not in the file")).count();
        let others = faults.iter().filter(|fault| fault.contains("no answer has it")).count();
        assert_eq!(left.len(), faults.len() - heals - others, "{left:?}");
    };
    check(json!({ "a": 2, "b": [{ "c": "y", "d": false }, { "c": null }] }), &[]);
    check(json!({ "a": 2, "b": [{ "c": "y", "d": false }], "e": 1 }), &[".e"]);
    check(json!({ "a": "2", "b": [{ "c": "y", "d": false }] }), &[".a"]);
    check(json!({ "b": [{ "c": "y", "d": false }] }), &[".a", ".a"]);
    check(json!({ "a": 2, "b": [{ "d": false }] }), &[".b[].c", ".b[].c"]);
    check(json!({ "a": 2, "b": [{ "c": 1, "d": false }] }), &[".b[].c"]);
}
