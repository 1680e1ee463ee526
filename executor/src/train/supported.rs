//! What the executor runs: everything else is refused before anything runs.

mod on_cuda;

pub(crate) use on_cuda::{check_on, check_settings};

use crate::error::RunError;
use crate::train::modules::{is_stepwise, operator};
use crate::train::optimizer::Optimizer;
use std::collections::BTreeSet;
use trainwright_lower::lower_every_rank;
use trainwright_spec::collective::CollectiveKind;
use trainwright_spec::data::Divided;
use trainwright_spec::experts::{Gate, dispatcher};
use trainwright_spec::model::{Block, Experts, Mask, Mlp, Position};
use trainwright_spec::plan::Plan;
use trainwright_spec::precision::Precision;
use trainwright_spec::program::{Does, ModuleStep, Op, Pass, Place, Task, Value, Work};
use trainwright_spec::schedule::ActionKind;
use trainwright_spec::stack::Stack;

/// The stack that is this executor.
const STACK: &str = "trainwright";

/// The plan with this executor as its software.
///
/// # Errors
/// `Refused` if it has not what the plan asks of its software.
pub fn with_executor_stack(plan: &Plan) -> Result<Plan, RunError> {
    let stack = Stack::from_name(STACK).expect("the executor's stack is in the catalog");
    checked(Plan { stack, ..plan.clone() })
}

/// The plan, if it is valid.
///
/// # Errors
/// `Refused` with what is not.
fn checked(plan: Plan) -> Result<Plan, RunError> {
    match plan.check("plan") {
        Ok(()) => Ok(plan),
        Err(error) => Err(refuse("stack", STACK, error.to_string())),
    }
}

/// Whether the executor runs a plan with the stack of `with_executor_stack`.
///
/// # Errors
/// `Refused` with the first part that it has not.
pub fn check(plan: &Plan) -> Result<(), RunError> {
    let windows = plan.model.blocks.iter().map(|run| run.block.attention.mask);
    if let Some(mask) = windows.into_iter().find(|mask| matches!(mask, Mask::Window(_))) {
        let allowed = "it trains with causal and full attention";
        return Err(refuse("model.blocks.attention.mask", &format!("{mask:?}"), allowed.into()));
    }
    check_forward(plan)
}

/// Whether it runs the plan's passes forward, which generate: also over windows.
///
/// # Errors
/// As `check`.
pub fn check_forward(plan: &Plan) -> Result<(), RunError> {
    choices(plan)?;
    model(plan)?;
    let program = lower_every_rank(plan);
    let ops = program.segments.iter().flat_map(|segment| &segment.ops);
    let unknown = ops.into_iter().find(|op| !known(op));
    let twice = program.segments.iter().find_map(|segment| second_run(&segment.ops));
    match unknown.or(twice) {
        Some(op) => {
            let value = format!("one with the op `{}`", op.module);
            Err(refuse("plan", &value, "the executor has no such op".into()))
        }
        None => Ok(()),
    }
}

/// An op that runs a module again that has run in the same pass: the executor's modules run in one piece.
fn second_run(ops: &[Op]) -> Option<&Op> {
    let mut known = BTreeSet::new();
    let mut is_new = |op: &Op| match op.task {
        Task::Module(step) if step.does == Does::Run => known.insert((op.layer, step.module, op.pass)),
        _ => true,
    };
    ops.iter().find(|op| !is_new(op))
}

fn refuse(key: &str, value: &str, allowed: String) -> RunError {
    RunError::Refused { key: key.into(), value: value.into(), allowed }
}

/// The first of them that does not hold, as a refusal.
fn all<'a>(rules: impl IntoIterator<Item = (bool, &'a str, String, &'a str)>) -> Result<(), RunError> {
    match rules.into_iter().find(|(holds, ..)| !holds) {
        Some((_, key, value, allowed)) => Err(refuse(key, &value, allowed.into())),
        None => Ok(()),
    }
}

fn is_dense(block: &Block) -> bool {
    matches!(block.mlp, Mlp::Dense(_))
}

