//! `plan`.

use crate::Folder;
use serde_json::Value;

const SMALL: &str = "plan --model gpt2 --cluster dgx-a100 --seq 1024 --global-batch 64";

#[test]
fn the_best_plan_is_printed_written_and_simulates_as_promised() {
    let folder = Folder::new();
    let page = folder.run(&format!("{SMALL} --out best.toml"));
    assert_eq!((page.code, page.stderr.as_str()), (0, ""));
    assert!(page.stdout.lines().all(|line| line.chars().count() <= 120), "{}", page.stdout);
    for part in [
        "gpt2 (124.4M parameters) on dgx-a100 (8 GPUs), 64 sequences of 1,024 tokens a step, bf16, adamw",
        "\nBest plan\n",
        "\nWhat limits them\n",
        "\nThe best plan's pipeline\none cell is ",
        "\nWhy not something else\n",
        "\nSearch\n",
        "\nThe best plan is in best.toml; `trainwright simulate best.toml` shows all of its forecast.\n",
    ] {
        assert!(page.stdout.contains(part), "no `{part}` in\n{}", page.stdout);
    }

    let answer = folder.run(&format!("{SMALL} --json"));
    let answer: Value = serde_json::from_str(&answer.stdout).unwrap();
    assert_eq!(answer["verdict"], "found");
    assert_eq!(answer["question"]["parameters"], 124439808);
    assert_eq!(answer["plans"].as_array().unwrap().len(), 5);
    // The front begins with the best plan, and says of it what the table of plans says.
    let best = &answer["plans"][0]["forecast"];
    for key in ["step_time_s", "peak_memory_bytes"] {
        assert_eq!(answer["front"][0][key], best[key], "{key}");
    }
    let simulated = folder.run("simulate best.toml --json");
    assert_eq!(simulated.code, 0);
    let simulated: Value = serde_json::from_str(&simulated.stdout).unwrap();
    assert_eq!(simulated["forecast"], answer["plans"][0]["forecast"]);
    assert_eq!(simulated["plan"], answer["plans"][0]["plan"]);
}

#[test]
fn plans_fit_with_the_probability_asked_for_and_stand_in_the_order_of_their_expected_time() {
    let folder = Folder::new();
    let ask = |more: &str| -> Value {
        let line = "plan --model llama-3-8b --cluster dgx-h100:1 --seq 8192 --global-batch 64";
        let ran = folder.run(&format!("{line} --json {more}"));
        assert_eq!((ran.code, ran.stderr.as_str()), (0, ""), "{more}");
        serde_json::from_str(&ran.stdout).unwrap()
    };
    let number = |value: &Value| value.as_f64().unwrap();
    let plans = |answer: &Value| answer["plans"].as_array().unwrap().clone();
    let usual = ask("");
    for plan in plans(&usual) {
        let (confidence, forecast) = (&plan["confidence"], &plan["forecast"]);
        assert!(number(&confidence["fits_with"]) >= 0.95, "{confidence}");
        assert_eq!(plan["ordered_by_s"], confidence["expected_step_time_s"]);
        assert_ne!(confidence["expected_step_time_s"], forecast["step_time_s"]);
    }
    let best = |answer: &Value| plans(answer)[0]["forecast"].clone();
    let of = |answer: &Value, key: &str| number(&best(answer)[key]);
    // Half of the memory's risk is ten times the probability: more memory, and no more time.
    let bold = ask("--memory-risk 0.5");
    assert!(of(&bold, "peak_memory_bytes") > of(&usual, "peak_memory_bytes"));
    assert!(of(&bold, "step_time_s") < of(&usual, "step_time_s"));
    assert!(number(&plans(&bold)[0]["confidence"]["fits_with"]) >= 0.5);
    let reserved = ask("--memory-reserve 30GiB");
    for plan in plans(&reserved) {
        let forecast = &plan["forecast"];
        let left = number(&forecast["gpu_memory_bytes"]) - number(&forecast["peak_memory_bytes"]);
        assert!(left >= 30.0 * 1024f64.powi(3), "{left}");
    }
    let cautious = ask("--risk 0.9");
    let (first, usual_first) = (&plans(&cautious)[0], &plans(&usual)[0]);
    assert!(number(&first["ordered_by_s"]) > number(&usual_first["ordered_by_s"]));
    // Without residuals nothing is known: forecasts are taken as they are.
    for plan in plans(&ask("--calibration none")) {
        assert_eq!(plan["ordered_by_s"], plan["forecast"]["step_time_s"]);
        assert!(plan["confidence"]["fits_with"].is_null());
    }

    std::fs::write(folder.path("best.toml"), "").unwrap();
    ask("--out best.toml");
    let simulated = folder.run("simulate best.toml --json");
    let simulated: Value = serde_json::from_str(&simulated.stdout).unwrap();
    assert_eq!(simulated["confidence"], usual_first["confidence"]);
}

