//! The planner: which plan is best, and why.
//!
//! ```text
//! candidates ─► bounds ─► integer program per survivor ─► simulation ─► neighbours of the fastest ─► verdict
//! (mesh, microbatch,      (layers to stages, recompute     (step time)   (other stages, simulated)
//!  schedule, sharding)     under each rank's memory)
//! ```
//!
//! Candidates are solved in the order of their lower bounds, until no bound is below the times that are kept.
//!
//! ```
//! use trainwright_planner::{Pins, Question, Risk, Verdict, plan};
//! use trainwright_spec::cluster::Cluster;
//! use trainwright_spec::job::Job;
//! use trainwright_spec::model::preset::preset;
//! use trainwright_spec::precision::Precision;
//! use trainwright_spec::stack::Stack;
//!
//! let question = Question {
//!     model: preset("gpt2")?,
//!     cluster: Cluster::from_name("dgx-a100")?,
//!     job: Job {
//!         sequence: 1024,
//!         global_batch: 64,
//!         precision: Precision::Bf16,
//!         optimizer: "adamw".into(),
//!         gradient_clipping: true,
//!         adapters: None,
//!     },
//!     stack: Stack::from_name("megatron-core")?,
//!     pins: Pins { pipeline: Some(1), micro_batch: Some(4), ..Pins::default() },
//!     risk: Risk::default(),
//! };
//! match plan(&question, &|_progress| {})? {
//!     Verdict::Found(found) => {
//!         let best = &found.ranked[0];
//!         assert!(best.forecast.fits && best.plan.mesh.ranks() <= 8);
//!     }
//!     Verdict::Infeasible(why) => panic!("{:?}", why.broken),
//!     Verdict::OutOfTime(_) => unreachable!("there is no limit"),
//! }
//! # Ok::<(), Box<dyn std::error::Error>>(())
//! ```

mod bound;
mod candidate;
mod cost;
mod explain;
mod explore;
pub mod partition;
mod question;
mod risk;
pub mod rl;
mod search;
pub mod serving;
pub mod solver;
mod space;
mod stages;
mod verdict;

pub use explain::sensitivity;
pub use question::{Breadth, Pins, Question};
pub use risk::{MemoryLimit, Order, Risk};
pub use search::{Bounds, Nodes, Scope, plan, plan_until, plan_within};
pub use space::{PinChoice, pin_choices};
pub use trainwright_sim::Stop;
pub use verdict::{
    Alternative, BrokenLimit, Finalist, Found, FrontPoint, Infeasible, KEPT, NodeCounts, PlannerError,
    Progress, Ranked, Search, Sensitivity, Verdict, WithAllNodes,
};
