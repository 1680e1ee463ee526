//! The planner's answer: the best plans, what limits them and why others lost.

use super::forecast::{drawing, hfu, mfu};
use super::stages::stages;
use super::table::{Column, table};
use super::words::{
    choices, count, gib, grouped, heading, memory_of_gpus, pairs, percent, question as asked, recompute_cell,
    share, wrap,
};
use Column::{Left, Right};
use trainwright_planner::{Found, Question, Ranked, Search, Sensitivity};
use trainwright_timeline::timeline::Timeline;

/// Everything that a person wants to know; `timeline` is the best plan's. `found` has at least one plan.
pub fn page(
    question: &Question,
    found: &Found,
    sensitivity: &[Sensitivity],
    timeline: &Timeline,
    columns: usize,
) -> String {
    let Question { model, cluster, job, stack, .. } = question;
    let best = &found.ranked[0];
    let mut page = wrap(&asked(model, cluster, job, &stack.name), 0);
    page.push_str(&heading("Best plan"));
    page.push_str(&headline(best));
    page.push_str(&heading(&format!(
        "Best plans (memory in GiB of {}; bubble and exposed communication in % of the step)",
        gib(best.forecast.gpu_memory)
    )));
    page.push_str(&ranking(&found.ranked));
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
    page.push_str(&drawing(timeline, columns));
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
    page.push_str(&proof(best, &found.search));
    page
}

/// How the search went, in a few sentences.
pub fn search(search: &Search) -> String {
    let unseen = match search.unseen {
        0 => String::new(),
        unseen => format!("; {} not looked at before the time limit", grouped(unseen as f64)),
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

/// What is proved about the best plan.
fn proof(best: &Ranked, search: &Search) -> String {
    let time = best.forecast.step_time;
    let (Some(bound), Some(gap)) = (search.bound, search.gap(time)) else { return String::new() };
    let others = match search.unseen {
        0 => "Every candidate that could be faster by its lower bound was simulated with its best partition.",
        _ => "The time limit came before every candidate that could be faster was simulated.",
    };
    let gap = percent(gap);
    wrap(
        &format!(
            "{others} No plan of the space takes less than {bound}: the best is within {gap} % of that."
        ),
        0,
    )
}

/// A number by its decimal logarithm: `360`, `4.1e73`.
fn power_of_ten(log10: f64) -> String {
    match log10 < 6.0 {
        true => grouped(10f64.powf(log10).round()),
        false => format!("{:.1}e{:.0}", 10f64.powf(log10 - log10.floor()), log10.floor()),
    }
}

fn headline(best: &Ranked) -> String {
    let forecast = &best.forecast;
    let speed = format!(
        "{} a step, {} tokens/s ({} per GPU)",
        forecast.step_time,
        grouped(forecast.tokens_per_s),
        grouped(forecast.tokens_per_s_per_gpu),
    );
    let memory = format!("{} of {}", forecast.peak_memory, forecast.gpu_memory);
    pairs([
        ("choices", choices(&best.plan)),
        ("speed", speed),
        ("MFU", mfu(forecast)),
        ("HFU", hfu(forecast)),
        ("memory", format!("{memory} on the fullest GPU")),
    ])
}

fn ranking(ranked: &[Ranked]) -> String {
    let columns = [
        Right("#"),
        Right("TP"),
        Right("PP"),
        Right("DP"),
        Right("v"),
        Right("µb"),
        Left("schedule"),
        Left("SP"),
        Left("shard"),
        Left("recompute"),
        Right("step"),
        Right("MFU"),
        Right("causal"),
        Right("HFU"),
        Right("memory"),
        Right("bubble"),
        Right("exposed"),
    ];
    let rows = ranked.iter().enumerate().map(|(index, Ranked { plan, forecast, .. })| {
        let mean = &forecast.report.mean;
        vec![
            (index + 1).to_string(),
            plan.mesh.tensor.to_string(),
            plan.mesh.pipeline.to_string(),
            plan.mesh.data.to_string(),
            plan.virtual_stages.to_string(),
            plan.micro_batch.to_string(),
            plan.schedule.to_string(),
            if plan.sequence_parallel { "yes" } else { "no" }.into(),
            match plan.data_sharding.as_str() {
                "none" => "-".into(),
                scheme => scheme.into(),
            },
            recompute_cell(plan.stages.iter()),
            forecast.step_time.to_string(),
            percent(forecast.mfu_full_attention),
            percent(forecast.mfu_causal_attention),
            percent(forecast.hfu),
            gib(forecast.peak_memory),
            percent(mean.bubble_share),
            percent(share(mean.exposed, forecast.report.step_time)),
        ]
    });
    let legend = "TP, PP, DP: ranks of the tensor, pipeline and data axis; v: stages per pipeline rank; µb: sequences in a \
                  microbatch; SP: sequence parallel; shard: what data ranks split; MFU: % of the peak, all attention \
                  scores counted; causal: only those that the mask lets through; HFU: % of the peak executed, recomputation included; sel: selective";
    table(&columns, rows.collect()) + &wrap(legend, 0)
}