#[test]
fn a_risk_that_is_none_is_one_line() {
    let folder = Folder::new();
    let check = |more: &str, part: &str| {
        let ran = folder.run(&format!("{SMALL} {more}"));
        assert_eq!((ran.code, ran.stdout.as_str()), (2, ""), "{more}");
        assert!(
            ran.stderr.contains(part) && ran.stderr.trim_end().lines().count() == 1,
            "{more}: {}",
            ran.stderr
        );
    };
    check("--memory-risk 0", "--memory-risk <PROBABILITY>");
    check("--memory-risk 1", "between 0 and 1");
    check("--risk nan", "between 0 and 1");
    check("--memory-reserve 5", "is not a number followed by one of GiB");
    check("--memory-reserve -5GiB", "out of range");
    check("--memory-reserve 500GiB", "it must be less than a GPU's 79.2 GiB");
    check("--memory-reserve 5GiB --memory-risk 0.1", "cannot be used with");
}

#[test]
fn where_only_a_larger_risk_helps_the_answer_says_so() {
    let folder = Folder::new();
    let line = "plan --model llama-3-70b --cluster dgx-h100:2 --seq 8192 --global-batch 64 --tensor 8 --space core --memory-risk 0.001";
    let ran = folder.run(line);
    assert_eq!(ran.code, 3);
    let (_, remedy) = ran.stdout.split_once("--memory-risk ").expect("a remedy");
    assert!(ran.stdout.contains("may use of a GPU, to fit with 99.9 % probability"), "{}", ran.stdout);
    let risk: f64 = remedy.split_whitespace().next().unwrap().parse().unwrap();
    let after = folder.run(&line.replace("0.001", &risk.to_string()));
    assert_eq!(after.code, 0, "{}", after.stdout);
}

#[test]
fn the_same_arguments_give_the_same_bytes() {
    let folder = Folder::new();
    let first = folder.run(SMALL);
    assert_eq!(first.stdout, folder.run(SMALL).stdout);
    let toml = folder.run(&format!("{SMALL} --out -"));
    folder.run(&format!("{SMALL} --out best.toml"));
    assert_eq!((toml.code, &toml.stdout), (0, &folder.read("best.toml")));
    // The file names what the catalog has; with `--inline` it needs none, and is the same plan.
    assert!(toml.stdout.starts_with("model = \"gpt2\"\ncluster = \"dgx-a100\"\n"), "{}", toml.stdout);
    assert!(toml.stdout.lines().count() < 40, "{}", toml.stdout);
    folder.run(&format!("{SMALL} --inline --out whole.toml"));
    let [short, whole] =
        ["best.toml", "whole.toml"].map(|file| folder.run(&format!("simulate {file} --json")).stdout);
    assert_eq!(short, whole);
    assert!(folder.read("whole.toml").contains("[cluster.node.gpu]"));
}

#[test]
fn plans_with_equal_columns_say_in_what_they_differ() {
    let folder = Folder::new();
    let question = "plan --model llama-3-8b --cluster dgx-h100:2 --seq 65536 --global-batch 16";
    let answer: Value = serde_json::from_str(&folder.run(&format!("{question} --json")).stdout).unwrap();
    let plans = answer["plans"].as_array().unwrap();
    let schemes: std::collections::BTreeSet<&str> =
        plans.iter().map(|plan| plan["plan"]["context_scheme"].as_str().unwrap()).collect();
    assert!(schemes.len() > 1, "{schemes:?}");
    let page = folder.run(question).stdout;
    let words = page.split_whitespace().collect::<Vec<_>>().join(" ");
    let (_, differ) = words.split_once("Plans differ in what has no column, too:").expect("they differ");
    let (differ, _) = differ.split_once("Forecasts").unwrap_or((differ, ""));
    for scheme in schemes {
        assert!(differ.contains(&format!("context by {scheme}")), "{scheme}: {differ}");
    }
}

