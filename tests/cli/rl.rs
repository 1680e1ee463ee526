//! `rl`: its figures add up, what does not fit ends with 3 and reasons, and bad input with 2 and a line.

use crate::Folder;
use serde_json::Value;

const QUESTION: &str = "rl --model llama-3.2-1b --cluster dgx-h100 --prompts 8 --rollouts 4 --response 512";

fn json(folder: &Folder, line: &str, code: i32) -> Value {
    let ran = folder.run(&format!("{line} --json"));
    assert_eq!(ran.code, code, "{line}: {}", ran.stderr);
    serde_json::from_str(&ran.stdout).unwrap()
}

#[test]
fn phases_add_up_to_the_step() {
    let folder = Folder::new();
    let answer = json(&folder, &format!("{QUESTION} --mode colocated,disaggregated"), 0);
    let plans = answer["plans"].as_array().unwrap();
    assert_eq!(plans.len(), 3, "{answer}");
    let mut before = 0.0;
    for plan in plans {
        let step = plan["step_time_s"].as_f64().unwrap();
        let sum: f64 =
            plan["phases"].as_array().unwrap().iter().map(|phase| phase["time_s"].as_f64().unwrap()).sum();
        assert!((sum / step - 1.0).abs() < 1e-9 && step >= before, "{sum} {step}");
        before = step;
    }
    let ran = folder.run(&format!("{QUESTION} --algorithm ppo"));
    assert_eq!(ran.code, 0, "{}", ran.stderr);
    for text in ["critic update", "values", "generation", "later steps", "A step takes"] {
        assert!(ran.stdout.contains(text), "{text}: {}", ran.stdout);
    }
    assert_eq!(ran.stdout, folder.run(&format!("{QUESTION} --algorithm ppo")).stdout);
}

#[test]
fn what_does_not_fit_has_reasons() {
    let folder = Folder::new();
    let line = "rl --model llama-3-70b --cluster dgx-h100 --prompts 8 --rollouts 4 --response 512";
    let answer = json(&folder, line, 3);
    let reasons = answer["reasons"].to_string();
    assert!(reasons.contains("actor update needs") && reasons.contains(" of 7"), "{reasons}");
    let fewest = json(&folder, &format!("{QUESTION} --fewest --within 0.001"), 3);
    assert!(fewest["reasons"].to_string().contains("a step takes"), "{fewest}");
    assert!(fewest["fewest_gpus"].is_null());
}

/// `simulate` of the training plan shows an update, but for joined ops, and `serve` of the other the generation, to the digit.
#[test]
fn plans_are_files_that_other_commands_take() {
    let folder = Folder::new();
    let time = |plan: &Value, name: &str| {
        let phase = plan["phases"].as_array().unwrap().iter().find(|phase| phase["phase"] == name).unwrap();
        phase["time_s"].as_f64().unwrap() - phase["host_copies_s"].as_f64().unwrap()
    };
    let check = |more: &str, updates: f64, has_critic: bool| {
        let best = json(&folder, &format!("{QUESTION} {more} --out plans"), 0)["plans"][0].clone();
        let simulated = json(&folder, "simulate plans/training.toml", 0);
        let step = simulated["forecast"]["step_time_s"].as_f64().unwrap();
        let update = time(&best, "actor update");
        // The search joins consecutive ops, `simulate` does not.
        assert!((update / (updates * step) - 1.0).abs() < 2e-3, "{more}: {update} of {updates} × {step}");
        let served = json(&folder, "serve --plan plans/generation.toml --trace plans/requests.csv", 0);
        assert_eq!(served["duration_s"].as_f64().unwrap(), time(&best, "generation"), "{more}");
        assert_eq!(folder.path("plans/critic.toml").exists(), has_critic, "{more}");
        if has_critic {
            assert_eq!(folder.read("plans/critic.toml"), folder.read("plans/training.toml"), "{more}");
        }
        assert_eq!(std::fs::read_dir(folder.path("")).unwrap().count(), 1, "{more}: no temporary folder");
    };
    check("--mode colocated --algorithm ppo", 1.0, true);
    // The critic's plan of before goes. Every rank has as many microbatches in both updates of both epochs.
    check("--mode one-step-off --mini-batches 2 --epochs 2", 4.0, false);
    check("--mode disaggregated", 1.0, false);
    let ran = folder.run(&format!("{QUESTION} --mode async --out plans"));
    assert!(ran.code == 0 && !folder.path("plans/requests.csv").exists(), "{}", ran.stderr);
    assert!(
        ran.stdout.contains("`trainwright simulate plans/training.toml` shows an update"),
        "{}",
        ran.stdout
    );

    // What is in the way is said before the search.
    folder.write("file", "");
    let ran = folder.run(&format!("{QUESTION} --out file"));
    assert_eq!(
        (ran.code, ran.stderr.as_str()),
        (2, "error: `--out` is file; a folder, or the name of a new one\n")
    );
    let nothing = "rl --model llama-3-70b --cluster rtx-4090 --prompts 8 --rollouts 4 --response 512";
    let ran = folder.run(&format!("{nothing} --out none"));
    assert!(ran.code == 3 && !folder.path("none").exists(), "{}", ran.stdout);
}

