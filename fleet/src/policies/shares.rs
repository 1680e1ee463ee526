//! What Gavel's policies share: the part of time that each job should spend on each kind of nodes, and rounds that come near it.
//!
//! ```text
//! max θ   s.t.   Σ_k v_jk x_jk ≥ θ r_j      for every job j
//!                Σ_k x_jk ≤ 1               for every job j
//!                Σ_j g_j x_jk ≤ n_k         for every kind k
//! ```
//!
//! x_jk is the part of time of job j on kind k, v_jk its speed there, g_j its GPUs, n_k the GPUs of a kind, r_j what the policy
//! asks for. Rounds grant GPUs by priority x_jk / (the part of rounds that j had on k); what is left goes to jobs that wait.
//! Source: Narayanan et al. 2020, OSDI, sections 3 to 5.

use super::Decide;
use crate::online::{Active, Grant, View};
use trainwright_planner::solver::{IntegerProgram, Limits, Relation, search};

/// Parts of time of each job on each kind.
pub type Shares = Vec<Vec<f64>>;

/// Shares with the largest θ, and θ; `None` if the solver finds none.
pub fn shares(view: &View, asked: &[f64]) -> Option<(f64, Shares)> {
    let kinds = view.kinds.len();
    let speed = |job: usize, kind: usize| {
        let of = &view.jobs[job];
        view.speed(of, kind, of.of.gpus) / asked[job]
    };
    let all = (0..view.jobs.len()).flat_map(|job| (0..kinds).map(move |kind| (job, kind)));
    // With the largest coefficient as unit, θ is at most one.
    let unit = all.clone().map(|(job, kind)| speed(job, kind)).fold(0.0, f64::max);
    let mut program = IntegerProgram::default();
    let theta = program.column(-1.0, 1.0);
    let columns: Vec<usize> = all.clone().map(|_| program.column(0.0, 1.0)).collect();
    let column = |job: usize, kind: usize| columns[job * kinds + kind];
    for job in 0..view.jobs.len() {
        let mut reaches: Vec<(usize, f64)> =
            (0..kinds).map(|kind| (column(job, kind), speed(job, kind) / unit)).collect();
        reaches.retain(|(_, value)| *value > 0.0);
        let once = reaches.iter().map(|(column, _)| (*column, 1.0)).collect();
        reaches.push((theta, -1.0));
        program.row(reaches, Relation::AtLeast, 0.0);
        program.row(once, Relation::AtMost, 1.0);
    }
    for (kind, capacity) in view.capacity().into_iter().enumerate() {
        let gpus = |job: usize| (column(job, kind), view.jobs[job].of.gpus as f64);
        program.row((0..view.jobs.len()).map(gpus).collect(), Relation::AtMost, capacity as f64);
    }
    let values = search(&program, Limits::default()).values?;
    let of_job = |job: usize| {
        let runs = |kind: usize| if speed(job, kind) > 0.0 { values[column(job, kind)] } else { 0.0 };
        (0..kinds).map(runs).collect()
    };
    Some((values[theta] * unit, (0..view.jobs.len()).map(of_job).collect()))
}

/// Decides by shares, which are computed anew when jobs come or go.
pub fn by_shares(shares: fn(&View) -> Option<Shares>) -> Box<dyn Decide> {
    Box::new(ByShares { rounds: Rounds::default(), shares })
}

struct ByShares {
    rounds: Rounds,
    shares: fn(&View) -> Option<Shares>,
}

impl Decide for ByShares {
    fn decide(&mut self, view: &View) -> Vec<Grant> {
        self.rounds.grants(view, self.shares)
    }
}

/// Shares until jobs come or go, and the rounds since then.
#[derive(Debug, Default)]
struct Rounds {
    jobs: Vec<usize>,
    shares: Shares,
    /// Rounds of each job on each kind.
    had: Vec<Vec<f64>>,
    rounds: f64,
}

impl Rounds {
    /// The grants of a round; `shares` is asked when the jobs are others than before.
    fn grants(&mut self, view: &View, shares: impl FnOnce(&View) -> Option<Shares>) -> Vec<Grant> {
        let jobs: Vec<usize> = view.jobs.iter().map(|job| job.job).collect();
        let kinds = view.kinds.len();
        if jobs != self.jobs {
            self.shares = shares(view).unwrap_or_else(|| vec![vec![1.0; kinds]; jobs.len()]);
            self.had = vec![vec![0.0; kinds]; jobs.len()];
            (self.jobs, self.rounds) = (jobs, 0.0);
        }
        self.rounds += 1.0;
        let priority = |job: usize, kind: usize| match self.shares[job][kind] {
            share if share < 1e-6 => 0.0,
            share => share * self.rounds / self.had[job][kind].max(1e-3),
        };
        let runs = |job: &Active, kind: usize| view.speed(job, kind, job.of.gpus) > 0.0;
        let mut pairs: Vec<(f64, bool, usize, usize)> = Vec::new();
        for (place, job) in view.jobs.iter().enumerate() {
            for kind in (0..kinds).filter(|kind| runs(job, *kind)) {
                let stays = job.held.is_some_and(|held| held.kind == kind);
                pairs.push((priority(place, kind), stays, place, kind));
            }
        }
        // The highest priority first; of equals, jobs that stay where they are, then by arrival.
        pairs.sort_by(|one, other| {
            other.0.total_cmp(&one.0).then(other.1.cmp(&one.1)).then((one.2, one.3).cmp(&(other.2, other.3)))
        });
        let mut free = view.capacity();
        let mut granted = vec![false; view.jobs.len()];
        let mut grants = Vec::new();
        for (_, _, place, kind) in pairs {
            let job = &view.jobs[place];
            if !granted[place] && free[kind] >= job.of.gpus {
                granted[place] = true;
                free[kind] -= job.of.gpus;
                self.had[place][kind] += 1.0;
                grants.push(Grant { job: job.job, kind, gpus: job.of.gpus });
            }
        }
        grants
    }
}

/// Speed of a job with an equal part of the cluster: x_jk = n_k / (J g_j), and in all at most 1.
pub fn equal_share(view: &View, job: &Active) -> f64 {
    let capacity = view.capacity();
    let gpus: usize = capacity.iter().sum();
    let part = (gpus as f64 / (view.jobs.len() * job.of.gpus) as f64).min(1.0);
    let speed =
        |(kind, here): (usize, &usize)| view.speed(job, kind, job.of.gpus) * *here as f64 / gpus as f64;
    part * capacity.iter().enumerate().map(speed).sum::<f64>()
}
