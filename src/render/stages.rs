//! Memory of each pipeline rank.

use super::table::Table;
use super::words::{dash, gib, recompute_cell};
use trainwright_lower::memory::RankMemory;
use trainwright_sim::Forecast;
use trainwright_spec::plan::{Plan, StageBlocks};
use trainwright_spec::program::MemoryKind;
use trainwright_spec::units::Bytes;
use trainwright_timeline::report::RankReport;

/// The blocks of each pipeline rank and its memory in closed form, in GiB.
pub fn stages(plan: &Plan, forecast: &Forecast) -> String {
    let ranks: Vec<(usize, Vec<&StageBlocks>, &RankMemory)> = forecast
        .memory
        .iter()
        .enumerate()
        .map(|(rank, memory)| (rank, stages_on(plan, rank), memory))
        .collect();
    let mut table = Table::of(&ranks)
        .left("blocks", |(_, stages, _)| blocks(stages))
        .left("recompute", |(_, stages, _)| recompute_cell(stages.iter().copied()))
        .right("weights", |(.., memory)| gib(memory.weights + memory.gathered))
        .right("gradients", |(.., memory)| gib(memory.gradients + memory.unreduced))
        .right("optimizer", |(.., memory)| gib(memory.optimizer))
        .right("activations", |(.., memory)| gib(memory.activations))
        .right("temporary", |(.., memory)| gib(memory.temporaries))
        .right("overhead", |(.., memory)| gib(memory.overhead))
        .right("total", |(.., memory)| gib(memory.total()))
        .right("free", |(rank, _, memory)| gib(plan.node(*rank).gpu.memory.value - memory.total()));
    type Offloaded = (&'static str, fn(&RankMemory) -> Bytes);
    let offloaded: [Offloaded; 2] = [("host", |rank| rank.host), ("nvme", |rank| rank.nvme)];
    for (name, bytes) in offloaded {
        if forecast.memory.iter().any(|rank| bytes(rank) > Bytes::ZERO) {
            table = table.right(name, |(.., memory)| gib(bytes(memory)));
        }
    }
    table.text_by_rank(|(rank, ..)| *rank)
}

/// Memory of each pipeline rank at its simulated peak, in GiB, where it can differ from the closed form.
pub fn simulated_memory(plan: &Plan, forecast: &Forecast) -> String {
    let reports: Vec<&RankReport> = by_pipeline_rank(forecast).collect();
    let held = |report: &RankReport, kind: MemoryKind| {
        let kinds = report.memory.kinds.iter();
        kinds.filter(|held| held.kind == kind).map(|held| held.at_peak).sum::<Bytes>()
    };
    let mut table = Table::of(&reports);
    for (kind, name) in
        MemoryKind::ALL.into_iter().zip(["weights", "gradients", "optimizer", "activations", "buffers"])
    {
        table = table.right(name, |report| gib(held(report, kind)));
    }
    table
        .right("peak", |report| gib(report.memory.peak))
        .right("closed form", |report| {
            let closed = forecast.memory.get(report.pipeline_rank);
            closed.map_or_else(dash, |memory| gib(memory.total()))
        })
        .right("free", |report| gib(plan.node(report.pipeline_rank).gpu.memory.value - report.memory.peak))
        .left("at", |report| report.memory.peak_action.map_or_else(dash, |action| action.to_string()))
        .text_by_rank(|report| report.pipeline_rank)
}

/// The simulated rank that stands for each pipeline rank, in their order.
pub fn by_pipeline_rank(forecast: &Forecast) -> impl Iterator<Item = &RankReport> {
    let ranks = || forecast.report.ranks.iter();
    let most = ranks().map(|report| report.pipeline_rank + 1).max().unwrap_or(0);
    (0..most).filter_map(move |rank| ranks().find(|report| report.pipeline_rank == rank))
}

/// The stages that a pipeline rank holds, those of both directions where there are two.
fn stages_on(plan: &Plan, rank: usize) -> Vec<&StageBlocks> {
    let (schedule, shape) = (plan.schedule(), plan.pipeline_shape());
    let copies = plan.stages.iter().cycle().take(schedule.copies() * plan.stages.len()).enumerate();
    copies.filter(|(stage, _)| schedule.rank_of(*stage, shape) == rank).map(|(_, blocks)| blocks).collect()
}

/// How many blocks the stages have: `20`, or `4×5` for four stages of five, or `3×5+4`.
fn blocks(stages: &[&StageBlocks]) -> String {
    let counts: Vec<usize> = stages.iter().map(|stage| stage.0.len()).collect();
    let runs = counts.chunk_by(|a, b| a == b).map(|run| match run.len() {
        1 => run[0].to_string(),
        length => format!("{length}×{}", run[0]),
    });
    runs.collect::<Vec<_>>().join("+")
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn blocks_are_printed_as_runs() {
        let check = |counts: &[&str], expected: &str| {
            let stages: Vec<StageBlocks> = counts.iter().map(|text| text.parse().unwrap()).collect();
            assert_eq!(blocks(&stages.iter().collect::<Vec<_>>()), expected);
        };
        check(&["20 none"], "20");
        check(&["5 none", "2 full, 3 none", "5 full", "5 none"], "4×5");
        check(&["5", "5", "5", "4"], "3×5+4");
        check(&["4", "5", "5"], "4+2×5");
    }
}