#[test]
fn pins_are_kept() {
    let folder = Folder::new();
    let pins = "--tensor 2 --pipeline 2 --micro-batch 2 --schedule 1f1b --sequence-parallel true --data-sharding none \
                --recompute full --precision fp16 --optimizer sgd --stack megatron-lm-2022 --no-gradient-clipping --top 1";
    let ran = folder.run(&format!("{SMALL} {pins} --json"));
    let answer: Value = serde_json::from_str(&ran.stdout).unwrap();
    let plan = &answer["plans"][0]["plan"];
    assert_eq!(answer["plans"].as_array().unwrap().len(), 1);
    for (path, expected) in [
        ("/mesh/tensor", "2"),
        ("/mesh/pipeline", "2"),
        ("/mesh/data", "2"),
        ("/micro_batch", "2"),
        ("/schedule", "\"1f1b\""),
        ("/sequence_parallel", "true"),
        ("/data_sharding", "\"none\""),
        ("/job/precision", "\"fp16\""),
        ("/job/optimizer", "\"sgd\""),
        ("/job/gradient_clipping", "false"),
        ("/stack/name", "\"megatron-lm-2022\""),
    ] {
        assert_eq!(plan.pointer(path).unwrap().to_string(), expected, "{path}");
    }
    for stage in plan["stages"].as_array().unwrap() {
        assert!(stage.as_str().unwrap().ends_with(" full") && !stage.to_string().contains(','), "{stage}");
    }
}

#[test]
fn a_model_from_a_file_on_a_cluster_from_a_file() {
    let folder = Folder::new();
    folder.write(
        "config.json",
        r#"{"model_type": "llama", "hidden_size": 512, "num_hidden_layers": 4, "num_attention_heads": 8,
            "intermediate_size": 1024, "vocab_size": 1000}"#,
    );
    folder.write("machine.toml", "nodes = 1\nnode = \"rtx-4090\"\n");
    let ran = folder.run("plan --model config.json --cluster machine.toml --seq 128 --global-batch 4");
    assert_eq!((ran.code, ran.stderr.as_str()), (0, ""));
    let first =
        "config.json (11.5M parameters) on machine (1 GPU), 4 sequences of 128 tokens a step, bf16, adamw";
    assert!(ran.stdout.starts_with(first), "{}", ran.stdout);
}

#[test]
fn gpus_without_bf16_train_in_fp16() {
    let ran = Folder::new().run("plan --model gpt2 --cluster dgx-1v --seq 512 --global-batch 8 --json");
    let answer: Value = serde_json::from_str(&ran.stdout).unwrap();
    assert_eq!(answer["question"]["precision"], "fp16");
}

#[test]
fn when_nothing_fits_the_broken_limits_and_remedies_are_named() {
    let folder = Folder::new();
    let question = "plan --model gpt3-175b --cluster dgx-a100 --seq 2048 --global-batch 64";
    let page = folder.run(question);
    assert_eq!((page.code, page.stderr.as_str()), (3, ""));
    assert!(page.stdout.lines().all(|line| line.chars().count() <= 120), "{}", page.stdout);
    assert!(page.stdout.contains("\nNothing fits\n") && page.stdout.contains("\nWhat would help\n- "));

    let ran = folder.run(&format!("{question} --json --out best.toml"));
    let answer: Value = serde_json::from_str(&ran.stdout).unwrap();
    assert_eq!((ran.code, answer["verdict"].as_str()), (3, Some("infeasible")));
    let limit = &answer["broken"][0];
    assert!(limit["needs_bytes"].as_f64() > limit["has_bytes"].as_f64(), "{limit}");
    assert!(!folder.path("best.toml").exists(), "there is no best plan");
}

