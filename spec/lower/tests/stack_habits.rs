//! What stacks do beside what a plan says, against sums by hand.

use trainwright_lower::lower_every_rank;
use trainwright_lower::memory::{RankMemory, fixed_overhead, plan_memory, reserved_memory};
use trainwright_spec::cluster::Cluster;
use trainwright_spec::plan::Plan;
use trainwright_spec::precision::Precision;
use trainwright_spec::program::{Kernel, Work};
use trainwright_spec::sourced::Sourced;
use trainwright_spec::stack::{AttentionKernel, Fusion, Stack};
use trainwright_spec::units::{Bytes, Seconds};

/// GPT-2 of 12 blocks on two H100, which are two tensor ranks or two data ranks. Eight sequences of 64 tokens.
fn plan(stack: &str, data: usize, precision: Precision) -> Plan {
    let text = format!(
        r#"
        model = "gpt2"
        cluster = "h100-pcie-pair"
        stack = "{stack}"
        job = {{ sequence = 64, global_batch = 8, precision = "{precision}", optimizer = "adamw", gradient_clipping = false }}
        mesh = {{ tensor = {}, pipeline = 1, data = {data} }}
        micro_batch = 1
        schedule = "1f1b"
        virtual_stages = 1
        sequence_parallel = false
        data_sharding = "zero1"
        stages = ["12 none"]
        "#,
        2 / data,
    );
    Plan::from_toml(&text, "plan.toml").unwrap()
}

/// Bytes of weights, gradients and optimizer for each parameter of the only rank.
fn state_per_parameter(plan: &Plan) -> f64 {
    let RankMemory { weights, gradients, optimizer, .. } = plan_memory(plan)[0];
    let weight = plan.state_bytes().weight;
    (weights + gradients + optimizer).get() / (weights.get() / weight.get())
}

#[test]
fn an_optimizer_of_divided_state_keeps_its_extra_state_on_one_rank_too() {
    let check = |data, precision, expected: f64| {
        let found = state_per_parameter(&plan("megatron-deepspeed", data, precision));
        // Remainders of the division.
        assert!((found - expected).abs() < 1e-3, "{data} {precision}: {found}, not {expected}");
    };
    // 16-bit weights and gradients, master weights and moments of 12 bytes and fp32 gradients of 4.
    check(1, Precision::Fp16, 2.0 + 2.0 + 12.0 + 4.0);
    check(2, Precision::Fp16, 2.0 + 2.0 + (12.0 + 4.0) / 2.0);
    // fp32 gradients of 4 bytes, and 4 bytes that are not divided.
    check(1, Precision::Bf16, 2.0 + 4.0 + 12.0 + 4.0);
    check(2, Precision::Bf16, 2.0 + 4.0 + 12.0 / 2.0 + 4.0);

    let mut alone = plan("megatron-deepspeed", 1, Precision::Fp16);
    let with_buffers = fixed_overhead(&alone);
    alone.stack.extra_state.as_mut().unwrap().divided_on_one_rank = false;
    assert_eq!(with_buffers - fixed_overhead(&alone), Bytes::new(2e9));
    assert!((state_per_parameter(&alone) - 16.0).abs() < 1e-3);
}

/// Copies in fp8 of the matrices of 12 blocks, 12 h² weights each, as they are and transposed: all of them where every rank has
/// all weights, those of the gathered blocks where the weights are divided.
#[test]
fn copies_below_16_bits_are_kept_only_of_weights_that_are_there() {
    let weights = |precision, sharding: &str| {
        let mut plan = Plan { data_sharding: sharding.into(), ..plan("deepspeed", 2, precision) };
        // A large embedding would hide the blocks: it is gathered whole too, and has no copies.
        plan.model.vocab = 1024;
        plan.check("").unwrap();
        let RankMemory { weights, gathered, .. } = plan_memory(&plan)[0];
        weights + gathered
    };
    let more = |sharding| weights(Precision::Fp8, sharding) - weights(Precision::Bf16, sharding);
    let block = 2.0 * 12.0 * 768.0 * 768.0;
    assert_eq!(more("zero1").get(), 12.0 * block);
    let gathered = more("zero3").get() / block;
    assert!((1.0..=3.0).contains(&gathered), "copies of {gathered} blocks");
}

