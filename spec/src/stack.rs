//! The software that would run a plan: which kernels are fused, what overlaps, what it allocates in addition to the model.

mod habits;
mod host;

pub use habits::{Cut, ExpertGates, ExtraState, MemoryReport, TokenKernels};
pub use host::HostTimes;

use crate::catalog;
use crate::error::SpecError;
use crate::model::Model;
use crate::precision::Precision;
use crate::program::FlashVersion;
use crate::sourced::Sourced;
use crate::units::{Bytes, BytesPerSecond};
use serde::{Deserialize, Serialize};
use std::sync::LazyLock;

/// A training framework as data.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct Stack {
    /// Name in the catalog.
    #[serde(default)]
    pub name: String,
    /// One line for `show stacks`.
    pub summary: String,
    /// Where its behaviour is documented.
    pub source: String,
    /// How tables of runs name it: the beginnings of their names for software.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    pub frameworks: Vec<String>,
    /// From when on those names mean it, as `2022-05`.
    #[serde(default, skip_serializing_if = "String::is_empty")]
    pub since: String,
    /// The families of plans for which it stands in for software that no stack names.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    pub stands_in_for: Vec<PlanFamily>,
    /// Whether it has Megatron's sequence parallelism.
    pub sequence_parallel: bool,
    /// Whether it can split the optimizer state over the data axis.
    pub sharded_optimizer: bool,
    /// The data-parallel schemes it has in addition to `none` and, with a sharded optimizer, `zero1`.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    pub data_schemes: Vec<String>,
    /// The pipeline schedules that it supports; empty without pipeline parallelism. `None`: all schedules.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub schedules: Option<Vec<String>>,
    /// Whether it can recompute the attention core alone.
    pub selective_recompute: bool,
    /// How attention is computed.
    pub attention: AttentionKernel,
    /// Whether bias, activation, dropout and residual addition next to each other run as one kernel.
    pub fused_elementwise: bool,
    /// Whether the kernels around it drop out too, with a mask that backward makes again: no separate kernel, and nothing kept.
    #[serde(default, skip_serializing_if = "std::ops::Not::not")]
    pub dropout_in_kernels: bool,
    /// Norms: one kernel, or mean, variance, normalisation and gain as a kernel each.
    #[serde(default = "Fusion::fused", skip_serializing_if = "Fusion::is_fused")]
    pub norms: Fusion,
    /// Size of the elements on which separate kernels of a norm work; that of activations if not given.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub norm_element: Option<Sourced<Bytes>>,
    /// Cross entropy: one kernel that reads the logits once and never stores fp32 probabilities, or several.
    #[serde(default = "Fusion::separate", skip_serializing_if = "Fusion::is_separate")]
    pub cross_entropy: Fusion,
    /// Whether the separate kernels of a cross entropy write the logits less their maximum, which become exponentials, beside
    /// the fp32 logits that they came from; else over these.
    #[serde(default, skip_serializing_if = "is_default")]
    pub loss_copies_logits: bool,
    /// Whether the separate kernels of a cross entropy are PyTorch's own, whose backward holds the gradients of the
    /// log-probabilities and of the fp32 logits at once, beside the log-probabilities.
    #[serde(default, skip_serializing_if = "is_default")]
    pub loss_by_autograd: bool,
    /// Whether the gradient of the logits is written over them, so that a fused cross entropy needs no memory for it.
    #[serde(default, skip_serializing_if = "is_default")]
    pub loss_in_place: bool,
    /// Whether weights that are loaded in 16 bits are trained as they are, unless a plan says otherwise: moments in 16 bits, no
    /// master weights.
    #[serde(default, skip_serializing_if = "is_default")]
    pub pure_16_bits: bool,
    /// The optimizer: one kernel for all tensors, or one for each.
    #[serde(default = "Fusion::fused", skip_serializing_if = "Fusion::is_fused")]
    pub optimizer: Fusion,
    /// Whether the weight-gradient product adds into the gradient buffer itself, saving a pass over the gradients.
    pub fused_gradient_accumulation: bool,
    /// In which precision gradients are accumulated and reduced; that of the weights if not given.
    pub gradient_precision: Option<Precision>,
    /// The same where weights are in bf16, if it is another: a 16-bit sum of many small gradients keeps three digits.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub bf16_gradient_precision: Option<Precision>,
    /// Whether weights of products below 16 bits are held as the copies that those read, without one in 16 bits.
    #[serde(default, skip_serializing_if = "std::ops::Not::not")]
    pub quantised_weights_only: bool,
    /// Whether the tensor axis's reduction in backward overlaps the weight-gradient product.
    pub overlap_tensor_backward: bool,
    /// Whether the exchanges of the tensor axis are split into chunks that overlap the chunks of its products: along
    /// a ring with sequence parallelism, block by block in a grid.
    #[serde(default, skip_serializing_if = "std::ops::Not::not")]
    pub overlap_tensor_pieces: bool,
    /// Whether messages between stages overlap the compute of other microbatches.
    pub overlap_pipeline: PipelineOverlap,
    /// Whether each tensor rank sends 1/t of the activations and gathers them again on the other side.
    pub scatter_gather_pipeline: bool,
    /// Whether gradients are reduced bucket by bucket during the last backward pass.
    pub overlap_gradient_reduction: bool,
    /// Whether sharded weights are gathered bucket by bucket during the first forward pass.
    pub overlap_weight_gather: bool,
    /// The calls that gather weights after the update.
    #[serde(default, skip_serializing_if = "is_default")]
    pub weight_gather: WeightGather,
    /// Parameters in a gradient bucket at least.
    pub bucket_parameters: Sourced<usize>,
    /// Parameters in a gradient bucket at least, for each data rank.
    pub bucket_parameters_per_data_rank: Sourced<usize>,
    /// The vocabulary is padded to a multiple of this times the tensor degree.
    pub vocabulary_multiple: Sourced<usize>,
    /// Memory of the CUDA context and the libraries' workspaces.
    pub context_memory: Sourced<Bytes>,
    /// Memory of each communicator's buffers.
    pub communicator_memory: Sourced<Bytes>,
    /// Memory lost to the allocator's rounding and fragmentation, as a part of activations and temporaries.
    pub fragmentation: Sourced<f64>,
    /// The same with several tensor ranks, whose collectives keep tensors from being reused; `fragmentation` if not given.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub tensor_fragmentation: Option<Sourced<f64>>,
    /// Buffers into which several tensor ranks gather activations and gradients, and which stay allocated: bytes for each
    /// token of a microbatch and hidden dimension; zero if not given.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub gather_buffers: Option<Sourced<Bytes>>,
    /// Size of an activation's or gradient's element on its way to an expert, where it is not that of activations.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub dispatch_element: Option<Sourced<Bytes>>,
    /// Multiprocessors of its kernels that send a token to each rank once; `None` if it has no such kernels.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub dispatch_multiprocessors: Option<Sourced<usize>>,
    /// What one of these multiprocessors moves; the GPU's figure for such kernels if not given.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub dispatch_rate: Option<Sourced<BytesPerSecond>>,
    /// The kernels that take the place of these where a table's dispatcher is `hybridep`; the same ones if not given.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub hybrid_dispatch: Option<TokenKernels>,
    /// Where the outputs of experts are multiplied by their gates.
    #[serde(default, skip_serializing_if = "is_default")]
    pub expert_gates: ExpertGates,
    /// Size of an element of the experts' gated activations as their inputs are kept for backward of products below 16 bits;
    /// that of activations if not given.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub kept_expert_activation_element: Option<Sourced<Bytes>>,
    /// Size of an element of the attention heads' outputs as they are kept for backward of products below 16 bits: once, for
    /// attention and for the projection. If not given attention keeps them as activations and the projection as operands.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub kept_attention_output_element: Option<Sourced<Bytes>>,
    /// The blocks whose products stay in 16 bits when the job's are in fewer; none of them if not given.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub base_blocks: Option<BaseBlocks>,
    /// Work of each process on its processor; none if not given.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub host: Option<HostTimes>,
    /// Whether every rank of the tensor axis computes the loss over the full vocabulary, gathered from all.
    #[serde(default, skip_serializing_if = "is_default")]
    pub gathers_logits: bool,
    /// Bytes that element-by-element kernels and reductions of a pass move over those of the kernels that are listed here
    /// for it, from 1 on: casts, copies and operators that nothing fuses; 1 if not given.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub traffic: Option<Sourced<f64>>,
    /// How a table's blocks are given to stages.
    #[serde(default, skip_serializing_if = "is_default")]
    pub cut: Cut,
    /// Whether a table's models without gates are trained with dropout; they are if not given.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub drops_out: Option<bool>,
    /// The meaning of a table's blank `recompute`; not known if not given, and `none` stands in.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub usual_recompute: Option<String>,
    /// The meaning of a table's `ddp`; `none` if not given.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub plain_data_scheme: Option<String>,
    /// Whether a head that would share the embedding's weights has separate weights where it is on another stage.
    #[serde(default, skip_serializing_if = "is_default")]
    pub unties_over_stages: bool,
    /// Of how many blocks in a row one is computed again whole where a table says `selective`; the attention core of
    /// all if not given.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub selective_blocks: Option<Sourced<usize>>,
    /// Bytes held for each parameter in addition to the plan's state; nothing if not given.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub extra_state: Option<ExtraState>,
    /// The memory that its users print.
    #[serde(default, skip_serializing_if = "is_default")]
    pub memory_report: MemoryReport,
    /// Whether what they print as GB are GiB.
    #[serde(default, skip_serializing_if = "is_default")]
    pub prints_gib: bool,
}

