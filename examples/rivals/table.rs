//! Where GPipe, ZeRO and FSDP each win: the best plan of each kind, with the same kernels, over model, batch, network and
//! number of GPUs. ZeRO divides optimizer and gradients (stages 1 and 2), FSDP weights too, as stage 3 does, over all GPUs or
//! within nodes.

use trainwright_planner::{Pins, Question, Risk, Scope, Verdict, plan_within};
use trainwright_spec::cluster::Cluster;
use trainwright_spec::job::Job;
use trainwright_spec::model::preset::preset;
use trainwright_spec::precision::Precision;
use trainwright_spec::stack::Stack;
use trainwright_spec::units::Seconds;

/// A kind of plan: its name, what it pins, what it forbids.
struct Rival {
    name: &'static str,
    only: &'static [(&'static str, &'static str)],
    never: &'static [(&'static str, &'static str)],
}

const RIVALS: [Rival; 3] = [
    Rival {
        name: "GPipe",
        only: &[("tensor", "1"), ("schedule", "gpipe"), ("data-sharding", "none")],
        never: &[("pipeline", "1")],
    },
    Rival {
        name: "ZeRO",
        only: &[("tensor", "1"), ("pipeline", "1"), ("data-sharding", "zero1"), ("data-sharding", "zero2")],
        never: &[],
    },
    Rival {
        name: "FSDP",
        only: &[
            ("tensor", "1"),
            ("pipeline", "1"),
            ("data-sharding", "zero3"),
            ("data-sharding", "fsdp"),
            ("data-sharding", "hsdp"),
        ],
        never: &[],
    },
];

const MODELS: [&str; 3] = ["gpt2-xl", "gpt3-6.7b", "gpt3-13b"];
const BATCHES: [usize; 2] = [64, 1024];
const NODES: [&str; 3] = ["dgx-h100", "a100-ethernet", "l40s-8-ethernet"];
const COUNTS: [usize; 2] = [1, 8];

/// One line of the table.
pub struct Setting {
    model: &'static str,
    batch: usize,
    node: &'static str,
    nodes: usize,
}

impl Setting {
    /// What its line begins with.
    pub fn begins(&self) -> String {
        let Setting { model, batch, node, nodes } = self;
        format!("| {model} | {batch} | {node}:{nodes} |")
    }
}

/// All lines of the table.
pub fn settings() -> Vec<Setting> {
    let mut settings = Vec::new();
    for model in MODELS {
        for batch in BATCHES {
            for node in NODES {
                settings.extend(COUNTS.map(|nodes| Setting { model, batch, node, nodes }));
            }
        }
    }
    settings
}

fn question(setting: &Setting, rival: &Rival) -> Question {
    let mut stack = Stack::from_name("megatron-core").expect("a stack of the catalog");
    stack.data_schemes = ["zero2", "zero3", "fsdp", "hsdp"].map(String::from).to_vec();
    let pairs =
        |pairs: &[(&str, &str)]| pairs.iter().map(|(key, value)| ((*key).into(), (*value).into())).collect();
    Question {
        model: preset(setting.model).expect("a model of the catalog"),
        cluster: Cluster::from_name(&format!("{}:{}", setting.node, setting.nodes))
            .expect("a node of the catalog"),
        job: Job::new(1024, setting.batch, Precision::Bf16),
        stack,
        pins: Pins { only: pairs(rival.only), never: pairs(rival.never), ..Pins::default() },
        risk: Risk::default(),
    }
}

/// The step of the best plan of each kind, in the order of the page; none if no plan of the kind fits.
fn times(setting: &Setting) -> [Option<Seconds>; 3] {
    RIVALS.each_ref().map(|rival| match plan_within(&question(setting, rival), Scope::BEST, &|_| {}) {
        Ok(Verdict::Found(found)) => Some(found.ranked[0].forecast.step_time),
        Ok(_) | Err(_) => None,
    })
}

/// A row of the page: the setting, the three times, who wins.
pub fn row(setting: &Setting) -> String {
    let times = times(setting);
    let cell = |time: &Option<Seconds>| time.map_or_else(|| "does not fit".into(), |time| time.to_string());
    let least = times.iter().flatten().copied().reduce(Seconds::min);
    let wins = times.iter().position(|time| time.is_some() && *time == least);
    let [gpipe, zero, fsdp] = times.each_ref().map(cell);
    let winner = wins.map_or("nobody", |rival| RIVALS[rival].name);
    format!("{} {gpipe} | {zero} | {fsdp} | {winner} |\n", setting.begins())
}
