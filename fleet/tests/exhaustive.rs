//! Random instances, as many of each kind as `TRAINWRIGHT_FLEET` says, against an exhaustive search that shares no code with the
//! library.
//!
//! The search keeps for each GPU what it is busy with, second by second, and tries for each job in turn every choice, every set of
//! GPUs up to their order on a node, and every start up to a horizon: no list schedules, no integer program.

use crate::long::cases;
use rand::rngs::ChaCha8Rng;
use rand::{RngExt, SeedableRng};
use trainwright_fleet::bound::by_patterns;
use trainwright_fleet::check::check;
use trainwright_fleet::heuristics::HEURISTICS;
use trainwright_fleet::instance::{Choice, FleetJob, Instance, NodeKind, User};
use trainwright_fleet::objective::Objective;
use trainwright_fleet::{Effort, solve};

/// Busy GPUs of each node at each second.
struct Exhaustive<'a> {
    instance: &'a Instance,
    objective: Objective,
    horizon: usize,
    busy: Vec<Vec<usize>>,
    /// GPUs that the jobs of each user hold at each second.
    held: Vec<Vec<usize>>,
    ends: Vec<u64>,
    order: Vec<usize>,
    keeps_deadlines: bool,
    best: f64,
}

impl Exhaustive<'_> {
    /// A value that is reached at least, whatever follows: the jobs that are left take their shortest durations.
    fn value(&self, placed: usize) -> f64 {
        let shortest = |job: &FleetJob| job.choices.iter().map(|choice| choice.duration).min().unwrap_or(0);
        let of = |(place, job): (usize, &usize)| {
            let (job, end) = (&self.instance.jobs[*job], self.ends[*job]);
            let end = if place < placed { end } else { job.release + shortest(job) };
            match self.objective {
                Objective::Completion => job.weight * end as f64,
                Objective::Deadlines => job.weight * end.saturating_sub(job.deadline.unwrap_or(end)) as f64,
                Objective::Makespan | Objective::Cost => 0.0,
            }
        };
        let sum: f64 = self.order.iter().enumerate().map(of).sum();
        match self.objective {
            Objective::Makespan => {
                self.order[..placed].iter().map(|job| self.ends[*job]).max().unwrap_or(0) as f64
            }
            _ => sum,
        }
    }

    fn search(&mut self, placed: usize) {
        if self.value(placed) >= self.best {
            return;
        }
        if placed == self.order.len() {
            self.best = self.value(placed);
            return;
        }
        let job = self.order[placed];
        let of = &self.instance.jobs[job];
        let ready =
            of.after.iter().map(|before| self.ends[*before]).max().unwrap_or(0).max(of.release) as usize;
        for choice in &of.choices {
            let (first, kind) = (self.instance.first_node(choice.kind), &self.instance.kinds[choice.kind]);
            let (per_node, count) = (choice.gpus.min(kind.gpus), choice.gpus.div_ceil(kind.gpus));
            if count > kind.nodes {
                continue;
            }
            for start in ready..=self.horizon - choice.duration as usize {
                let end = start + choice.duration as usize;
                if self.keeps_deadlines && of.deadline.is_some_and(|deadline| end as u64 > deadline) {
                    break;
                }
                if matches!(self.objective, Objective::Makespan) && end as f64 >= self.best {
                    break;
                }
                let most = of.user.and_then(|user| self.instance.users[user].max_gpus).unwrap_or(usize::MAX);
                let exceeds = |held: &usize| held + choice.gpus > most;
                if of.user.is_some_and(|user| self.held[user][start..end].iter().any(exceeds)) {
                    continue;
                }
                for window in first..=first + kind.nodes - count {
                    let nodes = window..window + count;
                    let fits = nodes.clone().all(|node| {
                        self.busy[node][start..end].iter().all(|busy| busy + per_node <= kind.gpus)
                    });
                    if !fits {
                        continue;
                    }
                    nodes.clone().for_each(|node| {
                        self.busy[node][start..end].iter_mut().for_each(|busy| *busy += per_node)
                    });
                    let hold = |held: &mut Vec<Vec<usize>>, change: fn(usize, usize) -> usize| {
                        let of_user = of.user.map(|user| &mut held[user][start..end]);
                        of_user.into_iter().flatten().for_each(|held| *held = change(*held, choice.gpus));
                    };
                    hold(&mut self.held, |held, gpus| held + gpus);
                    self.ends[job] = end as u64;
                    self.search(placed + 1);
                    hold(&mut self.held, |held, gpus| held - gpus);
                    nodes.for_each(|node| {
                        self.busy[node][start..end].iter_mut().for_each(|busy| *busy -= per_node)
                    });
                }
            }
        }
    }
}