fn is_default<T: Default + PartialEq>(value: &T) -> bool {
    *value == T::default()
}

/// How many blocks at each end of a model are not computed below 16 bits.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct BaseBlocks {
    /// Of the first blocks.
    pub first: Sourced<usize>,
    /// Of the last blocks.
    pub last: Sourced<usize>,
}

impl BaseBlocks {
    /// Whether the block of that index is one of them.
    pub fn keep(&self, index: usize, model: &Model) -> bool {
        index < self.first.value || index.saturating_add(self.last.value) >= model.layers()
    }
}

/// When messages between stages overlap compute.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash, Serialize, Deserialize)]
#[serde(rename_all = "kebab-case")]
pub enum PipelineOverlap {
    /// Sends and receives stand in line with the kernels.
    Never,
    /// With several stages per rank, where other work is at hand (Megatron-Core's overlap_p2p_comm).
    Interleaved,
    /// Under every schedule.
    Always,
}

/// How attention is computed.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash, Serialize, Deserialize)]
#[serde(rename_all = "kebab-case")]
pub enum AttentionKernel {
    /// Scores in memory; scaling, mask and softmax as a kernel each.
    Unfused,
    /// Scores in memory; scaling, mask and softmax in one kernel.
    FusedSoftmax,
    /// One kernel that never stores the scores: the best generation of FlashAttention for the GPU.
    Flash,
    /// FlashAttention.
    #[serde(rename = "flash-1")]
    Flash1,
    /// FlashAttention-2.
    #[serde(rename = "flash-2")]
    Flash2,
    /// FlashAttention-3.
    #[serde(rename = "flash-3")]
    Flash3,
}

