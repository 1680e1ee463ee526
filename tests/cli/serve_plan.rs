//! `serve-plan`: what it says of an instance is what `serve` says of it; bad input; what cannot be served.

use crate::Folder;
use serde_json::Value;

const QUESTION: &str = "serve-plan --model llama-3-8b --cluster dgx-h100";

fn json(folder: &Folder, arguments: &str) -> Value {
    let ran = folder.run(arguments);
    assert_eq!((ran.code, ran.stderr.as_str()), (0, ""), "{arguments}");
    serde_json::from_str(&ran.stdout).unwrap()
}

#[test]
fn an_instance_of_a_plan_and_the_command_beside_it_have_the_same_answer() {
    let folder = Folder::new();
    let rows: String = (0..200)
        .map(|index| {
            format!("{},{},{}\n", 0.02 * f64::from(index * index % 400), 300 + index % 90, 40 + index % 50)
        })
        .collect();
    folder.write("trace.csv", &format!("arrival_s,input_tokens,output_tokens\n{rows}"));
    for load in ["--input 700 --output 90 --cached 200 --tpot 15", "--trace trace.csv --ttft 300 --tpot 12"] {
        let question = format!("{QUESTION} --weights fp8 --rate 120 {load}");
        let ran = folder.run(&question);
        assert_eq!((ran.code, ran.stderr.as_str()), (0, ""), "{question}");
        let command =
            ran.stdout.lines().find_map(|line| line.strip_prefix("an instance  trainwright ")).unwrap();
        let served = json(&folder, &format!("{command} --json"));
        let plan = json(&folder, &format!("{question} --json"));
        let pool = &plan["pools"][0];
        for time in ["ttft_ms", "tpot_ms"] {
            assert_eq!(pool["at_share"][time], served[time]["p90"], "{load} {time}");
        }
        assert_eq!(pool["at_share"]["mean_tpot_ms"], served["tpot_ms"]["mean"], "{load}");
        assert_eq!(pool["at_share"]["requests"], served["requests"], "{load}");
        assert_eq!(plan["proved"], true);
        let rates = plan["pools"].as_array().unwrap().iter().map(|pool| {
            pool["instances"].as_f64().unwrap() * pool["at_share"]["requests_per_s"].as_f64().unwrap()
        });
        assert!(rates.sum::<f64>() >= 120.0 * (1.0 - 1e-9), "{plan}");
    }
}

/// Long answers: the first requests end long after many have come, and a short simulation would call a rate kept that is not.
#[test]
fn a_rate_that_is_called_kept_is_kept_and_a_looser_limit_needs_no_more() {
    let folder = Folder::new();
    let question = format!("{QUESTION} --rate 26.5 --input 500 --output 2000");
    let gpus =
        |ttft: usize| json(&folder, &format!("{question} --ttft {ttft} --json"))["gpus"].as_u64().unwrap();
    let needed = [200, 1000, 4000].map(gpus);
    assert!(needed.is_sorted_by(|one, other| one >= other), "{needed:?}");
    let plan = json(&folder, &format!("{question} --json"));
    let kept = plan["pools"][0]["at_share"]["requests_per_s"].as_f64().unwrap();
    let command = folder.run(&question).stdout;
    let command = command.lines().find_map(|line| line.strip_prefix("an instance  trainwright ")).unwrap();
    let words: Vec<&str> = command.split_whitespace().collect();
    let at = words.iter().position(|word| *word == "--requests").unwrap();
    let long = [&words[..at], &["--requests", "8000", "--json"]].concat().join(" ");
    let served = json(&folder, &long)["requests_per_s"].as_f64().unwrap();
    assert!(served > 0.97 * kept, "{served} of {kept}");
}

#[test]
fn the_cheapest_nodes_are_taken_where_cost_is_asked() {
    let folder = Folder::new();
    let both = "serve-plan --model llama-3-8b --cluster dgx-h100 --cluster dgx-a100 --rate 30 --json";
    let gpus = json(&folder, both);
    let cost = json(&folder, &format!("{both} --least cost"));
    assert!(cost["usd_per_hour"].as_f64() <= gpus["usd_per_hour"].as_f64());
    assert!(cost["gpus"].as_u64() >= gpus["gpus"].as_u64());
    assert_eq!(gpus["pools"][0]["option"]["cluster"], "dgx-h100");
}

