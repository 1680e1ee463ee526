//! Models of files: configurations of unknown families, and weights beside them.

use crate::Folder;
use serde_json::json;

/// A folder with weights of two blocks whose file names the number of heads alone.
fn folder() -> Folder {
    let folder = Folder::new();
    std::fs::create_dir(folder.path("model")).unwrap();
    folder.write("model/config.json", r#"{"model_type": "mine", "heads": 4}"#);
    let block = |layer: usize| {
        let weights = [
            ("attention.wq", [64, 64]),
            ("attention.wk", [64, 64]),
            ("attention.wv", [64, 64]),
            ("attention.wo", [64, 64]),
            ("mlp.w1", [128, 64]),
            ("mlp.w3", [128, 64]),
            ("mlp.w2", [64, 128]),
        ];
        let weights = weights.map(|(name, shape)| (format!("layers.{layer}.{name}.weight"), shape.to_vec()));
        let norms =
            ["attention_norm", "mlp_norm"].map(|name| (format!("layers.{layer}.{name}.weight"), vec![64]));
        weights.into_iter().chain(norms).collect::<Vec<_>>()
    };
    let ends = [("tok_embeddings", vec![96, 64]), ("output", vec![96, 64]), ("norm", vec![64])];
    let ends = ends.map(|(name, shape)| (format!("{name}.weight"), shape));
    let file = |tensors: Vec<(String, Vec<usize>)>| {
        let tensor = |(name, shape): (String, Vec<usize>)| {
            (name, json!({ "dtype": "BF16", "shape": shape, "data_offsets": [0, 0] }))
        };
        let header =
            serde_json::to_vec(&tensors.into_iter().map(tensor).collect::<serde_json::Map<_, _>>()).unwrap();
        [&(header.len() as u64).to_le_bytes(), header.as_slice()].concat()
    };
    std::fs::write(folder.path("model/a.safetensors"), file(block(0))).unwrap();
    let rest: Vec<_> = block(1).into_iter().chain(ends).collect();
    std::fs::write(folder.path("model/b.safetensors"), file(rest)).unwrap();
    folder
}

const JOB: &str = "--cluster dgx-h100 --seq 64 --global-batch 8 --tensor 1 --pipeline 1";

#[test]
fn weights_say_what_the_file_does_not() {
    let folder = folder();
    let map = "--map num_attention_heads=heads";
    let ran = folder.run(&format!("plan --model model/ {JOB} {map} --json"));
    assert_eq!(ran.code, 0, "{}", ran.stderr);
    let answer: serde_json::Value = serde_json::from_str(&ran.stdout).unwrap();
    let block = 4 * 64 * 64 + 3 * 64 * 128 + 2 * 64;
    assert_eq!(answer["question"]["parameters"], 2 * 96 * 64 + 2 * block + 64, "{}", answer["question"]);
    // The same file alone says too little.
    let ran = folder.run(&format!("plan --model model/config.json {JOB} {map}"));
    assert_eq!((ran.code, ran.stderr.lines().count()), (2, 1), "{}", ran.stderr);
    assert!(ran.stderr.contains("`hidden_size`"), "{}", ran.stderr);
}

#[test]
fn weights_of_another_model_are_refused() {
    let folder = folder();
    let check = |arguments: &str, message: &str| {
        let ran = folder.run(&format!("plan --model {arguments} {JOB}"));
        assert_eq!(ran.code, 2, "{arguments}");
        assert_eq!(ran.stderr, format!("error: {message}\n"), "{arguments}");
    };
    check(
        "model/ --map num_attention_heads=heads --map num_hidden_layers=3",
        "--model: model/config.json: `model_type` is \"decoder\"; read so it has 135616 parameters, and the weights beside the file are 94528",
    );
    check(
        "model/ --map num_attention_heads=head",
        "--model: model/config.json: `num_attention_heads` is mapped from `head`; the file has no such key, the nearest are heads",
    );
    check(
        "gpt2 --map hidden_size=heads",
        "`--map` is hidden_size; gpt2 is in the catalog: map keys of a config.json",
    );
    std::fs::write(folder.path("model/b.safetensors"), [255; 16]).unwrap();
    let ran = folder.run(&format!("plan --model model/ {JOB} --map num_attention_heads=heads"));
    assert_eq!((ran.code, ran.stderr.lines().count()), (2, 1), "{}", ran.stderr);
    assert!(ran.stderr.contains("model/b.safetensors"), "{}", ran.stderr);
}
