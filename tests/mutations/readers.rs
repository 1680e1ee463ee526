//! Damaged files into the readers of the libraries, in this process.

use crate::{Content, files, seeds};
use std::collections::BTreeSet;
use std::panic::{AssertUnwindSafe, catch_unwind};
use trainwright_evidence::runs::Table;
use trainwright_formats::chakra::{self, workload};
use trainwright_formats::import::{Request, importer};
use trainwright_formats::{kineto, nccl_tests, nsight};
use trainwright_spec::calibration::Calibration;
use trainwright_spec::catalog;
use trainwright_spec::cluster::{Cluster, NetworkProfile};
use trainwright_spec::experts::Load;
use trainwright_spec::model::hf::from_hugging_face;
use trainwright_spec::plan::Plan;
use trainwright_spec::schedule::text::read_csv;
use trainwright_spec::schedule::{Custom, PipelineShape, Schedule};
use trainwright_spec::stack::Stack;

/// Mutations of each file.
const COUNT: u64 = 300;

/// Gives a reader a file intact, and then damaged. It must accept the intact file.
fn check(name: &str, intact: &Content, read: impl Fn(&[u8]) -> Result<(), String>) {
    assert_eq!(read(&intact.bytes()), Ok(()), "{name}: the undamaged file");
    let mut refused = 0;
    let mut panics = Vec::new();
    for (seed, damaged) in seeds(name, COUNT).map(|seed| (seed, intact.damaged(seed))) {
        match catch_unwind(AssertUnwindSafe(|| read(&damaged))) {
            Ok(Ok(())) => {}
            Ok(Err(message)) => {
                refused += 1;
                assert_eq!(message.lines().count(), 1, "{name}, seed {seed}: {message}");
            }
            Err(_) => panics.push((seed, String::from_utf8_lossy(&damaged).into_owned())),
        }
    }
    assert!(refused > 0, "{name}: no damage was seen");
    if let Some((seed, damaged)) = panics.first() {
        let start: String = damaged.chars().take(3000).collect();
        panic!("{name}: {} panics, the first with seed {seed}:\n{start}", panics.len());
    }
}

fn text(name: &str, intact: &str, read: impl Fn(&str) -> Result<(), String>) {
    check(name, &Content::Text(intact.into()), |bytes| {
        read(&String::from_utf8(bytes.to_vec()).map_err(|error| error.to_string())?)
    });
}

/// The kind of outcome, without the answer.
fn fate<T>(read: Result<T, impl ToString>) -> Result<(), String> {
    read.map(|_| ()).map_err(|error| error.to_string())
}

#[test]
fn plans_and_what_they_are_made_of() {
    text("plan.toml", &files::plan().to_toml(), |text| fate(Plan::from_toml(text, "f")));
    text("cluster.toml", &files::cluster(), |text| fate(Cluster::from_toml(text, "f")));
    text("network.toml", files::NETWORK, |text| {
        let cluster = Cluster::from_name("dgx-a100").unwrap();
        fate(NetworkProfile::from_toml(text, "f").and_then(|profile| cluster.with_profile(profile, "f")))
    });
    text("kernels.csv", files::KERNELS, |text| {
        fate(Cluster::from_name("dgx-a100").unwrap().with_device_profile(text, "f"))
    });
    text("calibration.toml", files::CALIBRATION, |text| fate(Calibration::from_toml(text, "f")));
    text("load.csv", files::LOAD, |text| fate(Load::from_csv(text, "f")));
    text("schedule.csv", files::SCHEDULE, |text| {
        let lists = read_csv(text, "f").map_err(|error| error.to_string())?;
        let custom = Custom::new(lists).map_err(|error| error.to_string())?;
        fate(custom.check(PipelineShape { ranks: 2, virtual_stages: 1, microbatches: 4 }))
    });
}

