//! The traffic of each axis of the mesh, counted in lowered programs, against the published volumes.
//!
//! s sequence, b microbatch, h hidden width, V padded vocabulary, t tensor ranks, e = 2 bytes of an activation or
//! weight, g bytes of a gradient. A collective counts with its full tensor.

use crate::common::Draft;
use std::collections::BTreeMap;
use trainwright_lower::lower;
use trainwright_spec::collective::CollectiveKind;
use trainwright_spec::plan::Recompute;
use trainwright_spec::program::{Axis, Channel, Op, Pass, Program, RankProgram, Work};

/// Counts and bytes of the transfers in a list of ops.
type Volumes = BTreeMap<(&'static str, u64), usize>;

/// The collectives over `axis` among `ops`.
fn collectives<'a>(ops: impl Iterator<Item = &'a Op>, axis: Axis) -> Volumes {
    let mut volumes = Volumes::new();
    for op in ops {
        if let Work::Collective { kind, axis: of_axis, bytes, .. } = op.work
            && of_axis == axis
        {
            assert_eq!(bytes.get().fract(), 0.0, "whole bytes");
            *volumes.entry((kind.name(), bytes.get() as u64)).or_default() += 1;
        }
    }
    volumes
}

/// All ops of a rank in a step, those of a segment as often as it is called.
fn step<'a>(program: &'a Program, rank: &'a RankProgram) -> impl Iterator<Item = &'a Op> {
    rank.calls.iter().flat_map(|call| &program.segments[call.segment].ops)
}

/// The expectation, written as (kind, bytes, count).
fn expected(list: &[(CollectiveKind, u64, usize)]) -> Volumes {
    list.iter().filter(|(.., count)| *count > 0).map(|(kind, bytes, n)| ((kind.name(), *bytes), *n)).collect()
}

use CollectiveKind::{AllGather, AllReduce, ReduceScatter};

/// The first rank of the program's middle stage, in a pipeline of three.
const MIDDLE: usize = 1;

#[test]
fn tensor_parallel_blocks_reduce_bsh() {
    // Per block and microbatch, all of b s h e bytes.
    // Megatron (1909.08053, section 3): 2 all-reduces forward, 2 backward; full recompute runs the forward ones again.
    // Sequence parallel (2205.05198, section 4.2): an all-reduce becomes an all-gather and a reduce-scatter, and
    // backward gathers the two inputs once more for the weights' gradients.
    let check = |draft: &Draft, [forward, recompute, backward]: [[usize; 3]; 3]| {
        let plan = draft.plan();
        let program = lower(&plan);
        let rank = &program.ranks[MIDDLE];
        let bsh = (draft.micro_batch * draft.sequence * draft.model.hidden * 2) as u64;
        for (pass, [all_reduces, all_gathers, reduce_scatters]) in
            [(Pass::Forward, forward), (Pass::Recompute, recompute), (Pass::Backward, backward)]
        {
            for layer in 2..4 {
                let ops = step(&program, rank).filter(|op| op.layer == Some(layer) && op.pass == pass);
                let m = draft.microbatches;
                assert_eq!(
                    collectives(ops, Axis::Tensor),
                    expected(&[
                        (AllReduce, bsh, all_reduces * m),
                        (AllGather, bsh, all_gathers * m),
                        (ReduceScatter, bsh, reduce_scatters * m),
                    ]),
                    "{} {pass:?} of block {layer}, recompute {}",
                    draft.model.name,
                    draft.recompute.name(),
                );
            }
        }
    };
    let none = [0, 0, 0];
    for model in ["gpt2-xl", "llama-7b", "llama-3-8b", "mixtral-8x7b", "gemma-7b"] {
        let tensor = if model == "gpt2-xl" { 5 } else { 4 };
        let replicated = Draft {
            blocks: 6,
            micro_batch: 2,
            sequence: 1000,
            microbatches: 4,
            ..Draft::of(model, [tensor, 3, 1])
        };
        let replicated = Draft { gpus_per_node: tensor, ..replicated };
        check(&replicated, [[2, 0, 0], none, [2, 0, 0]]);
        check(&Draft { recompute: Recompute::Selective, ..replicated.clone() }, [[2, 0, 0], none, [2, 0, 0]]);
        check(&Draft { recompute: Recompute::Full, ..replicated.clone() }, [[2, 0, 0], [2, 0, 0], [2, 0, 0]]);
        let split = Draft { sequence_parallel: true, ..replicated };
        // A mixture's experts read copies of the gathered tokens and keep those: nothing to gather again.
        let again = if model == "mixtral-8x7b" { 1 } else { 2 };
        let backward = [0, 2 + again, 2];
        check(&split, [[0, 2, 2], none, backward]);
        check(&Draft { recompute: Recompute::Selective, ..split.clone() }, [[0, 2, 2], none, backward]);
        check(&Draft { recompute: Recompute::Full, ..split }, [[0, 2, 2], [0, 2, 2], backward]);
    }
    // Attention and feed-forward layer side by side share the output's reduction, and the input's if they share the norm.
    let mut parallel = Draft { blocks: 6, gpus_per_node: 4, ..Draft::of("gpt-neox-20b", [4, 3, 1]) };
    check(&parallel, [[1, 0, 0], none, [2, 0, 0]]);
    check(&Draft { sequence_parallel: true, ..parallel.clone() }, [[0, 2, 1], none, [0, 3, 2]]);
    parallel.model.blocks[0].block.norms = 1;
    check(&parallel, [[1, 0, 0], none, [1, 0, 0]]);
    check(&Draft { sequence_parallel: true, ..parallel }, [[0, 1, 1], none, [0, 2, 1]]);
}

