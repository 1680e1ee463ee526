//! `serve`, `kernel`, and tables of serving runs and kernels.

use crate::Folder;
use serde_json::Value;
use std::path::Path;

const HEADER: &str = "id,source,quality,model_name,gpu,gpus,tp,precision_weights,engine,date,batch,concurrency,input_len,output_len,tpot_ms\n";

fn json(folder: &Folder, arguments: &str) -> Value {
    let ran = folder.run(arguments);
    assert_eq!((ran.code, ran.stderr.as_str()), (0, ""), "{arguments}");
    serde_json::from_str(&ran.stdout).unwrap()
}

/// The cells of a column.
fn column(path: &Path, name: &str) -> Vec<String> {
    let mut reader = csv::Reader::from_path(path).unwrap();
    let index = reader.headers().unwrap().iter().position(|header| header == name).unwrap();
    reader.records().map(|row| row.unwrap()[index].to_string()).collect()
}

#[test]
fn a_row_of_a_table_and_a_question_of_one_run_have_the_same_answer() {
    let folder = Folder::new();
    let row = |id: &str, load: &str| {
        format!("{id},here,A,Llama-3.1-70B,H100 SXM,4,4,fp8,vllm,2026-01,{load},1000,300,20\n")
    };
    folder.write("runs.csv", &format!("{HEADER}{}{}", row("clients", ",16"), row("batch", "8,")));
    let ran = folder.run("predict --inference runs.csv --out out.csv");
    assert_eq!((ran.code, ran.stderr.as_str()), (0, ""));
    assert!(ran.stdout.starts_with("2 rows: 2 forecast, 0 unsupported, 0 invalid\n"), "{}", ran.stdout);
    let question = "serve --model llama-3-70b --cluster dgx-h100 --tensor 4 --weights fp8 --input 1000 --output 300 --json";
    let [clients, batch] =
        ["--clients 16", "--batch 8"].map(|load| json(&folder, &format!("{question} {load}")));
    for (figure, of) in [("ttft_ms", "mean"), ("tpot_ms", "mean"), ("e2e_latency_ms", "mean")] {
        let cells = column(&folder.path("out.csv"), &format!("predicted_{figure}"));
        for (answer, cell) in [&clients, &batch].into_iter().zip(&cells) {
            // All requests of a batch are there at once: its latency is that of the last.
            assert_eq!(format!("{:.6}", answer[figure][of].as_f64().unwrap()), *cell, "{figure}");
        }
        let [low, high] =
            ["_p10", "_p90"].map(|end| column(&folder.path("out.csv"), &format!("predicted_{figure}{end}")));
        let number = |text: &String| text.parse::<f64>().unwrap();
        assert!(number(&low[0]) < number(&cells[0]) && number(&cells[0]) < number(&high[0]), "{figure}");
        let range = &clients[figure]["range_of_mean"];
        assert_eq!(format!("{:.6}", range[0].as_f64().unwrap()), low[0], "{figure}");
    }
    let rate = column(&folder.path("out.csv"), "predicted_throughput_output_tokens_per_s");
    assert_eq!(format!("{:.6}", clients["output_tokens_per_s"].as_f64().unwrap()), rate[0]);
}

#[test]
fn rows_that_cannot_be_forecast_say_why_and_cost_no_other() {
    let folder = Folder::new();
    folder.write(
        "runs.csv",
        &format!(
            "{HEADER}a,here,A,Llama-3.1-8B,H100 SXM,1,1,bf16,vllm,,,4,100,50,8\n\
             b,here,A,abacus-9b,H100 SXM,1,1,bf16,vllm,,,4,100,50,8\n\
             c,here,A,Llama-3.1-8B,Z9,1,1,bf16,vllm,,,4,100,50,8\n\
             d,here,A,Llama-3.1-8B,H100 SXM,1,1,bf16,vllm,,,many,100,50,8\n\
             e,here,A,Llama-3.1-70B,H100 SXM,1,1,bf16,vllm,,,4,100,50,8\n\
             f,here,A,Llama-3.1-8B,H100 SXM,1,1,bf16,abacus,,,4,100,50,8\n\
             g,here,A,Llama-3.1-8B,H100 SXM,1,1,posit,vllm,,,4,100,50,8\n"
        ),
    );
    let ran = folder.run("predict --inference runs.csv --out out.csv");
    assert_eq!((ran.code, ran.stderr.as_str()), (0, ""));
    assert!(ran.stdout.starts_with("7 rows: 2 forecast, 4 unsupported, 1 invalid\n"), "{}", ran.stdout);
    let status = column(&folder.path("out.csv"), "status");
    assert_eq!(status, ["ok", "unsupported", "unsupported", "invalid", "unsupported", "ok", "unsupported"]);
    let reasons = column(&folder.path("out.csv"), "reason");
    for (row, reason) in [
        (1, "the model abacus-9b is not in the catalog"),
        (2, "the GPU Z9 is not in the catalog"),
        (3, "`concurrency` is many, no whole number"),
        (4, "out of memory: a sequence of "),
        (5, "the engine abacus is forecast as vllm-v1"),
        (6, "the number format posit has no measured kernels"),
    ] {
        assert!(reasons[row].starts_with(reason), "{}", reasons[row]);
    }
    folder.write("few.csv", "model_name,gpu\nx,y\n");
    let ran = folder.run("predict --inference few.csv");
    assert_eq!((ran.code, ran.stderr.lines().count()), (2, 1), "{}", ran.stderr);
    assert!(ran.stderr.contains("few.csv: it has no column `engine`"), "{}", ran.stderr);
}

