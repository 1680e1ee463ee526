//! Casts to fp8, and fp8 products.

use crate::bench::{Bench, Finding, tolerance};
use trainwright_kernels::cuda::Address;
use trainwright_kernels::cuda::fp8::{CastFp8, Fp8Operands, Fp8Product};
use trainwright_kernels::cuda::{DeviceError, Number};
use trainwright_kernels::fp8::Fp8;

/// The code of the nearest value, ties to even, found by trying all codes.
fn nearest(to: Fp8, x: f64) -> u8 {
    let sizes =
        (0..=0x7eu8).map(|code| (code, f64::from(to.decode(code)))).filter(|(_, size)| size.is_finite());
    let distance = |size: f64| (x.abs() - size).abs();
    let closer = |one: (u8, f64), other: (u8, f64)| match distance(one.1).total_cmp(&distance(other.1)) {
        std::cmp::Ordering::Less => one,
        std::cmp::Ordering::Equal if one.0.is_multiple_of(2) => one,
        _ => other,
    };
    let code = sizes.reduce(closer).expect("there are numbers").0;
    if x.is_sign_negative() { code | 0x80 } else { code }
}

impl Bench<'_> {
    fn compare_bytes(&mut self, kernel: &str, case: &str, found: &[u8], expected: &[u8]) {
        let wrong = found.iter().zip(expected).filter(|(found, expected)| found != expected).count();
        let (kernel, case, error) = (kernel.into(), case.into(), wrong as f64);
        self.findings.push(Finding { kernel, case, error, tolerance: 0.0 });
    }
}

pub(crate) fn narrow(bench: &mut Bench) -> Result<(), DeviceError> {
    for (number, to) in Number::ALL.into_iter().flat_map(|number| Fp8::ALL.map(|to| (number, to))) {
        // Less than a tile, and some; either copy may be left out; zeros have a scale too.
        let least = 1e-30 / f64::from(to.largest());
        for (rows, width, scale, copies) in [
            (37usize, 75usize, 4.0, [true, true]),
            (64, 96, 4.0, [true, true]),
            (1, 16, 4.0, [true, true]),
            (40, 33, 4.0, [true, false]),
            (33, 48, 4.0, [false, true]),
            (8, 16, least, [true, true]),
        ] {
            let size = rows * width;
            // From large to smaller than the format's least number. The largest makes the scale 4, so that all is exact.
            let mut values: Vec<f64> = (0..size)
                .map(|index| f64::from(to.largest()) * bench.next() * 2f64.powi(-(index as i32 % 36)))
                .collect();
            values[size / 2] = -scale * f64::from(to.largest());
            if scale == least {
                values.fill(0.0);
            }
            let x = bench.array(number, &values)?;
            let codes: Vec<u8> = x.values.iter().map(|x| nearest(to, x / scale)).collect();
            let turned: Vec<u8> = (0..size).map(|at| codes[at % rows * width + at / rows]).collect();
            let scale_found = bench.blank(Number::F32, 1)?;
            let cast = CastFp8 { x: x.at, rows: rows as i32, width: width as i32, ..CastFp8::default() };
            let mut room = |made: bool| match made {
                true => bench.device.upload(&vec![0xff; size]),
                false => Ok(Address::NULL),
            };
            let [out, transposed] = [room(copies[0])?, room(copies[1])?];
            let largest = bench.blank(Number::F32, cast.blocks(bench.gpu) as usize)?.at;
            let cast = CastFp8 { largest, scale: scale_found.at, out, transposed, ..cast };
            let launches = cast.launches(number, to, bench.gpu);
            for launch in &launches {
                bench.run(launch)?;
            }
            let [largest, narrow] = launches.map(|launch| launch.kernel);
            bench.compare(&largest, &format!("{rows} x {width} scale"), &scale_found, &[scale])?;
            let made = [("as it lies", cast.out, &codes), ("transposed", cast.transposed, &turned)];
            for (case, at, expected) in made.into_iter().filter(|(_, at, _)| *at != Address::NULL) {
                let found = bench.device.download(at, size)?;
                bench.compare_bytes(&narrow, &format!("{rows} x {width} {case}"), &found, expected);
            }
        }
    }
    Ok(())
}

/// fp8 products, on devices that support them.
pub(crate) fn product(bench: &mut Bench) -> Result<(), DeviceError> {
    if !bench.device.supports_fp8() {
        return Ok(());
    }
    let (rows, columns, inner) = (48usize, 32usize, 80usize);
    for (left, right) in [(Fp8::E4m3, Fp8::E4m3), (Fp8::E5m2, Fp8::E4m3), (Fp8::E4m3, Fp8::E5m2)] {
        for (output, accumulate, bias) in [
            (Number::F32, false, false),
            (Number::Bf16, false, false),
            (Number::Bf16, false, true),
            (Number::F32, true, false),
        ] {
            let mut codes = |of: Fp8, count: usize| -> Vec<u8> {
                (0..count).map(|_| nearest(of, 4.0 * bench.next())).collect()
            };
            let (left_codes, right_codes) = (codes(left, rows * inner), codes(right, columns * inner));
            let scales = [bench.array(Number::F32, &[0.37])?, bench.array(Number::F32, &[1.9])?];
            let before = bench.random(output, rows * columns)?;
            let biases = bench.random(output, columns)?;
            let of = |row: usize, column: usize| -> f64 {
                let term = |step: usize| {
                    let (left, right) = (
                        left.decode(left_codes[row * inner + step]),
                        right.decode(right_codes[column * inner + step]),
                    );
                    f64::from(left) * f64::from(right)
                };
                let sum = (0..inner).map(term).sum::<f64>() * scales[0].values[0] * scales[1].values[0];
                let sum = sum + if bias { biases.values[column] } else { 0.0 };
                sum + if accumulate { before.values[row * columns + column] } else { 0.0 }
            };
            let places = (0..rows).flat_map(|row| (0..columns).map(move |column| (row, column)));
            let expected: Vec<f64> = places.map(|(row, column)| of(row, column)).collect();
            let at = Fp8Operands {
                left: bench.device.upload(&left_codes)?,
                left_scale: scales[0].at,
                right: bench.device.upload(&right_codes)?,
                right_scale: scales[1].at,
                out: before.at,
                bias: if bias { biases.at } else { Address::NULL },
            };
            let product = Fp8Product { rows, columns, inner, left, right, output, accumulate, bias };
            let [left, right] = [left, right].map(Fp8::name);
            let case = format!("{left} times {right} onto {}, bias: {bias}", output.suffix());
            if let Err(error) = bench.device.multiply_fp8(product, at) {
                let (kernel, case, error) = (error.to_string(), case, f64::INFINITY);
                bench.findings.push(Finding { kernel, case, error, tolerance: 0.0 });
                continue;
            }
            // Hopper's tensor cores add fp8 products with some 14 bits (DeepSeek-AI 2024, arXiv 2412.19437, section 3.5.2).
            let tolerance = tolerance(output).max(1e-3);
            bench.compare_within("fp8 product", &case, &before, &expected, tolerance)?;
        }
    }
    Ok(())
}