#[test]
fn what_cannot_be_served_is_an_answer_and_what_makes_no_sense_an_error() {
    let folder = Folder::new();
    let ran = folder.run(&format!("{QUESTION} --rate 100000"));
    assert_eq!((ran.code, ran.stderr.as_str()), (3, ""));
    assert!(
        ran.stdout.contains("The nodes do not keep 100000 requests/s within the limits: "),
        "{}",
        ran.stdout
    );
    let ran = folder.run(&format!("{QUESTION} --tpot 0.5"));
    assert_eq!((ran.code, ran.stderr.as_str()), (3, ""));
    assert!(ran.stdout.contains("not even for a request that is almost alone"), "{}", ran.stdout);
    let check = |rest: &str, expected: &str| {
        let ran = folder.run(&format!("{QUESTION} {rest}"));
        assert_eq!((ran.code, ran.stderr.lines().count(), ran.stdout.as_str()), (2, 1, ""), "{}", ran.stderr);
        assert!(ran.stderr.contains(expected), "{rest}: {}", ran.stderr);
    };
    let ran = folder.run("serve-plan --model gpt2 --cluster dgx-h100 --rate 10");
    assert_eq!((ran.code, ran.stdout.as_str()), (2, ""));
    assert!(
        ran.stderr.contains("learned positions for 1024 tokens, and prompt and answer are 1280"),
        "{}",
        ran.stderr
    );
    folder.write("once.csv", "arrival_s,input_tokens,output_tokens\n1,10,10\n1,20,20\n");
    check("--trace once.csv", "its requests should arrive at different times");
    check("--cached 1024", "it should be less than the 1024 of --input");
    check("--expert-weights fp8", "has no experts");
    let ran = folder.run("serve-plan --model bert-base --cluster dgx-h100 --rate 10");
    assert_eq!((ran.code, ran.stdout.as_str()), (2, ""));
    assert!(ran.stderr.contains("an encoder sees all tokens at once"), "{}", ran.stderr);
    check("--percentile 100", "a number from 1 to 99.9");
    check("--ttft 0", "a number of milliseconds");
    check("--weights bf16,posit", "known formats are");
    check("--engine vlm-v1", "vllm-v1");
    check("--cluster l40s-8-ethernet --least cost", "give `--price`");
    check("--svg - --json", "standard output is taken");
}

#[test]
fn a_time_limit_that_leaves_options_says_so() {
    let folder = Folder::new();
    let line = "serve-plan --model llama-3-8b --cluster dgx-h100 --rate 20 --time-limit 0";
    let ran = folder.run(line);
    assert_eq!(ran.code, 3);
    assert!(ran.stdout.contains("No instance was found in time."), "{}", ran.stdout);
    assert!(ran.stdout.contains("Layouts left out: 4 that were not tried in time."), "{}", ran.stdout);
    let ran = folder.run(&format!("{line} --json"));
    let answer: Value = serde_json::from_str(&ran.stdout).unwrap();
    assert_eq!((ran.code, &answer["proved"]), (3, &Value::Bool(false)));
    assert_eq!(answer["options"][0]["why"], "not tried: the time limit came first");
}

#[test]
fn the_picture_has_a_curve_for_each_layout() {
    let folder = Folder::new();
    let ran = folder.run(&format!("{QUESTION} --rate 50 --svg front.svg"));
    assert_eq!((ran.code, ran.stderr.as_str()), (0, ""));
    let drawn = std::fs::read_to_string(folder.path("front.svg")).unwrap();
    for text in ["tensor 1, bfloat16", "tensor 8, bfloat16", "output tokens/s a user", "TTFT P90 in ms"] {
        assert!(drawn.contains(text), "{text}");
    }
}

#[test]
fn commands_start_each_pool_with_its_engine() {
    let folder = Folder::new();
    let question = format!("{QUESTION} --weights fp8 --rate 20");
    let ran = folder.run(&format!("{question} --commands --checkpoint meta-llama/Llama-3.1-8B"));
    assert_eq!((ran.code, ran.stderr.as_str()), (0, ""));
    let line = ran.stdout.lines().find(|line| line.starts_with("vllm serve")).expect("a command");
    assert!(
        line.starts_with("vllm serve meta-llama/Llama-3.1-8B ") && line.contains(" --quantization fp8 "),
        "{line}"
    );
    // What the plan says is what the command says.
    let plan = json(&folder, &format!("{question} --commands --json"));
    let pool = &plan["pools"][0];
    let script = pool["script"].as_str().unwrap();
    assert!(script.contains(&format!("--max-num-batched-tokens {}", pool["option"]["max_tokens"])), "{plan}");
    assert!(json(&folder, &format!("{question} --json"))["pools"][0].get("script").is_none());
    let ran = folder.run(&format!("{question} --commands --engine llama-cpp"));
    assert_eq!(ran.code, 2, "{}", ran.stdout);
    assert!(
        ran.stderr.contains("with `--commands` it should be vllm-v1, vllm-v0, sglang, tensorrt-llm"),
        "{}",
        ran.stderr
    );
}
