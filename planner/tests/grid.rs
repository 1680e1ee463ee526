//! Every preset model on every kind of node, from one node to 4,096: each question ends with a plan or with a reason.
//!
//! Tests take every `STRIDE`-th question, each up to its first plan; `TRAINWRIGHT_GRID=0/1/0.5` takes all with a limit of half a
//! second, and prints what came of them, and `TRAINWRIGHT_GRID=3/8/0.5` the fourth of eight parts.

use std::time::Instant;
use trainwright_planner::{Pins, PlannerError, Question, Risk, Scope, Verdict, plan_within};
use trainwright_spec::calibration::{Calibration, DEFAULT};
use trainwright_spec::cluster::Cluster;
use trainwright_spec::job::Job;
use trainwright_spec::model::Model;
use trainwright_spec::model::preset::{preset, presets};
use trainwright_spec::plan::sequence_allowed;
use trainwright_spec::precision::Precision;
use trainwright_spec::stack::Stack;
use trainwright_spec::units::Seconds;

/// Kinds of nodes, of which `{}` is a number; `+` makes half of the nodes of each of two kinds.
const NODES: [&str; 7] = [
    "dgx-a100",
    "dgx-h100",
    "hgx-h800",
    "gb200-nvl72",
    "l40s-8-ethernet",
    "tpu-v5p-host",
    "dgx-h100+dgx-a100",
];

const NUMBERS: [usize; 5] = [1, 8, 64, 512, 4096];

/// Coprime to the numbers of models, nodes and their numbers, so that the questions of the tests are spread over all.
const STRIDE: usize = 111;

/// The longest of these that a model can be trained with.
const SEQUENCES: [usize; 5] = [4096, 2048, 1024, 512, 256];

fn cluster(nodes: &str, number: usize) -> String {
    match nodes.split_once('+') {
        Some((first, second)) => {
            let half = number.div_ceil(2);
            format!("{first}:{half}+{second}:{half}")
        }
        None => format!("{nodes}:{number}"),
    }
}

fn question(model: &str, cluster: &str) -> Question {
    let (model, mut cluster): (Model, Cluster) =
        (preset(model).unwrap(), Cluster::from_name(cluster).unwrap());
    let mut stack = Stack::from_name("megatron-core").unwrap();
    let calibration = Calibration::from_name(DEFAULT).unwrap();
    calibration.apply(&mut cluster, &mut stack);
    let sequence =
        SEQUENCES.into_iter().find(|sequence| sequence_allowed(&model, *sequence).is_ok()).unwrap();
    let gpus = cluster.gpus();
    Question {
        job: Job {
            sequence,
            global_batch: gpus * 1024usize.div_ceil(gpus),
            precision: Precision::Bf16,
            optimizer: "adamw".into(),
            gradient_clipping: true,
            adapters: None,
        },
        model,
        cluster,
        stack,
        pins: Pins::default(),
        risk: Risk { residuals: calibration.residuals.clone(), ..Risk::default() },
    }
}

/// All questions, as model and cluster.
fn grid() -> Vec<(&'static str, String)> {
    let mut grid = Vec::new();
    for number in NUMBERS {
        for nodes in NODES {
            grid.extend(presets().map(|(model, _)| (model, cluster(nodes, number))));
        }
    }
    grid
}

/// What came of a question, in a word and with its gap or reason.
///
/// # Panics
/// If that is neither a plan that fits nor a reason.
fn answer(model: &str, cluster: &str, limit: f64) -> (&'static str, String) {
    let question = question(model, cluster);
    let scope = Scope { time: Some(Seconds::new(limit)), ..Scope::default() };
    let name = format!("{model} on {cluster}");
    match plan_within(&question, scope, &|_| {}) {
        Ok(Verdict::Found(found)) => {
            let best = &found.ranked[0];
            best.plan.check(&name).unwrap();
            assert!(best.forecast.fits, "{name}: the plan does not fit");
            let gap = found.search.gap(best.expected).unwrap();
            assert!((0.0..1.0).contains(&gap), "{name}: a gap of {gap}");
            ("plan", format!("{gap:.4}\t{}", found.search.unseen))
        }
        Ok(Verdict::Infeasible(infeasible)) => {
            assert!(!infeasible.broken.is_empty(), "{name}: no limit is broken");
            ("nothing fits", format!("{}", infeasible.broken[0].needs))
        }
        Ok(Verdict::OutOfTime(search)) => {
            assert!(search.unseen > 0, "{name}: everything was seen");
            ("no plan in time", format!("{}", search.unseen))
        }
        Err(PlannerError::NoCandidate { reason }) => {
            assert!(!reason.is_empty(), "{name}");
            ("no candidate", reason)
        }
        Err(error) => panic!("{name}: {error}"),
    }
}

#[test]
fn every_preset_on_every_kind_of_node_ends_with_a_plan_or_a_reason() {
    let grid = grid();
    if let Ok(part) = std::env::var("TRAINWRIGHT_GRID") {
        let numbers: Vec<f64> = part.split('/').map(|number| number.parse().unwrap()).collect();
        let [index, parts, limit] = numbers[..] else { panic!("TRAINWRIGHT_GRID is like 0/8/0.5") };
        for (model, cluster) in grid.iter().skip(index as usize).step_by(parts as usize) {
            let began = Instant::now();
            let (kind, detail) = answer(model, cluster, limit);
            println!("GRID\t{model}\t{cluster}\t{kind}\t{:.2}\t{detail}", began.elapsed().as_secs_f64());
        }
        return;
    }
    let sampled: Vec<_> =
        grid.iter().step_by(STRIDE).map(|(model, cluster)| answer(model, cluster, 0.0).0).collect();
    let of = |kind: &str| sampled.iter().filter(|other| **other == kind).count();
    let (plans, all) = (of("plan"), sampled.len());
    assert!(all >= 20 && plans * 2 > all, "{plans} plans for {all} questions");
    assert!(
        of("nothing fits") + of("no plan in time") + of("no candidate") >= 1,
        "every question has a plan"
    );
}
