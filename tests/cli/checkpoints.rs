//! `run` with checkpoints: stopped and killed at any time, on a full disk, with unsuitable checkpoints.

use crate::long::cases;
use crate::run::{losses, tiny_plan};
use crate::{Folder, Ran, program};
use std::process::Command;
use std::time::Duration;
use trainwright_spec::mesh::Mesh;
use trainwright_spec::model::hf::from_hugging_face;
use trainwright_spec::precision::Precision;

const TEXT: &str = "the quick brown fox jumps over the lazy dog; ";

/// A folder with a plan and a text.
fn prepared() -> Folder {
    let folder = Folder::new();
    folder.write("plan.toml", &tiny_plan().to_toml());
    folder.write("text", &TEXT.repeat(20));
    folder
}

/// The files of a folder, hidden ones too.
fn names(folder: &Folder, of: &str) -> Vec<String> {
    let entries = std::fs::read_dir(folder.path(of)).unwrap();
    let mut names: Vec<String> =
        entries.map(|entry| entry.unwrap().file_name().into_string().unwrap()).collect();
    names.sort();
    names
}

fn check_error(ran: &Ran, code: i32, expected: &str) {
    assert_eq!((ran.code, ran.stderr.lines().count()), (code, 1), "{}", ran.stderr);
    assert!(ran.stderr.contains(expected), "{}", ran.stderr);
}

#[test]
fn a_resumed_run_prints_the_same_as_an_uninterrupted_one() {
    let folder = prepared();
    let run = |rest: &str| folder.run(&format!("run plan.toml --data text --learning-rate 0.01 {rest}"));
    let complete = run("--steps 6");
    let first = run("--steps 4 --save ck --save-every 2");
    assert_eq!((first.code, first.stderr.as_str()), (0, ""));
    assert_eq!(names(&folder, "ck"), ["step-00000002", "step-00000004"]);
    let files = ["config.json", "model.safetensors", "optimizer.safetensors", "trainer.json"];
    assert_eq!(names(&folder, "ck/step-00000004"), files);
    let rest = run("--steps 6 --resume ck");
    assert_eq!(losses(&rest.stdout), losses(&complete.stdout)[4..], "{}", rest.stderr);
    // A folder of Hugging Face's begins a new run.
    let begun = run("--steps 1 --from ck/step-00000004 --json");
    let steps: serde_json::Value = serde_json::from_str(&begun.stdout).unwrap();
    assert_eq!(steps["steps"][0]["step"], 1);
    assert!(steps["steps"][0]["loss"].as_f64().unwrap() < losses(&complete.stdout)[0]);

    check_error(&run("--steps 4 --resume ck"), 2, "`step` is 4; the run is to end with step 4");
    check_error(&run("--resume none"), 2, "cannot read none: no such file or directory");
    check_error(&run("--resume ck --seed 1"), 2, "--seed");
    check_error(&run("--steps 1 --save ck"), 2, "`step` is 4; the run goes on from step 0");
    folder.write("other", &TEXT.repeat(21));
    let other = folder.run("run plan.toml --data other --steps 6 --resume ck");
    check_error(&other, 2, "trainer.json: `data` is ");
}

const EXPERTS: &str = r#"{"model_type": "mixtral", "hidden_size": 16, "num_attention_heads": 2, "num_key_value_heads": 1,
    "num_hidden_layers": 2, "intermediate_size": 12, "vocab_size": 256, "hidden_act": "silu", "num_local_experts": 4,
    "num_experts_per_tok": 2, "sliding_window": null, "tie_word_embeddings": false, "max_position_embeddings": 8}"#;

