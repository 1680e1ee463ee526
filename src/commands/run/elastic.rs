//! `run --elastic`: which ranks are gone for good, and the plan by which the run goes on with the others.
//!
//! A rank is gone for good if it ended two attempts in succession: its process failed, was killed, or hung. The number of
//! ranks becomes that for which the planner's plan has the shortest forecast step: some of the ranks that are left may be
//! too many for the batch or the model, and stay out until another one is gone.

use crate::arguments::RunArguments;
use crate::error::{CliError, refuse};
use crate::inputs::calibration;
use crate::inputs::runnable::{self, STACK, runnable};
use crate::output;
use crate::render::words;
use std::collections::BTreeSet;
use std::num::NonZeroUsize;
use std::ops::RangeInclusive;
use std::path::Path;
use trainwright_executor::DeviceKind;
use trainwright_fleet::part::part;
use trainwright_planner::{Pins, Question, Ranked, Risk};
use trainwright_spec::mesh::Mesh;
use trainwright_spec::plan::Plan;

/// The ranks of a run on this machine, and their plan.
pub struct Crew {
    first: Plan,
    device: DeviceKind,
    /// Where new plans are written: the folder of checkpoints.
    folder: Option<String>,
    /// The ranks of the first plan that are not gone, in their order; those of the present plan come first.
    left: Vec<usize>,
    mesh: Mesh,
    /// The file of the present plan, if it is not the first.
    file: Option<String>,
    /// Ranks of the first plan that ended the last attempt.
    suspects: BTreeSet<usize>,
}

impl Crew {
    /// All ranks of a plan.
    ///
    /// # Errors
    /// `Argument` if more ranks have to be left than there are.
    pub fn new(plan: Plan, arguments: &RunArguments) -> Result<Self, CliError> {
        let ranks = plan.mesh.ranks();
        if let Some(least) = arguments.elastic.filter(|least| least.get() > ranks) {
            return Err(refuse("--elastic", least, format!("the plan has {}", words::count(ranks, "rank"))));
        }
        Ok(Self {
            device: arguments.device,
            folder: arguments.save.clone(),
            left: (0..ranks).collect(),
            mesh: plan.mesh,
            first: plan,
            file: None,
            suspects: BTreeSet::new(),
        })
    }

    /// How many ranks the present plan has.
    pub fn ranks(&self) -> usize {
        self.mesh.ranks()
    }

    /// The number that a rank had in the first plan, which is that of its GPU.
    pub fn local_rank(&self, rank: usize) -> usize {
        self.left[rank]
    }

    /// The file of the present plan; `None` if it is the command's.
    pub fn plan_file(&self) -> Option<&str> {
        self.file.as_deref()
    }

    /// After an attempt that the ranks `at_fault` ended: if one of them ended the attempt before too, the run goes on without
    /// it, and the line says how.
    ///
    /// # Errors
    /// `NoPlanLeft` if the planner has no plan for `least` or more of the ranks that are left; a plan that cannot be written.
    pub fn after(
        &mut self,
        at_fault: &BTreeSet<usize>,
        least: NonZeroUsize,
    ) -> Result<Option<String>, CliError> {
        let at_fault: BTreeSet<usize> = at_fault.iter().map(|rank| self.left[*rank]).collect();
        let gone: BTreeSet<usize> = at_fault.intersection(&self.suspects).copied().collect();
        self.suspects = at_fault.difference(&gone).copied().collect();
        if gone.is_empty() {
            return Ok(None);
        }
        let names: Vec<String> = gone.iter().map(usize::to_string).collect();
        let gone_for_good = match names.as_slice() {
            [name] => format!("rank {name} has ended two attempts in succession and is gone for good"),
            names => format!(
                "ranks {} have ended two attempts in succession and are gone for good",
                names.join(", ")
            ),
        };
        self.left.retain(|rank| !gone.contains(rank));
        let (left, all) = (self.left.len(), self.first.mesh.ranks());
        let Some(plan) = best(&self.first, self.device, least.get()..=left) else {
            let least = words::count(least.get(), "rank");
            let reason = format!(
                "{gone_for_good}; {left} of {all} are left, for which there is no plan of at least {least}"
            );
            return Err(CliError::NoPlanLeft { reason });
        };
        let file = format!("plan-{}-ranks.toml", plan.mesh.ranks());
        let file = Path::new(self.folder.as_deref().unwrap_or_default()).join(file).display().to_string();
        output::save("--save", &file, plan.to_toml())?;
        let (before, after) = (words::mesh(&self.mesh), words::mesh(&plan.mesh));
        (self.mesh, self.file) = (plan.mesh, Some(file.clone()));
        Ok(Some(format!(
            "{gone_for_good}: {} of {all} ranks go on, {after} instead of {before} ({file})",
            self.ranks()
        )))
    }
}

