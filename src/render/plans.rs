//! The planner's answer: the best plans, their limits, and why others lost.

use super::forecast::{beside_steps, drawing, exposed, hfu, mfu, trust};
use super::stages::stages;
use super::table::Table;
use super::words::{
    choices, count, gib, grouped, heading, job_in_words, memory_of_gpus, pairs, percent, recompute_cell,
    without_column, wrap, yes_no,
};
use trainwright_planner::{
    Found, MemoryLimit, NodeCounts, Order, Question, Ranked, Search, Sensitivity, WithAllNodes,
};
use trainwright_sim::likeness::Confidence;
use trainwright_spec::mesh::Mesh;
use trainwright_spec::plan::Plan;

/// Everything that a person wants to know. `found` has at least one plan.
pub fn page(
    question: &Question,
    found: &Found,
    confidence: &[Confidence],
    sensitivity: &[Sensitivity],
    columns: usize,
) -> String {
    let Question { model, cluster, job, stack, .. } = question;
    let best = &found.ranked[0];
    let mut page = wrap(&job_in_words(model, cluster, job, &stack.name), 0);
    page.push_str(&heading("Best plan"));
    page.push_str(&pairs(figures(question, found, &confidence[0])));
    page.push_str(&heading(&format!(
        "Best plans (memory in GiB of {}; bubble and exposed communication in % of the step)",
        gib(best.forecast.gpu_memory)
    )));
    let ranked = numbered(&found.ranked);
    let (table, legend) = ranking(question, &ranked);
    page.push_str(&table.text());
    page.push_str(&wrap(&legend, 0));
    page.push_str(&tied(found));
    page.push_str(&heading("What limits them"));
    let limits: Vec<(String, String)> = found
        .ranked
        .iter()
        .enumerate()
        .map(|(index, ranked)| (format!("{}", index + 1), ranked.limited_by.clone()))
        .collect();
    page.push_str(&pairs(limits.iter().map(|(rank, limit)| (rank.as_str(), limit.clone()))));
    page.push_str(&heading(&format!(
        "Memory of the best plan's pipeline ranks, in GiB ({})",
        memory_of_gpus(&best.plan.cluster)
    )));
    page.push_str(&stages(&best.plan, &best.forecast));
    page.push_str(&heading("The best plan's pipeline"));
    page.push_str(&drawing(&best.outline, columns));
    if !found.alternatives.is_empty() {
        page.push_str(&heading("Why not something else"));
        let reasons = found.alternatives.iter();
        page.push_str(&pairs(reasons.map(|lost| (lost.choice.as_str(), lost.reason.clone()))));
    }
    if found.front.len() > 1 {
        page.push_str(&heading("Less memory for more time, among the simulated plans"));
        let points = found.front.iter().map(|point| {
            let headroom = format!("{}, {} GiB left: {}", point.step_time, gib(point.headroom), point.plan);
            (format!("{} GiB", gib(point.peak_memory)), headroom)
        });
        let points: Vec<(String, String)> = points.collect();
        page.push_str(&pairs(points.iter().map(|(memory, words)| (memory.as_str(), words.clone()))));
    }
    if !sensitivity.is_empty() {
        page.push_str(&heading("What would make another of the finalists the fastest"));
        let changes = sensitivity.iter().map(|change| match change.factor {
            Some(factor) => (change.quantity.as_str(), format!("{factor:.2} times: {}", change.then)),
            None => (change.quantity.as_str(), "nothing within 16 times".into()),
        });
        page.push_str(&pairs(changes));
    }
    page.push_str(&heading("Search"));
    page.push_str(&search(&found.search));
    page.push_str(&found.nodes.as_ref().map_or_else(String::new, numbers_of_nodes));
    page.push_str(&proof(best, found));
    page
}

