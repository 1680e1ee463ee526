//! Optimizers: all of them as a table, one as TOML.

use super::print;
use crate::render::table::Column::{Left, Right};
use crate::render::table::wrapped_table;
use serde::Serialize;
use trainwright_spec::optimizer::{OPTIMIZERS, Optimizer, state_bytes};
use trainwright_spec::precision::Precision;

/// Every optimizer.
pub fn list() -> String {
    let rows = OPTIMIZERS.iter().map(|optimizer| {
        let bytes = |precision| state_bytes(*optimizer, precision).get().to_string();
        vec![
            optimizer.name().to_string(),
            bytes(Precision::Bf16),
            bytes(Precision::Fp32),
            optimizer.summary().to_string(),
            optimizer.source().to_string(),
        ]
    });
    let columns = [Left("optimizer"), Right("bf16"), Right("fp32"), Left("summary"), Left("source")];
    wrapped_table(&columns, rows.collect())
        + "bf16, fp32: bytes of state per parameter, fp32 master weights included\n"
}

/// An optimizer with its bytes.
pub fn entry(optimizer: &dyn Optimizer) -> String {
    print(&OptimizerEntry {
        name: optimizer.name(),
        summary: optimizer.summary(),
        source: optimizer.source(),
        moment_bytes: optimizer.moment_bytes().get(),
        extra_traffic_bytes: optimizer.extra_traffic().get(),
    })
}

#[derive(Serialize)]
struct OptimizerEntry {
    name: &'static str,
    summary: &'static str,
    source: &'static str,
    moment_bytes: f64,
    extra_traffic_bytes: f64,
}
