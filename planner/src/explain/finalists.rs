//! The simulated plans that are worth a look after the best: one of each mesh, and those that save memory.

use crate::candidate::Candidate;
use crate::cost::CostModel;
use crate::explore::{Explored, Seen, unless_stopped};
use crate::verdict::{Finalist, FrontPoint, PlannerError, Ranked};
use rayon::prelude::*;
use trainwright_lower::memory::plan_memory;
use trainwright_sim::{Detail, Stop, fullest, step_time_until};
use trainwright_spec::mesh::Mesh;
use trainwright_spec::plan::Plan;
use trainwright_spec::units::{Bytes, Picoseconds};

/// How many finalists are compared, each of another mesh.
const FINALISTS: usize = 8;

/// The fastest simulated plans of different meshes, the fastest first.
pub(crate) fn finalists(explored: &Explored, model: &CostModel) -> Vec<Finalist> {
    let mut meshes: Vec<Mesh> = Vec::new();
    let mut finalists = Vec::new();
    for (candidate, plan) in by_time(explored) {
        let mesh = Mesh { shard: None, ..candidate.mesh };
        if finalists.len() < FINALISTS && !meshes.contains(&mesh) {
            meshes.push(mesh);
            let outlook = *model.outlook(candidate);
            finalists.push(Finalist { words: words(candidate, plan), plan: plan.clone(), outlook });
        }
    }
    finalists
}

/// The front of expected time and memory, the fastest first, with the times that the plans' forecasts have: those of `ranked`
/// plans are known. Without plans whose forecasts were stopped.
pub(crate) fn front(
    explored: &Explored,
    model: &CostModel,
    ranked: &[Ranked],
    stop: Stop,
) -> Result<Vec<FrontPoint>, PlannerError> {
    let mut ahead: Vec<(&Candidate, &Plan)> = Vec::new();
    let mut least = None;
    for (candidate, plan) in by_time(explored) {
        let peak = peak_memory(plan).0;
        if least.is_none_or(|least| is_less(peak, least)) {
            least = Some(peak);
            ahead.push((candidate, plan));
        }
    }
    let point = |(candidate, plan): &(&Candidate, &Plan)| {
        let (peak_memory, headroom) = peak_memory(plan);
        let known = ranked.iter().find(|ranked| ranked.plan == **plan);
        let simulate = || unless_stopped(step_time_until(plan, &model.costs, Detail::Ops, stop));
        let step_time = match known {
            Some(known) => known.forecast.step_time,
            None => match simulate()? {
                Some(step_time) => step_time,
                None => return Ok(None),
            },
        };
        let expected = model.outlook(candidate).expected(step_time);
        let gpu_time = step_time * plan.mesh.ranks() as f64;
        let plan = words(candidate, plan);
        Ok(Some(FrontPoint { plan, step_time, expected, peak_memory, headroom, gpu_time }))
    };
    let points = ahead.par_iter().filter_map(|ahead| point(ahead).transpose());
    let mut points = points.collect::<Result<Vec<FrontPoint>, PlannerError>>()?;
    points.sort_by_key(|point| Picoseconds::from(point.expected));
    Ok(thinned(points))
}

/// What a plan's fullest GPU holds, and what it has left.
fn peak_memory(plan: &Plan) -> (Bytes, Bytes) {
    let memory = plan_memory(plan);
    let full = fullest(plan, &memory);
    let peak = memory[full].total();
    (peak, plan.node(full).gpu.memory.value - peak)
}

/// Whether a plan needs less memory than another. A hundredth less is the same.
fn is_less(memory: Bytes, other: Bytes) -> bool {
    memory < other * 0.99
}

/// Of points by time those that need less memory than all before.
pub(crate) fn thinned(points: Vec<FrontPoint>) -> Vec<FrontPoint> {
    let mut front: Vec<FrontPoint> = Vec::new();
    for point in points {
        if front.last().is_none_or(|last| is_less(point.peak_memory, last.peak_memory)) {
            front.push(point);
        }
    }
    front
}

fn words(candidate: &Candidate, plan: &Plan) -> String {
    let stages = if plan.virtual_stages > 1 { format!(" v{}", plan.virtual_stages) } else { String::new() };
    format!("{}, {}{stages}, {}", candidate.words(), plan.schedule, plan.data_sharding)
}

/// The simulated plans, the fastest first.
fn by_time(explored: &Explored) -> Vec<(&Candidate, &Plan)> {
    let mut seen: Vec<&Seen> = explored.seen.iter().filter(|seen| seen.time().is_some()).collect();
    seen.sort_by_key(|seen| seen.time());
    let plans = seen.into_iter().filter_map(|seen| Some((&seen.candidate, seen.trial.simulated()?.0)));
    plans.collect()
}
