//! Offloading: copy volumes, memory and times against derivations by hand, and the published claim.

use crate::common::Draft;
use crate::undisturbed::Undisturbed;
use std::collections::BTreeMap;
use trainwright_lower::memory::{node_memory, plan_memory};
use trainwright_lower::{lower, lower_every_rank};
use trainwright_sim::costs::{ClusterCosts, Costs, Query};
use trainwright_sim::{Detail, forecast, simulate, step_time};
use trainwright_spec::cluster::Cluster;
use trainwright_spec::data::{DataOptions, Reduction};
use trainwright_spec::optimizer::{MasterWeights, Moments, StatePrecision};
use trainwright_spec::plan::{Offload, Plan, Recompute};
use trainwright_spec::precision::Precision;
use trainwright_spec::program::{CopyDirection, MemoryKind, Op, Place, Program, Work};
use trainwright_spec::units::{Bytes, Picoseconds, Seconds};
use trainwright_timeline::report::Report;

/// The optimizer on the host.
fn optimizer() -> Offload {
    Offload { optimizer: Some(Place::Host), ..Offload::default() }
}

/// Optimizer and gradients.
fn gradients() -> Offload {
    Offload { gradients: Some(Place::Host), ..optimizer() }
}

/// Both, and the weights.
fn parameters() -> Offload {
    Offload { parameters: Some(Place::Host), ..gradients() }
}

/// The activations of a stage's first blocks.
fn activations(blocks: Option<usize>) -> Offload {
    Offload { activations: Some(Place::Host), activation_blocks: blocks, ..Offload::default() }
}

/// The draft's plan with something offloaded, gradients in 16 bits.
fn plan(draft: &Draft, offload: Offload) -> Plan {
    let state = StatePrecision { gradients: Some(draft.precision), ..StatePrecision::default() };
    let plan = Plan { offload, state, ..draft.plan() };
    plan.check("offload").unwrap_or_else(|error| panic!("{error}"));
    plan
}

/// Bytes of all copies of a rank's step, by direction and what is copied.
fn copied(program: &Program, rank: usize) -> BTreeMap<(CopyDirection, &'static str), f64> {
    let mut volumes = BTreeMap::new();
    let ops = program.ranks[rank].calls.iter().flat_map(|call| &program.segments[call.segment].ops);
    for op in ops {
        if let Work::Copy { direction, bytes, .. } = op.work {
            *volumes.entry((direction, op.module)).or_default() += bytes.get();
        }
    }
    volumes
}

