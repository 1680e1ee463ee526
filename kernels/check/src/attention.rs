//! Attention of packed rows: queries, keys and values of a token side by side.

use crate::bench::{Array, Bench, tolerance};
use trainwright_kernels::cuda::attention::{Attention, Join, Pass};
use trainwright_kernels::cuda::dropout::Drops;
use trainwright_kernels::cuda::{DeviceError, Number};
use trainwright_kernels::dropout::Dropout;

/// A case. The first query is `offset` positions behind the first key.
#[derive(Debug, Clone, Copy)]
struct Case {
    batch: usize,
    heads: usize,
    kv_heads: usize,
    queries: usize,
    keys: usize,
    head_dim: usize,
    value_head_dim: usize,
    causal: bool,
    offset: i32,
    /// Dropout of the probabilities.
    drops: Option<Dropout>,
}

/// The first sequence, head, query and key of the part that is here.
const FIRST: [usize; 4] = [3, 5, 7, 2];

pub(crate) fn narrow(bench: &mut Bench) -> Result<(), DeviceError> {
    let shape = Case {
        batch: 2,
        heads: 4,
        kv_heads: 2,
        queries: 11,
        keys: 11,
        head_dim: 40,
        value_head_dim: 24,
        causal: true,
        offset: 0,
        drops: None,
    };
    for number in Number::ALL {
        check(bench, shape, number)?;
        check(bench, Case { drops: Some(Dropout { rate: 0.3, key: 11 }), ..shape }, number)?;
        check(bench, Case { kv_heads: 4, keys: 17, causal: false, ..shape }, number)?;
    }
    // Shapes that the library supports too.
    let even = Case { value_head_dim: 40, queries: 27, keys: 27, ..shape };
    check(bench, even, Number::Bf16)?;
    check(bench, Case { keys: 50, causal: false, ..even }, Number::Bf16)
}

pub(crate) fn tiles(bench: &mut Bench) -> Result<(), DeviceError> {
    // More than one tile of both, with a rest; then queries of a later part of the sequence, as ring attention has them.
    let shape = Case {
        batch: 2,
        heads: 2,
        kv_heads: 1,
        queries: 87,
        keys: 87,
        head_dim: 64,
        value_head_dim: 64,
        causal: true,
        offset: 0,
        drops: None,
    };
    check(bench, shape, Number::Bf16)?;
    let wide = Case { batch: 1, head_dim: 128, value_head_dim: 128, ..shape };
    check(bench, wide, Number::Bf16)?;
    check(bench, Case { queries: 40, keys: 100, offset: 60, ..wide }, Number::Bf16)?;
    // The first queries see no key at all.
    check(bench, Case { batch: 1, queries: 100, keys: 40, offset: -70, ..shape }, Number::Bf16)?;
    // The last keys are seen by no query.
    check(bench, Case { batch: 1, queries: 140, keys: 200, offset: -100, ..shape }, Number::Bf16)?;
    check(bench, Case { batch: 1, queries: 33, keys: 130, causal: false, ..shape }, Number::Bf16)
}

/// Joined outputs over two sets of keys, weighted by their sums of exponentials.
pub(crate) fn join(bench: &mut Bench) -> Result<(), DeviceError> {
    // More columns than lanes.
    let (batch, heads, queries, width) = (2usize, 3usize, 7usize, 40usize);
    let (tokens, row) = (queries * batch, heads * width);
    for number in Number::ALL {
        let (first, second) = (bench.random(number, tokens * row)?, bench.random(number, tokens * row)?);
        let logarithms = bench.random(Number::F32, batch * heads * queries)?;
        let others = bench.random(Number::F32, batch * heads * queries)?;
        let sums: Vec<[f64; 2]> =
            logarithms.values.iter().zip(&others.values).map(|(one, two)| [one.exp(), two.exp()]).collect();
        let outputs = (0..tokens * row).map(|at| {
            let (token, head) = (at / row, at % row / width);
            let [one, two] = sums[(token % batch * heads + head) * queries + token / batch];
            (first.values[at] * one + second.values[at] * two) / (one + two)
        });
        let outputs: Vec<f64> = outputs.collect();
        let joined: Vec<f64> = sums.iter().map(|[one, two]| (one + two).ln()).collect();
        let join = Join {
            o: first.at,
            logarithms: logarithms.at,
            other: second.at,
            other_logarithms: others.at,
            o_row: row as i64,
            batch: batch as i32,
            heads: heads as i32,
            queries: queries as i32,
            value_head_dim: width as i32,
        };
        let launch = join.launch(number);
        bench.run(&launch)?;
        bench.compare(&launch.kernel, "outputs", &first, &outputs)?;
        bench.compare(&launch.kernel, "L", &logarithms, &joined)?;
    }
    Ok(())
}

/// The expected outputs, L, and the three gradients.
struct Expected {
    o: Vec<f64>,
    logarithms: Vec<f64>,
    q_gradient: Vec<f64>,
    k_gradient: Vec<f64>,
    v_gradient: Vec<f64>,
}

