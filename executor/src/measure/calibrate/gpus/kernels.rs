//! Kernels over a grid of shapes: those of a plan lie between them.

use crate::device::BareDevices;
use trainwright_kernels::cuda::activation::Residual;
use trainwright_kernels::cuda::attention::{Attention, Pass};
use trainwright_kernels::cuda::fp8::{Fp8Operands, Fp8Product};
use trainwright_kernels::cuda::measure::{Bench, Effort};
use trainwright_kernels::cuda::norm::NormForward;
use trainwright_kernels::cuda::{Address, Compute, DeviceError, Epilogue, Number, Operands, Product};
use trainwright_kernels::fp8::Fp8;
use trainwright_spec::cluster::MeasuredKernel;
use trainwright_spec::model::Mask;
use trainwright_spec::precision::Precision;
use trainwright_spec::program::{Access, Direction, FlashVersion, FusedAttention, Kernel};
use trainwright_spec::units::{Bytes, Seconds};

/// What is measured.
#[derive(Debug)]
pub(crate) struct Shapes {
    pub effort: Effort,
    /// Each of a product's three dims.
    pub products: &'static [usize],
    /// Bytes of a matrix at most.
    pub matrix: usize,
    /// FLOP of a product at most, on tensor cores and of fp32.
    pub flops: [f64; 2],
    /// Of attention: sequences, heads, heads that share keys, width of a head, positions.
    pub attention: [&'static [usize]; 5],
    /// Rows of what memory binds.
    pub rows: &'static [usize],
    /// Length of a row.
    pub width: usize,
    /// Bytes of copies and collectives.
    pub bytes: &'static [usize],
}

impl Shapes {
    /// Those that are measured of some GPUs.
    pub fn of(devices: &BareDevices) -> &'static Self {
        if devices.are_emulated { &SMALL } else { &FULL }
    }
}

/// For a GPU: some seconds of each.
const FULL: Shapes = Shapes {
    effort: Effort::OF_GPU,
    products: &[512, 2048, 8192, 32_768, 131_072],
    matrix: 1 << 30,
    flops: [1e13, 2e11],
    attention: [&[1, 8], &[8, 32], &[1, 4], &[64, 128], &[512, 2048, 8192]],
    rows: &[1, 16, 256, 4096, 65_536, 262_144],
    width: 1024,
    bytes: &[1 << 10, 1 << 14, 1 << 18, 1 << 20, 1 << 22, 1 << 24, 1 << 26, 1 << 28],
};

/// For an emulator.
const SMALL: Shapes = Shapes {
    effort: Effort::LEAST,
    products: &[16, 32],
    matrix: 1 << 11,
    flops: [1e5, 1e5],
    attention: [&[1], &[2], &[1, 2], &[64], &[16, 64]],
    rows: &[1, 4],
    width: 64,
    bytes: &[1 << 8, 1 << 10],
};

/// The numbers of each kind of product: operands, result, whether f32 is rounded.
const PRODUCTS: [(Precision, Number, Compute); 3] = [
    (Precision::Bf16, Number::Bf16, Compute::Full),
    (Precision::Tf32, Number::F32, Compute::Tf32),
    (Precision::Fp32, Number::F32, Compute::Full),
];

/// Every kernel that the device has.
///
/// # Errors
/// Of the device; a shape for which a library has no algorithm is left out.
pub(super) fn measure(
    bench: &mut Bench,
    shapes: &Shapes,
    deterministic: bool,
) -> Result<Vec<MeasuredKernel>, DeviceError> {
    let mut rows = products(bench, shapes)?;
    bench.device.clear()?;
    let backward = if deterministic { Pass::DeterministicBackward } else { Pass::Backward };
    rows.extend(attention(bench, shapes, backward)?);
    rows.extend(streaming(bench, shapes)?);
    bench.device.clear()?;
    Ok(rows)
}

fn row(kernel: Kernel, seconds: f64) -> MeasuredKernel {
    MeasuredKernel { kernel, time: Seconds::new(seconds) }
}

/// m, n and k of the grid's products whose matrices have room.
fn grid(shapes: &Shapes, size: usize, most: f64) -> Vec<[usize; 3]> {
    let mut all = Vec::new();
    for m in shapes.products {
        for n in shapes.products {
            for k in shapes.products {
                let fits = [m * n, n * k, m * k].iter().all(|numbers| numbers * size <= shapes.matrix);
                if fits && 2.0 * (*m as f64) * (n * k) as f64 <= most {
                    all.push([*m, *n, *k]);
                }
            }
        }
    }
    all
}

