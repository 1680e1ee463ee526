//! Sums, casts and cross entropy.

use super::super::cross_entropy::{CrossEntropy, JoinStatistics};
use super::super::launch::Launch;
use super::super::reduce::{Cast, ClipFactor, ColumnSum, SquareSum, SumBuffers};
use super::{Address, Bench, DeviceError, Number};

pub(super) fn sums(bench: &mut Bench) -> Result<(), DeviceError> {
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

        // An odd count leaves numbers that fill no pack.
        let count = 10_003usize;
        let x = bench.random(number, count)?;
        let norm = x.values.iter().map(|x| x * x).sum::<f64>().sqrt();
        let mut squares = SquareSum { x: x.at, count: count as i64, ..SquareSum::default() };
        // Fewer blocks than it would take, so that each thread does several packs.
        let blocks = squares.blocks(number) / 3;
        squares.partial = bench.words(&vec![u32::MAX; 2 * blocks as usize])?;
        let launch = Launch { grid: [blocks as u32, 1, 1], ..squares.launch(number) };
        bench.run(&launch)?;
        // The gradients are used at half their size, where their norm is above the bound, and where it is not.
        for bound in [norm / 8.0, norm] {
            let factor = bench.blank(Number::F32, 2)?;
            let clip = ClipFactor {
                partial: squares.partial,
                factor: factor.at,
                count: blocks,
                bound: bound as f32,
                scale: 0.5,
            };
            bench.run(&clip.launch())?;
            let scale = if norm * 0.5 > bound { bound / norm } else { 0.5 };
            bench.compare(&launch.kernel, "clipping", &factor, &[scale, norm * 0.5])?;
        }

        let buffers = [bench.random(number, 5003)?, bench.random(number, 5003)?, bench.random(number, 5003)?];
        let expected: Vec<f64> =
            (0..5003).map(|at| buffers.iter().map(|buffer| buffer.values[at]).sum()).collect();
        // In place, into the second.
        let sum = SumBuffers::of(&buffers.each_ref().map(|buffer| buffer.at), buffers[1].at, 5003);
        let launch = Launch { grid: [2, 1, 1], ..sum.launch(number) };
        bench.run(&launch)?;
        bench.compare(&launch.kernel, "three", &buffers[1], &expected)?;

        // From the second number on, which no pack begins at.
        let [first, second] = [bench.random(number, 700)?, bench.random(number, 700)?];
        let expected: Vec<f64> = (0..699).map(|at| first.values[at + 1] + second.values[at + 1]).collect();
        let out = bench.blank(number, 699)?;
        let from = [first.at, second.at].map(|at| at.after(number.size()));
        let launch = SumBuffers::of(&from, out.at, 699).launch(number);
        bench.run(&launch)?;
        bench.compare(&launch.kernel, "unaligned", &out, &expected)?;
    }
    Ok(())
}

pub(super) fn casts(bench: &mut Bench) -> Result<(), DeviceError> {
    let count = 5027;
    for (from, to) in [(Number::F32, Number::Bf16), (Number::Bf16, Number::F32)] {
        let x = bench.random(from, count)?;
        let out = bench.blank(to, count)?;
        let launch = Cast { from: x.at, to: out.at, count: count as i64 }.launch(from);
        let launch = Launch { grid: [2, 1, 1], ..launch };
        bench.run(&launch)?;
        // The nearest number: nothing is left of the error.
        let rounded = to.values(&to.bytes(&x.values));
        bench.compare_within(&launch.kernel, "nearest", &out, &rounded, 0.0)?;
    }
    Ok(())
}

pub(super) fn cross_entropy(bench: &mut Bench) -> Result<(), DeviceError> {
    // Three ranks with 24 columns each of 67 entries: the last rank's last 5 only fill up. Then rows that take a thread
    // several packs, whose largest logits it meets in any order. Then rows that 16 bytes don't divide.
    one_cross_entropy(bench, [11, 3, 24, 67])?;
    one_cross_entropy(bench, [5, 2, 35, 67])?;
    one_cross_entropy(bench, [3, 1, 5008, 5001])
}

fn one_cross_entropy(
    bench: &mut Bench,
    [tokens, ranks, width, entries]: [usize; 4],
) -> Result<(), DeviceError> {
    let scale = 0.25f64;
    for number in Number::ALL {
        let z: Vec<f64> = (0..ranks * tokens * width).map(|_| 8.0 * bench.next()).collect();
        let logits: Vec<f64> = number.values(&number.bytes(&z));
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
            let [maxima, sums, own] = [
                bench.array(Number::F32, &three[0])?,
                bench.array(Number::F32, &three[1])?,
                bench.array(Number::F32, &three[2])?,
            ];
            let mut shards = Vec::new();
            let mut kernel = String::new();
            for rank in 0..ranks {
                let shard = bench.array(number, &z[rank * tokens * width..(rank + 1) * tokens * width])?;
                let behind = |address: Address| address.after(rank * tokens * 4);
                let own = CrossEntropy {
                    logits: shard.at,
                    targets: target_words,
                    maximum: behind(maxima.at),
                    sum: behind(sums.at),
                    target: behind(own.at),
                    tokens: tokens as i32,
                    width: width as i32,
                    first: (rank * width) as i32,
                    valid: (entries - rank * width).min(width) as i32,
                    scale: scale as f32,
                };
                let launch = own.statistics(number).swap_remove(version);
                bench.run(&launch)?;
                kernel = launch.kernel;
                shards.push((shard, own));
            }
            let (maximum, sum) = (bench.blank(Number::F32, tokens)?, bench.blank(Number::F32, tokens)?);
            let loss = bench.blank(Number::F32, tokens)?;
            let join = JoinStatistics {
                maxima: maxima.at,
                sums: sums.at,
                targets: own.at,
                maximum: maximum.at,
                sum: sum.at,
                loss: loss.at,
                ranks: ranks as i32,
                tokens: tokens as i32,
            };
            bench.run(&join.launch())?;
            bench.compare(&kernel, &format!("loss of {ranks} ranks"), &loss, &losses)?;
            for (rank, (shard, own)) in shards.iter().enumerate() {
                let of_all = CrossEntropy { maximum: maximum.at, sum: sum.at, ..*own };
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
