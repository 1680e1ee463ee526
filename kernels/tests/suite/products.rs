//! Matrix products against three loops.

use crate::common::{check_near, narrow, random};
use trainwright_kernels::{Matrix, Onto, Threads, multiply, multiply_into};

fn loops(a: &[f64], b: &[f64], [m, n, k]: [usize; 3]) -> Vec<f64> {
    let at = |i: usize, j: usize| (0..k).map(|l| a[i * k + l] * b[l * n + j]).sum();
    (0..m * n).map(|index| at(index / n, index % n)).collect()
}

fn transpose(x: &[f64], columns: usize) -> Vec<f64> {
    let rows = x.len() / columns;
    (0..x.len()).map(|index| x[index % rows * columns + index / rows]).collect()
}

#[test]
fn all_forms_are_what_three_loops_give() {
    let sizes = [[1, 1, 1], [3, 5, 7], [1, 64, 30], [17, 33, 65], [70, 130, 64], [1, 64, 300]];
    // Miri interprets some thousand additions a second.
    let sizes = if cfg!(miri) { &sizes[..3] } else { &sizes[..] };
    for (seed, size) in sizes.iter().enumerate() {
        let [m, n, k] = *size;
        let (a, b) = (random(seed as u64, m * k), random(seed as u64 + 99, k * n));
        let expected = loops(&a, &b, *size);
        let (a_turned, b_turned) = (transpose(&a, k), transpose(&b, n));
        for threads in [Threads::ONE, Threads::new(2)] {
            let forms = [
                (Matrix::rows(&a, k), Matrix::rows(&b, n)),
                (Matrix::rows(&a_turned, m).transposed(), Matrix::rows(&b, n)),
                (Matrix::rows(&a, k), Matrix::rows(&b_turned, k).transposed()),
            ];
            for (a, b) in forms {
                let mut out = vec![1.0; m * n];
                multiply(&mut out, Onto::Replace, a, b, threads);
                multiply(&mut out, Onto::Add, a, b, threads);
                assert!(out.iter().zip(&expected).all(|(out, x)| (out - 2.0 * x).abs() < 1e-12 * k as f64));
            }
        }
        let (a, b) = (narrow(&a), narrow(&b));
        let mut out = vec![f32::NAN; m * n];
        multiply(&mut out, Onto::Replace, Matrix::rows(&a, k), Matrix::rows(&b, n), Threads::ONE);
        check_near("product", &out, &expected, 1e-5);
    }
}

#[test]
fn rows_may_stand_apart() {
    // [1 2; 3 4] · [1 0; 0 1] in rows of 2 every 3; the numbers between stay.
    let (a, b) = ([1.0, 2.0, 9.0, 3.0, 4.0], [1.0, 0.0, 0.0, 1.0]);
    let mut out = [7.0f64; 5];
    multiply_into(
        &mut out,
        3,
        Onto::Replace,
        Matrix::strided(&a, [2, 2], 3),
        Matrix::rows(&b, 2),
        Threads::ONE,
    );
    assert_eq!(out, [1.0, 2.0, 7.0, 3.0, 4.0]);
}
