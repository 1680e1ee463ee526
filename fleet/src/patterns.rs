//! A bound by what can follow one another on one GPU, from the dual of a linear program over such patterns.
//!
//! In a window of L seconds a GPU of kind k runs a *pattern*: at most one choice of each job, with durations that add up to no more
//! than L. A job with choice c is in the patterns of g_c GPUs. So with x_p GPUs of pattern p
//!
//! ```text
//! Σ_{p of kind k} x_p ≤ N_k          Σ_c y_jc = 1          Σ_{p with (j, c)} x_p = g_c y_jc
//! ```
//!
//! has a solution with x, y ≥ 0 if the jobs fit into the window. If they do, then for all prices u_j ≥ 0
//!
//! ```text
//! Σ_j u_j  ≤  Σ_k N_k max { Σ_{(j, c) ∈ p} u_j / g_c : p a pattern of kind k }
//! ```
//!
//! for the GPUs of a job that ends up with choice c add up to g_c · u_j / g_c. The maximum is a knapsack with one choice of each
//! job, which is solved exactly with durations rounded down to a part of L: this only allows more patterns. Prices for which
//! the inequality does not hold prove that the window is too short, wherever they come from. They come from the linear program
//! over the patterns that were found so far (Kelley's method), half way from the best prices.
//!
//! Source: Gilmore & Gomory 1961, Operations Research 9(6), 849–859, for patterns of one choice for each job.

use trainwright_planner::solver::{IntegerProgram, Limits, Relation, search};

/// Parts of the window to which durations are rounded down.
const PARTS: u64 = 1_000;
/// The most prices that are tried for one window.
const TRIES: usize = 200;

/// A way to run a job within a window.
pub struct WindowChoice {
    /// What its GPUs are taken of: the GPUs of a kind, or those that a user may have.
    pub resource: usize,
    /// GPUs.
    pub gpus: usize,
    /// Seconds, not longer than the window.
    pub duration: u64,
}

/// Jobs that must run within a window.
pub struct Window {
    /// Seconds of the window.
    pub room: u64,
    /// GPUs of each resource.
    pub gpus: Vec<usize>,
    /// The choices of each job.
    pub jobs: Vec<Vec<WindowChoice>>,
}

/// Choices of jobs that fit on one GPU of a resource one after the other.
struct Pattern {
    resource: usize,
    /// Jobs with the GPUs of their choices.
    jobs: Vec<(usize, usize)>,
    /// Σ u_j / g_c.
    value: f64,
}

impl Window {
    /// Whether some prices prove that the jobs do not fit, or one has no choice that is short enough. `prices` are the first
    /// that are tried, the GPU-time of each job if there are none; the best that were found stay there.
    pub fn is_too_short(&self, prices: &mut Vec<f64>) -> bool {
        if self.jobs.is_empty() {
            return false;
        }
        if self.jobs.iter().any(Vec::is_empty) {
            return true;
        }
        if prices.is_empty() {
            let area = |choice: &WindowChoice| choice.gpus as f64 * choice.duration as f64;
            let least = |of: &Vec<WindowChoice>| of.iter().map(area).fold(f64::INFINITY, f64::min);
            *prices = self.jobs.iter().map(least).collect();
        }
        let mut known: Vec<Pattern> = Vec::new();
        let mut tried = prices.clone();
        let mut best = 0.0;
        for _ in 0..TRIES {
            let patterns: Vec<Pattern> =
                (0..self.gpus.len()).map(|resource| self.dearest(resource, &tried)).collect();
            let all: f64 = patterns.iter().map(|of| self.gpus[of.resource] as f64 * of.value).sum();
            let value = if all > 0.0 { tried.iter().sum::<f64>() / all } else { 0.0 };
            if value > best {
                best = value;
                *prices = tried.iter().map(|price| price / all).collect();
            }
            // An excess of less than a part in 10⁹ may be rounding.
            if best > 1.0 + 1e-9 {
                return true;
            }
            known.extend(patterns);
            let Some(optimum) = self.prices_for(&known) else { return false };
            if optimum.iter().sum::<f64>() <= 1.0 {
                return false;
            }
            tried = optimum.iter().zip(prices.iter()).map(|(one, other)| (one + other) / 2.0).collect();
        }
        false
    }

    /// The pattern of a resource that is worth most, and its worth.
    fn dearest(&self, resource: usize, prices: &[f64]) -> Pattern {
        let parts = self.room.min(PARTS) as usize;
        let length = |choice: &WindowChoice| {
            (u128::from(choice.duration) * parts as u128 / u128::from(self.room.max(1))) as usize
        };
        let mut worth = vec![0.0_f64; parts + 1];
        // The place of the choice that is taken, from 1 on.
        let mut taken = vec![0_u32; self.jobs.len() * (parts + 1)];
        for (job, choices) in self.jobs.iter().enumerate() {
            let of = choices.iter().enumerate().filter(|(_, choice)| choice.resource == resource);
            let of: Vec<(u32, usize, f64)> = of
                .map(|(index, choice)| (index as u32 + 1, length(choice), prices[job] / choice.gpus as f64))
                .collect();
            let taken = &mut taken[job * (parts + 1)..][..parts + 1];
            for room in (0..=parts).rev() {
                let mut most = worth[room];
                for (index, length, price) in &of {
                    if *length <= room && worth[room - length] + price > most {
                        most = worth[room - length] + price;
                        taken[room] = *index;
                    }
                }
                worth[room] = most;
            }
        }
        let mut jobs = Vec::new();
        let mut room = parts;
        for (job, choices) in self.jobs.iter().enumerate().rev() {
            if let Some(index) = (taken[job * (parts + 1) + room] as usize).checked_sub(1) {
                let choice = &choices[index];
                jobs.push((job, choice.gpus));
                room -= length(choice);
            }
        }
        Pattern { resource, jobs, value: worth[parts] }
    }

    /// The largest prices for which no known pattern is worth more than its GPU: Σ_k N_k v_k = 1.
    fn prices_for(&self, known: &[Pattern]) -> Option<Vec<f64>> {
        let mut program = IntegerProgram::default();
        let jobs: Vec<usize> = self.jobs.iter().map(|_| program.column(-1.0, 1.0)).collect();
        let gpus: Vec<usize> = self.gpus.iter().map(|_| program.column(0.0, 1.0)).collect();
        let all = gpus.iter().zip(&self.gpus).map(|(column, count)| (*column, *count as f64)).collect();
        program.row(all, Relation::Equal, 1.0);
        for (job, choices) in self.jobs.iter().enumerate() {
            for (resource, column) in gpus.iter().enumerate() {
                let of = choices.iter().filter(|choice| choice.resource == resource);
                if let Some(least) = of.map(|choice| choice.gpus).min() {
                    let terms = vec![(jobs[job], 1.0 / least as f64), (*column, -1.0)];
                    program.row(terms, Relation::AtMost, 0.0);
                }
            }
        }
        for pattern in known {
            let mut terms: Vec<(usize, f64)> =
                pattern.jobs.iter().map(|(job, gpus)| (jobs[*job], 1.0 / *gpus as f64)).collect();
            terms.push((gpus[pattern.resource], -1.0));
            program.row(terms, Relation::AtMost, 0.0);
        }
        let values = search(&program, Limits::default()).values?;
        Some(values[..self.jobs.len()].iter().map(|value| value.max(0.0)).collect())
    }
}
