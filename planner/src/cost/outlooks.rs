//! What is known of the errors of candidates' forecasts, by kind.

use crate::candidate::Candidate;
use crate::question::Question;
use crate::risk::Outlook;
use std::collections::HashMap;
use trainwright_sim::likeness::kind;
use trainwright_spec::calibration::residuals::{Kind, Spread};
use trainwright_spec::mesh::Mesh;
use trainwright_spec::precision::Precision;

/// The outlook for each kind of plan that answers a question.
pub(crate) struct Outlooks {
    by_kind: HashMap<(Precision, Spread), Outlook>,
    gpus: usize,
}

impl Outlooks {
    /// For the candidates with these layouts.
    pub fn new(question: &Question, layouts: &[Candidate]) -> Self {
        let gpus = question.cluster.node.gpus.value;
        let mut by_kind = HashMap::new();
        for layout in layouts {
            by_kind
                .entry((layout.precision, Spread::of(&layout.mesh, gpus)))
                .or_insert_with(|| Outlook::new(&question.risk, &kind(&layout.plan(question, Vec::new()))));
        }
        Self { by_kind, gpus }
    }

    /// The lowest ratio of expected to forecast time of plans with a layout's precision, on whatever nodes.
    pub fn least_time(question: &Question, layout: &Candidate) -> f64 {
        let kind = kind(&layout.plan(question, Vec::new()));
        let of = |[tensor_over_nodes, context, several_nodes]: [bool; 3]| {
            let spread = Spread { tensor_over_nodes, context, several_nodes };
            Outlook::new(&question.risk, &Kind { spread, ..kind.clone() }).time
        };
        let spreads = (0..8).map(|number| [0, 1, 2].map(|bit| number >> bit & 1 == 1));
        spreads.map(of).fold(f64::INFINITY, f64::min)
    }

    /// The outlook for a candidate or a plan with one of these layouts' kinds.
    pub fn of(&self, precision: Precision, mesh: &Mesh) -> &Outlook {
        &self.by_kind[&(precision, Spread::of(mesh, self.gpus))]
    }
}
