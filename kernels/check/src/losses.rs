//! Sums, casts and cross entropy.

use crate::bench::{Array, Bench, rounded};
use trainwright_kernels::cuda::cross_entropy::{CrossEntropy, JoinMaxima, LossSum};
use trainwright_kernels::cuda::reduce::{
    Cast, ClipFactor, ColumnSum, PartSums, SQUARES_CHUNK, SquareSums, SquaresChunk, SumBuffers,
};
use trainwright_kernels::cuda::{Address, DeviceError, Number};

pub(crate) fn sums(bench: &mut Bench) -> Result<(), DeviceError> {
    let (rows, width, shares) = (45usize, 300usize, 4usize);
    for number in Number::ALL {
        let x = bench.random(number, rows * width)?;
        let before = bench.random(Number::F32, width)?;
        let column = |column: usize| (0..rows).map(|row| x.values[row * width + column]).sum::<f64>();
        let expected: Vec<f64> = (0..width).map(|at| before.values[at] + column(at)).collect();
        let partial = bench.blank(Number::F32, shares * width)?;
        let (rows, width) = (rows as i32, width as i32);
        let first = ColumnSum { x: x.at, out: partial.at, rows, width, add: 0 };
        let second = ColumnSum { x: partial.at, out: before.at, rows: shares as i32, width, add: 1 };
        let launch = first.launch(number, shares as i32);
        bench.run(&launch)?;
        bench.run(&second.launch(Number::F32, 1))?;
        bench.compare(&launch.kernel, "in shares", &before, &expected)?;

        let buffers = [bench.random(number, 5003)?, bench.random(number, 5003)?, bench.random(number, 5003)?];
        let expected: Vec<f64> =
            (0..5003).map(|at| buffers.iter().map(|buffer| buffer.values[at]).sum()).collect();
        // In place, into the second.
        let sum = SumBuffers::of(&buffers.each_ref().map(|buffer| buffer.at), buffers[1].at, 5003);
        let mut launch = sum.launch(number, bench.gpu);
        launch.grid = [2, 1, 1];
        bench.run(&launch)?;
        bench.compare(&launch.kernel, "three", &buffers[1], &expected)?;

        // From the second number on, which no pack begins at.
        let [first, second] = [bench.random(number, 700)?, bench.random(number, 700)?];
        let expected: Vec<f64> = (0..699).map(|at| first.values[at + 1] + second.values[at + 1]).collect();
        let out = bench.blank(number, 699)?;
        let from = [first.at, second.at].map(|at| at.after(number.size()));
        let launch = SumBuffers::of(&from, out.at, 699).launch(number, bench.gpu);
        bench.run(&launch)?;
        bench.compare(&launch.kernel, "unaligned", &out, &expected)?;
    }
    Ok(())
}