#[test]
fn gradients_in_the_buckets_of_a_reduction_need_several_data_ranks() {
    let check = |data, in_reduction, expected: f64| {
        let mut plan = plan("megatron-deepspeed", data, Precision::Bf16);
        plan.stack = Stack::from_name("nanotron").unwrap();
        plan.data_sharding = "none".into();
        plan.stack.extra_state.as_mut().unwrap().always_in_reduction = in_reduction;
        let found = state_per_parameter(&plan);
        assert!((found - expected).abs() < 1e-3, "{data}: {found}, not {expected}");
    };
    // 16-bit weights, fp32 gradients, master weights and moments of 12 bytes; 16-bit gradients beside the fp32 ones.
    check(1, true, 2.0 + 4.0 + 12.0);
    check(2, true, 2.0 + 4.0 + 12.0 + 2.0);
    check(1, false, 2.0 + 4.0 + 12.0 + 2.0);
}

#[test]
fn heads_of_no_multiple_of_16_bytes_are_multiplied_without_matrix_units() {
    // The precisions of the products for each head: of queries and keys, and of probabilities and values.
    let products = |head_dim: usize, kernel: AttentionKernel, precision: Precision| {
        let mut plan = plan("megatron-deepspeed", 2, precision);
        plan.stack.attention = kernel;
        let attention = &mut plan.model.blocks[0].block.attention;
        (attention.head_dim, attention.value_head_dim) = (head_dim, head_dim);
        let ops = lower_every_rank(&plan).segments.into_iter().flat_map(|segment| segment.ops);
        let of_heads = ops.filter_map(|op| match op.work {
            Work::Compute(Kernel::Gemm { count, precision, .. }) if count > 1 => Some(precision),
            _ => None,
        });
        of_heads.collect::<Vec<Precision>>()
    };
    let check = |head_dim, precision, expected| {
        let all = products(head_dim, AttentionKernel::FusedSoftmax, precision);
        // Two forward, four backward.
        assert!(!all.is_empty() && all.len() % 6 == 0, "{} products", all.len());
        assert!(all.iter().all(|found| *found == expected), "{head_dim} {precision}: {all:?}");
    };
    check(64, Precision::Fp16, Precision::Fp16);
    check(112, Precision::Bf16, Precision::Bf16);
    check(108, Precision::Bf16, Precision::Fp32);
    check(145, Precision::Fp16, Precision::Fp32);
    check(108, Precision::Tf32, Precision::Tf32);
    check(109, Precision::Tf32, Precision::Fp32);
    assert!(products(108, AttentionKernel::Flash2, Precision::Bf16).is_empty());
}

#[test]
fn the_host_works_once_for_each_microbatch_on_a_rank() {
    let host = |microbatch: Option<f64>| -> Seconds {
        let mut plan = plan("megatron-deepspeed", 2, Precision::Fp16);
        let times = plan.stack.host.as_mut().unwrap();
        assert!(times.microbatch.is_some());
        times.microbatch.as_mut().unwrap().value = Seconds::new(microbatch.unwrap_or_default());
        if microbatch.is_none() {
            times.microbatch = None;
        }
        let program = lower_every_rank(&plan);
        let rank = &program.ranks[0];
        let ops = rank.calls.iter().flat_map(|call| &program.segments[call.segment].ops);
        ops.map(|op| if let Work::Process(time) = op.work { time } else { Seconds::ZERO }).sum()
    };
    // Each of two data ranks has four of the eight microbatches.
    let more = (host(Some(0.5)) - host(None)).get();
    assert!((more - 4.0 * 0.5).abs() < 1e-9, "{more} s");
}

#[test]
fn collectives_beside_messages_over_nodes_cost_more_with_each_node_of_their_group() {
    // The time of the first rank's host in a step.
    let host = |gpus: usize, collective: Option<f64>, node: Option<f64>| {
        let text = r#"
            model = "gpt2"
            cluster = "dgx-h100:1"
            stack = "nanotron"
            job = { sequence = 64, global_batch = 1, precision = "bf16", optimizer = "adamw", gradient_clipping = false }
            mesh = { tensor = 4, pipeline = 2, data = 1 }
            micro_batch = 1
            schedule = "1f1b"
            virtual_stages = 1
            sequence_parallel = true
            data_sharding = "none"
            stages = ["6 none", "6 none"]
            "#;
        let mut plan = Plan::from_toml(text, "plan.toml").unwrap();
        (plan.cluster.node.gpus.value, plan.cluster.nodes) = (gpus, 8 / gpus);
        let times = plan.stack.host.as_mut().unwrap();
        let set = |time: &mut Option<Sourced<Seconds>>, value: Option<f64>| match value {
            Some(value) => time.as_mut().unwrap().value = Seconds::new(value),
            None => *time = None,
        };
        set(&mut times.collective, collective);
        set(&mut times.collective_node, node);
        let program = lower_every_rank(&plan);
        let rank = &program.ranks[0];
        let ops = rank.calls.iter().flat_map(|call| &program.segments[call.segment].ops);
        ops.map(|op| if let Work::Process(time) = op.work { time.get() } else { 0.0 }).sum::<f64>()
    };
    let of_collectives = |gpus, node| host(gpus, Some(1e-3), node) - host(gpus, None, node);
    // Four ranks, on one node of four GPUs, two of two and four of one.
    let on_one_node = of_collectives(4, Some(1e-4));
    assert!(on_one_node > 0.0);
    for (gpus, node, expected) in [(4, None, 1.0), (2, None, 1.0), (2, Some(1e-4), 1.1), (1, Some(1e-4), 1.3)]
    {
        let found = of_collectives(gpus, node) / on_one_node;
        assert!((found - expected).abs() < 1e-9, "{gpus} {node:?}: {found}, not {expected}");
    }
}

