//! Rounds, one after the other: ask the policy, move jobs, let them work.

use super::placement::Free;
use super::speeds::Speeds;
use super::trace::Arrival;
use super::view::{Active, Grant, View};
use crate::instance::{NodeKind, User};
use crate::policies::Policy;
use rayon::prelude::*;
use thiserror::Error;
use trainwright_spec::units::Seconds;

/// The most rounds of a simulation.
pub const MOST_ROUNDS: u64 = 1_000_000;
/// Steps that are nearer to their end than this part of a round's are done: sums of many numbers are not exact.
const ROUNDING: f64 = 1e-9;

/// What is simulated.
#[derive(Debug, Clone, Copy)]
pub struct Question<'a> {
    /// The nodes.
    pub kinds: &'a [NodeKind],
    /// Jobs by arrival.
    pub jobs: &'a [Arrival],
    /// The users with a quota.
    pub users: &'a [User],
    /// Measured speeds.
    pub speeds: &'a Speeds,
    /// The length of a round, above zero.
    pub round: Seconds,
    /// The restart of jobs that do not say their own.
    pub restart: Seconds,
}

/// Why there is no outcome.
#[derive(Debug, Error, Clone, PartialEq)]
#[non_exhaustive]
pub enum OnlineError {
    /// A profile that the table does not have.
    #[error("job `{job}`: `profile` is {profile:?}; the table of speeds does not have it")]
    NoProfile {
        /// The job.
        job: String,
        /// Its profile.
        profile: String,
    },
    /// A job that no kind of nodes can run with the GPUs that it asks for.
    #[error(
        "job `{job}` never fits: the table has no speed above 0 for {gpus} GPUs of a kind that there are"
    )]
    NeverFits {
        /// The job.
        job: String,
        /// Its GPUs.
        gpus: usize,
    },
    /// A job that asks for more than its user may have.
    #[error("job `{job}` never fits: it asks for {gpus} GPUs, its user `{user}` may have {quota} (--quota)")]
    ExceedsQuota {
        /// The job.
        job: String,
        /// Its GPUs.
        gpus: usize,
        /// The user.
        user: String,
        /// The GPUs that the user may have.
        quota: usize,
    },
    /// A simulation without end.
    #[error(
        "{policy}: after {MOST_ROUNDS} rounds {left} jobs are left; longer rounds (--round) reach further"
    )]
    TooLong {
        /// The policy.
        policy: &'static str,
        /// Jobs that have not ended.
        left: usize,
    },
}

/// What became of a job.
#[derive(Debug, Clone, Copy, PartialEq)]
pub struct Done {
    /// When it first held GPUs.
    pub start: Seconds,
    /// When its last step ended.
    pub end: Seconds,
    /// How often it began anew after its first start.
    pub restarts: usize,
}

/// GPUs that a job holds for a time.
#[derive(Debug, Clone, PartialEq)]
pub struct Segment {
    /// The job.
    pub job: usize,
    /// The kind of its nodes.
    pub kind: usize,
    /// Its GPUs, counted over all nodes, ascending.
    pub gpus: Vec<usize>,
    /// On how many nodes they are.
    pub nodes: usize,
    /// From when on.
    pub from: Seconds,
    /// Until when: the job ends or loses them.
    pub to: Seconds,
}

/// What a policy did with a trace.
#[derive(Debug, Clone, PartialEq)]
pub struct Outcome {
    /// Of each job.
    pub jobs: Vec<Done>,
    /// By their ends.
    pub segments: Vec<Segment>,
}

/// A job while it runs.
struct Running {
    segment: Segment,
    /// When its restart is over.
    ready: f64,
    speed: f64,
}