/// The norm of gradients by one launch over all of them: of some tensors and of others, as experts' are summed apart.
pub(crate) fn squares(bench: &mut Bench) -> Result<(), DeviceError> {
    // More than a chunk with a rest, full packs, less than a pack; then enough for several parts per thread.
    let few = [SQUARES_CHUNK + 1003, 256, 3];
    let many = vec![5usize; 5003];
    let (mut chunks, mut expected, mut starts) = (Vec::new(), Vec::new(), [0; 3]);
    for (which, lengths) in [&few[..], &many].into_iter().enumerate() {
        // Each is 16-byte aligned.
        let room = |length: &usize| length.next_multiple_of(4);
        let x = bench.random(Number::F32, lengths.iter().map(room).sum())?;
        let (mut sum, mut first) = (0.0, 0);
        for (at, length) in lengths.iter().enumerate() {
            // What several ranks hold counts once.
            let scale = [1.0, 0.5, 0.25][at % 3];
            chunks.extend(SquaresChunk::cut(x.at.after(4 * first), *length, scale));
            let tensor = &x.values[first..first + length];
            sum += f64::from(scale) * tensor.iter().map(|x| x * x).sum::<f64>();
            first += room(length);
        }
        starts[which + 1] = chunks.len() as i32;
        expected.push(sum);
    }
    let bytes: Vec<u8> = chunks.iter().flat_map(SquaresChunk::bytes).collect();
    let squares = SquareSums {
        chunks: bench.device.upload(&bytes)?,
        partial: bench.words(&vec![u32::MAX; 2 * chunks.len()])?,
    };
    let sums = bench.blank(Number::F32, 2)?;
    let first = squares.launch(chunks.len());
    let second = PartSums { partial: squares.partial, sums: sums.at, starts }.launch();
    bench.run(&first)?;
    bench.run(&second)?;
    for launch in [first, second] {
        bench.compare(&launch.kernel, "two sums", &sums, &expected)?;
    }
    // No tensors of one kind: its sum is 0.
    let none = bench.blank(Number::F32, 2)?;
    let launch =
        PartSums { partial: squares.partial, sums: none.at, starts: [0, starts[1], starts[1]] }.launch();
    bench.run(&launch)?;
    bench.compare(&launch.kernel, "one sum of nothing", &none, &[expected[0], 0.0])?;
    // The norm is above its bound, and it is not.
    let norm = expected.iter().sum::<f64>().sqrt();
    for bound in [norm / 8.0, norm * 2.0] {
        let factor = bench.blank(Number::F32, 2)?;
        let clip = ClipFactor { squares: sums.at, factor: factor.at, count: 2, bound: bound as f32 }.launch();
        bench.run(&clip)?;
        bench.compare(&clip.kernel, "clipping", &factor, &[(bound / norm).min(1.0), norm])?;
    }
    Ok(())
}

pub(crate) fn casts(bench: &mut Bench) -> Result<(), DeviceError> {
    let count = 5027;
    for (from, to) in [(Number::F32, Number::Bf16), (Number::Bf16, Number::F32)] {
        let x = bench.random(from, count)?;
        let out = bench.blank(to, count)?;
        let mut launch = Cast { from: x.at, to: out.at, count: count as i64 }.launch(from, bench.gpu);
        launch.grid = [2, 1, 1];
        bench.run(&launch)?;
        // The nearest number: nothing is left of the error.
        let rounded = rounded(to, &x.values);
        bench.compare_within(&launch.kernel, "nearest", &out, &rounded, 0.0)?;
    }
    Ok(())
}

pub(crate) fn cross_entropy(bench: &mut Bench) -> Result<(), DeviceError> {
    // Three ranks with 24 columns each of 67 entries: the last rank's last 5 are padding. Then rows that take a thread
    // several packs, with their largest logits in any order. Then rows that are no multiple of 16 bytes.
    one_cross_entropy(bench, [11, 3, 24, 67])?;
    one_cross_entropy(bench, [5, 2, 35, 67])?;
    one_cross_entropy(bench, [3, 1, 5008, 5001])?;
    many_losses(bench)
}

/// More tokens than a block has threads.
fn many_losses(bench: &mut Bench) -> Result<(), DeviceError> {
    let tokens = 2503;
    let sums: Vec<f64> = (0..tokens).map(|_| bench.next().abs() + 1.0).collect();
    let sums = bench.array(Number::F32, &sums)?;
    let (maxima, targets) = (bench.random(Number::F32, tokens)?, bench.random(Number::F32, tokens)?);
    let out = bench.device.upload(&f64::NAN.to_le_bytes())?;
    let (maximum, sum, target) = (maxima.at, sums.at, targets.at);
    let launch = LossSum { maximum, sum, target, out, tokens: tokens as i32 }.launch();
    bench.run(&launch)?;
    let total = f64::from_le_bytes(bench.device.download(out, 8)?.try_into().expect("8 bytes"));
    let loss = |token: usize| sums.values[token].ln() + maxima.values[token] - targets.values[token];
    let all = bench.array(Number::F32, &[total])?;
    bench.compare(&launch.kernel, "many tokens", &all, &[(0..tokens).map(loss).sum()])
}

