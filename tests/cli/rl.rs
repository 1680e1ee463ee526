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
