//! The plan of the passes that generate: the ranks of another plan along its axes, and of its other choices the plainest.

use crate::error::RunError;
use trainwright_spec::cluster::Cluster;
use trainwright_spec::job::Job;
use trainwright_spec::mesh::Mesh;
use trainwright_spec::model::{Mask, Model, Position};
use trainwright_spec::plan::{Plan, Recompute, StageBlocks};
use trainwright_spec::precision::Precision;
use trainwright_spec::stack::Stack;

/// A cluster for one rank: nothing of its hardware counts.
const CLUSTER: &str = "h100-pcie-pair";

/// The plan of one rank.
pub fn one_rank(model: Model) -> Plan {
    let mut cluster = Cluster::from_name(CLUSTER).expect("the cluster is in the catalog");
    cluster.node.gpus.value = 1;
    let stack = Stack::from_name("trainwright").expect("the executor's stack is in the catalog");
    Plan::plain(model, stack, cluster, Job::new(1, 1, Precision::Fp32))
}

/// A plan of `tensor` × `pipeline` ranks.
pub fn tensor_and_pipeline_ranks(model: Model, tensor: usize, pipeline: usize) -> Plan {
    let mut plan = one_rank(model);
    plan.cluster.node.gpus.value = tensor * pipeline;
    plan.mesh = Mesh::new(tensor, pipeline, 1);
    plan.stages = stages(&plan);
    plan
}

/// The plan of the passes on the ranks of `plan`, over sequences of at most `longest` tokens.
///
/// # Errors
/// `Refused` if the plan shares sequences or forms grids, or the model has fewer positions than a sequence needs.
pub(crate) fn layout(plan: &Plan, longest: usize) -> Result<Plan, RunError> {
    let refuse = |key: &str, value: String, allowed: String| {
        Err(RunError::Refused { key: key.into(), value, allowed })
    };
    let Mesh { tensor, pipeline, data, context, tensor_rows, .. } = plan.mesh;
    check_positions(&plan.model, longest)?;
    if context > 1 {
        let allowed = "a sequence that grows is on one context rank: generate with `context = 1`";
        return refuse("mesh.context", context.to_string(), allowed.into());
    }
    if tensor_rows > 1 {
        let allowed = "it generates with `1d` tensor ranks only";
        return refuse("tensor_scheme", format!("`{}`", plan.tensor_scheme), allowed.into());
    }
    let masks = plan.model.blocks.iter().map(|run| run.block.attention.mask);
    if masks.into_iter().any(|mask| mask == Mask::Full) {
        let allowed = "a token that sees later ones cannot be generated before them";
        return refuse("model.blocks.attention.mask", "full".into(), allowed.into());
    }
    let mesh = Mesh { shard: None, ..plan.mesh };
    debug_assert_eq!(mesh.ranks(), tensor * pipeline * data);
    Ok(Plan {
        mesh,
        stages: stages(plan),
        experts: plan.experts.clone(),
        model: Model { dropout: false, dropout_rates: None, ..plan.model.clone() },
        ..Plan::plain(
            plan.model.clone(),
            plan.stack.clone(),
            plan.cluster.clone(),
            Job {
                optimizer: "sgd".into(),
                gradient_clipping: false,
                ..Job::new(longest, data * pipeline, Precision::Fp32)
            },
        )
    })
}

/// Refuses sequences that are longer than learned positions.
pub(crate) fn check_positions(model: &Model, longest: usize) -> Result<(), RunError> {
    match model.embedding.position {
        Position::Learned(positions) if positions < longest => Err(RunError::Data(format!(
            "a prompt and the tokens behind it are {longest} tokens, and the model has {positions} positions"
        ))),
        _ => Ok(()),
    }
}

/// A stage for each pipeline rank, of as many blocks as all of its stages have.
fn stages(plan: &Plan) -> Vec<StageBlocks> {
    let mut counts = vec![0; plan.mesh.pipeline];
    if plan.virtual_stages == 1 && plan.stages.len() == counts.len() {
        counts.iter_mut().zip(&plan.stages).for_each(|(count, stage)| *count = stage.0.len());
    } else {
        let layers = plan.model.layers();
        let (share, more) = (layers / counts.len(), layers % counts.len());
        counts.iter_mut().enumerate().for_each(|(stage, count)| *count = share + usize::from(stage < more));
    }
    counts.into_iter().map(|count| StageBlocks(vec![Recompute::None; count])).collect()
}
