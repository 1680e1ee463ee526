//! The tests of fleets, as one program.

mod exhaustive;
mod large;
mod online;
mod published;
mod reschedule;
