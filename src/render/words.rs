//! Plans, jobs and quantities in words. Every page uses these, so that they all say it alike.

use super::table::Table;
use crate::output::{self, Tables};
use trainwright_lower::memory::NodeMemory;
use trainwright_sim::{Forecast, fullest};
use trainwright_spec::cluster::{Cluster, Node};
use trainwright_spec::job::Job;
use trainwright_spec::mesh::Mesh;
use trainwright_spec::model::Model;
use trainwright_spec::plan::{Plan, Recompute, StageBlocks};
use trainwright_spec::units::{Bytes, Picoseconds};

/// Columns of running text.
const TEXT_COLUMNS: usize = 120;

/// A title above a part of a page: bold on a terminal, unless `NO_COLOR` is set.
pub fn heading(text: &str) -> String {
    format!("\n{}\n", console::style(text).bold())
}

/// `tensor 8 × pipeline 4 × data 4`, with a context axis if there is one, and how experts are spread over these ranks:
/// `, expert 8`, `, expert 8 × expert tensor 1`
pub fn mesh(mesh: &Mesh) -> String {
    let Mesh { tensor, pipeline, data, context, expert, expert_tensor, .. } = *mesh;
    let context = if context > 1 { format!(" × context {context}") } else { String::new() };
    let expert_tensor = expert_tensor.filter(|ranks| *ranks != tensor);
    let experts = match (expert, expert_tensor) {
        (1, None) => String::new(),
        (_, None) => format!(", expert {expert}"),
        (_, Some(ranks)) => format!(", expert {expert} × expert tensor {ranks}"),
    };
    format!("tensor {tensor} × pipeline {pipeline}{context} × data {data}{experts}")
}

/// Model, cluster, batch, precision, optimizer and stack.
pub fn job_in_words(model: &Model, cluster: &Cluster, job: &Job, stack: &str) -> String {
    format!(
        "{} ({}{}) on {} ({}), {} sequences of {} tokens a step, {}, {}, {stack}",
        model.name,
        parameters(model),
        trained(model, job),
        place(cluster),
        count(cluster.gpus(), "GPU"),
        grouped(job.global_batch as f64),
        grouped(job.sequence as f64),
        job.precision,
        job.optimizer,
    )
}

/// `, frozen; 6.8M in adapters of rank 16 beside query, value`
fn trained(model: &Model, job: &Job) -> String {
    job.adapters.as_ref().map_or_else(String::new, |adapters| {
        format!(", frozen; {} in adapters of {adapters}", billions(adapters.parameters(model)))
    })
}

/// A cluster's name, and where its measured times are from.
fn place(cluster: &Cluster) -> String {
    let network = cluster.profile.as_ref().map(|profile| format!("the network times of {}", profile.source));
    let kernels = cluster.node.gpu.profile.as_ref();
    let kernels = kernels.map(|profile| format!("the kernel times of {}", profile.source));
    match [network, kernels]
        .into_iter()
        .flatten()
        .reduce(|network, kernels| format!("{network} and {kernels}"))
    {
        Some(times) => format!("{} with {times}", cluster.name),
        None => cluster.name.clone(),
    }
}

/// `70.6 billion parameters`, for experts also how many a token visits.
pub fn parameters(model: &Model) -> String {
    let (all, active) = (model.parameters(), model.active_parameters());
    match all == active {
        true => format!("{} parameters", billions(all)),
        false => format!("{} parameters, {} active", billions(all), billions(active)),
    }
}

/// `70.6B`, `124.4M`
pub fn billions(count: u64) -> String {
    let count = count as f64;
    match count {
        _ if count >= 1e12 => format!("{:.2}T", count / 1e12),
        _ if count >= 1e9 => format!("{:.1}B", count / 1e9),
        _ => format!("{:.1}M", count / 1e6),
    }
}

