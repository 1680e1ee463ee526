//! An independent check of schedules: it reads the instance and the schedule and nothing that made it.

use crate::instance::Instance;
use crate::schedule::Schedule;

/// The first rule that a schedule breaks, in words.
///
/// # Errors
/// A job that is missing, has another duration, begins too early, is on GPUs that do not exist, on several nodes without all
/// of their GPUs or on nodes that are not successive where they must be, or on a GPU that another job holds, and a user whose jobs
/// hold more GPUs than its quota. Memory is part of
/// a choice: the planner offers none that does not fit.
pub fn check(instance: &Instance, schedule: &Schedule) -> Result<(), String> {
    let kinds = instance.nodes();
    let name = |job: usize| instance.jobs[job].name.as_str();
    let jobs: Vec<usize> = schedule.placed.iter().map(|entry| entry.job).collect();
    if jobs != (0..instance.jobs.len()).collect::<Vec<_>>() {
        return Err("each job must stand there once, in order".into());
    }
    for entry in &schedule.placed {
        let job = &instance.jobs[entry.job];
        let Some(choice) = job.choices.get(entry.choice) else {
            return Err(format!("{}: there is no choice {}", job.name, entry.choice));
        };
        if entry.end - entry.start != choice.duration {
            return Err(format!("{}: it takes {} s", job.name, choice.duration));
        }
        if entry.start < job.release {
            return Err(format!("{}: it begins before {} s", job.name, job.release));
        }
        if let Some(before) = job.after.iter().find(|before| schedule.placed[**before].end > entry.start) {
            return Err(format!("{}: it begins before {} has ended", job.name, name(*before)));
        }
        let per_node = instance.kinds[choice.kind].gpus;
        let distinct = |list: &[usize]| list.windows(2).all(|pair| pair[0] < pair[1]);
        if !distinct(&entry.nodes) || !distinct(&entry.gpus) {
            return Err(format!("{}: a node or a GPU stands there twice", job.name));
        }
        if entry.nodes.iter().any(|node| kinds.get(*node) != Some(&choice.kind)) {
            return Err(format!("{}: a node is of another kind", job.name));
        }
        if entry.gpus.iter().any(|gpu| *gpu >= per_node) {
            return Err(format!("{}: a node has {per_node} GPUs", job.name));
        }
        if entry.nodes.len() * entry.gpus.len() != choice.gpus {
            return Err(format!("{}: it has {} GPUs", job.name, choice.gpus));
        }
        if entry.nodes.len() > 1 && entry.gpus.len() != per_node {
            return Err(format!("{}: several nodes must be whole", job.name));
        }
        if instance.contiguous && entry.nodes.windows(2).any(|pair| pair[0] + 1 != pair[1]) {
            return Err(format!("{}: its nodes are not successive", job.name));
        }
    }
    for (index, one) in schedule.placed.iter().enumerate() {
        for other in &schedule.placed[index + 1..] {
            let together = one.start < other.end && other.start < one.end;
            let node = one.nodes.iter().find(|node| other.nodes.contains(node));
            let gpu = one.gpus.iter().find(|gpu| other.gpus.contains(gpu));
            if let (true, Some(node), Some(gpu)) = (together, node, gpu) {
                let (one, other) = (name(one.job), name(other.job));
                return Err(format!("{one} and {other} are both on GPU {gpu} of node {node}"));
            }
        }
    }
    for entry in &schedule.placed {
        let Some(user) = instance.jobs[entry.job].user else { continue };
        let held = schedule.placed.iter().filter(|other| {
            let is_same = instance.jobs[other.job].user == Some(user);
            is_same && other.start <= entry.start && entry.start < other.end
        });
        let held: usize = held.map(|other| other.nodes.len() * other.gpus.len()).sum();
        let of = &instance.users[user];
        if let Some(most) = of.max_gpus.filter(|most| held > *most) {
            let start = entry.start;
            return Err(format!("{}: jobs hold {held} GPUs at {start} s, its quota is {most}", of.name));
        }
    }
    Ok(())
}
