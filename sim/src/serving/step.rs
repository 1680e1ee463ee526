//! The time of one step of an engine: the kernels of its blocks, their collectives, and the host.

mod mixers;

use super::exchange::Exchanges;
use super::formats::Formats;
use crate::libraries::{AllReduce, Call, Chip, Exchange, Experts, Parts, Product};
use crate::libraries::{Unknown, Wanted, coefficients, lacking};
use crate::network::collective_time;
use std::collections::BTreeMap;
use trainwright_spec::cluster::{Cluster, Transport};
use trainwright_spec::collective::CollectiveKind;
use trainwright_spec::model::{self, Block, FeedForward, Mlp, Model};
use trainwright_spec::serving::ServingPlan;
use trainwright_spec::units::{Bytes, Seconds};

/// The most that launch, first and last steps of a product take in a step. Microbenchmarks without captured graphs have the host's
/// time in them, up to hundreds of microseconds for the kernels of some libraries; in a step it passes while other kernels run. Those
/// that were captured take 2 to 5 µs (coefficients `latency` of the catalog's libraries).
const PRODUCT_LATENCY: Seconds = Seconds::new(5e-6);

/// Fits of products with a longer latency were measured without captured graphs: the catalog has 2 to 22 µs with them, with what
/// quantises activations, and 58 to 307 µs without. Up to so long the host hides the product, so that other fits of the format are
/// taken first.
const HOST_LATENCY: Seconds = Seconds::new(50e-6);

/// Kernels of sparse latent attention with its projections, each of which launches: two projections down and up with norms and
/// rotation, those of the indexer, its scores, the choice of keys, attention, the way out. Captured modules take 48 to 62 µs with
/// nothing to do (coefficients `latency` of SGLang), about 3 µs for each.
const SPARSE_KERNELS: usize = 18;

/// What the sequences of a step do.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash, Default)]
pub struct Batch {
    /// Sequences that compute a part of their prompt.
    pub chunks: usize,
    /// Tokens of all these parts.
    pub queries: usize,
    /// Tokens before such a part in the cache, in the mean.
    pub before: usize,
    /// Sequences that compute one token.
    pub decodes: usize,
    /// Tokens before it in the cache, in the mean.
    pub history: usize,
    /// Sequences of which a token is sampled.
    pub sampled: usize,
}

impl Batch {
    /// Tokens of the step.
    pub fn tokens(&self) -> usize {
        self.queries + self.decodes
    }

    /// What one of `parts` equal microbatches does.
    fn divided(self, parts: usize) -> Self {
        let part = |count: usize| count.div_ceil(parts);
        Self {
            chunks: part(self.chunks),
            queries: part(self.queries),
            decodes: part(self.decodes),
            sampled: part(self.sampled),
            ..self
        }
    }
}

/// A part of a step's time.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord)]
pub enum Part {
    /// Products of attention, dense feed-forward layers, router and head.
    Products,
    /// Attention of prompts.
    PrefillAttention,
    /// Attention of single tokens.
    DecodeAttention,
    /// States of linear attention and Mamba-2, with the convolution before them.
    States,
    /// Grouped products of experts.
    Experts,
    /// Norms, rotation, activation and the like.
    SmallKernels,
    /// Sums and gathers over tensor ranks.
    TensorCommunication,
    /// Tokens to their experts and back.
    ExpertCommunication,
    /// Messages between pipeline stages.
    PipelineCommunication,
}

impl Part {
    /// For people.
    pub fn name(self) -> &'static str {
        match self {
            Part::Products => "products",
            Part::PrefillAttention => "prefill attention",
            Part::DecodeAttention => "decode attention",
            Part::States => "states",
            Part::Experts => "experts",
            Part::SmallKernels => "small kernels",
            Part::TensorCommunication => "tensor communication",
            Part::ExpertCommunication => "expert communication",
            Part::PipelineCommunication => "pipeline messages",
        }
    }
}

/// The time of a step.
#[derive(Debug, Clone, PartialEq, Default)]
pub struct StepTime {
    /// Parts of the GPU's time.
    pub parts: BTreeMap<Part, Seconds>,
    /// Kernels.
    pub kernels: usize,
    /// From its start to that of the next.
    pub total: Seconds,
}

impl StepTime {
    fn add(&mut self, part: Part, time: Seconds, times: usize) {
        *self.parts.entry(part).or_default() += times as f64 * time;
        self.kernels += times;
    }