fn exhaustive(instance: &Instance, objective: Objective, most: f64) -> f64 {
    let longest = |job: &FleetJob| job.choices.iter().map(|choice| choice.duration).max().unwrap_or(0);
    let release = instance.jobs.iter().map(|job| job.release).max().unwrap_or(0);
    let horizon = (release + instance.jobs.iter().map(longest).sum::<u64>()) as usize;
    let nodes = instance.nodes().len();
    let mut search = Exhaustive {
        instance,
        objective,
        horizon,
        busy: vec![vec![0; horizon + 1]; nodes],
        held: vec![vec![0; horizon + 1]; instance.users.len()],
        ends: vec![0; instance.jobs.len()],
        order: (0..instance.jobs.len()).collect(),
        keeps_deadlines: objective != Objective::Deadlines,
        // What is asked is whether anything is below the known schedule.
        best: most,
    };
    search.search(0);
    search.best
}

/// Clusters of at most 8 GPUs.
const CLUSTERS: [&[(usize, usize)]; 7] =
    [&[(1, 8)], &[(2, 4)], &[(4, 2)], &[(8, 1)], &[(1, 4), (2, 2)], &[(3, 2)], &[(1, 3), (1, 4)]];

fn random_instance(seed: u64) -> Instance {
    let mut random = ChaCha8Rng::seed_from_u64(seed);
    let shape = CLUSTERS[random.random_range(0..CLUSTERS.len())];
    let kinds: Vec<NodeKind> = shape
        .iter()
        .map(|(nodes, gpus)| NodeKind { name: "node".into(), nodes: *nodes, gpus: *gpus })
        .collect();
    let jobs = random.random_range(2..=6);
    let mut all = Vec::new();
    for job in 0..jobs {
        let work = random.random_range(2..=14) as f64;
        let mut choices = Vec::new();
        for (kind, of) in kinds.iter().enumerate() {
            let within = (1..=of.gpus).collect::<Vec<_>>();
            let several = (2..=of.nodes).map(|nodes| nodes * of.gpus);
            for gpus in within.into_iter().chain(several) {
                if random.random_range(0..3) == 0 {
                    let efficiency = random.random_range(0.6..1.1);
                    let duration = (work / libm::pow(gpus as f64, efficiency)).ceil().max(1.0) as u64;
                    let cost = (gpus as u64 * duration) as f64;
                    choices.push(Choice {
                        kind,
                        gpus,
                        duration,
                        cost,
                        spread: Vec::new(),
                        plan: String::new(),
                    });
                }
            }
        }
        if choices.is_empty() {
            choices.push(Choice {
                kind: 0,
                gpus: 1,
                duration: work as u64,
                cost: work,
                spread: Vec::new(),
                plan: String::new(),
            });
        }
        let release = if random.random_range(0..3) == 0 { random.random_range(0..6) } else { 0 };
        let after = (0..job).filter(|_| random.random_range(0..8) == 0).collect();
        let deadline = (random.random_range(0..3) == 0).then(|| random.random_range(4..20));
        let weight = random.random_range(1..=3) as f64;
        all.push(FleetJob {
            name: format!("j{job}"),
            choices,
            release,
            deadline,
            weight,
            after,
            user: None,
            restart: None,
        });
    }
    Instance { kinds, jobs: all, users: Vec::new(), contiguous: true }
}

/// The instance with jobs of two users and of nobody, whose quotas leave each job a choice.
fn with_quotas(mut instance: Instance, seed: u64) -> Instance {
    let mut random = ChaCha8Rng::seed_from_u64(1_000 + seed);
    let mut least = [1, 1];
    for job in &mut instance.jobs {
        job.user = [None, Some(0), Some(0), Some(1), Some(1)][random.random_range(0..5)];
        let fewest = job.choices.iter().map(|choice| choice.gpus).min().unwrap_or(1);
        if let Some(user) = job.user {
            least[user] = least[user].max(fewest);
        }
    }
    let user = |least: usize| User {
        name: "u".into(),
        max_gpus: (random.random_range(0..6) > 0).then(|| least + random.random_range(0..3)),
    };
    instance.users = least.map(user).into();
    instance
}