impl AttentionKernel {
    /// Which generation of fused attention it is, if it is.
    pub fn version(self) -> Option<FlashVersion> {
        match self {
            AttentionKernel::Unfused | AttentionKernel::FusedSoftmax => None,
            AttentionKernel::Flash => Some(FlashVersion::Best),
            AttentionKernel::Flash1 => Some(FlashVersion::First),
            AttentionKernel::Flash2 => Some(FlashVersion::Second),
            AttentionKernel::Flash3 => Some(FlashVersion::Third),
        }
    }
}

/// Whether what can be one kernel or message is one.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash, Serialize, Deserialize)]
#[serde(rename_all = "kebab-case")]
pub enum Fusion {
    /// One.
    Fused,
    /// One for each operator, or for each tensor.
    Separate,
}

impl Fusion {
    fn fused() -> Self {
        Fusion::Fused
    }

    fn separate() -> Self {
        Fusion::Separate
    }

    fn is_fused(&self) -> bool {
        *self == Fusion::Fused
    }

    fn is_separate(&self) -> bool {
        *self == Fusion::Separate
    }
}

/// The calls that gather updated weights.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default, Serialize, Deserialize)]
#[serde(rename_all = "kebab-case")]
pub enum WeightGather {
    /// One for all tensors, which lie in one buffer.
    #[default]
    Fused,
    /// One for each tensor, each after the other.
    Separate,
    /// One for each tensor, all of them in one NCCL group.
    Coalesced,
}

/// Plans by what their software must be able to do.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash, Serialize, Deserialize)]
#[serde(rename_all = "kebab-case")]
pub enum PlanFamily {
    /// Ranks share layers or hold different ones: tensor, context, pipeline or expert ranks.
    ModelParallel,
    /// Data ranks alone, which share the weights too: FSDP, ZeRO-3.
    ShardedWeights,
    /// Data ranks alone, each with all weights.
    Replicas,
    /// Programs that a compiler makes of a step, with their collectives (XLA).
    Compiled,
}