/// How the search went, in a few sentences.
pub fn search(search: &Search) -> String {
    let unseen = match search.unseen {
        0 => String::new(),
        unseen => format!("; {} not looked at before the search ended", grouped(unseen as f64)),
    };
    wrap(
        &format!(
            "{} in {}: {} plans with all partitions and recompute choices. {} do not fit in memory ({} by weights, \
             gradients and optimizer alone), {} cannot be fast enough by their lower bound; {} split into stages (integer \
             program, pruned and checked by shortest paths), {} simulated{unseen}",
            count(search.candidates, "candidate"),
            count(search.layouts, "layout"),
            power_of_ten(search.plans_log10),
            grouped(search.out_of_memory as f64),
            grouped(search.state_out_of_memory as f64),
            grouped(search.bounded_out as f64),
            grouped(search.solved as f64),
            grouped(search.simulated as f64),
        ),
        0,
    )
}

/// What is proved of the best plan, and what is not.
fn proof(best: &Ranked, found: &Found) -> String {
    let search = &found.search;
    let all_seen = found.nodes.as_ref().is_none_or(|nodes| nodes.unseen + nodes.unpromising == 0);
    let space = if all_seen { "the space" } else { "the space with these numbers of nodes" };
    let (Some(bound), Some(gap)) = (search.bound, search.gap(best.expected)) else { return String::new() };
    let others = match search.unseen {
        0 => {
            "Every candidate that could be faster by its lower bound was simulated with the best stages of the integer \
             program; for the fastest, the simulator then tried stages that differ by a block or two."
        }
        _ => "The search ended before every candidate that could be faster was simulated.",
    };
    // Rounded up: the gap is no larger.
    let gap = percent((gap * 1000.0).ceil() / 1000.0);
    let proved = format!(
        "Optimality gap ≤ {gap} %, proved: no plan of {space} is expected to take less than {bound}, the first {}",
        best.expected
    );
    [proved, format!("Not proved: that nothing within this gap is faster. {others}")]
        .map(|line| wrap(&line, 0))
        .concat()
}

/// A number by its decimal logarithm: `360`, `4.1e73`.
fn power_of_ten(log10: f64) -> String {
    match log10 < 6.0 {
        true => grouped(libm::pow(10.0, log10).round()),
        false => format!("{:.1}e{:.0}", libm::pow(10.0, log10 - log10.floor()), log10.floor()),
    }
}

/// What the best plan is and brings: a name and its words each.
pub fn figures(question: &Question, found: &Found, confidence: &Confidence) -> Vec<(&'static str, String)> {
    let best = &found.ranked[0];
    let forecast = &best.forecast;
    let speed = format!(
        "{} a step, {} tokens/s ({} per GPU)",
        forecast.step_time,
        grouped(forecast.tokens_per_s),
        grouped(forecast.tokens_per_s_per_gpu),
    );
    let memory = format!("{} of {}", forecast.peak_memory, forecast.gpu_memory);
    let mut lines = vec![
        ("choices", choices(&best.plan)),
        ("nodes", found.nodes.as_ref().and_then(|nodes| unused_nodes(nodes, best)).unwrap_or_default()),
        ("speed", speed),
        beside_steps(&best.plan).unwrap_or_default(),
        ("MFU", mfu(forecast)),
        ("HFU", hfu(forecast)),
        ("memory", format!("{memory} on the fullest GPU{}", memory_limit(question, best))),
    ];
    lines.extend(trust(forecast, confidence));
    lines.retain(|(_, text)| !text.is_empty());
    lines
}

/// How many nodes the best plan uses, and what all of them would give; `None` if it uses all.
fn unused_nodes(nodes: &NodeCounts, best: &Ranked) -> Option<String> {
    let NodeCounts { given, used, with_all, .. } = nodes;
    let each = best.plan.cluster.node.gpus.value;
    let gpus = |nodes: usize| grouped((nodes * each) as f64);
    let all = match with_all {
        WithAllNodes::Best { step_time, expected } => {
            let slower = 100.0 * (*expected / best.expected - 1.0);
            format!("with all nodes the best plan takes {step_time}, {slower:+.1} % expected")
        }
        WithAllNodes::Impossible(reason) => format!("with all nodes: {reason}"),
    };
    let part = format!("{used} of {given} ({} of {} GPUs)", gpus(*used), gpus(*given));
    (used < given).then(|| format!("{part}; {all}"))
}

