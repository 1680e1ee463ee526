//! Reads an exported file as its tool's importer does, and compares every choice that should be in it with the plan's.

use super::coverage::Coverage;
use super::fields::FIELDS;
use super::{ExportedFile, Exporter};
use crate::import::{Request, importer};
use trainwright_spec::plan::Plan;
use trainwright_spec::stack::Stack;

/// Refuses, in `coverage`, every choice that is not omitted and does not come back.
pub fn check(plan: &Plan, exporter: &dyn Exporter, files: &[ExportedFile], coverage: &mut Coverage) {
    let Some(importer) = exporter.reader().and_then(|name| importer(name).ok()) else { return };
    let Some(main) = files.first() else { return };
    let omitted: Vec<&str> =
        coverage.omissions(plan).iter().flat_map(|omission| &omission.fields).map(|(key, _)| *key).collect();
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
    for field in FIELDS.iter().filter(|field| !omitted.contains(&field.key)) {
        let after = (field.value)(&read);
        if (field.value)(plan) != after {
            let after = after.unwrap_or("the usual".into());
            let shown: String = after.chars().take(60).collect();
            coverage.refuse(field.key, format!("the file says {shown} when it is read back"));
        }
    }
}
