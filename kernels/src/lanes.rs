//! Loops over slices in the widest vectors of the machine, and sums in a fixed order that suits them.

use crate::real::Real;

/// Lanes of a sum: one AVX-512 register of f32, several smaller ones.
pub(crate) const LANES: usize = 16;

/// Runs `work` compiled for the widest vectors of this machine. The functions that it calls must be inlined.
#[inline(always)]
pub(crate) fn wide<R>(work: impl FnOnce() -> R) -> R {
    pulp::Arch::new().dispatch(work)
}

/// Folds pairs of lanes until one is left.
#[inline(always)]
pub(crate) fn join<T: Real>(mut lanes: [T; LANES], with: impl Fn(T, T) -> T) -> T {
    let mut width = LANES / 2;
    while width > 0 {
        for lane in 0..width {
            lanes[lane] = with(lanes[lane], lanes[lane + width]);
        }
        width /= 2;
    }
    lanes[0]
}

/// Σ f(xᵢ).
#[inline(always)]
pub(crate) fn sum<T: Real>(x: &[T], f: impl Fn(T) -> T) -> T {
    let mut lanes = [T::ZERO; LANES];
    let chunks = x.chunks_exact(LANES);
    let rest = chunks.remainder();
    for chunk in chunks {
        for (lane, x) in lanes.iter_mut().zip(chunk) {
            *lane += f(*x);
        }
    }
    for (lane, x) in lanes.iter_mut().zip(rest) {
        *lane += f(*x);
    }
    join(lanes, |a, b| a + b)
}

/// Σ xᵢ yᵢ.
#[inline(always)]
pub(crate) fn dot<T: Real>(x: &[T], y: &[T]) -> T {
    sum2(x, y, |x, y| x * y)
}

/// Σ f(xᵢ, yᵢ).
#[inline(always)]
pub(crate) fn sum2<T: Real>(x: &[T], y: &[T], f: impl Fn(T, T) -> T) -> T {
    let mut lanes = [T::ZERO; LANES];
    let (xs, ys) = (x.chunks_exact(LANES), y.chunks_exact(LANES));
    let (x, y) = (xs.remainder(), ys.remainder());
    for (x, y) in xs.zip(ys) {
        for lane in 0..LANES {
            lanes[lane] += f(x[lane], y[lane]);
        }
    }
    for ((lane, x), y) in lanes.iter_mut().zip(x).zip(y) {
        *lane += f(*x, *y);
    }
    join(lanes, |a, b| a + b)
}

/// The largest element; −∞ if there is none.
#[inline(always)]
pub(crate) fn max<T: Real>(x: &[T]) -> T {
    let mut lanes = [T::LEAST; LANES];
    let chunks = x.chunks_exact(LANES);
    let rest = chunks.remainder();
    for chunk in chunks {
        for (lane, x) in lanes.iter_mut().zip(chunk) {
            *lane = x.larger(*lane);
        }
    }
    for (lane, x) in lanes.iter_mut().zip(rest) {
        *lane = x.larger(*lane);
    }
    join(lanes, T::larger)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn sums_and_maxima_of_any_length() {
        for length in [0usize, 1, 15, 16, 17, 40] {
            let x: Vec<f64> = (0..length).map(|index| index as f64 - 3.0).collect();
            let n = length as f64;
            // Σ (i − 3) = n (n − 1)/2 − 3 n.
            assert_eq!(wide(|| sum(&x, |x| x)), n * (n - 1.0) / 2.0 - 3.0 * n);
            assert_eq!(dot(&x, &x), x.iter().map(|x| x * x).sum::<f64>());
            assert_eq!(max(&x), x.last().copied().unwrap_or(f64::NEG_INFINITY));
        }
    }
}
