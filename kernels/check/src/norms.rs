//! Norms, of all columns and of a shard of them.

use crate::bench::{Bench, rounded};
use trainwright_kernels::cuda::norm::{NormBackward, NormForward, NormPart};
use trainwright_kernels::cuda::reduce::ColumnSum;
use trainwright_kernels::cuda::{Address, DeviceError, Number};

pub(crate) fn norm(bench: &mut Bench) -> Result<(), DeviceError> {
    // A row within a warp, several packs a thread, more than one pack of 512 threads, and one that no pack divides.
    for number in Number::ALL {
        for width in [64, 776, 2080, 4224, 75] {
            for centred in [true, false] {
                one_norm(bench, number, width, centred)?;
            }
        }
    }
    Ok(())
}

fn one_norm(bench: &mut Bench, number: Number, width: usize, centred: bool) -> Result<(), DeviceError> {
    let (rows, epsilon) = (if width > 1000 { 3 } else { 9 }, 1e-5);
    let size = rows * width;
    let (x, residual) = (bench.random(number, size)?, bench.random(number, size)?);
    let (gain, bias) = (bench.random(number, width)?, bench.random(number, width)?);
    let added_bias = bench.random(number, width)?;
    let dy = bench.random(number, size)?;
    let past = bench.random(number, size)?;
    // The norm sees the sum as rounded.
    let added = |index: usize| added_bias.values[index % width] + residual.values[index];
    let sums: Vec<f64> = x.values.iter().enumerate().map(|(index, x)| x + added(index)).collect();
    let sum = rounded(number, &sums);
    let (mut y, mut means, mut scales) = (Vec::new(), Vec::new(), Vec::new());
    let (mut dx, mut gain_gradient, mut bias_gradient) =
        (past.values.clone(), vec![0.0; width], vec![0.0; width]);
    for row in 0..rows {
        let row_values = &sum[row * width..(row + 1) * width];
        let mean = if centred { row_values.iter().sum::<f64>() / width as f64 } else { 0.0 };
        let variance = row_values.iter().map(|x| (x - mean).powi(2)).sum::<f64>() / width as f64;
        let scale = 1.0 / (variance + epsilon).sqrt();
        let h: Vec<f64> = row_values.iter().map(|x| (x - mean) * scale).collect();
        let row_dy = &dy.values[row * width..(row + 1) * width];
        let e: Vec<f64> = row_dy.iter().zip(&gain.values).map(|(dy, gain)| dy * gain).collect();
        let mean_e = if centred { e.iter().sum::<f64>() / width as f64 } else { 0.0 };
        let along = e.iter().zip(&h).map(|(e, h)| e * h).sum::<f64>() / width as f64;
        for column in 0..width {
            y.push(h[column] * gain.values[column] + bias.values[column]);
            dx[row * width + column] += (e[column] - mean_e - h[column] * along) * scale;
            gain_gradient[column] += row_dy[column] * h[column];
            bias_gradient[column] += row_dy[column];
        }
        means.push(mean);
        scales.push(scale);
    }

    let kind = if centred { "LayerNorm" } else { "RMSNorm" };
    let versions = NormForward { width: width as i32, ..NormForward::default() }.ladder(number).len();
    for version in 0..versions {
        let (out, kept) = (bench.blank(number, size)?, bench.array(number, &x.values)?);
        let (mean, scale) = (bench.blank(Number::F32, rows)?, bench.blank(Number::F32, rows)?);
        let forward = NormForward {
            x: kept.at,
            residual: residual.at,
            added_bias: added_bias.at,
            gain: gain.at,
            bias: bias.at,
            sum: kept.at,
            out: out.at,
            mean: mean.at,
            scale: scale.at,
            rows: rows as i32,
            width: width as i32,
            epsilon: epsilon as f32,
            centred: i32::from(centred),
        };
        let launch = forward.ladder(number).swap_remove(version);
        bench.run(&launch)?;
        bench.compare(&launch.kernel, &format!("{kind} {width} sum"), &kept, &sums)?;
        bench.compare(&launch.kernel, &format!("{kind} {width} output"), &out, &y)?;
        bench.compare(&launch.kernel, &format!("{kind} {width} 1/s"), &scale, &scales)?;
        if centred {
            bench.compare_within(&launch.kernel, &format!("{kind} {width} mean"), &mean, &means, 1e-4)?;
        }

        // Without gain, bias and addition it is h.
        let out = bench.blank(number, size)?;
        let bare = NormForward {
            residual: Address::NULL,
            added_bias: Address::NULL,
            gain: Address::NULL,
            bias: Address::NULL,
            sum: Address::NULL,
            out: out.at,
            ..forward
        };
        let launch = bare.ladder(number).swap_remove(version);
        bench.run(&launch)?;
        let h: Vec<f64> =
            (0..size).map(|index| (sum[index] - means[index / width]) * scales[index / width]).collect();
        bench.compare(&launch.kernel, &format!("{kind} {width} bare"), &out, &h)?;
    }

    let (kept, mean) = (bench.array(number, &sums)?, bench.array(Number::F32, &means)?);
    let scale = bench.array(Number::F32, &scales)?;
    let mut backward = NormBackward {
        x: kept.at,
        gain: gain.at,
        out_gradient: dy.at,
        mean: mean.at,
        scale: scale.at,
        rows: rows as i32,
        width: width as i32,
        centred: i32::from(centred),
        ..NormBackward::default()
    };
    for version in 0..backward.ladder(number, bench.gpu).len() {
        let blocks = backward.blocks(bench.gpu);
        let gradient = bench.array(number, &past.values)?;
        let partial_gain = bench.blank(Number::F32, blocks as usize * width)?;
        let partial_bias = bench.blank(Number::F32, blocks as usize * width)?;
        backward.gradient = gradient.at;
        (backward.partial_gain, backward.partial_bias) = (partial_gain.at, partial_bias.at);
        let launches = backward.ladder(number, bench.gpu).swap_remove(version);
        for launch in &launches {
            bench.run(launch)?;
        }
        bench.compare(&launches[0].kernel, &format!("{kind} {width} gradient"), &gradient, &dx)?;
        let vectors = [(partial_gain, &gain_gradient, "gain"), (partial_bias, &bias_gradient, "bias")];
        for (partial, expected, name) in vectors {
            let total = bench.array(Number::F32, &vec![0.0; width])?;
            let sum = ColumnSum { x: partial.at, out: total.at, rows: blocks, width: width as i32, add: 1 };
            bench.run(&sum.launch(Number::F32, 1))?;
            let last = &launches[launches.len() - 1].kernel;
            bench.compare(last, &format!("{kind} {width} {name} gradient"), &total, expected)?;
        }
    }
    bench.device.clear()
}

