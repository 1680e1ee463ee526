//! Measured speeds by profile, kind of nodes, GPUs, and the number of nodes on which these GPUs are.

use crate::instance::NodeKind;
use crate::throughputs::Throughput;
use std::collections::BTreeMap;

/// What is known of one profile on one kind of nodes: by GPUs, the speeds by number of nodes, ascending.
type Known = BTreeMap<usize, Vec<(usize, f64)>>;

/// A table of speeds for the nodes of a cluster.
#[derive(Debug, Clone, PartialEq)]
pub struct Speeds {
    names: BTreeMap<String, usize>,
    /// Of each profile, of each kind.
    known: Vec<Vec<Known>>,
    per_node: Vec<usize>,
}

impl Speeds {
    /// The rows of a table that are about these kinds of nodes. A row without a node holds for each.
    pub fn new(rows: &[Throughput], kinds: &[NodeKind]) -> Self {
        let mut names = BTreeMap::new();
        let mut known: Vec<Vec<Known>> = Vec::new();
        for row in rows {
            let profile = *names.entry(row.profile.clone()).or_insert(known.len());
            if profile == known.len() {
                known.push(vec![Known::new(); kinds.len()]);
            }
            for (kind, of) in kinds.iter().enumerate() {
                let fits = row.gpus <= of.nodes * of.gpus && row.steps_per_s > 0.0;
                if fits && row.node.as_ref().is_none_or(|node| *node == of.name) {
                    let nodes = row.nodes.unwrap_or(row.gpus.div_ceil(of.gpus));
                    known[profile][kind].entry(row.gpus).or_default().push((nodes, row.steps_per_s));
                }
            }
        }
        known.iter_mut().flatten().flat_map(Known::values_mut).for_each(|list| {
            list.sort_by(|one, other| one.0.cmp(&other.0).then(one.1.total_cmp(&other.1)));
        });
        Self { names, known, per_node: kinds.iter().map(|kind| kind.gpus).collect() }
    }

    /// The number of a profile; `None` if the table does not have it.
    pub fn profile(&self, name: &str) -> Option<usize> {
        self.names.get(name).copied()
    }

    /// Steps a second on GPUs that lie on `nodes` nodes; 0 if it does not run. Where the table has no row for that number of nodes,
    /// the row for the next larger number holds, else that for the largest.
    pub fn on_nodes(&self, profile: usize, kind: usize, gpus: usize, nodes: usize) -> f64 {
        let Some(list) = self.known[profile][kind].get(&gpus) else { return 0.0 };
        let found = list.iter().find(|(known, _)| *known >= nodes).or(list.last());
        found.map_or(0.0, |(_, speed)| *speed)
    }

    /// Steps a second on the fewest nodes that have that number of GPUs; 0 if it does not run.
    pub fn best(&self, profile: usize, kind: usize, gpus: usize) -> f64 {
        self.on_nodes(profile, kind, gpus, gpus.div_ceil(self.per_node[kind]))
    }

    /// The numbers of GPUs of a kind that the table has for a profile.
    pub fn counts(&self, profile: usize, kind: usize) -> impl Iterator<Item = usize> + '_ {
        self.known[profile][kind].keys().copied()
    }
}
