//! What is to be scheduled: nodes, jobs, and the ways in which each job can run.
//!
//! Times are whole seconds from the beginning of the schedule: sums and comparisons of them are exact.

use thiserror::Error;

/// Nodes and the jobs that want them.
#[derive(Debug, Clone, PartialEq)]
pub struct Instance {
    /// Nodes of each kind. Nodes are counted over all kinds in this order.
    pub kinds: Vec<NodeKind>,
    /// Jobs.
    pub jobs: Vec<FleetJob>,
    /// Whose jobs they are.
    pub users: Vec<User>,
    /// Whether the nodes of a job must be successive.
    pub contiguous: bool,
}

/// Equal nodes.
#[derive(Debug, Clone, PartialEq)]
pub struct NodeKind {
    /// Their name.
    pub name: String,
    /// How many.
    pub nodes: usize,
    /// GPUs of each.
    pub gpus: usize,
}

/// Somebody with jobs.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct User {
    /// The name.
    pub name: String,
    /// The most GPUs that the user's jobs hold together at any time.
    pub max_gpus: Option<usize>,
}

/// A job.
#[derive(Debug, Clone, PartialEq)]
pub struct FleetJob {
    /// Its name.
    pub name: String,
    /// How it can run.
    pub choices: Vec<Choice>,
    /// When it may begin, in seconds.
    pub release: u64,
    /// When it should have ended, in seconds.
    pub deadline: Option<u64>,
    /// How much its completion counts; not negative.
    pub weight: f64,
    /// Jobs that must have ended before it begins.
    pub after: Vec<usize>,
    /// Whose job it is.
    pub user: Option<usize>,
    /// Seconds that it loses when it stops and goes on on other GPUs: its checkpoint is written, read, and it starts again. `None`:
    /// it keeps its GPUs until its end.
    pub restart: Option<u64>,
}

/// GPUs of one kind, and how long the job takes on them.
#[derive(Debug, Clone, PartialEq)]
pub struct Choice {
    /// The kind of the nodes.
    pub kind: usize,
    /// GPUs: on one node, or all of several nodes.
    pub gpus: usize,
    /// Expected duration in seconds, above zero.
    pub duration: u64,
    /// US dollars.
    pub cost: f64,
    /// The durations that come to pass over the expected one: equally likely values, ascending. Empty: always as expected.
    pub spread: Vec<f64>,
    /// The plan, in words.
    pub plan: String,
}

/// Why there is no schedule.
#[derive(Debug, Error, Clone, PartialEq, Eq)]
#[non_exhaustive]
pub enum FleetError {
    /// There is nothing to run on.
    #[error("the cluster has no GPUs")]
    NoGpus,
    /// A job that never fits.
    #[error("job `{job}` never fits: {reason}")]
    NeverFits {
        /// Its name.
        job: String,
        /// Why.
        reason: String,
    },
    /// Jobs that wait for each other.
    #[error("jobs wait for each other: {circle}; take one `after` away")]
    Circle {
        /// Their names.
        circle: String,
    },
    /// A deadline that nothing keeps.
    #[error(
        "job `{job}` cannot keep its deadline of {deadline} s: it ends after {earliest} s at the earliest"
    )]
    Deadline {
        /// Its name.
        job: String,
        /// The deadline.
        deadline: u64,
        /// The earliest end.
        earliest: u64,
    },
}

impl Choice {
    /// GPU-seconds.
    pub fn area(&self) -> u64 {
        self.gpus as u64 * self.duration
    }
}

impl Instance {
    /// The same without jobs.
    pub fn emptied(&self) -> Self {
        let (kinds, users) = (self.kinds.clone(), self.users.clone());
        Self { kinds, users, jobs: Vec::new(), contiguous: self.contiguous }
    }

    /// The first node of a kind.
    pub fn first_node(&self, kind: usize) -> usize {
        self.kinds[..kind].iter().map(|kind| kind.nodes).sum()
    }

    /// All nodes: the kind of each.
    pub fn nodes(&self) -> Vec<usize> {
        let of = |(kind, nodes): (usize, &NodeKind)| vec![kind; nodes.nodes];
        self.kinds.iter().enumerate().flat_map(of).collect()
    }

    /// All GPUs.
    pub fn gpus(&self) -> usize {
        self.kinds.iter().map(|kind| kind.nodes * kind.gpus).sum()
    }

    /// Nodes that a choice takes.
    pub fn nodes_of(&self, choice: &Choice) -> usize {
        choice.gpus.div_ceil(self.kinds[choice.kind].gpus)
    }

    /// The GPUs that jobs of a user hold at most at any time; `None` if that is no less than there are.
    pub fn quota(&self, user: usize) -> Option<usize> {
        self.users[user].max_gpus.filter(|most| *most < self.gpus())
    }

    /// The quota of a job's user.
    pub fn quota_of(&self, job: usize) -> Option<usize> {
        self.jobs[job].user.and_then(|user| self.quota(user))
    }

    /// Whether a job with a choice is on GPUs that there are, and no more than its user may have.
    pub fn has_room(&self, job: usize, choice: &Choice) -> bool {
        self.is_there(choice) && self.quota_of(job).is_none_or(|most| choice.gpus <= most)
    }

    /// Whether a choice is on GPUs that there are.
    pub fn is_there(&self, choice: &Choice) -> bool {
        let Some(kind) = self.kinds.get(choice.kind) else { return false };
        let whole = choice.gpus <= kind.gpus || choice.gpus.is_multiple_of(kind.gpus);
        choice.gpus > 0 && whole && choice.gpus <= kind.nodes * kind.gpus && choice.duration > 0
    }

