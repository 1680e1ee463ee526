//! Runs of small models: a plan of any shape trains as one rank does, and what the executor has not is refused.

mod checkpoints;
mod drafts;
mod drills;
mod faults;
mod parity;
mod recording;
mod torch;
