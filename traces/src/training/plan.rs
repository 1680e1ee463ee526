//! The plan that a row describes.

use super::{NoPlan, Run};
use trainwright_spec::job::Job;
use trainwright_spec::mesh::Mesh;
use trainwright_spec::plan::{DataSharding, Plan, Recompute, StageBlocks};
use trainwright_spec::precision::Precision;
use trainwright_spec::stack::{AttentionKernel, Stack};

/// The software of a row that names none.
const SOFTWARE: &str = "Megatron-LM";

impl Run {
    /// The plan, checked.
    ///
    /// # Errors
    /// `Invalid` where the row contradicts itself, `Unsupported` where it asks for what cannot be expressed.
    pub fn plan(&self) -> Result<Plan, NoPlan> {
        let invalid = |message: String| Err(NoPlan::Invalid(message));
        let cluster = self.cluster()?;
        let model = self.model()?;
        let stack = self.stack()?;
        let gpus = cluster.gpus();
        let [tensor, pipeline, context] = [self.tp, self.pp, self.cp].map(|size| size.unwrap_or(1));
        let ranks = tensor * pipeline * context;
        if !gpus.is_multiple_of(ranks) {
            return invalid(format!("`tp` x `pp` x `cp` is {ranks}, which does not divide {gpus} GPUs"));
        }
        let data = self.dp.unwrap_or(gpus / ranks);
        if data * ranks != gpus {
            return invalid(format!("`tp` x `pp` x `cp` x `dp` is {}, and there are {gpus} GPUs", data * ranks));
        }
        let micro_batch = self.micro_batch.unwrap_or(1);
        let global_batch = self.global_batch.ok_or_else(|| NoPlan::missing("global_batch"))?;
        if !global_batch.is_multiple_of(data * micro_batch) {
            return invalid(format!(
                "`global_batch` is {global_batch}; it must divide by `dp` x `micro_batch` = {}",
                data * micro_batch
            ));
        }
        let virtual_stages = self.vp.unwrap_or(1);
        let stages = pipeline * virtual_stages;
        let layers = model.layers();
        let recompute = self.recompute()?;
        // What does not divide evenly goes to the first stages.
        let share = |stage| layers / stages + usize::from(stage < layers % stages);
        let plan = Plan {
            micro_batch,
            schedule: if virtual_stages > 1 { "interleaved" } else { "1f1b" }.into(),
            virtual_stages,
            sequence_parallel: tensor > 1 && self.sequence_parallel.unwrap_or(stack.sequence_parallel),
            data_sharding: self.data_sharding(&stack)?,
            stages: (0..stages).map(|stage| StageBlocks(vec![recompute; share(stage)])).collect(),
            mesh: Mesh { context, expert: self.ep.unwrap_or(1), ..Mesh::new(tensor, pipeline, data) },
            job: Job {
                sequence: self.seq_len.ok_or_else(|| NoPlan::missing("seq_len"))?,
                global_batch,
                precision: self.precision()?,
                optimizer: "adamw".into(),
                gradient_clipping: true,
            },
            stack,
            cluster,
            model,
        };
        if context > 1 || plan.mesh.expert > 1 {
            return Err(NoPlan::Unsupported("context and expert parallelism".into()));
        }
        plan.check(&self.id).map_err(|error| NoPlan::Invalid(error.to_string()))?;
        Ok(plan)
    }

    /// The catalog's stack of that software at that date, with the row's attention kernel if it names one.
    fn stack(&self) -> Result<Stack, NoPlan> {
        let name = if self.framework.is_empty() { SOFTWARE } else { &self.framework };
        let unknown = || NoPlan::Unsupported(format!("no stack of the catalog is the framework `{name}`"));
        let stack = Stack::from_framework(name, &self.date).ok_or_else(unknown)?;
        let attention = match self.attention_kernel.as_str() {
            "" => stack.attention,
            "unfused" => AttentionKernel::Unfused,
            "fused-softmax" => AttentionKernel::FusedSoftmax,
            kernel if kernel.starts_with("flash") => AttentionKernel::Flash,
            other => return Err(NoPlan::Unsupported(format!("`attention_kernel` is `{other}`"))),
        };
        Ok(Stack { attention, ..stack })
    }

    fn precision(&self) -> Result<Precision, NoPlan> {
        let name = if self.precision.is_empty() { "bf16" } else { &self.precision };
        let known = Precision::ALL.into_iter().find(|precision| precision.name() == name);
        known.ok_or_else(|| NoPlan::Unsupported(format!("`precision` is `{name}`")))
    }

    fn recompute(&self) -> Result<Recompute, NoPlan> {
        let name = if self.recompute.is_empty() { "none" } else { &self.recompute };
        let known = Recompute::ALL.into_iter().find(|recompute| recompute.name() == name);
        known.ok_or_else(|| NoPlan::Unsupported(format!("`recompute` is `{name}`")))
    }

    fn data_sharding(&self, stack: &Stack) -> Result<DataSharding, NoPlan> {
        match self.data_sharding.as_str() {
            "" if stack.sharded_optimizer => Ok(DataSharding::Zero1),
            "" | "ddp" => Ok(DataSharding::None),
            "zero1" => Ok(DataSharding::Zero1),
            other => Err(NoPlan::Unsupported(format!("`data_sharding` is `{other}`"))),
        }
    }
}
