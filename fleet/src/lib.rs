//! A fleet: several jobs on one cluster. Which plan each job runs with, on which GPUs, and when.
//!
//! ```text
//! jobs.toml ─► jobs ─► options (planner: best plan for each number of GPUs) ─► Instance
//!                                                                                 │
//!    heuristics ─► improve ─► order_search ─► program (integer program)  ◄────────┘
//!        │            │            │              │     bound: what no schedule is below
//!        └────────────┴────────────┴──────────────┴───► Schedule ─► moves (if jobs may) ─► check, uncertain
//! ```
//!
//! ```
//! use trainwright_fleet::instance::{Choice, FleetJob, Instance, NodeKind};
//! use trainwright_fleet::objective::Objective;
//! use trainwright_fleet::{Effort, solve};
//!
//! // Two jobs on one node of two GPUs. Alone each is faster on two; together, one GPU each is better.
//! let choice = |gpus, duration| Choice { kind: 0, gpus, duration, cost: 0.0, spread: vec![], plan: "".into() };
//! let job = |name: &str| FleetJob {
//!     name: name.into(),
//!     choices: vec![choice(1, 10), choice(2, 6)],
//!     release: 0,
//!     deadline: None,
//!     weight: 1.0,
//!     after: vec![],
//!     user: None,
//!     restart: None,
//! };
//! let kinds = vec![NodeKind { name: "node".into(), nodes: 1, gpus: 2 }];
//! let instance = Instance { kinds, jobs: vec![job("a"), job("b")], users: vec![], contiguous: true };
//! let answer = solve(&instance, Objective::Makespan, Effort::default())?;
//! assert_eq!(answer.schedule.makespan(), 10);
//! assert!(answer.is_proved());
//! # Ok::<(), trainwright_fleet::instance::FleetError>(())
//! ```

pub mod bound;
pub mod check;
pub mod execute;
mod gaps;
pub mod heuristics;
pub mod improve;
pub mod instance;
pub mod jobs;
pub mod list;
pub mod moves;
pub mod objective;
pub mod observed;
pub mod online;
pub mod options;
pub mod order_search;
pub mod part;
pub mod patterns;
pub mod policies;
pub mod program;
pub mod reschedule;
pub mod schedule;
mod solve;
pub mod throughputs;
pub mod uncertain;

pub use solve::{Answer, Effort, Rival, Tried, solve};
