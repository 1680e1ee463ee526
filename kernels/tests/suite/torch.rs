//! Kernels against what PyTorch computes; `tests/torch/make.py` makes the files.

use crate::common::check_near;
use serde::Deserialize;
use trainwright_kernels::activation::{Activation, FeedForward};
use trainwright_kernels::attention::{Attention, Kept, Mask, ScoreRules};
use trainwright_kernels::cross_entropy::{Columns, LossTerms, Statistics};
use trainwright_kernels::elementwise::{add_bias, bias_gradient};
use trainwright_kernels::embedding::Rows;
use trainwright_kernels::norm::Norm;
use trainwright_kernels::optimizer::{AdamW, Momentum, StepSize};
use trainwright_kernels::rotary::{Heads, Rotary, Turn};
use trainwright_kernels::{Matrix, Onto, Threads, multiply};

fn read<T: for<'de> Deserialize<'de>>(name: &str) -> T {
    let path = format!("{}/tests/torch/{name}.json", env!("CARGO_MANIFEST_DIR"));
    serde_json::from_str(&std::fs::read_to_string(&path).unwrap())
        .unwrap_or_else(|error| panic!("{path}: {error}"))
}

fn wide(x: &[f32]) -> Vec<f64> {
    x.iter().map(|x| f64::from(*x)).collect()
}

/// Both computed in f32.
fn check(name: &str, ours: &[f32], torch: &[f32]) {
    check_near(name, ours, &wide(torch), 2e-6);
}

#[derive(Deserialize)]
struct NormCase {
    x: Vec<f32>,
    gain: Vec<f32>,
    bias: Vec<f32>,
    g: Vec<f32>,
    y: Vec<f32>,
    dx: Vec<f32>,
    dgain: Vec<f32>,
    dbias: Vec<f32>,
    width: usize,
}

#[test]
fn norms() {
    for (name, centred) in [("layer_norm", true), ("rms_norm", false)] {
        let case: NormCase = read(name);
        let norm = Norm { centred, width: case.width, epsilon: 1e-5 };
        let bias = centred.then_some(case.bias.as_slice());
        let (mut y, mut dx) = (vec![0.0; case.x.len()], vec![0.0; case.x.len()]);
        norm.forward(&case.x, Some(&case.gain), bias, &mut y, Threads::ONE);
        norm.backward(&case.x, Some(&case.gain), &case.g, &mut dx, Threads::ONE);
        let (mut dgain, mut dbias) = (vec![0.0; case.width], vec![0.0; case.width]);
        norm.vector_gradients(&case.x, &case.g, Some(&mut dgain), centred.then_some(&mut dbias));
        check(name, &y, &case.y);
        check(name, &dx, &case.dx);
        check(name, &dgain, &case.dgain);
        check(name, &dbias, &case.dbias);
    }
}

#[derive(Deserialize)]
struct ActivationCase {
    x: Vec<f32>,
    g: Vec<f32>,
    y: Vec<f32>,
    dx: Vec<f32>,
    width: usize,
}

#[test]
fn activations() {
    for (name, activation, gated) in [("gelu", Activation::Gelu, false), ("swiglu", Activation::Silu, true)] {
        let case: ActivationCase = read(name);
        let layer = FeedForward { activation, gated, width: case.width };
        let (mut y, mut dx) = (vec![0.0; case.y.len()], vec![0.0; case.x.len()]);
        layer.forward(&case.x, &mut y, Threads::ONE);
        layer.backward(&case.x, &case.g, &mut dx, Threads::ONE);
        check(name, &y, &case.y);
        check(name, &dx, &case.dx);
    }
}

#[derive(Deserialize)]
struct AttentionCase {
    qkv: Vec<f32>,
    g: Vec<f32>,
    y: Vec<f32>,
    dqkv: Vec<f32>,
    batch: usize,
    heads: usize,
    kv_heads: usize,
    d: usize,
}

#[test]
fn attention() {
    let case: AttentionCase = read("attention");
    let attention = Attention {
        batch: case.batch,
        heads: case.heads,
        kv_heads: case.kv_heads,
        head_dim: case.d,
        value_head_dim: case.d,
        mask: Mask::Causal,
    };
    let made = attention.forward(ScoreRules::default(), &case.qkv, Threads::ONE);
    check("attention", &made.heads, &case.y);
    let kept = Kept { heads: &made.heads, logarithms: &made.logarithms, gradient: &case.g };
    check(
        "attention gradient",
        &attention.backward(ScoreRules::default(), &case.qkv, kept, Threads::ONE),
        &case.dqkv,
    );
}

#[derive(Deserialize)]
struct LossCase {
    logits: Vec<f32>,
    targets: Vec<f32>,
    loss: f64,
    dlogits: Vec<f32>,
    width: usize,
}