    /// The GPU's time, if nothing is beside anything else.
    pub fn gpu(&self) -> Seconds {
        self.parts.values().copied().sum()
    }

    /// The same if tokens move to experts and back while another half of the batch computes.
    fn hidden(&self) -> Seconds {
        let moves = self.parts.get(&Part::ExpertCommunication).copied().unwrap_or_default();
        moves.max(self.gpu() - moves)
    }
}

/// The times of the steps of one instance.
pub struct StepModel<'a> {
    model: &'a Model,
    plan: &'a ServingPlan,
    cluster: &'a Cluster,
    chip: Chip<'a>,
    /// The same with nothing in its cache.
    cold: Chip<'a>,
    formats: Formats,
    /// Coefficients of kernels, by family and format.
    fitted: BTreeMap<(&'static str, &'static str), Vec<f64>>,
    /// Times of products, by format and sizes: batches with as many tokens have the same.
    products: BTreeMap<(&'static str, [usize; 3]), Seconds>,
    exchanges: Exchanges,
    collectives: BTreeMap<(usize, u64), Seconds>,
    steps: BTreeMap<Batch, Seconds>,
}

impl<'a> StepModel<'a> {
    /// The instance takes the first GPUs of the cluster.
    ///
    /// # Errors
    /// `Unknown::Format`.
    pub fn new(model: &'a Model, plan: &'a ServingPlan, cluster: &'a Cluster) -> Result<Self, Unknown> {
        let chip = Chip::of(cluster);
        Ok(Self {
            model,
            plan,
            cluster,
            chip,
            cold: Chip { cache: Bytes::ZERO, ..chip },
            formats: Formats::of(plan)?,
            fitted: BTreeMap::new(),
            products: BTreeMap::new(),
            exchanges: Exchanges::default(),
            collectives: BTreeMap::new(),
            steps: BTreeMap::new(),
        })
    }