/// Beside the probabilities that are kept, the logits live in fp32 if the probabilities are not written over them, else in the
/// 16 bits from which they were cast.
#[test]
fn copied_logits_live_in_fp32_while_the_loss_is_computed() {
    let temporaries = |copies: bool| {
        let mut plan = plan("megatron-deepspeed", 2, Precision::Bf16);
        // So many that nothing else takes more.
        (plan.job.sequence, plan.micro_batch) = (1024, 2);
        plan.stack.loss_copies_logits = copies;
        plan_memory(&plan)[0].temporaries
    };
    // 2,048 tokens, and a vocabulary of 50,257 that the stack pads to a multiple of 128.
    assert_eq!(temporaries(true), Bytes::new(4.0 * 2048.0 * 50304.0));
    assert_eq!(temporaries(false), Bytes::new(2.0 * 2048.0 * 50304.0));
}

#[test]
fn a_fused_softmax_takes_scores_of_16_bits_only() {
    let moved = |attention, precision| -> Bytes {
        let mut plan = plan("megatron-deepspeed", 2, precision);
        plan.stack.attention = attention;
        let program = lower_every_rank(&plan);
        let ops = program.segments.iter().flat_map(|segment| &segment.ops);
        let bytes = ops.map(|op| match op.work {
            Work::Compute(Kernel::Streaming { read, written, .. }) => read + written,
            _ => Bytes::ZERO,
        });
        bytes.sum()
    };
    let [fused, unfused] = [AttentionKernel::FusedSoftmax, AttentionKernel::Unfused];
    assert_eq!(moved(fused, Precision::Tf32), moved(unfused, Precision::Tf32));
    assert!(moved(fused, Precision::Fp16) < moved(unfused, Precision::Fp16));
}

/// Norms of separate kernels keep their quotient beside their input. Of a block that is computed again only its input is kept,
/// whatever its first norm makes: the final norm's quotient is left.
#[test]
fn a_block_that_is_computed_again_keeps_its_input_alone() {
    let kept = |norms, stage: &str| {
        let mut plan = plan("pytorch-eager", 2, Precision::Bf16);
        plan.stack.norms = norms;
        plan.stages = vec![stage.parse().unwrap()];
        plan_memory(&plan)[0].activations.get()
    };
    let check = |stage, expected: f64| {
        let more = kept(Fusion::Separate, stage) - kept(Fusion::Fused, stage);
        assert_eq!(more / (64.0 * 768.0 * 2.0), expected, "{stage}");
    };
    check("12 none", 2.0 * 12.0 + 1.0);
    check("12 full", 1.0);
    check("5 full, 7 none", 2.0 * 7.0 + 1.0);
}

/// In the backward pass of PyTorch's cross entropy of 1,024 tokens and 50,257 words two fp32 gradients are held beside that of the
/// 16-bit logits; separate kernels of one pass hold less.
#[test]
fn a_cross_entropy_of_autograd_holds_two_gradients() {
    let held = |by_autograd| {
        let mut plan = plan("pytorch-eager", 2, Precision::Bf16);
        plan.job.sequence = 1024;
        plan.stack.loss_by_autograd = by_autograd;
        plan_memory(&plan)[0].temporaries.get()
    };
    let words = plan("pytorch-eager", 2, Precision::Bf16).model.vocab as f64;
    assert_eq!(held(true), (2.0 * 4.0 + 2.0) * 1024.0 * words);
    assert!(held(false) < held(true));
}

