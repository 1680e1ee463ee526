//! The first plans: of the layouts that look best before anything is known of their costs, one of each mesh.
//!
//! They are what people run: tensor ranks in a node, experts and context where a model or its sequences ask for them, as few
//! stages as fit. A search that starts with them has a plan whenever it is stopped, and drops what is worse from its start.

use super::branch_and_bound::{Goal, Seen};
use super::search_space::SearchSpace;
use crate::candidate::Candidate;
use crate::verdict::PlannerError;
use std::collections::BTreeMap;
use trainwright_spec::mesh::Mesh;

/// How many meshes are looked at.
const MESHES: usize = 24;

/// How many layouts of a mesh.
const OF_A_MESH: usize = 2;

/// How many candidates are solved at most, ending with the first that fits.
const LOOKS: usize = 24;

impl SearchSpace<'_> {
    /// What came of the most promising candidates among its likeliest layouts, up to the first that fits.
    ///
    /// # Errors
    /// As `plan`.
    pub fn seeds(&self) -> Result<Vec<Seen>, PlannerError> {
        let likely = self.likely();
        let goal = Goal {
            keep: 1,
            layouts: &|layout| likely.contains(layout),
            candidates: &|_| true,
            looks: Some(LOOKS),
            out_of_time: &|| false,
        };
        Ok(self.explore(&goal, &|_| {})?.seen)
    }

    /// The most promising layouts, a few of each mesh.
    fn likely(&self) -> Vec<Candidate> {
        let mut likely: Vec<Candidate> = Vec::new();
        let mut meshes: BTreeMap<Mesh, usize> = BTreeMap::new();
        for index in self.by_promise() {
            let layout = self.legal.layouts[*index];
            if meshes.len() == MESHES && !meshes.contains_key(&layout.mesh) {
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