    /// The plan of the instance.
    pub fn plan(&self) -> &'a ServingPlan {
        self.plan
    }

    /// The model.
    pub fn model(&self) -> &'a Model {
        self.model
    }

    /// The cluster.
    pub fn cluster(&self) -> &'a Cluster {
        self.cluster
    }

    /// The time from the start of a step to that of the next. Counts are rounded to 64ths of themselves, so that a step that
    /// was computed serves its neighbours.
    ///
    /// # Errors
    /// `Unknown` for a kernel that the GPU cannot do.
    pub fn time(&mut self, batch: &Batch) -> Result<Seconds, Unknown> {
        let round = |count: usize| {
            let step = (count >> 6).next_power_of_two().max(1);
            (count + step / 2) / step * step
        };
        let key = Batch {
            queries: round(batch.queries),
            before: round(batch.before),
            decodes: round(batch.decodes),
            history: round(batch.history),
            ..*batch
        };
        if let Some(time) = self.steps.get(&key) {
            return Ok(*time);
        }
        let time = self.step(&key)?.total;
        self.steps.insert(key, time);
        Ok(time)
    }

    /// A step in its parts.
    ///
    /// T = max(G, H) + s Λ where the host prepares a step during the one before, else G + H + s Λ; G = max(Σ parts, k λ) outside of
    /// graphs, Λ the host's work for one of s log-probabilities, if they are asked for.
    ///
    /// An engine that has two batches halves the batch where that is faster: while the tokens of a half move to their experts and
    /// back, the other half computes.
    ///
    /// With p pipeline stages the batch goes around in p microbatches, each of which visits all blocks during the step; with
    /// attention-data ranks each of these has an equal part of it.
    ///
    /// # Errors
    /// `Unknown` for a kernel that the GPU cannot do.
    pub fn step(&mut self, batch: &Batch) -> Result<StepTime, Unknown> {
        let of_stage = batch.divided(self.plan.pipeline * self.plan.attention_data);
        let mut step = self.passes(&of_stage, 1)?;
        let mut on_gpu = step.gpu();
        if self.plan.engine.two_batches && of_stage.tokens() > 1 {
            let halves = self.passes(&of_stage.divided(2), 2)?;
            if halves.hidden() < on_gpu {
                on_gpu = halves.hidden();
                step = halves;
            }
        }
        let host = &self.plan.engine.host;
        let sequences = (batch.chunks + batch.decodes) as f64;
        let on_host = host.step.value + sequences * host.sequence.value;
        let is_graph = batch.tokens() <= host.graph_tokens.value;
        let launches = if is_graph { Seconds::ZERO } else { step.kernels as f64 * host.launch.value };
        let on_gpu = on_gpu.max(launches);
        let asked = if self.plan.log_probs { host.log_probability.as_ref() } else { None };
        let of_log_probs = asked.map_or(Seconds::ZERO, |each| batch.sampled as f64 * each.value);
        let busy = if host.overlapped { on_gpu.max(on_host) } else { on_gpu + on_host };
        step.total = busy + of_log_probs;
        Ok(step)
    }

    /// `times` batches through all blocks, one after the other.
    fn passes(&mut self, batch: &Batch, times: usize) -> Result<StepTime, Unknown> {
        let mut step = StepTime::default();
        let model = self.model;
        for run in &model.blocks {
            let mut block = StepTime::default();
            self.block(&run.block, batch, &mut block)?;
            for (part, time) in block.parts {
                *step.parts.entry(part).or_default() += run.count as f64 * time;
            }
            step.kernels += run.count * block.kernels;
        }
        self.ends(batch, &mut step)?;
        step.parts.values_mut().for_each(|time| *time = times as f64 * *time);
        step.kernels *= times;
        Ok(step)
    }

    /// The kernels of a block.
    fn block(&mut self, block: &Block, batch: &Batch, step: &mut StepTime) -> Result<(), Unknown> {
        let tokens = batch.tokens();
        self.attention(&block.attention, batch, step)?;
        if !block.parallel {
            self.all_reduce(tokens, step)?;
        }
        match &block.mlp {
            Mlp::Dense(mlp) => {
                self.feed_forward(mlp, tokens, step)?;
                self.all_reduce(tokens, step)?;
            }
            Mlp::Experts(experts) => self.experts(experts, tokens, step)?,
        }
        let small = &self.plan.engine.small_kernels;
        let bytes = small.passes.value * (tokens * self.model.hidden) as f64 * 2.0;
        let time = small.count.value as f64 * small.latency.value
            + Seconds::new(bytes / self.cluster.node.gpu.memory_bandwidth.value.get());
        *step.parts.entry(Part::SmallKernels).or_default() += time;
        step.kernels += small.count.value;
        Ok(())
    }

    fn feed_forward(&mut self, mlp: &FeedForward, tokens: usize, step: &mut StepTime) -> Result<(), Unknown> {
        let width = mlp.width.div_ceil(self.plan.tensor);
        let first = if mlp.gated { 2 * width } else { width };
        self.linear(tokens, first, self.model.hidden, step)?;
        self.linear(tokens, self.model.hidden, width, step)
    }

    fn experts(
        &mut self,
        experts: &model::Experts,
        tokens: usize,
        step: &mut StepTime,
    ) -> Result<(), Unknown> {
        let plan = self.plan;
        let (hidden, ranks) = (self.model.hidden, plan.ranks_of_stage());
        self.product(Product { m: tokens, n: experts.count, k: hidden, operands: self.formats.base }, step)?;
        if plan.attention_data > 1 {
            let way = |element| Exchange {
                gpus: ranks,
                tokens: tokens.div_ceil(plan.tensor),
                hidden,
                chosen: experts.per_token,
                element,
            };
            let ways = [self.formats.experts, self.formats.base].map(way);
            let library = &plan.engine.library;
            let time = self.exchanges.time(ways, &self.chip, library, self.cluster)?;
            step.add(Part::ExpertCommunication, 0.5 * time, 2);
        }
        let call = Experts {
            tokens: tokens * plan.attention_data,
            hidden,
            inner: experts.expert.width,
            experts: experts.count,
            chosen: experts.per_token,
            tensor_parallel: plan.expert_tensor(),
            expert_parallel: plan.expert,
            gated: experts.expert.gated,
            skewed: !plan.engine.balances_experts,
            exchanged: plan.attention_data > 1,
            operands: self.formats.experts,
        };
        let time = self.kernel(&Call::Experts(call))?;
        step.add(Part::Experts, time.total(), 1);
        if let Some(shared) = &experts.shared {
            self.feed_forward(shared, tokens, step)?;
        }
        if plan.attention_data == 1 {
            self.all_reduce(tokens, step)?;
        }
        Ok(())
    }

    /// The embedding, the head, its gather, and the messages between stages.
    fn ends(&mut self, batch: &Batch, step: &mut StepTime) -> Result<(), Unknown> {
        let (plan, hidden) = (self.plan, self.model.hidden);
        self.all_reduce(batch.tokens(), step)?;
        let vocab = self.model.vocab.div_ceil(plan.tensor);
        let operands = self.formats.base;
        self.product(Product { m: batch.sampled.max(1), n: vocab, k: hidden, operands }, step)?;
        if plan.tensor > 1 {
            let logits = Bytes::new((batch.sampled * self.model.vocab) as f64 * 2.0);
            let ranks: Vec<usize> = (0..plan.tensor).collect();
            let time = collective_time(CollectiveKind::AllGather, logits, &ranks, self.cluster);
            step.add(Part::TensorCommunication, time, 1);
        }
        if plan.pipeline > 1 {
            let bytes = Bytes::new((batch.tokens() * hidden) as f64 * 2.0 / plan.tensor as f64);
            let next = plan.ranks_of_stage();
            let time = collective_time(CollectiveKind::SendReceive, bytes, &[0, next], self.cluster);
            step.add(Part::PipelineCommunication, time, plan.pipeline - 1);
        }
        Ok(())
    }

    /// A product with weights in the format of the plan.
    fn linear(&mut self, m: usize, n: usize, k: usize, step: &mut StepTime) -> Result<(), Unknown> {
        self.product(Product { m, n, k, operands: self.formats.weights }, step)
    }

    fn product(&mut self, product: Product, step: &mut StepTime) -> Result<(), Unknown> {
        let key = (product.operands.name, [product.m, product.n, product.k]);
        let time = match self.products.get(&key) {
            Some(time) => *time,
            None => {
                let time = self.kernel(&Call::Product(product))?.total();
                self.products.insert(key, time);
                time
            }
        };
        step.add(Part::Products, time, 1);
        Ok(())
    }

    /// A kernel's time, with the coefficients of the engine's library.
    ///
    /// A measurement repeats one call and finds small operands in the cache. A step reads all weights, keys, values and states
    /// once, which together are larger than the cache: they come from memory.
    fn kernel(&mut self, call: &Call) -> Result<Parts, Unknown> {
        let key = (call.family().name, call.format());
        if !self.fitted.contains_key(&key) {
            let latency = matches!(call, Call::Product(_)).then_some(HOST_LATENCY);
            let wanted = Wanted { library: Some(&self.plan.engine.library), kernel: None, latency };
            self.fitted.insert(key, coefficients(call, &self.chip, &wanted)?);
        }
        let chip = match call {
            Call::Product(_) | Call::Decode(_) | Call::Latent(_) | Call::StateDecode(_) => &self.cold,
            _ => &self.chip,
        };
        let mut parts = call.parts(chip, &self.fitted[&key]).ok_or_else(|| lacking(call, chip))?;
        match call {
            Call::Product(_) => parts.latency = parts.latency.min(PRODUCT_LATENCY),
            Call::Sparse(_) => {
                parts.latency = parts.latency.min(SPARSE_KERNELS as f64 * PRODUCT_LATENCY);
            }
            _ => {}
        }
        Ok(parts)
    }

    /// Sums the tokens' partial results over the tensor ranks: in one kernel of the library's own if these share a switch and
    /// that is faster, else by NCCL.
    fn all_reduce(&mut self, tokens: usize, step: &mut StepTime) -> Result<(), Unknown> {
        let gpus = self.plan.tensor;
        if gpus == 1 {
            return Ok(());
        }
        let message = Bytes::new((tokens * self.model.hidden) as f64 * 2.0);
        let key = (gpus, message.get() as u64);
        let time = match self.collectives.get(&key) {
            Some(time) => *time,
            None => {
                let ranks: Vec<usize> = (0..gpus).collect();
                let nccl = collective_time(CollectiveKind::AllReduce, message, &ranks, self.cluster);
                let node = &self.cluster.node;
                let together = self.plan.engine.own_all_reduce
                    && gpus <= node.gpus.value
                    && node.interconnect.transport == Transport::NvLink;
                let time = match together.then(|| self.kernel(&Call::AllReduce(AllReduce { gpus, message })))
                {
                    Some(own) => own?.total().min(nccl),
                    None => nccl,
                };
                self.collectives.insert(key, time);
                time
            }
        };
        step.add(Part::TensorCommunication, time, 1);
        Ok(())
    }
}