#[test]
fn what_serve_cannot_do_is_one_line() {
    let folder = Folder::new();
    folder.write("trace.csv", "arrival_s,input_tokens,output_tokens\n0,10,5\n1,10,0\n");
    let check = |rest: &str, expected: &str| {
        let ran = folder.run(&format!("serve --cluster dgx-h100 {rest}"));
        assert_eq!(
            (ran.code, ran.stderr.lines().count(), ran.stdout.as_str()),
            (2, 1, ""),
            "{rest}: {}",
            ran.stderr
        );
        assert!(ran.stderr.contains(expected), "{rest}: {}", ran.stderr);
    };
    check("--model llama-3-8b", "--clients");
    check("--model llama-3-8b --batch 0", "a whole number from 1");
    check("--model llama-3-8b --rate NaN", "a number from 1e-6");
    check("--model llama-3-8b --batch 1 --tensor 16", "it needs 16 GPUs, the cluster has 8");
    check("--model llama-3-8b --batch 1 --tensor 4 --expert 4", "`--expert` is 4; llama-3-8b has no experts");
    check("--model qwen3-30b-a3b --batch 1 --tensor 4 --expert 3", "it must divide the 4 ranks of a stage");
    check(
        "--model llama-3-8b --batch 1 --pipeline 16",
        "`--pipeline` is 16; with `--tensor` and `--attention-data` it needs 16 GPUs, the cluster has 8",
    );
    check("--model llama-3-8b --batch 1 --pipeline 64", "`--pipeline` is 64; the model has 32 blocks");
    check(
        "--model llama-3-8b --batch 1 --expert-weights fp8",
        "`--expert-weights` is fp8; llama-3-8b has no experts",
    );
    check("--model bert-base --batch 1", "an encoder sees all tokens at once");
    check("--model llama-3-8b --batch 1 --weights nvfp4", "h100-80gb-sxm lacks the number format nvfp4");
    check(
        "--model llama-3-8b --batch 1 --tensor 3",
        "ranks have the same number of heads: 1, 2, 4, 8, 16, 32",
    );
    check("--model t5-small --batch 1", "an encoder-decoder is not served yet");
    check("--model llama-3-8b --batch 1 --engine vlm-v1", "vllm-v1");
    check("--model llama-3-8b --batch 1 --weights posit", "known formats are");
    check("--model llama-3-8b --trace trace.csv", "line 3: ");
    check("--model llama-3-8b --trace none.csv", "none.csv");
    check("--model llama-3-8b --batch 1 --cached 1024", "it should be less than the 1024 of --input");
    check(
        "--model gpt2 --batch 1 --input 4000",
        "learned positions for 1024 tokens, and prompt and answer are 4256",
    );
    let ran = folder.run("serve --model llama-3-70b --cluster dgx-h100 --batch 8");
    assert_eq!((ran.code, ran.stderr.as_str()), (3, ""));
    assert!(
        ran.stdout.starts_with("Does not fit: a sequence of 1280 tokens needs more than the 0 tokens"),
        "{}",
        ran.stdout
    );
}

