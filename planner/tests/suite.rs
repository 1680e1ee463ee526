//! The tests of the planner, as one program.

mod fewer_nodes;
mod grid;
mod partition;
mod search;
mod serving;
mod stops;