fn choices(plan: &Plan) -> Result<(), RunError> {
    let layer_wise = Optimizer::of_name(&plan.job.optimizer).is_some_and(Optimizer::is_layer_wise);
    let lists = plan.schedule().lists(plan.pipeline_shape());
    let halves = lists.ranks.iter().flatten().any(|action| action.kind == ActionKind::Input);
    let quoted = |name: &str| format!("`{name}`");
    all([
        (
            plan.job.adapters.is_none(),
            "job.adapters",
            plan.job.adapters.as_ref().map_or_else(String::new, ToString::to_string),
            "the executor trains the model's weights",
        ),
        (
            matches!(plan.job.precision, Precision::Fp32 | Precision::Bf16 | Precision::Fp8),
            "job.precision",
            quoted(plan.job.precision.name()),
            "it has `fp32`, `bf16` and `fp8`",
        ),
        (
            plan.job.precision != Precision::Fp8 || plan.model.blocks.iter().all(|run| is_dense(&run.block)),
            "job.precision",
            quoted("fp8"),
            "products of experts are in 16 bits or more: choose `bf16`",
        ),
        (
            Optimizer::of_name(&plan.job.optimizer).is_some(),
            "job.optimizer",
            quoted(&plan.job.optimizer),
            "it has `adam`, `adamw`, `lamb`, `lars`, `momentum` and `sgd`",
        ),
        (
            ["1d", "2d"].contains(&plan.tensor_scheme.as_str()),
            "tensor_scheme",
            quoted(&plan.tensor_scheme),
            "it has `1d` and `2d`",
        ),
        (
            plan.tensor_scheme == "1d" || !halves,
            "schedule",
            quoted(plan.schedule().name()),
            "on a grid of tensor ranks backward runs in one piece",
        ),
        (
            plan.servers().is_none() && plan.data_scheme().fusion().is_none(),
            "data_sharding",
            quoted(&plan.data_sharding),
            "it has `none`, `zero1`, `zero2` and `zero3`",
        ),
        (
            !plan.divides(Divided::Gradients) || plan.shards_gradients(),
            "data.reduce",
            "once a step".into(),
            "it reduces divided gradients after each microbatch",
        ),
        (
            !plan.offload.delayed_update,
            "offload.delayed_update",
            "true".into(),
            "it updates with the gradients of the same step",
        ),
        (
            plan.mesh.shard.is_none() || plan.shards_optimizer(),
            "mesh.shard",
            format!("{:?}", plan.mesh.shard),
            "there is nothing that ranks divide: leave it out",
        ),
        (
            plan.offload.optimizer != Some(Place::Nvme) || !layer_wise,
            "offload.optimizer",
            quoted("nvme"),
            "`lamb` and `lars` need all moments at once: keep them on `host`",
        ),
        (
            plan.offload.optimizer_fraction == 1.0,
            "offload.optimizer_fraction",
            plan.offload.optimizer_fraction.to_string(),
            "it offloads all of the optimizer's state or none",
        ),
        (
            ![plan.offload.gradients, plan.offload.parameters].contains(&Some(Place::Nvme)),
            "offload",
            "gradients or parameters on `nvme`".into(),
            "it has drives for the optimizer's state and for activations",
        ),
        (
            plan.schedule().flushes(),
            "schedule",
            quoted(plan.schedule().name()),
            "it ends each step with an empty pipeline",
        ),
    ])
}

fn model(plan: &Plan) -> Result<(), RunError> {
    let model = &plan.model;
    let rates = model.drops_out();
    let masks = model.blocks.iter().map(|run| run.block.attention.mask);
    let alike = masks.clone().all(|mask| Some(mask) == masks.clone().next());
    all([
        (
            alike || plan.mesh.context == 1,
            "mesh.context",
            plan.mesh.context.to_string(),
            "the masks of all blocks must be alike to share sequences",
        ),
        (
            !model.dropout || plan.tensor_scheme == "1d",
            "model.dropout",
            "true".into(),
            "on a grid of tensor ranks it drops nothing out: set it to false",
        ),
        (
            [rates.embedding, rates.attention, rates.residual].iter().all(|rate| (0.0..=1.0).contains(rate)),
            "model.dropout_rates",
            format!("{rates:?}"),
            "each is a probability from 0 to 1",
        ),
        (
            rates.embedding == 0.0 || matches!(model.embedding.position, Position::Learned(_)),
            "model.dropout_rates.embedding",
            rates.embedding.to_string(),
            "it drops out of embeddings with learned positions only: set it to 0",
        ),
        (
            matches!(model.embedding.position, Position::Learned(_) | Position::Rotary),
            "model.embedding.position",
            format!("{:?}", model.embedding.position),
            "it has learned and rotary positions",
        ),
        (
            model.embedding.width.is_none()
                && model.embedding.token_types == 0
                && model.embedding.norm.is_none(),
            "model.embedding",
            "more than tokens and positions".into(),
            "it has no projection, types or norm there",
        ),
        (
            !model.head.transform && !model.head.pooler,
            "model.head",
            "more than a product".into(),
            "it has a product only",
        ),
        (
            model.final_norm.is_some(),
            "model.final_norm",
            "missing".into(),
            "it has blocks with norms before the sublayers",
        ),
    ])?;
    if let Position::Learned(positions) = model.embedding.position {
        let allowed = "positions must be as many as a sequence has tokens";
        all([(positions >= plan.job.sequence, "model.embedding.position", positions.to_string(), allowed)])?;
    }
    model.blocks.iter().try_for_each(|run| block(plan, &run.block))
}

