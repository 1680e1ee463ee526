//! The simulator: what a program does in time on given hardware.
//!
//! It never reads a clock, a thread count or a random source: the same program and costs give the same timeline.
//!
//! ```
//! use trainwright_sim::{costs::ClusterCosts, forecast};
//! use trainwright_spec::plan::Plan;
//! use trainwright_timeline::draw::{Style, draw};
//!
//! let text = r#"
//! model = "gpt2"
//! cluster = "dgx-a100"
//! stack = "megatron-core"
//! job = { sequence = 1024, global_batch = 16, precision = "bf16", optimizer = "adamw", gradient_clipping = true }
//! mesh = { tensor = 2, pipeline = 2, data = 2 }
//! micro_batch = 1
//! schedule = "1f1b"
//! virtual_stages = 1
//! sequence_parallel = true
//! data_sharding = "zero1"
//! stages = ["6 none", "1 full, 5 none"]
//! "#;
//! let plan = Plan::from_toml(text, "plan.toml")?;
//! let (forecast, timeline) = forecast(&plan, &ClusterCosts::new(&plan.cluster))?;
//! assert!(forecast.fits && forecast.mfu_causal_attention < 1.0);
//!
//! // The timeline has every op of a rank with its start and end; a report says where the time goes.
//! assert!(timeline.spans.iter().all(|span| span.end <= timeline.duration));
//! let share = &forecast.report.ranks[0].time;
//! assert_eq!(share.compute + share.exposed + share.bubble, timeline.duration);
//! let style = Style { columns: Some(100), unit: None };
//! assert!(draw(&timeline, &style).contains("rank 0 |"));
//! # Ok::<(), Box<dyn std::error::Error>>(())
//! ```

pub mod compute;
pub mod costs;
pub mod engine;
mod flat;
pub mod flow;
mod forecast;
pub mod goodput;
pub mod host;
mod index;
mod joint;
mod kinds;
mod launches;
mod layout;
pub mod libraries;
pub mod likeness;
mod mix;
pub mod network;
mod repeated;
pub mod replay;
pub mod rl;
mod rounds;
pub mod serving;
mod simulate;
mod template;

pub use engine::{Deadlock, Halt, Stop};
pub use forecast::{
    Forecast, QuickForecast, TimeForecast, forecast, forecast_step_time, forecast_until, fullest,
    quick_forecast, step_program, step_time_for_ranking, step_time_for_ranking_until, step_time_until,
    time_forecast_until,
};
pub use kinds::{OpTime, time_by_kind, time_by_op};
pub use repeated::{Kind, Piece, Repeated, Waiting};
pub use simulate::{hardware_flops, simulate, simulate_until, step_time};
pub use template::Detail;