#[test]
fn gradients_leave_and_weights_return_with_two_bytes_each() {
    // ZeRO-Offload (2101.06840, section 3): 2 bytes of gradient out and 2 of weight in for each parameter and step; with
    // gradients on the host, out once for each microbatch. Every rank of d that shard the optimizer moves its part.
    let check = |draft: &Draft, offload: Offload, out: f64, back: f64| {
        let plan = plan(draft, offload);
        let program = lower(&plan);
        for (index, rank) in program.ranks.iter().enumerate() {
            // Weights and gradients of 2 bytes: the closed form's without offload, over 2.
            let resident = Plan { offload: Offload::default(), ..plan.clone() };
            let n = plan_memory(&resident)[rank.pipeline_rank].weights.get() / 2.0;
            let volumes = copied(&program, index);
            let found = |direction, module| volumes.get(&(direction, module)).copied().unwrap_or(0.0);
            let case = format!("{:?}, rank {}", plan.offload, rank.rank);
            assert_eq!(found(CopyDirection::ToHost, "gradients out"), out * n, "{case}");
            assert_eq!(found(CopyDirection::FromHost, "weights in"), back * n, "{case}");
        }
    };
    for mesh in [[1, 1, 1], [2, 2, 1], [1, 4, 1]] {
        let draft = Draft { microbatches: 4, ..Draft::of("gpt2-large", mesh) };
        check(&draft, optimizer(), 2.0, 2.0);
        check(&draft, Offload { optimizer_fraction: 0.25, ..optimizer() }, 0.5, 0.5);
        check(&draft, Offload { delayed_update: true, ..optimizer() }, 2.0, 2.0);
        check(&draft, Offload { optimizer: Some(Place::Nvme), ..optimizer() }, 2.0, 2.0);
    }
    let one = Draft { microbatches: 4, ..Draft::of("gpt2-large", [1, 1, 1]) };
    check(&one, gradients(), 4.0 * 2.0, 2.0);
    // Fetched for forward and backward of each microbatch instead of copied back.
    check(&one, parameters(), 4.0 * 2.0, 4.0 * 2.0 * 2.0);
    let split = Draft { sequence_parallel: true, ..Draft::of("gpt2-large", [4, 2, 1]) };
    check(&split, optimizer(), 2.0, 2.0);
    // Half of it at two data ranks that shard; overlapped with backward or not.
    for stack in ["megatron-core", "megatron-lm-2022"] {
        let sharded = Draft { data_sharding: "zero1", stack, ..Draft::of("gpt2-large", [2, 2, 2]) };
        check(&sharded, optimizer(), 1.0, 1.0);
        let replicated = Draft { data_sharding: "none", ..sharded };
        check(&replicated, optimizer(), 2.0, 2.0);
    }
    let eager = Draft { stack: "pytorch-eager", microbatches: 3, ..Draft::of("gpt2-large", [1, 1, 2]) };
    let sharded = Draft { data_sharding: "zero1", ..eager };
    check(&sharded, gradients(), 3.0 * 1.0, 1.0);
    // Reduced in every microbatch, they still leave after the last, if they do not leave each time.
    let reduce = Some(Reduction::EveryMicrobatch);
    let every = Draft { data: DataOptions { reduce, ..DataOptions::default() }, ..sharded };
    check(&every, optimizer(), 1.0, 1.0);
    check(&every, gradients(), 3.0 * 1.0, 1.0);
    let after = Draft { stack: "megatron-lm-2022", ..every };
    check(&after, optimizer(), 1.0, 1.0);
    // Two ranks of the context axis have the same weights too: a quarter.
    let context = Draft { stack: "megatron-core", context: [2, 1], data: DataOptions::default(), ..after };
    check(&context, optimizer(), 0.5, 0.5);
}

#[test]
fn routed_experts_leave_to_those_who_update_them() {
    // Mixtral on 8 ranks, 8 experts over 4 of them: dense weights are divided by 8, experts' by 2, 12 bytes of state for
    // each that a rank updates, 2 bytes of gradient out, 2 of weight back.
    let draft = Draft {
        blocks: 2,
        data_sharding: "zero1",
        stack: "megatron-core",
        microbatches: 2,
        ..Draft::of("mixtral-8x7b", [1, 1, 8])
    };
    let mut plan = plan(&draft, optimizer());
    plan.mesh.expert = 4;
    plan.mesh.expert_tensor = Some(1);
    plan.check("experts").unwrap_or_else(|error| panic!("{error}"));
    let experts = 2.0 * 8.0 * 3.0 * 4096.0 * 14336.0;
    let dense = plan.model.parameters() as f64 - experts;
    let updated = dense / 8.0 + experts / 4.0 / 2.0;
    let volumes = copied(&lower(&plan), 0);
    assert_eq!(volumes[&(CopyDirection::ToHost, "gradients out")], 2.0 * updated);
    assert_eq!(volumes[&(CopyDirection::FromHost, "weights in")], 2.0 * updated);
    assert_eq!(plan_memory(&plan)[0].host.get(), (12.0 + 2.0) * updated);
}

#[test]
fn activations_leave_and_return_once() {
    // GPT-2 large without dropout keeps of a block, flash attention, 16 bits: 32 s h + 4 s a as in `memory.rs`.
    let check = |offload: Offload, blocks: f64| {
        let mut draft =
            Draft { stack: "megatron-core", microbatches: 5, ..Draft::of("gpt3-1.3b", [1, 2, 1]) };
        draft.model.dropout = false;
        let (s, h, a) = (1024.0, 2048.0, 16.0);
        let block = (5.0 * 2.0 + 6.0 + 16.0) * s * h + 4.0 * s * a;
        let volumes = copied(&lower(&plan(&draft, offload)), 1);
        let expected = 5.0 * blocks * block;
        assert_eq!(volumes[&(CopyDirection::ToHost, "activations out")], expected);
        assert_eq!(volumes[&(CopyDirection::FromHost, "activations in")], expected);
    };
    check(activations(None), 12.0);
    check(activations(Some(3)), 3.0);
}

