//! An independent check of an outcome: it reads the question and the outcome and nothing that made it.

use super::{Outcome, Question, Segment};

/// Seconds and steps that differ by less than this part are equal: sums of many numbers are not exact.
const SAME: f64 = 1e-6;

/// The first rule that an outcome breaks, in words.
///
/// # Errors
/// A GPU that two jobs hold at once; a user whose jobs hold more than its quota; a job that starts before it arrives, holds GPUs
/// of two kinds at once, ends before its last segment, or whose segments, less a restart each, do not make its steps.
pub fn audit(question: &Question, outcome: &Outcome) -> Result<(), String> {
    let gpus: usize = question.kinds.iter().map(|kind| kind.nodes * kind.gpus).sum();
    let mut of_gpu: Vec<Vec<&Segment>> = vec![Vec::new(); gpus];
    let mut of_job: Vec<Vec<&Segment>> = vec![Vec::new(); question.jobs.len()];
    for segment in &outcome.segments {
        of_job[segment.job].push(segment);
        for gpu in &segment.gpus {
            of_gpu.get_mut(*gpu).ok_or_else(|| format!("there is no GPU {gpu}"))?.push(segment);
        }
    }
    let name = |job: usize| question.jobs[job].name.as_str();
    for (gpu, list) in of_gpu.iter_mut().enumerate() {
        list.sort_by(|one, other| one.from.get().total_cmp(&other.from.get()));
        if let Some(pair) = list.windows(2).find(|pair| pair[1].from.get() < pair[0].to.get()) {
            return Err(format!("{} and {} are both on GPU {gpu}", name(pair[0].job), name(pair[1].job)));
        }
    }
    for user in question.users {
        let of_user = |segment: &&Segment| question.jobs[segment.job].user.as_ref() == Some(&user.name);
        let mut changes: Vec<(f64, i64)> = Vec::new();
        for segment in outcome.segments.iter().filter(of_user) {
            let gpus = segment.gpus.len() as i64;
            changes.extend([(segment.from.get(), gpus), (segment.to.get(), -gpus)]);
        }
        // What ends at a time comes before what starts then.
        changes.sort_by(|one, other| one.0.total_cmp(&other.0).then(one.1.cmp(&other.1)));
        let mut held = 0;
        for (time, change) in changes {
            held += change;
            if user.max_gpus.is_some_and(|most| held > most as i64) {
                return Err(format!("jobs of {} hold {held} GPUs at {time} s", user.name));
            }
        }
    }
    for (job, (list, of)) in of_job.iter_mut().zip(question.jobs).enumerate() {
        list.sort_by(|one, other| one.from.get().total_cmp(&other.from.get()));
        let done = &outcome.jobs[job];
        let (Some(first), Some(last)) = (list.first(), list.last()) else {
            return Err(format!("{} never runs", of.name));
        };
        if first.from.get() < of.arrival.get() || first.from != done.start {
            return Err(format!("{} starts before it arrives, or at another time than it says", of.name));
        }
        if last.to != done.end || list.windows(2).any(|pair| pair[1].from.get() < pair[0].to.get()) {
            return Err(format!("{} runs twice at once, or ends at another time than it says", of.name));
        }
        let restart = of.restart.unwrap_or(question.restart).get();
        let profile = question.speeds.profile(&of.profile).ok_or("a profile is missing")?;
        let (mut steps, mut rounding) = (0.0, SAME * of.steps);
        for segment in list.iter() {
            let speed = question.speeds.on_nodes(profile, segment.kind, segment.gpus.len(), segment.nodes);
            steps += speed * (segment.to.get() - segment.from.get() - restart).max(0.0);
            // Steps of the time by which the ends of a segment are rounded: as numbers grow, so does the rounding.
            rounding += speed * 2.0 * f64::EPSILON * segment.to.get();
        }
        if (steps - of.steps).abs() > rounding {
            return Err(format!("{} makes {steps} steps of {}", of.name, of.steps));
        }
    }
    Ok(())
}
