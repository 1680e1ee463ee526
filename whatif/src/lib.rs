//! Capacity planning: what a run takes, and what would change if an input did.
//!
//! ```text
//! Scenario ── settings ──► points ──► planner, once for each ──► answers ─┬─► table (CSV)
//!  (question or plan,      (all combinations,                             ├─► picture
//!   price, PUE, tokens)     in the order they were given)                 └─► pareto
//! ```
//!
//! `questions` has the most common questions as sweeps: how many GPUs by a date, the longest sequence that fits, what a
//! faster network would bring. Nothing here touches a terminal, a file or a clock.
//!
//! ```
//! use trainwright_planner::{Pins, Question, Risk};
//! use trainwright_spec::cluster::Cluster;
//! use trainwright_spec::job::Job;
//! use trainwright_spec::model::preset::preset;
//! use trainwright_spec::precision::Precision;
//! use trainwright_spec::stack::Stack;
//! use trainwright_whatif::run::default_pue;
//! use trainwright_whatif::scenario::{Base, Rates, Scenario};
//! use trainwright_whatif::sweep::{Axis, Watch, sweep};
//!
//! let question = Question {
//!     model: preset("gpt2")?,
//!     cluster: Cluster::from_name("dgx-a100")?,
//!     job: Job::new(1024, 64, Precision::Bf16),
//!     stack: Stack::from_name("megatron-core")?,
//!     pins: Pins { pipeline: Some(1), micro_batch: Some(4), ..Pins::default() },
//!     risk: Risk::default(),
//! };
//! let rates = Rates { price: None, pue: default_pue().value, tokens: Some(10e9) };
//! let scenario = Scenario { base: Base::Question(Box::new(question)), rates, calibration: None };
//! let answers = sweep(&scenario, &[Axis::parse("gpus=1,2,..8")?], Watch::of(&|_done, _all| {}))?;
//! let days = answers.iter().filter_map(|answer| Some(answer.whole_run()?.time.as_days()));
//! let days: Vec<f64> = days.collect();
//! assert!(days.len() == 4 && days.is_sorted_by(|more, less| more > less));
//! # Ok::<(), Box<dyn std::error::Error>>(())
//! ```

pub mod answer;
pub mod date;
pub mod input;
pub mod law;
pub mod pareto;
pub mod picture;
pub mod price;
pub mod questions;
pub mod run;
pub mod scenario;
pub mod stragglers;
pub mod sweep;
pub mod table;
