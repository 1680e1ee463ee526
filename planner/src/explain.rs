//! Why a plan is as fast as it is, and why the obvious other choices lost.

use crate::candidate::Candidate;
use crate::layers::LayerCosts;
use crate::question::Question;
use crate::search::{Explored, Goal, Space, Trial, trial};
use crate::stages::stage;
use crate::verdict::{Alternative, PlannerError, Ranked};
use rayon::prelude::*;
use trainwright_sim::{Forecast, forecast};
use trainwright_spec::mesh::Mesh;
use trainwright_spec::plan::{Plan, Recompute};
use trainwright_spec::schedule::SCHEDULES;
use trainwright_spec::units::{Bytes, Picoseconds, Seconds};

/// How many candidates with a choice are solved, in the order of their bounds, when the search solved none of them.
const LOOKS: usize = 4;

/// What a plan's time goes to beyond the model's own arithmetic, the two largest parts: `bubble 11 %, exposed tensor
/// communication 8 %`.
pub(crate) fn limited_by(forecast: &Forecast) -> String {
    let mean = &forecast.report.mean;
    let share = |time: Picoseconds| Seconds::from(time) / forecast.step_time;
    let mut parts = vec![(mean.bubble_share, "bubble".to_string())];
    for time in &mean.communication {
        parts.push((share(time.exposed), format!("exposed {} communication", time.axis.name())));
    }
    parts.push((forecast.recompute_time / forecast.step_time, "recomputation".to_string()));
    parts.sort_by(|a, b| b.0.total_cmp(&a.0));
    let large: Vec<String> = parts
        .iter()
        .filter(|(share, _)| *share >= 0.01)
        .take(2)
        .map(|(share, name)| format!("{name} {:.0} %", 100.0 * share))
        .collect();
    match large.is_empty() {
        true => "compute".into(),
        false => large.join(", "),
    }
}

/// A choice that a reader might have expected.
struct Choice {
    words: String,
    layouts: Box<dyn Fn(&Candidate) -> bool + Sync>,
    candidates: Box<dyn Fn(&Candidate) -> bool + Sync>,
    /// The same recomputation for every block; none if that is not what the choice is about.
    recompute: Option<Recompute>,
}

impl Choice {
    /// Of a layout.
    fn of(words: impl Into<String>, layouts: impl Fn(&Candidate) -> bool + Sync + 'static) -> Self {
        let words = words.into();
        Self { words, layouts: Box::new(layouts), candidates: Box::new(|_| true), recompute: None }
    }

    /// Of a schedule or a place of the state, in the same mesh.
    fn in_mesh(
        words: impl Into<String>,
        mesh: Mesh,
        candidates: impl Fn(&Candidate) -> bool + Sync + 'static,
    ) -> Self {
        let same = move |layout: &Candidate| layout.mesh == Mesh { shard: None, ..mesh };
        Self { candidates: Box::new(candidates), ..Self::of(words, same) }
    }

    /// Of one candidate.
    fn exactly(words: impl Into<String>, candidate: Candidate) -> Self {
        let layout = candidate.layout();
        let layouts = Box::new(move |other: &Candidate| *other == layout);
        let same = move |other: &Candidate| *other == candidate;
        Self { layouts, ..Self::in_mesh(words, candidate.mesh, same) }
    }
}

/// What became of the obvious choices that the best plan did not make.
pub(crate) fn alternatives(
    space: &Space,
    explored: &Explored,
    winner: &Candidate,
    best: &Ranked,
) -> Result<Vec<Alternative>, PlannerError> {
    let judged: Result<Vec<Option<Alternative>>, PlannerError> =
        obvious_choices(space.question, winner, &best.plan)
            .par_iter()
            .map(|choice| judge(space, explored, choice, best))
            .collect();
    Ok(judged?.into_iter().flatten().collect())
}

fn obvious_choices(question: &Question, winner: &Candidate, best: &Plan) -> Vec<Choice> {
    let won = *winner;
    let mesh = won.mesh;
    let mut choices = Vec::new();
    if mesh.tensor * mesh.pipeline * mesh.context > 1 {
        choices.push(Choice::of("data parallel only", |other| {
            let Mesh { tensor, pipeline, context, .. } = other.mesh;
            tensor * pipeline * context == 1
        }));
    }
    for tensor in neighbours(mesh.tensor) {
        choices.push(Choice::of(format!("tensor {tensor}"), move |other| other.mesh.tensor == tensor));
    }
    for pipeline in neighbours(mesh.pipeline) {
        choices
            .push(Choice::of(format!("pipeline {pipeline}"), move |other| other.mesh.pipeline == pipeline));
    }
    for context in neighbours(mesh.context) {
        choices.push(Choice::of(format!("context {context}"), move |other| other.mesh.context == context));
    }
    for expert in neighbours(mesh.expert) {
        choices.push(Choice::of(format!("expert {expert}"), move |other| other.mesh.expert == expert));
    }
    if mesh.tensor_rows == 1 && mesh.tensor > 1 {
        choices.push(Choice::of("tensor in a grid", |other| other.mesh.tensor_rows > 1));
    }
    for schedule in SCHEDULES.iter().filter(|schedule| schedule.searched()).map(|schedule| schedule.name()) {
        if mesh.pipeline > 1 && schedule != won.schedule {
            let same = move |other: &Candidate| other.schedule == schedule;
            choices.push(Choice::in_mesh(format!("schedule {schedule}, same mesh"), mesh, same));
        }
    }
    for micro_batch in [won.micro_batch / 2, won.micro_batch * 2] {
        let same = move |other: &Candidate| other.micro_batch == micro_batch;
        choices.push(Choice {
            layouts: Box::new(move |other| {
                other.micro_batch == micro_batch && other.mesh == Mesh { shard: None, ..mesh }
            }),
            ..Choice::in_mesh(format!("microbatch {micro_batch}, same mesh"), mesh, same)
        });
    }
    if mesh.tensor > 1 && mesh.tensor_rows == 1 {
        let with = if won.sequence_parallel { "no" } else { "with" };
        let same = Candidate { sequence_parallel: !won.sequence_parallel, ..won };
        choices.push(Choice::exactly(format!("{with} sequence parallelism, same mesh"), same));
    }
    if mesh.weight_copies() > 1 {
        let (data_sharding, words) = match won.data_sharding {
            "none" => ("zero1", "optimizer sharded (ZeRO-1), same mesh"),
            _ => ("none", "optimizer not sharded (DDP), same mesh"),
        };
        let same = Candidate { data_sharding, mesh: Mesh { shard: None, ..mesh }, ..won };
        choices.push(Choice::exactly(words, same));
    }
    for recompute in Recompute::ALL {
        let everywhere = best.stages.iter().all(|stage| stage.0.iter().all(|choice| *choice == recompute));
        if question.pins.recompute.is_none() && !everywhere {
            let words = format!("recompute {} everywhere", recompute.name());
            choices.push(Choice { recompute: Some(recompute), ..Choice::exactly(words, won) });
        }
    }
    choices
}

