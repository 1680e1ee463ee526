//! The tests of fleets, as one program.

mod execute;
mod exhaustive;
mod large;
#[path = "../../tests/common/long.rs"]
mod long;
mod moves;
mod online;
mod published;
mod reschedule;
