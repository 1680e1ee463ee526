//! Why a plan is as fast as it is, and why the obvious other choices lost.

use crate::candidate::Candidate;
use crate::search::{Seen, Space, Trial, trial};
use crate::stages::stage;
use crate::verdict::{Alternative, PlannerError, Question, Ranked};
use rayon::prelude::*;
use trainwright_sim::{Forecast, forecast};
use trainwright_spec::plan::{DataSharding, Plan, Recompute};
use trainwright_spec::schedule::SCHEDULES;
use trainwright_spec::units::{Bytes, Picoseconds, Seconds};

/// How many candidates with a choice are solved, in the order of their bounds, when the search solved none of them.
const LOOKS: usize = 4;

/// What a plan's time goes to beyond the model's own arithmetic, the two largest parts: `bubble 11 %, exposed tensor
/// communication 8 %`.
pub(crate) fn limited_by(plan: &Plan, forecast: &Forecast) -> String {
    let mean = &forecast.report.mean;
    let share = |time: Picoseconds| Seconds::from(time) / forecast.step_time;
    let mut parts = vec![(mean.bubble_share, "bubble".to_string())];
    for time in &mean.communication {
        parts.push((share(time.exposed), format!("exposed {} communication", time.axis.name())));
    }
    let again = 1.0 - forecast.model_flops_full_attention / forecast.hardware_flops;
    if plan.stages.iter().any(|stage| stage.0.contains(&Recompute::Full)) {
        parts.push((again * share(mean.compute), "recomputation".to_string()));
    }
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
    recompute: Option<Recompute>,
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
    let mut choices: Vec<Choice> = Vec::new();
    let mut add = |words: String, allowed: Box<dyn Fn(&Candidate) -> bool + Sync>| {
        choices.push(Choice { words, allowed, recompute: None });
    };
    let won = *winner;
    if won.mesh.tensor > 1 || won.mesh.pipeline > 1 {
        let alone = |candidate: &Candidate| candidate.mesh.tensor == 1 && candidate.mesh.pipeline == 1;
        add("data parallel only".into(), Box::new(alone));
    }
    for tensor in [1, won.mesh.tensor / 2, won.mesh.tensor * 2] {
        if tensor >= 1 && tensor != won.mesh.tensor && !(tensor == 1 && won.mesh.tensor == 2) {
            add(format!("tensor {tensor}"), Box::new(move |candidate| candidate.mesh.tensor == tensor));
        }
    }
    if won.mesh.tensor == 2 {
        add("tensor 1".into(), Box::new(|candidate| candidate.mesh.tensor == 1));
    }
    for pipeline in [1, won.mesh.pipeline / 2, won.mesh.pipeline * 2] {
        if pipeline >= 1 && pipeline != won.mesh.pipeline && !(pipeline == 1 && won.mesh.pipeline == 2) {
            add(
                format!("pipeline {pipeline}"),
                Box::new(move |candidate| candidate.mesh.pipeline == pipeline),
            );
        }
    }
    if won.mesh.pipeline == 2 {
        add("no pipeline".into(), Box::new(|candidate| candidate.mesh.pipeline == 1));
    }
    for schedule in SCHEDULES.iter().map(|schedule| schedule.name()).filter(|name| *name != won.schedule) {
        if won.mesh.pipeline > 1 {
            let same =
                move |candidate: &Candidate| candidate.schedule == schedule && candidate.mesh == won.mesh;
            add(format!("schedule {schedule}, same mesh"), Box::new(same));
        }
    }
    for micro_batch in [won.micro_batch / 2, won.micro_batch * 2] {
        if micro_batch >= 1 && micro_batch != won.micro_batch {
            let same = move |candidate: &Candidate| {
                candidate.micro_batch == micro_batch && candidate.mesh == won.mesh
            };
            add(format!("microbatch {micro_batch}, same mesh"), Box::new(same));
        }
    }
    if won.mesh.tensor > 1 {
        let other = !won.sequence_parallel;
        let words = if other { "with sequence parallelism" } else { "no sequence parallelism" };
        let same = move |candidate: &Candidate| *candidate == Candidate { sequence_parallel: other, ..won };
        add(format!("{words}, otherwise the same"), Box::new(same));
    }
    if won.mesh.data > 1 {
        let (other, words) = match won.data_sharding {
            DataSharding::Zero1 => (DataSharding::None, "optimizer not sharded (DDP)"),
            DataSharding::None => (DataSharding::Zero1, "optimizer sharded (ZeRO-1)"),
        };
        let same = move |candidate: &Candidate| *candidate == Candidate { data_sharding: other, ..won };
        add(format!("{words}, otherwise the same"), Box::new(same));
    }
    for recompute in Recompute::ALL {
        let everywhere = best.stages.iter().all(|stage| stage.0.iter().all(|choice| *choice == recompute));
        if question.pins.recompute.is_none() && !everywhere {
            choices.push(Choice {
                words: format!("recompute {} in every block, otherwise the same", recompute.name()),
                allowed: Box::new(move |candidate| *candidate == won),
                recompute: Some(recompute),
            });
        }
    }
    choices
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
            tried.extend(space.tried(&[*index])?.into_iter().map(|(_, trial)| trial));
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
        format!("{time}, {slower:+.1} %: {}", limited_by(plan, &forecast))
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
        if needs <= has
            && let [(_, Trial::OutOfMemory { rank, needs, has })] = self.tried(&[index])?.as_slice()
        {
            return Ok(does_not_fit(*rank, *needs, *has));
        }
        Ok(format!(
            "does not fit: weights, gradients and optimizer alone need {:.1} of {:.1} GiB ({})",
            needs.as_gib(),
            has.as_gib(),
            self.candidates[index].words()
        ))
    }

    /// Solves candidates with one recompute choice for every block.
    fn with_recompute(&self, indices: &[usize], recompute: Recompute) -> Result<Vec<Trial>, PlannerError> {
        let mut question = self.question.clone();
        question.pins.recompute = Some(recompute);
        let chosen: Vec<Candidate> = indices.iter().map(|index| self.candidates[*index]).collect();
        let layers = crate::layers::LayerCosts::new(&question, &chosen, &self.costs)?;
        let staged = chosen.iter().map(|candidate| stage(&question, candidate, &layers, &self.costs));
        staged.map(|staged| trial(staged, &self.costs)).collect()
    }
}
