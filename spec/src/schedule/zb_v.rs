//! ZB-V: zero bubble with the memory of 1F1B.

use super::{Action, ActionKind, ActionLists, PipelineShape, Schedule, v_shape};

/// Down the ranks and back up, with 1F1B's activations of p microbatches and, for F = I = W, no idle time between a
/// rank's first and last pass.
pub struct ZbV;

impl Schedule for ZbV {
    fn name(&self) -> &str {
        "zb-v"
    }

    fn summary(&self) -> &str {
        "V-shaped, I and W apart: no idle time within a rank for F = I = W, activations of p microbatches"
    }

    fn bubble(&self) -> &str {
        "(p - 1) / (6 m), m >= p: only the start-up"
    }

    fn source(&self) -> &str {
        "Qi et al. 2024, arXiv 2401.10241, section 6"
    }

    fn check(&self, shape: PipelineShape) -> Result<(), String> {
        v_shape::check(self.name(), shape)
    }

    fn rank_of(&self, stage: usize, shape: PipelineShape) -> usize {
        v_shape::rank_of(stage, shape)
    }

    /// Before its first I a rank runs 2 (p − r) − 1 forwards down, then r forwards up and down in turn; after it as
    /// many backwards up as forwards down until p − r microbatches have turned; then one of each in turn.
    fn lists(&self, shape: PipelineShape) -> ActionLists {
        let order: Vec<Vec<Action>> = (0..shape.ranks).map(|rank| order(rank, shape)).collect();
        v_shape::fill(shape, &order, 2 * shape.ranks)
    }

    /// (p − 1) / (6 m): the last rank starts p − 1 passes after the first, of which each has 6 m.
    fn bubble_over_work(&self, shape: PipelineShape) -> f64 {
        let (p, m) = (shape.ranks, shape.microbatches);
        match m >= p {
            true => (p as f64 - 1.0) / (6.0 * m as f64),
            false => super::ideal::bubble_over_work(self, shape),
        }
    }
}

/// The order of F and I on a rank.
fn order(rank: usize, shape: PipelineShape) -> Vec<Action> {
    let PipelineShape { ranks: p, microbatches: m, .. } = shape;
    let (down, up) = (rank, 2 * p - 1 - rank);
    let mut order = Vec::with_capacity(4 * m);
    // Passes done, by stage and kind; one that has had all microbatches is skipped.
    let mut done = [[0; 2]; 2];
    let mut put = |upper: usize, kind: ActionKind| {
        let turn = &mut done[upper][usize::from(kind == ActionKind::Input)];
        if *turn < m {
            order.push(Action { stage: [down, up][upper], kind, microbatch: *turn });
            *turn += 1;
        }
    };
    for _ in 0..2 * (p - rank) - 1 {
        put(0, ActionKind::Forward);
    }
    for _ in 0..rank {
        put(1, ActionKind::Forward);
        put(0, ActionKind::Forward);
    }
    for _ in 0..p - rank {
        put(1, ActionKind::Forward);
        put(1, ActionKind::Input);
    }
    // Each round is one F and one I of both stages; at the end only the I are left.
    for _ in 0..m {
        put(0, ActionKind::Forward);
        put(0, ActionKind::Input);
        put(1, ActionKind::Forward);
        put(1, ActionKind::Input);
    }
    order
}
