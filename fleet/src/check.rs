//! An independent check of schedules: it reads the instance and the schedule and nothing that made it.

use crate::instance::Instance;
use crate::schedule::{Placed, Schedule};

/// A part of a job that may be missing by rounding.
const ROUNDING: f64 = 1e-6;

/// The first rule that a schedule breaks, in words.
///
/// # Errors
/// A job that is missing, has another duration or does not do all of its work, moves though it may not, begins too early, is on GPUs that do not exist, on several nodes without all
/// of their GPUs or on nodes that are not successive where they must be, or on a GPU that another job holds, and a user whose jobs
/// hold more GPUs than its quota. Memory is part of
/// a choice: the planner offers none that does not fit.
pub fn check(instance: &Instance, schedule: &Schedule) -> Result<(), String> {
    let kinds = instance.nodes();
    let name = |job: usize| instance.jobs[job].name.as_str();
    let of_jobs: Vec<&[Placed]> = schedule.of_jobs().collect();
    if !of_jobs.iter().map(|entries| entries[0].job).eq(0..instance.jobs.len()) {
        return Err("each job must stand there, in order".into());
    }
    for entry in &schedule.placed {
        let job = &instance.jobs[entry.job];
        let Some(choice) = job.choices.get(entry.choice) else {
            return Err(format!("{}: there is no choice {}", job.name, entry.choice));
        };
        if entry.start < job.release {
            return Err(format!("{}: it begins before {} s", job.name, job.release));
        }
        let ends = |before: &usize| of_jobs[*before].last().map_or(0, |last| last.end);
        if let Some(before) = job.after.iter().find(|before| ends(before) > entry.start) {
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
    of_jobs.iter().try_for_each(|entries| check_work(instance, entries))?;
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

/// Whether a job does all of its work: at once, or in parts of which each but the first begins with a restart.
fn check_work(instance: &Instance, entries: &[Placed]) -> Result<(), String> {
    let job = &instance.jobs[entries[0].job];
    if let [entry] = entries {
        let duration = entry.choice_of(instance).duration;
        return match entry.end.checked_sub(entry.start) == Some(duration) {
            true => Ok(()),
            false => Err(format!("{}: it takes {duration} s", job.name)),
        };
    }
    let restart = job.restart.ok_or_else(|| format!("{}: it may not move", job.name))?;
    if entries.windows(2).any(|pair| pair[0].end > pair[1].start) {
        return Err(format!("{}: it is in two places at once", job.name));
    }
    let done = entries.iter().enumerate().map(|(index, entry)| {
        let lost = if index == 0 { 0 } else { restart };
        let worked = (entry.end - entry.start).saturating_sub(lost);
        worked as f64 / entry.choice_of(instance).duration as f64
    });
    let done: f64 = done.sum();
    if done < 1.0 - ROUNDING {
        return Err(format!("{}: it does {done} of its work", job.name));
    }
    Ok(())
}
