//! The plan that a row describes.

use super::recompute::Chosen;
use super::stages::{ends_alone, stages};
use super::{NoPlan, Run, columns, names};
use trainwright_spec::cluster::Gpu;
use trainwright_spec::job::Job;
use trainwright_spec::limits::BLOCK_PASSES;
use trainwright_spec::mesh::Mesh;
use trainwright_spec::plan::{Offload, Plan, ScheduleChoice};
use trainwright_spec::precision::Precision;
use trainwright_spec::program::{FlashVersion, Place};
use trainwright_spec::schedule::schedule;
use trainwright_spec::stack::{AttentionKernel, Fusion, MemoryReport, PlanFamily, Stack};

/// The software of a row that names none, neither in its column nor in its source.
const SOFTWARE: &str = "Megatron-LM";

/// Libraries of devices that run compiled programs only.
const COMPILED: [&str; 2] = ["xla", "neuron"];

/// What submissions to a suite of benchmarks have in common where they say nothing else.
struct Suite {
    /// How their `source` begins.
    source: &'static str,
    /// The framework of those that name one.
    framework: &'static str,
    /// The number format of those that state one, where the GPU has it.
    precision: Precision,
}

/// Of the 18 submissions of language models in `training.csv` all are in fp8, and run NVIDIA's container of NeMo.
const SUITES: [Suite; 1] =
    [Suite { source: "MLPerf Training", framework: "NVIDIA NeMo Framework", precision: Precision::Fp8 }];

/// What `notes` say of software that computes in single precision unless told otherwise, as Megatron does.
pub(super) const NO_16_BITS: &str = "no fp16/bf16 flag";

/// What `notes` say of a run without dropout.
pub(super) const NO_DROPOUT: &str = "no dropout";

/// What `notes` say of a run whose launches wait for their kernels.
const BLOCKING_LAUNCHES: &str = "CUDA_LAUNCH_BLOCKING=1";

/// What `notes` say of memory that is printed in GiB.
const MEMORY_IN_GIB: &str = "memory GiB";

/// Names of schedules in papers, and in the catalog.
const SCHEDULES: [(&str, &str); 5] =
    [("1f1b-i", "interleaved"), ("zb-1p", "zb-h1"), ("zb-2p", "zb-h2"), ("zb-v", "zb-v"), ("afab", "gpipe")];

