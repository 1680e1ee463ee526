//! Runs of small models: a plan of any shape trains as one rank does, and what the executor has not is refused.

mod batches;
mod calibration;
mod checkpoints;
mod devices;
mod documents;
mod drafts;
mod drills;
mod dropout;
mod experts;
mod faults;
mod generation;
mod grid;
#[path = "../../../tests/common/long.rs"]
mod long;
mod loss_terms;
mod optimizing;
mod parity;
mod recording;
mod sequences;
mod torch;
mod validation;