#[test]
fn the_ends_reduce_the_embedding_and_the_loss() {
    // Embedding: its sum over the vocabulary's parts, b s h e. Head: the input's gradient, b s h e, and three numbers
    // per token in fp32 for the loss; with sequence parallelism it gathers its input, in backward too.
    let check = |sequence_parallel,
                 first: &[(CollectiveKind, u64, usize)],
                 last: &[(CollectiveKind, u64, usize)]| {
        let draft = Draft {
            blocks: 4,
            sequence_parallel,
            stack: "pytorch-eager",
            ..Draft::of("gpt2-large", [4, 2, 1])
        };
        let program = lower(&draft.plan());
        for (rank, ends) in [(0, first), (1, last)] {
            let passes = [Pass::Forward, Pass::Backward];
            let ops = step(&program, &program.ranks[rank])
                .filter(|op| op.layer.is_none() && passes.contains(&op.pass));
            let per_step: Vec<_> =
                ends.iter().map(|(kind, bytes, count)| (*kind, *bytes, count * draft.microbatches)).collect();
            assert_eq!(collectives(ops, Axis::Tensor), expected(&per_step), "rank {rank}");
        }
    };
    let (bsh, bs) = (1024 * 1280 * 2, 1024 * 4);
    check(false, &[(AllReduce, bsh, 1)], &[(AllReduce, bsh, 1), (AllReduce, bs, 3)]);
    check(
        true,
        &[(ReduceScatter, bsh, 1), (AllGather, bsh, 1)],
        &[(AllGather, bsh, 2), (ReduceScatter, bsh, 1), (AllReduce, bs, 3)],
    );
}

/// Parameters of a GPT's pipeline rank (first, middle, last) of `blocks` blocks: 12 h² and the biases of the column
/// parts, 3 h + 4 h, over t; two norms of 2 h and the biases of the row parts in full; embeddings (V/t + S) h at the
/// first end, the final norm and a copy of the tied embedding at the last.
fn gpt_parameters(blocks: u64, h: u64, vocabulary: u64, positions: u64, t: u64) -> [u64; 3] {
    let blocks_share = blocks * ((12 * h * h + 7 * h) / t + 6 * h);
    let token = vocabulary / t * h;
    [blocks_share + token + positions * h, blocks_share, blocks_share + token + 2 * h]
}

#[test]
fn data_parallelism_exchanges_each_gradient_and_each_weight_once_a_step() {
    // DDP: an all-reduce of the gradients. ZeRO-1: a reduce-scatter of the gradients, an all-gather of the weights
    // (1910.02054, section 7). However many microbatches and buckets there are.
    let check = |stack, gradient: u64, vocabulary: u64, microbatches| {
        for (data_sharding, kinds) in
            [("none", &[(AllReduce, gradient)][..]), ("zero1", &[(ReduceScatter, gradient), (AllGather, 2)])]
        {
            let draft = Draft { stack, data_sharding, microbatches, ..Draft::of("gpt2-large", [4, 3, 2]) };
            let program = lower(&draft.plan());
            let parameters = gpt_parameters(12, 1280, vocabulary, 1024, 4);
            for (rank, parameters) in program.ranks.iter().zip(parameters) {
                let mut sums: BTreeMap<&str, u64> = BTreeMap::new();
                for ((kind, bytes), count) in collectives(step(&program, rank), Axis::Data) {
                    // The norm's sum over the parts of the gradients is one fp32 number.
                    if bytes != 4 {
                        *sums.entry(kind).or_default() += bytes * count as u64;
                    }
                }
                let expected: BTreeMap<&str, u64> =
                    kinds.iter().map(|(kind, bytes)| (kind.name(), bytes * parameters)).collect();
                assert_eq!(sums, expected, "{stack}, {}, m = {microbatches}", data_sharding);
            }
        }
    };
    for microbatches in [1, 2, 8] {
        // Padded to a multiple of 128 t = 512; `pytorch-eager` to one of t.
        check("megatron-lm-2021", 2, 50_688, microbatches);
        check("megatron-lm-2022", 4, 50_688, microbatches);
        check("megatron-core", 4, 50_688, microbatches);
        check("pytorch-eager", 2, 50_260, microbatches);
    }
}

