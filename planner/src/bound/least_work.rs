//! What the matrix products of a step take at least, from the model's sizes alone: nothing is lowered for it.

use super::pipeline_work::ROUNDING;
use crate::candidate::Candidate;
use crate::question::Question;
use trainwright_spec::cluster::Gpu;
use trainwright_spec::model::Block;
use trainwright_spec::model::flops::AttentionCount;
use trainwright_spec::precision::Precision;
use trainwright_spec::units::{Flops, FlopsPerSecond, Seconds};

/// The FLOPs of a model's layers on one sequence, forward and backward, and the rate that no GPU exceeds.
#[derive(Debug, Clone)]
pub(crate) struct LeastWork {
    /// Of all blocks and of the product with the vocabulary.
    all: Flops,
    /// Of the smallest block.
    block: Flops,
    layers: usize,
    global_batch: usize,
    /// By precision of a layout: the highest rate that products of this precision or a wider one reach.
    rates: Vec<(Precision, FlopsPerSecond)>,
    /// Whether kernels were measured, which may be faster than any rate says.
    is_measured: bool,
}

impl LeastWork {
    pub fn new(question: &Question) -> Self {
        let Question { model, job, cluster, .. } = question;
        // Of frozen weights no gradient is made; scores, of which both are, count as little.
        let products = if job.adapters.is_some() { 2.0 } else { 3.0 };
        let of_block = |block: &Block| {
            products * block.forward_flops(model.hidden, job.sequence, AttentionCount::CausalHalved)
        };
        let blocks: Flops = model.blocks.iter().map(|run| of_block(&run.block) * run.count as f64).sum();
        let width = model.embedding.width.unwrap_or(model.hidden);
        let head = Flops::new(2.0 * products * (job.sequence as f64) * width as f64 * model.vocab as f64);
        let least = model.blocks.iter().map(|run| of_block(&run.block)).reduce(Flops::min);
        let rate = |precision: Precision| {
            let of_kind = cluster.kinds().map(|(_, node)| best_rate(&node.gpu, precision));
            (precision, of_kind.fold(FlopsPerSecond::ZERO, FlopsPerSecond::max))
        };
        Self {
            all: blocks + head,
            block: least.unwrap_or(Flops::ZERO),
            layers: model.layers(),
            global_batch: job.global_batch,
            rates: Precision::ALL.map(rate).to_vec(),
            is_measured: cluster.kinds().any(|(_, node)| node.gpu.profile.is_some()),
        }
    }

    /// A time that no step of a candidate with this layout is below; zero where kernels were measured.
    ///
    /// T = max(m F / p, m ⌈L / p⌉ f) b / (t c R)
    ///
    /// m microbatches of b sequences on p pipeline ranks, t tensor and c context ranks, F and f the FLOPs of all layers and of
    /// the smallest of L blocks for a sequence, R the highest rate of a GPU. A rank has its share of the products or more,
    /// whichever scheme divides them, and no product exceeds the rate that large ones reach: this is never above
    /// `pipeline_bound`.
    pub fn bound(&self, layout: &Candidate) -> Seconds {
        if self.is_measured { Seconds::ZERO } else { self.time(layout) * (1.0 - ROUNDING) }
    }

    /// A time that no step is below with products of this precision, times the GPUs that it has, however many; zero where
    /// kernels were measured.
    ///
    /// T = B F / R
    ///
    /// B sequences, F the FLOPs of all layers for a sequence, R as for `bound`, which divides the same work.
    pub fn gpu_time(&self, precision: Precision) -> Seconds {
        let rate = self.rates.iter().find(|(other, _)| *other == precision).map(|(_, rate)| *rate);
        match rate.filter(|rate| *rate > FlopsPerSecond::ZERO && !self.is_measured) {
            Some(rate) => self.all * self.global_batch as f64 / rate * (1.0 - ROUNDING),
            None => Seconds::ZERO,
        }
    }

    /// That time, wherever it comes from.
    pub fn time(&self, layout: &Candidate) -> Seconds {
        let rate = self.rates.iter().find(|(precision, _)| *precision == layout.precision);
        let Some((_, rate)) = rate.filter(|(_, rate)| *rate > FlopsPerSecond::ZERO) else {
            return Seconds::ZERO;
        };
        let shape = layout.shape(self.global_batch);
        let share = layout.micro_batch as f64 / (layout.mesh.tensor * layout.mesh.context) as f64;
        let blocks = self.layers.div_ceil(shape.ranks) as f64;
        let busiest = (self.all * (1.0 / shape.ranks as f64)).max(self.block * blocks);
        busiest * share * shape.microbatches as f64 / *rate
    }
}

/// The highest rate of products on a GPU in a precision or a wider one, by the parts of the peak that products or fused
/// attention reach.
fn best_rate(gpu: &Gpu, precision: Precision) -> FlopsPerSecond {
    let achieved = &gpu.achieved;
    let of_versions = achieved.attention.values().flat_map(|part| [part.forward.value, part.backward.value]);
    let attention = of_versions
        .chain([achieved.attention_forward.value, achieved.attention_backward.value])
        .fold(0.0, f64::max);
    let wide = gpu.peak.iter().filter(|(other, _)| other.operand_bytes() >= precision.operand_bytes());
    let reached = |of: &Precision| achieved.matrix.get(of).map_or(0.0, |part| part.value);
    let rates = wide.map(|(of, peak)| peak.value * reached(of).max(attention));
    rates.fold(FlopsPerSecond::ZERO, FlopsPerSecond::max)
}
