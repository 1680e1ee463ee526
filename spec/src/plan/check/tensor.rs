//! Which plans share their layers legally.

use super::{bad, tensor_degree_allowed};
use crate::cluster::Fault;
use crate::model::{Attention, Block, Mlp, Model};
use crate::plan::Plan;
use crate::tensor::{Between, Overlap, TENSOR_SCHEMES, tensor_scheme};

impl Plan {
    /// Whether the tensor ranks form the grid of the scheme, and it can cut the model and the microbatch.
    pub(super) fn check_tensor(&self) -> Result<(), Fault> {
        let Ok(scheme) = tensor_scheme(&self.tensor_scheme) else {
            let known: Vec<&str> = TENSOR_SCHEMES.iter().map(|scheme| scheme.name()).collect();
            let value = format!("`{}`", self.tensor_scheme);
            return bad("tensor_scheme", value, format!("known are {}", known.join(", ")));
        };
        let tensor = || self.mesh.tensor.to_string();
        scheme.check(&self.mesh).or_else(|allowed| bad("mesh.tensor", tensor(), allowed))?;
        if self.stack.overlap_tensor_pieces && !self.stack.overlap_tensor_backward {
            let allowed = "it needs stack.overlap_tensor_backward".to_string();
            return bad("stack.overlap_tensor_pieces", "true".into(), allowed);
        }
        let parts = scheme.parts(&self.tensor_grid());
        let in_grid = parts.hidden > 1;
        let key = if in_grid { "mesh.tensor_rows" } else { "mesh.tensor" };
        tensor_degree_allowed(&self.model, parts.width)
            .or_else(|allowed| bad(key, parts.width.to_string(), allowed))?;
        if !in_grid {
            return Ok(());
        }
        if self.sequence_parallel {
            let allowed = format!("`{}` cuts what lies between layers already", scheme.name());
            return bad("sequence_parallel", "true".into(), allowed);
        }
        let divides = |key: &str, value: usize, by: usize| match value.is_multiple_of(by) {
            true => Ok(()),
            false => {
                let allowed = format!("tensor scheme `{}` cuts it in {by} parts", scheme.name());
                bad(key, value.to_string(), allowed)
            }
        };
        divides("micro_batch", self.micro_batch, parts.batch)?;
        divides("model.hidden", self.model.hidden, parts.hidden)?;
        let what = not_cut_by_a_grid(&self.model);
        match what {
            None => self.model.blocks.iter().flat_map(|run| attentions(&run.block)).try_for_each(|layer| {
                divides("model.blocks.block.attention.kv_heads", layer.kv_heads, parts.width)
            }),
            Some(what) => {
                let allowed = format!("it cannot cut the model's {what}: use `1d`");
                bad("tensor_scheme", format!("`{}`", scheme.name()), allowed)
            }
        }
    }
}

impl Plan {
    /// Whether the steps of the scheme can run in the plan's precision and in the order of its schedule; all else in
    /// the plan is legal.
    ///
    /// Collectives among the products of a weight's gradient do not go with either half of backward, and nothing says
    /// how blocks below 16 bits are scaled.
    pub(super) fn check_tensor_steps(&self) -> Result<(), Fault> {
        let grid = self.tensor_grid();
        let in_grid = self.tensor_scheme().parts(&grid).hidden > 1;
        let in_chunks = grid.overlap == Overlap::Overlapped && grid.between == Between::Sequence;
        let what = match (in_grid, in_chunks) {
            (true, _) => format!("tensor scheme `{}`", self.tensor_scheme),
            (false, true) => "stack.overlap_tensor_pieces".into(),
            (false, false) => return Ok(()),
        };
        if self.job.precision.quantisation().is_some() {
            let allowed = format!("{what} computes in 16 bits or more");
            return bad("job.precision", format!("`{}`", self.job.precision), allowed);
        }
        if in_grid && self.mesh.context > 1 {
            let allowed = format!("{what} leaves sequences whole: it must be 1");
            return bad("mesh.context", self.mesh.context.to_string(), allowed);
        }
        match self.runs_halves() {
            false => Ok(()),
            true => {
                let allowed = format!("{what} needs a schedule that runs backward as a whole");
                bad("schedule", format!("`{}`", self.schedule), allowed)
            }
        }
    }
}

/// The layers of a model that the schemes with grids do not describe.
fn not_cut_by_a_grid(model: &Model) -> Option<&'static str> {
    let blocks = || model.blocks.iter().map(|run| &run.block);
    let has = |found: fn(&Attention) -> bool| blocks().flat_map(attentions).any(found);
    let parts = [
        (blocks().any(|block| matches!(block.mlp, Mlp::Experts(_))), "experts"),
        (has(|attention| attention.latent.is_some()), "latent attention"),
        (has(|attention| attention.qk_norm), "norms of queries and keys"),
        (has(|attention| attention.recurrence.is_some()), "states"),
        (has(|attention| attention.indexer.is_some()), "indexer"),
        (has(|attention| attention.output_gate), "gate of attention's output"),
        (model.embedding.width.is_some(), "embedding of another width"),
        (model.head.transform || model.head.pooler, "head layers"),
    ];
    parts.into_iter().find_map(|(has, what)| has.then_some(what))
}

fn attentions(block: &Block) -> impl Iterator<Item = &Attention> {
    std::iter::once(&block.attention).chain(&block.cross_attention)
}