impl Case {
    /// Of three separate arrays, each token's heads side by side.
    fn expected(&self, [q, k, v, o_gradient]: [&[f64]; 4]) -> Expected {
        let Case { batch, heads, kv_heads, queries, keys, head_dim: d, value_head_dim: e, .. } = *self;
        let scale = 1.0 / (d as f64).sqrt();
        let mut made = Expected {
            o: vec![0.0; queries * batch * heads * e],
            logarithms: vec![0.0; batch * heads * queries],
            q_gradient: vec![0.0; q.len()],
            k_gradient: vec![0.0; k.len()],
            v_gradient: vec![0.0; v.len()],
        };
        for sequence in 0..batch {
            for head in 0..heads {
                let kv_head = head / (heads / kv_heads);
                for query in 0..queries {
                    let q_at = ((query * batch + sequence) * heads + head) * d;
                    let o_at = ((query * batch + sequence) * heads + head) * e;
                    let k_at = |key: usize| ((key * batch + sequence) * kv_heads + kv_head) * d;
                    let v_at = |key: usize| ((key * batch + sequence) * kv_heads + kv_head) * e;
                    let seen = if self.causal {
                        (query as i32 + self.offset + 1).clamp(0, keys as i32) as usize
                    } else {
                        keys
                    };
                    let scores: Vec<f64> = (0..seen)
                        .map(|key| scale * (0..d).map(|at| q[q_at + at] * k[k_at(key) + at]).sum::<f64>())
                        .collect();
                    let sum: f64 = scores.iter().map(|score| score.exp()).sum();
                    // The kernels' mark for a query that sees nothing.
                    made.logarithms[(sequence * heads + head) * queries + query] =
                        if seen == 0 { -f64::from(f32::MAX) } else { sum.ln() };
                    let p: Vec<f64> = scores.iter().map(|score| score.exp() / sum).collect();
                    let place = [FIRST[0] + sequence, FIRST[1] + head, FIRST[2] + query];
                    let mask = self.drops.map(|drops| drops.row(&place));
                    let kept = |key: usize| mask.map_or(1.0, |mask| mask.factor(FIRST[3] + key));
                    for key in 0..seen {
                        for at in 0..e {
                            made.o[o_at + at] += p[key] * kept(key) * v[v_at(key) + at];
                            made.v_gradient[v_at(key) + at] += p[key] * kept(key) * o_gradient[o_at + at];
                        }
                    }
                    let dots: f64 = (0..e).map(|at| made.o[o_at + at] * o_gradient[o_at + at]).sum();
                    for key in 0..seen {
                        let product: f64 = (0..e).map(|at| o_gradient[o_at + at] * v[v_at(key) + at]).sum();
                        let s = p[key] * (product * kept(key) - dots) * scale;
                        for at in 0..d {
                            made.q_gradient[q_at + at] += s * k[k_at(key) + at];
                            made.k_gradient[k_at(key) + at] += s * q[q_at + at];
                        }
                    }
                }
            }
        }
        made
    }
}

