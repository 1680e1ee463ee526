//! The ops of a segment with what depends on the device that runs them: events between its streams, modules that it runs step
//! by step, and additions that it joins with the norm after them.

use crate::device::{COMPUTE, stream_of};
use crate::train::frame::ModulePlace;
use crate::train::modules::is_stepwise;
use std::collections::{BTreeMap, BTreeSet};
use trainwright_spec::program::{
    Does, MemoryKind, Module, ModuleStep, Op, Pass, Program, RankProgram, Task, Work,
};

/// An op of a segment.
#[derive(Debug, Clone)]
pub(crate) struct Instruction<'a> {
    pub op: &'a Op,
    /// The step of a module that it is; `None` for messages, moves of state, and the update.
    pub module: Option<ModuleInstruction>,
    /// Earlier ops of the segment on other streams of the device, for which it waits.
    pub waits: Vec<usize>,
    /// Whether an op on another stream waits for it.
    pub is_awaited: bool,
}

/// A step of a module of a layer.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) struct ModuleInstruction {
    pub place: ModulePlace,
    pub step: ModuleStep,
    /// Whether the module runs step by step, as the program lists them, and not in one piece.
    pub stepwise: bool,
    /// Whether it is the addition at the end of a sublayer and the next op the norm of the sum.
    pub adds_in_norm: bool,
}

/// The instructions of every segment that a rank calls.
pub(crate) fn instructions<'a>(
    program: &'a Program,
    rank: &RankProgram,
) -> BTreeMap<usize, Vec<Instruction<'a>>> {
    let segments: BTreeSet<usize> = rank.calls.iter().map(|call| call.segment).collect();
    segments.into_iter().map(|segment| (segment, compile(&program.segments[segment].ops))).collect()
}

fn compile(ops: &[Op]) -> Vec<Instruction<'_>> {
    let instruction = |(index, op)| {
        let module = module_step(op).map(|(place, step)| {
            let run_of = |op: &Op| module_step(op).map(|(place, _)| (place, op.pass));
            let steps = ops.iter().filter(|other| run_of(other) == Some((place, op.pass)));
            let stepwise = steps.filter_map(module_step).any(|(_, step)| is_stepwise(step.module, step.does));
            ModuleInstruction { place, step, stepwise, adds_in_norm: adds_in_norm(&ops[index..]) }
        });
        let crosses = |before: &usize, op: &Op| stream_of(ops[*before].stream) != stream_of(op.stream);
        let waits = op.after.iter().copied().filter(|before| crosses(before, op)).collect();
        let is_awaited = ops.iter().any(|later| later.after.contains(&index) && crosses(&index, later));
        Instruction { op, module, waits, is_awaited }
    };
    ops.iter().enumerate().map(instruction).collect()
}

fn module_step(op: &Op) -> Option<(ModulePlace, ModuleStep)> {
    let Task::Module(step) = op.task else { return None };
    Some(((op.model_layer()?, step.module), step))
}

/// Whether the first of some ops is a sublayer's addition and the second one the norm of the sum, on the same rank, in the same
/// pass. A recomputed norm has to be one that reads the sum that was just made.
fn adds_in_norm(ops: &[Op]) -> bool {
    let [addition, norm, ..] = ops else { return false };
    let (Task::Module(sum), Task::Module(reader)) = (addition.task, norm.task) else { return false };
    let computes = |op: &Op| matches!(op.work, Work::Compute(_)) && stream_of(op.stream) == COMPUTE;
    // The norm reads the bias of the sublayer.
    let keeps_weights = addition.frees.iter().all(|freed| freed.kind != MemoryKind::Weights);
    let reads_the_sum = match addition.pass {
        Pass::Forward => true,
        Pass::Recompute => addition.layer == norm.layer && sum.refills == Some(reader.module),
        _ => false,
    };
    matches!((sum.module, sum.does), (Module::Residual(_), Does::Run))
        && matches!((reader.module, reader.does), (Module::Norm(_) | Module::FinalNorm, Does::Run))
        && addition.pass == norm.pass
        && reads_the_sum
        && [addition, norm].into_iter().all(computes)
        && keeps_weights
}

#[cfg(test)]
mod tests {
    use super::*;
    use trainwright_lower::lower_every_rank;
    use trainwright_spec::plan::Plan;

    /// Additions that norms do, forward and where forward runs again, in GPT-2 on two data ranks: of 12 blocks with two additions
    /// each.
    fn check(data_sharding: &str, recompute: &str, expected: [usize; 2]) {
        let text = format!(
            r#"
            model = "gpt2"
            cluster = "h100-pcie-pair"
            stack = "trainwright"
            job = {{ sequence = 16, global_batch = 4, precision = "fp32", optimizer = "adamw", gradient_clipping = true }}
            mesh = {{ tensor = 1, pipeline = 1, data = 2 }}
            micro_batch = 2
            schedule = "1f1b"
            virtual_stages = 1
            sequence_parallel = false
            data_sharding = "{data_sharding}"
            stages = ["12 {recompute}"]
            "#
        );
        let program = lower_every_rank(&Plan::from_toml(&text, "plan.toml").unwrap());
        let compiled = instructions(&program, &program.ranks[0]);
        let added = |pass: Pass| {
            let in_pass = compiled.values().flatten().filter(|instruction| instruction.op.pass == pass);
            in_pass.filter(|instruction| instruction.module.is_some_and(|module| module.adds_in_norm)).count()
        };
        assert_eq!([Pass::Forward, Pass::Recompute].map(added), expected, "{data_sharding} {recompute}");
    }

    #[test]
    fn norms_do_the_additions_that_stand_before_them() {
        // Every addition has a norm behind it, the last one the final norm.
        check("zero1", "none", [24, 0]);
        // Again runs the one in the middle of each block: a block's end is the next one's beginning, which is kept.
        check("zero1", "full", [24, 12]);
        // A block's weights are given up with its last addition, and the next one's are gathered before its norm.
        check("zero3", "none", [12, 0]);
    }
}
