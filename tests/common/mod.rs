//! Plans for the tests across crates: every choice that a test does not make has a default.

use trainwright_spec::cluster::Cluster;
use trainwright_spec::data::{DATA_SCHEMES, DataOptions};
use trainwright_spec::error::SpecError;
use trainwright_spec::job::Job;
use trainwright_spec::mesh::{Mesh, RankOrder};
use trainwright_spec::model::Model;
use trainwright_spec::model::preset::preset;
use trainwright_spec::plan::{Plan, Recompute, StageBlocks};
use trainwright_spec::precision::Precision;
use trainwright_spec::stack::{AttentionKernel, Stack};

/// The choices of a plan, to be written as `Draft { schedule: "gpipe", ..Draft::of("gpt2", [2, 2, 2]) }`.
#[derive(Debug, Clone)]
pub struct Draft {
    pub model: Model,
    /// How many of the model's blocks there are.
    pub blocks: usize,
    /// Tensor, pipeline, data.
    pub mesh: [usize; 3],
    /// GPUs of a DGX A100 that take part; all ranks if there are fewer.
    pub gpus_per_node: usize,
    pub schedule: &'static str,
    pub virtual_stages: usize,
    pub stack: &'static str,
    pub sequence: usize,
    pub micro_batch: usize,
    /// Of each data rank.
    pub microbatches: usize,
    pub recompute: Recompute,
    /// Blocks at the beginning of each stage with full recomputation, whatever `recompute` says.
    pub full_blocks: usize,
    pub sequence_parallel: bool,
    pub tensor_scheme: &'static str,
    /// Rows of the tensor ranks' grid.
    pub tensor_rows: usize,
    /// Ranks of the context axis, and of its inner one.
    pub context: [usize; 2],
    pub context_scheme: &'static str,
    pub data_sharding: &'static str,
    pub data: DataOptions,
    pub shard: Option<usize>,
    pub order: RankOrder,
    pub precision: Precision,
}

impl Draft {
    pub fn of(model: &str, mesh: [usize; 3]) -> Draft {
        let model = preset(model).unwrap();
        Draft {
            blocks: model.layers(),
            model,
            mesh,
            gpus_per_node: 8,
            schedule: "1f1b",
            virtual_stages: 1,
            stack: "megatron-lm-2022",
            sequence: 1024,
            micro_batch: 1,
            microbatches: 8,
            recompute: Recompute::None,
            full_blocks: 0,
            sequence_parallel: false,
            tensor_scheme: "1d",
            tensor_rows: 1,
            context: [1, 1],
            context_scheme: "ring",
            data_sharding: "none",
            data: DataOptions::default(),
            shard: None,
            order: RankOrder::default(),
            precision: Precision::Fp16,
        }
    }

    /// The plan, if it exists.
    pub fn try_plan(&self) -> Result<Plan, SpecError> {
        let [tensor, pipeline, data] = self.mesh;
        let [context, context_inner] = self.context;
        let ranks = tensor * pipeline * data * context;
        let gpus = self.gpus_per_node.min(ranks);
        let mut cluster = Cluster::from_name(&format!("dgx-a100:{}", ranks.div_ceil(gpus)))?;
        cluster.node.gpus.value = gpus;
        let stages = pipeline * self.virtual_stages;
        let mut model = self.model.clone();
        let mut left = self.blocks;
        for run in &mut model.blocks {
            run.count = run.count.min(left);
            left -= run.count;
        }
        // The remainder goes to the first stages.
        let share = |stage| self.blocks / stages + usize::from(stage < self.blocks % stages);
        let stage = |stage| {
            let full = self.full_blocks.min(share(stage));
            let rest = share(stage) - full;
            StageBlocks([vec![Recompute::Full; full], vec![self.recompute; rest]].concat())
        };
        let plan = Plan {
            micro_batch: self.micro_batch,
            schedule: self.schedule.into(),
            virtual_stages: self.virtual_stages,
            sequence_parallel: self.sequence_parallel,
            tensor_scheme: self.tensor_scheme.into(),
            context_scheme: self.context_scheme.into(),
            data_sharding: self.data_sharding.into(),
            stages: (0..stages).map(stage).collect(),
            state: Default::default(),
            offload: Default::default(),
            data: self.data,
            mesh: Mesh {
                tensor_rows: self.tensor_rows,
                context,
                context_inner,
                shard: self.shard,
                order: self.order,
                ..Mesh::new(tensor, pipeline, data)
            },
            experts: Default::default(),
            job: Job {
                optimizer: "adam".into(),
                ..Job::new(self.sequence, data * self.micro_batch * self.microbatches, self.precision)
            },
            stack: able(Stack::from_name(self.stack)?),
            cluster,
            model,
        };
        plan.check("draft")?;
        Ok(plan)
    }

    /// The plan, which is a legal one.
    pub fn plan(&self) -> Plan {
        self.try_plan().unwrap_or_else(|error| panic!("{error}"))
    }
}

/// The stack with every feature that a plan can use: the results of these tests do not depend on it, nor on
/// the generation of attention, of which A100 has no third.
fn able(stack: Stack) -> Stack {
    let data_schemes = DATA_SCHEMES.iter().map(|scheme| scheme.name().into()).collect();
    let attention = match stack.attention {
        AttentionKernel::Flash3 => AttentionKernel::Flash,
        other => other,
    };
    Stack {
        sequence_parallel: true,
        sharded_optimizer: true,
        selective_recompute: true,
        data_schemes,
        attention,
        ..stack
    }
}
