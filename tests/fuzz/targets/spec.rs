//! Plans and what they are made of.

use super::{CSV, JSON, TEXT, TOML, Target, fate, of_text};
use crate::files;
use std::collections::BTreeMap;
use trainwright_formats::details::Details;
use trainwright_lower::lower;
use trainwright_sim::costs::ClusterCosts;
use trainwright_sim::forecast;
use trainwright_spec::calibration::Calibration;
use trainwright_spec::calibration::residuals::Residuals;
use trainwright_spec::catalog;
use trainwright_spec::cluster::{Cluster, NetworkProfile};
use trainwright_spec::experts::Load;
use trainwright_spec::job::Job;
use trainwright_spec::library::Library;
use trainwright_spec::mesh::Mesh;
use trainwright_spec::model::flops::AttentionCount;
use trainwright_spec::model::hf::from_hugging_face;
use trainwright_spec::plan::Plan;
use trainwright_spec::precision::Precision;
use trainwright_spec::schedule::text::{read, read_csv};
use trainwright_spec::schedule::{Custom, PipelineShape, Schedule};
use trainwright_spec::serving::{Engine, ServingFile, ServingPlan, ServingRanges};
use trainwright_spec::stack::Stack;

pub fn targets() -> Vec<Target> {
    vec![
        of_text("config", configurations, JSON, &["rope_scaling", "quantization_config"], model),
        of_text("config-details", configurations, JSON, &[], |text| fate(Details::of_config(text, "f"))),
        of_text("plan", plans, TOML, &[], plan),
        of_text("cluster", clusters, TOML, &["fabric", "reliability"], cluster),
        of_text("network-profile", || vec![files::NETWORK.into()], TOML, &["all-gather"], network_profile),
        of_text("kernel-profile", kernel_profiles, CSV, &["flash-3", "window:7"], kernel_profile),
        of_text("calibration", calibrations, TOML, &[], |text| fate(Calibration::from_toml(text, "f"))),
        of_text("residuals", residuals, CSV, &[], |text| fate(Residuals::from_csv(text))),
        of_text("expert-load", || vec![files::LOAD.into()], CSV, &[], load),
        of_text(
            "schedule-csv",
            || vec![files::SCHEDULE.into()],
            CSV,
            &["0I1", "1W0", "0B", "UNSHARD"],
            schedule,
        ),
        of_text("schedule-text", schedule_texts, TEXT, &[], |text| fate(read(text, "f"))),
        of_text("library", || some("libraries"), TOML, &[], |text| fate(Library::from_toml(text, "f"))),
        of_text(
            "serving-plan",
            || vec![serving_plan()],
            TOML,
            &["instances", "memory_share"],
            |text| fate(ServingFile::from_toml(text, "f").and_then(|file| file.plan("f"))),
        ),
        of_text("serving-ranges", ranges, TOML, &[], |text| fate(ServingRanges::from_toml(text, "f"))),
    ]
}

/// Plans with more passes of a block than this are not lowered here, those with more ranks neither: a step of them is
/// allowed, and takes long.
const MOST_PASSES: usize = 400;
const MOST_RANKS: usize = 4096;

/// A configuration of each family in the catalog.
fn configurations() -> Vec<String> {
    let mut families = BTreeMap::new();
    for name in catalog::names("models") {
        let preset: toml::Table = toml::from_str(catalog::text("model", name).unwrap()).unwrap();
        let config = serde_json::to_string(&preset["config"]).unwrap();
        families.entry(preset["config"]["model_type"].as_str().unwrap().to_string()).or_insert(config);
    }
    families.into_values().chain([files::CONFIG.into()]).collect()
}

/// A model is counted, and a plan of it on one GPU is simulated.
fn model(text: &str) -> Result<(), String> {
    let model = from_hugging_face(text, "f").map_err(|error| error.to_string())?;
    assert!(model.parameters() > 0 && model.layers() > 0, "a model that was read can be counted");
    let job = Job::new(64, 1, Precision::Bf16);
    let flops = job.step_flops(&model, AttentionCount::CausalHalved).get();
    assert!(flops.is_finite() && flops > 0.0, "a step of {flops} FLOPs");
    let cluster = Cluster::from_name("h100-pcie-pair").unwrap();
    let plain = Plan::plain(
        model,
        Stack::from_name("megatron-core").unwrap(),
        cluster,
        Job { global_batch: 2, ..job },
    );
    // Its sizes may not suit a plan.
    go_on(&Plan { mesh: Mesh::new(1, 1, 2), ..plain }).or(Ok(()))
}