/// The planner's plan with the shortest step for the same model and job on some of a plan's GPUs: as many as `ranks` allows,
/// or fewer, but no fewer than half of them if some number above has a plan.
fn best(first: &Plan, device: DeviceKind, ranks: RangeInclusive<usize>) -> Option<Plan> {
    let (least, most) = ranks.into_inner();
    let mut best: Option<Ranked> = None;
    for gpus in (least..=most).rev() {
        if best.is_some() && 2 * gpus <= most {
            break;
        }
        let found = planned(first, device, gpus);
        if let Some(found) =
            found.filter(|found| best.as_ref().is_none_or(|best| found.expected < best.expected))
        {
            best = Some(found);
        }
    }
    best.map(|best| best.plan)
}

/// The fastest plan for that many of a plan's GPUs that the executor runs, if there is one.
fn planned(first: &Plan, device: DeviceKind, gpus: usize) -> Option<Ranked> {
    let cluster = part(&first.cluster, gpus)?;
    let stack = match first.stack.name.as_str() {
        STACK => first.stack.clone(),
        _ => runnable::stack(),
    };
    let residuals =
        calibration::of(None, &cluster).map(|calibration| calibration.residuals).unwrap_or_default();
    let risk = Risk { residuals, ..Risk::default() };
    let (model, job) = (first.model.clone(), first.job.clone());
    runnable(Question { model, cluster, job, stack, pins: Pins::default(), risk }, device)
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::error::Outcome;
    use trainwright_spec::model::hf::from_hugging_face;

    /// A crew of a plan of four data ranks for a batch of eight sequences.
    fn crew(folder: &Path) -> Crew {
        let text = r#"
            model = "gpt2"
            cluster = "dgx-a100"
            stack = "trainwright"
            job = { sequence = 8, global_batch = 8, precision = "fp32", optimizer = "adamw", gradient_clipping = true }
            mesh = { tensor = 1, pipeline = 1, data = 8 }
            micro_batch = 1
            schedule = "1f1b"
            virtual_stages = 1
            sequence_parallel = false
            data_sharding = "none"
            stages = ["12 none"]
        "#;
        let small = r#"{"model_type": "gpt2", "n_embd": 16, "n_head": 2, "n_layer": 12, "n_positions": 8, "vocab_size": 32}"#;
        let model = from_hugging_face(small, "config.json").unwrap();
        let first = Plan { model, ..Plan::from_toml(text, "plan.toml").unwrap() };
        Crew {
            device: DeviceKind::from_name("cpu").unwrap(),
            folder: Some(folder.display().to_string()),
            left: (0..8).collect(),
            mesh: first.mesh,
            first,
            file: None,
            suspects: BTreeSet::new(),
        }
    }

    #[test]
    fn a_rank_is_gone_after_two_attempts_in_succession_and_the_others_keep_their_gpus() {
        let folder = tempfile::tempdir().unwrap();
        let mut crew = crew(folder.path());
        let mut after = |at_fault: &[usize], least: usize| {
            let least = NonZeroUsize::new(least).unwrap();
            let line = crew.after(&at_fault.iter().copied().collect(), least);
            (line, (0..crew.ranks()).map(|rank| crew.local_rank(rank)).collect::<Vec<_>>())
        };
        let all: Vec<usize> = (0..8).collect();
        // Once; another one; nobody in between.
        for at_fault in [&[2][..], &[5], &[], &[5]] {
            let (line, ranks) = after(at_fault, 1);
            assert!(line.unwrap().is_none() && ranks == all, "{at_fault:?}");
        }
        let (line, ranks) = after(&[3, 5], 1);
        let line = line.unwrap().unwrap();
        assert!(
            line.starts_with("rank 5 has ended two attempts in succession and is gone for good: "),
            "{line}"
        );
        assert!(line.contains(" instead of tensor 1 × pipeline 1 × data 8 ("), "{line}");
        // The first rank after the one that is gone has its GPU still.
        assert!(ranks.len() > 3 && ranks.iter().all(|rank| *rank != 5), "{ranks:?}");
        let file = folder.path().join(format!("plan-{}-ranks.toml", ranks.len()));
        let plan = Plan::from_toml(&std::fs::read_to_string(file).unwrap(), "plan").unwrap();
        assert_eq!((plan.mesh.ranks(), plan.job.global_batch), (ranks.len(), 8));
        // Rank 3 ended the attempt before too.
        let (line, ranks) = after(&[3], 1);
        assert!(line.unwrap().unwrap().starts_with("rank 3 has"));
        assert!(ranks.iter().all(|rank| ![3, 5].contains(rank)), "{ranks:?}");
        after(&[0], 5).0.unwrap();
        let error = after(&[0], 6).0.unwrap_err();
        assert_eq!(error.outcome(), Outcome::NothingFits);
        assert!(error.to_string().contains("5 of 8 are left"), "{error}");
    }
}
