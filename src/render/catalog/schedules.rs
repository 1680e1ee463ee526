//! Schedules: all of them as a table, one as TOML.

use super::print;
use crate::render::table::Column::Left;
use crate::render::table::wrapped_table;
use serde::Serialize;
use trainwright_spec::schedule::{PipelineShape, SCHEDULES, Schedule, text};

/// Every schedule.
pub fn list() -> String {
    let rows = SCHEDULES.iter();
    let rows =
        rows.map(|schedule| [schedule.name(), schedule.bubble(), schedule.summary(), schedule.source()]);
    let rows = rows.map(|row| row.map(str::to_string).into()).collect();
    let columns = [Left("schedule"), Left("bubble over work"), Left("summary"), Left("source")];
    wrapped_table(&columns, rows)
        + "p pipeline ranks, v stages on each, m microbatches; F, I, W: time of forward, gradient of the input, of the \
           weights\n"
}

/// A schedule with its actions on a small pipeline.
pub fn entry(schedule: &dyn Schedule) -> String {
    let shapes = [1, 2].map(|virtual_stages| PipelineShape { ranks: 4, virtual_stages, microbatches: 8 });
    let shape = shapes.into_iter().find(|shape| schedule.check(*shape).is_ok());
    let example = shape.map(|shape| Example {
        ranks: shape.ranks,
        virtual_stages: shape.virtual_stages,
        microbatches: shape.microbatches,
        bubble_over_work: schedule.bubble_over_work(shape),
        actions: text::lines(&schedule.lists(shape)),
    });
    print(&ScheduleEntry {
        name: schedule.name(),
        summary: schedule.summary(),
        bubble: schedule.bubble(),
        source: schedule.source(),
        example,
    })
}

#[derive(Serialize)]
struct ScheduleEntry<'a> {
    name: &'a str,
    summary: &'a str,
    bubble: &'a str,
    source: &'a str,
    example: Option<Example>,
}

#[derive(Serialize)]
struct Example {
    ranks: usize,
    virtual_stages: usize,
    microbatches: usize,
    bubble_over_work: f64,
    actions: Vec<String>,
}