#[test]
fn a_sharded_gradient_norm_is_summed_over_the_data_axis_too() {
    let check = |data_sharding, axes: &[Axis]| {
        let plan = Draft { data_sharding, ..Draft::of("gpt2-large", [2, 2, 2]) }.plan();
        let program = lower(&plan);
        let ops = || step(&program, &program.ranks[0]).filter(|op| op.module == "reduce norm");
        for axis in Axis::ALL {
            let count = usize::from(axes.contains(&axis));
            assert_eq!(collectives(ops(), axis), expected(&[(AllReduce, 4, count)]), "{}", axis.name());
        }
    };
    check("none", &[Axis::Tensor, Axis::Pipeline]);
    check("zero1", &[Axis::Tensor, Axis::Pipeline, Axis::Data]);
}

#[test]
fn the_ends_of_a_pipeline_sum_the_tied_embeddings_gradient() {
    // V h g / t once a step, on the first and the last rank; nothing for an untied head or without a pipeline.
    let check = |model, pipeline, bytes: Option<u64>| {
        let draft = Draft { blocks: 4, ..Draft::of(model, [2, pipeline, 1]) };
        let program = lower(&draft.plan());
        for rank in &program.ranks {
            let ends = rank.pipeline_rank == 0 || rank.pipeline_rank + 1 == pipeline;
            let list: Vec<_> =
                bytes.filter(|_| ends).map(|bytes| (AllReduce, bytes, 1)).into_iter().collect();
            let case = format!("{model}, pipeline rank {} of {pipeline}", rank.pipeline_rank);
            assert_eq!(collectives(step(&program, rank), Axis::Embedding), expected(&list), "{case}");
            assert_eq!(rank.groups[Axis::Embedding as usize].is_some(), ends && pipeline > 1, "{case}");
        }
    };
    check("gpt2-large", 1, None);
    check("gpt2-large", 2, Some(50_432 / 2 * 1280 * 4));
    check("gpt2-large", 4, Some(50_432 / 2 * 1280 * 4));
    check("llama-7b", 4, None);
}

#[test]
fn sequence_parallel_ranks_sum_the_gradients_of_replicated_weights() {
    // Per block two norms of 2 h and two biases of h, in the gradients' 4 bytes; nothing without sequence parallelism.
    let check = |sequence_parallel, list: &[(CollectiveKind, u64, usize)]| {
        let draft = Draft { blocks: 6, sequence_parallel, ..Draft::of("gpt2-large", [2, 3, 1]) };
        let program = lower(&draft.plan());
        let ops = step(&program, &program.ranks[MIDDLE]).filter(|op| op.module == "reduce norm gradients");
        assert_eq!(collectives(ops, Axis::Tensor), expected(list));
    };
    check(false, &[]);
    check(true, &[(AllReduce, 2 * 6 * 1280 * 4, 1)]);
}

