//! Files of other tools that become plans.

use super::{JSON, TEXT, Target, file, of_text};
use crate::files;
use crate::mutate::{Damage, bytes, text, tree};
use std::sync::LazyLock;
use trainwright_formats::export::{EXPORTERS, export};
use trainwright_formats::import::{IMPORTERS, Importer, Request};
use trainwright_lower::lower;
use trainwright_spec::cluster::Cluster;
use trainwright_spec::model::preset::preset;
use trainwright_spec::stack::Stack;

/// torchtitan's files are TOML or Python.
const BOTH: &[Damage] = &[tree::toml, text::text, text::text, bytes::bytes];

/// Targets of every importer.
pub fn targets() -> Vec<Target> {
    IMPORTERS.iter().map(|importer| target(*importer)).collect()
}

fn target(importer: &'static dyn Importer) -> Target {
    let tool = importer.name();
    let damages: &'static [Damage] = match tool {
        "deepspeed" => JSON,
        "torchtitan" => BOTH,
        _ => TEXT,
    };
    let words: &[&str] = &["--use-mcore-models", "auto", "null", "!!python/object", "*alias", "&anchor"];
    let target = of_text(
        &format!("import-{tool}"),
        move || seeds(tool),
        damages,
        words,
        move |text| {
            static REQUESTS: LazyLock<Vec<(&str, Request)>> =
                LazyLock::new(|| IMPORTERS.iter().flat_map(|importer| requests(*importer)).collect());
            read(importer, text, REQUESTS.iter().filter(|(of, _)| *of == tool).map(|(_, request)| request))
        },
    );
    Target { inputs: 400, ..target }
}

/// The rows of the table of stock files that are of a tool.
fn cases(tool: &str) -> Vec<csv::StringRecord> {
    let cases = file("traces/formats/tests/data/stock/cases.csv");
    let rows: Vec<_> = csv::Reader::from_reader(cases.as_slice()).records().map(Result::unwrap).collect();
    rows.into_iter().filter(|row| &row[1] == tool).collect()
}

/// What stands beside files of a tool: what the table says, and what suits the exporters' files.
fn requests(importer: &dyn Importer) -> Vec<(&'static str, Request<'static>)> {
    let own = Request {
        text: "",
        origin: "f",
        cluster: Cluster::reference("dgx-a100").unwrap(),
        stack: Stack::from_name(importer.stack()).unwrap(),
        model: ["deepspeed", "accelerate-fsdp", "torchtitan"]
            .contains(&importer.name())
            .then(|| files::plan().model),
        sequence: ["deepspeed", "accelerate-fsdp"].contains(&importer.name()).then_some(64),
        schedule: Some(files::SCHEDULE.into()),
        settings: Vec::new(),
    };
    let of_case = |row: &csv::StringRecord| Request {
        cluster: Cluster::reference(&row[2]).unwrap(),
        model: (!row[3].is_empty()).then(|| preset(&row[3]).unwrap()),
        sequence: row[4].parse().ok(),
        settings: row[5].split_once('=').map(|(key, value)| (key.into(), value.into())).into_iter().collect(),
        ..own.clone()
    };
    let mut all: Vec<Request> = cases(importer.name()).iter().map(of_case).collect();
    all.push(own);
    let mut known = Vec::new();
    all.retain(|request| {
        let Request { cluster, model, sequence, settings, .. } = request;
        let model = model.as_ref().map(|model| model.name.clone());
        let key = (cluster.name.clone(), model, *sequence, settings.clone());
        let new = !known.contains(&key);
        known.push(key);
        new
    });
    all.into_iter().map(|request| (importer.name(), request)).collect()
}

/// Stock files of the tool, and what the exporter of its name writes.
fn seeds(tool: &str) -> Vec<String> {
    let stock =
        cases(tool).into_iter().map(|row| file(&format!("traces/formats/tests/data/stock/{}", &row[0])));
    let mut texts: Vec<String> = stock.map(|bytes| String::from_utf8(bytes).unwrap()).collect();
    if tool == "megatron-lm" {
        texts.extend([files::MEGATRON.into(), files::MEGATRON_STAGES.into(), files::exported(tool)]);
    }
    if tool == "torchtitan" {
        texts.extend([files::exported(tool), files::exported("torchtitan-python")]);
    }
    texts.sort();
    texts.dedup();
    texts
}

fn read<'a>(
    importer: &dyn Importer,
    text: &str,
    requests: impl Iterator<Item = &'a Request<'static>>,
) -> Result<(), String> {
    let mut refusal = String::new();
    for request in requests {
        match importer.read(&Request { text, ..request.clone() }) {
            Ok(imported) => {
                let plan = imported.plan;
                let passes = plan.microbatches().saturating_mul(plan.model.layers());
                // `export` refuses longer steps.
                if passes > 1_000_000 {
                    return Ok(());
                }
                for exporter in EXPORTERS {
                    export(&plan, *exporter);
                }
                if passes <= 200 && plan.mesh.ranks() <= 1024 {
                    lower(&plan);
                }
                return Ok(());
            }
            Err(error) => refusal = error.to_string(),
        }
    }
    Err(refusal)
}
