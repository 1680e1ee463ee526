//! Backward of the kernels around the products.

use crate::common::{check_gradient, check_near, narrow, random, weighted};
use trainwright_kernels::activation::{Activation, FeedForward};
use trainwright_kernels::cross_entropy::{Columns, IGNORED, LossTerms, Statistics};
use trainwright_kernels::elementwise::{add_bias, bias_gradient};
use trainwright_kernels::embedding::Rows;
use trainwright_kernels::norm::{Norm, sum_of_squares};
use trainwright_kernels::optimizer::{AdamW, Momentum, StepSize, descend};
use trainwright_kernels::rotary::{Heads, Rotary, Turn};
use trainwright_kernels::{Real, Threads};

const ALONE: Threads = Threads::ONE;

#[test]
fn norms() {
    for (seed, (centred, width)) in [(true, 5), (false, 5), (true, 33), (false, 33)].into_iter().enumerate() {
        let norm = Norm { centred, width, epsilon: 1e-5 };
        let seed = seed as u64;
        let (x, gain, bias) = (random(seed, 3 * width), random(seed + 10, width), random(seed + 20, width));
        let weights = random(seed + 30, 3 * width);
        let forward = |x: &[f64], gain: &[f64], bias: &[f64]| {
            let mut out = vec![0.0; x.len()];
            norm.forward(x, Some(gain), Some(bias), &mut out, ALONE);
            out
        };
        let loss = |x: &[f64], gain: &[f64], bias: &[f64]| weighted(&forward(x, gain, bias), &weights);
        let mut gradient = vec![0.0; x.len()];
        norm.backward(&x, Some(&gain), &weights, &mut gradient, ALONE);
        let (mut gain_gradient, mut bias_gradient) = (vec![0.0; width], vec![0.0; width]);
        norm.vector_gradients(&x, &weights, Some(&mut gain_gradient), Some(&mut bias_gradient));
        check_gradient("norm", &x, &gradient, |x| loss(x, &gain, &bias));
        check_gradient("gain", &gain, &gain_gradient, |gain| loss(&x, gain, &bias));
        check_gradient("bias", &bias, &bias_gradient, |bias| loss(&x, &gain, bias));

        let [x32, gain32, bias32, weights32] = [&x, &gain, &bias, &weights].map(|x| narrow(x));
        let (mut out, mut back) = (vec![0.0; x.len()], vec![0.0; x.len()]);
        norm.forward(&x32, Some(&gain32), Some(&bias32), &mut out, Threads::new(2));
        norm.backward(&x32, Some(&gain32), &weights32, &mut back, Threads::new(2));
        check_near("norm", &out, &forward(&x, &gain, &bias), 1e-5);
        check_near("norm gradient", &back, &gradient, 1e-5);
    }
}

#[test]
fn activations() {
    let all = [Activation::Gelu, Activation::Silu, Activation::Relu, Activation::SquaredRelu];
    for (activation, gated) in
        all.into_iter().flat_map(|activation| [(activation, false), (activation, true)])
    {
        let layer = FeedForward { activation, gated, width: 19 };
        let (x, weights) = (random(1, 3 * layer.input_width()), random(2, 3 * 19));
        let x: Vec<f64> = x.iter().map(|x| 3.0 * x).collect();
        let forward = |x: &[f64]| {
            let mut out = vec![0.0; 3 * 19];
            layer.forward(x, &mut out, ALONE);
            out
        };
        let mut gradient = vec![0.0; x.len()];
        layer.backward(&x, &weights, &mut gradient, ALONE);
        check_gradient(&format!("{layer:?}"), &x, &gradient, |x| weighted(&forward(x), &weights));

        let (x32, weights32) = (narrow(&x), narrow(&weights));
        let (mut out, mut back) = (vec![0.0; 3 * 19], vec![0.0; x.len()]);
        layer.forward(&x32, &mut out, Threads::new(2));
        layer.backward(&x32, &weights32, &mut back, Threads::new(2));
        check_near("activation", &out, &forward(&x), 2e-6);
        check_near("activation gradient", &back, &gradient, 2e-6);
    }
}

