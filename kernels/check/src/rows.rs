//! Look-up, rotary positions, activations, additions, dropout and copies of columns.

use crate::bench::Bench;
use trainwright_kernels::cuda::activation::{Activation, Direction, Function, Residual};
use trainwright_kernels::cuda::columns::Columns;
use trainwright_kernels::cuda::dropout::{DropOut, Drops};
use trainwright_kernels::cuda::embedding::{LookUp, TableGradient};
use trainwright_kernels::cuda::rotary::Rotary;
use trainwright_kernels::cuda::{DeviceError, Number};
use trainwright_kernels::dropout::Dropout;

pub(crate) fn look_up(bench: &mut Bench) -> Result<(), DeviceError> {
    let (tokens, batch, first, rows) = (21, 3, 5u32, 11);
    for number in Number::ALL {
        // More packs than lanes, and a width that no pack divides.
        for width in [520, 37] {
            let table = bench.random(number, rows * width)?;
            let positions = bench.random(number, 9 * width)?;
            // Entries 0 to 19, of which 5 to 15 are in the table.
            let entries = bench.indices(tokens, rows as u32 + 9);
            let mut expected = Vec::new();
            for (token, entry) in entries.iter().enumerate() {
                for column in 0..width {
                    let row = entry.wrapping_sub(first) as usize;
                    let looked_up = if row < rows { table.values[row * width + column] } else { 0.0 };
                    expected.push(looked_up + positions.values[(token / batch + 2) * width + column]);
                }
            }
            let mut look_up = LookUp {
                table: table.at,
                entries: bench.words(&entries)?,
                positions: positions.at,
                tokens: tokens as i32,
                width: width as i32,
                first: first as i32,
                rows: rows as i32,
                batch: batch as i32,
                first_position: 2,
                ..LookUp::default()
            };
            for version in 0..look_up.ladder(number, bench.gpu).len() {
                let out = bench.blank(number, tokens * width)?;
                look_up.out = out.at;
                let launch = look_up.ladder(number, bench.gpu).swap_remove(version);
                bench.run(&launch)?;
                bench.compare(&launch.kernel, &format!("width {width}"), &out, &expected)?;
            }
        }
    }
    Ok(())
}

pub(crate) fn table_gradient(bench: &mut Bench) -> Result<(), DeviceError> {
    // More columns than threads, one at a time and by packs; rows of odd length; many more rows than tokens.
    for (width, rows) in [(300, 11), (2056, 11), (301, 11), (24, 2500)] {
        one_table_gradient(bench, width, rows)?;
    }
    Ok(())
}

fn one_table_gradient(bench: &mut Bench, width: usize, rows: usize) -> Result<(), DeviceError> {
    let (tokens, first) = (50usize, 5u32);
    for number in Number::ALL {
        let gradient = bench.random(number, tokens * width)?;
        let before = bench.random(Number::F32, rows * width)?;
        let entries = bench.indices(tokens, rows as u32 + 9);
        let mut expected = before.values.clone();
        for (token, entry) in entries.iter().enumerate() {
            let row = entry.wrapping_sub(first) as usize;
            for column in (0..width).filter(|_| row < rows) {
                expected[row * width + column] += gradient.values[token * width + column];
            }
        }
        let mut order: Vec<u32> = (0..tokens as u32)
            .filter(|token| (entries[*token as usize].wrapping_sub(first) as usize) < rows)
            .collect();
        order.sort_by_key(|token| entries[*token as usize]);
        let behind = |row: u32| order.iter().filter(|token| entries[**token as usize] < first + row).count();
        let starts: Vec<u32> = (0..=rows as u32).map(|row| behind(row) as u32).collect();
        let entries = bench.words(&entries)?;
        let (order, starts) = (bench.words(&order)?, bench.words(&starts)?);
        let gradient_of = TableGradient {
            gradient: gradient.at,
            entries,
            order,
            starts,
            table: before.at,
            tokens: tokens as i32,
            width: width as i32,
            first: first as i32,
            rows: rows as i32,
        };
        for version in 0..gradient_of.ladder(number, bench.gpu).len() {
            let table = bench.array(Number::F32, &before.values)?;
            let launch = TableGradient { table: table.at, ..gradient_of }
                .ladder(number, bench.gpu)
                .swap_remove(version);
            bench.run(&launch)?;
            let case = format!("{rows} rows of {width}");
            bench.compare(&launch.kernel, &case, &table, &expected)?;
        }
    }
    Ok(())
}

