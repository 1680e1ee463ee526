//! Cross entropy over logits whose columns are sharded.
//!
//! A token's loss is ln Σⱼ e^(zⱼ − m) + m − z_t, m the largest logit and t the target. Each caller finds the three numbers
//! of its columns; together they have m, the sum and z_t without one of them seeing all logits. The gradient is
//! e^(zⱼ − m)/Σ − [j = t], times a scale (Shoeybi et al. 2019, arXiv 1909.08053, section 3).
//!
//! Label smoothing with ε replaces the target by the distribution qⱼ = (1 − ε) [j = t] + ε/V over the V entries (Szegedy et
//! al. 2016, arXiv 1512.00567, section 7): z_t becomes Σⱼ qⱼ zⱼ, which is a sum over columns too. The z-loss adds
//! c (ln Σⱼ e^zⱼ)² (Chowdhery et al. 2022, arXiv 2204.02311, section 5). The gradient is then
//! (1 + 2 c ln Σⱼ e^zⱼ) e^(zⱼ − m)/Σ − qⱼ.

use crate::lanes::{max, sum, wide};
use crate::real::Real;
use crate::threads::Threads;

/// A target that has no loss: its token is not to be predicted.
pub const IGNORED: u32 = u32::MAX;

/// What a token's loss is beside plain cross entropy; by default nothing.
#[derive(Debug, Clone, Copy, PartialEq, Default)]
pub struct LossTerms {
    /// ε of label smoothing, from 0 to below 1.
    pub label_smoothing: f64,
    /// c of the z-loss.
    pub z_loss: f64,
    /// V, the entries of the whole vocabulary; read if ε is not 0.
    pub vocabulary: usize,
}

impl LossTerms {
    /// ε/V.
    fn uniform(&self) -> f64 {
        if self.label_smoothing == 0.0 { 0.0 } else { self.label_smoothing / self.vocabulary as f64 }
    }
}

/// The columns of the vocabulary that a row of logits holds: entry `first` and those after it.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Columns {
    /// The first entry.
    pub first: usize,
    /// Length of a row.
    pub width: usize,
    /// How many of a row's columns are entries; the rest is padding.
    pub valid: usize,
}

/// Statistics of a token's logits.
#[derive(Debug, Clone, Copy, PartialEq)]
pub struct Statistics<T> {
    /// The largest logit.
    pub maximum: T,
    /// Σ e^(z − maximum).
    pub sum: T,
    /// Σⱼ qⱼ zⱼ over the columns: without label smoothing the target's logit, 0 if it is not among them.
    pub target: T,
}

impl<T: Real> Statistics<T> {
    /// ln Σ + m − Σⱼ qⱼ zⱼ, in f64.
    pub fn loss(&self) -> f64 {
        self.sum.wide().ln() + self.maximum.wide() - self.target.wide()
    }

    /// ln Σⱼ e^zⱼ = ln Σ + m, in f64.
    pub fn log_sum(&self) -> f64 {
        self.sum.wide().ln() + self.maximum.wide()
    }

    /// The sum of exponentials relative to another maximum.
    pub fn sum_below(&self, maximum: T) -> T {
        if self.maximum == T::LEAST { T::ZERO } else { self.sum * (self.maximum - maximum).exp() }
    }
}

impl Columns {
    fn column_of(&self, target: u32) -> Option<usize> {
        (target as usize).checked_sub(self.first).filter(|column| *column < self.valid)
    }

    /// Of each row of `logits` over these columns.
    pub fn statistics<T: Real>(
        &self,
        logits: &[T],
        targets: &[u32],
        terms: &LossTerms,
        threads: Threads,
    ) -> Vec<Statistics<T>> {
        let (uniform, of_target) = (T::of(terms.uniform()), T::of(1.0 - terms.label_smoothing));
        let empty = Statistics { maximum: T::LEAST, sum: T::ZERO, target: T::ZERO };
        let mut all = vec![empty; targets.len()];
        threads.rows(&mut all, 1, |first, all| {
            wide(|| {
                let rows = logits[first * self.width..].chunks_exact(self.width).zip(&targets[first..]);
                for (statistics, (row, target)) in all.iter_mut().zip(rows) {
                    let row = &row[..self.valid];
                    let maximum = max(row);
                    let mut target = self.column_of(*target).map_or(T::ZERO, |column| row[column]);
                    if uniform != T::ZERO {
                        target = of_target * target + uniform * sum(row, |z| z);
                    }
                    *statistics = Statistics { maximum, sum: sum(row, |z| (z - maximum).exp()), target };
                }
            });
        });
        all
    }

    /// Turns `logits` into the gradients of the losses times `scale`; `of_all` are the statistics over all columns. Rows of
    /// ignored targets become zeros.
    pub fn gradient<T: Real>(
        &self,
        logits: &mut [T],
        (targets, of_all): (&[u32], &[Statistics<T>]),
        terms: &LossTerms,
        scale: T,
        threads: Threads,
    ) {
        let (uniform, of_target) =
            (scale * T::of(terms.uniform()), scale * T::of(1.0 - terms.label_smoothing));
        threads.rows(logits, self.width, |first, logits| {
            wide(|| {
                let tokens = targets[first..].iter().zip(&of_all[first..]);
                for (row, (target, of_all)) in logits.chunks_exact_mut(self.width).zip(tokens) {
                    if *target == IGNORED {
                        row.fill(T::ZERO);
                        continue;
                    }
                    let (valid, padding) = row.split_at_mut(self.valid);
                    let mut factor = scale / of_all.sum;
                    if terms.z_loss != 0.0 {
                        factor *= T::of(1.0 + 2.0 * terms.z_loss * of_all.log_sum());
                    }
                    valid.iter_mut().for_each(|z| *z = (*z - of_all.maximum).exp() * factor);
                    padding.fill(T::ZERO);
                    if uniform != T::ZERO {
                        valid.iter_mut().for_each(|z| *z -= uniform);
                    }
                    if let Some(column) = self.column_of(*target) {
                        valid[column] -= of_target;
                    }
                }
            });
        });
    }
}