#[test]
fn rotations_turn_back() {
    // Row: a head that does not turn, two that do (4 of 6 columns), one more that does not.
    let heads = Heads { row: 24, first: 6, count: 2, width: 6 };
    let rotary = Rotary::<f64>::new(4, 10_000.0, 3..7);
    let (x, weights) = (random(1, 8 * 24), random(2, 8 * 24));
    let position = |row| 3 + row / 2;
    let turned = |x: &[f64], turn| {
        let mut x = x.to_vec();
        rotary.turn(&mut x, heads, position, turn, ALONE);
        x
    };
    check_gradient("rotary", &x, &turned(&weights, Turn::Back), |x| {
        weighted(&turned(x, Turn::There), &weights)
    });
    let back = turned(&turned(&x, Turn::There), Turn::Back);
    assert!(back.iter().zip(&x).all(|(back, x)| (back - x).abs() < 1e-14));
    // Position 3, first pair: 3 radians; columns 6 and 8.
    let (cosine, sine) = (3f64.cos(), 3f64.sin());
    assert!((turned(&x, Turn::There)[6] - (x[6] * cosine - x[8] * sine)).abs() < 1e-15);
    assert_eq!(turned(&x, Turn::There)[..6], x[..6]);
}

#[test]
fn embeddings_and_biases() {
    // Entries 2, 3, 4 of a table are here; 7 is not.
    let rows = Rows { first: 2, width: 3 };
    let table = random(1, 9);
    let mut out = vec![9.0; 12];
    rows.look_up(&table, &[3, 7, 2, 3], &mut out);
    assert_eq!(out, [&table[3..6], &[0.0; 3], &table[..3], &table[3..6]].concat());
    let gradient = random(2, 12);
    let mut summed = vec![0.0; 9];
    rows.add(&mut summed, &[3, 7, 2, 3], &gradient);
    let expected: Vec<f64> = (0..3).map(|column| gradient[column] + gradient[9 + column]).collect();
    assert_eq!(summed, [&gradient[6..9], &expected, &[0.0; 3]].concat());

    let mut x = vec![1.0, 2.0, 3.0, 4.0];
    add_bias(&mut x, &[10.0, 20.0]);
    assert_eq!(x, [11.0, 22.0, 13.0, 24.0]);
    let mut bias = vec![1.0, 1.0];
    bias_gradient(&x, &mut bias);
    assert_eq!(bias, [25.0, 47.0]);
}

/// Puts together what the holders of two parts of the columns found.
fn joined<T: Real>(parts: [&[Statistics<T>]; 2]) -> Vec<Statistics<T>> {
    let pairs = parts[0].iter().zip(parts[1]);
    let join = |(a, b): (&Statistics<T>, &Statistics<T>)| {
        let maximum = a.maximum.larger(b.maximum);
        let sum = a.sum_below(maximum) + b.sum_below(maximum);
        Statistics { maximum, sum, target: a.target + b.target }
    };
    pairs.map(join).collect()
}

#[test]
fn cross_entropy_in_parts() {
    let vocabulary = 7;
    check_loss(LossTerms::default());
    check_loss(LossTerms { label_smoothing: 0.1, vocabulary, ..LossTerms::default() });
    check_loss(LossTerms { z_loss: 0.3, ..LossTerms::default() });
    check_loss(LossTerms { label_smoothing: 0.4, z_loss: 0.02, vocabulary });
}