/// The number of fleets whose value is larger with quotas than without.
fn compare(objective: Objective, long: usize, quotas: bool) -> usize {
    let number = cases("TRAINWRIGHT_FLEET", long / 3, long) as u64;
    let mut unproved = Vec::new();
    let mut held_back = 0;
    for seed in 0..number {
        let mut instance = random_instance(seed);
        if quotas {
            instance = with_quotas(instance, seed);
        }
        if objective != Objective::Deadlines {
            instance.jobs.iter_mut().for_each(|job| job.deadline = None);
        } else {
            // Lateness cuts few branches of the exhaustive search.
            instance.jobs.truncate(4);
        }
        if objective == Objective::Completion {
            instance.jobs.truncate(5);
        }
        let answer = solve(&instance, objective, Effort::default()).unwrap();
        assert_eq!(check(&instance, &answer.schedule), Ok(()), "seed {seed}");
        for heuristic in HEURISTICS {
            let schedule = heuristic.schedule(&instance, objective);
            assert_eq!(check(&instance, &schedule), Ok(()), "seed {seed}, {}", heuristic.name());
        }
        let value = answer.score.value();
        assert!(answer.bound <= value, "seed {seed}");
        let best = exhaustive(&instance, objective, value);
        assert_eq!(best, value, "seed {seed}: {} is below what was found, bound {}", best, answer.bound);
        if objective == Objective::Makespan {
            compare_patterns(&instance, best as u64, seed);
        }
        let free = Instance { users: instance.users.iter().map(without_quota).collect(), ..instance.clone() };
        held_back +=
            usize::from(quotas && solve(&free, objective, Effort::default()).unwrap().score.value() < value);
        if !answer.is_proved() {
            unproved.push((seed, answer.bound, value));
        }
    }
    assert!(unproved.is_empty(), "optimal but not proved: {unproved:?}");
    held_back
}

/// The bound by patterns is not above the least makespan, with durations too that it has to round; from any beginning.
fn compare_patterns(instance: &Instance, best: u64, seed: u64) {
    for factor in [1, 997] {
        let mut longer = instance.clone();
        for job in &mut longer.jobs {
            job.release *= factor;
            job.choices.iter_mut().for_each(|choice| choice.duration *= factor);
        }
        for least in [0, factor * best / 2, factor * best] {
            let bound = by_patterns(&longer, least, 10 * factor * best);
            assert!(
                bound <= factor * best,
                "seed {seed}: {bound} s is above the least makespan, {best} times {factor} s"
            );
        }
    }
}

fn without_quota(user: &User) -> User {
    User { max_gpus: None, ..user.clone() }
}

#[test]
fn the_makespan_is_that_of_exhaustive_search() {
    compare(Objective::Makespan, 60, false);
}

#[test]
fn weighted_completion_is_that_of_exhaustive_search() {
    compare(Objective::Completion, 40, false);
}

#[test]
fn lateness_is_that_of_exhaustive_search() {
    compare(Objective::Deadlines, 40, false);
}

#[test]
fn quotas_are_kept_as_by_exhaustive_search() {
    let objectives = [(Objective::Makespan, 60), (Objective::Completion, 30), (Objective::Deadlines, 20)];
    let held_back: usize = objectives.map(|(objective, long)| compare(objective, long, true)).iter().sum();
    assert!(held_back > 8, "quotas hold {held_back} fleets back");
}

#[test]
fn deadlines_are_kept_where_exhaustive_search_keeps_them() {
    let (mut kept, mut missed) = (0, 0);
    for seed in 0..cases("TRAINWRIGHT_FLEET", 60, 60) as u64 {
        let mut instance = random_instance(seed);
        instance.jobs.truncate(4);
        if seed % 4 == 0 {
            // A second less than the jobs need together.
            instance.jobs.iter_mut().for_each(|job| job.deadline = None);
            let least = solve(&instance, Objective::Makespan, Effort::default()).unwrap().schedule.makespan();
            instance.jobs.iter_mut().for_each(|job| job.deadline = Some(least - 1));
        }
        let Ok(answer) = solve(&instance, Objective::Makespan, Effort::default()) else { continue };
        assert_eq!(check(&instance, &answer.schedule), Ok(()), "seed {seed}");
        let best = exhaustive(&instance, Objective::Makespan, f64::INFINITY);
        match answer.score.0[0] == 0.0 {
            true => {
                kept += 1;
                assert_eq!((best, answer.is_proved()), (answer.score.value(), true), "seed {seed}");
            }
            false => {
                missed += 1;
                assert_eq!((best, answer.keeps_none), (f64::INFINITY, true), "seed {seed}");
            }
        }
    }
    assert!(kept > 20 && missed > 2, "{kept} kept, {missed} missed");
}
