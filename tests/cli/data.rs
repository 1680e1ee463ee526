//! What `run` trains on: formats by name and by flag, weights, held-out data, and how much memory large files take.

use crate::long::cases;
use crate::run::tiny_plan;
use crate::{Folder, Ran};
use std::fs::File;
use trainwright_spec::mesh::Mesh;
use trainwright_spec::model::hf::from_hugging_face;

const TEXT: &str = "the quick brown fox jumps over the lazy dog; ";

/// A folder with a plan and the same bytes as text, 16 and 32 bits, Megatron's dataset and lines of JSON.
fn prepared() -> Folder {
    let folder = Folder::new();
    folder.write("plan.toml", &tiny_plan().to_toml());
    let text = TEXT.repeat(10);
    folder.write("text.txt", &text);
    folder.write(
        "lines.jsonl",
        &format!("{{\"text\": \"{}\"}}\n\n{{\"text\": \"{TEXT}\", \"id\": 7}}\n", TEXT.repeat(9)),
    );
    let wide = |bytes: usize| -> Vec<u8> {
        text.bytes().flat_map(|byte| u64::from(byte).to_le_bytes()[..bytes].to_vec()).collect()
    };
    for (name, bytes) in [("a.u16", 2), ("a.u32", 4), ("b.bin", 2), ("c.bin", 2)] {
        std::fs::write(folder.path(name), wide(bytes)).unwrap();
    }
    let mut index = b"MMIDIDX\0\0".to_vec();
    index.extend(1u64.to_le_bytes());
    index.push(8);
    [1u64, 2].iter().for_each(|count| index.extend(count.to_le_bytes()));
    index.extend((text.len() as i32).to_le_bytes());
    [0i64, 0, 1].iter().for_each(|pointer| index.extend(pointer.to_le_bytes()));
    std::fs::write(folder.path("c.idx"), index).unwrap();
    folder
}

fn check_error(ran: &Ran, expected: &str) {
    assert_eq!((ran.code, ran.stderr.lines().count()), (2, 1), "{}", ran.stderr);
    assert!(ran.stderr.contains(expected), "{}", ran.stderr);
}

/// The lines of steps without their speed.
fn steps(ran: &Ran) -> Vec<String> {
    assert_eq!((ran.code, ran.stderr.as_str()), (0, ""));
    let steps = ran.stdout.lines().filter(|line| line.starts_with("step "));
    steps.map(|line| line.split_whitespace().take(6).collect::<Vec<_>>().join(" ")).collect()
}

#[test]
fn the_same_tokens_train_the_same_in_every_format() {
    let folder = prepared();
    let run = |data: &str| folder.run(&format!("run plan.toml --steps 3 {data}"));
    let expected = steps(&run("--data text.txt"));
    assert_eq!(expected.len(), 3);
    for data in [
        "--data lines.jsonl",
        "--data a.u16",
        "--data a.u32",
        "--data c.bin",
        "--data c.idx",
        "--data c",
        "--data b.bin --data-format u16",
        "--data a.u16 --data-format u16",
        "--data text.txt --data-weights 3",
    ] {
        assert_eq!(steps(&run(data)), expected, "{data}");
    }
    // Two bytes read as one token of 32 bits are none of a byte.
    check_error(&run("--data b.bin --data-format u32"), "is not in the model's vocabulary of 256");
    // Of two equal files each sequence is there twice; a token behind each document moves the others.
    for data in ["--data a.u16 --data a.u32", "--data lines.jsonl --end-of-document 0"] {
        assert_ne!(steps(&run(data)), expected, "{data}");
    }
    assert!(run("--data lines.jsonl --end-of-document 0").stdout.contains("452 tokens of data"));
    let blended =
        |weights: &str| steps(&run(&format!("--data a.u16 --data lines.jsonl --data-weights {weights}")));
    assert_ne!(blended("1,1"), blended("9,1"));
    assert_eq!(blended("9,1"), blended("18,2"), "shares count, not their sum");
}