/// The degrees of an axis that one would ask about: none, half and double.
fn neighbours(degree: usize) -> Vec<usize> {
    let mut neighbours = vec![1, degree / 2, degree * 2];
    neighbours.retain(|other| *other >= 1 && *other != degree);
    neighbours.dedup();
    neighbours
}

/// What a choice leads to; none if no candidate makes it.
fn judge(
    space: &Space,
    explored: &Explored,
    choice: &Choice,
    best: &Ranked,
) -> Result<Option<Alternative>, PlannerError> {
    let makes =
        |candidate: &Candidate| (choice.layouts)(&candidate.layout()) && (choice.candidates)(candidate);
    let mut tried: Vec<Trial> = Vec::new();
    let mut known: Vec<&Trial> = Vec::new();
    let more;
    let mut lacking = None;
    if let Some(recompute) = choice.recompute {
        let made = explored.seen.iter().filter(|seen| makes(&seen.candidate));
        let made: Vec<Candidate> = made.map(|seen| seen.candidate).collect();
        tried.extend(space.with_recompute(&made, recompute)?);
    } else {
        known.extend(explored.seen.iter().filter(|seen| makes(&seen.candidate)).map(|seen| &seen.trial));
        if !known.iter().any(|trial| matches!(trial, Trial::Simulated { .. })) {
            let goal = Goal {
                keep: 1,
                layouts: &*choice.layouts,
                candidates: &*choice.candidates,
                looks: Some(LOOKS),
                out_of_time: &|| false,
            };
            more = space.explore(&goal, &|_| {})?;
            known.extend(more.seen.iter().map(|seen| &seen.trial));
            let least = more.lacking.values().min_by(|a, b| a.0.get().total_cmp(&b.0.get()));
            lacking = least.copied();
            if let (true, Some(crowded)) = (known.is_empty(), more.crowded_first.first()) {
                tried.push(space.trial(crowded)?);
            }
        }
    }
    let trials: Vec<&Trial> = known.into_iter().chain(&tried).collect();
    let fastest = trials.iter().filter_map(|trial| match trial {
        Trial::Simulated { plan, time, .. } => Some((*time, plan)),
        Trial::OutOfMemory { .. } | Trial::TooSlow | Trial::Undecided => None,
    });
    let reason = if let Some((time, plan)) = fastest.min_by_key(|(time, _)| *time) {
        let slower = 100.0 * (Seconds::from(time) / best.forecast.step_time - 1.0);
        let (forecast, _) = forecast(plan, &space.costs)?;
        let time = Seconds::from(time);
        format!("{time}, {slower:+.1} %: {}", limited_by(&forecast))
    } else if let Some((rank, needs, has)) = least_lacking(&trials) {
        does_not_fit(rank, needs, has)
    } else if let Some((needs, candidate)) = lacking {
        let has = space.question.cluster.mean_memory();
        format!(
            "does not fit: weights, gradients and optimizer alone need {:.1} of {:.1} GiB ({})",
            needs.as_gib(),
            has.as_gib(),
            candidate.words()
        )
    } else {
        return Ok(None);
    };
    Ok(Some(Alternative { choice: choice.words.clone(), reason }))
}

fn least_lacking(trials: &[&Trial]) -> Option<(usize, Bytes, Bytes)> {
    let lacking = trials.iter().filter_map(|trial| match trial {
        Trial::OutOfMemory { rank, needs, has } => Some((*rank, *needs, *has)),
        Trial::Simulated { .. } | Trial::TooSlow | Trial::Undecided => None,
    });
    lacking.min_by(|a, b| (a.1 / a.2).total_cmp(&(b.1 / b.2)))
}

fn does_not_fit(rank: usize, needs: Bytes, has: Bytes) -> String {
    format!("does not fit: pipeline rank {rank} needs {:.1} of {:.1} GiB", needs.as_gib(), has.as_gib())
}

impl Space<'_> {
    /// Solves candidates with one recompute choice for every block.
    fn with_recompute(&self, chosen: &[Candidate], recompute: Recompute) -> Result<Vec<Trial>, PlannerError> {
        let mut question = self.question.clone();
        question.pins.recompute = Some(recompute);
        let layers = LayerCosts::new(&question, chosen, &self.costs)?;
        let staged = chosen.iter().map(|candidate| stage(&question, candidate, &layers, &self.costs));
        staged.map(|staged| trial(staged, &self.costs)).collect()
    }
}
