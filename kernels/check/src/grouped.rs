//! The products of experts, in all three directions.

use crate::bench::Bench;
use trainwright_kernels::cuda::Launch;
use trainwright_kernels::cuda::grouped::GroupedProduct;
use trainwright_kernels::cuda::{DeviceError, Number};

pub(crate) fn products(bench: &mut Bench) -> Result<(), DeviceError> {
    // More than two tiles of rows, none, one row, less than a tile, a tile, none: dimensions that no tile divides, and less than
    // one.
    let starts = [0u32, 283, 283, 284, 301, 429, 429];
    for (inputs, outputs) in [(136usize, 72usize), (64, 264)] {
        for number in Number::ALL {
            check(bench, number, [inputs, outputs], &starts)?;
        }
    }
    // What packs do not divide is left to the simple versions, and so is a rank that has no row.
    check(bench, Number::Bf16, [9, 12], &[0, 3, 4])?;
    check(bench, Number::Bf16, [8, 8], &[0, 0])
}

fn check(
    bench: &mut Bench,
    number: Number,
    [inputs, outputs]: [usize; 2],
    starts: &[u32],
) -> Result<(), DeviceError> {
    let (experts, rows) = (starts.len() - 1, *starts.last().expect("there are experts") as usize);
    let each = outputs * inputs;
    let x = bench.random(number, rows * inputs)?;
    let weights = bench.random(number, experts * each)?;
    let y = bench.random(number, rows * outputs)?;
    let before = bench.random(Number::F32, experts * each)?;
    let mut forward = vec![0.0; rows * outputs];
    let mut backward = vec![0.0; rows * inputs];
    let mut gradients = before.values.clone();
    for (expert, ends) in starts.windows(2).enumerate() {
        for row in ends[0] as usize..ends[1] as usize {
            for (output, input) in
                (0..outputs).flat_map(|output| (0..inputs).map(move |input| (output, input)))
            {
                let at = expert * each + output * inputs + input;
                let (weight, x, y) =
                    (weights.values[at], x.values[row * inputs + input], y.values[row * outputs + output]);
                forward[row * outputs + output] += x * weight;
                backward[row * inputs + input] += y * weight;
                gradients[at] += y * x;
            }
        }
    }
    let product = GroupedProduct {
        left: x.at,
        right: weights.at,
        starts: bench.words(starts)?,
        experts: experts as i32,
        inputs: inputs as i32,
        outputs: outputs as i32,
        ..GroupedProduct::default()
    };
    let case = |launch: &Launch| format!("{experts} experts of {outputs} x {inputs} by {}", launch.kernel);
    let versions = product.forward(rows as i32, number).len();
    for version in 0..versions {
        let out = bench.blank(number, rows * outputs)?;
        let launch =
            GroupedProduct { out: out.at, ..product }.forward(rows as i32, number).swap_remove(version);
        bench.run(&launch)?;
        bench.compare(&launch.kernel, &case(&launch), &out, &forward)?;

        let out = bench.blank(number, rows * inputs)?;
        let back = GroupedProduct { left: y.at, out: out.at, ..product };
        let launch = back.backward(rows as i32, number).swap_remove(version);
        bench.run(&launch)?;
        bench.compare(&launch.kernel, &case(&launch), &out, &backward)?;

        let sums = bench.copy(&before)?;
        let to_weights = GroupedProduct { left: y.at, right: x.at, gradients: sums.at, ..product };
        let launch = to_weights.weights(number).swap_remove(version);
        bench.run(&launch)?;
        bench.compare(&launch.kernel, &case(&launch), &sums, &gradients)?;
    }
    Ok(())
}
