//! Trains a transformer as a plan says.
//!
//! ```text
//! Plan ─ lower ─► Program ─┬─ a thread for each rank ─ calls ─ ops ─► kernels
//!                          │        └─ collectives and messages ─► transport
//!                          └─ spans of all ranks ─► Timeline, as the simulator's
//! ```
//!
//! A rank interprets the calls of its program: an op says what it does with which tensor of the model (`Task`), and the
//! executor has a file for each such thing in `modules`. What a plan asks for and the executor has not is refused before
//! anything runs. Nothing here knows what an op should cost.

mod beside;
mod calibrate;
mod checkpoint;
mod collective;
mod error;
mod frame;
mod instruction;
mod layers;
mod modules;
mod moves;
mod parameters;
mod processes;
mod random;
mod rank;
mod record;
mod settings;
mod sizes;
mod state;
mod supported;
mod tensor;
mod timeline;
mod tokenizer;
mod tokens;
mod train;
mod transport;
mod update;
mod watch;

pub use calibrate::{Calibrated, Grid, Measuring, Over, calibrate, on_machine};
pub use checkpoint::CheckpointError;
pub use error::{Fault, RunError};
pub use parameters::{Layer, ParameterName};
pub use processes::train_in_processes;
pub use record::recording_cost;
pub use settings::{Drill, DrillKind, LearningRate, Records, Saving, Settings, Start};
pub use supported::{check, own_stack};
pub use tokens::Tokens;
pub use train::{Outcome, StepReport, WholeWeights, train};
pub use transport::{Meets, Rendezvous};
