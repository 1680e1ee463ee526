//! Why a plan is as fast as it is, and why the obvious other choices lost.

use crate::candidate::Candidate;
use crate::layers::LayerCosts;
use crate::search::{Seen, Space, Trial, trial};
use crate::stages::stage;
use crate::verdict::{Alternative, PlannerError, Question, Ranked};
use rayon::prelude::*;
use trainwright_sim::{Forecast, forecast};
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
    allowed: Box<dyn Fn(&Candidate) -> bool + Sync>,
    /// The same recomputation for every block; none if that is not what the choice is about.
    recompute: Option<Recompute>,
}

impl Choice {
    fn of(words: impl Into<String>, allowed: impl Fn(&Candidate) -> bool + Sync + 'static) -> Self {
        Self { words: words.into(), allowed: Box::new(allowed), recompute: None }
    }
}

/// What became of the obvious choices that the best plan did not make.
pub(crate) fn alternatives(
    space: &Space,
    seen: &Seen,
    winner: &Candidate,
    best: &Ranked,
) -> Result<Vec<Alternative>, PlannerError> {
    let judged: Result<Vec<Option<Alternative>>, PlannerError> =
        obvious_choices(space.question, winner, &best.plan)
            .par_iter()
            .map(|choice| judge(space, seen, choice, best))
            .collect();
    Ok(judged?.into_iter().flatten().collect())
}