#[test]
fn stages_send_bsh_over_each_boundary() {
    // 2104.04473, sections 2.2 and 4.1: b s h e bytes forward and as many backward over each of the p v − 1
    // boundaries, for each microbatch; 1/t of it if each tensor rank sends its part, which with sequence parallelism
    // it has and otherwise the receivers gather.
    let check = |draft: &Draft, part: usize, gathers: bool| {
        let plan = draft.plan();
        let program = lower(&plan);
        let bsh = (draft.micro_batch * draft.sequence * draft.model.hidden * 2) as u64;
        let bytes_of_message = bsh / part as u64;
        let boundaries = draft.mesh[1] * draft.virtual_stages - 1;
        let (mut forward, mut backward, mut received, mut gathered) = (0, 0, 0, 0);
        for rank in &program.ranks {
            for op in step(&program, rank) {
                match op.work {
                    Work::Send { channel, to, bytes } => {
                        assert_eq!(bytes.get(), bytes_of_message as f64);
                        assert_ne!(to, rank.pipeline_rank);
                        match channel {
                            Channel::Activation(_) => forward += 1,
                            Channel::Gradient(_) => backward += 1,
                        }
                    }
                    Work::Receive { bytes, .. } => {
                        assert_eq!(bytes.get(), bytes_of_message as f64);
                        received += 1;
                    }
                    Work::Collective { kind: AllGather, axis: Axis::Tensor, bytes, .. }
                        if op.module == "gather message" =>
                    {
                        assert_eq!(bytes.get(), bsh as f64);
                        gathered += 1;
                    }
                    _ => {}
                }
            }
        }
        let messages = boundaries * draft.microbatches;
        let case = format!("{} {} p = {}", draft.stack, draft.schedule, draft.mesh[1]);
        assert_eq!((forward, backward, received), (messages, messages, 2 * messages), "{case}");
        assert_eq!(gathered, if gathers { 2 * messages } else { 0 }, "{case}");
    };
    for (schedule, virtual_stages) in [("gpipe", 1), ("1f1b", 1), ("interleaved", 3)] {
        for pipeline in [2, 4] {
            let draft = Draft {
                schedule,
                virtual_stages,
                micro_batch: 2,
                stack: "pytorch-eager",
                ..Draft::of("gpt2-large", [4, pipeline, 1])
            };
            check(&draft, 1, false);
            for stack in ["megatron-lm-2021", "megatron-lm-2022", "megatron-core"] {
                check(&Draft { stack, ..draft.clone() }, 4, true);
            }
            check(&Draft { sequence_parallel: true, ..draft.clone() }, 4, false);
            check(&Draft { sequence_parallel: true, stack: "megatron-core", ..draft.clone() }, 4, false);
            check(&Draft { mesh: [1, pipeline, 1], stack: "megatron-core", ..draft }, 1, false);
        }
    }
}

#[test]
fn an_encoder_decoder_sends_two_tensors_while_a_later_block_reads_the_encoder() {
    // T5 base, 12 encoder and 12 decoder blocks. Encoder stages pass on their activations and the decoder's embedded
    // tokens, decoder stages theirs and the encoder's output: 2 b s h e bytes forward and as many backward, over every
    // boundary, also the one between the two; over a boundary that only the head is behind, b s h e.
    let check = |pipeline: usize, stages: &[usize], tensors: &[u64]| {
        let draft = Draft {
            sequence: 512,
            micro_batch: 2,
            microbatches: 4,
            stack: "pytorch-eager",
            ..Draft::of("t5-base", [1, pipeline, 1])
        };
        let mut plan = draft.plan();
        plan.stages = stages.iter().map(|count| format!("{count} none").parse().unwrap()).collect();
        plan.check("draft").unwrap();
        let program = lower(&plan);
        let mut sent = vec![[0u64; 2]; pipeline - 1];
        for rank in &program.ranks {
            for op in step(&program, rank) {
                if let Work::Send { channel, bytes, .. } = op.work {
                    match channel {
                        Channel::Activation(stage) => sent[stage][0] += bytes.get() as u64,
                        Channel::Gradient(stage) => sent[stage - 1][1] += bytes.get() as u64,
                    }
                }
            }
        }
        let bsh = 2 * 512 * 768 * 2;
        let expected: Vec<[u64; 2]> = tensors.iter().map(|count| [4 * count * bsh; 2]).collect();
        assert_eq!(sent, expected, "{stages:?}");
    };
    check(2, &[12, 12], &[2]);
    check(4, &[6, 6, 6, 6], &[2, 2, 2]);
    check(4, &[5, 9, 6, 4], &[2, 2, 2]);
    check(3, &[12, 12, 0], &[2, 1]);
}

#[test]
fn decoder_stages_keep_the_encoder_output_once() {
    // Each of the three stages with decoder blocks keeps b s h e bytes of it for all of them.
    let draft = |pipeline| Draft { sequence: 512, ..Draft::of("t5-base", [1, pipeline, 1]) };
    let kept = |pipeline| -> f64 {
        let plan = Draft { microbatches: 1, ..draft(pipeline) }.plan();
        trainwright_lower::memory::plan_memory(&plan).iter().map(|rank| rank.activations.get()).sum()
    };
    assert_eq!(kept(6) - kept(1), (3.0 - 1.0) * 512.0 * 768.0 * 2.0);
}