#[test]
fn data_that_cannot_be_used_is_refused_in_one_line() {
    let folder = prepared();
    folder.write("table.parquet", "PAR1");
    folder.write("broken.jsonl", "{\"text\": \"one\"}\n{\"txt\": \"two\"}\n");
    folder.write("odd.u16", "abc");
    let check = |rest: &str, expected: &str| {
        check_error(&folder.run(&format!("run plan.toml --steps 1 {rest}")), expected);
    };
    check("--data table.parquet", "table.parquet: ");
    check("--data a.u16 --document-mask", "a.u16: its documents are not known");
    folder.write("ones.jsonl", &"{\"text\": \"a\"}\n".repeat(40));
    check("--data ones.jsonl --document-mask", "there is nothing to predict");
    check("--document-mask", "--data <FILE>");
    check(
        "--data lines.jsonl --document-mask --device emulated",
        "on a GPU attention does not know documents",
    );
    check("--data lines.jsonl --z-loss 1e-4 --device emulated", "on a GPU the loss is plain cross entropy");
    check("--data lines.jsonl --label-smoothing 1", "it must be a number from 0 to below 1");
    check("--data lines.jsonl --z-loss -1", "it must be a number from 0");
    check("--data b.bin", "there is no .idx beside it: say how wide its tokens are");
    check("--data broken.jsonl", "broken.jsonl, line 2: missing field `text`");
    check("--data odd.u16", "odd.u16 has 3 bytes, no multiple of the 2 of a token");
    check("--data text.txt --data-format parquet", "text.txt: ");
    check("--data text.txt --data-format arrow", "invalid value 'arrow'");
    check(
        "--data text.txt --data a.u16 --data-weights 1",
        "`--data-weights` is 1 numbers; there are 2 of --data",
    );
    check("--data text.txt --data-weights 0", "it must be a number above 0");
    check("--data-format u16", "--data <FILE>");
    check(
        "--data lines.jsonl --end-of-document <eod>",
        "the tokenizer has no token `<eod>`, and it is no number",
    );
    check("--data lines.jsonl --end-of-document 256", "token 256 is not in the model's vocabulary of 256");
    check("--data text.txt --validate-every 1", "say what is held out: --validation-data FILE");
    check("--data text.txt --validation-fraction 0.1", "--validate-every <N>");
    check(
        "--data text.txt --validate-every 1 --validation-fraction 1",
        "it must be a number between 0 and 1",
    );
    check("--data text.txt --validate-every 1 --validation-fraction 0.01", "(validation data)");
    check("--data text.txt --validate-every 1 --validation-data none", "cannot read none");
    check("--data text.txt --validate-every 1 --validation-data a.u16", "another tokenizer than the data");
}

/// Documents of 45 bytes that end with a semicolon, by lines of JSON, by Megatron's index and by the token at their ends.
#[test]
fn documents_are_kept_apart_in_every_format() {
    let folder = prepared();
    let document = TEXT.trim_end();
    let line = format!("{{\"text\": \"{document}\"}}\n");
    folder.write("documents.jsonl", &line.repeat(10));
    let tokens: Vec<u8> = document.bytes().flat_map(|byte| [byte, 0]).collect::<Vec<u8>>().repeat(10);
    std::fs::write(folder.path("documents.u16"), &tokens).unwrap();
    std::fs::write(folder.path("documents_document.bin"), &tokens).unwrap();
    let mut index = b"MMIDIDX\0\0".to_vec();
    index.extend(1u64.to_le_bytes());
    index.push(8);
    [10u64, 11].iter().for_each(|count| index.extend(count.to_le_bytes()));
    (0..10).for_each(|_| index.extend((document.len() as i32).to_le_bytes()));
    (0..10).for_each(|sequence| index.extend((sequence * 2 * document.len() as i64).to_le_bytes()));
    (0..=10i64).for_each(|sequence| index.extend(sequence.to_le_bytes()));
    std::fs::write(folder.path("documents_document.idx"), index).unwrap();
    let run = |data: &str| steps(&folder.run(&format!("run plan.toml --steps 3 --data {data}")));
    let apart = run("documents.jsonl --document-mask");
    assert_eq!(apart, run("documents.u16 --end-of-document 59 --document-mask"));
    assert_eq!(apart, run("documents_document.bin --document-mask"));
    assert_ne!(apart, run("documents.jsonl"), "attention does not cross the borders");
    // A mask is a setting like others: a run of processes is one run.
    let launched = folder.run("run plan.toml --steps 3 --data documents.jsonl --document-mask --launch");
    assert_eq!(steps(&launched), apart);
}

/// Shards of every format, each with its weight: a run goes on under another plan as if nothing had been.
#[test]
fn several_sources_go_on_under_another_plan() {
    let folder = prepared();
    let mut plan = tiny_plan();
    (plan.mesh, plan.stages) = (Mesh::new(1, 1, 2), vec!["2 none".parse().unwrap()]);
    folder.write("other.toml", &plan.to_toml());
    for (name, from, to) in [("x.jsonl", 0, 200), ("y.jsonl", 150, 450)] {
        let text = &TEXT.repeat(10)[from..to];
        folder.write(name, &format!("{{\"text\": \"{text}\"}}\n").repeat(2));
    }
    let data = "--data text.txt --data x.jsonl --data y.jsonl --data c.bin --data a.u16 --data a.u32 \
                --data-weights 1,2,3,1.5,0.5,4 --end-of-document 1";
    let run = |plan: &str, rest: &str| {
        let ran = folder.run(&format!("run {plan} {data} {rest} --metrics run.jsonl"));
        assert_eq!((ran.code, ran.stderr.as_str()), (0, ""));
        let lines = folder.read("run.jsonl");
        let read = |line: &str| serde_json::from_str::<serde_json::Value>(line).unwrap();
        lines.lines().map(|line| read(line)["loss"].as_f64().unwrap()).collect::<Vec<f64>>()
    };
    let whole = run("plan.toml", "--steps 12");
    assert_eq!(run("plan.toml", "--steps 5 --save saved"), whole[..5]);
    let saved = folder.read("run.jsonl");
    for plan in ["plan.toml", "other.toml"] {
        folder.write("run.jsonl", &saved);
        let rest = run(plan, "--steps 12 --resume saved");
        assert_eq!(rest.len(), 12);
        for (step, (found, expected)) in rest.iter().zip(&whole).enumerate() {
            assert!((found / expected - 1.0).abs() < 1e-5, "{plan} step {}: {found} {expected}", step + 1);
        }
    }
}