/// All choices of a plan but its stages.
pub fn choices(plan: &Plan) -> String {
    let mut parts = vec![mesh(&plan.mesh)];
    parts.push(match plan.virtual_stages {
        1 => plan.schedule.to_string(),
        stages => format!("{} with {stages} stages per rank", plan.schedule),
    });
    parts.push(format!(
        "{} of {}",
        count(plan.microbatches(), "microbatch"),
        count(plan.micro_batch, "sequence")
    ));
    if plan.sequence_parallel {
        parts.push("sequence parallel".into());
    }
    parts.extend(schemes(plan));
    if !plan.mesh.order.is_default() {
        parts.push(format!("ranks in order {}", plan.mesh.order.name()));
    }
    parts.push(format!("recompute {}", recompute(plan)));
    if !plan.offload.is_none() {
        parts.push(plan.offload.in_words());
    }
    parts.join(", ")
}

/// A plan's schemes, except for the default ones: `2.5d in 4 × 4 × 2`,
/// `context by hybrid over 2 × 8`, `experts by all-to-all`, `hsdp in groups of 8`.
fn schemes(plan: &Plan) -> Vec<String> {
    let Mesh { tensor, tensor_rows: rows, context, context_inner: inner, expert, shard, .. } = plan.mesh;
    let mut parts = Vec::new();
    if plan.tensor_scheme != "1d" {
        let depth = tensor / (rows * rows);
        let grid =
            if depth > 1 { format!("{rows} × {rows} × {depth}") } else { format!("{rows} × {rows}") };
        parts.push(format!("{} in {grid}", plan.tensor_scheme));
    }
    if context > 1 {
        let over = if inner > 1 { format!(" over {} × {inner}", context / inner) } else { String::new() };
        parts.push(format!("context by {}{over}", plan.context_scheme));
    }
    if expert > 1 {
        parts.push(format!("experts by {}", plan.experts.dispatcher));
    }
    if plan.data_sharding != "none" {
        let groups = shard.map_or_else(String::new, |ranks| format!(" in groups of {ranks}"));
        parts.push(format!("{}{groups}", plan.data_sharding));
    }
    parts
}

/// Choices of a plan that tables of plans have no column for: `context by ring`, `ranks in order tp-cp-pp-dp`, `fp8`.
pub fn without_column(plan: &Plan) -> Vec<String> {
    let mut parts: Vec<String> = schemes(plan);
    if plan.data_sharding != "none" && plan.mesh.shard.is_none() {
        // The last of the schemes, which is the column `shard`.
        parts.pop();
    }
    let Mesh { tensor, expert, expert_tensor, order, .. } = plan.mesh;
    if let Some(ranks) = expert_tensor.filter(|ranks| expert > 1 && *ranks != tensor) {
        parts.push(format!("expert tensor {ranks}"));
    }
    if !order.is_default() {
        parts.push(format!("ranks in order {}", order.name()));
    }
    if !plan.offload.is_none() {
        parts.push(plan.offload.in_words());
    }
    parts.push(plan.job.precision.to_string());
    parts
}

/// How many blocks of a plan recompute what: `none`, or `12 full 68 none`.
fn recompute(plan: &Plan) -> String {
    recompute_of(plan.stages.iter())
}

fn recompute_of<'a>(stages: impl Iterator<Item = &'a StageBlocks> + Clone) -> String {
    let mut chosen: Vec<Recompute> = stages.flat_map(|stage| stage.0.iter().copied()).collect();
    chosen.sort_unstable();
    let counts: Vec<(String, usize)> =
        chosen.chunk_by(|a, b| a == b).map(|equal| (equal[0].to_string(), equal.len())).collect();
    match counts.as_slice() {
        [] => "-".into(),
        [(name, _)] => name.clone(),
        several => {
            several.iter().map(|(name, count)| format!("{count} {name}")).collect::<Vec<_>>().join(" ")
        }
    }
}