/// Runs a policy over a trace.
///
/// # Errors
/// A job that never fits, or too many rounds.
pub fn simulate(question: &Question, policy: &dyn Policy) -> Result<Outcome, OnlineError> {
    let profiles = profiles(question)?;
    let (jobs, round) = (question.jobs, question.round.get());
    let mut decide = policy.begin();
    let mut free = Free::new(question.kinds);
    let mut running: Vec<Option<Running>> = jobs.iter().map(|_| None).collect();
    let mut done: Vec<Option<Done>> = vec![None; jobs.len()];
    let mut starts: Vec<Option<f64>> = vec![None; jobs.len()];
    let mut active: Vec<Active> = Vec::new();
    let mut waiting: Vec<Active> = Vec::new();
    let (mut segments, mut next, mut at) = (Vec::new(), 0, 0_u64);
    for _ in 0..MOST_ROUNDS {
        let now = at as f64 * round;
        while next < jobs.len() && jobs[next].arrival.get() <= now {
            waiting.push(arrived(question, next, profiles[next]));
            next += 1;
        }
        admit(question.users, &mut waiting, &mut active);
        if active.is_empty() {
            let Some(coming) = jobs.get(next) else { break };
            at = (coming.arrival.get() / round).ceil() as u64;
            continue;
        }
        let view = View {
            now: Seconds::new(now),
            round: question.round,
            kinds: question.kinds,
            jobs: &active,
            speeds: question.speeds,
        };
        let grants = decide.decide(&view);
        is_allowed(&view, &grants, policy.name());
        for job in &mut active {
            let granted = grants.iter().find(|grant| grant.job == job.job);
            if job.held.as_ref() != granted
                && let Some(was) = running[job.job].take()
            {
                free.give(&was.segment.gpus);
                segments.push(Segment { to: Seconds::new(now), ..was.segment });
                job.held = None;
            }
        }
        for grant in &grants {
            let job =
                active.iter_mut().find(|job| job.job == grant.job).expect("a grant is for a job that waits");
            if job.held.is_some() {
                continue;
            }
            let gpus = free.take(grant.kind, grant.gpus, policy.packing());
            let nodes = free.nodes_of(&gpus);
            let speed = question.speeds.on_nodes(job.profile, grant.kind, grant.gpus, nodes);
            let from = Seconds::new(now);
            let segment = Segment { job: grant.job, kind: grant.kind, gpus, nodes, from, to: from };
            running[grant.job] = Some(Running { segment, ready: now + job.restart.get(), speed });
            job.restarts += usize::from(starts[grant.job].is_some());
            starts[grant.job].get_or_insert(now);
            (job.held, job.most_held) = (Some(*grant), job.most_held.max(grant.gpus));
        }
        at += 1;
        let until = at as f64 * round;
        active.retain_mut(|job| {
            let Some(run) = &running[job.job] else { return true };
            let from = now.max(run.ready);
            let steps = run.speed * (until - from).max(0.0);
            job.executed = Seconds::new(job.executed.get() + round);
            if job.remaining > steps * (1.0 + ROUNDING) {
                job.remaining -= steps;
                return true;
            }
            let end = Seconds::new((from + job.remaining / run.speed).min(until));
            let run = running[job.job].take().expect("it runs");
            free.give(&run.segment.gpus);
            segments.push(Segment { to: end, ..run.segment });
            let start = Seconds::new(starts[job.job].unwrap_or(now));
            done[job.job] = Some(Done { start, end, restarts: job.restarts });
            false
        });
    }
    let left = done.iter().filter(|done| done.is_none()).count();
    let jobs: Option<Vec<Done>> = done.into_iter().collect();
    let jobs = jobs.ok_or(OnlineError::TooLong { policy: policy.name(), left })?;
    Ok(Outcome { jobs, segments })
}

/// Runs each policy over a trace, beside each other; the outcomes have the order of the policies.
///
/// # Errors
/// That of the first policy that has one.
pub fn simulate_all(question: &Question, policies: &[&dyn Policy]) -> Result<Vec<Outcome>, OnlineError> {
    let all: Vec<Result<Outcome, OnlineError>> =
        policies.par_iter().map(|policy| simulate(question, *policy)).collect();
    all.into_iter().collect()
}

