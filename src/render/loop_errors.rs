//! Errors of loops with generation as a page: by phase, in the direction of scaling, and beside printed hand-overs.

use super::table::Table;
use super::words::heading;
use trainwright_evidence::loops::{LoopErrors, ScalingPair, SyncAnchor};

/// The page; empty if no row is a loop.
pub fn page(errors: &[LoopErrors], pairs: &[ScalingPair], anchors: &[SyncAnchor]) -> String {
    if errors.is_empty() {
        return String::new();
    }
    let mut page = heading("Loops, by phase");
    page += &Table::of(errors)
        .left("source", |group: &LoopErrors| group.source.clone())
        .left("figure", |group| group.figure)
        .right("rows", |group| group.rows.to_string())
        .right("median %", |group| format!("{:.1}", group.median_percent))
        .right("signed %", |group| format!("{:+.1}", group.signed_percent))
        .text();
    if !pairs.is_empty() {
        let right = pairs.iter().filter(|pair| pair.is_right()).count();
        page += &heading("Loops with more GPUs at the same batch");
        page += &Table::of(pairs)
            .left("fewer GPUs", |pair: &ScalingPair| pair.rows[0].clone())
            .left("more GPUs", |pair| pair.rows[1].clone())
            .right("measured", |pair| format!("{:.2}", pair.measured))
            .right("forecast", |pair| format!("{:.2}", pair.forecast))
            .text();
        page += &format!(
            "\nTime with more GPUs over that with fewer: {right} of {} directions are right.\n",
            pairs.len()
        );
    }
    page += &heading("Hand-overs of weights printed for 400 Gb/s");
    page += &Table::of(anchors)
        .left("model", |anchor: &SyncAnchor| anchor.model)
        .right("GB", |anchor| format!("{:.1}", anchor.gigabytes))
        .right("printed s", |anchor| {
            format!("{:.2} to {:.2}", anchor.printed[0].get(), anchor.printed[1].get())
        })
        .right("forecast s", |anchor| format!("{:.2}", anchor.forecast.get()))
        .left("within", |anchor| if anchor.is_within() { "yes" } else { "no" })
        .text();
    page
}
