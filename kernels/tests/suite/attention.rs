//! Attention against the formula with all scores, and its gradients.

use crate::common::{check_gradient, check_near, narrow, random, weighted};
use trainwright_kernels::Threads;
use trainwright_kernels::attention::{Attention, Documents, Kept, Mask, ScoreDropout, ScoreRules};
use trainwright_kernels::dropout::Dropout;

/// softmax(Q Kᵀ/√d) V, score by score.
fn plain(attention: &Attention, qkv: &[f64]) -> Vec<f64> {
    plain_with(attention, ScoreRules::default(), qkv)
}

/// `plain` with scores hidden and probabilities dropped.
fn plain_with(attention: &Attention, rules: ScoreRules, qkv: &[f64]) -> Vec<f64> {
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
            let [from, to] = rules.documents.map_or([0, positions], |of| {
                of.bounds[sequence * positions + position].map(|bound| bound as usize)
            });
            let is_seen = |key: usize| key < seen && (from..to).contains(&key);
            let exponential = |key: usize| if is_seen(key) { score(key).exp() } else { 0.0 };
            let exponentials: Vec<f64> = (0..seen).map(exponential).collect();
            let total: f64 = exponentials.iter().sum();
            for column in 0..e {
                let value = |key: usize| row(key)[queries + keys + kv_head * e + column];
                let m = |key: usize| {
                    let of = |drops: &ScoreDropout| {
                        let [first_sequence, first_head, first_query, first_key] = drops.first;
                        let place = [first_sequence + sequence, first_head + head, first_query + position];
                        drops.dropout.row(&place).factor(first_key + key)
                    };
                    rules.dropout.as_ref().map_or(1.0, of)
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
    let made = attention.forward(ScoreRules::default(), &qkv, Threads::ONE);
    let error = made.heads.iter().zip(&expected).map(|(a, b)| (a - b).abs()).fold(0.0, f64::max);
    assert!(error < 1e-12, "{name}: {error}");

    let gradient = random(8, expected.len());
    let kept = Kept { heads: &made.heads, logarithms: &made.logarithms, gradient: &gradient };
    let gradients = attention.backward(ScoreRules::default(), &qkv, kept, Threads::ONE);
    if differences {
        check_gradient(&name, &qkv, &gradients, |qkv| weighted(&plain(&attention, qkv), &gradient));
    }
    let (qkv32, gradient32) = (narrow(&qkv), narrow(&gradient));
    let made32 = attention.forward(ScoreRules::default(), &qkv32, Threads::new(2));
    check_near(&name, &made32.heads, &expected, 1e-5);
    let kept = Kept { heads: &made32.heads, logarithms: &made32.logarithms, gradient: &gradient32 };
    let backward = attention.backward(ScoreRules::default(), &qkv32, kept, Threads::new(2));
    check_near(&name, &backward, &gradients, 1e-5);
    assert_eq!(
        backward,
        attention.backward(ScoreRules::default(), &qkv32, kept, Threads::ONE),
        "{name}: threads change the result"
    );
}

#[test]
fn dropped_probabilities_are_those_of_the_mask_forward_and_backward() {
    let attention =
        Attention { batch: 2, heads: 4, kv_heads: 2, head_dim: 3, value_head_dim: 2, mask: Mask::Causal };
    let drops = ScoreDropout { dropout: Dropout { rate: 0.25, key: 11 }, first: [6, 4, 3, 2] };
    let qkv = random(7, 9 * attention.batch * attention.row());
    let expected = plain_with(&attention, drops.into(), &qkv);
    assert_ne!(expected, plain(&attention, &qkv));
    let made = attention.forward(drops.into(), &qkv, Threads::ONE);
    check_near("dropout forward", &narrow(&made.heads), &expected, 1e-5);
    let gradient = random(8, expected.len());
    let kept = Kept { heads: &made.heads, logarithms: &made.logarithms, gradient: &gradient };
    let gradients = attention.backward(drops.into(), &qkv, kept, Threads::ONE);
    let loss = |qkv: &[f64]| weighted(&plain_with(&attention, drops.into(), qkv), &gradient);
    check_gradient("dropout", &qkv, &gradients, loss);
    // More positions than a tile has.
    let long = random(9, 150 * attention.batch * attention.row());
    let made = attention.forward(drops.into(), &long, Threads::new(2));
    check_near("long", &narrow(&made.heads), &plain_with(&attention, drops.into(), &long), 1e-5);
}

/// Bounds of the documents of a sequence by their lengths.
fn bounds(lengths: &[u32]) -> Vec<[u32; 2]> {
    let mut first = 0;
    let of = |length: &u32| {
        let bounds = [first, first + length];
        first += length;
        vec![bounds; *length as usize]
    };
    lengths.iter().flat_map(of).collect()
}

/// Row by row, what each document of a packed sequence has alone; `lengths` are those of each sequence's documents.
fn check_documents(attention: Attention, lengths: &[&[u32]]) {
    let name = format!("{attention:?} {lengths:?}");
    let positions = lengths[0].iter().sum::<u32>() as usize;
    let bounds: Vec<[u32; 2]> = lengths.iter().flat_map(|lengths| bounds(lengths)).collect();
    let documents = Some(Documents { bounds: &bounds, positions, first: [0, 0] });
    let rules = ScoreRules { documents, ..ScoreRules::default() };
    let (row, output_row, batch) = (attention.row(), attention.output_row(), attention.batch);
    let qkv = random(7, positions * batch * row);
    let gradient = random(8, positions * batch * output_row);
    let made = attention.forward(rules, &qkv, Threads::new(2));
    let expected = plain_with(&attention, rules, &qkv);
    check_near(&name, &narrow(&made.heads), &expected, 1e-6);
    let kept = Kept { heads: &made.heads, logarithms: &made.logarithms, gradient: &gradient };
    let gradients = attention.backward(rules, &qkv, kept, Threads::new(2));
    // Each document alone is a batch of one sequence.
    let alone = Attention { batch: 1, ..attention };
    for (sequence, lengths) in lengths.iter().enumerate() {
        let mut first = 0;
        for length in *lengths {
            let rows: Vec<usize> =
                (first..first + *length as usize).map(|position| position * batch + sequence).collect();
            first += *length as usize;
            let of = |all: &[f64], width: usize| -> Vec<f64> {
                rows.iter().flat_map(|at| all[at * width..(at + 1) * width].to_vec()).collect()
            };
            let (qkv, gradient) = (of(&qkv, row), of(&gradient, output_row));
            let output = alone.forward(ScoreRules::default(), &qkv, Threads::ONE);
            check_near(&name, &narrow(&of(&made.heads, output_row)), &output.heads, 1e-6);
            let kept = Kept { heads: &output.heads, logarithms: &output.logarithms, gradient: &gradient };
            let expected = alone.backward(ScoreRules::default(), &qkv, kept, Threads::ONE);
            check_near(&name, &narrow(&of(&gradients, row)), &expected, 1e-6);
        }
    }
}

#[test]
fn documents_attend_as_if_they_were_alone() {
    for mask in [Mask::Causal, Mask::Full] {
        let small = Attention { batch: 2, heads: 4, kv_heads: 2, head_dim: 3, value_head_dim: 2, mask };
        check_documents(small, &[&[1, 4, 2, 1], &[8]]);
        check_documents(small, &[&[3, 5], &[7, 1]]);
        // Documents that begin and end inside tiles of queries and keys, and at their borders.
        let large = Attention { head_dim: 8, value_head_dim: 8, ..small };
        check_documents(large, &[&[128, 64, 100, 20], &[10, 1, 250, 51]]);
    }
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
    let made = attention.forward(ScoreRules::default(), &qkv, Threads::ONE);
    let kept = Kept { heads: &made.heads, logarithms: &made.logarithms, gradient: &gradient };
    let gradients = attention.backward(ScoreRules::default(), &qkv, kept, Threads::ONE);
    let chosen: Vec<usize> = (0..qkv.len()).step_by(41).collect();
    let chosen_of = |values: &[f64]| -> Vec<f64> { chosen.iter().map(|index| values[*index]).collect() };
    check_gradient("tiles", &chosen_of(&qkv), &chosen_of(&gradients), |moved| {
        let mut qkv = qkv.clone();
        chosen.iter().zip(moved).for_each(|(index, moved)| qkv[*index] = *moved);
        weighted(&plain(&attention, &qkv), &gradient)
    });
}
