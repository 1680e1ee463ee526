//! The first plans: of the layouts that look best before anything is known of their costs, one of each mesh.
//!
//! They are what people run: tensor ranks in a node, experts and context where a model or its sequences ask for them, as few
//! stages as fit; if possible with groups that lie alike in all nodes, so that few ranks have to be simulated. A search that
//! starts with them has a plan whenever it is stopped, and drops what is worse from its start.

use super::branch_and_bound::{FEW_COPIES, Goal, Looks, Seen};
use super::search_space::SearchSpace;
use crate::candidate::Candidate;
use crate::verdict::{PlannerError, Progress};
use std::collections::BTreeMap;
use trainwright_lower::simulated_ranks;
use trainwright_sim::Stop;
use trainwright_spec::mesh::Mesh;
use trainwright_spec::plan::Plan;

/// How many meshes are looked at.
const MESHES: usize = 24;

/// How many layouts of a mesh.
const OF_A_MESH: usize = 2;

/// How many candidates are solved at most, ending with the first that fits.
const LOOKS: usize = 24;

/// Up to how many passes of all simulated ranks a step is short: about a tenth of a second of one core.
const FEW_PASSES: usize = 1 << 15;

/// How many ranks of a stage differ from each other at most where ranks are mostly alike.
const FEW_RANKS: usize = 4;

/// Whether few of a candidate's ranks have to be simulated, since the others do the same. `plan` is any plan that answers the
/// question; it gets the candidate's choices.
fn are_alike(candidate: &Candidate, plan: &mut Plan) -> bool {
    candidate.apply_to(plan);
    simulated_ranks(plan) <= FEW_RANKS * candidate.mesh.pipeline
}

/// Whether a candidate is looked at. The plan is any that answers the question; it may get the candidate's choices.
type Wanted<'a> = dyn Fn(&Candidate, &mut Plan) -> bool + Sync + 'a;

impl SearchSpace<'_> {
    /// What came of the most promising candidates among its likeliest layouts, up to the first that fits: of those with short
    /// steps if one of these fits, else of all; by their closed-form bounds, or by the tight ones, which know more of what does
    /// not fit.
    ///
    /// # Errors
    /// As `plan`.
    pub fn seeds(&self, out_of_time: Stop) -> Result<Vec<Seen>, PlannerError> {
        let short = |candidate: &Candidate, plan: &mut Plan| self.is_short(candidate, plan);
        let looks: [(&Wanted, usize); 3] = [(&short, 0), (&|_, _| true, 0), (&|_, _| true, FEW_COPIES)];
        let mut seeds = Vec::new();
        for (wanted, tight_up_to) in looks {
            seeds = self.seeds_among(wanted, tight_up_to, out_of_time)?;
            if seeds.iter().any(|seed| seed.time().is_some()) {
                break;
            }
        }
        Ok(seeds)
    }

    /// What a search with a time limit finds among the layouts whose ranks are mostly alike, before it looks at the others: of
    /// those a simulation takes many times as long.
    ///
    /// # Errors
    /// As `plan`.
    pub fn explore_alike_ranks(
        &self,
        seeds: Vec<Seen>,
        keep: usize,
        out_of_time: Stop,
        watch: &(dyn Fn(Progress) + Sync),
    ) -> Result<Vec<Seen>, PlannerError> {
        let plan = self.any_plan();
        let layouts = |layout: &Candidate| are_alike(layout, &mut plan.clone());
        let goal = Goal { layouts: &layouts, ..Goal::fastest(keep, out_of_time).in_time() };
        Ok(self.explore_from(seeds, &goal, watch)?.seen)
    }

    /// Whether there are both layouts with mostly alike ranks and others.
    pub fn has_unlike_ranks(&self) -> bool {
        let mut plan = self.any_plan();
        let alike = self.legal.layouts.iter().filter(|layout| are_alike(layout, &mut plan)).count();
        (1..self.legal.layouts.len()).contains(&alike)
    }

    fn seeds_among(
        &self,
        wanted: &Wanted,
        tight_up_to: usize,
        out_of_time: Stop,
    ) -> Result<Vec<Seen>, PlannerError> {
        let likely = self.likely(wanted);
        let plan = self.any_plan();
        let goal = Goal {
            layouts: &|layout| likely.contains(layout),
            candidates: &|candidate| wanted(candidate, &mut plan.clone()),
            looks: Looks::UpToFirstFit(LOOKS),
            tight_up_to,
            ..Goal::fastest(1, out_of_time)
        };
        Ok(self.explore(&goal, &|_| {})?.seen)
    }

    /// Whether a step of a candidate is short to simulate. `plan` is any plan that answers the question; it gets the candidate's
    /// choices.
    fn is_short(&self, candidate: &Candidate, plan: &mut Plan) -> bool {
        candidate.apply_to(plan);
        let microbatches = candidate.shape(self.question().job.global_batch).microbatches;
        simulated_ranks(plan) * 2 * microbatches * candidate.virtual_stages <= FEW_PASSES
    }

    /// The most promising layouts of those that are wanted, a few of each mesh.
    fn likely(&self, wanted: &Wanted) -> Vec<Candidate> {
        let mut plan = self.any_plan();
        let mut likely: Vec<Candidate> = Vec::new();
        let mut meshes: BTreeMap<Mesh, usize> = BTreeMap::new();
        for index in self.by_promise() {
            let layout = self.legal.layouts[*index];
            if meshes.len() == MESHES && !meshes.contains_key(&layout.mesh) || !wanted(&layout, &mut plan) {
                continue;
            }
            let taken = meshes.entry(layout.mesh).or_default();
            if *taken == OF_A_MESH {
                continue;
            }
            *taken += 1;
            likely.push(layout);
        }
        likely
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::question::{Pins, Question};
    use crate::risk::Risk;
    use trainwright_lower::lower;
    use trainwright_spec::cluster::Cluster;
    use trainwright_spec::job::Job;
    use trainwright_spec::model::preset::preset;
    use trainwright_spec::precision::Precision;
    use trainwright_spec::stack::Stack;

    #[test]
    fn simulated_ranks_are_counted_without_lowering() {
        let (mut checked, mut several) = (0, 0);
        for (model, cluster) in
            [("mixtral-8x7b", "gb200-nvl72:2"), ("llama-3-8b", "dgx-h100:3"), ("llama-3-8b", "dgx-a100:4")]
        {
            let question = Question {
                model: preset(model).unwrap(),
                cluster: Cluster::from_name(cluster).unwrap(),
                job: Job {
                    sequence: 2048,
                    global_batch: 288,
                    precision: Precision::Bf16,
                    optimizer: "adamw".into(),
                    gradient_clipping: true,
                    adapters: None,
                },
                stack: Stack::from_name("megatron-core").unwrap(),
                pins: Pins { micro_batch: Some(2), ..Pins::whole() },
                risk: Risk::default(),
            };
            let space = SearchSpace::new(&question).unwrap();
            for layout in space.legal.layouts.iter().step_by(7) {
                let mut plan = layout.plan(&question, layout.even_stages(question.model.layers()));
                // As few microbatches as there are.
                plan.job.global_batch = plan.mesh.data * plan.micro_batch;
                let lowered = lower(&plan).ranks.len();
                assert_eq!(simulated_ranks(&plan), lowered, "{model} on {cluster}: {:?}", plan.mesh);
                checked += 1;
                several += usize::from(lowered > plan.mesh.pipeline);
            }
        }
        assert!(checked > 50 && several > 10, "{checked} layouts, {several} with several ranks of a stage");
    }
}
