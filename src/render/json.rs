//! Answers as JSON, with the unit in every field's name. Fields are added, not renamed or removed.
//!
//! `plan`, exit code 0:
//!
//! ```json
//! { "verdict": "found",
//!   "question": { "model", "parameters", "active_parameters", "cluster", "gpus", "sequence_tokens",
//!                 "global_batch_sequences", "precision", "optimizer", "stack", "memory_risk",
//!                 "memory_reserve_bytes", "risk" },
//!   "plans": [ { "rank", "ordered_by_s", "limited_by", "estimate_s", "forecast": {…}, "confidence": {…}, "plan": {…} } ],
//!   "tied": how many of the first plans have the same 80 % range,
//!   "alternatives": [ { "choice", "reason" } ],
//!   "front": [ { "plan", "step_time_s", "expected_step_time_s", "peak_memory_bytes", "headroom_bytes", "gpu_s" } ],
//!   "sensitivity": [ { "quantity", "factor", "then" } ],
//!   "search": { "layouts", "candidates", "plans_log10", "out_of_memory", "state_out_of_memory", "bounded_out", "solved",
//!               "simulated", "unseen", "bound_s" } }
//! ```
//!
//! `plan`, exit code 3: `verdict` is `infeasible`, and instead of `plans` and `alternatives` there are
//! `broken`: `[ { "plans", "limit", "needs_bytes", "has_bytes" } ]` and `remedies`: `[ text ]`.
//!
//! `plan`, exit code 3 where no choice is left: `verdict` is `no candidate`, with `question` and `reason`.
//!
//! `plan`, exit code 3 where the time limit, or a signal, came before any plan: `verdict` is `out of time`, with `question` and `search`.
//!
//! `simulate`: `{ "forecast": {…}, "plan": {…} }`.
//!
//! `network`:
//!
//! ```json
//! { "cluster",
//!   "sweeps": [ { "collective", "ranks": [ rank ], "nodes", "groups", "bus_factor", "nccl",
//!                 "rows": [ { "bytes", "time_s", "algorithm_bandwidth_bytes_per_s", "bus_bandwidth_bytes_per_s",
//!                             "algorithm", "protocol", "channels", "pieces", "measured_s", "compared_s", "error" } ],
//!                 "measured": [ { "name", "source", "software", "gpu", "date", "nccl", "host_s", "launch_s",
//!                                 "launch_all_to_all_s", "copies", "alone", "times": [ [ bytes, s ] ] } ] } ] }
//! ```
//!
//! `algorithm`, `protocol` and `channels` are null where the time is a profile's, the latter two where it is of a list
//! of steps, which alone has `pieces`; `groups` work at once, as far as they are simulated; `measured_s` is the median
//! measurement of the size, `compared_s` its forecast, by the `nccl` of the measured sweep and with the overhead of its method (`traces::published::Method`), and `error` this over it, less one; they are null without any.
//!
//! A `forecast` has the fields of `trainwright_sim::Forecast`, a `plan` the keys of the plan's TOML file, in which
//! quantities of the hardware are text with a unit.

use super::network::{How, Row, SweepTable};
use serde::Serialize;
use serde_json::{Value, json};
use trainwright_planner::{Found, Infeasible, MemoryLimit, Order, Question, Ranked, Search, Sensitivity};
use trainwright_sim::Forecast;
use trainwright_sim::likeness::Confidence;
use trainwright_spec::plan::Plan;

/// The version of every command's JSON. Within one, fields are added and none is removed or changes its type;
/// `tests/cli/schemas.rs` keeps that.
pub const VERSION: u32 = 1;

/// Plans that fit.
pub fn found(
    question: &Question,
    found: &Found,
    confidence: &[Confidence],
    sensitivity: &[Sensitivity],
) -> String {
    let plan = |((rank, ranked), confidence): ((usize, &Ranked), &Confidence)| {
        json!({
            "rank": rank,
            "ordered_by_s": ranked.expected,
            "nodes": ranked.plan.cluster.nodes,
            "gpus": ranked.plan.cluster.gpus(),
            "limited_by": ranked.limited_by,
            "estimate_s": ranked.estimate,
            "forecast": ranked.forecast,
            "confidence": confidence,
            "plan": ranked.plan,
        })
    };
    print(&json!({
        "verdict": "found",
        "question": question_json(question),
        "plans": (1..).zip(&found.ranked).zip(confidence).map(plan).collect::<Vec<_>>(),
        "tied": found.tied,
        "alternatives": found.alternatives,
        "front": found.front,
        "nodes": found.nodes,
        "sensitivity": sensitivity,
        "search": found.search,
    }))
}

