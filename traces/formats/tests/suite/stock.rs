//! Stock examples of the tools: files of ours with the facts of theirs, `tests/data/stock/cases.csv`.

use std::fmt::Write;
use trainwright_formats::import::{Request, importer};
use trainwright_spec::cluster::Cluster;
use trainwright_spec::model::preset::preset;
use trainwright_spec::plan::{Plan, Recompute};
use trainwright_spec::stack::Stack;

const FOLDER: &str = concat!(env!("CARGO_MANIFEST_DIR"), "/tests/data/stock");

/// What a plan is, in a line.
fn line(plan: &Plan) -> String {
    let mesh = &plan.mesh;
    let mut line = format!(
        "{} parameters, {} blocks, t{} p{} d{}",
        plan.model.parameters(),
        plan.model.layers(),
        mesh.tensor,
        mesh.pipeline,
        mesh.data
    );
    if mesh.context > 1 {
        write!(line, " c{}", mesh.context).unwrap();
    }
    if mesh.expert > 1 {
        write!(line, " e{}", mesh.expert).unwrap();
    }
    let job = &plan.job;
    write!(
        line,
        ", {} x {} tokens by {}, {} {}",
        job.global_batch, job.sequence, plan.micro_batch, job.precision, plan.data_sharding
    )
    .unwrap();
    let all: Vec<Recompute> = plan.stages.iter().flat_map(|stage| stage.0.clone()).collect();
    if all[0] != Recompute::None {
        write!(line, ", recompute {}", all[0]).unwrap();
    }
    if let Some(place) = plan.offload.optimizer {
        write!(line, ", optimizer on {place:?}").unwrap();
    }
    line
}

/// Every file becomes the plan that its row says. `TRAINWRIGHT_BLESS=1` writes the last column.
#[test]
fn stock_files_become_plans() {
    let path = format!("{FOLDER}/cases.csv");
    let mut table = csv::Reader::from_path(&path).unwrap();
    let headers = table.headers().unwrap().clone();
    let rows: Vec<csv::StringRecord> = table.records().map(|row| row.unwrap()).collect();
    assert!(rows.len() >= 30);
    let mut found = Vec::new();
    for row in &rows {
        let field = |name: &str| row[headers.iter().position(|header| header == name).unwrap()].to_string();
        let text = std::fs::read_to_string(format!("{FOLDER}/{}", field("file"))).unwrap();
        let importer = importer(&field("from")).unwrap();
        let settings = field("set");
        let settings = settings.split(' ').filter_map(|setting| setting.split_once('='));
        let request = Request {
            text: &text,
            origin: &field("file"),
            cluster: Cluster::from_name(&field("cluster")).unwrap(),
            stack: Stack::from_name(importer.stack()).unwrap(),
            model: Some(field("model")).filter(|name| !name.is_empty()).map(|name| preset(&name).unwrap()),
            sequence: field("seq").parse().ok(),
            schedule: None,
            settings: settings.map(|(key, value)| (key.to_string(), value.to_string())).collect(),
        };
        let gives = match importer.read(&request) {
            Ok(imported) => line(&imported.plan),
            Err(error) => format!("error: {error}"),
        };
        found.push((gives, field("gives")));
    }
    if std::env::var_os("TRAINWRIGHT_BLESS").is_some() {
        let mut out = csv::Writer::from_path(&path).unwrap();
        out.write_record(&headers).unwrap();
        for (row, (gives, _)) in rows.iter().zip(&found) {
            out.write_record(row.iter().take(row.len() - 1).chain([gives.as_str()])).unwrap();
        }
    } else {
        for (gives, expected) in &found {
            assert_eq!(gives, expected);
        }
    }
    assert!(!found.iter().any(|(gives, _)| gives.starts_with("error")), "{found:#?}");
}