#[test]
fn a_plan_that_cannot_be_written_leaves_the_old_file() {
    let folder = Folder::new();
    std::fs::create_dir(folder.path("folder")).unwrap();
    let ran = folder.run(&format!("{SMALL} --out folder"));
    assert_eq!((ran.code, ran.stderr.as_str()), (1, "error: --out: cannot write folder: is a directory\n"));
    assert!(ran.stdout.contains("\nBest plan\n") && !ran.stdout.contains("The best plan is in"));
}

#[test]
fn a_model_too_large_for_a_machine_without_network_cards_is_an_answer() {
    let ran = Folder::new().run("plan --model llama-3-8b --cluster rtx-4090 --seq 512 --global-batch 8");
    assert_eq!((ran.code, ran.stderr.as_str()), (3, ""));
    assert!(ran.stdout.contains("Nothing fits") && !ran.stdout.contains("nodes ("), "{}", ran.stdout);
}

#[test]
fn a_stack_is_not_asked_for_what_it_lacks() {
    let ran = Folder::new().run(&format!("{SMALL} --stack megatron-lm-2021 --json"));
    let answer: Value = serde_json::from_str(&ran.stdout).unwrap();
    for plan in answer["plans"].as_array().unwrap() {
        let plan = &plan["plan"];
        assert_eq!(plan["sequence_parallel"], false);
        assert_eq!(plan["data_sharding"], "none");
        assert!(!plan["stages"].to_string().contains("selective"));
    }
}

#[test]
fn any_choice_can_be_pinned_or_forbidden() {
    let folder = Folder::new();
    folder.write(
        "choices.toml",
        "[pin]\npipeline = 2\nschedule = [\"zb-h1\"]\n\n[forbid]\nmicro-batch = [1, 64]\n",
    );
    let ran = folder.run(&format!("{SMALL} --choices choices.toml --forbid tensor=1 --top 1 --json"));
    let answer: Value = serde_json::from_str(&ran.stdout).unwrap();
    let plan = &answer["plans"][0]["plan"];
    assert_eq!((plan["schedule"].as_str(), plan["mesh"]["pipeline"].as_u64()), (Some("zb-h1"), Some(2)));
    assert!(plan["mesh"]["tensor"].as_u64() > Some(1) && plan["micro_batch"].as_u64() > Some(1), "{plan}");
}

#[test]
fn choices_without_a_plan_are_an_answer_and_unknown_ones_an_error() {
    let folder = Folder::new();
    let check = |arguments: &str, code: i32, part: &str| {
        let ran = folder.run(&format!("{SMALL} {arguments}"));
        assert_eq!(ran.code, code, "{arguments}: {}", ran.stderr);
        assert!(ran.stderr.contains(part) || ran.stdout.contains(part), "{}{}", ran.stdout, ran.stderr);
    };
    check(
        "--tensor 2 --forbid tensor=2",
        3,
        "pins leave `tensor` nothing: only 2 is allowed, and 2 is forbidden",
    );
    check("--pin schedule=interleaved --pipeline 1", 3, "needs a pipeline of at least 2 ranks");
    check("--time-limit 0", 0, "not looked at before the search ended");
    check("--pin tensors=2", 2, "the key must be one of precision, tensor");
    check("--pin tensor", 2, "it must read like tensor=8");
    let large = "plan --model llama-3-405b --cluster dgx-a100 --seq 2048 --global-batch 8";
    for (limit, expected) in [("0", "Nothing fits"), ("1e-9", "No plan was found in time")] {
        let ran = folder.run(&format!("{large} --time-limit {limit}"));
        assert_eq!(ran.code, 3, "{}", ran.stderr);
        assert!(ran.stdout.contains(expected), "{}", ran.stdout);
    }
}