pub(crate) fn rotary(bench: &mut Bench) -> Result<(), DeviceError> {
    let (tokens, batch, first_position) = (10usize, 2usize, 4usize);
    for number in Number::ALL {
        // All of a head turns, or a part of it; more packs than threads; and widths that no pack divides.
        for (heads, head_dim, half, first) in
            [(3, 32, 16, 32), (3, 32, 8, 8), (40, 128, 64, 0), (3, 10, 5, 3)]
        {
            let row = first + heads * head_dim + 8 - first % 8;
            let x = bench.random(number, tokens * row)?;
            let angle =
                |position: usize, pair: usize| position as f64 * 1e4f64.powf(-(pair as f64) / half as f64);
            let places: Vec<(usize, usize)> =
                (0..12).flat_map(|position| (0..half).map(move |pair| (position, pair))).collect();
            let cosines: Vec<f64> =
                places.iter().map(|(position, pair)| angle(*position, *pair).cos()).collect();
            let sines: Vec<f64> =
                places.iter().map(|(position, pair)| angle(*position, *pair).sin()).collect();
            let (cosines, sines) = (bench.array(Number::F32, &cosines)?, bench.array(Number::F32, &sines)?);
            let turned = |direction: f64| {
                let mut turned = x.values.clone();
                for token in 0..tokens {
                    for head in 0..heads {
                        for pair in 0..half {
                            let low = token * row + first + head * head_dim + pair;
                            let angle = direction * angle(token / batch + first_position, pair);
                            let (a, b) = (x.values[low], x.values[low + half]);
                            turned[low] = a * angle.cos() - b * angle.sin();
                            turned[low + half] = b * angle.cos() + a * angle.sin();
                        }
                    }
                }
                turned
            };
            for direction in [1.0f32, -1.0] {
                let expected = turned(f64::from(direction));
                let mut rotary = Rotary {
                    cosines: cosines.at,
                    sines: sines.at,
                    tokens: tokens as i32,
                    row: row as i32,
                    first: first as i32,
                    heads: heads as i32,
                    head_dim: head_dim as i32,
                    half: half as i32,
                    batch: batch as i32,
                    first_position: first_position as i32,
                    direction,
                    ..Rotary::default()
                };
                for version in 0..rotary.ladder(number, bench.gpu).len() {
                    let rotated = bench.array(number, &x.values)?;
                    rotary.x = rotated.at;
                    let launch = rotary.ladder(number, bench.gpu).swap_remove(version);
                    bench.run(&launch)?;
                    let case = format!("{head_dim} wide, {half} pairs, {direction}");
                    bench.compare(&launch.kernel, &case, &rotated, &expected)?;
                }
            }
        }
    }
    Ok(())
}

fn function(function: Function, x: f64) -> f64 {
    match function {
        Function::Gelu => {
            0.5 * x * (1.0 + ((2.0 / std::f64::consts::PI).sqrt() * (x + 0.044715 * x.powi(3))).tanh())
        }
        Function::Silu => x / (1.0 + (-x).exp()),
        Function::Relu => x.max(0.0),
        Function::SquaredRelu => x.max(0.0).powi(2),
    }
}

/// By differences: (f(x + h) − f(x − h)) / 2h is the slope up to h² f‴/6, 10⁻¹⁰ or so. Where a function has a corner, which
/// sums of bf16 do hit, it is the slope to the left.
fn slope(of: Function, x: f64) -> f64 {
    let h = 1e-5;
    let from = if x == 0.0 && of == Function::Relu { x } else { x + h };
    (function(of, from) - function(of, from - 2.0 * h)) / (2.0 * h)
}

pub(crate) fn activation(bench: &mut Bench) -> Result<(), DeviceError> {
    let rows = 5;
    for number in Number::ALL {
        for of in Function::ALL {
            for (gated, width) in [(false, 48), (true, 2056), (true, 13)] {
                let input = if gated { 2 * width } else { width };
                let spread: Vec<f64> = (0..rows * input).map(|_| 5.0 * bench.next()).collect();
                let (x, bias) = (bench.array(number, &spread)?, bench.random(number, input)?);
                let dy = bench.random(number, rows * width)?;
                let (mut y, mut dx) = (Vec::new(), vec![0.0; rows * input]);
                for row in 0..rows {
                    for column in 0..width {
                        let at = row * input + column;
                        let z = x.values[at] + bias.values[column];
                        let dy = dy.values[row * width + column];
                        let up = if gated { x.values[at + width] + bias.values[column + width] } else { 1.0 };
                        y.push(function(of, z) * up);
                        dx[at] = dy * slope(of, z) * up;
                        if gated {
                            dx[at + width] = dy * function(of, z);
                        }
                    }
                }
                let mut activation = Activation {
                    x: x.at,
                    bias: bias.at,
                    out_gradient: dy.at,
                    rows: rows as i32,
                    width: width as i32,
                    gated: i32::from(gated),
                    ..Activation::default()
                };
                for (direction, expected) in [(Direction::Forward, &y), (Direction::Backward, &dx)] {
                    for version in 0..activation.ladder(of, direction, number, bench.gpu).len() {
                        let out = bench.blank(number, expected.len())?;
                        activation.out = out.at;
                        let launch = activation.ladder(of, direction, number, bench.gpu).swap_remove(version);
                        bench.run(&launch)?;
                        bench.compare(&launch.kernel, &format!("{width} gated {gated}"), &out, expected)?;
                    }
                }
            }
        }
    }
    Ok(())
}

