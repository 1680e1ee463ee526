//! Training on a text against what PyTorch computes from the same weights and batches; `tests/torch/make.py` makes the
//! files.

use crate::drafts::Draft;
use serde::Deserialize;
use std::collections::BTreeMap;
use std::fs;
use std::path::PathBuf;
use trainwright_executor::{Layer, LearningRate, ParameterName, Settings, Start, Tokens, train};
use trainwright_spec::model::hf::from_hugging_face;
use trainwright_spec::plan::{Plan, StageBlocks};

/// What PyTorch saw.
#[derive(Deserialize)]
struct Curve {
    rate: f32,
    decay: f32,
    seed: u64,
    sequence: usize,
    batch: usize,
    /// By step.
    losses: Vec<f64>,
    /// Norms of the gradients by step.
    norms: Vec<f64>,
    /// Norms of the weights at the end.
    ends: BTreeMap<String, f64>,
}

fn check(name: &str, mesh: [usize; 3], ends: [(&str, Layer, ParameterName); 3]) {
    let all = PathBuf::from(env!("CARGO_MANIFEST_DIR")).join("tests/torch");
    let folder = all.join(name);
    let curve: Curve = serde_json::from_str(&fs::read_to_string(folder.join("curve.json")).unwrap()).unwrap();
    let config = fs::read_to_string(folder.join("config.json")).unwrap();
    let draft = Draft { mesh, optimizer: "adamw", ..Draft::of("gpt") }.plan();
    let stages: Vec<StageBlocks> =
        draft.stages.iter().map(|stage| StageBlocks(stage.0[..2 / mesh[1]].to_vec())).collect();
    let mut plan = Plan { model: from_hugging_face(&config, name).unwrap(), stages, ..draft };
    (plan.job.sequence, plan.job.global_batch) = (curve.sequence, curve.batch);
    let settings = Settings {
        steps: curve.losses.len(),
        seed: curve.seed,
        start: Start::Weights(folder),
        learning_rate: LearningRate::constant(curve.rate),
        weight_decay: curve.decay,
        return_weights: true,
        ..Settings::default()
    };
    let text = Tokens::bytes(&fs::read(all.join("text.txt")).unwrap());
    let outcome = train(&plan, &text, &settings, &mut |_| {}).unwrap();
    let near = |what: &str, ours: f64, torch: f64| {
        assert!((ours / torch - 1.0).abs() < 1e-4, "{name} {mesh:?} {what}: {ours}, PyTorch has {torch}");
    };
    for (step, (loss, norm)) in outcome.steps.iter().zip(curve.losses.iter().zip(&curve.norms)) {
        near(&format!("loss of step {}", step.step), step.loss, *loss);
        near(&format!("norm of step {}", step.step), step.gradient_norm.unwrap(), *norm);
    }
    // ln 256 = 5.5 at first: it has learned something.
    assert!(curve.losses[0] > 5.4 && curve.losses[19] < 4.0);
    let weights = outcome.weights.unwrap();
    for (tensor, layer, parameter) in ends {
        let squares = weights[&(layer, parameter)].iter().map(|x| f64::from(*x).powi(2)).sum::<f64>();
        near(tensor, squares.sqrt(), curve.ends[tensor]);
    }
}

#[test]
fn a_text_is_learned_as_pytorch_learns_it() {
    for mesh in [[1, 1, 1], [2, 2, 1]] {
        let ends = [
            ("transformer.wte.weight", Layer::Embedding, ParameterName::TokenEmbedding),
            ("transformer.h.1.mlp.c_fc.weight", Layer::Block(1), ParameterName::Fc1),
            ("transformer.ln_f.bias", Layer::Head, ParameterName::FinalNormBias),
        ];
        check("gpt2", mesh, ends);
        let ends = [
            ("lm_head.weight", Layer::Head, ParameterName::Head),
            ("model.layers.0.mlp.down_proj.weight", Layer::Block(0), ParameterName::Fc2),
            ("model.norm.weight", Layer::Head, ParameterName::FinalNormGain),
        ];
        check("llama", mesh, ends);
    }
}