/// Answers of one token have no time for each token after the first.
#[test]
fn what_has_no_time_is_a_dash() {
    let folder = Folder::new();
    let question = "serve --model llama-3-8b --cluster dgx-h100 --batch 2 --output 1";
    let answer = json(&folder, &format!("{question} --json"));
    for figure in ["mean", "p50", "p90", "p99", "range_of_mean"] {
        assert!(answer["tpot_ms"][figure].is_null() && !answer["ttft_ms"][figure].is_null(), "{figure}");
    }
    let text = folder.run(question).stdout;
    let row = text.lines().find(|line| line.starts_with("time per output token")).unwrap();
    assert_eq!(row.split_whitespace().skip(4).collect::<Vec<_>>(), ["-"; 5]);
}

/// A rate that the instance can't keep makes its queue longer to the last arrival; a lower one doesn't, nor does a burst of requests
/// at such a rate.
#[test]
fn a_queue_that_grows_without_end_is_said() {
    let folder = Folder::new();
    let question = "serve --model llama-3-8b --cluster dgx-h100 --input 2000 --output 300";
    let trace = |name: &str, arrivals: &mut dyn Iterator<Item = f64>| {
        let rows: String = arrivals.map(|arrival| format!("{arrival},2000,300\n")).collect();
        folder.write(name, &format!("arrival_s,input_tokens,output_tokens\n{rows}"));
    };
    // 5 a second, and 200 at once after 60 seconds; then the same at the end.
    trace(
        "burst.csv",
        &mut (0..600).map(|index| 0.2 * f64::from(if index < 400 { index.min(300) } else { index - 100 })),
    );
    trace("end.csv", &mut (0..500).map(|index| 0.2 * f64::from(index.min(300))));
    for (load, grows) in [
        ("--rate 5", false),
        ("--rate 10", false),
        ("--rate 20", true),
        ("--rate 100", true),
        ("--trace burst.csv", false),
        ("--trace end.csv", false),
        ("--clients 2000 --requests 4000", false),
        ("--batch 500", false),
    ] {
        assert_eq!(json(&folder, &format!("{question} {load} --json"))["queue_grows"], grows, "{load}");
        let text = folder.run(&format!("{question} {load}")).stdout;
        assert_eq!(text.contains("\nqueue       grows without end: of "), grows, "{text}");
    }
}

#[test]
fn a_kernel_and_a_row_of_its_table_have_the_same_time() {
    let folder = Folder::new();
    let published = Path::new(env!("CARGO_MANIFEST_DIR")).join("traces/published/inference/gemm.csv");
    let header = std::fs::read_to_string(&published).unwrap().lines().next().unwrap().to_string();
    // The columns are those of the published table.
    assert!(
        ["m", "n", "k", "gemm_dtype", "system", "latency_ms"].iter().all(|name| header.contains(name)),
        "{header}"
    );
    let row = std::fs::read_to_string(&published).unwrap();
    let row = row
        .lines()
        .find(|line| line.contains("H100") && line.contains("vllm") && line.contains("bfloat16"))
        .unwrap();
    folder.write("gemm.csv", &format!("{header}\n{row}\n"));
    let ran = folder.run("predict --kernels gemm.csv --out out.csv");
    assert_eq!((ran.code, ran.stderr.as_str()), (0, ""));
    let cell = |name: &str| column(&folder.path("out.csv"), name).remove(0);
    let [m, n, k] = ["m", "n", "k"].map(|name| cell(name).parse::<f64>().unwrap() as usize);
    let kernel = format!(
        "kernel --cluster dgx-h100 --gemm {m},{n},{k} --dtype bf16 --library vllm --kernel {} --json",
        cell("kernel_source")
    );
    let answer = json(&folder, &kernel);
    let predicted: f64 = cell("predicted_ms").parse().unwrap();
    assert!(
        (1e3 * answer["time_s"].as_f64().unwrap() / predicted - 1.0).abs() < 1e-4,
        "{answer} {predicted}"
    );
}

#[test]
fn kernels_that_cannot_exist_are_one_line() {
    let folder = Folder::new();
    for (rest, expected) in [
        ("--gemm 16,0,8192", "a whole number from 1"),
        ("--gemm 1,1,1 --window 3", "`--window` is 3; it goes with `--decode` or `--prefill`"),
        ("--gemm 1,1,1 --history 7", "it goes with `--prefill`"),
        ("--decode 64,32,8,128,4096 --tp 8", "it goes with `--experts`"),
        ("--decode 64,8,32,128,4096", "heads of keys and values divide the 8 query heads"),
        ("--prefill 1,32,5,128,4096", "heads of keys and values divide the 32 query heads"),
        ("--experts 256,7168,2048,256,8 --ep 512", "it must divide the 256 experts"),
        ("--experts 256,7168,2048,256,8 --tp 7", "it must divide the 2048 columns of an expert"),
        ("--experts 256,7168,2048,8,9", "a token goes to at most all 8 experts"),
    ] {
        let ran = folder.run(&format!("kernel --gpu h100-80gb-sxm {rest}"));
        assert_eq!((ran.code, ran.stderr.lines().count()), (2, 1), "{rest}: {}", ran.stderr);
        assert!(ran.stderr.contains(expected), "{rest}: {}", ran.stderr);
    }
}

