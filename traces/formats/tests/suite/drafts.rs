//! Plans of many kinds.

use proptest::prelude::*;
use proptest::sample::select;
use trainwright_spec::catalog;
use trainwright_spec::cluster::Cluster;
use trainwright_spec::data::DATA_SCHEMES;
use trainwright_spec::job::Job;
use trainwright_spec::mesh::{Mesh, RankOrder};
use trainwright_spec::model::preset::preset;
use trainwright_spec::model::{Mlp, Model};
use trainwright_spec::optimizer::{MasterWeights, Moments, OPTIMIZERS, StatePrecision};
use trainwright_spec::plan::{Offload, Piece, Plan, Recompute, StageBlocks};
use trainwright_spec::precision::Precision;
use trainwright_spec::program::Place;
use trainwright_spec::stack::Stack;

/// A plan of GPT-2 on one node of eight H100, with Megatron-Core and defaults.
pub fn plain() -> Plan {
    let model = preset("gpt2").unwrap();
    Plan {
        micro_batch: 2,
        data_sharding: "zero1".into(),
        mesh: Mesh::new(1, 1, 8),
        ..Plan::plain(
            model,
            Stack::from_name("megatron-core").unwrap(),
            Cluster::from_name("dgx-h100:1").unwrap(),
            Job::new(1024, 64, Precision::Bf16),
        )
    }
}

/// A stack with all features, so that a plan's other choices decide whether it is legal.
fn able(name: &str) -> Stack {
    let stack = Stack::from_name(name).unwrap();
    let schemes = DATA_SCHEMES.iter().map(|scheme| scheme.name().to_string());
    Stack {
        sequence_parallel: true,
        sharded_optimizer: true,
        selective_recompute: true,
        data_schemes: schemes.filter(|name| name != "none" && name != "zero1").collect(),
        ..stack
    }
}

fn cut(model: &str, blocks: usize) -> Model {
    let mut model = preset(model).unwrap();
    let mut left = blocks;
    for run in &mut model.blocks {
        run.count = run.count.min(left);
        left -= run.count;
    }
    model.blocks.retain(|run| run.count > 0);
    model
}

fn recomputes() -> impl Strategy<Value = (Recompute, usize)> {
    let choices = vec![
        Recompute::None,
        Recompute::Full,
        Recompute::Selective,
        Recompute::of(&[Piece::Norm, Piece::Core]),
        Recompute::of(&[Piece::Experts]),
    ];
    (select(choices), 0usize..=2)
}

fn states() -> impl Strategy<Value = StatePrecision> {
    let moments = select(vec![Moments::Fp32, Moments::Fp32, Moments::Bf16, Moments::Int8]);
    let masters =
        select(vec![MasterWeights::Fp32, MasterWeights::Fp32, MasterWeights::Remainder, MasterWeights::None]);
    let gradients = select(vec![None, None, Some(Precision::Fp32), Some(Precision::Bf16)]);
    (gradients, moments, masters).prop_map(|(gradients, moments, master_weights)| StatePrecision {
        gradients,
        moments,
        master_weights,
    })
}

fn offloads() -> impl Strategy<Value = Offload> {
    select(vec![
        Offload::default(),
        Offload::default(),
        Offload { optimizer: Some(Place::Host), ..Offload::default() },
        Offload { optimizer: Some(Place::Host), optimizer_fraction: 0.5, ..Offload::default() },
        Offload { optimizer: Some(Place::Nvme), gradients: Some(Place::Host), ..Offload::default() },
        Offload { activations: Some(Place::Host), activation_blocks: Some(1), ..Offload::default() },
    ])
}

/// Legal plans of models of `names`, cut to a few blocks unless `full_model`.
pub fn plans(names: &'static [&'static str], full_model: bool) -> impl Strategy<Value = Plan> {
    let axes = || select(vec![1usize, 2, 4]);
    let mesh = (axes(), axes(), axes(), select(vec![1usize, 1, 2]), select(vec![1usize, 1, 2]));
    let schedules = vec![
        ("1f1b", 1),
        ("1f1b", 1),
        ("gpipe", 1),
        ("interleaved", 2),
        ("interleaved-groups", 2),
        ("zb-v", 2),
    ];
    let pipeline = (select(schedules), 0usize..=1, 1usize..=3);
    let scheme = select(vec!["ring", "all-gather", "ulysses"]);
    let data: Vec<&str> = DATA_SCHEMES.iter().map(|scheme| scheme.name()).collect();
    // More often the one that each tool has.
    let optimizers: Vec<&str> =
        OPTIMIZERS.iter().map(|optimizer| optimizer.name()).chain(["adamw"; 3]).collect();
    let precisions = vec![Precision::Bf16, Precision::Bf16, Precision::Fp16, Precision::Fp32, Precision::Fp8];
    let job = (select(precisions), select(optimizers), any::<bool>(), 1usize..=2);
    let rest = (recomputes(), states(), offloads(), select(data), any::<bool>());
    let stack = select(catalog::names("stacks"));
    let model = select(names);
    let all = (mesh, pipeline, scheme, job, rest, stack, model);
    let plan = all.prop_map(move |(mesh, pipeline, scheme, job, rest, stack, model)| {
        let (tensor, ranks, data, context, expert) = mesh;
        let ((schedule, virtual_stages), uneven, rounds) = pipeline;
        let (schedule, virtual_stages) = if ranks == 1 { ("1f1b", 1) } else { (schedule, virtual_stages) };
        let (precision, optimizer, gradient_clipping, micro_batch) = job;
        let ((recompute, full), state, offload, data_sharding, sequence_parallel) = rest;
        let stages = ranks * virtual_stages;
        let model = if full_model { preset(model).unwrap() } else { cut(model, 2 * stages) };
        let experts = model.blocks.iter().any(|run| matches!(run.block.mlp, Mlp::Experts(_)));
        let gpus = tensor * ranks * data * context;
        let mut cluster = Cluster::from_name(&format!("dgx-h100:{}", gpus.div_ceil(8))).unwrap();
        cluster.node.gpus.value = gpus.min(8);
        let mut counts = vec![model.layers() / stages; stages];
        counts[0] += model.layers() % stages;
        if stages > 1 {
            counts[0] += uneven;
            counts[stages - 1] -= uneven;
        }
        let stage = |count: &usize| {
            let full = full.min(*count);
            StageBlocks([vec![Recompute::Full; full], vec![recompute; count - full]].concat())
        };
        let shard = (data_sharding == "hsdp").then_some(context * data / if data > 1 { 2 } else { 1 });
        let base = plain();
        Plan {
            micro_batch,
            schedule: schedule.into(),
            virtual_stages,
            sequence_parallel: sequence_parallel && tensor > 1,
            context_scheme: if context > 1 { scheme.into() } else { "ring".into() },
            data_sharding: data_sharding.into(),
            stages: counts.iter().map(stage).collect(),
            state,
            offload,
            mesh: Mesh {
                context,
                expert: if experts { expert } else { 1 },
                shard: shard.filter(|shard| *shard < context * data),
                order: RankOrder::ALL[rounds % 2],
                ..Mesh::new(tensor, ranks, data)
            },
            job: Job {
                global_batch: data * micro_batch * ranks * rounds,
                precision,
                optimizer: optimizer.into(),
                gradient_clipping,
                ..base.job.clone()
            },
            stack: able(stack),
            cluster,
            model,
            ..base
        }
    });
    plan.prop_filter("a plan that is not legal", |plan| plan.check("draft").is_ok())
}
