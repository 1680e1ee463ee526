//! Short runs whose ops have the shapes that are to be measured.

use super::machine::Threading;
use crate::error::RunError;
use crate::train::supported;
use trainwright_spec::cluster::{Cluster, Fabric};
use trainwright_spec::job::Job;
use trainwright_spec::mesh::Mesh;
use trainwright_spec::model::hf::from_hugging_face;
use trainwright_spec::model::{Mlp, Model};
use trainwright_spec::plan::Plan;
use trainwright_spec::precision::Precision;
use trainwright_spec::stack::Stack;

/// Which shapes are measured in addition to those of given plans.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Grid {
    /// None.
    None,
    /// Models from narrow to wide.
    Machine,
}

/// Width, tokens of a sequence, sequences: from ops that hardly compute to wide ones, each several times as much work as
/// the one before.
const SIZES: [[usize; 3]; 7] =
    [[16, 8, 1], [64, 32, 1], [128, 64, 2], [256, 128, 1], [256, 256, 4], [512, 128, 4], [768, 256, 2]];

/// Elements of an attention head, of models that are so wide.
const HEAD: usize = 64;

/// Runs of models of both families.
pub(super) fn of_grid(grid: Grid, threading: Threading) -> Vec<Plan> {
    if grid == Grid::None {
        return Vec::new();
    }
    let plans = SIZES.iter().enumerate().flat_map(|(index, [width, sequence, batch])| {
        let plan = move |model: Model| run_of(model, [*sequence, *batch], threading);
        let gpt = plan(gpt(*width, *sequence));
        // The second family shares all but norms and activation: half as many sizes do.
        let llama = (index % 2 == 0).then(|| plan(llama(*width, *sequence)));
        [Some(gpt), llama].into_iter().flatten()
    });
    plans.collect()
}

fn gpt(width: usize, sequence: usize) -> Model {
    let text = format!(
        r#"{{"model_type": "gpt2", "n_embd": {width}, "n_head": {}, "n_layer": 2, "n_positions": {sequence},
        "vocab_size": {}, "resid_pdrop": 0.0, "embd_pdrop": 0.0, "attn_pdrop": 0.0}}"#,
        width.div_ceil(HEAD),
        (16 * width).min(4096),
    );
    from_hugging_face(&text, "gpt").expect("the text is a configuration")
}

fn llama(width: usize, sequence: usize) -> Model {
    let text = format!(
        r#"{{"model_type": "llama", "hidden_size": {width}, "num_attention_heads": {heads}, "num_key_value_heads": {heads},
        "num_hidden_layers": 2, "intermediate_size": {}, "vocab_size": {}, "max_position_embeddings": {sequence},
        "tie_word_embeddings": false, "hidden_act": "silu"}}"#,
        width * 5 / 2,
        (16 * width).min(2048),
        heads = width.div_ceil(HEAD),
    );
    from_hugging_face(&text, "llama").expect("the text is a configuration")
}

/// A run of a complete model on as many data ranks as the cores have room for.
fn run_of(model: Model, [sequence, batch]: [usize; 2], threading: Threading) -> Plan {
    let ranks = threading.at_once();
    let mut cluster = Cluster::from_name("rtx-4090").expect("the catalog has it");
    cluster.node.gpus.value = ranks;
    cluster.fabric = Fabric::non_blocking();
    Plan {
        micro_batch: batch,
        mesh: Mesh::new(1, 1, ranks),
        ..Plan::plain(
            model,
            Stack::from_name("trainwright").expect("the catalog has it"),
            cluster,
            Job::new(sequence, 2 * batch * ranks, Precision::Fp32),
        )
    }
}

/// The same run on as many data ranks as the machine has, each doing as much.
pub(super) fn oversubscribed(slice: &Plan, threading: Threading) -> Plan {
    let mut plan = slice.clone();
    plan.cluster.node.gpus.value = threading.ranks;
    plan.mesh.data = threading.ranks;
    plan.job.global_batch = slice.job.global_batch / slice.mesh.ranks() * threading.ranks;
    plan
}

/// For each plan runs in which one rank has the layers of one of its ranks: as wide, with as many heads.
pub(super) fn of_plans(plans: &[Plan], threading: Threading) -> Result<Vec<Plan>, RunError> {
    let mut slices: Vec<Plan> = Vec::new();
    for plan in plans {
        supported::check(&supported::with_executor_stack(plan)?)?;
        for slice in sliced(plan, threading) {
            // What is no plan by itself, as odd numbers of heads, is left to the grid.
            let possible = supported::check(&slice).is_ok() && slice.check("slice").is_ok();
            if possible && !slices.contains(&slice) {
                slices.push(slice);
            }
        }
    }
    Ok(slices)
}

/// The slices of a plan for one rank that has a GPU like the plan's to itself, in the plan's precision.
pub(crate) fn alone(plan: &Plan) -> Vec<Plan> {
    let mut cluster = plan.cluster.clone();
    (cluster.nodes, cluster.node.gpus.value, cluster.node.cores) = (1, 1, None);
    (cluster.others, cluster.profile) = (Vec::new(), None);
    let slices = sliced(plan, Threading { cores: 1, threads: 1, ranks: 1 }).into_iter().map(|slice| Plan {
        job: Job { precision: plan.job.precision, ..slice.job },
        stack: plan.stack.clone(),
        cluster: cluster.clone(),
        ..slice
    });
    slices.filter(|slice| supported::check(slice).is_ok() && slice.check("slice").is_ok()).collect()
}

/// Runs in which one rank has the layers of one of a plan's ranks.
fn sliced(plan: &Plan, threading: Threading) -> Vec<Plan> {
    let sizes = [plan.job.sequence / plan.mesh.context, plan.micro_batch];
    let mut sliced = vec![run_of(narrowed(plan), sizes, threading)];
    if plan.sequence_parallel && plan.mesh.tensor > 1 {
        // Norms and additions see a part of the sequence.
        let sizes = [plan.job.sequence / plan.mesh.tensor, plan.micro_batch];
        sliced.push(run_of(of_a_rank(plan), sizes, threading));
    }
    let as_planned = |slice: Plan| Plan {
        job: Job { optimizer: plan.job.optimizer.clone(), ..slice.job },
        data_sharding: plan.data_sharding.clone(),
        data: plan.data,
        ..slice
    };
    sliced.into_iter().map(as_planned).collect()
}

/// As many blocks as a rank has, so that caches hold as little of them: of each run a share.
fn of_a_rank(plan: &Plan) -> Model {
    let mut model = plan.model.clone();
    for run in &mut model.blocks {
        run.count = run.count.div_ceil(plan.mesh.pipeline);
    }
    model
}

/// A model as wide as one tensor rank's part, and as deep as one pipeline rank's.
fn narrowed(plan: &Plan) -> Model {
    let tensor = plan.mesh.tensor;
    let mut model = of_a_rank(plan);
    model.vocab = plan.stack.padded_vocabulary(model.vocab, tensor) / tensor;
    for run in &mut model.blocks {
        let attention = &mut run.block.attention;
        attention.heads = (attention.heads / tensor).max(1);
        attention.kv_heads = (attention.kv_heads / tensor).max(1);
        match &mut run.block.mlp {
            Mlp::Dense(mlp) => mlp.width = (mlp.width / tensor).max(1),
            Mlp::Experts(experts) => experts.expert.width = (experts.expert.width / tensor).max(1),
        }
    }
    model
}