/// Checks a plan, and simulates its step if that is short.
fn go_on(plan: &Plan) -> Result<(), String> {
    plan.check("f").map_err(|error| error.to_string())?;
    if plan.microbatches().saturating_mul(plan.model.layers()) > MOST_PASSES || plan.mesh.ranks() > MOST_RANKS
    {
        return Ok(());
    }
    let program = lower(plan);
    assert!(!program.ranks.is_empty());
    // A clock that ends is refused where questions are read.
    let days = (plan.job.step_flops(&plan.model, AttentionCount::CausalHalved)
        / plan.cluster.peak(plan.job.precision))
    .get()
        / 86_400.0;
    if days > 1.0 {
        return Ok(());
    }
    let (forecast, _) =
        forecast(plan, &ClusterCosts::new(&plan.cluster)).map_err(|error| error.to_string())?;
    assert!(
        forecast.step_time.get().is_finite() && forecast.step_time.get() > 0.0,
        "{:?}",
        forecast.step_time
    );
    Ok(())
}

fn plans() -> Vec<String> {
    let examples = ["context", "data", "experts", "offload", "precision", "recompute", "schedules"];
    let example =
        |name: &str| String::from_utf8(super::file(&format!("examples/plans/{name}.toml"))).unwrap();
    let read = |text: String| Plan::from_toml(&text, "f").is_ok().then_some(text);
    let own = [files::plan(), files::mixture()].map(|plan| plan.to_toml());
    own.into_iter().chain(examples.iter().filter_map(|name| read(example(name)))).collect()
}

fn plan(text: &str) -> Result<(), String> {
    let plan = Plan::from_toml(text, "f").map_err(|error| error.to_string())?;
    let again = plan.to_toml();
    assert_eq!(
        Plan::from_toml(&again, "f").as_ref().map_err(ToString::to_string),
        Ok(&plan),
        "written and read"
    );
    go_on(&plan)
}

/// On a part of a node, so that the cluster is a table.
fn serving_plan() -> String {
    let plan = ServingPlan::new(Engine::from_name("vllm-v1").unwrap()).with_tensor(2);
    let cluster = Cluster::from_name("dgx-a100").unwrap().with_fewer_gpus(4).unwrap();
    ServingFile::new(2, &plan, &files::plan().model, &cluster).to_toml()
}

fn clusters() -> Vec<String> {
    let mut all = vec![files::cluster()];
    all.extend(some("clusters"));
    all
}

fn cluster(text: &str) -> Result<(), String> {
    let cluster = Cluster::from_toml(text, "f").map_err(|error| error.to_string())?;
    assert!(cluster.gpus() > 0);
    let plan = Plan { cluster, ..files::plan() };
    // Its sizes may not suit the plan.
    go_on(&plan).or(Ok(()))
}

fn network_profile(text: &str) -> Result<(), String> {
    let cluster = Cluster::from_name("dgx-a100").unwrap();
    let profiled =
        NetworkProfile::from_toml(text, "f").and_then(|profile| cluster.with_profile(profile, "f"));
    let cluster = profiled.map_err(|error| error.to_string())?;
    go_on(&Plan { cluster, ..files::plan() })
}

fn kernel_profiles() -> Vec<String> {
    let rows = String::from_utf8(super::rows("traces/profiles/a100-80gb-sxm.csv", 2)).unwrap();
    vec![files::KERNELS.into(), rows]
}

fn kernel_profile(text: &str) -> Result<(), String> {
    let cluster = Cluster::from_name("dgx-a100").unwrap().with_device_profile(text, "f");
    let cluster = cluster.map_err(|error| error.to_string())?;
    go_on(&Plan { cluster, ..files::plan() })
}

fn calibrations() -> Vec<String> {
    vec![files::CALIBRATION.into()]
}

fn residuals() -> Vec<String> {
    let published = Calibration::from_name("published").unwrap().residuals.to_csv();
    vec![published.lines().take(12).flat_map(|line| [line, "\n"]).collect()]
}

fn load(text: &str) -> Result<(), String> {
    let load = Load::from_csv(text, "f").map_err(|error| error.to_string())?;
    let mut plan = files::mixture();
    plan.experts.load = load;
    go_on(&plan)
}

fn schedule(text: &str) -> Result<(), String> {
    let lists = read_csv(text, "f").map_err(|error| error.to_string())?;
    let custom = Custom::new(lists).map_err(|error| error.to_string())?;
    fate(custom.check(PipelineShape { ranks: 2, virtual_stages: 1, microbatches: 4 }))
}

fn schedule_texts() -> Vec<String> {
    vec!["0F0 0F1 0B0 0B1\n1F0 1B0 1F1 1B1\n".into()]
}

fn ranges() -> Vec<String> {
    vec![ServingRanges::of_catalog().to_toml()]
}

/// The smallest files of a folder of the catalog.
fn some(folder: &'static str) -> Vec<String> {
    let kind = folder.trim_end_matches('s');
    let text = |name| catalog::text(folder, name).or_else(|_| catalog::text(kind, name)).unwrap().to_string();
    let mut all: Vec<String> = catalog::names(folder).into_iter().map(text).collect();
    all.sort_by_key(String::len);
    all.truncate(6);
    all
}
