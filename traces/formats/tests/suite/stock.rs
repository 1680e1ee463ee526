//! Stock examples of the tools: files of ours with the facts of theirs, `tests/data/stock/cases.csv`.

use std::collections::BTreeMap;
use std::fmt::Write;
use trainwright_formats::import::{Request, importer};
use trainwright_spec::cluster::Cluster;
use trainwright_spec::model::Model;
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

/// Every number of every file replaced by others, and every line left out: a plan or one line, and no panic.
#[test]
fn damaged_stock_files_are_refused_in_a_line() {
    let mut count = 0;
    for (row, request) in rows().iter().zip(requests()) {
        let lines: Vec<&str> = request.text.lines().collect();
        for (index, line) in lines.iter().enumerate() {
            let number = |letter: char| letter.is_ascii_digit();
            let numbers: Vec<&str> =
                line.split(|letter: char| !number(letter)).filter(|part| !part.is_empty()).collect();
            let others = ["0", "1", "3", "1000000000000", "-1", "1e308", "x", "[]", "\""];
            let changed = numbers.iter().flat_map(|old| others.map(|new| line.replacen(old, new, 1)));
            for damaged in changed.chain([String::new(), line.chars().take(line.len() / 2).collect()]) {
                let mut text = lines.clone();
                text[index] = &damaged;
                let text = text.join("\n");
                let read =
                    importer(&row["from"]).unwrap().read(&Request { text: &text, ..request.request() });
                if let Err(error) = read {
                    let error = error.to_string();
                    assert_eq!(error.lines().count(), 1, "{}: {error}", row["file"]);
                }
                count += 1;
            }
        }
    }
    assert!(count > 3000, "{count}");
}

/// Every file becomes the plan that its row says. `TRAINWRIGHT_BLESS=1` writes the last column.
#[test]
fn stock_files_become_plans() {
    let rows = rows();
    assert!(rows.len() >= 40);
    let mut found = Vec::new();
    for (row, stock) in rows.iter().zip(requests()) {
        let gives = match importer(&row["from"]).unwrap().read(&stock.request()) {
            Ok(imported) => line(&imported.plan),
            Err(error) => format!("error: {error}"),
        };
        found.push(gives);
    }
    if std::env::var_os("TRAINWRIGHT_BLESS").is_some() {
        let mut out = csv::Writer::from_path(format!("{FOLDER}/cases.csv")).unwrap();
        out.write_record(COLUMNS).unwrap();
        for (row, gives) in rows.iter().zip(&found) {
            let kept = COLUMNS.iter().take(COLUMNS.len() - 1).map(|column| row[*column].as_str());
            out.write_record(kept.chain([gives.as_str()])).unwrap();
        }
    } else {
        for (row, gives) in rows.iter().zip(&found) {
            assert_eq!(*gives, row["gives"], "{}", row["file"]);
        }
    }
    assert!(!found.iter().any(|gives| gives.starts_with("error")), "{found:#?}");
}

const COLUMNS: [&str; 8] = ["file", "from", "cluster", "model", "seq", "set", "source", "gives"];

/// The rows of the table, by column.
fn rows() -> Vec<BTreeMap<String, String>> {
    csv::Reader::from_path(format!("{FOLDER}/cases.csv"))
        .unwrap()
        .deserialize()
        .map(|row| row.unwrap())
        .collect()
}

/// What an importer needs, owned.
struct Stock {
    text: String,
    name: String,
    cluster: Cluster,
    stack: Stack,
    model: Option<Model>,
    sequence: Option<usize>,
    settings: Vec<(String, String)>,
}

impl Stock {
    fn request(&self) -> Request<'_> {
        Request {
            text: &self.text,
            origin: &self.name,
            cluster: self.cluster.clone(),
            stack: self.stack.clone(),
            model: self.model.clone(),
            sequence: self.sequence,
            schedule: None,
            settings: self.settings.clone(),
        }
    }
}

fn requests() -> Vec<Stock> {
    let stock = |row: &BTreeMap<String, String>| {
        let settings = row["set"].split(' ').filter_map(|setting| setting.split_once('='));
        Stock {
            text: std::fs::read_to_string(format!("{FOLDER}/{}", row["file"])).unwrap(),
            name: row["file"].clone(),
            cluster: Cluster::from_name(&row["cluster"]).unwrap(),
            stack: Stack::from_name(importer(&row["from"]).unwrap().stack()).unwrap(),
            model: Some(&row["model"]).filter(|name| !name.is_empty()).map(|name| preset(name).unwrap()),
            sequence: row["seq"].parse().ok(),
            settings: settings.map(|(key, value)| (key.to_string(), value.to_string())).collect(),
        }
    };
    rows().iter().map(stock).collect()
}