impl Run {
    /// The plan, checked, of a row that states all of it but the columns' defaults. The stack gets every feature that the row
    /// used. `completed` fills further blanks.
    ///
    /// # Errors
    /// `Invalid` if the row contradicts itself, `Unsupported` if a plan cannot express it.
    pub fn plan(&self) -> Result<Plan, NoPlan> {
        let invalid = |message: String| Err(NoPlan::Invalid(message));
        let cluster = self.cluster()?;
        let mut stack = self.stack()?;
        stack.attention = Self::known_attention(stack.attention, &cluster.node.gpu);
        self.report_memory(&mut stack);
        self.block_launches(&mut stack);
        self.dispatch_by_kernels(&mut stack);
        let gpus = cluster.gpus();
        let [tensor, pipeline, context] = [self.tp, self.pp, self.cp].map(|size| size.unwrap_or(1));
        let ranks = tensor.saturating_mul(pipeline).saturating_mul(context);
        if !gpus.is_multiple_of(ranks) {
            return invalid(format!("`tp` x `pp` x `cp` is {ranks}, which does not divide {gpus} GPUs"));
        }
        let data = self.dp.unwrap_or(gpus / ranks);
        let all = data.saturating_mul(ranks);
        if all != gpus {
            return invalid(format!("`tp` x `pp` x `cp` x `dp` is {all}, and there are {gpus} GPUs"));
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
        let schedule = self.schedule(global_batch / data / micro_batch)?;
        let schedule_stages = match &schedule {
            ScheduleChoice::Named(name) if name == "zb-v" => 2,
            _ => virtual_stages,
        };
        let stages_in_all = pipeline.saturating_mul(schedule_stages);
        let layers = self.layers.ok_or_else(|| NoPlan::missing("layers"))?;
        if stages_in_all > layers && !ends_alone(layers, stages_in_all) {
            return invalid(format!("`pp` x `vp` is {stages_in_all} stages of {layers} `layers`"));
        }
        let sharding = self.sharding(&mut stack)?;
        let recompute = self.recompute(&mut stack)?;
        if !recompute.suits(stages_in_all) {
            return invalid(format!("`recompute` is `{}`; there are {stages_in_all} stages", self.recompute));
        }
        let sequence_parallel = tensor > 1 && self.sequence_parallel.unwrap_or(stack.sequence_parallel);
        stack.sequence_parallel |= sequence_parallel;
        let model = self.model(&stack)?;
        let mut mesh = Mesh { context, ..Mesh::new(tensor, pipeline, data) };
        let kernels = stack.dispatch_multiprocessors.is_some();
        let experts = self.place_experts(&mut mesh, cluster.node.gpus.value, kernels)?;
        mesh.shard = sharding.ranks;
        let mut blocks = stages(&model, stages_in_all, stack.cut, &self.notes);
        recompute.apply(&mut blocks);
        let offload = self.offload()?;
        let sequence = self.seq_len.ok_or_else(|| NoPlan::missing("seq_len"))?;
        let adapters = self.adapters(&model)?;
        let mut job =
            Job { adapters, ..Job::new(sequence, global_batch, self.precision(&cluster.node.gpu)?) };
        if let Some(optimizer) = self.optimizer() {
            job.optimizer = optimizer.into();
        }
        let plan = Plan {
            micro_batch,
            schedule,
            virtual_stages: schedule_stages,
            sequence_parallel,
            data_sharding: sharding.scheme,
            stages: blocks,
            offload,
            mesh,
            experts,
            ..Plan::plain(model, stack, cluster, job)
        };
        plan.check("").map_err(|error| NoPlan::Invalid(columns::fault(&error)))?;
        let (microbatches, blocks) = (plan.microbatches(), plan.model.layers());
        if microbatches.saturating_mul(blocks) > BLOCK_PASSES {
            return invalid(format!(
                "`global_batch` is {global_batch}; that is {microbatches} microbatches of {blocks} blocks, and at most \
                 {BLOCK_PASSES} passes of a block are simulated"
            ));
        }
        Ok(plan)
    }

    /// That another stack stands in for the row's software; `None` if it does not.
    pub(super) fn stand_in_remark(&self) -> Option<String> {
        let stack = match self.named_stack() {
            Some(_) => None,
            None => self.stand_in(),
        }?;
        Some(match self.framework.as_str() {
            "" => format!("`framework` {}", stack.name),
            name => format!("no stack of the catalog is the framework `{name}`: {} stands in", stack.name),
        })
    }

    /// The catalog's stack of the row's software at its date: the first name in `framework` that it has, that of a library below
    /// others last.
    fn named_stack(&self) -> Option<Stack> {
        let named = self.stack_by_framework();
        let is_general = |stack: &Stack| stack.stands_in_for.contains(&PlanFamily::Replicas);
        match self.suite() {
            Some(suite) if named.as_ref().is_none_or(is_general) => {
                Stack::from_framework(suite.framework, false, &self.date).or(named)
            }
            _ => named,
        }
    }

    /// The suite of benchmarks that the run is a submission to.
    fn suite(&self) -> Option<&'static Suite> {
        SUITES.iter().find(|suite| self.source.starts_with(suite.source))
    }

    fn stack_by_framework(&self) -> Option<Stack> {
        match self.framework.as_str() {
            "" => Stack::from_framework(&self.source, true, &self.date).or_else(|| {
                Stack::from_framework(SOFTWARE, false, &self.date).filter(|_| !self.is_compiled())
            }),
            name => {
                let words = name.char_indices().filter(|(at, _)| {
                    let before = name[..*at].chars().next_back();
                    before.is_none_or(|letter| !letter.is_alphanumeric())
                });
                let mut stacks =
                    words.filter_map(|(at, _)| Stack::from_framework(&name[at..], false, &self.date));
                // A library that other software is built on counts only where no other is named.
                let first = stacks.next()?;
                let built_on = |stack: &Stack| stack.stands_in_for.contains(&PlanFamily::Replicas);
                match built_on(&first) {
                    true => stacks.find(|stack| !built_on(stack)).or(Some(first)),
                    false => Some(first),
                }
            }
        }
    }

