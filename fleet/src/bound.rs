//! Lower bounds that no schedule is below, in closed form or by bisection, without the integer program.
//!
//! **Makespan.** Try T. Job j with head h_j (its release, and the shortest chain before it) and tail q_j (the shortest chain after
//! it) can only use choices c with h_j + d_c + q_j ≤ T. GPUs of kind k that are busy between r and T − q offer
//! n_k w(G_k) (T − q − r), and the jobs with h_j ≥ r and q_j ≥ q need Σ_j Σ_c x_jc w(g_c) d_c of it, Σ_c x_jc = 1. If no x
//! satisfies this, T is too short. With multipliers λ_k ≥ 0, Σ_k λ_k n_k G_k = 1, it is enough that
//!
//! ```text
//! Σ_j min_c λ_k(c) w(g_c) d_c  >  T − q − r
//! ```
//!
//! w is the width of a choice on a node of G GPUs: g itself, or for a threshold ε ≤ G/2: G if g > G − ε, 0 if g < ε, else g.
//! On every node and at any time Σ w(g) ≤ G, for of two jobs at once at most one has g > G − ε, and then all others have g < ε.
//!
//! In the same way a length ℓ(d) ≤ L may stand for the duration, L = T − q − r: on each GPU Σ ℓ(d) ≤ L whenever Σ d ≤ L. For a
//! threshold δ ≤ L/2: L if d > L − δ, 0 if d < δ, else d. For a whole k: d if (k + 1) d / L is whole, else
//! ⌊(k + 1) d / L⌋ L / k; k = 1 says that two jobs longer than L/2 cannot share a GPU.
//! Source of such widths and lengths: Fekete & Schepers 2001, Mathematical Programming 91, 11–31.
//!
//! The jobs of a user with a quota of Q GPUs need no more than Q T of GPU-time; up to 200 jobs `by_patterns` knows quotas better.
//!
//! **Weighted completion.** Let a_j be the least GPU-time of job j, as a part of all GPUs, and p_j = a_j / K for K kinds (K parts
//! may run at once). In any schedule, Σ w_j M_j for the mean busy times M_j is at least that of one machine that runs the jobs
//! one after the other by w_j / p_j: Σ w_j (C_j − p_j / 2). As C_j ≥ M_j + d_j / 2 with d_j its shortest duration,
//! Σ w_j C_j ≥ Σ w_j (C_j^one − p_j / 2 + d_j / 2). Each job alone gives Σ w_j (h_j + d_j); the larger one counts.
//! The jobs of a user with a quota of Q GPUs run on Q GPUs alone: with a_j / Q for p_j, the same holds of them. The sum over such
//! users, and over all other jobs, counts if it is larger.
//! Source: Eastman, Even & Isaacs 1964, Management Science 11(2), 268–279, for equal machines.
//!
//! **Moves.** A job that moves does parts of its work with several choices, Σ_c x_jc = 1 with fractions x, and needs
//! Σ_c x_jc d_c ≤ T − h_j − q_j in place of a choice that is short enough. Widths hold at any time, so they stay; lengths do not. A
//! linear program with two rows has a solution with two choices, so pairs are tried. For the weighted completion, C_j ≥ M_j + p_j / 2:
//! a job's GPU-time is not used faster than all GPUs offer it.
//!
//! Cost and lateness have bounds of each job alone, which know quotas only by the choices that these leave.

use crate::instance::{Choice, Instance};
use crate::objective::Objective;
use crate::patterns::{Window, WindowChoice};

/// Steps of the search for the multipliers.
const STEPS: usize = 60;
/// The most different heads, and the most different tails, that are tried.
const MOST_WINDOWS: usize = 4;
/// Thresholds δ, and numbers k, that are tried for lengths.
const LENGTHS: u64 = 8;
/// The most jobs for which patterns are priced.
const MOST_PRICED: usize = 200;
/// Steps between two makespans that patterns are priced for, as a part of them.
const FINENESS: u64 = 4_000;

/// Whether jobs may stop and go on on other GPUs.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Moving {
    /// A job keeps its GPUs until its end.
    No,
    /// A job does a part of its work with one choice and a part with another.
    Yes,
}

/// A value of the objective that no schedule is below: seconds, or dollars. `most` is a value that is reached.
pub fn lower_bound(instance: &Instance, objective: Objective, moving: Moving, most: f64) -> f64 {
    match objective {
        Objective::Makespan => makespan(instance, moving, most as u64) as f64,
        Objective::Completion => completion(instance, moving),
        Objective::Cost => cost(instance),
        Objective::Deadlines => deadlines(instance),
    }
}

