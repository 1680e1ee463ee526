//! What would change the answer: the bandwidth or memory at which another of the finalists is the fastest.
//!
//! It compares plans that the search has found, and does not search again: a plan that nobody looked at because its bound is
//! too high on this machine may be better still on another one.

use crate::verdict::{Finalist, Found, PlannerError, Sensitivity};
use rayon::prelude::*;
use trainwright_lower::memory::plan_memory;
use trainwright_sim::costs::ClusterCosts;
use trainwright_sim::{fullest, step_time_for_ranking};
use trainwright_spec::cluster::Cluster;
use trainwright_spec::units::Picoseconds;

/// Doublings and halvings of a quantity that are looked at.
const DOUBLINGS: i32 = 4;

/// Halvings of the interval, of its logarithm, in which the answer changes.
const BISECTIONS: usize = 5;

/// A change of a cluster by a factor.
type Scale = fn(&mut Cluster, f64);

/// What is changed.
const QUANTITIES: [(&str, Scale); 4] = [
    ("bandwidth inside a node", |cluster, factor| {
        for node in cluster.each_kind_mut() {
            node.interconnect.bandwidth.value = node.interconnect.bandwidth.value * factor;
        }
    }),
    ("bandwidth between nodes", |cluster, factor| {
        for nics in cluster.each_kind_mut().filter_map(|node| node.nics.as_mut()) {
            nics.bandwidth.value = nics.bandwidth.value * factor;
        }
    }),
    ("bandwidth of a GPU's memory", |cluster, factor| {
        for node in cluster.each_kind_mut() {
            node.gpu.memory_bandwidth.value = node.gpu.memory_bandwidth.value * factor;
        }
    }),
    ("memory of a GPU", |cluster, factor| {
        for node in cluster.each_kind_mut() {
            node.gpu.memory.value = node.gpu.memory.value * factor;
        }
    }),
];

/// For each quantity and direction, the change nearest to now after which another finalist is the fastest that fits.
///
/// # Errors
/// `Deadlock` if a plan's passes wait for each other.
pub fn sensitivity(found: &Found) -> Result<Vec<Sensitivity>, PlannerError> {
    let directions = QUANTITIES.iter().flat_map(|quantity| [1, -1].map(|sign| (quantity, sign)));
    let directions: Vec<_> = directions.collect();
    let one = |((name, scale), sign): &(&(&str, Scale), i32)| {
        let fastest =
            |exponent: f64| fastest(&found.finalists, *scale, libm::pow(2.0, exponent * f64::from(*sign)));
        let now = fastest(0.0)?;
        let toward = if *sign > 0 { "more" } else { "less" };
        let quantity = format!("{toward} {name}");
        let mut changed = None;
        for exponent in 1..=DOUBLINGS {
            if fastest(f64::from(exponent))? != now {
                changed = Some(f64::from(exponent));
                break;
            }
        }
        let Some(changed) = changed else {
            let then = now.map_or("no plan fits".into(), |now| found.finalists[now].words.clone());
            return Ok(Sensitivity { quantity, factor: None, then });
        };
        let (mut low, mut high) = (changed - 1.0, changed);
        for _ in 0..BISECTIONS {
            let middle = (low + high) / 2.0;
            match fastest(middle)? == now {
                true => low = middle,
                false => high = middle,
            }
        }
        let then = fastest(high)?
            .map_or("none of the finalists fits".into(), |then| found.finalists[then].words.clone());
        Ok(Sensitivity { quantity, factor: Some(libm::pow(2.0, high * f64::from(*sign))), then })
    };
    directions.par_iter().map(one).collect()
}

/// The fastest of the finalists that fit on a changed machine.
fn fastest(finalists: &[Finalist], scale: Scale, factor: f64) -> Result<Option<usize>, PlannerError> {
    let mut best: Option<(Picoseconds, usize)> = None;
    for (index, finalist) in finalists.iter().enumerate() {
        let mut plan = finalist.plan.clone();
        scale(&mut plan.cluster, factor);
        let memory = plan_memory(&plan);
        let full = fullest(&plan, &memory);
        if memory[full].total() > finalist.outlook.room(plan.node(full).gpu.memory.value) {
            continue;
        }
        let time = step_time_for_ranking(&plan, &ClusterCosts::new(&plan.cluster))?;
        let time = finalist.outlook.expected_exactly(time);
        if best.is_none_or(|(least, _)| time < least) {
            best = Some((time, index));
        }
    }
    Ok(best.map(|(_, index)| index))
}