    /// Whether XLA compiles a step to one program: the software says so, or nothing else runs on the device.
    fn is_compiled(&self) -> bool {
        let framework = self.framework.to_lowercase();
        let library = self.known_gpu().and_then(|gpu| gpu.library.as_deref());
        ["jax", "xla", "t5x", "neuron"].iter().any(|name| framework.contains(name))
            || library.is_some_and(|library| COMPILED.contains(&library))
    }

    /// The catalog's stack for plans of this family, where none is the row's software.
    fn stand_in(&self) -> Option<Stack> {
        let shares_layers = [self.tp, self.pp, self.cp, self.ep].into_iter().flatten().any(|ranks| ranks > 1);
        let scheme = self.data_sharding.split(':').next().unwrap_or_default();
        let family = match scheme {
            _ if self.is_compiled() => PlanFamily::Compiled,
            _ if shares_layers => PlanFamily::ModelParallel,
            "zero3" | "hsdp" | "zero2-fsdp" => PlanFamily::ShardedWeights,
            _ => PlanFamily::Replicas,
        };
        Stack::stand_in(family, &self.date)
    }

    /// The stack of the row's software, or the one that stands in for it, with the row's kernels if it names them.
    fn stack(&self) -> Result<Stack, NoPlan> {
        let unknown =
            || NoPlan::Unsupported(format!("no stack of the catalog is the framework `{}`", self.framework));
        let stack = self.named_stack().or_else(|| self.stand_in()).ok_or_else(unknown)?;
        let attention = match self.attention_kernel.as_str() {
            "" => stack.attention,
            "unfused" => AttentionKernel::Unfused,
            "fused-softmax" => AttentionKernel::FusedSoftmax,
            "flash1" => AttentionKernel::Flash1,
            "flash2" => AttentionKernel::Flash2,
            "flash3" => AttentionKernel::Flash3,
            other => return Err(NoPlan::Unsupported(format!("`attention_kernel` is `{other}`"))),
        };
        let norms = match self.norm_kernel.as_str() {
            "" => stack.norms,
            kernel if kernel.starts_with("fused") => Fusion::Fused,
            "unfused" => Fusion::Separate,
            other => return Err(NoPlan::Unsupported(format!("`norm_kernel` is `{other}`"))),
        };
        Ok(Stack { attention, norms, ..stack })
    }

    /// Makes the stack print the memory that the row states.
    fn report_memory(&self, stack: &mut Stack) {
        stack.prints_gib |= self.memory_unit.contains("GiB") || self.notes.contains(MEMORY_IN_GIB);
        if stack.memory_report == MemoryReport::Peak && self.memory_unit.contains("allocated") {
            stack.memory_report = MemoryReport::PeakOfTensors;
        }
    }

    /// Makes launches wait for their kernels where the row says so.
    fn block_launches(&self, stack: &mut Stack) {
        if self.notes.contains(BLOCKING_LAUNCHES) {
            stack.wait_for_ops();
        }
    }

    /// The kernel, or the next newer generation that `gpu` has figures of, or the best.
    fn known_attention(kernel: AttentionKernel, gpu: &Gpu) -> AttentionKernel {
        let Some(wanted) = kernel.version().filter(|version| *version != FlashVersion::Best) else {
            return kernel;
        };
        let known = gpu.achieved.attention.keys().find(|version| **version >= wanted);
        match known {
            Some(FlashVersion::First) => AttentionKernel::Flash1,
            Some(FlashVersion::Second) => AttentionKernel::Flash2,
            Some(FlashVersion::Third) => AttentionKernel::Flash3,
            Some(FlashVersion::Best) | None => AttentionKernel::Flash,
        }
    }