/// Which numbers of nodes were searched.
fn numbers_of_nodes(nodes: &NodeCounts) -> String {
    let searched = nodes.searched.iter().map(usize::to_string).collect::<Vec<_>>().join(", ");
    let mut words = format!("Numbers of nodes: {searched} searched");
    if nodes.too_slow > 0 {
        words.push_str(&format!("; {} cannot be faster, by a lower bound", count(nodes.too_slow, "other")));
    }
    if nodes.unpromising > 0 {
        words.push_str("; fewer were not searched, as the best plan is near its lower bound");
    }
    if nodes.unseen > 0 {
        words.push_str(&format!("; {} not looked at", count(nodes.unseen, "other")));
    }
    wrap(&words, 0)
}

/// How much of a GPU's memory plans may use, if not all.
fn memory_limit(question: &Question, best: &Ranked) -> String {
    match limit_in_words(question) {
        Some(limit) => format!("; {} GiB may be used, {limit}", gib(best.room())),
        None => String::new(),
    }
}

/// Why plans may not use all memory; `None` if they may.
pub fn limit_in_words(question: &Question) -> Option<String> {
    match question.risk.memory {
        MemoryLimit::Risk(_) if question.risk.residuals.is_empty() => None,
        MemoryLimit::Risk(risk) => Some(format!("to fit with {} % probability", rounded(1.0 - risk))),
        MemoryLimit::Reserve(reserve) => Some(format!("as {} GiB stay free", gib(reserve))),
    }
}

/// A probability in percent, with the digits that it was given with.
fn rounded(probability: f64) -> f64 {
    (1e6 * probability).round() / 1e4
}

/// Which of the first plans forecasts do not distinguish.
fn tied(found: &Found) -> String {
    match found.tied.min(found.ranked.len()) {
        0 | 1 => String::new(),
        tied => wrap(
            &format!(
                "Forecasts do not distinguish plans 1 to {tied}: their 80 % ranges have more than 90 % in common, or their \
                 expected times differ by less than 1 %. The first rests on most evidence, and among equals is the fastest."
            ),
            0,
        ),
    }
}

/// Plans with their places, from 1.
pub fn numbered(ranked: &[Ranked]) -> Vec<(usize, &Ranked)> {
    (1..).zip(ranked).collect()
}

/// In which choices without a column the plans differ: `1, 3 context by ring; 2 context by all-gather`. `None` if in none.
fn besides(ranked: &[(usize, &Ranked)]) -> Option<String> {
    let mut words: Vec<(Vec<usize>, Vec<String>)> = Vec::new();
    for (place, ranked) in ranked {
        let choices = without_column(&ranked.plan);
        match words.iter_mut().find(|(_, known)| *known == choices) {
            Some((places, _)) => places.push(*place),
            None => words.push((vec![*place], choices)),
        }
    }
    let of_all: Vec<String> = words.first()?.1.clone();
    let common = |choice: &String| words.iter().all(|(_, choices)| choices.contains(choice));
    let of_all: Vec<&String> = of_all.iter().filter(|choice| common(choice)).collect();
    let of_plans = words.iter().map(|(places, choices)| {
        let own: Vec<&str> =
            choices.iter().filter(|choice| !of_all.contains(choice)).map(String::as_str).collect();
        let own = if own.is_empty() { "none of these".into() } else { own.join(", ") };
        let places: Vec<String> = places.iter().map(usize::to_string).collect();
        format!("{} {own}", places.join(", "))
    });
    (words.len() > 1).then(|| of_plans.collect::<Vec<_>>().join("; "))
}