pub(crate) fn residual(bench: &mut Bench) -> Result<(), DeviceError> {
    let rows = 5;
    for number in Number::ALL {
        for width in [2056, 13] {
            let (x, past) = (bench.random(number, rows * width)?, bench.random(number, rows * width)?);
            let bias = bench.random(number, width)?;
            let sums = (0..rows * width).map(|at| x.values[at] + past.values[at] + bias.values[at % width]);
            let expected: Vec<f64> = sums.collect();
            let mut residual = Residual {
                x: x.at,
                bias: bias.at,
                rows: rows as i32,
                width: width as i32,
                ..Residual::default()
            };
            for version in 0..residual.ladder(number, bench.gpu).len() {
                // In place: the sum replaces what came past.
                let out = bench.array(number, &past.values)?;
                (residual.residual, residual.out) = (out.at, out.at);
                let launch = residual.ladder(number, bench.gpu).swap_remove(version);
                bench.run(&launch)?;
                bench.compare(&launch.kernel, &format!("width {width}"), &out, &expected)?;
            }
        }
    }
    Ok(())
}

pub(crate) fn drop_out(bench: &mut Bench) -> Result<(), DeviceError> {
    // Full packs, and a width that no pack divides.
    let (batch, places, first) = (3usize, 5usize, 4usize);
    let dropout = Dropout { rate: 0.25, key: 9 };
    for number in Number::ALL {
        for width in [40, 41] {
            let rows = batch * places;
            let x = bench.random(number, rows * width)?;
            // Positions of two ranges, as ring attention has them.
            let position = |row: usize| [0, 1, 2, 30, 31][row / batch];
            let of_row: Vec<[usize; 2]> = (0..rows).map(|row| [first + row % batch, position(row)]).collect();
            let mut expected = x.values.clone();
            dropout.apply(&mut expected, width, &of_row);
            let positions: Vec<u32> = (0..rows).map(|row| position(row) as u32).collect();
            let drop_out = DropOut {
                x: x.at,
                positions: bench.words(&positions)?,
                drops: Drops::of(&dropout, [first, 0, 0, 0]),
                rows: rows as i32,
                width: width as i32,
                batch: batch as i32,
            };
            for version in 0..drop_out.ladder(number, bench.gpu).len() {
                let x = bench.array(number, &x.values)?;
                let launch = DropOut { x: x.at, ..drop_out }.ladder(number, bench.gpu).swap_remove(version);
                bench.run(&launch)?;
                bench.compare(&launch.kernel, &format!("{width} columns"), &x, &expected)?;
            }
        }
    }
    Ok(())
}

pub(crate) fn columns(bench: &mut Bench) -> Result<(), DeviceError> {
    let (rows, from_row, to_row) = (11usize, 48usize, 40usize);
    for number in Number::ALL {
        // Full packs, and none.
        for (width, first, to_first) in [(16, 24, 8), (13, 3, 20)] {
            let from = bench.random(number, rows * from_row)?;
            let before = bench.random(number, rows * to_row)?;
            let mut expected = before.values.clone();
            for (row, column) in (0..rows).flat_map(|row| (0..width).map(move |column| (row, column))) {
                expected[row * to_row + to_first + column] = from.values[row * from_row + first + column];
            }
            let mut columns = Columns {
                from: from.at.after(first * number.size()),
                rows: rows as i32,
                width: width as i32,
                from_row: from_row as i32,
                to_row: to_row as i32,
                ..Columns::default()
            };
            columns.to = before.at.after(to_first * number.size());
            for version in 0..columns.ladder(number, bench.gpu).len() {
                let to = bench.array(number, &before.values)?;
                columns.to = to.at.after(to_first * number.size());
                let launch = columns.ladder(number, bench.gpu).swap_remove(version);
                bench.run(&launch)?;
                bench.compare(&launch.kernel, &format!("{width} columns"), &to, &expected)?;
            }
        }
    }
    Ok(())
}
