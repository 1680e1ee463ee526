//! `serve-bench`: requests through ranks of this machine.

use crate::Folder;
use serde_json::Value;

/// A folder with a small model and a trace of four requests, the last of which comes when nobody runs.
fn prepared() -> Folder {
    let folder = Folder::new();
    let config = r#"{"model_type": "llama", "hidden_size": 32, "num_attention_heads": 4, "num_key_value_heads": 2,
        "num_hidden_layers": 2, "intermediate_size": 48, "vocab_size": 67, "hidden_act": "silu",
        "tie_word_embeddings": false, "max_position_embeddings": 64}"#;
    folder.write("config.json", config);
    folder.write("trace.csv", "arrival_s,input_tokens,output_tokens\n0,20,6\n0,7,1\n0,12,9\n500,5,4\n");
    folder
}

#[test]
fn a_trace_is_served_and_its_times_are_written() {
    let folder = prepared();
    for ranks in ["", "--tensor 2", "--pipeline 2 --engine tensorrt-llm"] {
        let ran = folder.run(&format!(
            "serve-bench --model ./config.json --trace trace.csv --max-tokens 16 --out out.csv --json {ranks}"
        ));
        assert_eq!((ran.code, ran.stderr.lines().count()), (0, 1), "{}", ran.stderr);
        let answer: Value = serde_json::from_str(&ran.stdout).unwrap();
        assert_eq!((&answer["requests"], &answer["preemptions"]), (&4.into(), &0.into()), "{answer}");
        // The last one waits for nobody: the clock has jumped to its arrival.
        let duration = answer["duration_s"].as_f64().unwrap();
        assert!((500.0..510.0).contains(&duration), "{answer}");
        let mut rows = csv::Reader::from_path(folder.path("out.csv")).unwrap();
        let headers = rows.headers().unwrap().iter().collect::<Vec<_>>().join(",");
        let expected = "arrival_s,input_tokens,output_tokens,first_token_s,last_token_s,ttft_ms,tpot_ms";
        assert_eq!(headers, expected);
        let rows: Vec<csv::StringRecord> = rows.records().map(Result::unwrap).collect();
        let column = |index: usize| rows.iter().map(|row| row[index].to_string()).collect::<Vec<_>>();
        assert_eq!(column(1), ["20", "7", "12", "5"]);
        assert_eq!(column(2), ["6", "1", "9", "4"]);
        for row in &rows {
            let [arrival, first, last] = [0, 3, 4].map(|index| row[index].parse::<f64>().unwrap());
            assert!(arrival < first && first <= last, "{row:?}");
            // One token has no time between tokens.
            assert_eq!(row[6].is_empty(), &row[2] == "1", "{row:?}");
        }
    }
}

#[test]
fn a_small_cache_preempts_and_a_validation_compares() {
    let folder = prepared();
    let bench = "serve-bench --model ./config.json --input 12 --output 16";
    let ran = folder.run(&format!("{bench} --batch 6 --cache-tokens 96 --json"));
    let answer: Value = serde_json::from_str(&ran.stdout).unwrap_or_else(|_| panic!("{ran:?}"));
    assert!(answer["preemptions"].as_u64().unwrap() > 0, "{answer}");
    assert!(answer.get("validation").is_none(), "{answer}");
    let ran =
        folder.run(&format!("{bench} --clients 3 --requests 6 --max-tokens 24 --validate --rounds 2 --json"));
    let answer: Value = serde_json::from_str(&ran.stdout).unwrap_or_else(|_| panic!("{ran:?}"));
    for figure in ["ttft_ms", "tpot_ms", "e2e_latency_ms", "output_tokens_per_s"] {
        let [forecast, measured, error] = ["forecast", "measured", "error_percent"].map(|key| {
            answer["validation"][figure][key].as_f64().unwrap_or_else(|| panic!("{figure}: {answer}"))
        });
        assert!((100.0 * (forecast / measured - 1.0) - error).abs() < 1e-6, "{figure}: {answer}");
    }
    let ran = folder.run(&format!("{bench} --clients 3 --requests 6 --validate --rounds 1"));
    assert!(ran.stdout.contains("Beside its forecast, medians of 1 round\n"), "{}", ran.stdout);
}

#[test]
fn what_it_cannot_serve_is_one_line() {
    let folder = prepared();
    let check = |rest: &str, expected: &str| {
        let ran = folder.run(&format!("serve-bench {rest}"));
        assert_eq!((ran.code, ran.stderr.lines().count()), (2, 1), "{rest}: {}", ran.stderr);
        assert!(ran.stderr.contains(expected) && ran.stdout.is_empty(), "{rest}: {}", ran.stderr);
    };
    check("--batch 1", "--model");
    check("--model ./config.json", "--clients");
    check("--model ./config.json --checkpoint . --batch 1", "cannot be used with");
    check("--model ./config.json --batch 1 --engine vlm-v1", "vllm-v1");
    check("--model ./config.json --batch 1 --pipeline 3", "the model has 2 blocks");
    check("--model ./config.json --batch 1 --tensor 4", "it must divide the key and value heads");
    check("--model ./config.json --batch 1 --weights int8", "new weights are not rounded");
    check("--model ./config.json --batch 1 --rounds 2", "--validate");
    check("--model ./config.json --batch 1 --processor-time --tensor 2", "give one rank and `--threads 1`");
    check("--model t5-small --batch 1", "an encoder-decoder is not served yet");
    check("--checkpoint . --batch 1", "has no complete checkpoint");
    let ran =
        folder.run("serve-bench --model ./config.json --batch 2 --input 20 --output 20 --cache-tokens 32");
    assert_eq!((ran.code, ran.stderr.as_str()), (3, ""));
    assert!(
        ran.stdout.starts_with("Does not fit: a sequence of 48 tokens needs more than the 32"),
        "{}",
        ran.stdout
    );
}
