//! Layouts with as many blocks in each stage and one kind of recomputation: what one would write down without a planner.

use super::super::RlQuestion;
use trainwright_spec::cluster::Cluster;
use trainwright_spec::job::Job;
use trainwright_spec::mesh::Mesh;
use trainwright_spec::plan::{Plan, Recompute, StageBlocks};

/// Recomputation of all blocks of a plan.
const RECOMPUTE: [Recompute; 2] = [Recompute::None, Recompute::Full];

/// Layouts of training on all GPUs of a cluster: powers of two of tensor, pipeline and expert ranks, the rest data ranks; optimizer
/// state over data ranks, or all state if the stack can; everything recomputed or nothing.
pub(super) fn even_layouts(question: &RlQuestion, cluster: &Cluster) -> Vec<Plan> {
    let gpus = cluster.gpus();
    let node = cluster.node.gpus.value;
    let powers = |most: usize| (0..).map(|power| 1usize << power).take_while(move |ranks| *ranks <= most);
    let wanted = |pin: Option<usize>, ranks: usize| pin.is_none_or(|pin| pin == ranks);
    let experts = question.model.fewest_experts();
    let pins = &question.pins;
    let mut plans = Vec::new();
    for tensor in powers(node.min(gpus)).filter(|ranks| wanted(pins.tensor, *ranks)) {
        for pipeline in powers(gpus / tensor).filter(|ranks| wanted(pins.pipeline, *ranks)) {
            if !gpus.is_multiple_of(tensor * pipeline) || pipeline > question.model.layers() {
                continue;
            }
            let data = gpus / tensor / pipeline;
            let spread = experts.unwrap_or(1).min(tensor * data);
            for expert in powers(spread).filter(|ranks| wanted(pins.expert, *ranks)) {
                for sharding in shardings(question, data, pipeline) {
                    for recompute in RECOMPUTE {
                        let mesh = Mesh {
                            expert,
                            expert_tensor: (expert > 1).then_some(1),
                            ..Mesh::new(tensor, pipeline, data)
                        };
                        plans.extend(training(question, cluster, mesh, &sharding, recompute));
                    }
                }
            }
        }
    }
    plans
}

/// How data ranks share state.
fn shardings(question: &RlQuestion, data: usize, pipeline: usize) -> Vec<String> {
    if data == 1 {
        return vec!["none".into()];
    }
    let mut known = Vec::new();
    if question.stack.sharded_optimizer {
        known.push("zero1".into());
    }
    for whole in ["fsdp", "zero3"] {
        if question.stack.has_data_scheme(whole) && pipeline == 1 && known.len() < 2 {
            known.push(whole.into());
        }
    }
    if known.is_empty() {
        known.push("none".into());
    }
    known
}

fn training(
    question: &RlQuestion,
    cluster: &Cluster,
    mesh: Mesh,
    sharding: &str,
    recompute: Recompute,
) -> Option<Plan> {
    let model = question.model.clone();
    let layers = model.layers();
    let of_stage = |stage: usize| layers / mesh.pipeline + usize::from(stage < layers % mesh.pipeline);
    let stages = (0..mesh.pipeline).map(|stage| StageBlocks(vec![recompute; of_stage(stage)])).collect();
    let sequence = question.pack.next_multiple_of(2 * mesh.tensor.max(8));
    let job = Job::new(sequence, mesh.data * mesh.pipeline, question.precision);
    let mut plan = Plan {
        mesh,
        stages,
        sequence_parallel: mesh.tensor > 1 && question.stack.sequence_parallel,
        data_sharding: sharding.into(),
        ..Plan::plain(model, question.stack.clone(), cluster.clone(), job)
    };
    if let Some(calibration) = &question.calibration {
        calibration.apply(&mut plan.cluster, &mut plan.stack);
    }
    plan.check("").ok()?;
    Some(plan)
}