fn check_loss(terms: LossTerms) {
    // 7 entries, of which one holder has 5 and the other 2 and three columns of padding.
    let parts = [Columns { first: 0, width: 5, valid: 5 }, Columns { first: 5, width: 5, valid: 2 }];
    // The last target does not count.
    let logits: Vec<f64> = random(1, 28).iter().map(|z| 4.0 * z).collect();
    let targets = [6, 0, 4, IGNORED];
    let split = |logits: &[f64]| {
        let columns = |range: std::ops::Range<usize>, padding: usize| -> Vec<f64> {
            let row = |row: &[f64]| [&row[range.clone()], &vec![50.0; padding]].concat();
            logits.chunks(7).flat_map(row).collect()
        };
        [columns(0..5, 0), columns(5..7, 3)]
    };
    let of_all = |parts_logits: &[Vec<f64>; 2]| {
        let [a, b] = [0, 1].map(|part| parts[part].statistics(&parts_logits[part], &targets, &terms, ALONE));
        joined([&a, &b])
    };
    let of_token = |token: &Statistics<f64>| token.loss() + terms.z_loss * token.log_sum().powi(2);
    let loss = |logits: &[f64]| of_all(&split(logits))[..3].iter().map(of_token).sum::<f64>() * 0.25;
    // −Σ qⱼ ln pⱼ + c (ln Z)².
    let exact = |row: &[f64], target: usize| {
        let log_sum = row.iter().map(|z| z.exp()).sum::<f64>().ln();
        let q = |entry: usize| {
            let uniform = terms.label_smoothing / 7.0;
            if entry == target { 1.0 - terms.label_smoothing + uniform } else { uniform }
        };
        let cross_entropy: f64 = (0..7).map(|entry| q(entry) * (log_sum - row[entry])).sum();
        cross_entropy + terms.z_loss * log_sum.powi(2)
    };
    let expected: f64 = (0..3).map(|row| exact(&logits[row * 7..][..7], targets[row] as usize)).sum();
    assert!((loss(&logits) - 0.25 * expected).abs() < 1e-12);

    let mut shards = split(&logits);
    let statistics = of_all(&shards);
    for (part, logits) in parts.iter().zip(&mut shards) {
        part.gradient(logits, (&targets, &statistics), &terms, 0.25, ALONE);
    }
    let rows = shards[0].chunks(5).zip(shards[1].chunks(5));
    let gradient: Vec<f64> = rows.flat_map(|(a, b)| [a, &b[..2]].concat()).collect();
    check_gradient("cross entropy", &logits, &gradient, loss);
    assert!(shards[1].chunks(5).all(|row| row[2..] == [0.0; 3]));
    assert_eq!(gradient[21..], [0.0; 7], "an ignored target has no gradient");

    let narrow32: Vec<Vec<f32>> = split(&logits).iter().map(|logits| narrow(logits)).collect();
    let [a, b] =
        [0, 1].map(|part| parts[part].statistics(&narrow32[part], &targets, &terms, Threads::new(2)));
    let of_token = |token: &Statistics<f32>| token.loss() + terms.z_loss * token.log_sum().powi(2);
    let loss32: f64 = joined([&a, &b])[..3].iter().map(of_token).sum();
    assert!((loss32 - expected).abs() < 1e-5);
}

#[test]
fn optimizers_take_the_steps_of_their_formulas() {
    let size = |step| StepSize { rate: 0.1, decay: 0.5, gradient_scale: 2.0, step };
    let (mut weights, mut first, mut second) = (vec![1.0f32; 20], vec![0.0; 20], vec![0.0; 20]);
    let adam = AdamW { beta1: 0.9, beta2: 0.99, epsilon: 0.0 };
    adam.update(&mut weights, &[3.0; 20], [&mut first, &mut second], size(1), Threads::ONE);
    // The first step of Adam is the sign of the gradient: 1 − 0.1 · 0.5 · 1 − 0.1.
    assert!(weights.iter().all(|weight| (weight - 0.85).abs() < 1e-6), "{weights:?}");
    assert!((first[19] - 0.6).abs() < 1e-6 && (second[19] - 0.36).abs() < 1e-6);

    let (mut weights, mut velocity) = (vec![1.0f32; 3], vec![1.0; 3]);
    Momentum { momentum: 0.5 }.update(&mut weights, &[3.0; 3], &mut velocity, size(1));
    // g = 6 + 0.5; v = 0.5 + 6.5 = 7; w = 1 − 0.7.
    assert!(weights.iter().all(|weight| (weight - 0.3).abs() < 1e-6) && velocity == [7.0; 3]);
    descend(&mut weights, &[1.0; 3], size(1));
    assert!(weights.iter().all(|weight| (weight - (0.3 - 0.1 * 2.15)).abs() < 1e-6));
    assert_eq!(sum_of_squares(&[2.0; 10_000], Threads::new(2)), 40_000.0);
}