#[test]
fn a_benchmark_of_vllm_stands_beside_its_forecast() {
    let folder = Folder::new();
    let lengths = |length: usize| vec![length.to_string(); 60].join(", ");
    let bench = |more: &str| {
        format!(
            "{{\"completed\": 60, \"total_input_tokens\": 60000, \"total_output_tokens\": 6000, \"mean_ttft_ms\": 100.0,
             \"p99_tpot_ms\": 20.0, \"output_throughput\": 900.0{more}}}"
        )
    };
    let serve = "serve --model llama-3-8b --cluster dgx-h100 --json";
    // The same questions without the file: clients, a rate, all at once.
    let alike = [
        (", \"request_rate\": \"inf\", \"max_concurrency\": 4".to_string(), None),
        (", \"request_rate\": 12.5".into(), Some("--rate 12.5 --requests 60 --input 1000 --output 100")),
        (
            format!(", \"input_lens\": [{}], \"output_lens\": [{}]", lengths(1000), lengths(100)),
            Some("--batch 60 --input 1000 --output 100"),
        ),
    ];
    for (more, question) in alike {
        folder.write("bench.json", &bench(&more));
        let answer = json(&folder, &format!("{serve} --measured bench.json"));
        let figures = answer["benchmark"].as_object().unwrap();
        assert_eq!(figures.keys().collect::<Vec<_>>(), ["mean_ttft_ms", "p99_tpot_ms", "output_throughput"]);
        assert_eq!(figures["mean_ttft_ms"]["measured"], 100.0);
        assert_eq!(figures["mean_ttft_ms"]["forecast"], answer["ttft_ms"]["mean"]);
        assert_eq!(figures["p99_tpot_ms"]["forecast"], answer["tpot_ms"]["p99"]);
        assert_eq!(figures["output_throughput"]["forecast"], answer["output_tokens_per_s"]);
        match question {
            Some(question) => {
                assert_eq!(json(&folder, &format!("{serve} {question}"))["ttft_ms"], answer["ttft_ms"])
            }
            None => assert_eq!(answer["most_running"], 4),
        }
    }
    folder.write("bad.json", "{\"completed\": 0, \"total_input_tokens\": 1, \"total_output_tokens\": 1}");
    let ran = folder.run(&format!("{serve} --measured bad.json"));
    assert_eq!(ran.code, 2);
    assert!(
        ran.stderr.contains("`completed` is 0") && ran.stderr.trim().lines().count() == 1,
        "{}",
        ran.stderr
    );
}

#[test]
fn hybrids_are_served_and_planned_but_not_trained_here() {
    let folder = Folder::new();
    let serve = "serve --model qwen3-next-80b-a3b --cluster dgx-h100 --tensor 4 --batch 8 --output 20";
    let ran = folder.run(&format!("{serve} --input 2000"));
    assert_eq!((ran.code, ran.stderr.as_str()), (0, ""));
    // 36 blocks of 8 states of 128 x 128 x 4 B and 3 tokens of 2048 channels.
    assert!(
        ran.stdout.contains("states      18.4 MiB for each sequence, whatever its length"),
        "{}",
        ran.stdout
    );
    assert!(
        ran.stdout.lines().any(|line| line.starts_with("states ") && !line.contains("MiB")),
        "{}",
        ran.stdout
    );
    let plan = "plan --model bamba-9b --cluster dgx-h100 --seq 4096 --global-batch 64 --out plan.toml";
    let ran = folder.run(plan);
    assert_eq!((ran.code, ran.stderr.as_str()), (0, ""), "{}", ran.stdout);
    let ran = folder.run("simulate plan.toml");
    assert_eq!((ran.code, ran.stderr.as_str()), (0, ""));
    let ran = folder.run("run plan.toml --steps 1");
    assert_eq!(ran.code, 2, "{}", ran.stdout);
    assert_eq!(ran.stderr.trim().lines().count(), 1, "{}", ran.stderr);
}