/// Nanotron gathers the 64 tokens of 768 numbers into two 16-bit buffers that stay, and its allocator loses more with tensor
/// ranks. Both are in what it has reserved; libraries and communicators are not.
#[test]
fn tensor_ranks_gather_into_buffers_that_stay_and_lose_more_memory() {
    let check = |data, buffers: f64, lost: f64, communicators: f64| {
        let mut plan = plan("megatron-deepspeed", data, Precision::Bf16);
        plan.stack = Stack::from_name("nanotron").unwrap();
        let memory = plan_memory(&plan);
        let RankMemory { activations, temporaries, overhead, .. } = memory[0];
        let libraries = Bytes::new((1024.0 + 512.0 * communicators) * 1048576.0);
        assert_eq!(fixed_overhead(&plan), libraries + Bytes::new(buffers));
        let fragments = (overhead - fixed_overhead(&plan)) / (activations + temporaries);
        assert!((fragments - lost).abs() < 1e-9, "{fragments}, not {lost}");
        assert_eq!(reserved_memory(&plan, &memory), memory[0].total() - libraries);
    };
    check(1, 2.0 * 2.0 * 64.0 * 768.0, 0.28, 1.0);
    check(2, 0.0, 0.1, 1.0);
}

/// 512 MiB for each communicator that nanotron has: one for each axis of several ranks, one for a pipeline's second copy. The
/// allocator loses a part of what varies, weights that are gathered and gradients that are not yet reduced included.
#[test]
fn each_axis_of_several_ranks_has_a_communicator() {
    let check = |schedule: &str,
                 data_sharding: &str,
                 [tensor, pipeline, data]: [usize; 3],
                 expected: usize| {
        let stages = vec![format!("\"{} none\"", 12 / pipeline); pipeline].join(", ");
        let text = format!(
            r#"
            model = "gpt2"
            cluster = "dgx-h100"
            stack = "nanotron"
            job = {{ sequence = 64, global_batch = 32, precision = "bf16", optimizer = "adamw", gradient_clipping = false }}
            mesh = {{ tensor = {tensor}, pipeline = {pipeline}, data = {data} }}
            micro_batch = 1
            schedule = "{schedule}"
            virtual_stages = 1
            sequence_parallel = false
            data_sharding = "none"
            stages = [{stages}]
            "#
        );
        let mut plan = Plan::from_toml(&text, "plan.toml").unwrap();
        // Some of these the real software does not have.
        plan.data_sharding = data_sharding.into();
        let case = format!("{schedule} {data_sharding} {tensor} {pipeline} {data}");
        let memory = plan_memory(&plan);
        let total = memory.iter().map(RankMemory::total).fold(Bytes::ZERO, Bytes::max);
        let libraries = Bytes::new((1024.0 + 512.0 * expected as f64) * 1048576.0);
        let found = total - reserved_memory(&plan, &memory);
        assert!((found - libraries).get().abs() < 1.0, "{case}: {found}, not {libraries}");
        for rank in &memory {
            let varies = rank.activations + rank.temporaries + (rank.gathered + rank.unreduced - rank.apart);
            let lost = (rank.overhead - fixed_overhead(&plan)) / varies;
            assert!((lost - if tensor > 1 { 0.28 } else { 0.1 }).abs() < 1e-9, "{case}: {lost}");
            assert_eq!(rank.gathered > Bytes::ZERO, data_sharding == "zero3", "{case}");
        }
    };
    check("1f1b", "none", [4, 1, 2], 2);
    check("1f1b", "none", [1, 1, 8], 1);
    check("1f1b", "zero3", [1, 1, 8], 1);
    check("1f1b", "none", [2, 4, 1], 2);
    check("1f1b", "zero1", [2, 2, 2], 3);
    check("chimera", "none", [2, 4, 1], 3);
    check("chimera", "none", [1, 4, 2], 3);
}

/// A process on Grace takes 1.17 times what the stack has for x86, for the ops of a pass and at the end of a step.
#[test]
fn processors_scale_the_work_of_a_process() {
    let host = |node: &str| -> Seconds {
        let mut plan = plan("megatron-core-2025", 2, Precision::Bf16);
        plan.cluster.node = Cluster::from_name(&format!("{node}:1")).unwrap().node;
        let program = lower_every_rank(&plan);
        let ops = program.segments.iter().flat_map(|segment| &segment.ops);
        ops.map(|op| if let Work::Process(time) = op.work { time } else { Seconds::ZERO }).sum()
    };
    assert!((host("alps-gh200") / host("dgx-h100") - 1.17).abs() < 1e-9);
}
