//! The gain from a faster network, more memory or another GPU.

use super::point;
use crate::answer::Answer;
use crate::input;
use crate::scenario::Scenario;
use crate::sweep::{Watch, answers};
use trainwright_spec::catalog;
use trainwright_spec::cluster::{Cluster, Gpu};
use trainwright_spec::toml_text::TomlText;

/// One thing at a time that could be better, as it stands after `--vary`.
const BETTER: [(&str, &str); 7] = [
    ("nic-bandwidth", "x2"),
    ("nic-latency", "x0.5"),
    ("interconnect-bandwidth", "x2"),
    ("memory", "x2"),
    ("memory-bandwidth", "x2"),
    ("peak", "x2"),
    ("oversubscription", "1"),
];

/// The most other GPUs that are tried.
const MOST_GPUS: usize = 4;

/// The scenario as it is, with each part of its hardware better alone, and with the catalog's next GPUs in its nodes: those
/// that are at least as good in peak, memory and bandwidth, the closest first. A point's value says what is better.
pub fn upgrades(base: &Scenario, watch: Watch) -> Vec<Answer> {
    let mut points = vec![(vec!["as it is".to_string()], Ok(base.clone()))];
    let gpus = next_gpus(base).into_iter().map(|name| ("gpu", name));
    let better = BETTER.map(|(name, value)| (name, value.to_string())).into_iter().chain(gpus);
    for (name, value) in better {
        let mut changed = base.clone();
        // A component that the cluster lacks cannot improve, and an unchanged one is no upgrade.
        if input::set(&mut changed, name, &value).is_ok() && !alike(changed.cluster(), base.cluster()) {
            let (_, scenario) = point(base, &[(name, value.clone())]);
            points.push((vec![format!("{name} {value}")], scenario));
        }
    }
    answers(points, watch)
}

/// Whether clusters are equal except for their sources.
fn alike(a: &Cluster, b: &Cluster) -> bool {
    let tapers = |cluster: &Cluster| -> Vec<f64> {
        cluster.fabric.tapers().iter().map(|taper| taper.oversubscription.value).collect()
    };
    a.node == b.node && tapers(a) == tapers(b)
}

fn next_gpus(base: &Scenario) -> Vec<String> {
    let precision = base.job().precision;
    let today = &base.cluster().node.gpu;
    let measures = |gpu: &Gpu| {
        let peak = gpu.peak.get(&precision)?.value.get();
        Some([peak, gpu.memory.value.get(), gpu.memory_bandwidth.value.get()])
    };
    let Some(mine) = measures(today) else { return Vec::new() };
    let mut better: Vec<(f64, String)> = catalog::names("gpus")
        .into_iter()
        .filter_map(|name| Gpu::read(catalog::text("gpu", name).ok()?).ok())
        .filter(|gpu| gpu.library == today.library && gpu.name != today.name)
        .filter_map(|gpu| {
            let ratios: Vec<f64> =
                measures(&gpu)?.iter().zip(mine).map(|(other, mine)| other / mine).collect();
            let is_better =
                ratios.iter().all(|ratio| *ratio >= 1.0) && ratios.iter().any(|ratio| *ratio > 1.0);
            is_better.then(|| (ratios.iter().product(), gpu.name))
        })
        .collect();
    better.sort_by(|a, b| a.0.total_cmp(&b.0).then_with(|| a.1.cmp(&b.1)));
    better.into_iter().take(MOST_GPUS).map(|(_, name)| name).collect()
}
