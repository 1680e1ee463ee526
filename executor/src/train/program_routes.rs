//! Which routes the collectives and messages of a program take.

use crate::comm::routes::{Route, Routes};
use crate::train::groups::group_of;
use crate::train::modules::is_stepwise;
use std::collections::{BTreeMap, BTreeSet};
use trainwright_spec::program::{Axis, Op, Program, RankProgram, Task, UpdateStep, Work};

/// The groups of a rank whose members communicate by NCCL and have collectives over numbers on their devices, in the order of
/// their numbers.
pub(crate) fn nccl_groups(routes: &Routes, program: &Program, rank: usize) -> Vec<usize> {
    if routes.gpu(rank).is_none() {
        return Vec::new();
    }
    let this = &program.ranks[rank];
    let groups = ops_of(program, this).filter_map(|op| match op.work {
        Work::Collective { axis, .. } if operand(op) == Operand::Device => {
            group_of(this, axis).filter(|group| routes.group(&program.groups[*group].ranks) == Route::Nccl)
        }
        _ => None,
    });
    groups.collect::<BTreeSet<usize>>().into_iter().collect()
}

/// The ranks between which NCCL carries messages, sender first, in an order that is the same on every rank.
pub(crate) fn nccl_pairs(routes: &Routes, program: &Program) -> Vec<(usize, usize)> {
    let mut pairs = BTreeSet::new();
    for rank in &program.ranks {
        for op in ops_of(program, rank) {
            if let Work::Send { to, .. } = op.work {
                let to = program.ranks[rank.pipeline[to]].rank;
                pairs.extend((routes.message(rank.rank, to) == Route::Nccl).then_some((rank.rank, to)));
            }
        }
    }
    pairs.into_iter().collect()
}

/// How ranks on GPUs communicate along each axis of a program. If groups of an axis take different routes, the one that holds
/// the host up most.
pub(crate) fn routes_by_axis(routes: &Routes, program: &Program) -> BTreeMap<Axis, Route> {
    let mut by_axis = BTreeMap::new();
    if !routes.has_gpus() {
        return by_axis;
    }
    let mut takes = |axis, route| {
        let known = by_axis.entry(axis).or_insert(route);
        *known = route.min(*known);
    };
    for rank in &program.ranks {
        let rank_of = |place: usize| program.ranks[rank.pipeline[place]].rank;
        for op in ops_of(program, rank) {
            match op.work {
                Work::Send { to, .. } => takes(Axis::Pipeline, routes.message(rank.rank, rank_of(to))),
                Work::Collective { axis, .. } => match (group_of(rank, axis), operand(op)) {
                    (Some(group), Operand::Device) => {
                        takes(axis, routes.group(&program.groups[group].ranks));
                    }
                    (Some(_), Operand::HostShards) => takes(axis, Route::Host),
                    _ => {}
                },
                _ => {}
            }
        }
    }
    by_axis
}

/// The ops of a rank, each once.
fn ops_of<'a>(program: &'a Program, rank: &RankProgram) -> impl Iterator<Item = &'a Op> + use<'a> {
    let segments: BTreeSet<usize> = rank.calls.iter().map(|call| call.segment).collect();
    segments.into_iter().flat_map(|segment| &program.segments[segment].ops)
}

/// What a collective works on.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum Operand {
    /// Numbers on the ranks' devices.
    Device,
    /// Parts of tensors, which the hosts put together.
    HostShards,
    /// A few numbers of all tensors, which the hosts have read.
    HostScalars,
}

fn operand(op: &Op) -> Operand {
    match op.task {
        Task::Update(UpdateStep::SumRatios) => Operand::HostScalars,
        Task::Module(step) if is_stepwise(step.module, step.does) => Operand::HostShards,
        _ => Operand::Device,
    }
}
