//! The figures that tables of serving runs measure, and their forecasts.

use super::forecast::ServingForecast;

/// A figure of a run.
#[derive(Debug)]
pub struct Figure {
    /// The column of the measurement; that of the forecast is the same behind `predicted_`.
    pub column: &'static str,
    /// Whose range it has: `ttft`, `tpot`, `latency`, `throughput`, `memory` or `capacity`.
    pub range: &'static str,
    /// Its forecast.
    pub of: fn(&ServingForecast) -> f64,
}

/// Every figure.
pub static FIGURES: [Figure; 9] = [
    Figure { column: "ttft_ms", range: "ttft", of: |of| of.ttft.get() * 1e3 },
    Figure { column: "tpot_ms", range: "tpot", of: |of| of.tpot.get() * 1e3 },
    Figure { column: "e2e_latency_ms", range: "latency", of: |of| of.latency.get() * 1e3 },
    Figure { column: "throughput_output_tokens_per_s", range: "throughput", of: |of| of.output_rate },
    Figure {
        column: "throughput_output_tokens_per_s_per_gpu",
        range: "throughput",
        of: |of| of.output_rate / of.gpus as f64,
    },
    Figure { column: "throughput_total_tokens_per_s", range: "throughput", of: |of| of.total_rate },
    Figure { column: "requests_per_s", range: "throughput", of: |of| of.request_rate },
    Figure { column: "memory_gb", range: "memory", of: |of| of.memory.get() * 1e-9 },
    Figure { column: "kv_capacity_tokens", range: "capacity", of: |of| of.capacity as f64 },
];