/// Everything that can be offloaded, alone and together.
fn choices() -> Vec<Offload> {
    let nvme = Offload {
        optimizer: Some(Place::Nvme),
        gradients: Some(Place::Nvme),
        parameters: Some(Place::Nvme),
        activations: Some(Place::Nvme),
        ..Offload::default()
    };
    vec![
        optimizer(),
        Offload { optimizer_fraction: 0.5, ..optimizer() },
        Offload { delayed_update: true, ..optimizer() },
        gradients(),
        Offload { delayed_update: true, ..gradients() },
        parameters(),
        activations(None),
        activations(Some(4)),
        Offload { activations: Some(Place::Host), ..parameters() },
        nvme,
    ]
}

/// Plans on meshes without a data axis, where everything can be offloaded.
fn drafts() -> Vec<Draft> {
    let mut drafts = Vec::new();
    for recompute in [Recompute::None, Recompute::Full] {
        for (schedule, mesh, virtual_stages) in [
            ("1f1b", [1, 1, 1], 1),
            ("1f1b", [2, 4, 1], 1),
            ("gpipe", [1, 2, 1], 1),
            ("interleaved", [1, 2, 1], 2),
            // Both ends are on one rank.
            ("hanayo", [1, 2, 1], 2),
        ] {
            for stack in ["megatron-core", "pytorch-eager"] {
                drafts.push(Draft {
                    recompute,
                    schedule,
                    virtual_stages,
                    stack,
                    sequence_parallel: stack == "megatron-core",
                    microbatches: 4,
                    ..Draft::of("gpt2-large", mesh)
                });
            }
        }
    }
    drafts
}

#[test]
fn the_closed_form_is_the_simulated_peak_or_a_little_more() {
    for draft in drafts() {
        for offload in choices() {
            let plan = plan(&draft, offload);
            let closed = plan_memory(&plan);
            let costs = ClusterCosts::new(&plan.cluster);
            let timeline = simulate(&lower(&plan), &costs, Detail::Ops).unwrap();
            for rank in Report::new(&timeline).ranks {
                let (closed, peak) = (closed[rank.pipeline_rank], rank.memory.peak);
                let case = format!(
                    "{offload:?}, {} {}, {}, {}, rank {}: {} for {peak}",
                    draft.schedule,
                    draft.mesh[1],
                    draft.stack,
                    draft.recompute.name(),
                    rank.rank,
                    closed.total()
                );
                assert!(closed.total() >= peak - Bytes::new(MemoryKind::ALL.len() as f64), "{case}");
                // While a bucket's later layers run, the one before may have left; more so between both ends of a model.
                let loose = match offload.gradients {
                    Some(_) if draft.schedule == "hanayo" => 1.15,
                    Some(_) => 1.1,
                    None => 1.05,
                };
                assert!(closed.total() <= loose * peak, "{case}");
            }
            for kind in MemoryKind::ALL {
                let changes = timeline.memory.iter().filter(|change| change.rank == 0 && change.kind == kind);
                let (mut held, mut least) = (0.0, 0.0f64);
                for change in changes {
                    held += change.bytes.get();
                    least = least.min(held);
                }
                let resident = closed[0].resident().into_iter().filter(|held| held.kind == kind);
                let resident: Bytes = resident.map(|held| held.bytes).sum();
                assert!((held - resident.get()).abs() < 1.0 && least > -1.0, "{offload:?} {}", kind.name());
            }
        }
    }
}

#[test]
fn one_rank_for_each_class_gives_the_time_of_all_and_joined_ops_that_of_single_ones() {
    for draft in drafts().into_iter().filter(|draft| draft.recompute == Recompute::None) {
        for offload in choices() {
            let plan = plan(&draft, offload);
            let costs = Undisturbed(ClusterCosts::new(&plan.cluster));
            let simulated = simulate(&lower_every_rank(&plan), &costs, Detail::Ops).unwrap().duration;
            let program = lower(&plan);
            assert_eq!(simulate(&program, &costs, Detail::Ops).unwrap().duration, simulated, "{offload:?}");
            assert_eq!(step_time(&program, &costs).unwrap(), simulated, "{offload:?}");
        }
    }
}

