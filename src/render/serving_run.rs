//! Requests that were served on ranks of this machine, and their forecast beside them.

use super::serving::{Spread, spread, table};
use super::table::Table;
use super::words;
use serde_json::{Value, json};
use trainwright_evidence::statistics::quantile;
use trainwright_executor::{GenerationMemory, WeightFormat};
use trainwright_sim::serving::{Limits, Served, ServedRequest};
use trainwright_spec::plan::Plan;
use trainwright_spec::units::Seconds;
use trainwright_timeline::comparison::Pair;

/// A run, and what a calibration before it expected.
pub struct Round {
    /// What became of the requests.
    pub served: Served,
    /// What was expected, in a validation.
    pub forecast: Option<Served>,
    /// Each step of the run with the time that was expected of it; empty without a validation.
    pub steps: Vec<Pair<Seconds>>,
}

/// Requests that ranks served.
pub struct Answer<'a> {
    /// The ranks.
    pub plan: &'a Plan,
    /// The engine whose scheduler it was.
    pub engine: &'a str,
    /// Its policy.
    pub policy: &'a str,
    /// How weights were kept.
    pub weights: WeightFormat,
    /// What the ranks took.
    pub memory: GenerationMemory,
    /// Tokens that the cache had room for.
    pub capacity: usize,
    /// What limited a step.
    pub limits: Limits,
    /// The runs; without a validation one.
    pub rounds: &'a [Round],
}

/// A figure of a run beside its forecast, medians over rounds.
struct Compared {
    name: &'static str,
    key: &'static str,
    forecast: f64,
    measured: f64,
}

impl Compared {
    fn error(&self) -> f64 {
        100.0 * (self.forecast / self.measured - 1.0)
    }
}

/// Figures that a validation compares: name, key and value.
type Figure = (&'static str, &'static str, fn(&Served) -> f64);

const FIGURES: [Figure; 4] = [
    ("mean time to first token, ms", "ttft_ms", |served| 1e3 * served.mean_ttft().get()),
    ("mean time per output token, ms", "tpot_ms", |served| 1e3 * served.mean_tpot().get()),
    ("mean time to last token, ms", "e2e_latency_ms", |served| 1e3 * served.mean_latency().get()),
    ("output tokens/s", "output_tokens_per_s", Served::output_rate),
];

fn spreads(served: &Served) -> [Spread; 3] {
    let requests = || served.requests.iter();
    let none = |_: f64| None;
    [
        spread(["time to first token", "ttft_ms"], requests().map(ServedRequest::ttft), none),
        spread(["time per output token", "tpot_ms"], requests().filter_map(ServedRequest::tpot), none),
        spread(["time to last token", "e2e_latency_ms"], requests().map(ServedRequest::latency), none),
    ]
}

impl Answer<'_> {
    /// The run that is printed: the first.
    fn served(&self) -> &Served {
        &self.rounds[0].served
    }

    /// The most tokens that blocks of the cache were held for.
    fn most_cached(&self) -> usize {
        let blocks = self.served().samples.iter().map(|sample| sample.blocks).max().unwrap_or(0);
        blocks * self.limits.block
    }

    /// Each figure beside its forecast; empty without a validation.
    fn compared(&self) -> Vec<Compared> {
        let forecasts: Vec<&Served> =
            self.rounds.iter().filter_map(|round| round.forecast.as_ref()).collect();
        if forecasts.is_empty() {
            return Vec::new();
        }
        let median = |all: Vec<f64>| quantile(&all, 0.5);
        let of = |(name, key, value): Figure| Compared {
            name,
            key,
            forecast: median(forecasts.iter().map(|served| value(served)).collect()),
            measured: median(self.rounds.iter().map(|round| value(&round.served)).collect()),
        };
        FIGURES.into_iter().map(of).collect()
    }

    /// Half of the run's steps are at most so far from their expected times, in parts of these; `None` without a validation.
    fn step_error(&self) -> Option<f64> {
        let steps = self.rounds.iter().flat_map(|round| &round.steps);
        let errors: Vec<f64> = steps.map(|step| (step.measured / step.forecast - 1.0).abs()).collect();
        (!errors.is_empty()).then(|| quantile(&errors, 0.5))
    }

    /// For a terminal.
    pub fn text(&self) -> String {
        let served = self.served();
        let held = 100.0 * self.most_cached() as f64 / self.capacity.max(1) as f64;
        let mut text = format!(
            "{} ({}) on {}, scheduled as {} does ({})\nweights {}, at most {} sequences and {} tokens a step\n\n",
            self.plan.model.name,
            words::parameters(&self.plan.model),
            words::mesh(&self.plan.mesh),
            self.engine,
            self.policy,
            self.weights.name(),
            self.limits.sequences,
            self.limits.tokens,
        );
        text += &table(&spreads(served)).text();
        text += &format!(
            "\nthroughput  {:.1} output tokens/s, {:.1} tokens/s with prompts, {:.2} requests/s\n\
             requests    {} in {:.2} s, {} steps, at most {} sequences at once, {} preemptions\n\
             memory      {}: weights {}, cache {} ({held:.0} % of {} tokens at most)\n",
            served.output_rate(),
            served.total_rate(),
            served.request_rate(),
            served.requests.len(),
            served.duration.get(),
            served.steps,
            served.most_running,
            served.preemptions,
            self.memory.total(),
            self.memory.weights,
            self.memory.cache,
            self.capacity,
        );
        let compared = self.compared();
        if !compared.is_empty() {
            let title =
                format!("Beside its forecast, medians of {}", words::count(self.rounds.len(), "round"));
            text += &format!("\n{title}\n");
            text += &Table::of(&compared)
                .left("figure", |row: &Compared| row.name)
                .right("forecast", |row| format!("{:.2}", row.forecast))
                .right("measured", |row| format!("{:.2}", row.measured))
                .right("error", |row| format!("{:+.1} %", row.error()))
                .text();
        }
        if let Some(error) = self.step_error() {
            text +=
                &format!("\nHalf of the steps are within {:.1} % of their expected times.\n", 100.0 * error);
        }
        text
    }

    /// As JSON.
    pub fn json(&self) -> Value {
        let served = self.served();
        let mut answer = json!({
            "model": self.plan.model.name,
            "tensor": self.plan.mesh.tensor,
            "pipeline": self.plan.mesh.pipeline,
            "engine": self.engine,
            "policy": self.policy,
            "weights": self.weights.name(),
            "output_tokens_per_s": served.output_rate(),
            "total_tokens_per_s": served.total_rate(),
            "requests_per_s": served.request_rate(),
            "requests": served.requests.len(),
            "duration_s": served.duration.get(),
            "steps": served.steps,
            "most_running": served.most_running,
            "preemptions": served.preemptions,
            "memory_bytes": self.memory.total().get(),
            "weights_bytes": self.memory.weights.get(),
            "kv_capacity_tokens": self.capacity,
            "most_cached_tokens": self.most_cached(),
        });
        for spread in spreads(served) {
            answer[spread.key] = spread.json();
        }
        let compared = self.compared();
        if !compared.is_empty() {
            let of = |row: &Compared| {
                let value =
                    json!({"forecast": row.forecast, "measured": row.measured, "error_percent": row.error()});
                (row.key.to_string(), value)
            };
            answer["validation"] = compared.iter().map(of).collect::<serde_json::Map<_, _>>().into();
            answer["rounds"] = self.rounds.len().into();
            answer["median_step_error_percent"] = self.step_error().map(|error| 100.0 * error).into();
        }
        answer
    }
}
