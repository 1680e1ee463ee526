//! The time of a step's ops by their kind, to be put beside a measured step.

use crate::costs::Costs;
use trainwright_spec::program::{Op, Program, RankProgram, Work};
use trainwright_spec::units::Seconds;
use trainwright_traces::kinds::{KindTimes, OpKind};

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

fn time(program: &Program, rank: &RankProgram, op: &Op, costs: &impl Costs) -> Seconds {
    match &op.work {
        Work::Compute(kernel) => costs.op(op, kernel),
        Work::Collective { kind, axis, bytes } => match rank.groups[*axis as usize] {
            Some(group) => costs.collective_op(op, *kind, *bytes, &program.groups[group]),
            None => Seconds::ZERO,
        },
        Work::Send { to, bytes, .. } => {
            costs.message(*bytes, rank.rank, program.ranks[rank.pipeline[*to]].rank)
        }
        Work::Copy { direction, place, bytes } => costs.copy(*direction, *place, *bytes),
        Work::HostUpdate(update) => costs.host_update(update),
        Work::Process(time) => *time,
        Work::Receive { .. } | Work::Join => Seconds::ZERO,
    }
}