/// Lets jobs in, the largest weight first, then by arrival: all of nobody with a quota; of a user with one as long as the GPUs
/// that its jobs ask for are within it. So no policy exceeds a quota, whatever it grants.
fn admit<'a>(users: &[User], waiting: &mut Vec<Active<'a>>, active: &mut Vec<Active<'a>>) {
    if waiting.is_empty() {
        return;
    }
    waiting.sort_by(|one, other| other.of.weight.total_cmp(&one.of.weight).then(one.job.cmp(&other.job)));
    let mut left: Vec<usize> = users.iter().map(|user| user.max_gpus.unwrap_or(usize::MAX)).collect();
    for (user, job) in active.iter().filter_map(|job| Some((job.user?, job))) {
        left[user] -= job.of.gpus;
    }
    waiting.retain(|job| {
        if let Some(left) = job.user.map(|user| &mut left[user]) {
            let rest = left.checked_sub(job.of.gpus);
            // Where one has no room, those behind it wait, too.
            *left = rest.unwrap_or(0);
            if rest.is_none() {
                return true;
            }
        }
        active.push(job.clone());
        false
    });
    active.sort_by_key(|job| job.job);
}

impl Question<'_> {
    /// The place of a job's user among those with a quota.
    pub fn user(&self, job: &Arrival) -> Option<usize> {
        self.users.iter().position(|user| job.user.as_ref() == Some(&user.name))
    }
}

fn arrived<'a>(question: &Question<'a>, job: usize, profile: usize) -> Active<'a> {
    let of = &question.jobs[job];
    let user = question.user(of);
    Active {
        job,
        of,
        profile,
        user,
        most: if user.is_some() { of.gpus } else { of.range.1 },
        remaining: of.steps,
        restart: of.restart.unwrap_or(question.restart),
        executed: Seconds::ZERO,
        held: None,
        most_held: 0,
        restarts: 0,
    }
}

/// The profile of each job.
fn profiles(question: &Question) -> Result<Vec<usize>, OnlineError> {
    let of_job = |job: &Arrival| {
        let Some(profile) = question.speeds.profile(&job.profile) else {
            return Err(OnlineError::NoProfile { job: job.name.clone(), profile: job.profile.clone() });
        };
        let user = question.user(job).map(|user| &question.users[user]);
        let quota = user.and_then(|user| Some((&user.name, user.max_gpus?)));
        if let Some((user, quota)) = quota.filter(|(_, quota)| job.gpus > *quota) {
            let (job, gpus, user) = (job.name.clone(), job.gpus, user.clone());
            return Err(OnlineError::ExceedsQuota { job, gpus, user, quota });
        }
        let runs = |kind: usize| question.speeds.best(profile, kind, job.gpus) > 0.0;
        match (0..question.kinds.len()).any(runs) {
            true => Ok(profile),
            false => Err(OnlineError::NeverFits { job: job.name.clone(), gpus: job.gpus }),
        }
    };
    question.jobs.iter().map(of_job).collect()
}

/// Panics if a policy grants what there is not: a fault of the policy, not of an input.
fn is_allowed(view: &View, grants: &[Grant], policy: &str) {
    let mut left = view.capacity();
    for (index, grant) in grants.iter().enumerate() {
        let once = grants[..index].iter().all(|other| other.job != grant.job);
        let room = left[grant.kind].checked_sub(grant.gpus);
        assert!(once && grant.gpus > 0, "{policy} grants a job GPUs twice, or none");
        left[grant.kind] = room.unwrap_or_else(|| panic!("{policy} grants more GPUs than there are"));
        let job = view.jobs.iter().find(|job| job.job == grant.job);
        let runs = job.is_some_and(|job| view.speed(job, grant.kind, grant.gpus) > 0.0);
        assert!(runs, "{policy} grants GPUs on which a job does not run");
    }
}
