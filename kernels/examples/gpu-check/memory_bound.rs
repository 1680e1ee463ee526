//! All versions of attention and of what is bound by memory, at the sizes of a 1.5 billion parameter model.

use super::timing::{Amount, Rows, time, time_launches};
use trainwright_kernels::cuda::activation::{Activation, Direction, Function, Residual};
use trainwright_kernels::cuda::attention::{Attention, Pass};
use trainwright_kernels::cuda::cross_entropy::CrossEntropy;
use trainwright_kernels::cuda::embedding::LookUp;
use trainwright_kernels::cuda::measure::Bench;
use trainwright_kernels::cuda::norm::{NormBackward, NormForward};
use trainwright_kernels::cuda::optimizer::{Chunk, Method, Optimizer, StepScalars, TrustRatios};
use trainwright_kernels::cuda::reduce::{Cast, PartSums, SquareSums, SquaresChunk};
use trainwright_kernels::cuda::rotary::Rotary;
use trainwright_kernels::cuda::{DeviceError, Number};

const TOKENS: usize = 16_384;
const WIDTH: usize = 1_600;
const BF16: Number = Number::Bf16;

/// Bytes of that many bf16.
fn bf16(count: usize) -> Amount {
    Amount { bytes: 2.0 * count as f64, flops: 0.0 }
}

/// All groups, one after the other.
pub fn measure(bench: &mut Bench, rows: &mut Rows) {
    let groups: [(&str, Group); 3] = [("rows", by_row), ("losses", losses), ("optimizers", optimizers)];
    for (name, group) in groups {
        let end = group(bench, rows);
        rows.ended(name, end.and(bench.device.clear()));
    }
    for shape in [
        Shape { batch: 8, heads: 12, kv_heads: 12, positions: 1024, head_dim: 64 },
        Shape { batch: 8, heads: 25, kv_heads: 25, positions: 1024, head_dim: 64 },
        Shape { batch: 2, heads: 32, kv_heads: 8, positions: 4096, head_dim: 128 },
    ] {
        let end = attention(bench, rows, shape);
        rows.ended("attention", end.and(bench.device.clear()));
    }
}

type Group = fn(&mut Bench, &mut Rows) -> Result<(), DeviceError>;

fn by_row(bench: &mut Bench, rows: &mut Rows) -> Result<(), DeviceError> {
    let size = TOKENS * WIDTH;
    let shape = format!("{TOKENS} x {WIDTH} bf16");
    let (x, other, out) = (bench.random(BF16, size)?, bench.random(BF16, size)?, bench.random(BF16, size)?);
    let (sum, vector) = (bench.random(BF16, size)?, bench.random(BF16, 2 * WIDTH)?);
    let (mean, scale) = (bench.random(Number::F32, TOKENS)?, bench.random(Number::F32, TOKENS)?);
    let norm = NormForward {
        x,
        residual: other,
        added_bias: vector,
        gain: vector,
        bias: vector,
        sum,
        out,
        mean,
        scale,
        rows: TOKENS as i32,
        width: WIDTH as i32,
        epsilon: 1e-5,
        centred: 1,
    };
    for launch in norm.ladder(BF16) {
        rows.push(time_launches(bench, &[launch], &shape, bf16(4 * size))?);
    }
    let mut backward = NormBackward {
        x,
        gain: vector,
        out_gradient: other,
        mean,
        scale,
        gradient: out,
        rows: TOKENS as i32,
        width: WIDTH as i32,
        centred: 1,
        ..NormBackward::default()
    };
    let gpu = bench.device.multiprocessors();
    let partial = backward.blocks(gpu) as usize * WIDTH;
    backward.partial_gain = bench.random(Number::F32, partial)?;
    backward.partial_bias = bench.random(Number::F32, partial)?;
    for launches in backward.ladder(BF16, gpu) {
        rows.push(time_launches(bench, &launches, &shape, bf16(4 * size))?);
    }
    let (count, width) = (TOKENS as i32, WIDTH as i32);
    let residual = Residual { x, bias: vector, residual: other, out, rows: count, width };
    for launch in residual.ladder(BF16, gpu) {
        rows.push(time_launches(bench, &[launch], &shape, bf16(3 * size))?);
    }
    let gelu = Activation { x, bias: vector, out_gradient: other, out, rows: count, width, gated: 0 };
    for direction in [Direction::Forward, Direction::Backward] {
        let streams = if direction == Direction::Forward { 2 } else { 3 };
        for launch in gelu.ladder(Function::Gelu, direction, BF16, gpu) {
            rows.push(time_launches(bench, &[launch], &shape, bf16(streams * size))?);
        }
    }
    // A row is two halves: half as many rows of the same size.
    let gated = Activation { rows: count / 2, gated: 1, ..gelu };
    for launch in gated.ladder(Function::Silu, Direction::Forward, BF16, gpu) {
        rows.push(time_launches(
            bench,
            &[launch],
            &format!("{} x 2 x {WIDTH} bf16", TOKENS / 2),
            bf16(size * 3 / 2),
        )?);
    }
    let angles = bench.random(Number::F32, TOKENS * 32)?;
    let rotary = Rotary {
        x,
        cosines: angles,
        sines: angles,
        tokens: count,
        row: width,
        heads: width / 64,
        head_dim: 64,
        half: 32,
        batch: 1,
        direction: 1.0,
        ..Rotary::default()
    };
    for launch in rotary.ladder(BF16, gpu) {
        rows.push(time_launches(bench, &[launch], &shape, bf16(2 * size))?);
    }
    let table = bench.random(BF16, 50_304 * WIDTH)?;
    let look_up = LookUp {
        table,
        entries: bench.indices(TOKENS, 50_304)?,
        positions: x,
        out,
        tokens: count,
        width,
        rows: 50_304,
        batch: 16,
        ..LookUp::default()
    };
    for launch in look_up.ladder(BF16, gpu) {
        rows.push(time_launches(bench, &[launch], &shape, bf16(2 * size))?);
    }
    Ok(())
}

