//! The time of a step's ops by their kind, to be put beside a measured step.

use crate::costs::{Costs, Query};
use std::collections::BTreeMap;
use trainwright_spec::program::{Op, Program, RankProgram, Work};
use trainwright_spec::units::{Flops, Seconds};
use trainwright_timeline::kinds::{KindTimes, OpKind};

/// How often a rank of `program` runs ops of each kind in a step, and how long they take, each alone. `rank` is an
/// index into `Program::ranks`.
pub fn time_by_kind(program: &Program, rank: usize, costs: &impl Costs) -> KindTimes {
    let rank = &program.ranks[rank];
    let mut calls = vec![0u64; program.segments.len()];
    rank.calls.iter().for_each(|call| calls[call.segment] += 1);
    let mut kinds = KindTimes::default();
    for (segment, count) in program.segments.iter().zip(calls).filter(|(_, count)| *count > 0) {
        for op in &segment.ops {
            if let Some(kind) = OpKind::of(&op.work) {
                kinds.add(kind, count, count as f64 * time(program, rank, op, costs));
            }
        }
    }
    kinds
}

/// How often a rank runs an op in a step, and how long that takes.
#[derive(Debug, Clone, PartialEq)]
pub struct OpTime {
    /// The kind of op: `Op::kind`.
    pub op: String,
    /// Its work.
    pub work: OpKind,
    /// How often.
    pub calls: u64,
    /// All calls together, each alone.
    pub time: Seconds,
    /// Floating-point operations of all calls.
    pub flops: Flops,
}

/// The ops of a rank of `program` in a step, those that take the most time first. `rank` is an index into `Program::ranks`.
pub fn time_by_op(program: &Program, rank: usize, costs: &impl Costs) -> Vec<OpTime> {
    let rank = &program.ranks[rank];
    let mut ops: BTreeMap<(String, OpKind), OpTime> = BTreeMap::new();
    for op in rank.calls.iter().flat_map(|call| &program.segments[call.segment].ops) {
        let Some(work) = OpKind::of(&op.work) else { continue };
        let flops = if let Work::Compute(kernel) = &op.work { kernel.flops() } else { Flops::ZERO };
        let none = || OpTime { op: op.kind(), work, calls: 0, time: Seconds::ZERO, flops: Flops::ZERO };
        let known = ops.entry((op.kind(), work)).or_insert_with(none);
        known.calls += 1;
        known.time += time(program, rank, op, costs);
        known.flops += flops;
    }
    let mut ops: Vec<OpTime> = ops.into_values().collect();
    ops.sort_by(|a, b| b.time.get().total_cmp(&a.time.get()));
    ops
}

fn time(program: &Program, rank: &RankProgram, op: &Op, costs: &impl Costs) -> Seconds {
    Query::of(program, rank, op).map_or(Seconds::ZERO, |query| costs.cost(&query).time)
}
