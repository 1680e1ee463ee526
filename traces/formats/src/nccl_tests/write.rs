//! Writing a forecast as a log, for tools that read those of nccl-tests.

use std::fmt::Write;
use trainwright_spec::collective::CollectiveKind;
use trainwright_spec::units::{Bytes, Seconds};

/// A forecast as a log.
#[derive(Debug, Clone, PartialEq)]
pub struct Forecast<'a> {
    /// Which collective.
    pub collective: CollectiveKind,
    /// Node and device of each rank.
    pub ranks: &'a [(usize, usize)],
    /// The name of the GPUs.
    pub gpu: &'a str,
    /// Sizes and times.
    pub times: &'a [(Bytes, Seconds)],
}

/// Bytes of an element: `float`, the default of nccl-tests.
const ELEMENT: f64 = 4.0;

/// Writes a log. Both halves have the same times: a forecast does not depend on the buffers.
pub fn write(forecast: &Forecast) -> String {
    let Forecast { collective, gpu, times, .. } = forecast;
    let ranks = forecast.ranks.len();
    let program = program(*collective);
    let size = |row: Option<&(Bytes, Seconds)>| row.map_or(0.0, |(bytes, _)| bytes.get());
    let mut log = format!(
        "# Forecast by trainwright, nothing was measured\n# Collective test starting: {program}\n# nThread 1 nGpus 1 \
         minBytes {:.0} maxBytes {:.0} step: 2(factor) warmup iters: 0 iters: 1 agg iters: 1 validation: 0 graph: 0\n\
         #\n# Using devices\n",
        size(times.first()),
        size(times.last()),
    );
    for (rank, (node, device)) in forecast.ranks.iter().enumerate() {
        let host = format!("node-{node}");
        let _ = writeln!(
            log,
            "#  Rank {rank:2} Group  0 Pid      0 on {host:>10} device {device:2} [0x00] {gpu}"
        );
    }
    log.push_str("#\n");
    let half = ["time", "algbw", "busbw", "#wrong"];
    let units = ["(us)", "(GB/s)", "(GB/s)", ""];
    heading(&mut log, ["", "", "", "", ""], [["", "out-of-place", "", ""], ["", "in-place", "", ""]]);
    heading(&mut log, ["size", "count", "type", "redop", "root"], [half, half]);
    heading(&mut log, ["(B)", "(elements)", "", "", ""], [units, units]);
    let mut sum = 0.0;
    for (bytes, time) in *times {
        let algorithm = (*bytes / *time).get() / 1e9;
        let bus = collective.bus_factor(ranks) * algorithm;
        sum += bus;
        let (parts, operation, root) = columns(*collective, ranks);
        let count = (bytes.get() / ELEMENT / parts).floor();
        let half = format!(
            "  {}  {}  {}     N/A",
            fitted(time.get() * 1e6, 7),
            fitted(algorithm, 6),
            fitted(bus, 6)
        );
        let _ = writeln!(
            log,
            "{:12.0}  {count:12.0}  {:>8}  {operation:>6}  {root:>6}{half}{half}",
            bytes.get(),
            "float"
        );
    }
    let _ = writeln!(
        log,
        "# Out of bounds values : 0 OK\n# Avg bus bandwidth    : {:.6}\n#\n# Collective test concluded: {program}",
        sum / times.len().max(1) as f64
    );
    log
}

fn heading(log: &mut String, first: [&str; 5], halves: [[&str; 4]; 2]) {
    let [size, count, kind, operation, root] = first;
    let _ = write!(log, "# {size:>10}  {count:>12}  {kind:>8}  {operation:>6}  {root:>6}");
    for [time, algorithm, bus, wrong] in halves {
        let _ = write!(log, "  {time:>7}  {algorithm:>6}  {bus:>6}  {wrong:>6}");
    }
    log.truncate(log.trim_end().len());
    log.push('\n');
}

/// The program that measures it.
fn program(collective: CollectiveKind) -> String {
    let name = match collective {
        CollectiveKind::AllToAll => "alltoall".into(),
        CollectiveKind::SendReceive => "sendrecv".into(),
        other => other.name().replace('-', "_"),
    };
    name + "_perf"
}

/// Parts into which the elements are divided for the column `count`, and the cells of `redop` and `root`.
fn columns(collective: CollectiveKind, ranks: usize) -> (f64, &'static str, &'static str) {
    match collective {
        CollectiveKind::AllReduce => (1.0, "sum", "-1"),
        CollectiveKind::ReduceScatter => (ranks as f64, "sum", "-1"),
        CollectiveKind::AllGather | CollectiveKind::AllToAll => (ranks as f64, "none", "-1"),
        CollectiveKind::Reduce => (1.0, "sum", "0"),
        CollectiveKind::Broadcast => (1.0, "none", "0"),
        CollectiveKind::SendReceive | CollectiveKind::Barrier => (1.0, "none", "-1"),
    }
}

/// A number in `width` characters, with at most two decimals.
fn fitted(value: f64, width: usize) -> String {
    let with = |decimals: usize| format!("{value:width$.decimals$}");
    let short = [2, 1, 0].into_iter().map(with).find(|text| text.len() <= width);
    short.unwrap_or_else(|| format!("{value:width$.1e}"))
}
