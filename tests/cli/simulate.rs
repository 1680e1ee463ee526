//! `simulate`.

use crate::{Folder, program, small_plan};
use serde_json::Value;
use std::io::{BufRead, BufReader, Write};
use trainwright_spec::model::preset::preset;
use trainwright_spec::units::Seconds;

#[test]
fn the_page_has_the_figures_of_the_json_answer() {
    let folder = Folder::new();
    folder.write("plan.toml", &small_plan().to_toml());
    let page = folder.run("simulate plan.toml");
    assert_eq!((page.code, page.stderr.as_str()), (0, ""));
    assert!(page.stdout.lines().all(|line| line.chars().count() <= 120), "{}", page.stdout);

    let answer = folder.run("simulate plan.toml --json");
    let answer: Value = serde_json::from_str(&answer.stdout).unwrap();
    let forecast = |key: &str| answer["forecast"][key].as_f64().unwrap();
    for figure in [
        format!("step time       {}\n", Seconds::new(forecast("step_time_s"))),
        format!(
            "MFU             {:.1} % (causal attention halved)",
            100.0 * forecast("mfu_causal_attention")
        ),
        format!("{:.1} % (all attention scores counted)", 100.0 * forecast("mfu_full_attention")),
        format!("HFU             {:.1} %", 100.0 * forecast("hfu")),
        format!(
            "memory          fits: pipeline rank 0 holds {:.2} GiB",
            forecast("peak_memory_bytes") / 1073741824.0
        ),
        "recompute 2 full 22 none".into(),
        "one cell is ".into(),
    ] {
        assert!(page.stdout.contains(&figure), "no `{figure}` in\n{}", page.stdout);
    }
    assert_eq!(answer["plan"]["mesh"]["tensor"], 2);
}

#[test]
fn the_same_arguments_give_the_same_bytes() {
    let folder = Folder::new();
    let plan = small_plan().to_toml();
    folder.write("plan.toml", &plan);
    let read = |suffix: &str| {
        let ran = folder.run(&format!("simulate plan.toml --trace t{suffix}.json --svg p{suffix}.svg"));
        (ran.stdout, folder.read(&format!("t{suffix}.json")), folder.read(&format!("p{suffix}.svg")))
    };
    let first = read("1");
    assert!(first.1.starts_with("{\"displayTimeUnit\"") && first.2.contains("<svg"));
    assert!(first == read("2"), "two runs differ");
    let piped = folder.run_with_input("simulate -", &plan);
    assert_eq!((piped.stdout, piped.code), (first.0, 0));
    assert_eq!(folder.run("simulate plan.toml --trace -").stdout, first.1);
}

#[test]
fn a_plan_that_does_not_fit_says_so_and_ends_with_three() {
    let folder = Folder::new();
    let mut plan = small_plan();
    plan.cluster.node.gpu.memory.value = 3.0 * trainwright_spec::units::Bytes::GIB;
    folder.write("plan.toml", &plan.to_toml());
    let ran = folder.run("simulate plan.toml --svg step.svg");
    assert_eq!((ran.code, ran.stderr.as_str()), (3, ""));
    let last = ran.stdout.lines().last().unwrap();
    let said = "The plan does not fit: pipeline rank 0 needs 3.";
    assert!(last.starts_with(said) && last.contains("a100-80gb-sxm has 3.00 GiB, "), "{last}");
    assert!(last.ends_with(" MiB are lacking."), "{last}");
    assert!(folder.read("step.svg").contains("<svg"), "files are written all the same");

    let alone = folder.run("simulate plan.toml --svg -");
    assert_eq!(alone.code, 3);
    assert!(alone.stderr.starts_with("the plan does not fit: pipeline rank 0 needs 3."), "{}", alone.stderr);
}

#[test]
fn a_file_that_cannot_be_written_costs_neither_the_answer_nor_an_old_file() {
    let folder = Folder::new();
    folder.write("plan.toml", &small_plan().to_toml());
    let answer = folder.run("simulate plan.toml").stdout;
    let ran = folder.run("simulate plan.toml --trace nowhere/step.json");
    assert_eq!(ran.stderr, "error: --trace: cannot write nowhere/step.json: no such file or directory\n");
    assert_eq!((ran.code, ran.stdout), (1, answer));
    let ran = folder.run("simulate plan.toml --svg .");
    assert_eq!(ran.stderr, "error: --svg: cannot write .: is a directory\n");
    assert_eq!(ran.code, 1);
}

#[test]
fn a_reader_that_has_seen_enough_is_no_error() {
    let folder = Folder::new();
    let mut plan = small_plan();
    plan.job.global_batch = 512;
    folder.write("plan.toml", &plan.to_toml());
    // Larger than any pipe's buffer, so that the program is still writing when the reader goes.
    let mut child = program(folder.0.path(), "simulate plan.toml --trace -").spawn().unwrap();
    let mut line = String::new();
    BufReader::new(child.stdout.take().unwrap()).read_line(&mut line).unwrap();
    child.stdin.take().unwrap().flush().unwrap();
    let ended = child.wait_with_output().unwrap();
    assert_eq!(
        (line.trim_end(), ended.status.code()),
        ("{\"displayTimeUnit\":\"ns\",\"traceEvents\":[", Some(0))
    );
    assert_eq!(String::from_utf8(ended.stderr).unwrap(), "");
}