/// GPT-3 1.3B on one GPU, one microbatch, no clipping; the bandwidth of its copies in both directions in GB/s, and of its
/// processors' updates reach. The head with the last block, 23 blocks and the embedding are a bucket each.
fn one_gpu(offload: Offload, link: f64, update: f64) -> Plan {
    let draft = Draft { microbatches: 1, micro_batch: 8, ..Draft::of("gpt3-1.3b", [1, 1, 1]) };
    let mut plan = plan(&draft, offload);
    plan.job.gradient_clipping = false;
    let processors = plan.cluster.node.processors.as_mut().unwrap();
    let per_second = |giga: f64| trainwright_spec::units::BytesPerSecond::new(giga * 1e9);
    processors.to_host.value = per_second(link);
    processors.from_host.value = per_second(link);
    processors.together.value = per_second(link);
    processors.copy_latency.value = Seconds::ZERO;
    processors.memory_bandwidth.value = per_second(update);
    processors.update_efficiency.value = 1.0;
    plan
}

fn seconds(plan: &Plan) -> f64 {
    let costs = Undisturbed(ClusterCosts::new(&plan.cluster));
    Seconds::from(simulate(&lower(plan), &costs, Detail::Ops).unwrap().duration).get()
}

fn assert_close(found: f64, expected: f64, case: &str) {
    assert!((found / expected - 1.0).abs() < 1e-8, "{case}: {found} for {expected}");
}

/// Kernel time of the ops that are counted, once each segment.
fn kernels(plan: &Plan, counts: impl Fn(&str, &Op) -> bool) -> f64 {
    let costs = ClusterCosts::new(&plan.cluster);
    let program = lower(plan);
    let ops =
        program.segments.iter().flat_map(|segment| segment.ops.iter().map(|op| (segment.name.as_str(), op)));
    let time = |(name, op): (&str, &Op)| match &op.work {
        Work::Compute(_) if counts(name, op) => {
            costs.cost(&Query::of(&program, &program.ranks[0], op).unwrap()).time.get()
        }
        _ => 0.0,
    };
    ops.map(time).sum()
}

#[test]
fn a_step_takes_what_its_longest_chain_takes() {
    // h = 2048, 2048 positions, V = 50257 padded to 50304: parameters of a block and of the ends, in the order of backward.
    let (h, positions, v) = (2048.0, 2048.0, 50304.0);
    let block = 12.0 * h * h + 13.0 * h;
    let buckets: Vec<f64> = [vec![block + 2.0 * h], vec![block; 23], vec![(v + positions) * h]].concat();
    let all: f64 = buckets.iter().sum();
    let (first, last) = (buckets[0], buckets[24]);
    // Passes alone: a step without its optimizer kernel.
    let plain = one_gpu(Offload::default(), 1.0, 1.0);
    let passes = seconds(&plain) - kernels(&plain, |_, op| op.module == "optimizer");
    let of_embedding = ["embedding", "positions", "dropout"];
    let embedding = kernels(&plain, |name, op| {
        name == "stage 0 backward" && op.layer.is_none() && of_embedding.contains(&op.module)
    });
    // The first block's gradients leave while the embedding's are made, which takes less.
    let tail = |link: f64| 2.0 * (block + last) / link - embedding;

    // A fast link hides all copies but the last two buckets' out and the last one's in. Of a slow update, 28 bytes a
    // parameter, each bucket takes longer than the copy of the one before: T = passes + tail + 28 N / U + 2 n_last / β.
    let (link, update) = (26e9, 100e9);
    let found = seconds(&one_gpu(optimizer(), 26.0, 100.0));
    assert_close(found, passes + tail(link) + 28.0 * all / update + 2.0 * last / link, "fast link");
    // The same with gradients on the host, whose buckets never wait.
    assert_close(seconds(&one_gpu(gradients(), 26.0, 100.0)), found, "gradients");

    // A slow link and a fast update: gradients leave one after the other from the first bucket on, and so come weights:
    // T = forward and backward to the first bucket + 2 N / β + 28 n_first / U + 2 N / β.
    let (link, update) = (0.5e9, 10_000e9);
    let plan = one_gpu(optimizer(), 0.5, 10_000.0);
    let first_ready = {
        let costs = Undisturbed(ClusterCosts::new(&plan.cluster));
        let timeline = simulate(&lower(&plan), &costs, Detail::Ops).unwrap();
        let spans = timeline
            .spans
            .iter()
            .filter(|span| timeline.labels[span.label as usize].ends_with("gradients out"));
        Seconds::from(spans.map(|span| span.start).min().unwrap()).get()
    };
    let expected = first_ready + 2.0 * all / link + 28.0 * first / update + 2.0 * all / link;
    assert_close(seconds(&plan), expected, "slow link");

    // Delayed, the update overlaps the passes: T = max(passes + tail, 28 N / U) + 2 N / β.
    let delayed = Offload { delayed_update: true, ..optimizer() };
    for update in [10.0, 1000.0] {
        let by_host = 28.0 * all / (update * 1e9);
        let expected = f64::max(passes + tail(26e9), by_host) + 2.0 * all / 26e9;
        assert_close(seconds(&one_gpu(delayed, 26.0, update)), expected, "delayed");
    }
    // From drives, 12 bytes a parameter each way: the dearer of memory and drives.
    let mut plan = one_gpu(Offload { optimizer: Some(Place::Nvme), ..optimizer() }, 26.0, 100.0);
    let drives = plan.cluster.node.processors.as_mut().unwrap().drives.as_mut().unwrap();
    drives.read.value = trainwright_spec::units::BytesPerSecond::new(6e9);
    drives.write.value = trainwright_spec::units::BytesPerSecond::new(3e9);
    let expected = passes + tail(26e9) + 2.0 * last / 26e9 + 12.0 * all * (1.0 / 6e9 + 1.0 / 3e9);
    assert_close(seconds(&plan), expected, "drives");
}