/// A plan in bf16 whose ranks share experts: the configuration that its model is named after states how long sequences may be, and
/// then its checkpoints do.
#[test]
fn experts_in_bf16_go_on_and_longer_sequences_are_refused() {
    let folder = prepared();
    folder.write("config.json", EXPERTS);
    let mut plan = tiny_plan();
    plan.model = from_hugging_face(EXPERTS, "./config.json").unwrap();
    plan.mesh = Mesh { expert: 2, ..Mesh::new(1, 1, 2) };
    plan.stages = vec!["2 none".parse().unwrap()];
    plan.job.precision = Precision::Bf16;
    folder.write("plan.toml", &plan.to_toml());
    plan.job.sequence = 9;
    folder.write("longer.toml", &plan.to_toml());
    let run = |rest: &str| folder.run(&format!("run {rest} --data text --learning-rate 0.01"));
    let complete = run("plan.toml --steps 4");
    assert_eq!(run("plan.toml --steps 2 --save ck").stderr, "");
    let rest = run("plan.toml --steps 4 --resume ck --save ck");
    assert_eq!(losses(&rest.stdout), losses(&complete.stdout)[2..], "{}", rest.stderr);
    let config: serde_json::Value =
        serde_json::from_str(&folder.read("ck/step-00000004/config.json")).unwrap();
    assert_eq!((&config["model_type"], &config["max_position_embeddings"]), (&"mixtral".into(), &8.into()));
    let of = |file: &str, tokens| {
        format!("{file}: `max_position_embeddings` is 8; a sequence of {tokens} tokens is longer")
    };
    check_error(&run("longer.toml --steps 1"), 2, &of("./config.json", 9));
    let of_checkpoint = of("ck/step-00000004/config.json", 9);
    check_error(&run("longer.toml --steps 1 --from ck/step-00000004"), 2, &of_checkpoint);
    let generate =
        |tokens: usize| folder.run(&format!("generate --checkpoint ck --prompt abcd --tokens {tokens}"));
    assert_eq!(generate(4).code, 0);
    check_error(&generate(5), 2, &of_checkpoint);
    let serve = |rest: &str| folder.run(&format!("serve-bench {rest} --batch 1 --input 4 --output 5"));
    check_error(&serve("--checkpoint ck"), 2, &of_checkpoint);
    check_error(&serve("--model ./config.json"), 2, &of("./config.json", 9));
}

/// Words and bytes: the smallest `tokenizer.json` that cuts a text.
fn tokenizer(word: &str) -> String {
    format!(
        r#"{{"version": "1.0", "truncation": null, "padding": null, "added_tokens": [], "normalizer": null,
            "pre_tokenizer": {{"type": "Whitespace"}}, "post_processor": null, "decoder": null,
            "model": {{"type": "WordLevel", "vocab": {{"?": 0, "the": 1, "quick": 2, "{word}": 3, "fox": 4}},
                "unk_token": "?"}}}}"#
    )
}

#[test]
fn a_tokenizer_cuts_the_text_and_must_stay_the_same() {
    let folder = prepared();
    folder.write("one.json", &tokenizer("brown"));
    folder.write("two.json", &tokenizer("red"));
    folder.write("none.json", "{}");
    let run = |rest: &str| folder.run(&format!("run plan.toml --data text {rest}"));
    let first = run("--tokenizer one.json --steps 2 --save ck");
    // Nine words and a semicolon, twenty times.
    assert!(first.stdout.contains("200 tokens of data"), "{}{}", first.stdout, first.stderr);
    assert_eq!(folder.read("ck/step-00000002/tokenizer.json"), tokenizer("brown"));
    check_error(&run("--tokenizer two.json --steps 3 --resume ck"), 2, "trainer.json: `tokenizer` is ");
    check_error(&run("--steps 3 --resume ck"), 2, "the data was made with bytes");
    let begun = run("--tokenizer two.json --steps 3 --from ck/step-00000002");
    check_error(&begun, 2, "tokenizer.json: `tokenizer` is another one");
    check_error(&run("--tokenizer none.json"), 2, "cannot use the tokenizer none.json");
    assert_eq!(run("--tokenizer one.json --steps 3 --resume ck").code, 0);
}

#[test]
fn a_full_disk_is_one_line_and_leaves_nothing_half_written() {
    let folder = prepared();
    let run = "run plan.toml --data text --save ck --steps";
    assert_eq!(folder.run(&format!("{run} 1")).code, 0);
    // The system's error for a file that must not grow stands for that of a full disk.
    let limited =
        format!("trap '' XFSZ; ulimit -f 16; exec {} {run} 3 --resume ck", env!("CARGO_BIN_EXE_trainwright"));
    let ran = Command::new("sh").args(["-c", &limited]).current_dir(folder.path(".")).output().unwrap();
    check_error(&Ran::from(ran), 2, "model.safetensors: file too large");
    assert_eq!(names(&folder, "ck"), ["step-00000001"]);
}

