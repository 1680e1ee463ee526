//! Clusters whose nodes are of several kinds.

use trainwright_sim::costs::ClusterCosts;
use trainwright_sim::{forecast, step_time_for_ranking};
use trainwright_spec::cluster::{Cluster, Others};
use trainwright_spec::job::Job;
use trainwright_spec::mesh::Mesh;
use trainwright_spec::model::preset::preset;
use trainwright_spec::plan::{Plan, Recompute, StageBlocks};
use trainwright_spec::precision::Precision;
use trainwright_spec::stack::Stack;
use trainwright_spec::units::{Bytes, Picoseconds};

/// LLaMA-2 7B with stages of these numbers of blocks, tensor 8, on `cluster`.
fn plan(cluster: &str, stages: &[usize]) -> Plan {
    let cluster = Cluster::from_name(cluster).unwrap();
    let data = cluster.gpus() / 8 / stages.len();
    let mut model = preset("llama-2-7b").unwrap();
    model.blocks[0].count = stages.iter().sum();
    Plan {
        sequence_parallel: true,
        data_sharding: "zero1".into(),
        stages: stages.iter().map(|blocks| StageBlocks(vec![Recompute::None; *blocks])).collect(),
        mesh: Mesh::new(8, stages.len(), data),
        ..Plan::plain(
            model,
            Stack::from_name("megatron-core").unwrap(),
            cluster,
            Job::new(4096, 16, Precision::Bf16),
        )
    }
}

fn step(plan: &Plan) -> Picoseconds {
    plan.check("plan").unwrap();
    step_time_for_ranking(plan, &ClusterCosts::new(&plan.cluster)).unwrap()
}

#[test]
fn kinds_that_are_alike_are_one() {
    let plain = plan("dgx-h100:4", &[8, 8]);
    let mut split = plain.clone();
    split.cluster.others = vec![Others { nodes: 2, node: split.cluster.node.clone() }];
    assert!(split.cluster.is_mixed());
    assert_eq!(step(&split), step(&plain));
    let [plain, split] = [plain, split].map(|plan| {
        let (forecast, timeline) = forecast(&plan, &ClusterCosts::new(&plan.cluster)).unwrap();
        (forecast, timeline.spans.len())
    });
    assert_eq!(plain, split);
}

#[test]
fn a_step_takes_between_that_of_either_kind_alone_and_the_slow_half_sets_the_pace() {
    let [fast, slow, mixed] =
        ["dgx-h100:4", "dgx-a100:4", "dgx-h100:2+dgx-a100:2"].map(|cluster| step(&plan(cluster, &[8, 8])));
    assert!(fast < mixed && mixed < slow, "{fast:?} {mixed:?} {slow:?}");
    // 8 microbatches on 2 ranks: 7 of them at the pace of the slow rank, one through both.
    let (fast, slow, mixed) = (fast.0 as f64, slow.0 as f64, mixed.0 as f64);
    let expected = slow - (slow - fast) / 9.0;
    assert!((mixed / expected - 1.0).abs() < 0.03, "{mixed}, not {expected}");
}

#[test]
fn fewer_layers_on_the_slow_half_make_the_step_shorter() {
    let cluster = "dgx-h100:2+dgx-a100:2";
    let [even, uneven, reversed] = [[8, 8], [11, 5], [5, 11]].map(|stages| step(&plan(cluster, &stages)));
    assert!(uneven < even && even < reversed, "{uneven:?} {even:?} {reversed:?}");
}

#[test]
fn memory_is_that_of_each_ranks_gpus() {
    let mut plan = plan("dgx-h100:2+dgx-a100:2", &[11, 5]);
    let fits = |plan: &Plan| forecast(plan, &ClusterCosts::new(&plan.cluster)).unwrap().0;
    let ample = fits(&plan);
    assert!(ample.fits);
    let held = ample.memory[1].total();
    // Too little on the second kind alone.
    plan.cluster.others[0].node.gpu.memory.value = held * 0.9;
    let tight = fits(&plan);
    assert!(!tight.fits && tight.peak_memory == held && tight.gpu_memory == held * 0.9);
    plan.cluster.others[0].node.gpu.memory.value = Bytes::GIB * 80.0;
    plan.cluster.node.gpu.memory.value = ample.memory[0].total() * 0.9;
    assert!(!fits(&plan).fits);
}

#[test]
fn peaks_are_those_of_all_gpus_together() {
    let peak = |cluster: &str| Cluster::from_name(cluster).unwrap().peak(Precision::Bf16).get();
    let (mixed, h100, a100) = (peak("dgx-h100:1+dgx-a100:3"), peak("dgx-h100:1"), peak("dgx-a100:3"));
    assert!((mixed / (h100 + a100) - 1.0).abs() < 1e-12);
}

#[test]
fn incompatible_choices_are_refused() {
    let refused = |plan: &Plan| plan.check("plan.toml").unwrap_err().to_string();
    let straddling = plan("dgx-h100:1+dgx-a100:3", &[8, 8]);
    assert_eq!(
        refused(&straddling),
        "plan.toml: `mesh.pipeline` is 2; pipeline rank 0 would lie on dgx-h100 and dgx-a100: each needs nodes of one kind"
    );
    let mut other_size = plan("dgx-h100:2+dgx-a100:2", &[8, 8]);
    other_size.cluster.others[0].node.gpus.value = 4;
    assert_eq!(
        refused(&other_size),
        "plan.toml: `cluster.others.0.node.gpus` is 4; the 8 of the first nodes: all have as many GPUs"
    );
    let mut too_many = plan("dgx-h100:2+dgx-a100:2", &[8, 8]);
    too_many.cluster.others[0].nodes = 4;
    assert_eq!(
        refused(&too_many),
        "plan.toml: `cluster.others.0.nodes` is 4; from 1 to 3: `nodes` counts all, some of the first kind among them"
    );
    let error = Cluster::from_name("dgx-h100:2+dgx-a10").unwrap_err().to_string();
    assert!(error.contains("dgx-a10"), "{error}");
}

#[test]
fn a_plan_with_kinds_is_read_back_as_it_was_written() {
    let plan = plan("dgx-h100:2+dgx-a100:2", &[11, 5]);
    let text = plan.to_toml();
    assert!(text.contains("[[cluster.others]]"));
    assert_eq!(Plan::from_toml(&text, "plan.toml").unwrap(), plan);
    let cluster = Cluster::from_toml(
        "nodes = 3\nnode = \"dgx-h100\"\n[[others]]\nnodes = 1\nnode = \"dgx-a100\"\n",
        "mine.toml",
    );
    let names: Vec<String> =
        cluster.unwrap().kinds().map(|(nodes, node)| format!("{nodes} {}", node.name)).collect();
    assert_eq!(names, ["2 dgx-h100", "1 dgx-a100"]);
    let wrong = Cluster::from_toml(
        "nodes = 3\nnode = \"dgx-h100\"\n[[others]]\nnodes = 1\nnode = \"dgx-a1\"\n",
        "mine.toml",
    );
    assert!(wrong.unwrap_err().to_string().starts_with("mine.toml:5: `others.0.node`"));
}
