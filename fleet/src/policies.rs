//! Policies that decide while jobs arrive. Each is a file; `POLICIES` lists them.

mod backfill;
mod fifo;
mod finish_time_fairness;
mod makespan;
mod max_min;
mod optimus;
mod pollux;
mod rolling;
mod shares;
mod sia;
mod split;
mod tiresias;

use crate::online::{Active, Grant, Packing, View};

/// A policy.
pub trait Policy: Sync {
    /// Its name.
    fn name(&self) -> &'static str;
    /// What it does, in a few words.
    fn summary(&self) -> &'static str;
    /// How it places jobs.
    fn packing(&self) -> Packing {
        Packing::Tightest
    }
    /// Its state at the beginning.
    fn begin(&self) -> Box<dyn Decide>;
}

/// A policy with what it remembers.
pub trait Decide {
    /// The GPUs of the next round, at most one grant for each job. GPUs are taken in this order; a job with the grant that it
    /// holds keeps its GPUs, one without a grant waits.
    fn decide(&mut self, view: &View) -> Vec<Grant>;
}

/// All of them.
pub const POLICIES: [&dyn Policy; 11] = [
    &fifo::Fifo,
    &backfill::Backfill,
    &tiresias::Tiresias,
    &max_min::MaxMin,
    &makespan::Makespan,
    &finish_time_fairness::FinishTimeFairness,
    &optimus::Optimus,
    &pollux::Pollux,
    &sia::Sia,
    &rolling::Rolling(rolling::Least::Completion),
    &rolling::Rolling(rolling::Least::Makespan),
];

/// The policy of a name.
pub fn policy(name: &str) -> Option<&'static dyn Policy> {
    POLICIES.into_iter().find(|policy| policy.name() == name)
}

/// The jobs of a view, the largest weight first, then by arrival.
fn in_order<'a, 'b>(view: &'a View<'b>) -> Vec<&'a Active<'b>> {
    let mut jobs: Vec<&Active> = view.jobs.iter().collect();
    jobs.sort_by(|one, other| other.of.weight.total_cmp(&one.of.weight));
    jobs
}

/// What running jobs hold, and how many GPUs of each kind they leave.
fn kept(view: &View) -> (Vec<Grant>, Vec<usize>) {
    let mut free = view.capacity();
    let held: Vec<Grant> = view.jobs.iter().filter_map(|job| job.held).collect();
    held.iter().for_each(|grant| free[grant.kind] -= grant.gpus);
    (held, free)
}

/// The fastest kind that has room for a job with the GPUs that it asks for.
fn room(view: &View, job: &Active, free: &[usize]) -> Option<Grant> {
    let kinds = view.kinds_of(job).into_iter();
    let found = kinds.map(|(kind, _)| kind).find(|kind| free[*kind] >= job.of.gpus);
    found.map(|kind| Grant { job: job.job, kind, gpus: job.of.gpus })
}
