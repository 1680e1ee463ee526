//! Collectives by size, as nccl-tests prints them, with measurements.

use super::table::Table;
use super::words::{count, dash, grouped, wrap};
use crate::inputs::network::{Measured, Sweep};
use std::fmt::Write;
use trainwright_sim::network::Choice;
use trainwright_spec::cluster::Cluster;
use trainwright_spec::units::{Bytes, BytesPerSecond, Seconds};

/// A sweep with its forecast.
pub struct SweepTable<'a> {
    /// The hardware.
    pub cluster: &'a Cluster,
    /// The question, and the measurements.
    pub sweep: &'a Sweep,
    /// Each size.
    pub rows: Vec<Row>,
    /// `None` for NCCL's choice.
    pub by_steps: Option<BySteps>,
}

/// A simulation step by step.
pub struct BySteps {
    /// How many groups work at once.
    pub groups: usize,
    /// Whether the algorithm needs switches of the fabric that add.
    pub fabric_adds: bool,
}

/// One size.
pub struct Row {
    /// The size.
    pub bytes: Bytes,
    /// The forecast.
    pub time: Seconds,
    /// The algorithm in the forecast.
    pub how: How,
    /// The measurement of this size.
    pub compared: Option<Comparison>,
}

/// A measured time and its forecast.
pub struct Comparison {
    /// The median of the measurements.
    pub measured: Seconds,
    /// The forecast with the stated version of NCCL, plus the overhead of the measuring method.
    pub forecast: Seconds,
}

/// Algorithm of a collective in the forecast.
pub enum How {
    /// As when it was measured for the profile.
    Profile,
    /// As NCCL does it.
    Nccl(Choice),
    /// By a list of steps.
    Steps {
        /// Its name.
        algorithm: &'static str,
        /// Chunks of the pipelined tensor.
        chunks: usize,
    },
}

impl How {
    /// NCCL's choice.
    pub fn choice(&self) -> Option<&Choice> {
        match self {
            How::Nccl(choice) => Some(choice),
            _ => None,
        }
    }

    /// The algorithm, where it is known.
    pub fn algorithm(&self) -> Option<&'static str> {
        match self {
            How::Profile => None,
            How::Nccl(choice) => Some(choice.algorithm),
            How::Steps { algorithm, .. } => Some(algorithm),
        }
    }
}

impl Row {
    /// Size over time.
    pub fn algorithm_bandwidth(&self) -> BytesPerSecond {
        self.bytes / self.time
    }

    /// The median of the measurements.
    pub fn measured(&self) -> Option<Seconds> {
        self.compared.as_ref().map(|compared| compared.measured)
    }

    /// The forecast of the measurement over the measurement, less one.
    pub fn error(&self) -> Option<f64> {
        self.compared.as_ref().map(|compared| compared.forecast / compared.measured - 1.0)
    }
}

impl SweepTable<'_> {
    /// `all-reduce over 16 GPUs on 2 nodes of dgx-a100:2`
    pub fn title(&self) -> String {
        let group = group(self.sweep, self.nodes());
        let title = format!("{} over {group} of {}", self.sweep.collective, self.cluster.name);
        match &self.by_steps {
            Some(BySteps { groups: 2.., .. }) => format!("{title}, {} groups side by side", self.groups()),
            _ => title,
        }
    }

    /// Nodes that the group is on.
    pub fn nodes(&self) -> usize {
        nodes(self.sweep, self.cluster)
    }

    /// Groups that work at once, as far as they are simulated.
    pub fn groups(&self) -> usize {
        self.by_steps.as_ref().map_or(1, |by_steps| by_steps.groups)
    }

    /// Bus bandwidth over algorithm bandwidth.
    pub fn bus_factor(&self) -> f64 {
        self.sweep.collective.bus_factor(self.sweep.ranks.len())
    }

    /// Whether the forecast shares the NICs with siblings of the group.
    fn has_siblings(&self) -> bool {
        self.nodes() > 1 && self.sweep.ranks.len() < self.nodes() * self.cluster.node.gpus.value
    }
}

/// Nodes that a group is on.
pub fn nodes(sweep: &Sweep, cluster: &Cluster) -> usize {
    let gpus = cluster.node.gpus.value;
    sweep.ranks.chunk_by(|a, b| a / gpus == b / gpus).count()
}

/// `16 GPUs on 2 nodes`
pub fn group(sweep: &Sweep, nodes: usize) -> String {
    format!("{} on {}", count(sweep.ranks.len(), "GPU"), count(nodes, "node"))
}

/// Every table, with how to read it.
pub fn page(tables: &[SweepTable]) -> String {
    let texts: Vec<String> = tables.iter().map(one).collect();
    texts.join("\n")
}

/// How to use a written profile.
pub fn next_step(path: &str) -> String {
    format!("\nThe times are in {path}; `plan`, `simulate` and `network` use them with `--profile {path}`.\n")
}

fn one(table: &SweepTable) -> String {
    let choice = |row: &Row, cell: fn(&Choice) -> String| row.how.choice().map_or_else(dash, cell);
    let mut columns = Table::of(&table.rows)
        .right("size (B)", |row| grouped(row.bytes.get()))
        .right("time (µs)", |row| microseconds(row.time))
        .right("algbw (GB/s)", |row| gigabytes(row.algorithm_bandwidth()))
        .right("busbw (GB/s)", |row| gigabytes(row.algorithm_bandwidth() * table.bus_factor()))
        .left("algorithm", |row| row.how.algorithm().unwrap_or("profile"))
        .left("protocol", |row| choice(row, |choice| choice.protocol.to_string()))
        .right("channels", |row| choice(row, |choice| choice.channels.to_string()));
    if table.rows.iter().any(|row| row.compared.is_some()) {
        columns = columns
            .right("measured (µs)", |row| row.measured().map_or_else(dash, microseconds))
            .right("error (%)", |row| row.error().map_or_else(dash, signed_percent));
    }
    let mut page = table.title() + "\n\n" + &columns.text();
    page.push_str(&wrap(
        &format!(
            "algbw: size / time; busbw: algbw × {}, what each GPU's link carries",
            factor(table.bus_factor())
        ),
        0,
    ));
    page.push_str(&wrap(&format!("forecast: {}", made(table)), 0));
    sources(table, &mut page);
    page
}