/// 45 of 120 columns are here: more than lanes, not a multiple of a pack.
pub(crate) fn norm_part(bench: &mut Bench) -> Result<(), DeviceError> {
    let (rows, width, all_columns) = (9usize, 45usize, 120usize);
    for (number, centred) in
        [(Number::F32, true), (Number::Bf16, true), (Number::F32, false), (Number::Bf16, false)]
    {
        let [x, dy, past] = [(); 3].map(|()| bench.random(number, rows * width));
        let (x, dy, past) = (x?, dy?, past?);
        let (gain, bias) = (bench.random(number, width)?, bench.random(number, width)?);
        let (mean, scale) = (bench.random(Number::F32, rows)?, bench.random(Number::F32, rows)?);
        let all = bench.random(Number::F32, 2 * rows)?;
        let (mut sums, mut sums_back) = (Vec::new(), Vec::new());
        let (mut y, mut dx) = (Vec::new(), Vec::new());
        for row in 0..rows {
            let of = |at: usize| row * width + at;
            let h: Vec<f64> =
                (0..width).map(|at| (x.values[of(at)] - mean.values[row]) * scale.values[row]).collect();
            let e: Vec<f64> = (0..width).map(|at| dy.values[of(at)] * gain.values[at]).collect();
            let shard = &x.values[of(0)..of(width)];
            sums.extend([shard.iter().sum::<f64>(), shard.iter().map(|x| x * x).sum()]);
            sums_back.extend([e.iter().sum::<f64>(), e.iter().zip(&h).map(|(e, h)| e * h).sum()]);
            let [total, along] = [0, 1].map(|which| all.values[2 * row + which] / all_columns as f64);
            let total = if centred { total } else { 0.0 };
            y.extend((0..width).map(|at| h[at] * gain.values[at] + bias.values[at]));
            dx.extend(
                (0..width)
                    .map(|at| past.values[of(at)] + (e[at] - total - h[at] * along) * scale.values[row]),
            );
        }
        let base = NormPart {
            x: x.at,
            gain: gain.at,
            bias: bias.at,
            out_gradient: dy.at,
            mean: mean.at,
            scale: scale.at,
            rows: rows as i32,
            width: width as i32,
            all_columns: all_columns as i32,
            centred: i32::from(centred),
            ..NormPart::default()
        };
        let case = format!("centred {centred}");
        let out = bench.blank(Number::F32, 2 * rows)?;
        let launch = NormPart { sums: out.at, ..base }.sums(number);
        bench.run(&launch)?;
        bench.compare(&launch.kernel, &case, &out, &sums)?;
        let out = bench.blank(number, rows * width)?;
        let launch = NormPart { out: out.at, ..base }.forward(number);
        bench.run(&launch)?;
        bench.compare(&launch.kernel, &case, &out, &y)?;
        let out = bench.blank(Number::F32, 2 * rows)?;
        let launch = NormPart { sums: out.at, ..base }.sums_back(number);
        bench.run(&launch)?;
        bench.compare(&launch.kernel, &case, &out, &sums_back)?;
        let launch = NormPart { sums: all.at, out: past.at, ..base }.backward(number);
        bench.run(&launch)?;
        bench.compare(&launch.kernel, &case, &past, &dx)?;
    }
    Ok(())
}