    /// Checks that every job can run.
    ///
    /// # Errors
    /// The first fault.
    pub fn check(&self) -> Result<(), FleetError> {
        if self.gpus() == 0 {
            return Err(FleetError::NoGpus);
        }
        for (index, job) in self.jobs.iter().enumerate() {
            if !job.choices.iter().any(|choice| self.has_room(index, choice)) {
                let least = |of: &dyn Fn(&Choice) -> bool| {
                    job.choices.iter().filter(|choice| of(choice)).map(|choice| choice.gpus).min()
                };
                let there = least(&|choice| self.is_there(choice));
                let reason = match (there.zip(job.user), least(&|_| true)) {
                    (Some((least, user)), _) => self.exceeds_quota(user, least),
                    (None, Some(least)) => {
                        format!("it needs {least} GPUs or more, the cluster has {}", self.gpus())
                    }
                    (None, None) => "it has no plan".into(),
                };
                return Err(FleetError::NeverFits { job: job.name.clone(), reason });
            }
        }
        self.sorted().map(|_| ())
    }

    /// Why a job that needs at least `least` GPUs never fits.
    pub fn exceeds_quota(&self, user: usize, least: usize) -> String {
        let User { name, max_gpus } = &self.users[user];
        let most = max_gpus.unwrap_or(self.gpus());
        format!("it needs {least} GPUs or more, its user `{name}` may have {most} (`max_gpus`)")
    }

    /// Checks that no deadline is too early for its job alone.
    ///
    /// # Errors
    /// `Deadline`.
    pub fn check_deadlines(&self) -> Result<(), FleetError> {
        for (job, earliest) in self.jobs.iter().zip(self.earliest_ends()) {
            match job.deadline {
                Some(deadline) if earliest > deadline => {
                    return Err(FleetError::Deadline { job: job.name.clone(), deadline, earliest });
                }
                _ => {}
            }
        }
        Ok(())
    }

    /// The jobs in an order in which each comes after those that it waits for.
    ///
    /// # Errors
    /// `Circle`.
    pub fn sorted(&self) -> Result<Vec<usize>, FleetError> {
        let mut order = Vec::with_capacity(self.jobs.len());
        let mut done = vec![false; self.jobs.len()];
        while order.len() < self.jobs.len() {
            let ready = |job: &usize| !done[*job] && self.jobs[*job].after.iter().all(|before| done[*before]);
            let Some(next) = (0..self.jobs.len()).find(ready) else {
                let left = (0..self.jobs.len()).filter(|job| !done[*job]).collect();
                return Err(FleetError::Circle { circle: self.circle(left) });
            };
            done[next] = true;
            order.push(next);
        }
        Ok(order)
    }

    /// A circle among jobs each of which waits for another one of them.
    fn circle(&self, left: Vec<usize>) -> String {
        let mut path = vec![left[0]];
        loop {
            let last = path[path.len() - 1];
            let waits_for = self.jobs[last].after.iter().find(|before| left.contains(before));
            let next = *waits_for.expect("each waits for another");
            if let Some(start) = path.iter().position(|job| *job == next) {
                let names: Vec<&str> =
                    path[start..].iter().map(|job| self.jobs[*job].name.as_str()).collect();
                return format!("{} after {}", names.join(" after "), names[0]);
            }
            path.push(next);
        }
    }

    /// A time before which no job can have ended: its fastest choice after the fastest choices of those before it.
    pub fn earliest_ends(&self) -> Vec<u64> {
        let mut ends = vec![0; self.jobs.len()];
        for job in self.sorted().unwrap_or_default() {
            ends[job] = self.ready(job, &ends) + self.shortest(job);
        }
        ends
    }

    /// When a job may begin, given the ends of those before it.
    pub fn ready(&self, job: usize, ends: &[u64]) -> u64 {
        let before = self.jobs[job].after.iter().map(|before| ends[*before]).max().unwrap_or(0);
        before.max(self.jobs[job].release)
    }

    /// The choices of a job that have room.
    pub fn fitting(&self, job: usize) -> impl Iterator<Item = &Choice> {
        self.jobs[job].choices.iter().filter(move |choice| self.has_room(job, choice))
    }

    /// The least GPU-seconds of a job.
    pub fn least_area(&self, job: usize) -> u64 {
        self.fitting(job).map(Choice::area).min().unwrap_or(0)
    }

    /// The shortest duration of a job.
    pub fn shortest(&self, job: usize) -> u64 {
        self.fitting(job).map(|choice| choice.duration).min().unwrap_or(0)
    }

    /// The shortest time from the end of each job to the end of all that wait for it.
    pub fn tails(&self) -> Vec<u64> {
        let mut tails = vec![0; self.jobs.len()];
        for job in self.sorted().unwrap_or_default().into_iter().rev() {
            for before in &self.jobs[job].after {
                tails[*before] = tails[*before].max(tails[job] + self.shortest(job));
            }
        }
        tails
    }

    /// Drops choices that another one of the job replaces: on the same kind, on no more GPUs, not longer, and not dearer.
    pub fn without_dominated(mut self) -> Self {
        for job in &mut self.jobs {
            let all = std::mem::take(&mut job.choices);
            let replaces = |other: &Choice, choice: &Choice| {
                // Where a node is shared, fewer GPUs of one node always fit in place of more.
                other.kind == choice.kind
                    && other.gpus <= choice.gpus
                    && other.duration <= choice.duration
                    && other.cost <= choice.cost
            };
            let kept = all.iter().enumerate().filter(|(index, choice)| {
                !all.iter().enumerate().any(|(place, other)| {
                    let equal = replaces(choice, other);
                    place != *index && replaces(other, choice) && (!equal || place < *index)
                })
            });
            job.choices = kept.map(|(_, choice)| choice.clone()).collect();
        }
        self
    }
}
