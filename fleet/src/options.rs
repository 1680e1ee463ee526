//! The ways in which a job can run: for each number of GPUs the planner's best plan, with its time.

use crate::instance::Choice;
use crate::part::part;
use trainwright_planner::{PlannerError, Question, Scope, Verdict, plan_within};
use trainwright_sim::likeness::kind;
use trainwright_spec::calibration::ranges::Distribution;
use trainwright_spec::calibration::residuals::Quantity;
use trainwright_spec::plan::Plan;
use trainwright_spec::units::Seconds;

/// Equally likely durations that a choice has.
const LIKELY: usize = 20;
/// The longest duration in seconds.
const MOST_SECONDS: f64 = 1e12;

/// The best plan for some GPUs.
#[derive(Debug, Clone, PartialEq)]
pub struct PlannedStep {
    /// The plan.
    pub plan: Plan,
    /// Its expected step time.
    pub step: Seconds,
    /// Measured over expected step times: equally likely values, ascending; empty if nothing is known.
    pub spread: Vec<f64>,
}

/// Numbers of GPUs that are tried on nodes of one kind: a part of a node whose size is a power of two or half of it, and nodes of
/// which the number is a power of two or three times one, or all.
pub fn gpu_counts(nodes: usize, per_node: usize) -> Vec<usize> {
    let within = (1..=per_node).filter(|gpus| gpus.is_power_of_two() && per_node.is_multiple_of(*gpus));
    let even =
        |count: &usize| count.is_power_of_two() || count.is_multiple_of(3) && (count / 3).is_power_of_two();
    let several = (1..=nodes).filter(move |count| even(count) || *count == nodes);
    let mut counts: Vec<usize> = within.chain(several.map(|count| count * per_node)).collect();
    counts.sort_unstable();
    counts.dedup();
    counts
}

/// The best plan of a question on `gpus` of the nodes of its cluster.
///
/// # Errors
/// Why there is none, in words.
pub fn best(question: &Question, gpus: usize) -> Result<PlannedStep, String> {
    let cluster = part(&question.cluster, gpus)
        .ok_or_else(|| format!("{gpus} GPUs of {} cannot be described alone", question.cluster.name))?;
    let question = Question { cluster, ..question.clone() };
    let found = match plan_within(&question, Scope::BEST, &|_| {}) {
        Ok(Verdict::Found(found)) => found,
        Ok(Verdict::Infeasible(why)) => {
            let least = why.broken.first();
            return Err(least.map_or("nothing fits".into(), |broken| {
                let (needs, has) = (broken.needs.as_gib(), broken.has.as_gib());
                format!("{} needs {needs:.1} of {has:.1} GiB with {}", broken.limit, broken.plans)
            }));
        }
        Ok(Verdict::OutOfTime(_)) => return Err("the time was too short".into()),
        Err(PlannerError::NoCandidate { reason }) => return Err(reason),
        Err(error) => return Err(error.to_string()),
    };
    let first = found.ranked.into_iter().next().expect("a found plan is ranked");
    let known = Distribution::of_kind(&question.risk.residuals, Quantity::Time, &kind(&first.plan));
    let spread = known.map_or(Vec::new(), |known| {
        let likely = (0..LIKELY).map(|index| (index as f64 + 0.5) / LIKELY as f64);
        likely.map(|fraction| known.quantile(fraction) / known.expected()).collect()
    });
    Ok(PlannedStep { plan: first.plan, step: first.expected, spread })
}

/// A choice for `steps` steps.
pub fn choice(kind: usize, gpus: usize, (step, steps): (Seconds, f64), price: Option<f64>) -> Choice {
    let seconds = (step.get() * steps).ceil().clamp(1.0, MOST_SECONDS);
    let cost = price.unwrap_or(0.0) * gpus as f64 * seconds / 3600.0;
    Choice { kind, gpus, duration: seconds as u64, cost, spread: Vec::new(), plan: String::new() }
}

/// A plan in a few words: `TP 4 PP 2 DP 8, zero1`.
pub fn words(plan: &Plan) -> String {
    let mesh = &plan.mesh;
    let axes = [
        ("TP", mesh.tensor),
        ("CP", mesh.context),
        ("PP", mesh.pipeline),
        ("DP", mesh.data),
        ("EP", mesh.expert),
    ];
    let used: Vec<String> =
        axes.iter().filter(|(_, size)| *size > 1).map(|(name, size)| format!("{name} {size}")).collect();
    let mesh = if used.is_empty() { "one GPU".into() } else { used.join(" ") };
    let sharding =
        if plan.data_sharding == "none" { String::new() } else { format!(", {}", plan.data_sharding) };
    let offload = if plan.offload.is_none() { String::new() } else { ", offload".into() };
    format!("{mesh}{sharding}{offload}")
}
