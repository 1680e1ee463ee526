//! `what-if`.

use crate::Folder;

const SMALL: &str = "what-if --model gpt2 --cluster dgx-a100 --seq 1024 --global-batch 64";

/// The rows of a CSV by the names of its columns.
fn column(text: &str, name: &str) -> Vec<String> {
    let mut reader = csv::Reader::from_reader(text.as_bytes());
    let index = reader.headers().unwrap().iter().position(|header| header == name).unwrap();
    reader.records().map(|record| record.unwrap()[index].to_string()).collect()
}

#[test]
fn a_sweep_plans_every_point_and_prints_them_in_order() {
    let folder = Folder::new();
    let sweep = format!("{SMALL} --vary gpus=1,2,..8 --vary memory=x1,x0.02 --tokens 10B");
    let ran =
        folder.run(&format!("{sweep} --csv sweep.csv --svg sweep.svg --png sweep.png --report sweep.html"));
    assert_eq!((ran.code, ran.stderr.as_str()), (0, ""), "{}", ran.stdout);
    let text = folder.read("sweep.csv");
    assert_eq!(column(&text, "varied_gpus"), ["1", "1", "2", "2", "4", "4", "8", "8"]);
    assert_eq!(column(&text, "memory"), ["x1", "x0.02", "x1", "x0.02", "x1", "x0.02", "x1", "x0.02"]);
    let fits: Vec<bool> = column(&text, "reason").iter().map(String::is_empty).collect();
    assert_eq!(fits, [true, false, true, false, true, false, true, false], "{text}");
    let days: Vec<f64> = column(&text, "run_days").iter().filter_map(|cell| cell.parse().ok()).collect();
    assert!(days.windows(2).all(|pair| pair[1] < pair[0]), "{days:?}");
    // 10e9 tokens in steps of 65,536 are 152,588: with the step time they are the days.
    let step: f64 = column(&text, "step_time_s")[0].parse().unwrap();
    assert!((days[0] / (152_588.0 * step / 86_400.0) - 1.0).abs() < 1e-4);
    assert!(
        ran.stdout.contains("Points without a plan") && ran.stdout.contains("does not fit"),
        "{}",
        ran.stdout
    );
    assert!(folder.read("sweep.svg").contains("tokens/s"));
    assert!(std::fs::read(folder.path("sweep.png")).unwrap().starts_with(b"\x89PNG"));
    let page = folder.read("sweep.html");
    assert!(page.contains("<canvas id=\"spans\"") && !page.contains("src="));
    let again = folder.run(&format!("{sweep} --csv -"));
    assert_eq!(again.stdout, text);
}

#[test]
fn a_time_limit_ends_a_sweep_and_says_what_was_not_planned() {
    let folder = Folder::new();
    let sweep = format!("{SMALL} --vary gpus=1,2,..8");
    // Over before the first search.
    let ran = folder.run(&format!("{sweep} --time-limit 1e-9 --csv sweep.csv"));
    assert_eq!((ran.code, ran.stderr.as_str()), (3, ""), "{}", ran.stdout);
    let reasons = column(&folder.read("sweep.csv"), "reason");
    assert_eq!(reasons, ["not planned: the time limit came before"; 4]);
    // Far more than the searches take.
    let ran = folder.run(&format!("{sweep} --time-limit 100000 --csv -"));
    assert_eq!(ran.code, 0, "{}", ran.stderr);
    assert_eq!(column(&ran.stdout, "reason"), [""; 4]);
    let refused = folder.run(&format!("{sweep} --time-limit 0"));
    assert_eq!(refused.code, 2);
    assert!(
        refused.stderr.contains("--time-limit") && refused.stderr.contains("above 0"),
        "{}",
        refused.stderr
    );
}

#[test]
fn prices_change_no_plan() {
    let folder = Folder::new();
    let ran = folder.run(&format!("{SMALL} --vary price=1,2 --vary pue=1,1.5 --csv -"));
    let usd: Vec<f64> =
        column(&ran.stdout, "usd_per_billion_tokens").iter().map(|cell| cell.parse().unwrap()).collect();
    let kwh: Vec<f64> =
        column(&ran.stdout, "kwh_per_billion_tokens").iter().map(|cell| cell.parse().unwrap()).collect();
    assert!((usd[2] / usd[0] - 2.0).abs() < 1e-4 && usd[0] == usd[1], "{usd:?}");
    assert!((kwh[1] / kwh[0] - 1.5).abs() < 1e-4 && kwh[0] == kwh[2], "{kwh:?}");
    assert_eq!(column(&ran.stdout, "pareto"), ["yes", "yes", "no", "no"]);
}

#[test]
fn any_field_of_a_plan_can_be_varied() {
    let folder = Folder::new();
    folder.run(
        "plan --model gpt2 --cluster dgx-a100 --seq 1024 --global-batch 64 --micro-batch 2 --out plan.toml",
    );
    let ran =
        folder.run("what-if --plan plan.toml --vary micro_batch=1,2,3 --vary stack=megatron-core --csv -");
    assert_eq!((ran.code, ran.stderr.as_str()), (0, ""));
    assert_eq!(column(&ran.stdout, "micro_batch"), ["1", "2", ""]);
    assert!(column(&ran.stdout, "reason")[2].contains("global_batch"), "{}", ran.stdout);
}

