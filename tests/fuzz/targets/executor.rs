//! Data, tokenizers, weights and messages: what runs read.

use super::{BYTES, FRAMES, JSON, JSON_LINES, SAFETENSORS, TEXT, Target, fate, reader};
use crate::files;
use std::fs;
use std::path::Path;
use trainwright_executor::{
    DataFile, DataFormat, DataOptions, ModelFolder, Remark, TextCoder, Tokens, WIRE_READERS, last_checkpoint,
    tensor_names,
};

pub fn targets() -> Vec<Target> {
    let wire = WIRE_READERS.iter().map(|wire| {
        let damages = if wire.name == "frames" {
            FRAMES
        } else if wire.name == "identity" {
            JSON
        } else {
            BYTES
        };
        reader(&format!("wire-{}", wire.name), wire.valid, damages, &[], |bytes| {
            (wire.reads)(bytes).then_some(()).ok_or_else(|| "no message".into())
        })
    });
    let others = [
        slow(
            "safetensors",
            || vec![safetensors()],
            SAFETENSORS,
            |bytes| in_folder("model.safetensors", bytes, weights),
        ),
        slow(
            "safetensors-index",
            || vec![INDEX.into()],
            JSON,
            |bytes| in_folder("model.safetensors.index.json", bytes, weights),
        ),
        slow(
            "checkpoint",
            || vec![TRAINER.into()],
            JSON,
            |bytes| in_folder("trainer.json", bytes, checkpoint),
        ),
        slow(
            "tokenizer",
            || vec![TOKENIZER.into(), PAIRS.into()],
            JSON,
            |bytes| in_folder("tokenizer.json", bytes, tokenizer),
        ),
        slow("megatron-index", || vec![index()], BYTES, |bytes| in_folder("data.idx", bytes, megatron)),
        slow(
            "json-lines",
            || vec![LINES.into()],
            JSON_LINES,
            |bytes| {
                in_folder("data.jsonl", bytes, |folder| data(folder, "data.jsonl", DataFormat::JsonLines))
            },
        ),
        slow(
            "text",
            || vec![LINES.into()],
            TEXT,
            |bytes| in_folder("data.txt", bytes, |folder| data(folder, "data.txt", DataFormat::Text)),
        ),
        slow(
            "tokens-u16",
            || vec![index()[..32].to_vec()],
            BYTES,
            |bytes| in_folder("data.u16", bytes, |folder| data(folder, "data.u16", DataFormat::U16)),
        ),
    ];
    wire.chain(others).collect()
}

const TOKENIZER: &str = r#"{"version": "1.0", "truncation": null, "padding": null, "added_tokens": [
    {"id": 4, "content": "<|end|>", "single_word": false, "lstrip": false, "rstrip": false, "normalized": false, "special": true}],
    "normalizer": {"type": "NFC"}, "pre_tokenizer": {"type": "Whitespace"}, "post_processor": null, "decoder": null,
    "model": {"type": "WordLevel", "vocab": {"?": 0, "a": 1, "quick": 2, "fox": 3}, "unk_token": "?"}}"#;

/// Of pairs of bytes.
const PAIRS: &str = r#"{"version": "1.0", "truncation": null, "padding": null, "added_tokens": [],
    "normalizer": {"type": "Sequence", "normalizers": [{"type": "Prepend", "prepend": "a"}, {"type": "Lowercase"}]},
    "pre_tokenizer": {"type": "ByteLevel", "add_prefix_space": true, "trim_offsets": true, "use_regex": true},
    "post_processor": {"type": "ByteLevel", "add_prefix_space": true, "trim_offsets": false, "use_regex": true},
    "decoder": {"type": "ByteLevel", "add_prefix_space": true, "trim_offsets": true, "use_regex": true},
    "model": {"type": "BPE", "dropout": null, "unk_token": "b", "continuing_subword_prefix": null, "end_of_word_suffix": null,
    "fuse_unk": false, "byte_fallback": false, "vocab": {"a": 0, "b": 1, "ab": 2, "f": 3}, "merges": ["a b"]}}"#;

const LINES: &str = "{\"text\": \"a fox\"}\n\n{\"id\": 1, \"text\": \"quick\\nfox\"}\n{\"text\": \"\"}\n";