#[test]
fn the_tokens_of_each_expert_are_read_from_a_csv() {
    let folder = Folder::new();
    let mut plan = small_plan();
    plan.model = preset("mixtral-8x7b").unwrap();
    plan.model.blocks[0].count = 2;
    plan.stages = vec!["1 none".parse().unwrap(); 2];
    plan.mesh.expert = 2;
    folder.write("plan.toml", &plan.to_toml());
    let csv = |tokens: [u64; 8]| {
        let row = |layer: usize| move |(expert, tokens): (usize, u64)| format!("{layer},{expert},{tokens}\n");
        let rows = (0..2).flat_map(|layer| (0..8).zip(tokens).map(row(layer)));
        format!("layer,expert,tokens\n{}", rows.collect::<String>())
    };
    folder.write("even.csv", &csv([5; 8]));
    folder.write("uneven.csv", &csv([9, 9, 9, 9, 1, 1, 1, 1]));
    folder.write("impossible.csv", &csv([9, 0, 0, 0, 0, 0, 0, 0]));
    let time = |arguments: &str| {
        let ran = folder.run(&format!("simulate plan.toml --json {arguments}"));
        let answer: Value = serde_json::from_str(&ran.stdout).unwrap();
        answer["forecast"]["step_time_s"].as_f64().unwrap()
    };
    assert_eq!(time(""), time("--expert-load even.csv"));
    assert!(time("") < time("--expert-load uneven.csv"));
    let refused = folder.run("simulate plan.toml --expert-load impossible.csv");
    assert_eq!(refused.code, 2);
    assert_eq!(
        refused.stderr,
        "error: --expert-load: impossible.csv: `experts.load.layers, block 0` is 9 tokens of an expert; each token visits 2 \
         experts, so that none has more than 1/2 of all visits, 9\n"
    );
}

/// The first product of a small plan's feed-forward layers takes a second: 1,024 tokens, half of 4,096 columns.
#[test]
fn measured_kernels_replace_the_forecast_and_stay_in_the_plan() {
    let folder = Folder::new();
    folder.write("plan.toml", &small_plan().to_toml());
    let header = "gpu,kernel,shape,precision,time_us,source\n";
    let row = |gpu: &str| format!("{header}{gpu},gemm,m=1024 n=2048 k=1024,bf16,1000000,made up\n");
    folder.write("slow.csv", &row("a100-80gb-sxm"));
    folder.write("other.csv", &row("h20"));
    let step = |arguments: &str| -> f64 {
        let ran = folder.run(&format!("simulate --json {arguments}"));
        assert_eq!((ran.code, ran.stderr.as_str()), (0, ""));
        serde_json::from_str::<Value>(&ran.stdout).unwrap()["forecast"]["step_time_s"].as_f64().unwrap()
    };
    let (plain, slow) = (step("plan.toml"), step("plan.toml --profile slow.csv"));
    assert!(plain < 1.0 && slow > 100.0, "{plain} s and {slow} s");
    let page = folder.run("simulate plan.toml --profile slow.csv").stdout;
    assert!(page.contains(" on dgx-a100 with the kernel times of made up (8 GPUs), "), "{page}");
    let refused = folder.run("simulate plan.toml --profile other.csv");
    let message = "error: --profile: other.csv: `gpu` is a100-80gb-sxm; the file has rows of h20 only\n";
    assert_eq!((refused.code, refused.stderr.as_str()), (2, message));

    let arguments = "plan --model gpt2-medium --cluster dgx-a100 --seq 1024 --global-batch 16 --tensor 2 --pipeline 2 \
                     --data 2 --micro-batch 1 --sequence-parallel true --schedule 1f1b --quiet --out -";
    let planned = folder.run(&format!("{arguments} --profile slow.csv"));
    assert_eq!(planned.stderr, "");
    folder.write("planned.toml", &planned.stdout);
    assert!(step("planned.toml") > 100.0, "a plan carries the profile that it was made with");
}

#[test]
fn pictures_are_what_their_names_say() {
    let folder = Folder::new();
    folder.write("plan.toml", &small_plan().to_toml());
    let is_png = |name: &str| std::fs::read(folder.path(name)).unwrap().starts_with(b"\x89PNG\r\n");
    for (files, names) in [
        ("--picture a.svg --svg b --png c", [("a.svg", false), ("b", false), ("c", true)]),
        ("--picture d.PNG --svg e.svg --png f.png", [("d.PNG", true), ("e.svg", false), ("f.png", true)]),
    ] {
        let ran = folder.run(&format!("simulate plan.toml {files}"));
        assert_eq!((ran.code, ran.stderr.as_str()), (0, ""));
        for (name, bitmap) in names {
            assert_eq!(is_png(name), bitmap, "{name}");
        }
    }
    assert_eq!(folder.read("a.svg"), folder.read("e.svg"));
    let pinned = "plan --model gpt2-medium --cluster dgx-a100 --seq 1024 --global-batch 16 --tensor 2 --pipeline 2 \
                  --micro-batch 1 --schedule 1f1b";
    let ran = folder.run(&format!("{pinned} --picture best.png --svg best.svg"));
    assert_eq!((ran.code, ran.stderr.as_str()), (0, ""));
    assert!(is_png("best.png") && folder.read("best.svg").starts_with("<svg"));
    let refused = folder.run("simulate plan.toml --picture a.svg --svg a.svg");
    let message = "error: `--svg` is a.svg; `--picture` writes that file too: name another\n";
    assert_eq!((refused.code, refused.stderr.as_str()), (2, message));
}
