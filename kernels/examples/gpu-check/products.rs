//! Matrix products: every epilogue against plain loops, and their rates over a grid of shapes.

use super::record::{Note, Use, failed};
use super::timing::{Amount, Rows, time};
use trainwright_kernels::cuda::driver::Gpu;
use trainwright_kernels::cuda::measure::Bench;
use trainwright_kernels::cuda::tail::{Method, Tail, TailOperands};
use trainwright_kernels::cuda::{Address, Device, DeviceError, Number};
use trainwright_kernels::cuda::{Compute, Epilogue, Operands, Product};
use trainwright_kernels_check::Finding;

const BF16: Number = Number::Bf16;

/// A product of bf16 as layers have it: rows are tokens, weights lie as columns × inner.
fn forward(rows: usize, columns: usize, inner: usize, epilogue: Epilogue) -> Product {
    Product {
        rows,
        columns,
        inner,
        left_transposed: false,
        right_transposed: true,
        inputs: BF16,
        output: BF16,
        compute: Compute::Full,
        accumulate: false,
        epilogue,
    }
}

/// The products of a layer's three passes.
fn passes(tokens: usize, columns: usize, inner: usize) -> [Product; 3] {
    let forward = forward(tokens, columns, inner, Epilogue::Bias);
    let input_gradient = Product {
        columns: inner,
        inner: columns,
        right_transposed: false,
        epilogue: Epilogue::None,
        ..forward
    };
    let weight_gradient = Product {
        rows: columns,
        columns: inner,
        inner: tokens,
        left_transposed: true,
        right_transposed: false,
        output: Number::F32,
        accumulate: true,
        epilogue: Epilogue::None,
        ..forward
    };
    [forward, input_gradient, weight_gradient]
}

/// Checks every epilogue and reports each finding to `note`. A product that fails is a wrong finding, and the others follow.
pub fn check(gpu: &mut Gpu, note: &mut Note) {
    let (m, n, k) = (64, 96, 128);
    let mut cases = passes(m, n, k).to_vec();
    let with_bias = Product { epilogue: Epilogue::BiasGradient, ..passes(m, n, k)[2] };
    for epilogue in [Epilogue::None, Epilogue::GeluBias, Epilogue::GeluGradient, Epilogue::GeluBiasGradient] {
        cases.push(forward(m, n, k, epilogue));
    }
    cases.push(with_bias);
    cases.push(Product { accumulate: false, output: BF16, ..with_bias });
    for compute in [Compute::Full, Compute::Tf32] {
        let f32s =
            Product { inputs: Number::F32, output: Number::F32, compute, ..forward(m, n, k, Epilogue::None) };
        cases.push(f32s);
    }
    for product in cases {
        let used = if Tail::is_in_training(&product) { Use::Training } else { Use::Nothing };
        if let Err(error) = one(gpu, product, &mut |finding| note(finding, used)) {
            note(failed(&kernel(product), case(product), &error), used);
        }
    }
    if let Err(error) = gpu.clear() {
        note(failed("matrix products", "giving memory back".into(), &error), Use::Training);
    }
}

fn kernel(product: Product) -> String {
    format!("{:?} -> {:?}, {:?}", product.inputs, product.output, product.compute)
}

fn case(product: Product) -> String {
    let Product { rows, columns, inner, epilogue, accumulate, .. } = product;
    format!("{epilogue:?}, {rows} x {columns} x {inner}, added {accumulate}")
}

fn one(gpu: &mut Gpu, product: Product, note: &mut dyn FnMut(Finding)) -> Result<(), DeviceError> {
    let Product { rows, columns, inner, epilogue, .. } = product;
    let mut state = 7u64;
    let mut random = |number: Number, count: usize| -> Vec<f64> {
        let mut next = || {
            state = state.wrapping_mul(6_364_136_223_846_793_005).wrapping_add(1_442_695_040_888_963_407);
            ((state >> 40) as f32 / (1u64 << 23) as f32) - 1.0
        };
        // Rounded towards zero to bf16, which needs no ties.
        let keep = if number == BF16 { 0xffff_0000 } else { u32::MAX };
        (0..count).map(|_| f64::from(f32::from_bits(next().to_bits() & keep))).collect()
    };
    let (left, right) = (random(product.inputs, rows * inner), random(product.inputs, inner * columns));
    let (before, aux) = (random(product.output, rows * columns), random(BF16, rows * columns));
    let bias_size = if epilogue == Epilogue::BiasGradient { rows } else { columns };
    let bias = random(BF16, bias_size);
    let l =
        |i: usize, j: usize| if product.left_transposed { left[j * rows + i] } else { left[i * inner + j] };
    let r = |i: usize, j: usize| {
        if product.right_transposed { right[j * inner + i] } else { right[i * columns + j] }
    };
    let mut out = vec![0.0; rows * columns];
    let mut kept = aux.clone();
    let mut bias_gradient = vec![0.0; bias_size];
    for i in 0..rows {
        for j in 0..columns {
            let at = i * columns + j;
            let mut x: f64 = (0..inner).map(|k| l(i, k) * r(k, j)).sum();
            if product.accumulate {
                x += before[at];
            }
            match epilogue {
                Epilogue::None | Epilogue::BiasGradient => {}
                Epilogue::Bias => x += bias[j],
                Epilogue::GeluBias => {
                    kept[at] = x + bias[j];
                    x = gelu(kept[at]);
                }
                Epilogue::GeluGradient | Epilogue::GeluBiasGradient => {
                    x *= (gelu(aux[at] + 1e-5) - gelu(aux[at] - 1e-5)) / 2e-5;
                    bias_gradient[j] += x;
                }
            }
            out[at] = x;
        }
    }
    if epilogue == Epilogue::BiasGradient {
        bias_gradient = (0..rows).map(|i| (0..inner).map(|k| l(i, k)).sum()).collect();
    }
    let is_gradient = matches!(epilogue, Epilogue::GeluBiasGradient | Epilogue::BiasGradient);
    let at = Operands {
        left: upload(gpu, product.inputs, &left)?,
        right: upload(gpu, product.inputs, &right)?,
        out: upload(gpu, product.output, &before)?,
        bias: upload(gpu, product.bias_number(), &bias)?,
        aux: upload(gpu, BF16, &aux)?,
    };
    match gpu.multiply(product, at) {
        Err(error @ DeviceError::NoAlgorithm(_)) => {
            println!("  {error}");
            return Ok(());
        }
        answer => answer?,
    }
    let mut judge = |what: &str, found: Vec<f64>, expected: &[f64], number: Number| {
        let distance: f64 =
            found.iter().zip(expected).map(|(found, expected)| (found - expected).powi(2)).sum();
        let size: f64 = expected.iter().map(|expected| expected.powi(2)).sum();
        let tolerance = match (number, product.compute) {
            (Number::Bf16, _) => 6e-3,
            (_, Compute::Tf32) => 1e-3,
            _ => 1e-5,
        };
        let error = (distance / size).sqrt();
        note(Finding {
            kernel: kernel(product),
            case: format!("{}: {what}", case(product)),
            error,
            tolerance,
        });
    };
    judge("result", download(gpu, product.output, at.out, out.len())?, &out, product.output);
    if epilogue == Epilogue::GeluBias {
        judge("aux", download(gpu, BF16, at.aux, kept.len())?, &kept, BF16);
    }
    if is_gradient {
        let number = product.bias_number();
        judge("bias", download(gpu, number, at.bias, bias_size)?, &bias_gradient, number);
    }
    Ok(())
}