/// Every stack of the catalog, read once.
static STACKS: LazyLock<Vec<Stack>> = LazyLock::new(|| {
    catalog::names("stacks").into_iter().filter_map(|name| Stack::from_name(name).ok()).collect()
});

impl Stack {
    /// A stack of the catalog.
    ///
    /// # Errors
    /// `UnknownName` with the nearest names.
    pub fn from_name(name: &str) -> Result<Stack, SpecError> {
        let text = catalog::text("stack", name)?;
        let stack: Stack = toml::from_str(text).map_err(|error| SpecError::Syntax {
            origin: format!("stack {name}"),
            message: error.to_string(),
        })?;
        Ok(Stack { name: name.into(), ..stack })
    }

    /// The stack that a table of runs means by `software` at a date (`2023-11-05`, or less of it; none: today).
    ///
    /// Of the stacks one of whose names begins the text, or is anywhere in it where `within`, those with the longest
    /// such name; of these the newest that is no newer than the date, else the oldest. `None` if no stack has the name.
    pub fn from_framework(software: &str, within: bool, date: &str) -> Option<Stack> {
        let software = software.to_lowercase();
        let matched = |stack: &Stack| {
            let matches = |name: &&String| match within {
                true => software.contains(&name.to_lowercase()),
                false => software.starts_with(&name.to_lowercase()),
            };
            stack.frameworks.iter().filter(matches).map(String::len).max()
        };
        let longest = STACKS.iter().filter_map(matched).max()?;
        latest(STACKS.iter().filter(|stack| matched(stack) == Some(longest)), date)
    }

    /// The stack that stands in for software which no stack names, for plans of a family at a date (as in
    /// `from_framework`); `None` if the catalog has no stack for the family.
    pub fn stand_in(family: PlanFamily, date: &str) -> Option<Stack> {
        latest(STACKS.iter().filter(|stack| stack.stands_in_for.contains(&family)), date)
    }

    /// Whether it has the data-parallel scheme of that name.
    pub fn has_data_scheme(&self, name: &str) -> bool {
        match name {
            "none" => true,
            "zero1" => self.sharded_optimizer,
            other => self.data_schemes.iter().any(|scheme| scheme == other),
        }
    }

    /// Whether it has the pipeline schedule of that name.
    pub fn has_schedule(&self, name: &str) -> bool {
        self.schedules.as_ref().is_none_or(|all| all.iter().any(|schedule| schedule == name))
    }

    /// Whether it has pipelines.
    pub fn has_pipelines(&self) -> bool {
        self.schedules.as_ref().is_none_or(|all| !all.is_empty())
    }

    /// Makes each launch wait until its op is done, on any stream: CUDA_LAUNCH_BLOCKING=1.
    pub fn wait_for_ops(&mut self) {
        self.overlap_tensor_backward = false;
        self.overlap_tensor_pieces = false;
        self.overlap_pipeline = PipelineOverlap::Never;
        self.overlap_gradient_reduction = false;
        self.overlap_weight_gather = false;
        if let Some(host) = &mut self.host {
            host.waits_for_ops = true;
        }
    }

    /// In which precision gradients are accumulated when weights are in `weights`.
    pub fn gradient_precision(&self, weights: Precision) -> Precision {
        let of_bf16 = self.bf16_gradient_precision.filter(|_| weights == Precision::Bf16);
        of_bf16.or(self.gradient_precision).unwrap_or(weights)
    }

    /// What the allocator loses with this many tensor ranks, as a part of activations and temporaries.
    pub fn lost_part(&self, tensor: usize) -> f64 {
        let of_tensor_ranks = self.tensor_fragmentation.as_ref().filter(|_| tensor > 1);
        of_tensor_ranks.unwrap_or(&self.fragmentation).value
    }

    /// The vocabulary as it is stored when split over `tensor` ranks.
    pub fn padded_vocabulary(&self, vocabulary: usize, tensor: usize) -> usize {
        vocabulary.next_multiple_of(self.vocabulary_multiple.value * tensor)
    }
}

