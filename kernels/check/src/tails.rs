//! Tails of products by launches, against the definitions of the epilogues. `gpu-check` checks cublasLt's epilogues on a GPU.

use crate::bench::{Bench, tolerance};
use trainwright_kernels::cuda::reduce::ColumnSum;
use trainwright_kernels::cuda::tail::{Method, Tail, TailOperands};
use trainwright_kernels::cuda::{Compute, Operands, Product};
use trainwright_kernels::cuda::{DeviceError, Number};

/// GELU by tanh.
fn gelu(x: f64) -> f64 {
    0.5 * x * (1.0 + ((2.0 / std::f64::consts::PI).sqrt() * (x + 0.044715 * x.powi(3))).tanh())
}

/// Its slope, by differences.
fn slope(x: f64) -> f64 {
    (gelu(x + 1e-5) - gelu(x - 1e-5)) / 2e-5
}

pub(crate) fn tails(bench: &mut Bench) -> Result<(), DeviceError> {
    for number in Number::ALL {
        for tail in Tail::ALL {
            one(bench, tail, number)?;
        }
    }
    Ok(())
}

fn one(bench: &mut Bench, tail: Tail, number: Number) -> Result<(), DeviceError> {
    // Products sum few terms, so that rounding before the tail does not matter. `BiasGradient` sums enough rows for several shares.
    let of_weight = tail == Tail::BiasGradient;
    let (rows, columns, inner) = if of_weight { (24usize, 8usize, 150usize) } else { (150, 24, 8) };
    let product = Product {
        rows,
        columns,
        inner,
        left_transposed: of_weight,
        right_transposed: !of_weight,
        inputs: number,
        output: if of_weight { Number::F32 } else { number },
        compute: Compute::Full,
        accumulate: of_weight,
        epilogue: tail.epilogue(),
    };
    let (left, right) = (bench.random(number, rows * inner)?, bench.random(number, inner * columns)?);
    let before = bench.random(product.output, rows * columns)?;
    let aux = bench.random(number, rows * columns)?;
    let makes_bias = matches!(tail, Tail::GeluBiasGradient | Tail::BiasGradient);
    let bias_length = if of_weight { rows } else { columns };
    let bias = bench.random(if makes_bias { Number::F32 } else { number }, bias_length)?;
    let l = |i: usize, j: usize| left.values[if of_weight { j * rows + i } else { i * inner + j }];
    let r = |i: usize, j: usize| right.values[if of_weight { i * columns + j } else { j * inner + i }];
    let (mut out, mut kept, mut to_bias) = (Vec::new(), aux.values.clone(), bias.values.clone());
    for (at, (i, j)) in (0..rows).flat_map(|i| (0..columns).map(move |j| (i, j))).enumerate() {
        let x: f64 = (0..inner).map(|k| l(i, k) * r(k, j)).sum();
        out.push(match tail {
            Tail::Bias => x + bias.values[j],
            Tail::GeluBias => {
                kept[at] = x + bias.values[j];
                gelu(kept[at])
            }
            Tail::GeluGradient | Tail::GeluBiasGradient => x * slope(aux.values[at]),
            Tail::BiasGradient => x + before.values[at],
        });
        if tail == Tail::GeluBiasGradient {
            to_bias[j] += out[at];
        }
    }
    if of_weight {
        (0..rows).for_each(|i| to_bias[i] += (0..inner).map(|k| l(i, k)).sum::<f64>());
    }
    let summed = if of_weight { [inner, rows] } else { [rows, columns] }.map(|size| size as i32);
    let shares = ColumnSum { rows: summed[0], width: summed[1], ..ColumnSum::default() }.shares(bench.gpu);
    let partial = bench.blank(Number::F32, (shares * summed[1]) as usize)?;
    let at = Operands { left: left.at, right: right.at, out: before.at, bias: bias.at, aux: aux.at };
    let at = TailOperands { product: at, partial: partial.at };
    for part in tail.version(Method::Launches, product, at, bench.gpu) {
        part.run(bench.device)?;
    }
    // The tail reads values that were rounded to the result's type.
    let tolerance = if number == Number::Bf16 { 1e-2 } else { tolerance(number) };
    let name = format!("{tail:?} by launches");
    bench.compare_within(&name, "result", &before, &out, tolerance)?;
    if tail == Tail::GeluBias {
        bench.compare_within(&name, "kept", &aux, &kept, tolerance)?;
    }
    if makes_bias {
        bench.compare_within(&name, "bias", &bias, &to_bias, tolerance)?;
    }
    bench.device.clear()
}