fn gelu(x: f64) -> f64 {
    0.5 * x * (1.0 + ((2.0 / std::f64::consts::PI).sqrt() * (x + 0.044715 * x.powi(3))).tanh())
}

fn upload(gpu: &mut Gpu, number: Number, values: &[f64]) -> Result<Address, DeviceError> {
    gpu.upload(&number.encode(values.iter().map(|x| *x as f32)))
}

fn download(gpu: &mut Gpu, number: Number, from: Address, count: usize) -> Result<Vec<f64>, DeviceError> {
    let values = number.decode(&gpu.download(from, count * number.size())?);
    Ok(values.into_iter().map(f64::from).collect())
}

/// The products of layers of GPT-2 124M and 1.5B and LLaMA 1B with what is done to their results. `calibrate` measures
/// products alone, over a grid.
pub fn measure(bench: &mut Bench, rows: &mut Rows) -> Result<(), DeviceError> {
    let layers = [
        (8192, 2304, 768),
        (8192, 3072, 768),
        (8192, 768, 3072),
        (8192, 4800, 1600),
        (8192, 6400, 1600),
        (8192, 1600, 6400),
        (8192, 8192, 2048),
        (1024, 50_304, 768),
    ];
    let all: Vec<Product> = layers.into_iter().flat_map(|(m, n, k)| passes(m, n, k)).collect();
    let largest = 8192 * 8192;
    let (left, right) = (bench.random(BF16, largest)?, bench.random(BF16, largest)?);
    let (out, aux) = (bench.random(Number::F32, largest)?, bench.random(BF16, largest)?);
    let at = Operands { left, right, out, bias: bench.random(Number::F32, 65_536)?, aux };
    for product in all {
        let Product { rows: m, columns: n, inner: k, epilogue, .. } = product;
        let name =
            format!("matmul {:?} to {:?} {:?} {epilogue:?}", product.inputs, product.output, product.compute);
        let shape = format!("{m} x {n} x {k}");
        let amount = Amount { flops: product.flops(), bytes: 0.0 };
        match time(bench, [&name, &shape], amount, |device| device.multiply(product, at)) {
            Ok(row) => rows.push(row),
            Err(error) => println!("{name} {shape}: {error}"),
        }
    }
    let partial = bench.random(Number::F32, largest / 16)?;
    for (m, n, k) in [(8192, 3072, 768), (8192, 6400, 1600), (8192, 8192, 2048)] {
        tails(bench, rows, [m, n, k], TailOperands { product: at, partial });
    }
    bench.device.clear()
}

/// Tails of the products of a feed-forward layer, by epilogue and by launches: of its first product, of the gradient of its
/// nonlinearity's output, and of the first weight's gradient.
fn tails(bench: &mut Bench, rows: &mut Rows, [m, n, k]: [usize; 3], at: TailOperands) {
    let gpu = bench.device.multiprocessors();
    for tail in Tail::ALL {
        let product = match tail {
            Tail::Bias | Tail::GeluBias => forward(m, n, k, Epilogue::None),
            Tail::GeluGradient | Tail::GeluBiasGradient => {
                Product { right_transposed: false, ..forward(m, n, k, Epilogue::None) }
            }
            Tail::BiasGradient => passes(m, n, k)[2],
        };
        let Product { rows: result, columns, inner, .. } = product;
        let shape = format!("{result} x {columns} x {inner}");
        let amount = Amount { flops: product.flops(), bytes: 0.0 };
        for method in Method::ALL {
            let used = if tail.method(&product) == method { "" } else { " (unused by training)" };
            let name = format!("matmul with {tail:?} by {method:?}{used}");
            let version = tail.version(method, product, at, gpu);
            match time(bench, [&name, &shape], amount, |device| {
                version.iter().try_for_each(|part| part.run(device))
            }) {
                Ok(row) => rows.push(row),
                Err(error) => println!("{name} {shape}: {error}"),
            }
        }
    }
}