#[test]
fn copies_of_activations_hide_behind_longer_blocks_and_not_behind_shorter_ones() {
    // n = 22 of 24 blocks; F and B the time of a block, c that of a copy of its activations. Where c is less than F and B
    // all copies hide. Where it is more, block k + 2 of forward starts with the end of copy k and block k of backward
    // with the end of its copy: T = E + F + n c + F + H + B + n c + B (E the embedding's time, H the head's), which is
    // n (2 c − F − B) more than without copies.
    let n = 22.0;
    let offload = activations(Some(22));
    let plain = one_gpu(Offload::default(), 1.0, 1.0);
    let block = |name: &str| kernels(&plain, |module, op| module == name && op.layer == Some(5));
    let (forward, backward) = (block("stage 0 forward"), block("stage 0 backward"));
    let volumes = copied(&lower(&one_gpu(offload, 1.0, 1.0)), 0);
    let kept = volumes[&(CopyDirection::ToHost, "activations out")] / n;
    let link_of = |time: f64| kept / time / 1e9;

    let hidden = seconds(&one_gpu(offload, link_of(0.99 * forward.min(backward)), 1.0));
    assert_close(hidden, seconds(&plain), "hidden");
    for factor in [1.01, 2.0, 10.0] {
        let copy = factor * forward.max(backward);
        let expected = seconds(&plain) + n * (2.0 * copy - forward - backward);
        assert_close(seconds(&one_gpu(offload, link_of(copy), 1.0)), expected, "exposed");
    }
    // Exposed copies are counted apart from kernels and idle time.
    let slow = one_gpu(offload, link_of(2.0 * backward), 1.0);
    let (forecast, _) = forecast(&slow, &Undisturbed(ClusterCosts::new(&slow.cluster))).unwrap();
    let time = forecast.report.ranks[0].time;
    let exposed: Picoseconds = time.offload.iter().map(|stream| stream.exposed).sum();
    assert_eq!(time.exposed, exposed);
    assert_eq!(time.compute + time.exposed + time.bubble, forecast.report.step_time);
    assert_close(Seconds::from(exposed).get(), seconds(&slow) - seconds(&plain), "report");
}

/// A GPT of `billions` on one V100 of a DGX-2, everything computed again, as in ZeRO-Offload's evaluation: h = 4096 and
/// as many blocks as that takes.
fn on_one_v100(billions: f64, offload: Offload) -> Plan {
    let blocks = ((billions * 1e9 - 50257.0 * 4096.0) / (12.0 * 4096.0 * 4096.0)).round() as usize;
    let mut draft = Draft {
        microbatches: 1,
        micro_batch: 4,
        recompute: Recompute::Full,
        stack: "megatron-lm-2022",
        ..Draft::of("gpt3-6.7b", [1, 1, 1])
    };
    draft.model.blocks[0].count = blocks;
    draft.blocks = blocks;
    let plan = plan(&draft, Offload::default());
    let plan = Plan { cluster: Cluster::from_name("dgx-2-one-gpu").unwrap(), offload, ..plan };
    plan.check("v100").unwrap_or_else(|error| panic!("{error}"));
    plan
}

