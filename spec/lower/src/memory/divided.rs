//! What a rank holds for a short time of what the data axis divides: gathered weights, gradients not yet reduced.
//!
//! ```text
//! backward of   head   block 3   block 2   block 1
//! weights       h 3    3 2       2 1       1 e        in use and gathered ahead
//! gradients     h      h 3       3 2       2 1        being computed and being reduced
//! activations   all    - h       - 3       - 2        less and less
//! ```

use crate::data::{buckets, full_gradients, gathered_weights};
use crate::recompute::{backward_peak, kept, largest_temporary};
use crate::stage::Stage;
use trainwright_spec::data::{Divided, Reshard};
use trainwright_spec::plan::Plan;
use trainwright_spec::units::Bytes;

/// What a pass holds while it runs a layer, without state and the activations of other microbatches.
struct HeldInLayer {
    /// What the microbatch does not keep yet, or no longer.
    lacking: Bytes,
    temporaries: Bytes,
    gathered: Bytes,
    unreduced: Bytes,
}

impl HeldInLayer {
    fn total(&self) -> Bytes {
        self.temporaries + self.gathered + self.unreduced - self.lacking
    }
}

/// The most of each kind, and by how much their sum exceeds the most that is held at one time.
pub(super) struct Undivided {
    pub gathered: Bytes,
    pub unreduced: Bytes,
    pub apart: Bytes,
}

impl Undivided {
    /// On a rank with these stages, whose largest temporaries are given.
    pub fn of<'a>(plan: &Plan, stages: impl Iterator<Item = &'a Stage> + Clone, temporaries: Bytes) -> Self {
        if !plan.divides(Divided::Weights) && !plan.shards_gradients() {
            return Self { gathered: Bytes::ZERO, unreduced: Bytes::ZERO, apart: Bytes::ZERO };
        }
        // Weights that stay from pass to pass are always there.
        let stay = match plan.reshard() {
            Reshard::AfterForward => None,
            _ => Some(stages.clone().flat_map(|stage| weights_of(plan, stage)).sum()),
        };
        let moments: Vec<HeldInLayer> = stages.flat_map(|stage| moments(plan, stage, stay)).collect();
        let most = |size: fn(&HeldInLayer) -> Bytes| moments.iter().map(size).fold(Bytes::ZERO, Bytes::max);
        let (gathered, unreduced) = (most(|held| held.gathered), most(|held| held.unreduced));
        Self { gathered, unreduced, apart: temporaries + gathered + unreduced - most(HeldInLayer::total) }
    }
}

/// What gathering each layer of a stage takes, in the order of forward.
fn weights_of(plan: &Plan, stage: &Stage) -> Vec<Bytes> {
    stage.layers().map(|layer| gathered_weights(plan, layer)).collect()
}

/// Forward and backward of one microbatch, layer by layer.
fn moments(plan: &Plan, stage: &Stage, stay: Option<Bytes>) -> Vec<HeldInLayer> {
    let mut weights = weights_of(plan, stage);
    let ahead = |weights: &[Bytes], layer: usize| {
        let end = weights.len().min(layer + 1 + plan.prefetch());
        stay.unwrap_or(weights[layer..end].iter().copied().sum())
    };
    let mut moments = Vec::new();
    let mut lacking = stage.kept();
    for (number, layer) in stage.layers().enumerate() {
        lacking -= kept(&layer.parts, layer.recompute);
        let (gathered, unreduced) = (ahead(&weights, number), Bytes::ZERO);
        moments.push(HeldInLayer {
            lacking,
            temporaries: largest_temporary(&layer.parts),
            gathered,
            unreduced,
        });
    }
    weights.reverse();
    let unreduced = unreduced(plan, stage);
    for (number, layer) in stage.layers().rev().enumerate() {
        let (gathered, unreduced) = (ahead(&weights, number), unreduced[number]);
        let temporaries = backward_peak(&layer.parts, layer.recompute);
        moments.push(HeldInLayer { lacking, temporaries, gathered, unreduced });
        lacking += kept(&layer.parts, layer.recompute);
    }
    moments
}

/// The gradients that are not yet reduced to parts during backward of each layer, the last layer first: those of the
/// bucket that is being computed, and of the one before while it is being reduced.
fn unreduced(plan: &Plan, stage: &Stage) -> Vec<Bytes> {
    let layers = stage.layers().count();
    if !plan.shards_gradients() {
        return vec![Bytes::ZERO; layers];
    }
    // A layer whose weights are gathered no sooner than it is reached waits for what was sent before them.
    let awaits =
        plan.divides(Divided::Weights) && plan.reshard() == Reshard::AfterForward && plan.prefetch() == 0;
    let overlaps = plan.stack.overlap_gradient_reduction && !awaits;
    let buckets = buckets(plan, stage.layers().rev());
    let unreduced = |bucket: usize| full_gradients(plan, &buckets[bucket].1);
    let of_layer = |layer: usize| {
        let bucket = buckets.iter().rposition(|(first, _)| *first <= layer).unwrap_or(0);
        unreduced(bucket) + if bucket > 0 && overlaps { unreduced(bucket - 1) } else { Bytes::ZERO }
    };
    (0..layers).map(of_layer).collect()
}