fn one_cross_entropy(
    bench: &mut Bench,
    [tokens, ranks, width, entries]: [usize; 4],
) -> Result<(), DeviceError> {
    let scale = 0.25f64;
    for number in Number::ALL {
        let z: Vec<f64> = (0..ranks * tokens * width).map(|_| 8.0 * bench.next()).collect();
        let logits: Vec<f64> = rounded(number, &z);
        let targets = bench.indices(tokens, entries as u32);
        let logit =
            |token: usize, entry: usize| logits[(entry / width * tokens + token) * width + entry % width];
        let (mut losses, mut probabilities) = (Vec::new(), Vec::new());
        for (token, target) in targets.iter().enumerate() {
            let sum: f64 = (0..entries).map(|entry| logit(token, entry).exp()).sum();
            losses.push(sum.ln() - logit(token, *target as usize));
            let one = |entry: usize| if entry == *target as usize { 1.0 } else { 0.0 };
            probabilities
                .push((0..entries).map(|entry| logit(token, entry).exp() / sum - one(entry)).collect());
        }
        let probabilities: Vec<Vec<f64>> = probabilities;
        let target_words = bench.words(&targets)?;

        let versions =
            CrossEntropy { width: width as i32, ..CrossEntropy::default() }.statistics(number).len();
        for version in 0..versions {
            let three = [(); 3].map(|()| vec![f64::NAN; ranks * tokens]);
            let [maxima, sums, targets_found] = [
                bench.array(Number::F32, &three[0])?,
                bench.array(Number::F32, &three[1])?,
                bench.array(Number::F32, &three[2])?,
            ];
            let mut shards = Vec::new();
            let mut kernel = String::new();
            for rank in 0..ranks {
                let shard = bench.array(number, &z[rank * tokens * width..(rank + 1) * tokens * width])?;
                let behind = |address: Address| address.after(rank * tokens * 4);
                let args = CrossEntropy {
                    logits: shard.at,
                    targets: target_words,
                    maximum: behind(maxima.at),
                    sum: behind(sums.at),
                    target: behind(targets_found.at),
                    tokens: tokens as i32,
                    width: width as i32,
                    first: (rank * width) as i32,
                    valid: (entries - rank * width).min(width) as i32,
                    scale: scale as f32,
                };
                let launch = args.statistics(number).swap_remove(version);
                bench.run(&launch)?;
                kernel = launch.kernel;
                shards.push((shard, args));
            }
            // Each rank puts its sums below the maxima of all, which all ranks have seen before; they add up then.
            let seen = bench.copy(&maxima)?;
            for (_, args) in &shards {
                let (maximum, sum, ranks) = (args.maximum, args.sum, ranks as i32);
                bench.run(
                    &JoinMaxima { maxima: seen.at, maximum, sum, ranks, tokens: tokens as i32 }.launch(),
                )?;
            }
            let all_of = |bench: &mut Bench, array: &Array| -> Result<Address, DeviceError> {
                let parts = bench.read(array)?;
                let of_token = |token| (0..ranks).map(|rank| parts[rank * tokens + token]).sum::<f64>();
                Ok(bench.array(Number::F32, &(0..tokens).map(of_token).collect::<Vec<_>>())?.at)
            };
            let (maximum, sum, target) = (maxima.at, all_of(bench, &sums)?, all_of(bench, &targets_found)?);
            let out = bench.device.upload(&f64::NAN.to_le_bytes())?;
            let total = LossSum { maximum, sum, target, out, tokens: tokens as i32 }.launch();
            bench.run(&total)?;
            let total = f64::from_le_bytes(bench.device.download(out, 8)?.try_into().expect("8 bytes"));
            let all = bench.array(Number::F32, &[total])?;
            bench.compare(&kernel, &format!("loss of {ranks} ranks"), &all, &[losses.iter().sum()])?;
            for (rank, (shard, args)) in shards.iter().enumerate() {
                let of_all = CrossEntropy { maximum, sum, ..*args };
                let launch = of_all.gradient(number).swap_remove(version);
                bench.run(&launch)?;
                let column = |token: usize, at: usize| {
                    probabilities[token].get(rank * width + at).copied().unwrap_or(0.0)
                };
                let places = (0..tokens).flat_map(|token| (0..width).map(move |at| (token, at)));
                let expected: Vec<f64> = places.map(|(token, at)| scale * column(token, at)).collect();
                bench.compare(&launch.kernel, &format!("rank {rank} of {ranks}"), shard, &expected)?;
            }
        }
    }
    Ok(())
}