#[test]
fn ten_billion_parameters_train_on_one_v100_and_13_at_most() {
    // ZeRO-Offload (2101.06840, abstract): 13 billion parameters on one V100 of 32 GB, PyTorch alone 1.4 billion.
    let fits = |billions, offload| {
        let plan = on_one_v100(billions, offload);
        forecast(&plan, &ClusterCosts::new(&plan.cluster)).unwrap().0.fits
    };
    assert!(fits(1.4, Offload::default()));
    assert!(!fits(2.5, Offload::default()));
    assert!(!fits(10.0, Offload::default()));
    // Weights, 2 bytes each, stay.
    assert!(fits(10.0, gradients()));
    assert!(fits(13.0, gradients()));
    assert!(!fits(16.0, gradients()));
    // With gradients on the GPU 4 bytes each.
    assert!(fits(6.0, optimizer()) && !fits(10.0, optimizer()));
    // With the weights on the host too, its memory is the limit: 16 bytes of 1.5 TB for each.
    assert!(fits(80.0, parameters()) && !fits(100.0, parameters()));

    // 40 TFLOP/s at 10 billion parameters (abstract).
    let plan = on_one_v100(10.0, gradients());
    let (forecast, _) = forecast(&plan, &ClusterCosts::new(&plan.cluster)).unwrap();
    let host = forecast.node_memory.unwrap();
    // 12 bytes of optimizer and 2 of gradient for each parameter.
    let n = plan_memory(&plan)[0].weights.get() / 2.0;
    assert_eq!(host.host, Bytes::new(14.0 * n));
    // Ours is 50: the paper's batch and sequence are not printed with it.
    let rate = (forecast.hardware_flops / forecast.step_time).get();
    assert!((35e12..55e12).contains(&rate), "{rate}");
}

#[test]
fn a_nodes_memory_is_the_sum_of_its_ranks() {
    // Two stages on a node of two GPUs, 4 GPUs on two nodes: each node holds 14 bytes for all parameters of two ranks.
    let draft = Draft { gpus_per_node: 2, ..Draft::of("gpt2-large", [1, 4, 1]) };
    let plan = plan(&draft, gradients());
    let ranks = plan_memory(&plan);
    let expected = (ranks[0].host + ranks[1].host).max(ranks[2].host + ranks[3].host);
    assert_eq!(node_memory(&plan, &ranks).unwrap().host, expected);
    let mut small = plan;
    small.cluster.node.processors.as_mut().unwrap().memory.value = expected - Bytes::new(1.0);
    let (forecast, _) = forecast(&small, &ClusterCosts::new(&small.cluster)).unwrap();
    assert!(!forecast.fits && forecast.peak_memory < forecast.gpu_memory);
}

