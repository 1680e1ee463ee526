//! LayerNorm and RMSNorm over rows.
//!
//! LayerNorm: y = g (x − μ)/s + b with s² = Var x + ε (Ba et al. 2016, arXiv 1607.06450). RMSNorm: y = g x/s with
//! s² = mean x² + ε (Zhang & Sennrich 2019, arXiv 1910.07467).

use crate::lanes::{dot, sum, sum2, wide};
use crate::real::Real;
use crate::threads::Threads;

/// A norm over rows of `width`.
#[derive(Debug, Clone, Copy, PartialEq)]
pub struct Norm {
    /// Whether the mean is subtracted.
    pub centred: bool,
    /// Length of a row.
    pub width: usize,
    /// ε.
    pub epsilon: f64,
}

/// Mean and 1/s of a row.
#[derive(Clone, Copy)]
struct Statistics<T> {
    mean: T,
    scale: T,
}

impl Norm {
    #[inline(always)]
    fn statistics<T: Real>(&self, x: &[T]) -> Statistics<T> {
        let count = T::of(x.len() as f64);
        let mean = if self.centred { sum(x, |x| x) / count } else { T::ZERO };
        let variance = sum(x, |x| (x - mean) * (x - mean)) / count;
        Statistics { mean, scale: T::ONE / (variance + T::of(self.epsilon)).sqrt() }
    }

    /// `out` = the norm of `x`, with a gain and a bias for each column if they are given.
    pub fn forward<T: Real>(
        &self,
        x: &[T],
        gain: Option<&[T]>,
        bias: Option<&[T]>,
        out: &mut [T],
        threads: Threads,
    ) {
        let width = self.width;
        threads.rows(out, width, |first, out| {
            wide(|| {
                for (x, out) in x[first * width..].chunks_exact(width).zip(out.chunks_exact_mut(width)) {
                    let Statistics { mean, scale } = self.statistics(x);
                    for (x, out) in x.iter().zip(out.iter_mut()) {
                        *out = (*x - mean) * scale;
                    }
                    if let Some(gain) = gain {
                        out.iter_mut().zip(gain).for_each(|(out, gain)| *out *= *gain);
                    }
                    if let Some(bias) = bias {
                        out.iter_mut().zip(bias).for_each(|(out, bias)| *out += *bias);
                    }
                }
            });
        });
    }

    /// Adds the input's gradient to `gradient`, from the output's gradient.
    ///
    /// With h = (x − μ)/s and e = g ∂y: ∂x = (e − mean e − h · mean(e h))/s; an RMSNorm has no mean e.
    pub fn backward<T: Real>(
        &self,
        x: &[T],
        gain: Option<&[T]>,
        out_gradient: &[T],
        gradient: &mut [T],
        threads: Threads,
    ) {
        let width = self.width;
        let count = T::of(width as f64);
        threads.rows(gradient, width, |first, gradient| {
            let mut gained = vec![T::ZERO; width];
            wide(|| {
                let rows = x[first * width..]
                    .chunks_exact(width)
                    .zip(out_gradient[first * width..].chunks_exact(width));
                for ((x, out_gradient), gradient) in rows.zip(gradient.chunks_exact_mut(width)) {
                    let Statistics { mean, scale } = self.statistics(x);
                    gained.copy_from_slice(out_gradient);
                    if let Some(gain) = gain {
                        gained.iter_mut().zip(gain).for_each(|(gained, gain)| *gained *= *gain);
                    }
                    let mean_gradient = if self.centred { sum(&gained, |e| e) / count } else { T::ZERO };
                    // Σ e h = s⁻¹ (Σ e x − μ Σ e), which centring makes exact enough: the mean is subtracted first.
                    let along = sum2(&gained, x, |e, x| e * (x - mean)) * scale / count;
                    for ((gradient, e), x) in gradient.iter_mut().zip(&gained).zip(x) {
                        *gradient += (*e - mean_gradient - (*x - mean) * scale * along) * scale;
                    }
                }
            });
        });
    }

    /// Adds to `gain` and `bias` their gradients: the sums over rows of ∂y h and of ∂y.
    pub fn vector_gradients<T: Real>(
        &self,
        x: &[T],
        out_gradient: &[T],
        gain: Option<&mut [T]>,
        bias: Option<&mut [T]>,
    ) {
        let width = self.width;
        wide(|| {
            if let Some(gain) = gain {
                for (x, out_gradient) in x.chunks_exact(width).zip(out_gradient.chunks_exact(width)) {
                    let Statistics { mean, scale } = self.statistics(x);
                    for ((gain, x), out_gradient) in gain.iter_mut().zip(x).zip(out_gradient) {
                        *gain += *out_gradient * (*x - mean) * scale;
                    }
                }
            }
            if let Some(bias) = bias {
                for out_gradient in out_gradient.chunks_exact(width) {
                    bias.iter_mut().zip(out_gradient).for_each(|(bias, gradient)| *bias += *gradient);
                }
            }
        });
    }
}

/// Σ xᵢ², in f64 over blocks, so that the norm of all gradients does not depend on how they are cut by more than
/// rounding in f64.
pub fn sum_of_squares(x: &[f32], threads: Threads) -> f64 {
    let block = |index: usize| {
        let block = &x[index * BLOCK..x.len().min((index + 1) * BLOCK)];
        wide(|| dot(block, block)).wide()
    };
    threads.each(x.len().div_ceil(BLOCK), block).into_iter().sum()
}

/// Squares that are summed in f32.
const BLOCK: usize = 4096;
