//! Reads an exported file as its tool's importer does, and compares every choice that should be in it with the plan's.

use super::coverage::Coverage;
use super::fields::{Effect, FIELDS, effect};
use super::{ExportedFile, Exporter};
use crate::import::{Request, importer};
use trainwright_spec::plan::Plan;
use trainwright_spec::stack::Stack;

/// Axes that decide which ranks run at all.
const AXES: [&str; 5] = ["mesh.tensor", "mesh.pipeline", "mesh.data", "mesh.context", "mesh.expert"];

/// Refuses, in `coverage`, every choice that is not omitted and does not come back; those of speed alone are remarked.
pub fn check(plan: &Plan, exporter: &dyn Exporter, files: &[ExportedFile], coverage: &mut Coverage) {
    let Some(importer) = exporter.reader().and_then(|name| importer(name).ok()) else { return };
    let Some(main) = files.first() else { return };
    let omitted: Vec<&str> =
        coverage.omissions(plan).iter().flat_map(|omission| &omission.fields).map(|(key, _)| *key).collect();
    let omits: Vec<&str> = FIELDS.iter().map(|field| field.key).filter(|key| coverage.omits(key)).collect();
    let says = |group: &str| !omitted.iter().any(|key| key.starts_with(group));
    let request = Request {
        text: &main.text,
        origin: exporter.name(),
        cluster: plan.cluster.clone(),
        stack: Stack::from_name(importer.stack()).expect("an importer's stack is in the catalog"),
        model: (!says("model.")).then(|| plan.model.clone()),
        sequence: (!says("job.sequence")).then_some(plan.job.sequence),
        schedule: files.get(1).map(|file| file.text.clone()),
        settings: Vec::new(),
    };
    let read = match importer.draft(&request) {
        Ok(read) => read.plan,
        Err(error) => return coverage.refuse("cluster", format!("the file cannot be read back: {error}")),
    };
    for field in FIELDS.iter().filter(|field| !omits.contains(&field.key)) {
        let after = (field.value)(&read);
        if (field.value)(plan) != after {
            let after = after.unwrap_or("the usual".into());
            let shown: String = after.chars().take(60).collect();
            let why = format!("the file says {shown} when it is read back");
            match effect(field.key) == Effect::Training || AXES.contains(&field.key) {
                true => coverage.refuse(field.key, why),
                false => coverage.slow(field.key, why),
            }
        }
    }
}
