//! The time of a step's ops by their kind, to be put beside a measured step.

use crate::costs::{Costs, Query};
use trainwright_spec::program::{Op, Program, RankProgram};
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
    Query::of(program, rank, op).map_or(Seconds::ZERO, |query| costs.cost(&query).time)
}