#[test]
fn a_serving_plan_in_a_file_is_checked_as_arguments_are() {
    let folder = Folder::new();
    let file = "instances = 1\nengine = \"vllm-v1\"\nmemory_share = 0.9\ntensor = 4\nweights = \"bf16\"\n\
                expert_weights = \"bf16\"\ncache = \"fp8\"\ncluster = \"dgx-h100\"\nmodel = \"llama-3-8b\"\n";
    folder.write("plan.toml", file);
    let of_file = json(&folder, "serve --plan plan.toml --batch 4", 0);
    let arguments = "serve --model llama-3-8b --cluster dgx-h100 --tensor 4 --cache fp8 --batch 4";
    assert_eq!(of_file, json(&folder, arguments, 0));
    folder.write("plan.toml", &file.replace("0.9", "0.5"));
    let cache = |answer: &Value| answer["kv_capacity_tokens"].as_u64().unwrap();
    assert!(cache(&of_file) > cache(&json(&folder, "serve --plan plan.toml --batch 4", 0)));
    let check = |from: &str, to: &str, expected: &str| {
        folder.write("plan.toml", &file.replace(from, to));
        let ran = folder.run("serve --plan plan.toml --batch 4");
        assert_eq!(ran.code, 2, "{}", ran.stdout);
        assert!(ran.stderr.contains(expected) && ran.stderr.lines().count() == 1, "{}", ran.stderr);
    };
    check("tensor = 4", "tensor = 3", "plan.toml: `tensor` is 3; ranks have the same number of heads");
    check(
        "tensor = 4",
        "tensor = 16",
        "with `pipeline` and `attention_data` it needs 16 GPUs, the cluster has 8",
    );
    check("tensor = 4", "tensor = 4\nexpert = 2", "plan.toml: `expert` is 2; llama-3-8b has no experts");
    check("instances = 1", "instances = 3", "`instances` is 3; they need 12 GPUs, the cluster has 8");
    check("\"fp8\"", "\"fp7\"", "`cache` is `fp7`; known formats are bfloat16");
    check("llama-3-8b", "llama-3-8", "unknown model `llama-3-8`");
    check("0.9", "0.0", "`memory_share` is 0; it should be above 0");
    let ran = folder.run("serve --plan plan.toml --tensor 2 --batch 4");
    assert!(ran.code == 2 && ran.stderr.contains("--tensor"), "{}", ran.stderr);
}

#[test]
fn bad_input_is_one_line() {
    let folder = Folder::new();
    let check = |more: &str, expected: &str| {
        let ran = folder.run(&format!("{QUESTION} {more}"));
        assert_eq!(ran.code, 2, "{more}: {}", ran.stdout);
        assert!(ran.stderr.contains(expected) && ran.stderr.lines().count() == 1, "{more}: {}", ran.stderr);
    };
    check("--mean-response 9000", "`--mean-response` is 9000; it should be at most the 512 of --response");
    check("--algorithm grop", "grpo");
    check("--engine-gpus 3", "of 8 GPUs in one node generation has 4");
    let two = QUESTION.replace("dgx-h100", "dgx-h100:2");
    let ran = folder.run(&format!("{two} --engine-gpus 4"));
    assert_eq!(ran.code, 2, "{}", ran.stdout);
    assert!(ran.stderr.contains("generation has whole nodes of 8 GPUs, 1 to 1 of 2"), "{}", ran.stderr);
    check("--engine-gpus 4 --mode colocated", "colocated generation has all GPUs: ask for another --mode");
    check("--pack 700", "it should be at least 1024: a prompt and the longest answer");
    let ran =
        folder.run(&QUESTION.replace("llama-3.2-1b", "gpt2").replace("--response 512", "--response 8000"));
    assert_eq!(ran.code, 2, "{}", ran.stdout);
    assert!(
        ran.stderr.contains("learned positions for 1024 tokens, and prompt and answer are 8512"),
        "{}",
        ran.stderr
    );
    check("--engine vlm-v1", "vllm-v1");
    check("--staleness 2", "only the mode async has it: ask for --mode async");
    check("--tensor 3", "`--tensor` is 3; it must divide the GPUs of training, of which there are 4 or 8");
    check(
        "--tensor 4 --pipeline 3",
        "`--pipeline` is 3; it, times --tensor, must divide the GPUs of training",
    );
    check(
        "--engine-tensor 3",
        "it must divide the GPUs of generation, of which there are 4 or 8, as a power of two",
    );
    check("--expert 2", "llama-3.2-1b has no experts");
    let experts = QUESTION.replace("llama-3.2-1b", "qwen3-30b-a3b");
    let ran = folder.run(&format!("{experts} --expert 3"));
    assert_eq!(ran.code, 2, "{}", ran.stdout);
    assert!(ran.stderr.contains("it must divide the 128 experts of qwen3-30b-a3b"), "{}", ran.stderr);
    check("--stack megatron-cor", "megatron-core");
    check("--mini-batches 100", "a step has 32 answers");
    check("--memory-share 2", "from 0.05 to 0.95");
    check("--within 5", "--fewest");
    check("--tensor 8 --mode one-step-off", "it must divide the GPUs of training, of which there are 4");
    check("--time-limit 5 --fewest", "--fewest");
    check("--staleness -1", "a number of steps from 0.01 to 16 should stand here");
}