    fn precision(&self, gpu: &Gpu) -> Result<Precision, NoPlan> {
        if self.precision.is_empty() {
            let usual = match self.notes.contains(NO_16_BITS) {
                true => [Precision::Tf32, Precision::Fp32],
                false => [Precision::Bf16, Precision::Fp16],
            };
            let has = |precision| gpu.peak.contains_key(&precision);
            if let Some(suite) = self.suite().filter(|suite| has(suite.precision)) {
                return Ok(suite.precision);
            }
            return Ok(if has(usual[0]) { usual[0] } else { usual[1] });
        }
        let known = Precision::ALL.into_iter().find(|precision| precision.name() == self.precision);
        known.ok_or_else(|| NoPlan::Unsupported(format!("`precision` is `{}`", self.precision)))
    }

    /// 1F1B, interleaved where a rank has several stages and its microbatches fill them, or what `notes` calls
    /// the schedule: `schedule ZB-1p`.
    fn schedule(&self, microbatches: usize) -> Result<ScheduleChoice, NoPlan> {
        let Some(noted) = self.noted_schedule() else {
            let pipeline = self.pp.unwrap_or(1);
            return Ok(match self.vp.unwrap_or(1) {
                1 => "1f1b".into(),
                _ if microbatches.is_multiple_of(pipeline) => "interleaved".into(),
                _ => "interleaved-groups".into(),
            });
        };
        match schedule(&noted) {
            Ok(_) => Ok(noted.as_str().into()),
            Err(_) => Err(NoPlan::Unsupported(format!("`notes` has the schedule `{noted}`"))),
        }
    }

    /// The schedule that the notes name, by its name in the catalog if it has one; else one that `framework` names, as in
    /// `HAI-LLM (DualPipe)`.
    fn noted_schedule(&self) -> Option<String> {
        let noted = self.notes.split(';').find_map(|note| note.trim().strip_prefix("schedule "));
        let Some(name) = noted else {
            let words = self.framework.split(|letter: char| !letter.is_alphanumeric()).map(str::to_lowercase);
            let by_name = |word: &String| schedule(word).is_ok_and(|schedule| !schedule.searched());
            return words.into_iter().find(by_name);
        };
        let name = name.trim().to_lowercase();
        let known = SCHEDULES.iter().find(|(known, _)| *known == name);
        Some(known.map_or(name, |(_, ours)| (*ours).into()))
    }

    /// Whether the notes name a schedule of which nothing is known.
    pub(super) fn noted_schedule_is_unknown(&self) -> bool {
        self.noted_schedule().is_some_and(|name| schedule(&name).is_err())
    }

    /// Whether `recompute` is a text that a plan expresses.
    pub(super) fn recompute_is_known(&self) -> bool {
        self.stack().is_ok_and(|mut stack| self.recompute(&mut stack).is_ok())
    }

    fn recompute(&self, stack: &mut Stack) -> Result<Chosen, NoPlan> {
        let usual = stack.usual_recompute.clone().unwrap_or_default();
        let text = if self.recompute.is_empty() { &usual } else { &self.recompute };
        Chosen::read(text, stack)
            .ok_or_else(|| NoPlan::Unsupported(format!("`recompute` is `{}`", self.recompute)))
    }

    fn sharding(&self, stack: &mut Stack) -> Result<Sharding, NoPlan> {
        let unknown = || NoPlan::Unsupported(format!("`data_sharding` is `{}`", self.data_sharding));
        let (name, ranks) = match self.data_sharding.split_once(':') {
            Some((name, ranks)) => (name, Some(ranks.parse::<usize>().map_err(|_| unknown())?)),
            None => (self.data_sharding.as_str(), None),
        };
        let fully = if stack.has_data_scheme("fsdp") { "fsdp" } else { "zero3" };
        let plain = stack.plain_data_scheme.clone();
        let scheme = match name {
            "" if stack.sharded_optimizer => "zero1",
            "ddp" => plain.as_deref().unwrap_or("none"),
            "" => "none",
            "zero1" => "zero1",
            "zero3" if ranks.is_some() && fully == "fsdp" => "hsdp",
            "zero3" => fully,
            "zero2" | "hsdp" | "zero2-fsdp" => name,
            _ => return Err(unknown()),
        };
        if !stack.has_data_scheme(scheme) {
            match scheme {
                "zero1" => stack.sharded_optimizer = true,
                other => stack.data_schemes.push(other.into()),
            }
        }
        // Hybrid sharding is within a node unless said otherwise.
        let node = self.gpus_per_node.filter(|_| scheme == "hsdp");
        Ok(Sharding { scheme: scheme.into(), ranks: ranks.or(node) })
    }