#[test]
fn questions_are_answered() {
    let folder = Folder::new();
    let check = |arguments: &str, parts: &[&str]| {
        // Few choices are left to the planner: this test is not about its plans.
        let command = SMALL.replace("what-if", &format!("what-if {}", parts[0]));
        let ran = folder.run(&format!(
            "{command} --pipeline 1 --micro-batch 1 --recompute none --data-sharding zero1 {arguments}"
        ));
        assert_eq!((ran.code, ran.stderr.as_str()), (0, ""), "{arguments}");
        for part in &parts[1..] {
            assert!(ran.stdout.contains(part), "no `{part}` in\n{}", ran.stdout);
        }
    };
    check(
        "--tokens 10B --days 3 --up-to 32",
        &["gpus-needed", "The fewest of those tried that end within 3.00 days"],
    );
    check("--tokens 10B --start 2026-12-01 --by 2026-12-04 --up-to 16", &["gpus-needed", "within 3.00 days"]);
    check("--tokens 10B --days 0.001 --up-to 16", &["gpus-needed", "No number of nodes"]);
    check("", &["largest-model", "The largest model of those tried that fits", "The next, "]);
    check("", &["longest-sequence", "The longest sequence of those tried that fits", "The next, "]);
    check("", &["upgrades", "tokens/s: memory-bandwidth x2", "tokens/s: gpu "]);
    check("--up-to 32", &["strong-scaling", "From 8 GPUs (1 node) to 32 GPUs (4 nodes)"]);
    check("--up-to 32", &["weak-scaling", "of the speed for each GPU remains"]);
    check("--flops 5.76e20", &["compute-optimal", "2.09B parameters", "tokens for each parameter"]);
    check(
        "--vary cluster=dgx-a100,aws-p4d --tokens 1B --days 5",
        &["rent", "The cheapest: ", "within 5.00 days"],
    );
}

/// Where nothing fits the GPUs, plans offload; a sequence that fits on no rank is split among context ranks.
#[test]
fn points_say_what_no_column_says_of_their_plans() {
    let folder = Folder::new();
    let model = "what-if --model llama-3-8b --cluster dgx-a100 --tensor 8 --pipeline 1 --seq 1024";
    let ran = folder.run(&format!("{model} --global-batch 8 --vary memory=12GiB,80GiB --csv sweep.csv"));
    assert_eq!((ran.code, ran.stderr.as_str()), (0, ""), "{}", ran.stdout);
    let text = ran.stdout.split_whitespace().collect::<Vec<_>>().join(" ");
    let offload = column(&folder.read("sweep.csv"), "offload");
    assert!(offload[0].contains("optimizer") && offload[0].ends_with(" on host") && offload[1].is_empty());
    let note = format!("Plans differ in what has no column, too: 12GiB {}. MFU:", offload[0]);
    assert!(text.contains(&note), "no `{note}` in\n{}", ran.stdout);

    let ran = folder.run(
        "what-if --model gpt2 --cluster dgx-a100 --seq 1024 --global-batch 1 --pin context=8 --vary seq=512,1024 --json",
    );
    assert_eq!((ran.code, ran.stderr.as_str()), (0, ""), "{}", ran.stdout);
    assert_eq!(ran.stdout.matches("\"context\": 8").count(), 2, "{}", ran.stdout);
}

#[test]
fn invalid_input_is_refused_in_one_line() {
    let folder = Folder::new();
    let check = |arguments: &str, part: &str| {
        let ran = folder.run(arguments);
        assert_eq!((ran.code, ran.stdout.as_str()), (2, ""), "{arguments}");
        assert!(ran.stderr.contains(part) && ran.stderr.lines().count() == 1, "{arguments}: {}", ran.stderr);
    };
    check("what-if --seq 8", "--model <MODEL>");
    check("what-if", "--model <MODEL>");
    check(&format!("{SMALL} --vary nodes"), "must be an input and its values");
    check(&format!("{SMALL} --vary nodse=1"), "no input is called `nodse`");
    check(&format!("{SMALL} --vary nodes=0"), "nodes=0: ");
    check(&format!("{SMALL} --vary nodes=1 --vary nodes=2"), "varied already");
    check(&format!("{SMALL} --vary nodes=8,16,..100"), "does not go on to its end");
    check(&format!("{SMALL} --vary cluster=dgx-a10"), "nearest: dgx-a100");
    check(&format!("{SMALL} --vary stack=megatron-core --across stack"), "not different numbers");
    check(&format!("{SMALL} --tokens none"), "is not a number above zero");
    check(&format!("{SMALL} --pue 0.5"), "1 or more");
    check(&format!("{SMALL} --start 2026-01-01 --by 2025-01-01"), "is not after");
    check(&format!("{SMALL} --csv a --svg a"), "writes that file too");
    check(&SMALL.replace("what-if", "what-if gpus-needed"), "`--tokens` is missing");
    let mixed = SMALL.replace("dgx-a100", "dgx-a100:1+dgx-h100:1");
    let needed = mixed.replace("what-if", "what-if gpus-needed --tokens 1B --days 1");
    check(&needed, "`--cluster` is dgx-a100:1+dgx-h100:1");
    check(&mixed.replace("what-if", "what-if strong-scaling"), "should be of one kind");
    check(&SMALL.replace("what-if", "what-if rent --tokens 1B"), "--vary cluster=");
    check(&SMALL.replace("what-if", "what-if upgrades --vary nodes=1,2"), "only sweep and rent");
    check("what-if --plan nowhere.toml --vary micro_batch=1", "cannot read nowhere.toml");
    check("what-if --plan p.toml --model gpt2", "cannot be used with");
}