#[test]
fn a_damaged_checkpoint_is_one_line() {
    let folder = prepared();
    let run = "run plan.toml --data text --steps";
    assert_eq!(folder.run(&format!("{run} 1 --save ck")).code, 0);
    for file in ["model.safetensors", "optimizer.safetensors", "trainer.json"] {
        let path = folder.path(&format!("ck/step-00000001/{file}"));
        let complete = std::fs::read(&path).unwrap();
        std::fs::write(&path, &complete[..complete.len() / 2]).unwrap();
        check_error(&folder.run(&format!("{run} 2 --resume ck")), 2, file);
        std::fs::write(&path, complete).unwrap();
    }
    let mut wider = tiny_plan();
    wider.model.hidden = 32;
    wider.model.blocks[0].block.attention.heads *= 2;
    folder.write("wider.toml", &wider.to_toml());
    let ran = folder.run("run wider.toml --data text --steps 2 --resume ck");
    check_error(&ran, 2, "config.json: `model.hidden` is 16");
    assert_eq!(folder.run(&format!("{run} 2 --resume ck")).code, 0);
}

/// A flipped bit is found by its file's checksum; the checkpoint before it is used, and a line says so.
#[test]
fn the_last_undamaged_checkpoint_is_found_and_a_flipped_bit_is_damage() {
    let folder = prepared();
    let run = |rest: &str| folder.run(&format!("run plan.toml --data text {rest}"));
    let uninterrupted = losses(&run("--steps 4 --save ck --save-every 1 --keep 3").stdout);
    for (step, file) in [(4, "model"), (3, "optimizer")] {
        let path = folder.path(&format!("ck/step-0000000{step}/{file}.safetensors"));
        let mut bytes = std::fs::read(&path).unwrap();
        let last = bytes.len() - 1;
        bytes[last] ^= 1;
        std::fs::write(&path, bytes).unwrap();
    }
    let rest = run("--steps 4 --resume ck");
    assert_eq!((rest.code, rest.stderr.lines().count()), (0, 2), "{}", rest.stderr);
    assert!(rest.stderr.lines().all(|line| line.contains("its checksum is ")), "{}", rest.stderr);
    assert_eq!(losses(&rest.stdout), uninterrupted[2..]);
    check_error(
        &run("--steps 5 --resume ck/step-00000004"),
        2,
        "model.safetensors is damaged: its checksum is ",
    );
}

#[test]
fn a_rank_that_hangs_or_dies_ends_the_program() {
    let folder = prepared();
    let run = |rest: &str| folder.run(&format!("run plan.toml {rest}"));
    // Short where a rank hangs; a machine that is busy with other things must not look like one elsewhere.
    check_error(&run("--patience 3 --drill stall:1:2:20"), 1, "rank 1 stopped in step 2 at `");
    check_error(&run("--drill death:0:3:7"), 1, "rank 0 stopped in step 3 at `");
    check_error(&run("--drill nan:0:2"), 4, "is not a finite number");
    check_error(&run("--drill fire:1"), 2, "it must be like `death:1:3:20`");
}

/// A kill, fifty in long tests; `TRAINWRIGHT_DRILLS` asks for another number.
#[test]
fn after_a_kill_the_last_complete_checkpoint_is_there() {
    let drills = cases("TRAINWRIGHT_DRILLS", 1, 50) as u64;
    let folder = prepared();
    let run = "run plan.toml --data text --save ck --save-every 1 --steps";
    assert_eq!(folder.run(&format!("{run} 1")).code, 0);
    let last = || names(&folder, "ck").last().unwrap()["step-".len()..].parse::<usize>().unwrap();
    for number in 0..drills {
        let before = last();
        let mut child = program(&folder.path("."), &format!("{run} 1000000 --resume ck")).spawn().unwrap();
        std::thread::sleep(Duration::from_millis(150 + 97 * number % 400));
        child.kill().unwrap();
        child.wait().unwrap();
        // An incomplete checkpoint has another name, so the last name is that of a complete one.
        let done = last();
        let rest = folder.run(&format!("{run} {} --resume ck", done + 1));
        assert_eq!((rest.code, rest.stderr.as_str()), (0, ""));
        assert!(done >= before && rest.stdout.contains(&format!("step {:5}", done + 1)), "{}", rest.stdout);
        assert_eq!(names(&folder, "ck").len(), 2, "{:?}", names(&folder, "ck"));
    }
}