/// The last of the stacks that exist at a date (today, if it is empty), or the first of all if none does.
fn latest<'a>(stacks: impl Iterator<Item = &'a Stack>, date: &str) -> Option<Stack> {
    let mut stacks: Vec<&Stack> = stacks.collect();
    stacks.sort_by(|one, other| one.since.cmp(&other.since));
    let newer = stacks.iter().position(|stack| !date.is_empty() && stack.since.as_str() > date);
    let index = newer.unwrap_or(stacks.len()).saturating_sub(1);
    stacks.get(index).map(|stack| (*stack).clone())
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn software_without_a_stack_gets_the_latest_of_its_family() {
        let check = |family, date, expected: &str| {
            assert_eq!(Stack::stand_in(family, date).unwrap().name, expected, "{family:?} {date}");
        };
        check(PlanFamily::ModelParallel, "2021-12", "megatron-lm-2021");
        check(PlanFamily::ModelParallel, "2022-05", "megatron-lm-2022");
        check(PlanFamily::ModelParallel, "2024-06-01", "megatron-core-2024");
        check(PlanFamily::ModelParallel, "", "megatron-core-2025");
        // Before all of them: the first.
        check(PlanFamily::ModelParallel, "2017", "megatron-lm-2021");
        check(PlanFamily::ShardedWeights, "2023-06", "pytorch-eager");
        check(PlanFamily::ShardedWeights, "2025-01", "torchtitan");
        check(PlanFamily::Replicas, "2025-01", "pytorch-eager");
        check(PlanFamily::Compiled, "2024-01", "maxtext");
    }

    #[test]
    fn every_stack_of_the_catalog_is_read_and_has_sources() {
        let names = catalog::names("stacks");
        assert!(names.contains(&"megatron-core"), "{names:?}");
        for name in names {
            let stack = Stack::from_name(name).unwrap();
            for schedule in stack.schedules.iter().flatten() {
                assert!(crate::schedule::schedule(schedule).is_ok(), "{name}: {schedule}");
            }
            let sources = [
                &stack.source,
                &stack.bucket_parameters.source,
                &stack.bucket_parameters_per_data_rank.source,
                &stack.vocabulary_multiple.source,
                &stack.context_memory.source,
                &stack.communicator_memory.source,
                &stack.fragmentation.source,
            ];
            let dispatch = stack.dispatch_element.iter().map(|size| &size.source);
            let dispatch = dispatch.chain(stack.dispatch_multiprocessors.iter().map(|count| &count.source));
            let kept = [&stack.kept_expert_activation_element, &stack.kept_attention_output_element];
            let kept = kept.into_iter().flatten().map(|size| &size.source);
            let host = stack.host.iter();
            let host = host.flat_map(|host| {
                let always = [&host.launch.source, &host.message.source, &host.step.source];
                let optional = [&host.collective, &host.collective_node, &host.microbatch];
                let optional = optional.into_iter().flatten();
                always.into_iter().chain(optional.map(|time| &time.source))
            });
            let extra = stack.extra_state.iter();
            let extra = extra
                .flat_map(|extra| {
                    let sizes = [&extra.always, &extra.divided_whole, &extra.divided_part];
                    sizes.into_iter().chain(&extra.divided_bf16).chain(&extra.divided_buffers)
                })
                .map(|bytes| &bytes.source);
            let selective = stack.selective_blocks.iter().map(|blocks| &blocks.source);
            let selective = selective.chain(stack.tensor_fragmentation.iter().map(|part| &part.source));
            let selective = selective.chain(stack.gather_buffers.iter().map(|bytes| &bytes.source));
            let selective = selective.chain(stack.dispatch_rate.iter().map(|rate| &rate.source));
            let hybrid = stack.hybrid_dispatch.iter();
            let hybrid = hybrid.flat_map(|hybrid| [&hybrid.multiprocessors.source, &hybrid.rate.source]);
            let selective = selective.chain(hybrid);
            let dispatch = dispatch.chain(kept).chain(stack.norm_element.iter().map(|size| &size.source));
            let traffic = stack.traffic.iter().map(|traffic| &traffic.source);
            let of_stack =
                sources.into_iter().chain(dispatch).chain(host).chain(extra).chain(selective).chain(traffic);
            let sources = of_stack.collect::<Vec<_>>();
            assert!(sources.iter().all(|source| !source.is_empty()), "{name} lacks a source");
            let written = toml::to_string(&stack).unwrap();
            assert_eq!(toml::from_str::<Stack>(&written).unwrap(), stack, "{name}");
        }
    }

    #[test]
    fn gpt2_vocabulary_is_padded_as_megatron_pads_it() {
        let stack = Stack::from_name("megatron-core").unwrap();
        assert_eq!(stack.padded_vocabulary(50257, 1), 50304);
        assert_eq!(stack.padded_vocabulary(50257, 8), 51200);
    }
}
