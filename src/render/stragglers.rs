//! A step with slow GPUs and jitter.

use super::json::print;
use super::table::Table;
use super::words;
use serde_json::json;
use trainwright_spec::plan::Plan;
use trainwright_spec::units::Seconds;
use trainwright_whatif::stragglers::{PairWaits, Stragglers};

/// The answer of `stragglers`.
pub struct Answer<'a> {
    /// The plan.
    pub plan: &'a Plan,
    /// Times of its steps.
    pub found: &'a Stragglers,
    /// The seed of the samples.
    pub seed: u64,
}

/// The printed quantiles.
const QUANTILES: [(&str, f64); 4] = [("P5", 0.05), ("P50", 0.5), ("P95", 0.95), ("P99", 0.99)];

/// Ranks and pairs listed.
const LISTED: usize = 8;

/// The page of `stragglers`.
pub fn page(answer: &Answer) -> String {
    let Answer { plan, found, seed } = answer;
    let longer = |step: Seconds| format!("{step}, {:+.1} %", 100.0 * (step / found.undisturbed - 1.0));
    let mut pairs = vec![("undisturbed", found.undisturbed.to_string()), ("mean", longer(found.mean()))];
    pairs.extend(QUANTILES.map(|(name, q)| (name, longer(found.quantile(q)))));
    pairs.push(("samples", format!("{}, seed {seed}", words::grouped(found.samples.len() as f64))));
    pairs.push(("calibration", words::calibration(plan.cluster.calibration.as_deref())));
    let title = format!("{} on {}: the step", plan.model.name, plan.cluster.name);
    let mut text = words::heading(&title) + &words::pairs(pairs);
    text +=
        &words::heading("For whom others wait, beyond what the schedule asks for, in the mean over steps");
    text += &ranks(found);
    text += &words::heading("Who waits longer for whom");
    text += &waiting(found, plan);
    if found.gpus_per_rank > 1 {
        text += &format!(
            "\nA rank here stands for the {} GPUs of its tensor group, which is as slow as the slowest of them.\n",
            found.gpus_per_rank
        );
    }
    text
}

fn ranks(found: &Stragglers) -> String {
    Table::of(&found.ranks[..found.ranks.len().min(LISTED)])
        .right("rank", |rank| rank.rank)
        .right("pipeline", |rank| rank.pipeline)
        .right("data", |rank| rank.data)
        .right("others wait for it", |rank| rank.waited_for)
        .right("undisturbed", |rank| rank.waited_for_undisturbed)
        .right("it waits", |rank| rank.waits)
        .text()
}

fn waiting(found: &Stragglers, plan: &Plan) -> String {
    let along = |pair: &PairWaits| {
        let [one, other] = [pair.waiting, pair.waited_for].map(|rank| plan.mesh.coordinates(rank));
        if one.pipeline == other.pipeline { "its stage" } else { "its pipeline" }
    };
    Table::of(&found.pairs[..found.pairs.len().min(LISTED)])
        .right("rank", |pair| pair.waiting)
        .right("waits for", |pair| pair.waited_for)
        .left("in", along)
        .right("for", |pair| pair.waits)
        .right("undisturbed", |pair| pair.undisturbed)
        .text()
}

/// The step time of every sample.
pub fn csv(found: &Stragglers) -> String {
    let rows = found.samples.iter().enumerate();
    let rows: String = rows.map(|(sample, step)| format!("{sample},{}\n", step.get())).collect();
    format!("sample,step_s\n{rows}")
}

/// The answer as JSON.
pub fn json(answer: &Answer) -> String {
    let found = answer.found;
    let quantiles: serde_json::Map<String, serde_json::Value> =
        QUANTILES.iter().map(|(name, q)| (name.to_lowercase() + "_s", json!(found.quantile(*q)))).collect();
    print(&json!({
        "mean_s": found.mean(),
        "quantiles": quantiles,
        "seed": answer.seed,
        "stragglers": found,
    }))
}