#[test]
fn impossible_offloads_are_refused() {
    let check = |change: &dyn Fn(&mut Plan), expected: &str| {
        let mut plan = Draft::of("gpt2", [1, 1, 2]).plan();
        change(&mut plan);
        let message = plan.check("plan.toml").unwrap_err().to_string();
        assert!(message.contains(expected), "{message}");
    };
    let host = Some(Place::Host);
    check(
        &|plan| plan.offload.optimizer_fraction = 0.5,
        "`offload.optimizer_fraction` is 0.5; it needs `offload.optimizer`",
    );
    check(
        &|plan| plan.offload.delayed_update = true,
        "`offload.delayed_update` is true; it needs `offload.optimizer`",
    );
    check(
        &|plan| plan.offload.gradients = host,
        "`offload.gradients` is `host`; it needs `offload.optimizer` of all",
    );
    check(
        &|plan| plan.offload.parameters = host,
        "`offload.parameters` is `host`; it needs `offload.optimizer` of all",
    );
    check(&|plan| plan.offload.activation_blocks = Some(3), "`offload.activation_blocks` is 3; it needs");
    check(
        &|plan| plan.offload = Offload { optimizer_fraction: 0.0, ..optimizer() },
        "`offload.optimizer_fraction` is 0; above 0, at most 1",
    );
    check(&|plan| plan.offload = activations(Some(0)), "`offload.activation_blocks` is 0; at least 1");
    check(
        &|plan| plan.offload = gradients(),
        "where ranks have the same weights gradients leave as they are reduced",
    );
    check(
        &|plan| {
            plan.offload = optimizer();
            plan.cluster.node.processors = None;
        },
        "`offload.optimizer` is `host`; node dgx-a100 has no `cluster.node.processors`",
    );
    check(
        &|plan| {
            plan.offload = Offload { activations: Some(Place::Nvme), ..Offload::default() };
            plan.cluster.node.processors.as_mut().unwrap().drives = None;
        },
        "`offload.activations` is `nvme`; node dgx-a100 has no `cluster.node.processors.drives`",
    );
    check(
        &|plan| {
            plan.offload = parameters();
            plan.stack.overlap_gradient_reduction = true;
            plan.data_sharding = "zero1".into();
        },
        "`offload.parameters` is `host`; only where the optimizer is not divided",
    );
    let schedule = "which runs backward in halves, two copies of the stages or without flush";
    for (name, virtual_stages) in [("zb-h1", 1), ("dualpipev", 2), ("chimera", 1), ("pipedream-2bw", 1)] {
        let legal = if virtual_stages == 1 { "1f1b" } else { name };
        let draft = Draft { schedule: legal, virtual_stages, ..Draft::of("gpt2", [1, 2, 1]) };
        let mut plan = draft.plan();
        plan.job.gradient_clipping = false;
        plan.schedule = name.into();
        plan.offload = activations(None);
        let message = plan.check("plan.toml").unwrap_err().to_string();
        let expected = format!("`offload` is `activations on host`; not with schedule {name}, {schedule}");
        assert!(message.contains(&expected), "{message}");
    }
    for scheme in ["zero2", "zero3", "parameter-server"] {
        check(
            &|plan| {
                plan.offload = optimizer();
                plan.data_sharding = scheme.into();
            },
            &format!("`offload` is `optimizer on host`; not with data_sharding = `{scheme}`"),
        );
    }
    let mut square =
        Draft { tensor_scheme: "2d", tensor_rows: 2, micro_batch: 2, ..Draft::of("gpt2", [4, 1, 1]) }.plan();
    square.offload = optimizer();
    let message = square.check("plan.toml").unwrap_err().to_string();
    assert!(message.contains("`offload` is `optimizer on host`; not with tensor scheme `2d`"), "{message}");
    check(
        &|plan| {
            plan.offload = parameters();
            plan.stack.overlap_gradient_reduction = true;
            plan.job.precision = Precision::Int8;
        },
        "`offload.parameters` is `host`; training in int8 keeps copies of the weights on the GPU",
    );
    check(
        &|plan| plan.state.gradients = Some(Precision::Fp8),
        "`state.gradients` is `fp8`; fp32, bf16 or fp16",
    );
    check(
        &|plan| {
            plan.job.precision = Precision::Tf32;
            plan.state.master_weights = MasterWeights::None;
        },
        "`state.master_weights` is `none`; training in tf32 has no master weights",
    );
}

#[test]
fn a_plan_says_what_it_offloads_and_nothing_if_nothing_is() {
    let plain = Draft::of("gpt2", [1, 1, 1]).plan();
    assert!(!plain.to_toml().contains("offload") && !plain.to_toml().contains("[state]"));
    for offload in choices() {
        let state = StatePrecision {
            gradients: Some(Precision::Bf16),
            moments: Moments::Int8,
            master_weights: MasterWeights::Remainder,
        };
        let plan = Plan { offload, state, ..plain.clone() };
        assert_eq!(Plan::from_toml(&plan.to_toml(), "plan.toml").unwrap(), plan);
    }
}

#[test]
fn smaller_states_take_their_bytes() {
    // 2 of weight, 2 of gradient, 2 moments and the master weight.
    let check = |moments, master_weights, optimizer: f64| {
        let state = StatePrecision { gradients: Some(Precision::Fp16), moments, master_weights };
        let plan = Plan { state, ..Draft::of("gpt2-large", [1, 1, 1]).plan() };
        let memory = plan_memory(&plan)[0];
        let n = memory.weights.get() / 2.0;
        assert_eq!((memory.gradients.get(), memory.optimizer.get()), (2.0 * n, optimizer * n));
    };
    check(Moments::Fp32, MasterWeights::Fp32, 12.0);
    check(Moments::Bf16, MasterWeights::Remainder, 6.0);
    check(Moments::Int8, MasterWeights::None, 2.0 * (1.0 + 4.0 / 2048.0));
}