#[test]
fn cross_entropy() {
    let case: LossCase = read("cross_entropy");
    let targets: Vec<u32> = case.targets.iter().map(|target| *target as u32).collect();
    let columns = Columns { first: 0, width: case.width, valid: case.width };
    let statistics = columns.statistics(&case.logits, &targets, &LossTerms::default(), Threads::ONE);
    let tokens = targets.len();
    let loss = statistics.iter().map(Statistics::loss).sum::<f64>() / tokens as f64;
    assert!((loss - case.loss).abs() < 1e-6, "{loss} {}", case.loss);
    let mut gradient = case.logits.clone();
    columns.gradient(
        &mut gradient,
        (&targets, &statistics),
        &LossTerms::default(),
        1.0 / tokens as f32,
        Threads::ONE,
    );
    check("cross entropy", &gradient, &case.dlogits);
}

#[derive(Deserialize)]
struct OptimizerCase {
    start: Vec<f32>,
    grads: Vec<f32>,
    end: Vec<f32>,
    count: usize,
}

#[test]
fn optimizers() {
    let size = |step| StepSize { rate: 0.01, decay: 0.1, gradient_scale: 1.0, step };
    let case: OptimizerCase = read("adamw");
    let (mut weights, mut first, mut second) =
        (case.start.clone(), vec![0.0; case.count], vec![0.0; case.count]);
    let adam = AdamW { beta1: 0.9, beta2: 0.95, epsilon: 1e-8 };
    for (step, gradients) in (1..).zip(case.grads.chunks(case.count)) {
        adam.update(&mut weights, gradients, [&mut first, &mut second], size(step), Threads::ONE);
    }
    check("adamw", &weights, &case.end);

    let case: OptimizerCase = read("momentum");
    let (mut weights, mut velocity) = (case.start.clone(), vec![0.0; case.count]);
    for (step, gradients) in (1..).zip(case.grads.chunks(case.count)) {
        Momentum { momentum: 0.9 }.update(&mut weights, gradients, &mut velocity, size(step));
    }
    check("momentum", &weights, &case.end);
}

#[derive(Deserialize)]
struct LinearCase {
    x: Vec<f32>,
    weight: Vec<f32>,
    bias: Vec<f32>,
    g: Vec<f32>,
    y: Vec<f32>,
    dx: Vec<f32>,
    dweight: Vec<f32>,
    dbias: Vec<f32>,
    inputs: usize,
    outputs: usize,
}

#[test]
fn products_with_weights() {
    let case: LinearCase = read("linear");
    let (inputs, outputs) = (case.inputs, case.outputs);
    let (x, weight, g) =
        (Matrix::rows(&case.x, inputs), Matrix::rows(&case.weight, inputs), Matrix::rows(&case.g, outputs));
    let mut y = vec![0.0; case.y.len()];
    multiply(&mut y, Onto::Replace, x, weight.transposed(), Threads::ONE);
    add_bias(&mut y, &case.bias);
    check("linear", &y, &case.y);
    let mut dx = vec![0.0; case.x.len()];
    multiply(&mut dx, Onto::Replace, g, weight, Threads::ONE);
    check("linear", &dx, &case.dx);
    // Gradients of weights are added to what is there.
    let (mut dweight, mut dbias) = (vec![1.0; case.weight.len()], vec![1.0; outputs]);
    multiply(&mut dweight, Onto::Add, g.transposed(), x, Threads::ONE);
    bias_gradient(&case.g, &mut dbias);
    let more = |x: &[f32]| -> Vec<f32> { x.iter().map(|x| x + 1.0).collect() };
    check("linear", &dweight, &more(&case.dweight));
    check("linear", &dbias, &more(&case.dbias));
}

#[derive(Deserialize)]
struct EmbeddingCase {
    table: Vec<f32>,
    entries: Vec<u32>,
    g: Vec<f32>,
    y: Vec<f32>,
    dtable: Vec<f32>,
    width: usize,
}

#[test]
fn look_ups() {
    let case: EmbeddingCase = read("embedding");
    let rows = Rows { first: 0, width: case.width };
    let (mut y, mut dtable) = (vec![0.0; case.y.len()], vec![0.0; case.table.len()]);
    rows.look_up(&case.table, &case.entries, &mut y);
    rows.add(&mut dtable, &case.entries, &case.g);
    check("embedding", &y, &case.y);
    check("embedding", &dtable, &case.dtable);
}

#[derive(Deserialize)]
struct RotaryCase {
    x: Vec<f32>,
    g: Vec<f32>,
    y: Vec<f32>,
    dx: Vec<f32>,
    heads: usize,
    d: usize,
}

#[test]
fn rotary_positions() {
    let case: RotaryCase = read("rotary");
    let row = case.heads * case.d;
    let heads = Heads { row, first: 0, count: case.heads, width: case.d };
    let angles = Rotary::<f32>::new(case.d, 10_000.0, 0..case.x.len() / row);
    let turned = |from: &[f32], turn| {
        let mut x = from.to_vec();
        angles.turn(&mut x, heads, |row| row, turn, Threads::ONE);
        x
    };
    check("rotary", &turned(&case.x, Turn::There), &case.y);
    check("rotary", &turned(&case.g, Turn::Back), &case.dx);
}
