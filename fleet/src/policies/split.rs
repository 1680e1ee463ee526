//! GPUs are split among elastic jobs: each gets one of its choices or none, and the sum of their values is as large as possible.

use crate::online::{Grant, View};

/// A way to run a job: kind, GPUs, value over that of waiting.
pub type Worth = (usize, usize, f64);

/// Jobs × GPUs × choices up to which one kind of nodes is split exactly.
const MOST_WORK: usize = 50_000_000;

/// The choice of each job, by its place in the view; `None`: it waits. Equal values go to fewer GPUs and earlier jobs.
///
/// With one kind of nodes by dynamic programming over the GPUs, exactly. With several, or too many, greedily: the step that brings
/// most for each GPU that it adds, while there are any.
pub fn split(capacity: &[usize], worth: &[Vec<Worth>]) -> Vec<Option<(usize, usize)>> {
    let most = worth.iter().map(Vec::len).max().unwrap_or(0);
    match capacity {
        [gpus] if worth.len() * most * gpus <= MOST_WORK => exactly(*gpus, worth),
        _ => greedily(capacity, worth),
    }
}

/// `best[g]` is the largest sum of the jobs so far on at most g GPUs.
fn exactly(gpus: usize, worth: &[Vec<Worth>]) -> Vec<Option<(usize, usize)>> {
    let mut best = vec![0.0_f64; gpus + 1];
    let mut chosen: Vec<Vec<u16>> = Vec::with_capacity(worth.len());
    for choices in worth {
        let mut of_job = vec![0_u16; gpus + 1];
        let before = best.clone();
        for (index, (_, needs, value)) in choices.iter().enumerate().take(usize::from(u16::MAX) - 1) {
            for total in *needs..=gpus {
                let sum = before[total - needs] + value;
                if sum > best[total] {
                    (best[total], of_job[total]) = (sum, index as u16 + 1);
                }
            }
        }
        chosen.push(of_job);
    }
    let mut left = gpus;
    let mut all = vec![None; worth.len()];
    for job in (0..worth.len()).rev() {
        let index = usize::from(chosen[job][left]);
        if index > 0 {
            let (kind, needs, _) = worth[job][index - 1];
            all[job] = Some((kind, needs));
            left -= needs;
        }
    }
    all
}

fn greedily(capacity: &[usize], worth: &[Vec<Worth>]) -> Vec<Option<(usize, usize)>> {
    let mut free = capacity.to_vec();
    let mut now: Vec<Option<Worth>> = vec![None; worth.len()];
    loop {
        let mut best: Option<(f64, usize, Worth)> = None;
        for (job, choices) in worth.iter().enumerate() {
            for choice in choices {
                let (kind, gpus, value) = *choice;
                let held = now[job].filter(|held| held.0 == kind).map_or(0, |held| held.1);
                let more = value - now[job].map_or(0.0, |held| held.2);
                if gpus > free[kind] + held || more <= 0.0 {
                    continue;
                }
                let rate = more / gpus.saturating_sub(held).max(1) as f64;
                if best.is_none_or(|(known, _, _)| rate > known) {
                    best = Some((rate, job, *choice));
                }
            }
        }
        let Some((_, job, choice)) = best else { break };
        if let Some(held) = now[job].replace(choice) {
            free[held.0] += held.1;
        }
        free[choice.0] -= choice.1;
    }
    now.into_iter().map(|choice| choice.map(|(kind, gpus, _)| (kind, gpus))).collect()
}

/// Grants of a split, jobs that keep what they have first, then those with many GPUs.
pub fn grants(view: &View, split: &[Option<(usize, usize)>]) -> Vec<Grant> {
    let of = |(job, choice): (&crate::online::Active, &Option<(usize, usize)>)| {
        choice.map(|(kind, gpus)| Grant { job: job.job, kind, gpus })
    };
    let mut grants: Vec<Grant> = view.jobs.iter().zip(split).filter_map(of).collect();
    grants.sort_by_key(|grant| std::cmp::Reverse(grant.gpus));
    grants
}

#[cfg(test)]
mod tests {
    use super::{Worth, exactly, greedily};

    /// The largest sum by trying everything.
    fn slow(gpus: usize, worth: &[Vec<Worth>]) -> f64 {
        let Some((first, others)) = worth.split_first() else { return 0.0 };
        let with = first.iter().filter(|choice| choice.1 <= gpus);
        let sums = with.map(|choice| choice.2 + slow(gpus - choice.1, others));
        sums.fold(slow(gpus, others), f64::max)
    }

    fn value(worth: &[Vec<Worth>], split: &[Option<(usize, usize)>]) -> (usize, f64) {
        let of = |(choices, choice): (&Vec<Worth>, &Option<(usize, usize)>)| match choice {
            None => (0, 0.0),
            Some((_, gpus)) => (*gpus, choices.iter().find(|other| other.1 == *gpus).unwrap().2),
        };
        worth.iter().zip(split).map(of).fold((0, 0.0), |sum, one| (sum.0 + one.0, sum.1 + one.1))
    }

    #[test]
    fn the_split_is_the_best_of_all() {
        // Numbers of a linear congruence: they need not be good, only many.
        let mut state = 1_u64;
        let mut number = |most: u64| {
            state = state.wrapping_mul(6_364_136_223_846_793_005).wrapping_add(1_442_695_040_888_963_407);
            (state >> 33) % most
        };
        for _ in 0..200 {
            let gpus = 1 + number(9) as usize;
            let jobs = 1 + number(5) as usize;
            let worth: Vec<Vec<Worth>> = (0..jobs)
                .map(|_| (1..=1 + number(6) as usize).map(|gpus| (0, gpus, number(100) as f64)).collect())
                .collect();
            let (used, sum) = value(&worth, &exactly(gpus, &worth));
            assert!(used <= gpus);
            assert_eq!(sum, slow(gpus, &worth));
            let (used, less) = value(&worth, &greedily(&[gpus], &worth));
            assert!(used <= gpus && less <= sum);
        }
    }
}
