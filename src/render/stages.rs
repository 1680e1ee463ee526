//! What each pipeline rank holds.

use super::table::{Column, merge_ranks, table};
use super::words::{gib, recompute_cell};
use Column::{Left, Right};
use trainwright_lower::memory::RankMemory;
use trainwright_sim::Forecast;
use trainwright_spec::plan::{Plan, StageBlocks};
use trainwright_spec::program::MemoryKind;
use trainwright_spec::units::Bytes;
use trainwright_timeline::report::RankReport;

/// The blocks of each pipeline rank and its memory in closed form, in GiB.
pub fn stages(plan: &Plan, forecast: &Forecast) -> String {
    let mut columns = vec![
        Right("rank"),
        Left("blocks"),
        Left("recompute"),
        Right("weights"),
        Right("gradients"),
        Right("optimizer"),
        Right("activations"),
        Right("temporary"),
        Right("overhead"),
        Right("total"),
        Right("free"),
    ];
    type Column = (&'static str, fn(&RankMemory) -> Bytes);
    let mut beside: Vec<Column> = vec![("host", |rank| rank.host), ("nvme", |rank| rank.nvme)];
    beside.retain(|(_, of)| forecast.memory.iter().any(|rank| of(rank) > Bytes::ZERO));
    columns.extend(beside.iter().map(|(name, _)| Right(name)));
    let rows = forecast.memory.iter().enumerate().map(|(rank, memory)| {
        let kinds = [
            memory.weights + memory.gathered,
            memory.gradients + memory.unreduced,
            memory.optimizer,
            memory.activations,
            memory.temporaries,
            memory.overhead,
            memory.total(),
            plan.node(rank).gpu.memory.value - memory.total(),
        ];
        let own = own_stages(plan, rank);
        let cells = [blocks(&own), recompute_cell(own.iter().copied())];
        let beside = beside.iter().map(|(_, of)| gib(of(memory)));
        (rank, cells.into_iter().chain(kinds.map(gib)).chain(beside).collect())
    });
    table(&columns, merge_ranks(rows))
}

/// Where closed form and simulation can differ: what each pipeline rank holds at its peak, in GiB.
pub fn simulated_memory(plan: &Plan, forecast: &Forecast) -> String {
    let columns = [
        Right("rank"),
        Right("weights"),
        Right("gradients"),
        Right("optimizer"),
        Right("activations"),
        Right("buffers"),
        Right("peak"),
        Right("closed form"),
        Right("free"),
        Left("at"),
    ];
    let rows = by_pipeline_rank(forecast).map(|report| {
        let held = |kind: MemoryKind| {
            let kinds = report.memory.kinds.iter();
            kinds.filter(|held| held.kind == kind).map(|held| held.at_peak).sum::<Bytes>()
        };
        let closed = forecast.memory.get(report.pipeline_rank).map(|memory| memory.total());
        let mut cells: Vec<String> = MemoryKind::ALL.map(|kind| gib(held(kind))).into();
        cells.push(gib(report.memory.peak));
        cells.push(closed.map_or_else(|| "-".into(), gib));
        cells.push(gib(plan.node(report.pipeline_rank).gpu.memory.value - report.memory.peak));
        cells.push(report.memory.peak_action.map_or_else(|| "-".into(), |action| action.to_string()));
        (report.pipeline_rank, cells)
    });
    table(&columns, merge_ranks(rows))
}

/// The simulated rank that stands for each pipeline rank, in their order.
pub fn by_pipeline_rank(forecast: &Forecast) -> impl Iterator<Item = &RankReport> {
    let ranks = || forecast.report.ranks.iter();
    let most = ranks().map(|report| report.pipeline_rank + 1).max().unwrap_or(0);
    (0..most).filter_map(move |rank| ranks().find(|report| report.pipeline_rank == rank))
}

/// The stages that a pipeline rank holds, those of both directions where there are two.
fn own_stages(plan: &Plan, rank: usize) -> Vec<&StageBlocks> {
    let (schedule, shape) = (plan.schedule(), plan.pipeline_shape());
    let copies = plan.stages.iter().cycle().take(schedule.copies() * plan.stages.len()).enumerate();
    copies.filter(|(stage, _)| schedule.rank_of(*stage, shape) == rank).map(|(_, own)| own).collect()
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