/// `recompute_of` for the narrow columns of tables: `12 full 30 sel 38 none`, but `selective`.
pub fn recompute_cell<'a>(stages: impl Iterator<Item = &'a StageBlocks> + Clone) -> String {
    let text = recompute_of(stages);
    if text.contains(' ') { text.replace("selective", "sel") } else { text }
}

/// `each GPU has 79.6`, or what those of each kind have, in GiB.
pub fn memory_of_gpus(cluster: &Cluster) -> String {
    let kinds = || cluster.kinds().map(|(_, node)| node);
    let each = |node: &Node| format!("{:.1} on {}", node.gpu.memory.value.as_gib(), node.name);
    match cluster.is_mixed() {
        false => format!("each GPU has {:.1}", cluster.node.gpu.memory.value.as_gib()),
        true => format!("GPUs have {}", kinds().map(each).collect::<Vec<_>>().join(", ")),
    }
}

/// Whether a plan fits, and if not on which pipeline rank it lacks most.
pub fn fit(plan: &Plan, forecast: &Forecast) -> String {
    let rank = fullest(plan, &forecast.memory);
    let (gpu, peak, limit) = (&plan.node(rank).gpu.name, forecast.peak_memory, forecast.gpu_memory);
    let lacking = forecast.node_memory.and_then(|node| lacking(&node));
    match peak <= limit {
        true if lacking.is_some() => format!("does not fit: {}", lacking.unwrap_or_default()),
        true => format!("fits: pipeline rank {rank} holds {peak} of {limit}, {} are free", limit - peak),
        false => format!(
            "does not fit: pipeline rank {rank} needs {peak}, {gpu} has {limit}, {} are lacking",
            peak - limit
        ),
    }
}

/// The lack of host memory or drives for a node's offloaded state; `None` if it has enough.
fn lacking(node: &NodeMemory) -> Option<String> {
    let lacks = |what: &str, needs: Bytes, has: Bytes| {
        (needs > has).then(|| {
            format!("a node's ranks need {needs} of {what}, it has {has}, {} are lacking", needs - has)
        })
    };
    lacks("host memory", node.host, node.host_capacity)
        .or_else(|| lacks("its drives", node.nvme, node.nvme_capacity))
}

/// Offloaded state of the fullest node, and its capacity.
pub fn offloaded(node: &NodeMemory) -> String {
    let host = format!("{} of a node's {}", node.host, node.host_capacity);
    match node.nvme > Bytes::ZERO {
        true => format!("{host}, {} on drives of {}", node.nvme, node.nvme_capacity),
        false => host,
    }
}

/// `1,234,567`
pub fn grouped(value: f64) -> String {
    let digits = format!("{value:.0}");
    let mut text = String::new();
    for (index, digit) in digits.chars().enumerate() {
        if index > 0 && (digits.len() - index).is_multiple_of(3) {
            text.push(',');
        }
        text.push(digit);
    }
    text
}

/// `1 GPU`, `2 GPUs`, `3 microbatches`
pub fn count(number: usize, noun: &str) -> String {
    let plural = match number {
        1 => "",
        _ if noun.ends_with("ch") => "es",
        _ => "s",
    };
    format!("{} {noun}{plural}", grouped(number as f64))
}

/// The cell of a value that there is not.
pub fn dash() -> String {
    "-".into()
}

/// A truth in a table.
pub fn yes_no(is: bool) -> &'static str {
    if is { "yes" } else { "no" }
}

/// GiB with one decimal, for tables whose heading has the unit.
pub fn gib(bytes: Bytes) -> String {
    format!("{:.1}", bytes / Bytes::GIB)
}

/// Percent with one decimal, for tables whose heading has the unit.
pub fn percent(share: f64) -> String {
    format!("{:.1}", 100.0 * share)
}

/// The part of a step, 0 to 1.
pub fn share(part: Picoseconds, step: Picoseconds) -> f64 {
    if step == Picoseconds::ZERO { 0.0 } else { part.0 as f64 / step.0 as f64 }
}