fn obvious_choices(question: &Question, winner: &Candidate, best: &Plan) -> Vec<Choice> {
    let won = *winner;
    let mesh = won.mesh;
    let mut choices = Vec::new();
    if mesh.tensor > 1 || mesh.pipeline > 1 {
        choices.push(Choice::of("data parallel only", |other| {
            other.mesh.tensor == 1 && other.mesh.pipeline == 1
        }));
    }
    for tensor in neighbours(mesh.tensor) {
        choices.push(Choice::of(format!("tensor {tensor}"), move |other| other.mesh.tensor == tensor));
    }
    for pipeline in neighbours(mesh.pipeline) {
        choices
            .push(Choice::of(format!("pipeline {pipeline}"), move |other| other.mesh.pipeline == pipeline));
    }
    for schedule in SCHEDULES.iter().filter(|schedule| schedule.searched()).map(|schedule| schedule.name()) {
        if mesh.pipeline > 1 && schedule != won.schedule {
            let same = move |other: &Candidate| other.schedule == schedule && other.mesh == mesh;
            choices.push(Choice::of(format!("schedule {schedule}, same mesh"), same));
        }
    }
    for micro_batch in [won.micro_batch / 2, won.micro_batch * 2] {
        let same = move |other: &Candidate| other.micro_batch == micro_batch && other.mesh == mesh;
        choices.push(Choice::of(format!("microbatch {micro_batch}, same mesh"), same));
    }
    if mesh.tensor > 1 {
        let with = if won.sequence_parallel { "no" } else { "with" };
        let same = Candidate { sequence_parallel: !won.sequence_parallel, ..won };
        let words = format!("{with} sequence parallelism, same mesh");
        choices.push(Choice::of(words, move |other| *other == same));
    }
    if mesh.data > 1 {
        let (data_sharding, words) = match won.data_sharding {
            "none" => ("zero1", "optimizer sharded (ZeRO-1), same mesh"),
            _ => ("none", "optimizer not sharded (DDP), same mesh"),
        };
        let same = Candidate { data_sharding, ..won };
        choices.push(Choice::of(words, move |other| *other == same));
    }
    for recompute in Recompute::ALL {
        let everywhere = best.stages.iter().all(|stage| stage.0.iter().all(|choice| *choice == recompute));
        if question.pins.recompute.is_none() && !everywhere {
            let words = format!("recompute {} everywhere", recompute.name());
            let choice = Choice::of(words, move |other| *other == won);
            choices.push(Choice { recompute: Some(recompute), ..choice });
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
    seen: &Seen,
    choice: &Choice,
    best: &Ranked,
) -> Result<Option<Alternative>, PlannerError> {
    let with = |index: &usize| (choice.allowed)(&space.candidates[*index]);
    let fitting: Vec<usize> = space.order.iter().copied().filter(with).collect();
    let mut tried: Vec<Trial> = Vec::new();
    if let Some(recompute) = choice.recompute {
        tried.extend(space.with_recompute(&fitting, recompute)?);
    } else if !fitting.iter().any(|index| matches!(seen.of(*index), Some(Trial::Simulated { .. }))) {
        for index in fitting.iter().filter(|index| seen.of(**index).is_none()).take(LOOKS) {
            tried.push(space.trial(&space.candidates[*index])?);
            if matches!(tried.last(), Some(Trial::Simulated { .. })) {
                break;
            }
        }
    }
    let known = fitting.iter().filter(|_| choice.recompute.is_none()).filter_map(|index| seen.of(*index));
    let trials: Vec<&Trial> = known.chain(&tried).collect();
    let fastest = trials.iter().filter_map(|trial| match trial {
        Trial::Simulated { plan, time, .. } => Some((*time, plan)),
        Trial::OutOfMemory { .. } | Trial::Undecided => None,
    });
    let reason = if let Some((time, plan)) = fastest.min_by_key(|(time, _)| *time) {
        let slower = 100.0 * (Seconds::from(time) / best.forecast.step_time - 1.0);
        let (forecast, _) = forecast(plan, &space.costs)?;
        let time = Seconds::from(time);
        format!("{time}, {slower:+.1} %: {}", limited_by(&forecast))
    } else if let Some((rank, needs, has)) = least_lacking(&trials) {
        does_not_fit(rank, needs, has)
    } else if let Some(index) = (0..space.candidates.len())
        .filter(with)
        .min_by(|a, b| space.memory[*a].get().total_cmp(&space.memory[*b].get()).then(a.cmp(b)))
    {
        space.why_out_of_memory(index)?
    } else {
        return Ok(None);
    };
    Ok(Some(Alternative { choice: choice.words.clone(), reason }))
}

fn least_lacking(trials: &[&Trial]) -> Option<(usize, Bytes, Bytes)> {
    let lacking = trials.iter().filter_map(|trial| match trial {
        Trial::OutOfMemory { rank, needs, has } => Some((*rank, *needs, *has)),
        Trial::Simulated { .. } | Trial::Undecided => None,
    });
    lacking.min_by(|a, b| (a.1 / a.2).total_cmp(&(b.1 / b.2)))
}

fn does_not_fit(rank: usize, needs: Bytes, has: Bytes) -> String {
    format!("does not fit: pipeline rank {rank} needs {:.1} of {:.1} GiB", needs.as_gib(), has.as_gib())
}

impl Space<'_> {
    /// Why a candidate that the bounds excluded does not fit.
    fn why_out_of_memory(&self, index: usize) -> Result<String, PlannerError> {
        let (needs, has) = (self.memory[index], self.question.cluster.node.gpu.memory.value);
        if needs > has {
            return Ok(format!(
                "does not fit: weights, gradients and optimizer alone need {:.1} of {:.1} GiB ({})",
                needs.as_gib(),
                has.as_gib(),
                self.candidates[index].words()
            ));
        }
        Ok(match self.trial(&self.candidates[index])? {
            Trial::OutOfMemory { rank, needs, has } => does_not_fit(rank, needs, has),
            Trial::Simulated { .. } | Trial::Undecided => "not decided within the solver's time".into(),
        })
    }

    /// Solves candidates with one recompute choice for every block.
    fn with_recompute(&self, indices: &[usize], recompute: Recompute) -> Result<Vec<Trial>, PlannerError> {
        let mut question = self.question.clone();
        question.pins.recompute = Some(recompute);
        let chosen: Vec<Candidate> = indices.iter().map(|index| self.candidates[*index]).collect();
        let layers = LayerCosts::new(&question, &chosen, &self.costs)?;
        let staged = chosen.iter().map(|candidate| stage(&question, candidate, &layers, &self.costs));
        staged.map(|staged| trial(staged, &self.costs)).collect()
    }
}
