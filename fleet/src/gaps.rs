//! Schedules with gaps filled: each job in turn in the earliest gap that is large enough, so that none delays one before it.

use crate::instance::Instance;
use crate::list::Sequence;
use crate::schedule::{Placed, Schedule};

/// The schedule of a sequence with gaps filled.
pub fn schedule_in_gaps(instance: &Instance, sequence: &Sequence) -> Schedule {
    let mut gaps = Gaps::new(instance);
    let mut ends = vec![u64::MAX; instance.jobs.len()];
    let mut left = sequence.order.clone();
    let mut placed = Vec::with_capacity(left.len());
    while !left.is_empty() {
        let can = |job: &usize| instance.jobs[*job].after.iter().all(|before| ends[*before] != u64::MAX);
        let Some(next) = left.iter().position(can) else { break };
        let job = left.remove(next);
        let choice = sequence.choices[job];
        let (start, nodes) = gaps.earliest(instance, job, choice, instance.ready(job, &ends));
        let of = &instance.jobs[job].choices[choice];
        let (end, per_node) = (start + of.duration, of.gpus.min(instance.kinds[of.kind].gpus));
        nodes.iter().for_each(|node| gaps.busy[*node].push((start, end, per_node)));
        if let Some(user) = instance.jobs[job].user {
            gaps.of_users[user].push((start, end, of.gpus));
        }
        ends[job] = end;
        placed.push(Placed { job, choice, start, end, nodes, gpus: Vec::new() });
    }
    Schedule::with_gpus(instance, placed)
}

/// What somebody holds: start, end, GPUs.
type Held = (u64, u64, usize);

/// What is held of each node, and by each user.
struct Gaps {
    busy: Vec<Vec<Held>>,
    of_users: Vec<Vec<Held>>,
}

impl Gaps {
    fn new(instance: &Instance) -> Self {
        let of_users = vec![Vec::new(); instance.users.len()];
        Self { busy: vec![Vec::new(); instance.nodes().len()], of_users }
    }

    fn earliest(&self, instance: &Instance, job: usize, choice: usize, ready: u64) -> (u64, Vec<usize>) {
        let of = &instance.jobs[job].choices[choice];
        let (all, first) = (instance.kinds[of.kind].gpus, instance.first_node(of.kind));
        let (per_node, count) = (of.gpus.min(all), instance.nodes_of(of));
        let nodes: Vec<usize> = (first..first + instance.kinds[of.kind].nodes).collect();
        let quota = instance.jobs[job].user.zip(instance.quota_of(job));
        let of_user = quota.iter().flat_map(|(user, _)| &self.of_users[*user]);
        let ends = nodes.iter().flat_map(|node| &self.busy[*node]).chain(of_user).map(|entry| entry.1);
        let mut times: Vec<u64> = ends.filter(|end| *end > ready).chain([ready]).collect();
        times.sort_unstable();
        times.dedup();
        for start in times {
            let time = (start, start + of.duration);
            let fits = |node: &usize| is_free(&self.busy[*node], (per_node, all), time);
            if quota.is_some_and(|(user, most)| !is_free(&self.of_users[user], (of.gpus, most), time)) {
                continue;
            }
            if instance.contiguous {
                if let Some(window) = nodes.windows(count).find(|window| window.iter().all(fits)) {
                    return (start, window.to_vec());
                }
            } else {
                let free: Vec<usize> = nodes.iter().copied().filter(|node| fits(node)).take(count).collect();
                if free.len() == count {
                    return (start, free);
                }
            }
        }
        unreachable!("after the last end all nodes are free")
    }
}

/// Whether `gpus` of `all` are free from `start` to `end`.
fn is_free(held: &[Held], (gpus, all): (usize, usize), (start, end): (u64, u64)) -> bool {
    let during = || held.iter().filter(|entry| entry.0 < end && start < entry.1);
    let starts = during().map(|entry| entry.0.max(start)).chain([start]);
    let used = |time: u64| -> usize {
        during().filter(|entry| entry.0 <= time && time < entry.1).map(|entry| entry.2).sum()
    };
    starts.map(used).max().unwrap_or(0) + gpus <= all
}
