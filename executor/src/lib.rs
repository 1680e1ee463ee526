//! Trains a transformer as a plan says, and generates tokens with it.
//!
//! ```text
//! Plan ─ lower ─► Program ─┬─ a thread for each rank ─ calls ─ ops ─► kernels
//!                          │        └─ collectives and messages ─► transport
//!                          └─ spans of all ranks ─► Timeline, as the simulator's
//! ```
//!
//! A rank interprets the calls of its program: an op says what it does with which tensor of the model (`Task`), and the
//! executor has a file for each such thing in `train/modules`. What a plan asks for and the executor has not is refused before
//! anything runs. Nothing here knows what an op should cost.
//!
//! | folder | what it is | may use |
//! | --- | --- | --- |
//! | `contained` | panics of a library that become errors | nothing |
//! | `device` | the trait behind which ranks compute, CPU and CUDA; buffers and tensors of a device | error, random |
//! | `comm` | transports, collectives, routes between ranks, heartbeats | device |
//! | `train` | what a rank holds and does, and the run of all ranks; data, checkpoints, records | device, comm |
//! | `wire` | the readers of what other processes send, for tests | comm, train |
//! | `measure` | measures a machine by running it: calibration, op times, GPUs, networks | all above |
//!
//! ```
//! use trainwright_executor::{Settings, Tokens, train};
//! use trainwright_spec::model::hf::from_hugging_face;
//! use trainwright_spec::plan::Plan;
//!
//! let text = r#"
//! model = "gpt2"
//! cluster = "h100-pcie-pair"
//! stack = "trainwright"
//! job = { sequence = 16, global_batch = 4, precision = "fp32", optimizer = "adamw", gradient_clipping = true }
//! mesh = { tensor = 1, pipeline = 1, data = 2 }
//! micro_batch = 2
//! schedule = "1f1b"
//! virtual_stages = 1
//! sequence_parallel = false
//! data_sharding = "zero1"
//! stages = ["12 none"]
//! "#;
//! let small = r#"{"model_type": "gpt2", "n_embd": 32, "n_head": 2, "n_layer": 12, "n_positions": 16, "vocab_size": 64,
//!     "resid_pdrop": 0.0, "embd_pdrop": 0.0, "attn_pdrop": 0.0}"#;
//! let model = from_hugging_face(small, "config.json")?;
//! let plan = Plan { model, ..Plan::from_toml(text, "plan.toml")? };
//! let tokens = Tokens::synthetic(plan.model.vocab, 1000, 0);
//! let settings = Settings { steps: 2, ..Settings::default() };
//! let ran = train(&plan, &tokens, &settings, &mut |step| assert!(step.loss.is_finite()))?;
//! assert_eq!((ran.steps.len(), ran.timeline.ranks.len()), (2, 2));
//! # Ok::<(), Box<dyn std::error::Error>>(())
//! ```

mod comm;
mod contained;
mod device;
mod error;
mod measure;
mod random;
mod train;
mod wire;

pub use comm::drill::{Drill, DrillKind};
pub use comm::routes::Route;
pub use comm::transport::{Remark, Rendezvous, RendezvousVia, Token, leave_processes};
pub use contained::is_contained;
pub use device::{AttentionBy, DEVICES, DeviceKind, DeviceMemory};
pub use error::{CheckpointError, Fault, RunError};
pub use measure::calibrate::{
    Calibrated, Grid, Link, LinkKind, MeasuredGpus, Measuring, Over, Refused, calibrate, measure_gpus,
    network_work, on_machine, shared_gpus,
};
pub use measure::{Abilities, MeasuredDevice, abilities, measure_ops, recording_cost};
pub use train::checkpoint::{PositionLimit, abandon_checkpoints, last_checkpoint, tensor_names, untrained};
pub use train::data::format::{DATA_FORMATS, DataFormat};
pub use train::data::tokens::{DataFile, DataOptions, Tokens};
pub use train::generation::batch::{Batch, BatchPart, ChosenToken};
pub use train::generation::checkpoint::ModelFolder;
pub use train::generation::layout::{one_rank, tensor_and_pipeline_ranks};
pub use train::generation::memory::GenerationMemory;
pub use train::generation::sampling::Sampling;
pub use train::generation::text::TextCoder;
pub use train::generation::weight_format::WeightFormat;
pub use train::generation::{Completion, Generation, Serving, TrainingSample};
pub use train::graph_capture::GraphUse;
pub use train::learning_rate::{LearningRate, RATE_SCHEDULES, RateSchedule};
pub use train::parameters::{Layer, ParameterName};
pub use train::run::generate::{generate, generate_in_processes};
pub use train::run::processes::train_in_processes;
pub use train::run::serve::{BatchRunner, serve_batches};
pub use train::run::stopping::StopRequest;
pub use train::run::{FullWeights, Outcome, StepReport, Waits, train};
pub use train::settings::{Records, Saving, Settings, Start, Validation};
pub use train::supported::{check, with_executor_stack};
pub use trainwright_kernels::cuda::{InUse, ask_for_queues};
pub use wire::{WIRE_READERS, WireReader};
