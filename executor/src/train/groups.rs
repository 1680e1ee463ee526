//! The groups of ranks that a program numbers.

use crate::comm::members::Members;
use trainwright_spec::program::{Axis, Program, RankProgram};

/// The group of a rank along an axis; `None` if it is alone there.
pub(crate) fn group_of(rank: &RankProgram, axis: Axis) -> Option<usize> {
    rank.groups[place_of(axis)]
}

/// The place of an axis in `Axis::ALL`.
pub(crate) fn place_of(axis: Axis) -> usize {
    Axis::ALL.iter().position(|other| *other == axis).expect("every axis is listed")
}

/// The members of a group as `rank` sees them.
pub(crate) fn members(program: &Program, group: usize, rank: usize) -> Members {
    let ranks = program.groups[group].ranks.clone();
    let place = ranks.iter().position(|member| *member == rank).expect("a rank is in its groups");
    Members { group, ranks, place }
}