fn losses(bench: &mut Bench, rows: &mut Rows) -> Result<(), DeviceError> {
    let (tokens, width) = (8_192usize, 50_304usize);
    let shape = format!("{tokens} x {width} bf16");
    let loss = CrossEntropy {
        logits: bench.random(BF16, tokens * width)?,
        targets: bench.indices(tokens, 50_257)?,
        maximum: bench.random(Number::F32, tokens)?,
        sum: bench.random(Number::F32, tokens)?,
        target: bench.random(Number::F32, tokens)?,
        tokens: tokens as i32,
        width: width as i32,
        first: 0,
        valid: 50_257,
        scale: 1.0,
    };
    for launch in loss.statistics(BF16) {
        rows.push(time_launches(bench, &[launch], &shape, bf16(tokens * width))?);
    }
    rows.push(time_launches(bench, &[loss.gradient(BF16).remove(1)], &shape, bf16(2 * tokens * width))?);
    Ok(())
}

fn optimizers(bench: &mut Bench, rows: &mut Rows) -> Result<(), DeviceError> {
    // The parameters of GPT-2 124M, in tensors of the size of its layers' matrices.
    let (tensors, count) = (53usize, 768 * 3072usize);
    let all = tensors * count;
    let shape = format!("{all} parameters");
    let [weights, gradients, first, second] = [
        bench.random(Number::F32, all)?,
        bench.random(Number::F32, all)?,
        bench.random(Number::F32, all)?,
        bench.random(Number::F32, all)?,
    ];
    let copies = bench.random(BF16, all)?;
    let mut bytes = Vec::new();
    let mut starts = vec![0u32];
    let mut chunks = 0;
    for tensor in 0..tensors {
        let tensor = Chunk {
            weight: weights.after(4 * tensor * count),
            gradient: gradients.after(4 * tensor * count),
            first: first.after(4 * tensor * count),
            second: second.after(4 * tensor * count),
            copy: copies.after(2 * tensor * count),
            tensor: tensor as i32,
            decay: 0.1,
            ..Chunk::default()
        };
        for chunk in tensor.cut(count) {
            bytes.extend(chunk.bytes());
            chunks += 1;
        }
        starts.push(chunks as u32);
    }
    let starts: Vec<u8> = starts.iter().flat_map(|start| start.to_le_bytes()).collect();
    let step = Optimizer {
        chunks: bench.device.upload(&bytes)?,
        factor: bench.random(Number::F32, 2)?,
        partial: bench.random(Number::F32, 4 * chunks)?,
        ratios: bench.random(Number::F32, tensors)?,
        // Small enough for weights to stay numbers over all repetitions.
        scalars: bench
            .device
            .upload(&StepScalars { rate: 1e-8, correction1: 0.1, correction2: 0.05 }.bytes())?,
        beta1: 0.9,
        beta2: 0.95,
        epsilon: 1e-8,
        trust: 1e-3,
        coupled: 0,
    };
    let ratios = TrustRatios {
        partial: step.partial,
        starts: bench.device.upload(&starts)?,
        decays: bench.random(Number::F32, tensors)?,
        ratios: step.ratios,
        tensors: tensors as i32,
        lars: 0,
        trust: 1e-3,
    };
    // Bytes of a parameter: AdamW reads 16 and writes 14; momentum 12 and 10; LAMB 16 and 8, then 12 and 6; LARS 8, 12 and 10.
    for (method, each) in
        [(Method::AdamW, 30), (Method::Momentum, 22), (Method::Lamb, 42), (Method::Lars, 30)]
    {
        let amount = Amount { bytes: (each * all) as f64, flops: 0.0 };
        rows.push(time_launches(bench, &step.launches(method, chunks, &ratios), &shape, amount)?);
    }
    let parts: Vec<SquaresChunk> = (0..tensors)
        .flat_map(|tensor| SquaresChunk::cut(gradients.after(4 * tensor * count), count, 1.0))
        .collect();
    let bytes: Vec<u8> = parts.iter().flat_map(SquaresChunk::bytes).collect();
    let squares = SquareSums {
        chunks: bench.device.upload(&bytes)?,
        partial: bench.random(Number::F32, 2 * parts.len())?,
    };
    let end = parts.len() as i32;
    let sums =
        PartSums { partial: squares.partial, sums: bench.random(Number::F32, 2)?, starts: [0, end, end] };
    let amount = |each: usize| Amount { bytes: (each * all) as f64, flops: 0.0 };
    let norm = [squares.launch(parts.len()), sums.launch()];
    rows.push(time_launches(bench, &norm, &shape, amount(4))?);
    let cast = Cast { from: weights, to: copies, count: all as i64 };
    rows.push(time_launches(
        bench,
        &[cast.launch(Number::F32, bench.device.multiprocessors())],
        &shape,
        amount(6),
    )?);
    Ok(())
}