/// Why nothing fits.
pub fn infeasible(question: &Question, infeasible: &Infeasible) -> String {
    print(&json!({
        "verdict": "infeasible",
        "question": question_json(question),
        "broken": infeasible.broken,
        "remedies": infeasible.remedies,
        "search": infeasible.search,
    }))
}

/// The time was too short.
pub fn out_of_time(question: &Question, search: &Search) -> String {
    print(&json!({ "verdict": "out of time", "question": question_json(question), "search": search }))
}

/// No choice is left, for `reason`.
pub fn no_candidate(question: &Question, reason: &str) -> String {
    print(&json!({ "verdict": "no candidate", "question": question_json(question), "reason": reason }))
}

/// Collectives by size.
pub fn network(tables: &[SweepTable]) -> String {
    let row = |table: &SweepTable, row: &Row| {
        json!({
            "bytes": row.bytes.get() as u64,
            "time_s": row.time,
            "algorithm_bandwidth_bytes_per_s": row.algorithm_bandwidth(),
            "bus_bandwidth_bytes_per_s": row.algorithm_bandwidth() * table.bus_factor(),
            "algorithm": row.how.algorithm(),
            "protocol": row.how.choice().map(|choice| choice.protocol.name()),
            "channels": row.how.choice().map(|choice| choice.channels),
            "pieces": match row.how {
                How::Steps { chunks, .. } => Some(chunks),
                _ => None,
            },
            "measured_s": row.measured(),
            "compared_s": row.compared.as_ref().map(|compared| compared.forecast),
            "error": row.error(),
        })
    };
    let sweep = |table: &SweepTable| {
        json!({
            "collective": table.sweep.collective,
            "ranks": table.sweep.ranks,
            "nodes": table.nodes(),
            "groups": table.groups(),
            "bus_factor": table.bus_factor(),
            "nccl": table.cluster.nccl.name(),
            "rows": table.rows.iter().map(|of| row(table, of)).collect::<Vec<_>>(),
            "measured": table.sweep.measured,
        })
    };
    print(&json!({
        "cluster": tables[0].cluster.name,
        "sweeps": tables.iter().map(sweep).collect::<Vec<_>>(),
    }))
}

/// The forecast of a plan.
pub fn forecast(plan: &Plan, forecast: &Forecast, confidence: &Confidence) -> String {
    print(&json!({ "forecast": forecast, "confidence": confidence, "plan": plan }))
}

fn question_json(Question { model, cluster, job, stack, risk, .. }: &Question) -> Value {
    json!({
        "model": model.name,
        "parameters": model.parameters(),
        "active_parameters": model.active_parameters(),
        "cluster": cluster.name,
        "gpus": cluster.gpus(),
        "sequence_tokens": job.sequence,
        "global_batch_sequences": job.global_batch,
        "precision": job.precision.name(),
        "optimizer": job.optimizer,
        "adapters": job.adapters,
        "trained_parameters": job.trained_parameters(model),
        "stack": stack.name,
        "memory_risk": match risk.memory {
            MemoryLimit::Risk(risk) => Some(risk),
            MemoryLimit::Reserve(_) => None,
        },
        "memory_reserve_bytes": match risk.memory {
            MemoryLimit::Risk(_) => None,
            MemoryLimit::Reserve(reserve) => Some(reserve),
        },
        "risk": match risk.order {
            Order::Expected => None,
            Order::Quantile(fraction) => Some(fraction),
        },
    })
}

/// An answer, an object, as indented JSON with the version of its format.
pub fn print(answer: &impl Serialize) -> String {
    let versioned = Versioned { version: VERSION, answer };
    serde_json::to_string_pretty(&versioned).expect("answers are objects") + "\n"
}

#[derive(Serialize)]
struct Versioned<'a, T> {
    version: u32,
    #[serde(flatten)]
    answer: &'a T,
}