/// Label smoothing and the z-loss are said in the first line, and the z-loss in each step's.
#[test]
fn terms_of_the_loss_are_logged() {
    let folder = prepared();
    let ran = folder.run(
        "run plan.toml --steps 2 --data text.txt --z-loss 0.01 --label-smoothing 0.1 --metrics run.jsonl",
    );
    assert_eq!((ran.code, ran.stderr.as_str()), (0, ""));
    assert!(
        ran.stdout.lines().next().unwrap().ends_with("label smoothing 0.1, z-loss 0.01"),
        "{}",
        ran.stdout
    );
    assert_eq!(ran.stdout.matches("  z-loss ").count(), 2, "{}", ran.stdout);
    let line = folder.read("run.jsonl");
    let line: serde_json::Value = serde_json::from_str(line.lines().next().unwrap()).unwrap();
    // ln 256 = 5.5 for a new model: 0.01 · 5.5² = 0.31.
    let z_loss = line["z_loss"].as_f64().unwrap();
    assert!((0.2..0.5).contains(&z_loss) && line["loss"].as_f64().unwrap() > z_loss, "{line}");
}

/// Held-out tokens are the end of the file: what is trained on is a file without it.
#[test]
fn held_out_data_is_not_trained_on() {
    let folder = prepared();
    let text = folder.read("text.txt");
    let (first, last) = text.split_at(text.len() - text.len() / 5);
    folder.write("first.txt", first);
    folder.write("last.txt", last);
    let run = |data: &str| {
        let validate = "--validate-every 2 --validation-batches 1 --metrics run.jsonl";
        steps(&folder.run(&format!("run plan.toml --steps 3 {validate} {data}")));
        let metrics = folder.read("run.jsonl");
        let read = |line: &str| -> serde_json::Value { serde_json::from_str(line).unwrap() };
        let of_line = |line: &str| ["loss", "validation_loss"].map(|key| read(line)[key].to_string());
        metrics.lines().map(of_line).collect::<Vec<_>>()
    };
    let by_fraction = run("--data text.txt --validation-fraction 0.2");
    assert_eq!(by_fraction, run("--data first.txt --validation-data last.txt"));
    let measured: Vec<bool> = by_fraction.iter().map(|[_, validation]| validation != "null").collect();
    assert_eq!(measured, [false, true, true], "every second step and the last one");
}

/// A file of a GiB in long tests, else of an eighth of that, or of `TRAINWRIGHT_FILE_MIB`. Its zeros take no room on the disk.
#[test]
fn tokens_stay_in_their_file() {
    let folder = Folder::new();
    let config = r#"{"model_type": "gpt2", "n_embd": 16, "n_head": 2, "n_layer": 2, "n_positions": 128,
        "vocab_size": 256, "resid_pdrop": 0.0, "embd_pdrop": 0.0, "attn_pdrop": 0.0}"#;
    let mut plan = tiny_plan();
    plan.model = from_hugging_face(config, "tiny").unwrap();
    plan.job.sequence = 128;
    folder.write("plan.toml", &plan.to_toml());
    let peak = |name: &str, bytes: u64| {
        File::create(folder.path(name)).unwrap().set_len(bytes).unwrap();
        steps(&folder.run(&format!("run plan.toml --steps 3 --data {name} --metrics run.jsonl")));
        let metrics = folder.read("run.jsonl");
        let last: serde_json::Value = serde_json::from_str(metrics.lines().last().unwrap()).unwrap();
        last["peak_resident_bytes"].as_u64()
    };
    let bytes = (cases("TRAINWRIGHT_FILE_MIB", 128, 1024) as u64) << 20;
    let (Some(small), Some(large)) = (peak("small.u16", 1 << 16), peak("large.u16", bytes)) else {
        return println!("skipped: this system does not say how much memory a process held");
    };
    // What stays are the order of the sequences, 4 bytes for each of 128 tokens of 2 bytes, and what is read at the start.
    let most = (16 << 20) + bytes / 20;
    assert!(large < small + most, "{small} bytes with a small file, {large} with one of {bytes}");
}