fn block(plan: &Plan, block: &Block) -> Result<(), RunError> {
    let attention = &block.attention;
    let tensor = plan.tensor_scheme().parts(&plan.tensor_grid()).width;
    let rotated = attention.rotary_head_dim.unwrap_or(attention.head_dim);
    let (mlp, ranks) = match &block.mlp {
        Mlp::Dense(mlp) => (mlp, tensor),
        Mlp::Experts(layer) => {
            experts(plan, layer)?;
            (&layer.expert, plan.mesh.expert_tensor())
        }
    };
    all([
        (
            !block.parallel,
            "model.blocks.parallel",
            "true".into(),
            "it runs attention before the feed-forward layer",
        ),
        (block.norms == 2, "model.blocks.norms", block.norms.to_string(), "it has 2, before the sublayers"),
        (
            block.cross_attention.is_none(),
            "model.blocks.cross_attention",
            "given".into(),
            "it has decoders only",
        ),
        (
            attention.latent.is_none(),
            "model.blocks.attention.latent",
            "given".into(),
            "it has queries, keys and values only",
        ),
        (
            attention.recurrence.is_none(),
            "model.blocks.attention.recurrence",
            "given".into(),
            "it has attention over keys and values only",
        ),
        (
            attention.indexer.is_none(),
            "model.blocks.attention.indexer",
            "given".into(),
            "it has attention to all keys or a window only",
        ),
        (
            !attention.output_gate,
            "model.blocks.attention.output_gate",
            "true".into(),
            "it has no gate behind attention",
        ),
        (!attention.qk_norm, "model.blocks.attention.qk_norm", "true".into(), "it has no norms there"),
        (
            rotated.is_multiple_of(2),
            "model.blocks.attention.rotary_head_dim",
            rotated.to_string(),
            "it turns pairs of columns",
        ),
        (
            attention.kv_heads.is_multiple_of(tensor) && attention.heads.is_multiple_of(tensor),
            "mesh.tensor",
            tensor.to_string(),
            "it must divide the key and value heads",
        ),
        (
            mlp.width.is_multiple_of(ranks),
            "mesh.tensor",
            ranks.to_string(),
            "it must divide the feed-forward width",
        ),
    ])
}

fn experts(plan: &Plan, experts: &Experts) -> Result<(), RunError> {
    let routing = &plan.experts;
    let key = "model.blocks.mlp.experts";
    all([
        (
            !dispatcher(&routing.dispatcher).is_ok_and(|each| each.needs_kernels()),
            "experts.dispatcher",
            format!("`{}`", routing.dispatcher),
            "it sends each copy of a token",
        ),
        (routing.gate == Gate::Token, "experts.gate", "`sentence`".into(), "it routes each token by itself"),
        (
            routing.capacity_factor.is_none(),
            "experts.capacity_factor",
            routing.capacity_factor.unwrap_or_default().to_string(),
            "it drops no token: leave it out",
        ),
        (experts.shared.is_none(), key, "with shared experts".into(), "it has routed experts only"),
        (!experts.router_bias, key, "with a router bias".into(), "its router has none"),
        (experts.group_limit.is_none(), key, "in groups".into(), "each token may visit any expert"),
        (!experts.expert.bias, key, "with biases".into(), "its experts have none"),
    ])
}

/// Whether there is a kernel or a transport for an op.
fn known(op: &Op) -> bool {
    use CollectiveKind::{AllGather, AllReduce, ReduceScatter};
    match (op.task, op.work) {
        (Task::Module(step), Work::Collective { .. } | Work::Compute(_))
            if is_stepwise(step.module, step.does) =>
        {
            true
        }
        (Task::Module(ModuleStep { module, does: Does::Move(value), .. }), Work::Collective { kind, .. }) => {
            let inside = matches!(kind, AllReduce | AllGather | ReduceScatter);
            let brings = value != Value::Input || kind == AllGather || op.pass != Pass::Backward;
            operator(module).is_some() && inside && brings && value != Value::WeightGradient
        }
        (Task::Module(ModuleStep { module, .. }), Work::Compute(_)) => operator(module).is_some(),
        (Task::Update(_), Work::Collective { kind, .. }) => {
            matches!(kind, AllReduce | AllGather | ReduceScatter)
        }
        (Task::Update(_), Work::Compute(_) | Work::HostUpdate(_)) => true,
        (Task::Carry, _) => true,
        (Task::Kept(_), Work::Copy { .. }) | (Task::UpdateOffloaded { .. }, Work::HostUpdate(_)) => true,
        (Task::Layers(..), Work::Collective { kind, .. }) => {
            matches!(kind, AllReduce | AllGather | ReduceScatter)
        }
        (Task::None, work) => matches!(work, Work::Send { .. } | Work::Receive { .. } | Work::Join),
        _ => false,
    }
}
