//! `generate`, and the samples of `run`.

use crate::run::{ended, launched, tiny_plan};
use crate::{Folder, Ran};
use serde_json::Value;

/// A folder with a plan of two pipeline ranks, a text and two checkpoints of a training on its bytes.
fn prepared() -> (Folder, String) {
    let folder = Folder::new();
    folder.write("plan.toml", &tiny_plan().to_toml());
    folder.write("text", &"abcdefg".repeat(60));
    let run = "run plan.toml --data text --steps 60 --learning-rate 0.03 --save ck --save-every 30 \
               --sample-prompt abc --sample-every 30 --sample-tokens 5 --log-interval 60";
    let ran = folder.run(run);
    assert_eq!((ran.code, ran.stderr.as_str()), (0, ""), "{}", ran.stdout);
    (folder, ran.stdout)
}

fn check_error(ran: &Ran, code: i32, expected: &str) {
    assert_eq!((ran.code, ran.stderr.lines().count()), (code, 1), "{}", ran.stderr);
    assert!(ran.stderr.contains(expected) && ran.stdout.is_empty(), "{}", ran.stderr);
}

fn data(ran: &Ran) -> Value {
    serde_json::from_str(&ran.stdout).unwrap_or_else(|_| panic!("{ran:?}"))
}

#[test]
fn a_trained_text_goes_on_alike_from_a_checkpoint_and_in_the_samples_of_its_run() {
    let (folder, printed) = prepared();
    // It has learned the alphabet's seven letters.
    let ran = folder.run("generate --checkpoint ck --prompt abc --tokens 5");
    assert_eq!((ran.code, ran.stdout.as_str()), (0, "abcdefga\n"), "{}", ran.stderr);
    let lines: Vec<&str> = ran.stderr.lines().collect();
    assert!(lines[0].contains(" of it fp32 weights and "), "{lines:?}");
    assert!(lines[1].starts_with("prefill ") && lines[1].contains(" ms a token, "), "{lines:?}");
    assert_eq!(lines.len(), 2);
    let quiet = folder.run("--quiet generate --checkpoint ck --prompt abc --tokens 5");
    assert_eq!((quiet.stdout.as_str(), quiet.stderr.as_str()), ("abcdefga\n", ""));
    // A line of the run for each of its checkpoints.
    for step in [30, 60] {
        let made =
            folder.run(&format!("generate --checkpoint ck/step-000000{step} --prompt abc --tokens 5 --json"));
        let made = &data(&made);
        assert_eq!(made["step"], step);
        let text = &made["completions"][0]["text"];
        assert!(printed.contains(&format!("\nsample {step:3}  {text}\n")), "{printed}{made}");
    }
}

#[test]
fn prompts_come_from_arguments_files_and_standard_input() {
    let (folder, _) = prepared();
    folder.write("lines", "abc\nfg\n");
    let generate = |rest: &str, input: &str| {
        folder.run_with_input(&format!("generate --checkpoint ck --tokens 3 {rest}"), input)
    };
    let expected = "abcdef\nfgabc\n";
    let check = |ran: Ran| assert_eq!((ran.code, ran.stdout.as_str()), (0, expected), "{}", ran.stderr);
    check(generate("--prompt abc --prompt fg", ""));
    check(generate("--prompts lines", ""));
    check(generate("--prompts -", "abc\nfg\n"));
    check(generate("--prompt abc --prompt-tokens 102,103", ""));
    for plan_and_format in
        ["--plan plan.toml", "--weights bf16", "--weights int8", "--plan plan.toml --weights int8"]
    {
        check(generate(&format!("--prompts lines {plan_and_format}"), ""));
    }
    assert_eq!(generate("--prompt abc --stop 101", "").stdout, "abcde\n");
}

#[test]
fn draws_follow_from_the_seed() {
    let (folder, _) = prepared();
    let draw = |rest: &str| {
        let ran = folder.run(&format!("generate --checkpoint ck --prompt a --tokens 6 {rest}"));
        assert_eq!(ran.code, 0, "{}", ran.stderr);
        ran.stdout
    };
    let hot = "--temperature 20";
    assert_eq!(draw(hot), draw(hot));
    assert_eq!(draw(hot), draw(&format!("{hot} --plan plan.toml --threads 3")));
    assert_ne!(draw(hot), draw(&format!("{hot} --seed 1")));
    // One likeliest token is the greedy choice, whatever the temperature.
    assert_eq!(draw(&format!("{hot} --top-k 1")), "abcdefg\n");
    assert_eq!(draw(&format!("{hot} --top-p 0.000001")), "abcdefg\n");
    assert_eq!(draw("--temperature 0 --top-k 5"), "abcdefg\n");
}

/// A word for each token.
const TOKENIZER: &str = r#"{"version": "1.0", "truncation": null, "padding": null, "added_tokens": [], "normalizer": null,
    "pre_tokenizer": {"type": "Whitespace"}, "post_processor": null, "decoder": null,
    "model": {"type": "WordLevel", "vocab": {"?": 0, "the": 1, "quick": 2, "fox": 3}, "unk_token": "?"}}"#;