/// The table of plans names the axes that some plan has, and stays as wide as a terminal.
#[test]
fn further_axes_have_columns_where_a_plan_has_them() {
    let heading = |arguments: &str| {
        let ran = Folder::new().run(&format!("plan {arguments}"));
        assert_eq!(ran.code, 0, "{}", ran.stderr);
        let heading = ran.stdout.lines().find(|line| line.starts_with("#  TP")).unwrap().to_string();
        assert!(ran.stdout.lines().all(|line| line.chars().count() <= 120), "{}", ran.stdout);
        heading.split_whitespace().skip(1).take(5).map(str::to_string).collect::<Vec<_>>()
    };
    let dense = "--model gpt2 --cluster dgx-a100 --seq 1024 --global-batch 64";
    assert_eq!(heading(dense), ["TP", "PP", "DP", "v", "µb"]);
    let mixture = "--model mixtral-8x7b --cluster dgx-h100:2 --seq 4096 --global-batch 64 --pin expert=8";
    assert_eq!(heading(mixture), ["TP", "PP", "DP", "EP", "v"]);
    let both = "--pin expert=4 --pin context=2 --pin pipeline=4 --pin micro-batch=1";
    let mixture = format!("--model mixtral-8x7b --cluster dgx-h100:2 --seq 4096 --global-batch 64 {both}");
    assert_eq!(heading(&mixture), ["TP", "PP", "DP", "CP", "EP"]);
}

/// 2,000 GPUs are 2⁴ · 5³: no tensor degree takes a five of LLaMA-2 70B's 64 heads, and no data degree one of 1,024 sequences.
#[test]
fn a_cluster_that_no_mesh_fills_is_answered_with_one_that_has_a_mesh() {
    let folder = Folder::new();
    let question = |nodes| {
        format!(
            "plan --model llama-2-70b --cluster dgx-a100:{nodes} --seq 4096 --global-batch 1024 --time-limit 1"
        )
    };
    for all in ["--all-nodes", "--space core"] {
        let refused = folder.run(&format!("{} {all}", question(250)));
        assert_eq!(refused.code, 3, "{}", refused.stderr);
        let printed = refused.stderr + &refused.stdout;
        assert!(printed.contains("no tensor x pipeline x data of 2000 GPUs"), "{printed}");
        assert!(
            printed.contains("; 248 nodes (1984 GPUs) are the most below 250 that have one"),
            "{printed}"
        );
    }
    assert_eq!(folder.run(&format!("{} --tensor 8 --pipeline 31", question(248))).code, 0);
    let answered = folder.run(&question(250).replace("--time-limit 1", "--time-limit 0"));
    assert_eq!(answered.code, 0, "{}", answered.stderr);
    assert!(answered.stdout.contains(" of 250 ("), "{}", answered.stdout);
    assert!(answered.stdout.contains("no tensor x pipeline x data of 2000 GPUs"), "{}", answered.stdout);
}

/// 5 nodes of 8 GPUs have no good plan for 64 sequences.
#[test]
fn unused_nodes_are_named_and_the_plan_file_has_those_that_are_used() {
    let folder = Folder::new();
    let question = "plan --model gpt2 --cluster dgx-a100:5 --seq 1024 --global-batch 64";
    let page = folder.run(&format!("{question} --out best.toml"));
    assert_eq!(page.code, 0, "{}", page.stderr);
    assert!(page.stdout.lines().all(|line| line.chars().count() <= 120), "{}", page.stdout);
    let answer: Value = serde_json::from_str(&folder.run(&format!("{question} --json")).stdout).unwrap();
    let best = &answer["plans"][0];
    let used = best["nodes"].as_u64().unwrap();
    assert!(used < 5, "{used}");
    assert_eq!((&answer["nodes"]["used"], &answer["nodes"]["given"]), (&used.into(), &5.into()));
    assert_eq!(best["gpus"], 8 * used);
    assert!(page.stdout.contains(&format!("{used} of 5 ({} of 40 GPUs)", 8 * used)), "{}", page.stdout);
    let simulated: Value = serde_json::from_str(&folder.run("simulate best.toml --json").stdout).unwrap();
    assert_eq!(simulated["forecast"], best["forecast"]);
    let all = folder.run(&format!("{question} --json --all-nodes"));
    let all: Value = serde_json::from_str(&all.stdout).unwrap();
    assert_eq!((&all["plans"][0]["nodes"], &all["nodes"]), (&5.into(), &Value::Null));
    assert_eq!(answer["nodes"]["with_all"]["best"]["ordered_by_s"], all["plans"][0]["ordered_by_s"]);
}