#[derive(Debug, Clone, Copy)]
struct Shape {
    batch: usize,
    heads: usize,
    kv_heads: usize,
    positions: usize,
    head_dim: usize,
}

fn attention(bench: &mut Bench, rows: &mut Rows, shape: Shape) -> Result<(), DeviceError> {
    let Shape { batch, heads, kv_heads, positions, head_dim } = shape;
    let row = (heads + 2 * kv_heads) * head_dim;
    let tokens = batch * positions;
    let statistics = batch * heads * positions;
    let (qkv, gradients) = (bench.random(BF16, tokens * row)?, bench.random(BF16, tokens * row)?);
    let attention = Attention {
        o: bench.random(BF16, tokens * heads * head_dim)?,
        logarithms: bench.random(Number::F32, statistics)?,
        o_gradient: bench.random(BF16, tokens * heads * head_dim)?,
        dots: bench.random(Number::F32, statistics)?,
        ..Attention::packed([qkv, gradients], [batch, heads, kv_heads, head_dim, positions], BF16)
    };
    let name = format!("{batch} x {positions}, {heads}/{kv_heads} heads of {head_dim}");
    // Two products of a multiplication and an addition, half of them under the mask; backward is five, as all count them.
    let forward = 2.0 * 2.0 * (statistics * positions * head_dim) as f64 / 2.0;
    for launch in attention.forward(BF16) {
        rows.push(time_launches(bench, &[launch], &name, Amount { flops: forward, bytes: 0.0 })?);
    }
    for launches in attention.backward(BF16) {
        rows.push(time_launches(bench, &launches, &name, Amount { flops: 2.5 * forward, bytes: 0.0 })?);
    }
    for pass in Pass::ALL {
        let flops = if pass.is_backward() { 2.5 * forward } else { forward };
        let Ok(bytes) = bench.device.fuses(&attention, pass) else { continue };
        let workspace = bench.device.allocate(bytes)?;
        let kernel = format!("{pass:?} by {}", bench.device.fuser());
        rows.push(time(bench, [&kernel, &name], Amount { flops, bytes: 0.0 }, |device| {
            device.attend(&attention, pass, workspace)
        })?);
    }
    Ok(())
}
