//! The nonlinearities of feed-forward layers, alone or with a gate.
//!
//! GELU by tanh: x/2 (1 + tanh u), u = √(2/π) (x + 0.044715 x³) (Hendrycks & Gimpel 2016, arXiv 1606.08415). SiLU: x σ(x).
//! Gated rows hold the gate's half first: out = f(gate) · up (Shazeer 2020, arXiv 2002.05202).

use crate::lanes::wide;
use crate::real::Real;
use crate::threads::Threads;

/// Which function.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Activation {
    /// GELU by tanh.
    Gelu,
    /// x σ(x).
    Silu,
    /// max(0, x).
    Relu,
    /// max(0, x)².
    SquaredRelu,
}

/// Rows and their function.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct FeedForward {
    /// Which function.
    pub activation: Activation,
    /// Whether the input has a gate's half and another one.
    pub gated: bool,
    /// Length of an output row.
    pub width: usize,
}

/// A function and its derivative, compiled into the loops below.
trait Function {
    fn value<T: Real>(x: T) -> T;
    fn slope<T: Real>(x: T) -> T;
}

struct Gelu;
struct Silu;
struct Relu;
struct SquaredRelu;

/// √(2/π).
const GELU_SCALE: f64 = 0.797_884_560_802_865_4;
const GELU_CUBE: f64 = 0.044_715;

impl Function for Gelu {
    #[inline(always)]
    fn value<T: Real>(x: T) -> T {
        let u = T::of(GELU_SCALE) * (x + T::of(GELU_CUBE) * x * x * x);
        T::of(0.5) * x * (T::ONE + u.tanh())
    }

    #[inline(always)]
    fn slope<T: Real>(x: T) -> T {
        let tanh = (T::of(GELU_SCALE) * (x + T::of(GELU_CUBE) * x * x * x)).tanh();
        let inner = T::of(GELU_SCALE) * (T::ONE + T::of(3.0 * GELU_CUBE) * x * x);
        T::of(0.5) * (T::ONE + tanh) + T::of(0.5) * x * (T::ONE - tanh * tanh) * inner
    }
}

impl Function for Silu {
    #[inline(always)]
    fn value<T: Real>(x: T) -> T {
        x * x.sigmoid()
    }

    #[inline(always)]
    fn slope<T: Real>(x: T) -> T {
        let sigmoid = x.sigmoid();
        sigmoid * (T::ONE + x * (T::ONE - sigmoid))
    }
}

impl Function for Relu {
    #[inline(always)]
    fn value<T: Real>(x: T) -> T {
        x.larger(T::ZERO)
    }

    #[inline(always)]
    fn slope<T: Real>(x: T) -> T {
        if x > T::ZERO { T::ONE } else { T::ZERO }
    }
}

impl Function for SquaredRelu {
    #[inline(always)]
    fn value<T: Real>(x: T) -> T {
        let x = x.larger(T::ZERO);
        x * x
    }

    #[inline(always)]
    fn slope<T: Real>(x: T) -> T {
        T::of(2.0) * x.larger(T::ZERO)
    }
}

impl FeedForward {
    /// Length of an input row.
    pub fn input_width(&self) -> usize {
        if self.gated { 2 * self.width } else { self.width }
    }

    /// `out` from `x`.
    pub fn forward<T: Real>(&self, x: &[T], out: &mut [T], threads: Threads) {
        match self.activation {
            Activation::Gelu => self.forward_by::<T, Gelu>(x, out, threads),
            Activation::Silu => self.forward_by::<T, Silu>(x, out, threads),
            Activation::Relu => self.forward_by::<T, Relu>(x, out, threads),
            Activation::SquaredRelu => self.forward_by::<T, SquaredRelu>(x, out, threads),
        }
    }

    /// The input's gradient from the input and the output's.
    pub fn backward<T: Real>(&self, x: &[T], out_gradient: &[T], gradient: &mut [T], threads: Threads) {
        match self.activation {
            Activation::Gelu => self.backward_by::<T, Gelu>(x, out_gradient, gradient, threads),
            Activation::Silu => self.backward_by::<T, Silu>(x, out_gradient, gradient, threads),
            Activation::Relu => self.backward_by::<T, Relu>(x, out_gradient, gradient, threads),
            Activation::SquaredRelu => {
                self.backward_by::<T, SquaredRelu>(x, out_gradient, gradient, threads);
            }
        }
    }

    fn forward_by<T: Real, F: Function>(&self, x: &[T], out: &mut [T], threads: Threads) {
        let (width, input) = (self.width, self.input_width());
        threads.rows(out, width, |first, out| {
            wide(|| {
                for (x, out) in x[first * input..].chunks_exact(input).zip(out.chunks_exact_mut(width)) {
                    let (gate, up) = x.split_at(width);
                    out.iter_mut().zip(gate).for_each(|(out, gate)| *out = F::value(*gate));
                    if self.gated {
                        out.iter_mut().zip(up).for_each(|(out, up)| *out *= *up);
                    }
                }
            });
        });
    }

    fn backward_by<T: Real, F: Function>(
        &self,
        x: &[T],
        out_gradient: &[T],
        gradient: &mut [T],
        threads: Threads,
    ) {
        let (width, input) = (self.width, self.input_width());
        threads.rows(gradient, input, |first, gradient| {
            wide(|| {
                let x = x[first * input..].chunks_exact(input);
                let rows = x.zip(out_gradient[first * width..].chunks_exact(width));
                for ((x, out_gradient), gradient) in rows.zip(gradient.chunks_exact_mut(input)) {
                    let (gate, up) = x.split_at(width);
                    let (to_gate, to_up) = gradient.split_at_mut(width);
                    for index in 0..width {
                        to_gate[index] = out_gradient[index] * F::slope(gate[index]);
                    }
                    if self.gated {
                        for index in 0..width {
                            to_up[index] = out_gradient[index] * F::value(gate[index]);
                            to_gate[index] *= up[index];
                        }
                    }
                }
            });
        });
    }
}