/// Breaks running text between words; lines after the first are indented.
pub fn wrap(text: &str, indent: usize) -> String {
    let mut lines = String::new();
    let mut column = 0;
    for word in text.split(' ') {
        let width = word.chars().count();
        if column > indent && column + 1 + width > TEXT_COLUMNS {
            lines.push('\n');
            lines.push_str(&" ".repeat(indent));
            column = indent;
        } else if column > 0 {
            lines.push(' ');
            column += 1;
        }
        lines.push_str(word);
        column += width;
    }
    lines + "\n"
}

/// Lines of `label  text`, the labels as wide as the widest, long texts wrapped next to them.
pub fn pairs<'a>(pairs: impl IntoIterator<Item = (&'a str, String)>) -> String {
    let pairs: Vec<(&str, String)> = pairs.into_iter().collect();
    if output::tables_as() != Tables::Text {
        return Table::of(&pairs).left("what", |pair| pair.0).left("value", |pair| &pair.1).text();
    }
    let width = pairs.iter().map(|(label, _)| label.chars().count()).max().unwrap_or(0);
    pairs.iter().map(|(label, text)| wrap(&format!("{label:width$}  {text}"), width + 2)).collect()
}

/// The calibration of a forecast.
pub fn calibration(name: Option<&str>) -> String {
    match name {
        None | Some("none") => "none: every number as its source states it, a ceiling on speed".into(),
        Some(name) => format!("`{name}`"),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn numbers_are_grouped_and_counted() {
        let check = |value: f64, expected: &str| assert_eq!(grouped(value), expected);
        check(0.0, "0");
        check(999.4, "999");
        check(1000.0, "1,000");
        check(1234567.0, "1,234,567");
        assert_eq!(count(1, "microbatch"), "1 microbatch");
        assert_eq!(count(1536, "microbatch"), "1,536 microbatches");
        assert_eq!(billions(70_553_706_496), "70.6B");
        assert_eq!(billions(1_008_000_000_000), "1.01T");
    }

    #[test]
    fn unusual_axes_are_named() {
        let usual = Mesh::new(8, 4, 2);
        let check = |given: Mesh, expected: &str| assert_eq!(mesh(&given), expected);
        check(usual, "tensor 8 × pipeline 4 × data 2");
        check(Mesh { context: 16, ..usual }, "tensor 8 × pipeline 4 × context 16 × data 2");
        check(Mesh { expert: 8, ..usual }, "tensor 8 × pipeline 4 × data 2, expert 8");
        let apart = Mesh { expert: 16, expert_tensor: Some(1), ..usual };
        check(apart, "tensor 8 × pipeline 4 × data 2, expert 16 × expert tensor 1");
    }

    #[test]
    fn recompute_is_counted_unless_all_blocks_are_alike() {
        let check = |stages: &[&str], text: &str, cell: &str| {
            let stages: Vec<StageBlocks> = stages.iter().map(|stage| stage.parse().unwrap()).collect();
            assert_eq!(recompute_of(stages.iter()), text);
            assert_eq!(recompute_cell(stages.iter()), cell);
        };
        check(&["2 selective", "3 selective"], "selective", "selective");
        check(&["1 full, 2 none", "1 selective, 1 none"], "1 full 1 selective 3 none", "1 full 1 sel 3 none");
        check(&[""], "-", "-");
    }

    #[test]
    fn long_text_is_wrapped_next_to_its_label() {
        let text = "word ".repeat(30);
        let wrapped = pairs([("a", text.trim().to_string()), ("label", "short".into())]);
        let lines: Vec<&str> = wrapped.lines().collect();
        assert_eq!(lines.len(), 3);
        assert!(lines[0].starts_with("a      word word") && lines[0].len() <= TEXT_COLUMNS);
        assert!(lines[1].starts_with("       word"));
        assert_eq!(lines[2], "label  short");
    }
}
