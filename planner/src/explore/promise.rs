//! How promising a layout is before anything is known of its costs: a rough time of a step, to look at likely layouts first.
//!
//! No answer depends on it but that of a search that is stopped: bounds alone drop layouts.

use crate::bound::LeastWork;
use crate::candidate::Candidate;
use crate::question::Question;
use trainwright_spec::cluster::Cluster;
use trainwright_spec::model::{Block, Mlp, Model};
use trainwright_spec::units::{BytesPerSecond, Seconds};

/// The sizes that rough times are made of.
pub(super) struct Promise<'a> {
    question: &'a Question,
    /// Elements of the model's weights that the tensor axis divides, of all layers.
    dense: f64,
    /// Elements of routed experts, of all layers.
    routed: f64,
    /// Mean over the blocks: bytes of a token for its experts, and of its keys and values.
    routed_bytes: f64,
    context_bytes: f64,
}

/// Bytes of weights and gradients of a parameter, and of its optimizer state.
const STATE: [f64; 2] = [6.0, 12.0];

/// Those of a frozen one, beside which adapters weigh nothing.
const FROZEN: [f64; 2] = [2.0, 0.0];

/// The part of the products' time that computing everything again takes.
const AGAIN: f64 = 1.0 / 3.0;

/// Bytes that a block keeps of each element of its input if nothing is computed again: 34 in a transformer block
/// (Korthikanti et al. 2022, arXiv 2205.05198, section 4.1).
const KEPT: f64 = 34.0;

/// Tokens of a microbatch on a rank, and columns of a layer on a rank, with which products take twice their time.
const FEW_TOKENS: f64 = 400.0;
const FEW_COLUMNS: f64 = 100.0;

/// The part of the GPUs' memory that plans can count on.
const ROOM: f64 = 0.85;

impl<'a> Promise<'a> {
    pub fn new(question: &'a Question) -> Self {
        let model = &question.model;
        let layers = model.layers() as f64;
        let weights = |routed: bool| -> f64 {
            let of_block = |block: &Block| {
                let weights = block.weights(model.hidden).into_iter();
                weights
                    .filter(|weight| weight.routed == routed)
                    .map(|weight| weight.total() as f64)
                    .sum::<f64>()
            };
            model.blocks.iter().map(|run| of_block(&run.block) * run.count as f64).sum()
        };
        let embedding = 2.0 * (model.vocab * model.hidden) as f64;
        Self {
            question,
            dense: weights(false) + embedding,
            routed: weights(true),
            routed_bytes: sum(model, |block| match &block.mlp {
                Mlp::Experts(experts) => 2.0 * (experts.per_token * model.hidden) as f64,
                Mlp::Dense(_) => 0.0,
            }) / layers,
            context_bytes: sum(model, |block| {
                let attention = &block.attention;
                2.0 * (attention.kv_heads * (attention.head_dim + attention.value_head_dim)) as f64
            }) / layers,
        }
    }

    /// A rough time of a step with this layout, in its best pipeline and state.
    pub fn time(&self, layout: &Candidate, work: &LeastWork) -> Seconds {
        let mesh = layout.mesh;
        let model = &self.question.model;
        let (tensor, context) = (mesh.tensor as f64, mesh.context as f64);
        let shape = layout.shape(self.question.job.global_batch);
        let (stages, microbatches) = (shape.ranks as f64, shape.microbatches as f64);
        let tokens = (layout.micro_batch * self.question.job.sequence) as f64 / context;
        let blocks = model.layers().div_ceil(shape.ranks) as f64;
        let narrow = (1.0 + FEW_TOKENS / tokens) * (1.0 + FEW_COLUMNS * tensor / model.hidden as f64);
        let products = work.time(layout) * narrow;

        let link = |ranks: usize| link(&self.question.cluster, ranks);
        let split = if layout.sequence_parallel { tensor } else { 1.0 };
        let hidden = 2.0 * tokens * model.hidden as f64;
        let exchanged = |bytes: f64, ranks: usize, among: usize| match ranks {
            1 => Seconds::ZERO,
            _ => Seconds::new(bytes * (1.0 - 1.0 / ranks as f64) / link(among).get()),
        };
        let of_tensor = exchanged(8.0 * hidden, mesh.tensor, mesh.tensor);
        let of_context = exchanged(
            2.0 * tokens * self.context_bytes * context / tensor,
            mesh.context,
            mesh.tensor * mesh.context,
        );
        let expert_ranks = mesh.expert * mesh.expert_tensor();
        let tokens_of_rank = if layout.sequence_parallel { tokens / tensor } else { tokens };
        let of_experts = exchanged(4.0 * tokens_of_rank * self.routed_bytes, mesh.expert, expert_ranks);
        let in_line = (of_tensor + of_context + of_experts) * (blocks * microbatches);

        let bytes = if self.question.job.adapters.is_some() { FROZEN } else { STATE };
        let ranks = self.parameters(layout);
        let copies = (mesh.data * mesh.context) as f64;
        let expert_copies = (mesh.stage_ranks() / expert_ranks).max(1) as f64;
        let reduced = exchanged(bytes[0] * (ranks[0] + ranks[1]), mesh.data, mesh.stage_ranks());
        let several = (model.layers() as f64 / stages).clamp(1.0, 3.0);
        let bubble = 1.0 + (stages - 1.0) / (microbatches * several);

        let room = ROOM * self.question.cluster.mean_memory().get();
        let state =
            ranks[0] * (bytes[0] + bytes[1] / copies) + ranks[1] * (bytes[0] + bytes[1] / expert_copies);
        // As many microbatches are in flight as there are stages, or fewer.
        let in_flight = blocks * stages.min(microbatches) * hidden / split;
        let least = state + in_flight + KEPT * hidden / (2.0 * tensor);
        let most = state + in_flight * KEPT / 2.0 * split / tensor;
        let again = ((most - room) / (most - least).max(1.0)).clamp(0.0, 1.0) * AGAIN;
        let beyond = (least / room).max(1.0).powi(4);
        ((products * (1.0 + again) + in_line) * bubble + reduced) * beyond
    }

    /// Parameters on a rank: those that data ranks have in common, and routed experts'.
    fn parameters(&self, layout: &Candidate) -> [f64; 2] {
        let mesh = layout.mesh;
        let stages = mesh.pipeline as f64;
        let experts = (mesh.expert * mesh.expert_tensor()) as f64;
        [self.dense / (mesh.tensor as f64 * stages), self.routed / (experts * stages)]
    }
}

/// A sum over all blocks of a model.
fn sum(model: &Model, of_block: impl Fn(&Block) -> f64) -> f64 {
    model.blocks.iter().map(|run| of_block(&run.block) * run.count as f64).sum()
}

/// The bandwidth of a GPU in a group of this many neighbouring ranks.
fn link(cluster: &Cluster, ranks: usize) -> BytesPerSecond {
    let node = &cluster.node;
    let gpus = node.gpus.value;
    match &node.nics {
        Some(nics) if ranks > gpus => nics.achieved() / gpus as f64,
        _ => node.interconnect.achieved(),
    }
}