#[test]
fn configurations_of_every_family() {
    let mut families = BTreeSet::new();
    for name in catalog::names("models") {
        let preset: toml::Table = toml::from_str(catalog::text("model", name).unwrap()).unwrap();
        let config = serde_json::to_string_pretty(&preset["config"]).unwrap();
        if !families.insert(preset["config"]["model_type"].as_str().unwrap().to_string()) {
            continue;
        }
        text(name, &config, |text| {
            let model = from_hugging_face(text, "f").map_err(|error| error.to_string())?;
            assert!(model.parameters() > 0 && model.layers() > 0, "a model that was read can be counted");
            Ok(())
        });
    }
    assert!(families.len() > 12, "{families:?}");
}

#[test]
fn files_of_other_tools() {
    for (name, tool, intact) in [
        ("megatron-lm", "megatron-lm", files::exported("megatron-lm")),
        ("megatron-lm experts", "megatron-lm", files::MEGATRON.into()),
        ("megatron-lm stages", "megatron-lm", files::MEGATRON_STAGES.into()),
        ("torchtitan", "torchtitan", files::exported("torchtitan")),
        ("deepspeed", "deepspeed", files::exported("deepspeed")),
        ("torchtitan python", "torchtitan", files::exported("torchtitan-python")),
        ("megatron-bridge", "megatron-bridge", files::exported("megatron-bridge")),
        ("nemo", "nemo", files::exported("nemo")),
        ("accelerate", "accelerate-fsdp", files::exported("accelerate-fsdp")),
        ("maxtext", "maxtext", files::exported("maxtext")),
    ] {
        let importer = importer(tool).unwrap();
        text(name, &intact, |text| {
            let request = Request {
                text,
                origin: "f",
                cluster: Cluster::from_name("dgx-a100").unwrap(),
                stack: Stack::from_name(importer.stack()).unwrap(),
                model: (tool != "megatron-lm").then(|| files::plan().model),
                sequence: ["deepspeed", "accelerate-fsdp"].contains(&tool).then_some(64),
                schedule: Some(files::SCHEDULE.into()),
                settings: Vec::new(),
            };
            fate(importer.read(&request))
        });
    }
    text("nccl-tests", files::NCCL, |text| fate(nccl_tests::read(text, "f")));
    text("runs.csv", files::RUNS, |text| {
        let table = Table::read(text.as_bytes()).map_err(|error| error.to_string())?;
        let plans = table.runs().map(|run| fate(run.and_then(|run| run.completed()?.run.plan())));
        plans.collect::<Vec<_>>().into_iter().collect()
    });
}

/// A number that random damage seldom hits: as many stages on each rank as no list has room for.
#[test]
fn a_row_with_more_stages_than_blocks_is_refused_before_they_are_listed() {
    let (was, is) = (",2,2,1,,2,1,,full,", ",2,2,1,,2,1000000000,,full,");
    assert!(files::RUNS.contains(was));
    let table = Table::read(files::RUNS.replace(was, is).as_bytes()).unwrap();
    let refused = table.runs().next().unwrap().unwrap().plan().unwrap_err().to_string();
    assert!(refused.contains("`pp` x `vp` is 2000000000 stages of 24 `layers`"), "{refused}");
}

#[test]
fn traces() {
    text("kineto", files::KINETO, |text| fate(kineto::read(text, "f").map(|step| step.profile("f"))));
    let choice =
        nsight::Choice { device: None, precision: Some(trainwright_spec::precision::Precision::Bf16) };
    check("nsight", &files::fixture("two-steps.sqlite"), |bytes| {
        fate(nsight::read(bytes, "f", choice).map(|step| step.profile("f")))
    });
    let (trace, groups) = files::chakra();
    check("chakra", &Content::Bytes(trace), |bytes| {
        let (metadata, nodes) = chakra::read(bytes, "f").map_err(|error| error.to_string())?;
        fate(workload::workload(&[("f.0.et".into(), metadata, nodes)], &groups))
    });
}