/// The best plans, and what the columns of their table mean.
pub fn ranking<'a>(
    question: &Question,
    ranked: &'a [(usize, &'a Ranked)],
) -> (Table<'a, (usize, &'a Ranked)>, String) {
    let sharding =
        |plan: &Plan| if plan.data_sharding == "none" { "-".into() } else { plan.data_sharding.clone() };
    let some = |degree: fn(&Mesh) -> usize| ranked.iter().any(|(_, ranked)| degree(&ranked.plan.mesh) > 1);
    let (context, experts) = (some(|mesh| mesh.context), some(|mesh| mesh.expert));
    let mut table = Table::of(ranked).right("#", |(place, _)| place);
    let mut legend = String::new();
    if ranked.iter().any(|(_, ranked)| ranked.plan.cluster.nodes < question.cluster.nodes) {
        table = table.right("nodes", |(_, ranked)| ranked.plan.cluster.nodes);
        legend.push_str("nodes: those that a plan uses; ");
    }
    table = table
        .right("TP", |(_, ranked)| ranked.plan.mesh.tensor)
        .right("PP", |(_, ranked)| ranked.plan.mesh.pipeline)
        .right("DP", |(_, ranked)| ranked.plan.mesh.data);
    legend.push_str("TP, PP, DP: ranks of the tensor, pipeline and data axis; ");
    if context {
        table = table.right("CP", |(_, ranked)| ranked.plan.mesh.context);
        legend.push_str("CP: ranks that share each sequence; ");
    }
    if experts {
        table = table.right("EP", |(_, ranked)| ranked.plan.mesh.expert);
        legend.push_str("EP: ranks that share the experts of a layer; ");
    }
    table = table
        .right("v", |(_, ranked)| ranked.plan.virtual_stages)
        .right("µb", |(_, ranked)| ranked.plan.micro_batch)
        .left("schedule", |(_, ranked)| &ranked.plan.schedule)
        .left("SP", |(_, ranked)| yes_no(ranked.plan.sequence_parallel))
        .left("shard", |(_, ranked)| sharding(&ranked.plan))
        .left("recompute", |(_, ranked)| recompute_cell(ranked.plan.stages.iter()))
        .right("step", |(_, ranked)| ranked.forecast.step_time);
    legend.push_str(
        "v: stages per pipeline rank; µb: sequences in a microbatch; SP: sequence parallel; shard: what data ranks split; ",
    );
    if !question.risk.residuals.is_empty() {
        let (heading, meaning) = match question.risk.order {
            Order::Expected => {
                ("expected".into(), "step time by the errors of measured runs of its kind".into())
            }
            Order::Quantile(fraction) => {
                let heading = format!("{} %", rounded(fraction));
                (
                    heading.clone(),
                    format!("time that {heading} of steps stay below, by the errors of its kind"),
                )
            }
        };
        let heading: &str = &heading;
        table = table.right(heading, |(_, ranked)| ranked.expected);
        let meaning: String = meaning;
        legend.push_str(&format!("{heading}: {meaning}; "));
    }
    legend.push_str(
        "MFU: % of the peak, only the attention scores counted that the mask lets through; sel: selective",
    );
    if let Some(besides) = besides(ranked) {
        legend.push_str(&format!(". Plans differ in what has no column, too: {besides}"));
    }
    // Further axes need the room.
    let memory = if context || experts { "mem" } else { "memory" };
    let communication = if context && experts { "comm" } else { "exposed" };
    table = table
        .right("MFU", |(_, ranked)| percent(ranked.forecast.mfu_causal_attention))
        .right(memory, |(_, ranked)| gib(ranked.forecast.peak_memory))
        .right("bubble", |(_, ranked)| percent(ranked.forecast.report.mean.bubble_share))
        .right(communication, |(_, ranked)| exposed(&ranked.forecast));
    (table, legend)
}