/// Rows are tokens, weights lie as columns × inner.
fn product([rows, columns, inner]: [usize; 3], number: Number, compute: Compute) -> Product {
    Product {
        rows,
        columns,
        inner,
        left_transposed: false,
        right_transposed: true,
        inputs: number,
        output: number,
        compute,
        accumulate: false,
        epilogue: Epilogue::None,
    }
}

/// Matrices as large as any of the grid: numbers of 16 bits, which are such of 32 and of 8 bits too.
fn operands(bench: &mut Bench, shapes: &Shapes) -> Result<Operands, DeviceError> {
    let numbers = shapes.matrix / Number::Bf16.size();
    let mut matrix = || bench.random(Number::Bf16, numbers);
    Ok(Operands {
        left: matrix()?,
        right: matrix()?,
        out: matrix()?,
        bias: Address::NULL,
        aux: Address::NULL,
    })
}

/// A product that keeps the device busy.
pub(super) fn large_product(bench: &mut Bench, shapes: &Shapes) -> Result<(Product, Operands), DeviceError> {
    let at = operands(bench, shapes)?;
    let flops = |[m, n, k]: &[usize; 3]| m * n * k;
    let largest = grid(shapes, Number::Bf16.size(), shapes.flops[0]).into_iter().max_by_key(flops);
    Ok((product(largest.unwrap_or([16; 3]), Number::Bf16, Compute::Full), at))
}

fn products(bench: &mut Bench, shapes: &Shapes) -> Result<Vec<MeasuredKernel>, DeviceError> {
    let at = operands(bench, shapes)?;
    let mut rows = Vec::new();
    let mut add = |[m, n, k]: [usize; 3], precision, timed: Result<_, DeviceError>| match timed {
        Ok(seconds) => {
            rows.push(row(Kernel::Gemm { count: 1, m, n, k, precision, adds_to: None }, seconds));
            Ok(())
        }
        Err(DeviceError::NoAlgorithm(_)) => Ok(()),
        Err(error) => Err(error),
    };
    for (precision, number, compute) in PRODUCTS {
        let most = shapes.flops[usize::from(number == Number::F32)];
        for sizes in grid(shapes, number.size(), most) {
            let product = product(sizes, number, compute);
            let timed = bench.time(|device| device.multiply(product, at));
            add(sizes, precision, timed.map(|timed| timed.seconds))?;
        }
    }
    if bench.device.supports_fp8() {
        let scale = bench.random(Number::F32, 1)?;
        let at = Fp8Operands {
            left: at.left,
            left_scale: scale,
            right: at.right,
            right_scale: scale,
            out: at.out,
            bias: Address::NULL,
        };
        for sizes in grid(shapes, Number::Bf16.size(), shapes.flops[0]) {
            let [rows, columns, inner] = sizes;
            let product = Fp8Product {
                rows,
                columns,
                inner,
                left: Fp8::E4m3,
                right: Fp8::E4m3,
                output: Number::Bf16,
                accumulate: false,
                bias: false,
            };
            let timed = bench.time(|device| device.multiply_fp8(product, at));
            add(sizes, Precision::Fp8, timed.map(|timed| timed.seconds))?;
        }
    }
    Ok(rows)
}

/// Causal attention of bf16 over packed rows, as the executor has it: by a library where it can.
fn attention(bench: &mut Bench, shapes: &Shapes, backward: Pass) -> Result<Vec<MeasuredKernel>, DeviceError> {
    let [batches, heads, shared, widths, positions] = shapes.attention;
    let mut rows = Vec::new();
    for batch in batches {
        for heads in heads {
            for shared in shared {
                for width in widths {
                    for positions in positions {
                        rows.extend(one_attention(
                            bench,
                            [*batch, *heads, heads / shared, *width, *positions],
                            backward,
                        )?);
                    }
                }
            }
        }
    }
    Ok(rows)
}