const INDEX: &str = r#"{"metadata": {"total_size": 24}, "weight_map": {"a.weight": "part-1.safetensors"}}"#;

const TRAINER: &str = r#"{"step": 3, "seed": 0, "optimizer": "adamw", "sequences": 24, "sequence": 64, "data": "0", "tokenizer":
    "bytes", "checksums": {"part-1.safetensors": "00000000"}}"#;

fn slow(
    name: &str,
    seeds: impl Fn() -> Vec<Vec<u8>> + 'static,
    damages: &'static [crate::mutate::Damage],
    read: impl Fn(&[u8]) -> Result<(), String> + 'static,
) -> Target {
    Target {
        inputs: 500,
        ..reader(
            name,
            seeds,
            damages,
            &[
                "Precompiled",
                "precompiled_charsmap",
                "Unigram",
                "WordPiece",
                "Replace",
                "Split",
                "Regex",
                "Metaspace",
            ],
            read,
        )
    }
}

/// Reads a file with a name, beside others that its reader needs.
fn in_folder(name: &str, bytes: &[u8], read: impl Fn(&Path) -> Result<(), String>) -> Result<(), String> {
    let folder = files::scratch();
    let path = folder.join(name);
    fs::write(&path, bytes).unwrap();
    let outcome = read(folder);
    fs::remove_file(path).unwrap();
    outcome
}

fn safetensors() -> Vec<u8> {
    let header = br#"{"a.weight":{"dtype":"F32","shape":[2,2],"data_offsets":[0,16]},"b":{"dtype":"BF16","shape":[4],"data_offsets":[16,24]}}"#;
    [&(header.len() as u64).to_le_bytes()[..], header, &[1; 24]].concat()
}

fn weights(folder: &Path) -> Result<(), String> {
    fs::write(folder.join("part-1.safetensors"), safetensors()).unwrap();
    let model = ModelFolder::open(folder, Remark(|_| ())).map_err(|error| error.to_string())?;
    let read = tensor_names(&model.folder);
    fs::remove_file(folder.join("part-1.safetensors")).unwrap();
    fate(read)
}

fn checkpoint(folder: &Path) -> Result<(), String> {
    // CRC-32 of nothing is 0.
    fs::write(folder.join("part-1.safetensors"), "").unwrap();
    let read = ModelFolder::open(folder, Remark(|_| ()));
    last_checkpoint(folder);
    fs::remove_file(folder.join("part-1.safetensors")).unwrap();
    fate(read)
}

fn tokenizer(folder: &Path) -> Result<(), String> {
    let coder = TextCoder::open(Some(&folder.join("tokenizer.json"))).map_err(|error| error.to_string())?;
    for text in ["a quick fox", "", "é🦀 \u{0}a  fox<|end|>"] {
        let tokens = coder.encode(text).map_err(|error| error.to_string())?;
        coder.decode(&tokens).map_err(|error| error.to_string())?;
    }
    coder.decode(&[0, u32::MAX]).map(|_| ()).map_err(|error| error.to_string())
}

/// Two documents of 3 and 2 tokens of 16 bits.
fn index() -> Vec<u8> {
    let mut bytes = b"MMIDIDX\0\0".to_vec();
    bytes.extend(1u64.to_le_bytes());
    bytes.push(8);
    [2u64, 3].iter().for_each(|count| bytes.extend(count.to_le_bytes()));
    [3i32, 2].iter().for_each(|length| bytes.extend(length.to_le_bytes()));
    [0i64, 6, 0, 1, 2].iter().for_each(|pointer| bytes.extend(pointer.to_le_bytes()));
    bytes
}

fn megatron(folder: &Path) -> Result<(), String> {
    fs::write(folder.join("data.bin"), [1, 0, 2, 0, 3, 0, 4, 0, 5, 0]).unwrap();
    let read = data(folder, "data.bin", DataFormat::Megatron);
    fs::remove_file(folder.join("data.bin")).unwrap();
    read
}

fn data(folder: &Path, name: &str, format: DataFormat) -> Result<(), String> {
    let path = folder.join(name);
    let file = DataFile { path: &path, format: Some(format), weight: None };
    let options = DataOptions { tokenizer: None, end_of_document: Some("0"), documents: true };
    let tokens = Tokens::open(&[file], &options).map_err(|error| error.to_string())?;
    fate(tokens.hold_out(0.5))
}