fn check(bench: &mut Bench, shape: Case, number: Number) -> Result<(), DeviceError> {
    let Case { batch, heads, kv_heads, queries, keys, head_dim: d, value_head_dim: e, .. } = shape;
    // With as many keys as queries they are packed in rows, as in a model; else they are separate arrays.
    let q = bench.random(number, queries * batch * heads * d)?;
    let k = bench.random(number, keys * batch * kv_heads * d)?;
    let v = bench.random(number, keys * batch * kv_heads * e)?;
    let o_gradient = bench.random(number, queries * batch * heads * e)?;
    let expected = shape.expected([&q.values, &k.values, &v.values, &o_gradient.values]);
    let packed = queries == keys;
    let widths = [heads * d, kv_heads * d, kv_heads * e];
    let row: usize = widths.iter().sum();
    let joined = |parts: [&[f64]; 3]| -> Vec<f64> {
        (0..queries * batch)
            .flat_map(|token| {
                (0..3).flat_map(move |part| &parts[part][token * widths[part]..(token + 1) * widths[part]])
            })
            .copied()
            .collect()
    };

    let blank_q = vec![f64::NAN; q.values.len()];
    let blank_k = vec![f64::NAN; k.values.len()];
    let blank_v = vec![f64::NAN; v.values.len()];
    let mut attention = Attention {
        q: q.at,
        k: k.at,
        v: v.at,
        o_gradient: o_gradient.at,
        q_row: (heads * d) as i64,
        k_row: (kv_heads * d) as i64,
        v_row: (kv_heads * e) as i64,
        o_row: (heads * e) as i64,
        batch: batch as i32,
        heads: heads as i32,
        kv_heads: kv_heads as i32,
        queries: queries as i32,
        keys: keys as i32,
        head_dim: d as i32,
        value_head_dim: e as i32,
        causal: i32::from(shape.causal),
        offset: shape.offset,
        scale: 1.0 / (d as f32).sqrt(),
        drops: shape.drops.map(|drops| Drops::of(&drops, FIRST)).unwrap_or_default(),
        ..Attention::default()
    };
    if packed {
        let rows = bench.array(number, &joined([&q.values, &k.values, &v.values]))?;
        (attention.q_row, attention.k_row, attention.v_row) = (row as i64, row as i64, row as i64);
        attention.q = rows.at;
        attention.k = rows.at.after(widths[0] * number.size());
        attention.v = rows.at.after((widths[0] + widths[1]) * number.size());
    }

    // Probabilities are rounded to bf16 before the product with the values.
    let tolerance = if number == Number::Bf16 { 1e-2 } else { tolerance(number) };
    let case = format!(
        "{queries} queries, {keys} keys, {heads}/{kv_heads} heads of {d}{}",
        match (shape.causal, shape.drops) {
            (_, Some(_)) => ", dropping",
            (true, None) => ", causal",
            (false, None) => "",
        }
    );
    for by in implementations(bench, &attention, number, Pass::Forward) {
        let o = bench.blank(number, expected.o.len())?;
        let logarithms = bench.blank(Number::F32, expected.logarithms.len())?;
        (attention.o, attention.logarithms) = (o.at, logarithms.at);
        let [.., kernel] = run(bench, &attention, number, Pass::Forward, by)?;
        bench.compare_within(&kernel, &case, &o, &expected.o, tolerance)?;
        let seen: Vec<f64> = expected.logarithms.clone();
        bench.compare_within(&kernel, &format!("{case}: L"), &logarithms, &seen, 2e-5)?;
    }

    let (o, logarithms) =
        (bench.array(number, &expected.o)?, bench.array(Number::F32, &expected.logarithms)?);
    let dots = bench.blank(Number::F32, expected.logarithms.len())?;
    (attention.o, attention.logarithms, attention.dots) = (o.at, logarithms.at, dots.at);
    let passes = [Pass::Backward, Pass::DeterministicBackward].map(|pass| {
        let implementations_of = implementations(bench, &attention, number, pass);
        // Our versions are the same in both passes.
        implementations_of
            .into_iter()
            .filter(move |by| pass == Pass::Backward || matches!(by, Implementation::Library(_)))
            .map(move |by| (pass, by))
    });
    for (pass, by) in passes.into_iter().flatten() {
        let gradients: Vec<(Array, Vec<f64>)> = if packed {
            let rows = bench.array(number, &joined([&blank_q, &blank_k, &blank_v]))?;
            attention.q_gradient = rows.at;
            attention.k_gradient = rows.at.after(widths[0] * number.size());
            attention.v_gradient = rows.at.after((widths[0] + widths[1]) * number.size());
            vec![(rows, joined([&expected.q_gradient, &expected.k_gradient, &expected.v_gradient]))]
        } else {
            let made = [
                bench.array(number, &blank_q)?,
                bench.array(number, &blank_k)?,
                bench.array(number, &blank_v)?,
            ];
            [attention.q_gradient, attention.k_gradient, attention.v_gradient] =
                made.each_ref().map(|made| made.at);
            let expected = [&expected.q_gradient, &expected.k_gradient, &expected.v_gradient];
            made.into_iter().zip(expected).map(|(made, expected)| (made, expected.clone())).collect()
        };
        let kernels = run(bench, &attention, number, pass, by)?;
        for (index, (made, expected)) in gradients.iter().enumerate() {
            let kernel = &kernels[2 - index.min(1)];
            bench.compare_within(kernel, &format!("{case}: gradient {index}"), made, expected, tolerance)?;
        }
    }
    bench.device.clear()
}

/// What computes an attention.
#[derive(Debug, Clone, Copy)]
enum Implementation {
    /// Our version of that number.
    Kernel(usize),
    /// The library, with its workspace in bytes.
    Library(usize),
}

fn implementations(
    bench: &mut Bench,
    attention: &Attention,
    number: Number,
    pass: Pass,
) -> Vec<Implementation> {
    let versions = match pass {
        Pass::Forward => attention.forward(number).len(),
        Pass::Backward | Pass::DeterministicBackward => attention.backward(number).len(),
    };
    let fused = if number == Number::Bf16 { bench.device.fuses(attention, pass).ok() } else { None };
    (0..versions).map(Implementation::Kernel).chain(fused.map(Implementation::Library)).collect()
}

/// Runs it. The names of the kernels; with fewer than three the last one is repeated.
fn run(
    bench: &mut Bench,
    attention: &Attention,
    number: Number,
    pass: Pass,
    by: Implementation,
) -> Result<[String; 3], DeviceError> {
    let launches = match (by, pass) {
        (Implementation::Kernel(version), Pass::Forward) => {
            vec![attention.forward(number).swap_remove(version)]
        }
        (Implementation::Kernel(version), Pass::Backward | Pass::DeterministicBackward) => {
            attention.backward(number).swap_remove(version)
        }
        (Implementation::Library(bytes), _) => {
            let workspace = bench.device.allocate(bytes)?;
            bench.device.attend(attention, pass, workspace)?;
            let name = format!("{:?} by {}", pass, bench.device.fuser());
            return Ok([(); 3].map(|()| name.clone()));
        }
    };
    launches.iter().try_for_each(|launch| bench.run(launch))?;
    let last = launches.len() - 1;
    Ok([0, 1, 2].map(|index| launches[last.min(index)].kernel.clone()))
}