fn cost(instance: &Instance) -> f64 {
    let least = |job| instance.fitting(job).map(|choice| choice.cost).fold(f64::INFINITY, f64::min);
    (0..instance.jobs.len()).map(least).sum()
}

fn deadlines(instance: &Instance) -> f64 {
    let ends = instance.earliest_ends();
    (0..ends.len()).map(|job| Objective::Deadlines.of_job(instance, job, ends[job], 0.0)).sum()
}

fn completion(instance: &Instance, moving: Moving) -> f64 {
    let weight = |job: usize| instance.jobs[job].weight;
    let alone: f64 =
        instance.earliest_ends().iter().enumerate().map(|(job, end)| weight(job) * *end as f64).sum();
    let all = |choice: &Choice| (instance.kinds[choice.kind].nodes * instance.kinds[choice.kind].gpus) as f64;
    let part = |job: usize| least_area(instance, job, all) / instance.kinds.len() as f64;
    let every: Vec<usize> = (0..instance.jobs.len()).collect();
    // The users of quotas one by one, and all others.
    let of_quota = |quota: Option<(usize, usize)>| {
        let is_of = |job: &usize| match quota {
            Some((user, _)) => instance.jobs[*job].user == Some(user),
            None => instance.quota_of(*job).is_none(),
        };
        let jobs: Vec<usize> = every.iter().copied().filter(is_of).collect();
        match quota {
            Some((_, gpus)) => {
                one_machine(instance, moving, &jobs, |job| least_area(instance, job, |_| gpus as f64))
            }
            None => one_machine(instance, moving, &jobs, part),
        }
    };
    let quotas = (0..instance.users.len()).filter_map(|user| Some((user, instance.quota(user)?)));
    let by_users: f64 = quotas.map(Some).chain([None]).map(of_quota).sum();
    // Sums of many numbers are not exact.
    alone.max(one_machine(instance, moving, &every, part).max(by_users) * (1.0 - 1e-9))
}

/// The least GPU-time of a job in seconds of as many GPUs as `all` says for a choice.
fn least_area(instance: &Instance, job: usize, all: impl Fn(&Choice) -> f64) -> f64 {
    let areas = instance.fitting(job).map(|choice| choice.area() as f64 / all(choice));
    areas.fold(f64::INFINITY, f64::min)
}

/// Σ w_j (C_j − p_j / 2 + d_j / 2) on one machine that takes p_j for job j, with p_j for d_j where jobs move.
fn one_machine(instance: &Instance, moving: Moving, jobs: &[usize], part: impl Fn(usize) -> f64) -> f64 {
    let of = |job: &usize| {
        let part = part(*job);
        let shortest = match moving {
            Moving::No => instance.shortest(*job) as f64,
            Moving::Yes => part,
        };
        (instance.jobs[*job].weight, part, shortest)
    };
    let mut jobs: Vec<(f64, f64, f64)> = jobs.iter().map(of).collect();
    jobs.sort_by(|one, other| (other.0 * one.1).total_cmp(&(one.0 * other.1)));
    let (mut busy, mut sum) = (0.0, 0.0);
    for (weight, part, shortest) in jobs {
        busy += part;
        sum += weight * (busy - part / 2.0 + shortest / 2.0);
    }
    sum
}

/// The least T that is not shown to be too short.
fn makespan(instance: &Instance, moving: Moving, most: u64) -> u64 {
    let heads: Vec<u64> =
        instance.earliest_ends().iter().enumerate().map(|(job, end)| end - instance.shortest(job)).collect();
    let tails = instance.tails();
    let windows = windows(&heads, &tails);
    let widths = widths(instance);
    let (mut low, mut high) = (0, most);
    while low < high {
        let middle = low + (high - low) / 2;
        match is_too_short(instance, moving, middle, (&heads, &tails), &windows, &widths) {
            true => low = middle + 1,
            false => high = middle,
        }
    }
    low.max(by_quotas(instance))
}

/// The longest time that the GPUs of a user's quota need for the least GPU-time of its jobs.
fn by_quotas(instance: &Instance) -> u64 {
    let mut areas = vec![0_u64; instance.users.len()];
    for (job, of) in instance.jobs.iter().enumerate() {
        of.user.into_iter().for_each(|user| areas[user] += instance.least_area(job));
    }
    let quotas = areas.iter().enumerate().filter_map(|(user, area)| Some((area, instance.quota(user)?)));
    quotas.map(|(area, gpus)| area.div_ceil(gpus as u64)).max().unwrap_or(0)
}

