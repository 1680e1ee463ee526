//! Attention against the formula with all scores, and its gradients.

use crate::common::{check_gradient, check_near, narrow, random, weighted};
use trainwright_kernels::Threads;
use trainwright_kernels::attention::{Attention, Kept, Mask, ScoreDropout};
use trainwright_kernels::dropout::Dropout;

/// softmax(Q Kᵀ/√d) V, score by score.
fn plain(attention: &Attention, qkv: &[f64]) -> Vec<f64> {
    plain_dropping(attention, None, qkv)
}

/// `plain` with probabilities dropped out.
fn plain_dropping(attention: &Attention, drops: Option<&ScoreDropout>, qkv: &[f64]) -> Vec<f64> {
    let Attention { batch, heads, kv_heads, head_dim: d, value_head_dim: e, mask } = *attention;
    let positions = qkv.len() / attention.row() / batch;
    let [queries, keys, _] = attention.columns();
    let mut out = vec![0.0; positions * batch * heads * e];
    for (sequence, head) in (0..batch).flat_map(|sequence| (0..heads).map(move |head| (sequence, head))) {
        let kv_head = head / (heads / kv_heads);
        let row =
            |position: usize| &qkv[(position * batch + sequence) * attention.row()..][..attention.row()];
        for position in 0..positions {
            let query = &row(position)[head * d..][..d];
            let seen = if mask == Mask::Causal { position + 1 } else { positions };
            let score =
                |key: usize| weighted(query, &row(key)[queries + kv_head * d..][..d]) / (d as f64).sqrt();
            let exponentials: Vec<f64> = (0..seen).map(|key| score(key).exp()).collect();
            let total: f64 = exponentials.iter().sum();
            for column in 0..e {
                let value = |key: usize| row(key)[queries + keys + kv_head * e + column];
                let m = |key: usize| {
                    let of = |drops: &ScoreDropout| {
                        let [first_sequence, first_head, first_query, first_key] = drops.first;
                        let place = [first_sequence + sequence, first_head + head, first_query + position];
                        drops.dropout.row(&place).factor(first_key + key)
                    };
                    drops.map_or(1.0, of)
                };
                let sum: f64 = (0..seen).map(|key| m(key) * exponentials[key] * value(key)).sum();
                out[((position * batch + sequence) * heads + head) * e + column] = sum / total;
            }
        }
    }
    out
}

/// More positions than a tile has, except where gradients are checked by differences.
fn check(attention: Attention, positions: usize, differences: bool) {
    let name = format!("{attention:?} {positions}");
    let qkv: Vec<f64> =
        random(7, positions * attention.batch * attention.row()).iter().map(|x| 2.0 * x).collect();
    let expected = plain(&attention, &qkv);
    let made = attention.forward(None, &qkv, Threads::ONE);
    let error = made.heads.iter().zip(&expected).map(|(a, b)| (a - b).abs()).fold(0.0, f64::max);
    assert!(error < 1e-12, "{name}: {error}");

    let gradient = random(8, expected.len());
    let kept = Kept { heads: &made.heads, logarithms: &made.logarithms, gradient: &gradient };
    let gradients = attention.backward(None, &qkv, kept, Threads::ONE);
    if differences {
        check_gradient(&name, &qkv, &gradients, |qkv| weighted(&plain(&attention, qkv), &gradient));
    }
    let (qkv32, gradient32) = (narrow(&qkv), narrow(&gradient));
    let made32 = attention.forward(None, &qkv32, Threads::new(2));
    check_near(&name, &made32.heads, &expected, 1e-5);
    let kept = Kept { heads: &made32.heads, logarithms: &made32.logarithms, gradient: &gradient32 };
    let backward = attention.backward(None, &qkv32, kept, Threads::new(2));
    check_near(&name, &backward, &gradients, 1e-5);
    assert_eq!(
        backward,
        attention.backward(None, &qkv32, kept, Threads::ONE),
        "{name}: threads change the result"
    );
}

#[test]
fn dropped_probabilities_are_those_of_the_mask_forward_and_backward() {
    let attention =
        Attention { batch: 2, heads: 4, kv_heads: 2, head_dim: 3, value_head_dim: 2, mask: Mask::Causal };
    let drops = ScoreDropout { dropout: Dropout { rate: 0.25, key: 11 }, first: [6, 4, 3, 2] };
    let qkv = random(7, 9 * attention.batch * attention.row());
    let expected = plain_dropping(&attention, Some(&drops), &qkv);
    assert_ne!(expected, plain(&attention, &qkv));
    let made = attention.forward(Some(drops), &qkv, Threads::ONE);
    check_near("dropout forward", &narrow(&made.heads), &expected, 1e-5);
    let gradient = random(8, expected.len());
    let kept = Kept { heads: &made.heads, logarithms: &made.logarithms, gradient: &gradient };
    let gradients = attention.backward(Some(drops), &qkv, kept, Threads::ONE);
    let loss = |qkv: &[f64]| weighted(&plain_dropping(&attention, Some(&drops), qkv), &gradient);
    check_gradient("dropout", &qkv, &gradients, loss);
    // More positions than a tile has.
    let long = random(9, 150 * attention.batch * attention.row());
    let made = attention.forward(Some(drops), &long, Threads::new(2));
    check_near("long", &narrow(&made.heads), &plain_dropping(&attention, Some(&drops), &long), 1e-5);
}

#[test]
fn attention_is_its_formula() {
    for mask in [Mask::Causal, Mask::Full] {
        let small = Attention { batch: 2, heads: 4, kv_heads: 2, head_dim: 3, value_head_dim: 2, mask };
        check(small, 5, true);
        check(Attention { kv_heads: 4, value_head_dim: 3, ..small }, 4, true);
        check(Attention { kv_heads: 1, batch: 1, ..small }, 1, true);
        let large = Attention { batch: 1, heads: 2, kv_heads: 1, head_dim: 16, value_head_dim: 16, mask };
        check(large, 300, false);
        check(large, 129, false);
    }
}

#[test]
fn gradients_across_tiles_are_those_of_differences() {
    // 70 queries are two tiles, 140 keys too; every 41st number is moved.
    let attention =
        Attention { batch: 1, heads: 1, kv_heads: 1, head_dim: 2, value_head_dim: 2, mask: Mask::Causal };
    let qkv = random(3, 140 * 6);
    let gradient = random(4, 140 * 2);
    let made = attention.forward(None, &qkv, Threads::ONE);
    let kept = Kept { heads: &made.heads, logarithms: &made.logarithms, gradient: &gradient };
    let gradients = attention.backward(None, &qkv, kept, Threads::ONE);
    let chosen: Vec<usize> = (0..qkv.len()).step_by(41).collect();
    let chosen_of = |values: &[f64]| -> Vec<f64> { chosen.iter().map(|index| values[*index]).collect() };
    check_gradient("tiles", &chosen_of(&qkv), &chosen_of(&gradients), |moved| {
        let mut qkv = qkv.clone();
        chosen.iter().zip(moved).for_each(|(index, moved)| qkv[*index] = *moved);
        weighted(&plain(&attention, &qkv), &gradient)
    });
}