/// How the forecast is made.
fn made(table: &SweepTable) -> String {
    if let Some(BySteps { groups, fabric_adds }) = table.by_steps {
        let others = match groups {
            1 if table.nodes() > 1 => "; nothing else uses them",
            1 => "",
            _ => ", which all groups share",
        };
        let chunks = table.rows.iter().filter_map(|row| match row.how {
            How::Steps { chunks, .. } => Some(chunks),
            _ => None,
        });
        let chunks = match chunks.max() {
            Some(most @ 2..) => format!("; pipelined in up to {most} chunks"),
            _ => String::new(),
        };
        let adds = if fabric_adds { "; as if the fabric's switches could add" } else { "" };
        return format!("step by step over the cluster's links{others}{chunks}{adds}");
    }
    let profile = table.rows.iter().any(|row| matches!(row.how, How::Profile));
    let chosen = match &table.cluster.profile {
        Some(of) if profile => format!("the times of {}, measured on {}", of.source, of.cluster),
        Some(_) => format!("{}; no time of the profile counts here", as_nccl(table.cluster)),
        None => as_nccl(table.cluster),
    };
    let siblings = if table.has_siblings() {
        ", while the other GPUs of these nodes do the same and share the NICs"
    } else {
        ""
    };
    chosen + siblings
}

/// By whose choice; that of another library is not known.
fn as_nccl(cluster: &Cluster) -> String {
    let (nccl, gpu) = (cluster.nccl, &cluster.node.gpu);
    match &gpu.library {
        None => format!("as NCCL {nccl} does it"),
        Some(library) => format!("as NCCL {nccl} would do it; {} has {library} instead", gpu.name),
    }
}

fn sources(table: &SweepTable, page: &mut String) {
    for measured in &table.sweep.measured {
        let mut text = format!("measured: {}", measured.name);
        let more = [&measured.gpu, &measured.software, &measured.date];
        for word in more.into_iter().flatten() {
            let _ = write!(text, ", {word}");
        }
        if measured.source != measured.name {
            let _ = write!(text, " ({})", measured.source);
        }
        let counted = counted(measured, table);
        if !counted.is_empty() {
            let _ = write!(text, "; held against the forecast {}", counted.join(", "));
        }
        if table.rows.iter().all(|row| measured.time(row.bytes).is_none()) {
            let sizes = measured.times.iter().map(|(bytes, _)| grouped(bytes.get()));
            let ends = [sizes.clone().next(), sizes.skip(1).last()];
            let ends: Vec<String> = ends.into_iter().flatten().collect();
            let _ = write!(text, "; of none of these sizes, but of {} B", ends.join(" to "));
        }
        page.push_str(&wrap(&text, 2));
        if measured.alone {
            let text = "The measured group had the NICs of its nodes for itself. In training it has not, so that the simulator \
                        does not take these times from a profile.";
            page.push_str(&wrap(text, 0));
        }
    }
    if table.sweep.measured.len() > 1 && table.rows.iter().any(|row| row.compared.is_some()) {
        page.push_str("The table has the median of each size.\n");
    }
}

/// Parts of a measurement's forecast that the table's forecast lacks.
fn counted(measured: &Measured, table: &SweepTable) -> Vec<String> {
    let mut counted = Vec::new();
    let by_nccl = table.rows.iter().any(|row| row.how.choice().is_some());
    if let Some(nccl) = measured.nccl.filter(|_| by_nccl) {
        counted.push(format!("as NCCL {nccl} does it"));
    }
    let method = &measured.method;
    if method.host > Seconds::ZERO {
        counted.push(format!("with {} of the host in each call", method.host));
    }
    let launch = method.launch_of(table.sweep.collective);
    if launch > Seconds::ZERO {
        counted.push(format!("with launches on one GPU after the other, {launch} each"));
    }
    if method.copies_of(table.sweep.collective) > 0.0 {
        counted.push("with copies between the tensor and a list of its parts".into());
    }
    counted
}

fn microseconds(time: Seconds) -> String {
    decimals(time.get() * 1e6, 2)
}

fn gigabytes(bandwidth: BytesPerSecond) -> String {
    decimals(bandwidth.get() / 1e9, 2)
}

/// Percent with a sign and one decimal; zero after rounding is `+0.0`.
fn signed_percent(part: f64) -> String {
    let tenths = (1000.0 * part).round();
    format!("{:+.1}", if tenths == 0.0 { 0.0 } else { tenths / 10.0 })
}

/// With as many decimals as say something: `1.875`, `1`.
fn factor(factor: f64) -> String {
    format!("{factor:.4}").trim_end_matches('0').trim_end_matches('.').into()
}

/// Fewer decimals for large numbers: five digits say enough.
fn decimals(value: f64, most: usize) -> String {
    let digits = libm::log10(value.abs().max(1.0)).floor() as usize + 1;
    let decimals = most.min(5usize.saturating_sub(digits));
    format!("{value:.decimals$}")
}