#[test]
fn a_hugging_face_folder_has_a_tokenizer_or_takes_numbers() {
    let (folder, _) = prepared();
    std::fs::create_dir(folder.path("hf")).unwrap();
    for name in ["config.json", "model.safetensors"] {
        std::fs::copy(folder.path(&format!("ck/step-00000060/{name}")), folder.path(&format!("hf/{name}")))
            .unwrap();
    }
    let generate = |rest: &str| folder.run(&format!("generate --checkpoint hf --tokens 3 {rest}"));
    let ran = generate("--prompt-tokens 97,98,99");
    assert_eq!(ran.stdout, "97,98,99,100,101,102\n", "{}", ran.stderr);
    check_error(&generate("--prompt abc"), 2, "name one with --tokenizer, or give --prompt-tokens");
    check_error(&generate("--prompt-tokens 97 --stop z"), 2, "without a tokenizer it is a number");
    check_error(
        &generate("--prompt-tokens 97 --stop 256"),
        2,
        "`--stop` is 256; token 256 is not in the model's vocabulary of 256",
    );
    let stopped = generate("--prompt-tokens 97,98,99 --stop 101");
    assert_eq!(stopped.stdout, "97,98,99,100,101\n", "{}", stopped.stderr);
    folder.write("hf/tokenizer.json", TOKENIZER);
    let made = data(&generate("--prompt fox --json"));
    let made = &made["completions"][0];
    assert_eq!(made["prompt_tokens"], serde_json::json!([3]));
    assert!(made["text"].is_string() && made["tokens"].as_array().unwrap().len() == 3, "{made}");
    folder.write("bad.json", "{}");
    check_error(&generate("--prompt fox --tokenizer bad.json"), 2, "cannot use the tokenizer bad.json");
    std::fs::remove_file(folder.path("hf/config.json")).unwrap();
    check_error(&generate("--prompt fox"), 2, "it has no config.json: say with --plan what its model is");
    assert_eq!(generate("--prompt fox --plan plan.toml").code, 0);
}

#[test]
fn bad_input_is_one_line() {
    let (folder, _) = prepared();
    let check = |rest: &str, expected: &str| {
        check_error(&folder.run(&format!("generate --checkpoint {rest}")), 2, expected);
    };
    check("none --prompt a", "cannot read none: no such file or directory");
    check(". --prompt a", "has no complete checkpoint");
    check("ck", "--prompt");
    check("ck --prompts -", "it has no line");
    check("ck --prompt-tokens 1,x", "whole numbers between commas");
    check(
        "ck --prompt-tokens 256",
        "prompt 1 has the token 256, which is not in the model's vocabulary of 256",
    );
    check("ck --prompt abcd --tokens 5", "are 9 tokens, and the model has 8 positions");
    for bad in [
        "--tokens 0",
        "--tokens -1",
        "--temperature -1",
        "--temperature NaN",
        "--top-k 0",
        "--top-p 0",
        "--top-p 1.1",
        "--weights int4",
        "--threads 0",
        "--seed -1",
    ] {
        check(&format!("ck --prompt a {bad}"), bad.split(' ').next().unwrap());
    }
    check("ck --prompt a --tokens 2 --plan none.toml", "none.toml");
    let mut wider = tiny_plan();
    wider.model.hidden = 32;
    wider.model.blocks[0].block.attention.heads *= 2;
    folder.write("wider.toml", &wider.to_toml());
    check("ck --prompt a --tokens 2 --plan wider.toml --quiet", "config.json: `model.hidden` is 16");
    let run = |rest: &str| folder.run(&format!("run plan.toml {rest}"));
    check_error(&run("--data text --sample-prompt abc"), 2, "--sample-every");
    check_error(
        &run("--sample-prompt abc --sample-every 2"),
        2,
        "the data's tokens are of no known tokenizer",
    );
    let long = "--data text --sample-prompt abcdefga --sample-every 2 --sample-tokens 1";
    // The run has printed its title by then.
    let ran = run(long);
    assert_eq!((ran.code, ran.stderr.lines().count()), (2, 1), "{}", ran.stderr);
    assert!(ran.stderr.contains("the model has 8 positions"), "{}", ran.stderr);
}

#[test]
fn a_flipped_bit_of_the_last_checkpoint_leads_to_the_one_before() {
    let (folder, _) = prepared();
    let path = folder.path("ck/step-00000060/model.safetensors");
    let mut bytes = std::fs::read(&path).unwrap();
    let last = bytes.len() - 1;
    bytes[last] ^= 1;
    std::fs::write(&path, bytes).unwrap();
    let ran = folder.run("generate --checkpoint ck --prompt abc --tokens 5 --json");
    assert!(ran.stderr.lines().next().unwrap().contains("its checksum is "), "{}", ran.stderr);
    assert_eq!(data(&ran)["step"], 30);
}

/// Each rank a process of its own, over TCP: rank 0 prints what one rank does.
#[test]
fn processes_generate_what_threads_do() {
    let (folder, _) = prepared();
    let generate =
        "generate --checkpoint ck --prompt abc --prompt fg --tokens 3 --plan plan.toml --transport tcp";
    let ran: Vec<Ran> = launched(&folder, generate, 2).into_iter().map(ended).collect();
    assert!(ran.iter().all(|ran| ran.code == 0), "{ran:?}");
    assert_eq!((ran[0].stdout.as_str(), ran[1].stdout.as_str()), ("abcdef\nfgabc\n", ""));
    assert_eq!(ran[1].stderr, "");
}