/// A makespan that no schedule is below, by the patterns of `patterns`, between one that no schedule is below and one that is
/// reached. Besides all GPUs, the quota of each user is a resource for its jobs alone.
pub fn by_patterns(instance: &Instance, least: u64, most: u64) -> u64 {
    if instance.jobs.len() > MOST_PRICED {
        return least;
    }
    let heads: Vec<u64> =
        instance.earliest_ends().iter().enumerate().map(|(job, end)| end - instance.shortest(job)).collect();
    let tails = instance.tails();
    let quotas = (0..instance.users.len()).filter_map(|user| Some((user, instance.quota(user)?)));
    let groups: Vec<Option<(usize, usize)>> = std::iter::once(None).chain(quotas.map(Some)).collect();
    let windows = windows(&heads, &tails);
    let mut prices = vec![Vec::new(); groups.len() * windows.len()];
    let mut is_too_short = |limit: u64| {
        let all = groups.iter().flat_map(|group| windows.iter().map(move |window| (group, window)));
        all.zip(&mut prices).any(|((group, (head, tail)), prices)| {
            // Where the limit is less, no job is in both.
            let Some(room) = limit.checked_sub(head + tail) else { return false };
            let is_inside = |job: &usize| {
                let is_of_group = group.is_none_or(|(user, _)| instance.jobs[*job].user == Some(user));
                is_of_group && heads[*job] >= *head && tails[*job] >= *tail
            };
            let choices = |job: usize| {
                let fits =
                    instance.fitting(job).filter(|choice| heads[job] + choice.duration + tails[job] <= limit);
                let of = |choice: &Choice| {
                    let resource = if group.is_some() { 0 } else { choice.kind };
                    WindowChoice { resource, gpus: choice.gpus, duration: choice.duration }
                };
                fits.map(of).collect()
            };
            let gpus = match group {
                Some((_, quota)) => vec![*quota],
                None => instance.kinds.iter().map(|kind| kind.nodes * kind.gpus).collect(),
            };
            let jobs = (0..instance.jobs.len()).filter(is_inside).map(choices).collect();
            Window { room, gpus, jobs }.is_too_short(prices)
        })
    };
    let (mut low, mut high) = (least, most);
    while low + low / FINENESS < high {
        let middle = low + (high - low) / 2;
        match is_too_short(middle) {
            true => low = middle + 1,
            false => high = middle,
        }
    }
    low
}

/// Pairs (r, q): jobs with a head of r or more and a tail of q or more run in a window that is shorter by r + q.
fn windows(heads: &[u64], tails: &[u64]) -> Vec<(u64, u64)> {
    let few = |values: &[u64]| {
        let mut all = values.to_vec();
        all.push(0);
        all.sort_unstable();
        all.dedup();
        let stride = all.len().div_ceil(MOST_WINDOWS);
        all.into_iter().step_by(stride.max(1)).collect::<Vec<_>>()
    };
    let tails = few(tails);
    few(heads)
        .into_iter()
        .flat_map(|head| tails.iter().map(move |tail| (head, *tail)).collect::<Vec<_>>())
        .collect()
}

/// Thresholds ε for each kind; the same position in each list belongs together.
fn widths(instance: &Instance) -> Vec<Vec<usize>> {
    let most = instance.kinds.iter().map(|kind| kind.gpus).max().unwrap_or(1);
    (0..=most / 2)
        .map(|epsilon| instance.kinds.iter().map(|kind| epsilon.min(kind.gpus / 2)).collect())
        .collect()
}

/// w(g) of a choice.
fn width(gpus: usize, node: usize, epsilon: usize) -> usize {
    match gpus {
        _ if gpus > node => gpus,
        _ if epsilon == 0 => gpus,
        _ if gpus > node - epsilon => node,
        _ if gpus < epsilon => 0,
        _ => gpus,
    }
}

/// What stands for a duration.
#[derive(Clone, Copy)]
enum Length {
    Itself,
    /// With δ as a part of twice `LENGTHS`.
    Threshold(u64),
    Steps(u64),
}

impl Length {
    /// Those that say something; of a job that moves, the duration alone.
    fn all(moving: Moving) -> impl Iterator<Item = Length> {
        let thresholds = (1..=LENGTHS).map(Length::Threshold);
        let all = [Length::Itself].into_iter().chain((1..=LENGTHS).map(Length::Steps)).chain(thresholds);
        all.take(if moving == Moving::Yes { 1 } else { usize::MAX })
    }

