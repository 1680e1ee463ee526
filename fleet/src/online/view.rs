//! What a policy sees.

use super::speeds::Speeds;
use super::trace::Arrival;
use crate::instance::NodeKind;
use trainwright_spec::units::Seconds;

/// GPUs for a job in the next round.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Grant {
    /// The job, by its place in the trace.
    pub job: usize,
    /// The kind of nodes.
    pub kind: usize,
    /// How many GPUs.
    pub gpus: usize,
}

/// A job that has arrived and not ended.
#[derive(Debug, Clone)]
pub struct Active<'a> {
    /// Its place in the trace.
    pub job: usize,
    /// The job.
    pub of: &'a Arrival,
    /// The number of its profile.
    pub profile: usize,
    /// The place of its user among those with a quota.
    pub user: Option<usize>,
    /// The most GPUs that it may have: those that it asks for if its user has a quota, else the largest of its range.
    pub most: usize,
    /// Steps that are left.
    pub remaining: f64,
    /// How long it holds GPUs without a step after each change of them.
    pub restart: Seconds,
    /// How long it has held GPUs.
    pub executed: Seconds,
    /// What it holds.
    pub held: Option<Grant>,
    /// The most GPUs that it has held.
    pub most_held: usize,
    /// How often it began anew after its first start.
    pub restarts: usize,
}

/// The state at the start of a round.
#[derive(Debug)]
pub struct View<'a> {
    /// The time.
    pub now: Seconds,
    /// The length of a round.
    pub round: Seconds,
    /// The nodes.
    pub kinds: &'a [NodeKind],
    /// Jobs that have arrived and not ended, by arrival, without those for which the quota of their user has no room.
    pub jobs: &'a [Active<'a>],
    /// Measured speeds.
    pub speeds: &'a Speeds,
}

impl View<'_> {
    /// GPUs of each kind.
    pub fn capacity(&self) -> Vec<usize> {
        self.kinds.iter().map(|kind| kind.nodes * kind.gpus).collect()
    }

    /// Steps a second of a job on GPUs of a kind; 0 if it does not run there.
    pub fn speed(&self, job: &Active, kind: usize, gpus: usize) -> f64 {
        self.speeds.best(job.profile, kind, gpus)
    }

    /// Kinds on which a job runs with the GPUs that it asks for, the fastest first.
    pub fn kinds_of(&self, job: &Active) -> Vec<(usize, f64)> {
        let speed = |kind: usize| (kind, self.speed(job, kind, job.of.gpus));
        let mut all: Vec<(usize, f64)> =
            (0..self.kinds.len()).map(speed).filter(|(_, speed)| *speed > 0.0).collect();
        all.sort_by(|one, other| other.1.total_cmp(&one.1));
        all
    }

    /// Every way in which an elastic policy can run a job: kind, GPUs, speed. More GPUs that are not faster are left out.
    pub fn choices(&self, job: &Active) -> Vec<(usize, usize, f64)> {
        let mut all = Vec::new();
        for kind in 0..self.kinds.len() {
            let mut fastest = 0.0;
            for gpus in self.speeds.counts(job.profile, kind) {
                let speed = self.speed(job, kind, gpus);
                if (job.of.range.0..=job.most).contains(&gpus) && speed > fastest {
                    all.push((kind, gpus, speed));
                    fastest = speed;
                }
            }
        }
        all
    }
}