fn one_attention(
    bench: &mut Bench,
    sizes: [usize; 5],
    backward: Pass,
) -> Result<[MeasuredKernel; 2], DeviceError> {
    let [batch, heads, kv_heads, head_dim, positions] = sizes;
    bench.device.clear()?;
    let columns = (heads + 2 * kv_heads) * head_dim;
    let (tokens, statistics) = (batch * positions, batch * heads * positions);
    let size = Number::Bf16.size();
    let qkv = bench.random(Number::Bf16, tokens * columns)?;
    let gradients = bench.device.allocate(tokens * columns * size)?;
    let operands = Attention {
        o: bench.device.allocate(tokens * heads * head_dim * size)?,
        logarithms: bench.device.allocate(statistics * size_of::<f32>())?,
        o_gradient: bench.random(Number::Bf16, tokens * heads * head_dim)?,
        dots: bench.device.allocate(statistics * size_of::<f32>())?,
        ..Attention::packed([qkv, gradients], sizes, Number::Bf16)
    };
    let kernel = |direction| {
        Kernel::FusedAttention(FusedAttention {
            direction,
            batch,
            heads,
            kv_heads,
            queries: positions,
            keys: positions,
            head_dim,
            value_head_dim: head_dim,
            mask: Mask::Causal,
            precision: Precision::Bf16,
            version: FlashVersion::Best,
        })
    };
    let mut timed = |pass, direction| Ok(row(kernel(direction), time_attention(bench, &operands, pass)?));
    // Backward reads what forward has left.
    Ok([timed(Pass::Forward, Direction::Forward)?, timed(backward, Direction::Backward)?])
}

fn time_attention(bench: &mut Bench, operands: &Attention, pass: Pass) -> Result<f64, DeviceError> {
    if let Ok(bytes) = bench.device.fuses(operands, pass) {
        let workspace = bench.device.allocate(bytes.max(1))?;
        return Ok(bench.time(|device| device.attend(operands, pass, workspace))?.seconds);
    }
    let launches = match pass {
        Pass::Forward => operands.forward(Number::Bf16).pop().into_iter().collect(),
        Pass::Backward | Pass::DeterministicBackward => {
            operands.backward(Number::Bf16).pop().unwrap_or_default()
        }
    };
    let all = bench.time(|device| launches.iter().try_for_each(|launch| device.launch(launch)))?;
    Ok(all.seconds)
}

/// A residual addition and a norm.
fn streaming(bench: &mut Bench, shapes: &Shapes) -> Result<Vec<MeasuredKernel>, DeviceError> {
    bench.device.clear()?;
    let (width, most) = (shapes.width, shapes.rows.iter().max().copied().unwrap_or(1));
    let mut matrix = || bench.random(Number::Bf16, most * width);
    let [x, residual, out] = [matrix()?, matrix()?, matrix()?];
    let gpu = bench.device.multiprocessors();
    let gain = bench.random(Number::Bf16, width)?;
    let mean = bench.device.allocate(most * size_of::<f32>())?;
    let scale = bench.device.allocate(most * size_of::<f32>())?;
    let mut measured = Vec::new();
    for rows in shapes.rows {
        let bytes = Bytes::new((rows * width * Number::Bf16.size()) as f64);
        let (count, width) = (*rows as i32, width as i32);
        let sum = Residual { x, bias: Address::NULL, residual, out, rows: count, width };
        let norm = NormForward {
            x,
            gain,
            bias: gain,
            out,
            mean,
            scale,
            rows: count,
            width,
            epsilon: 1e-5,
            centred: 1,
            ..NormForward::default()
        };
        for (access, read, launch) in [
            (Access::Elementwise, 2.0 * bytes, sum.launch(Number::Bf16, gpu)),
            (Access::Reduction, bytes, norm.launch(Number::Bf16)),
        ] {
            let seconds = bench.time(|device| device.launch(&launch))?.seconds;
            measured.push(row(Kernel::Streaming { access, read, written: bytes }, seconds));
        }
    }
    Ok(measured)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_grid_has_the_products_that_have_room() {
        // Three sizes of 32 have 65,536 FLOP; 32 x 32 of 4 bytes are more than 2 KiB.
        assert_eq!(grid(&SMALL, 2, 1e5).len(), 8);
        assert_eq!(grid(&SMALL, 4, 1e5), [[16, 16, 16], [16, 16, 32], [16, 32, 16], [32, 16, 16]]);
        assert_eq!(grid(&SMALL, 2, 4.0 * 16f64.powi(3)).len(), 4);
        // Layers of large models and vocabularies lie within, and the matrices of all are at most a gibibyte.
        let full = grid(&FULL, 2, FULL.flops[0]);
        assert!(full.contains(&[8192, 32_768, 8192]) && full.contains(&[2048, 131_072, 2048]));
        assert!(full.len() < 110, "{}", full.len());
    }
}
