//! Cross entropy over logits whose columns are sharded.
//!
//! A token's loss is ln Σⱼ e^(zⱼ − m) + m − z_t, m the largest logit and t the target. Each caller finds the three numbers
//! of its columns; together they have m, the sum and z_t without one of them seeing all logits. The gradient is
//! e^(zⱼ − m)/Σ − [j = t], times a scale (Shoeybi et al. 2019, arXiv 1909.08053, section 3).

use crate::lanes::{max, sum, wide};
use crate::real::Real;
use crate::threads::Threads;

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
    /// The target's logit; 0 if it is not among the columns.
    pub target: T,
}

impl<T: Real> Statistics<T> {
    /// ln Σ + m − z_t, in f64.
    pub fn loss(&self) -> f64 {
        self.sum.wide().ln() + self.maximum.wide() - self.target.wide()
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
    pub fn statistics<T: Real>(&self, logits: &[T], targets: &[u32], threads: Threads) -> Vec<Statistics<T>> {
        let empty = Statistics { maximum: T::LEAST, sum: T::ZERO, target: T::ZERO };
        let mut all = vec![empty; targets.len()];
        threads.rows(&mut all, 1, |first, all| {
            wide(|| {
                let rows = logits[first * self.width..].chunks_exact(self.width).zip(&targets[first..]);
                for (statistics, (row, target)) in all.iter_mut().zip(rows) {
                    let row = &row[..self.valid];
                    let maximum = max(row);
                    let target = self.column_of(*target).map_or(T::ZERO, |column| row[column]);
                    *statistics = Statistics { maximum, sum: sum(row, |z| (z - maximum).exp()), target };
                }
            });
        });
        all
    }

    /// Turns `logits` into their gradients; `of_all` are the statistics over all columns.
    pub fn gradient<T: Real>(
        &self,
        logits: &mut [T],
        targets: &[u32],
        of_all: &[Statistics<T>],
        scale: T,
        threads: Threads,
    ) {
        threads.rows(logits, self.width, |first, logits| {
            wide(|| {
                let tokens = targets[first..].iter().zip(&of_all[first..]);
                for (row, (target, of_all)) in logits.chunks_exact_mut(self.width).zip(tokens) {
                    let (valid, padding) = row.split_at_mut(self.valid);
                    let factor = scale / of_all.sum;
                    valid.iter_mut().for_each(|z| *z = (*z - of_all.maximum).exp() * factor);
                    padding.fill(T::ZERO);
                    if let Some(column) = self.column_of(*target) {
                        valid[column] -= scale;
                    }
                }
            });
        });
    }
}