    /// The optimizer that the row names, or its notes.
    pub(super) fn optimizer(&self) -> Option<&'static str> {
        if !self.optimizer.is_empty() {
            return names::optimizer(&self.optimizer);
        }
        let notes = self.notes.split(';').filter_map(|note| note.trim().strip_suffix(" optimizer"));
        notes.filter_map(names::optimizer).next()
    }

    pub(super) fn offload(&self) -> Result<Offload, NoPlan> {
        let optimizer = Offload { optimizer: Some(Place::Host), ..Offload::default() };
        match self.offload.as_str() {
            "" | "none" | "optimizer CPU offload 0%" => Ok(Offload::default()),
            "cpu-optimizer" | "optimizer CPU offload 100%" => Ok(optimizer),
            other => Err(NoPlan::Unsupported(format!("`offload` is `{other}`"))),
        }
    }
}

struct Sharding {
    scheme: String,
    ranks: Option<usize>,
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_row_of_unknown_software_is_forecast_with_the_stack_of_its_family_and_says_so() {
        let stack = |framework: &str, pp: usize, data_sharding: &str| {
            let run = Run {
                framework: framework.into(),
                date: "2024-06".into(),
                pp: Some(pp),
                data_sharding: data_sharding.into(),
                ..Run::default()
            };
            (run.stack().unwrap().name, run.stand_in_remark())
        };
        let remark = |name: &str| {
            Some(format!("no stack of the catalog is the framework `Veni 2.1`: {name} stands in"))
        };
        assert_eq!(
            stack("Veni 2.1", 4, "zero3"),
            ("megatron-core-2024".into(), remark("megatron-core-2024"))
        );
        assert_eq!(stack("Veni 2.1", 1, "hsdp:8"), ("torchtitan".into(), remark("torchtitan")));
        assert_eq!(stack("Veni 2.1", 1, ""), ("pytorch-eager".into(), remark("pytorch-eager")));
        assert_eq!(stack("nanotron", 4, ""), ("nanotron".into(), None));
        assert_eq!(stack("", 4, ""), ("megatron-core-2024".into(), None));
    }

    /// What contradicts itself only as a plan is said in the row's columns.
    #[test]
    fn faults_of_plans_are_in_the_words_of_the_row() {
        let row = || Run {
            layers: Some(24),
            hidden: Some(2048),
            heads: Some(16),
            seq_len: Some(1024),
            gpu: "a100-80gb-sxm".into(),
            gpus: Some(64),
            micro_batch: Some(1),
            global_batch: Some(64),
            framework: "Megatron-LM".into(),
            date: "2024-06".into(),
            ..Run::default()
        };
        let experts = || Run { num_experts: Some(8), gated_mlp: Some(true), ffn_hidden: Some(4096), ..row() };
        for (run, begins) in [
            (Run { tp: Some(64), ..row() }, "`tp` is 64; "),
            (Run { cp: Some(64), seq_len: Some(1000), ..row() }, "`cp` is 64; "),
            (
                Run { tp: Some(2), seq_len: Some(1023), ..row() },
                "`seq_len` is 1023; with sequence_parallel it must divide by `tp` = 2",
            ),
            (Run { ep: Some(3), ..experts() }, "`ep` is 3; "),
            (Run { ep: Some(16), ..experts() }, "`ep` is 16; it must divide the 8 experts"),
            (
                Run { data_sharding: "zero1:7".into(), ..row() },
                "`data_sharding` is 7; 7 must divide `cp` x `dp` = 64",
            ),
            (Run { top_k: Some(9), ..experts() }, "`top_k` is 9; "),
            (Run { node_network_gbps: Some(1e-9), ..row() }, "`node_network_gbps` is "),
        ] {
            let found = run.plan().unwrap_err();
            let NoPlan::Invalid(found) = found else { panic!("{found}") };
            assert!(found.starts_with(begins) && !found.contains("mesh."), "{found}");
        }
    }
}