    /// ℓ(d) in seconds, for d ≤ L.
    fn of(self, duration: u64, room: u64) -> f64 {
        match self {
            Length::Itself => duration as f64,
            Length::Threshold(part) => {
                let threshold = room * part / (2 * LENGTHS);
                match duration {
                    _ if threshold == 0 => duration as f64,
                    _ if duration > room - threshold => room as f64,
                    _ if duration < threshold => 0.0,
                    _ => duration as f64,
                }
            }
            Length::Steps(count) if ((count + 1) * duration).is_multiple_of(room.max(1)) => duration as f64,
            Length::Steps(count) => ((count + 1) * duration / room) as f64 * room as f64 / count as f64,
        }
    }
}

type Ends<'a> = (&'a [u64], &'a [u64]);

fn is_too_short(
    instance: &Instance,
    moving: Moving,
    limit: u64,
    (heads, tails): Ends,
    windows: &[(u64, u64)],
    widths: &[Vec<usize>],
) -> bool {
    let allowed = |job: usize| {
        instance.fitting(job).filter(move |choice| heads[job] + choice.duration + tails[job] <= limit)
    };
    if (0..instance.jobs.len()).any(|job| allowed(job).next().is_none()) {
        return true;
    }
    windows.iter().any(|(head, tail)| {
        let inside: Vec<usize> =
            (0..instance.jobs.len()).filter(|job| heads[*job] >= *head && tails[*job] >= *tail).collect();
        let Some(room) = limit.checked_sub(head + tail) else { return !inside.is_empty() };
        let exceeds_with = |epsilons: &Vec<usize>, length: Length| {
            let of_job = |job: &usize| {
                let area = |choice: &Choice| {
                    let (kind, node) = (choice.kind, instance.kinds[choice.kind].gpus);
                    let width = width(choice.gpus, node, epsilons[kind]) as f64;
                    (kind, width * length.of(choice.duration, room))
                };
                let whole = allowed(*job).map(|choice| [area(choice), (choice.kind, 0.0)]);
                let mut ways: Vec<[(usize, f64); 2]> = whole.collect();
                if moving == Moving::Yes {
                    // A part of the work with a choice that alone takes too long, the rest with one that does not.
                    let time = (limit - heads[*job] - tails[*job]) as f64;
                    let long = || instance.fitting(*job).filter(|choice| choice.duration as f64 > time);
                    for (short, long) in allowed(*job).flat_map(|short| long().map(move |long| (short, long)))
                    {
                        let (least, most) = (short.duration as f64, long.duration as f64);
                        let part = (time - least) / (most - least);
                        let ((kind, one), (other, two)) = (area(short), area(long));
                        ways.push([(kind, (1.0 - part) * one), (other, part * two)]);
                    }
                }
                ways
            };
            let areas: Vec<Vec<[(usize, f64); 2]>> = inside.iter().map(of_job).collect();
            exceeds(instance, &areas, room as f64)
        };
        widths.iter().any(|epsilons| Length::all(moving).any(|length| exceeds_with(epsilons, length)))
    })
}

/// Whether some multipliers show that the areas are larger than all GPUs offer in `room` seconds. Each job has one of its ways, which
/// takes areas of two kinds at most.
fn exceeds(instance: &Instance, areas: &[Vec<[(usize, f64); 2]>], room: f64) -> bool {
    let all: Vec<f64> = instance.kinds.iter().map(|kind| (kind.nodes * kind.gpus) as f64).collect();
    // share_k = λ_k n_k G_k, which sum to one.
    let mut shares = vec![1.0 / all.len() as f64; all.len()];
    // An excess of less than a part in 10¹² may be rounding.
    let enough = room * (1.0 + 1e-12) + 1e-9;
    for step in 0..STEPS {
        let mut used = vec![0.0; all.len()];
        let mut sum = 0.0;
        for ways in areas {
            let value = |way: &[(usize, f64); 2]| -> f64 {
                way.iter().map(|(kind, area)| shares[*kind] / all[*kind] * area).sum()
            };
            let best = ways.iter().min_by(|one, other| value(one).total_cmp(&value(other)));
            let best = best.expect("every job has a choice");
            best.iter().for_each(|(kind, area)| used[*kind] += area / all[*kind]);
            sum += value(best);
        }
        if sum > enough {
            return true;
        }
        if all.len() == 1 {
            return false;
        }
        // More weight for the kinds on which more than the mean lies.
        let rate = 1.0 / (1.0 + step as f64 / 4.0);
        let scale = used.iter().copied().fold(f64::MIN_POSITIVE, f64::max);
        for (share, used) in shares.iter_mut().zip(&used) {
            *share *= libm::exp(rate * used / scale);
        }
        let total: f64 = shares.iter().sum();
        shares.iter_mut().for_each(|share| *share /= total);
    }
    false
}
