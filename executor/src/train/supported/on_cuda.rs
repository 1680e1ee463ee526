//! What the executor runs on GPUs of what it runs on processors.

use super::{all, check, checked, is_dense, refuse, with_executor_stack};
use crate::device::DeviceKind;
use crate::error::RunError;
use crate::train::settings::Settings;
use trainwright_spec::model::{Block, Mlp};
use trainwright_spec::plan::Plan;
use trainwright_spec::precision::Precision;
use trainwright_spec::sourced::Sourced;
use trainwright_spec::stack::{PipelineOverlap, Stack};

/// Columns of a matrix that a tensor core's tile takes. Rows of logits are a multiple of it: then rows of bf16 are aligned to
/// 128 bytes.
const TILE: usize = 64;

/// Divides the sides of products in fp8.
const FP8_SIDES: usize = 16;

impl DeviceKind {
    /// The plan with this executor on such devices as its software.
    ///
    /// # Errors
    /// `Refused` if it has not what the plan asks of its software.
    pub fn with_executor_stack(self, plan: &Plan) -> Result<Plan, RunError> {
        let plan = with_executor_stack(plan)?;
        if !self.runs_cuda_kernels {
            return Ok(plan);
        }
        let stack = Stack {
            vocabulary_multiple: Sourced::new(
                TILE,
                "executor: on a GPU each rank's rows of logits are whole tiles of a product",
            ),
            overlap_gradient_reduction: true,
            overlap_tensor_backward: true,
            overlap_pipeline: PipelineOverlap::Always,
            ..plan.stack
        };
        checked(Plan { stack, ..plan })
    }

    /// Whether the executor trains with a plan on such devices.
    ///
    /// # Errors
    /// `Refused` with the first part that it has not.
    pub fn check(self, plan: &Plan) -> Result<(), RunError> {
        let plan = self.with_executor_stack(plan)?;
        check(&plan)?;
        check_on(self, &plan)
    }
}

/// Whether the executor runs a plan on such devices, if it runs it on processors.
///
/// # Errors
/// `Refused` with the first part that it has not there.
pub(crate) fn check_on(device: DeviceKind, plan: &Plan) -> Result<(), RunError> {
    if !device.runs_cuda_kernels {
        return Ok(());
    }
    let offload = &plan.offload;
    let blocks = || plan.model.blocks.iter().map(|run| &run.block);
    let widest = blocks().map(|block| block.attention.head_dim.max(block.attention.value_head_dim)).max();
    all([
        (
            blocks().all(is_dense) || plan.model.hidden.is_multiple_of(8),
            "model.hidden",
            plan.model.hidden.to_string(),
            "on a GPU rows that travel to experts have a width that 8 divides",
        ),
        (
            blocks().all(|block| match &block.mlp {
                Mlp::Experts(experts) => experts.count <= 512,
                Mlp::Dense(_) => true,
            }),
            "model.blocks.mlp.experts.count",
            "more than 512".into(),
            "on a GPU it has at most 512 in a layer",
        ),
        (
            [offload.gradients, offload.parameters].iter().all(Option::is_none),
            "offload",
            "gradients or parameters".into(),
            "on a GPU these stay in its memory",
        ),
        (
            widest.is_none_or(|width| width <= 256),
            "model.blocks.attention.head_dim",
            format!("{widest:?}"),
            "on a GPU heads are at most 256 wide",
        ),
    ])?;
    fp8_sides(plan)
}

/// Whether the executor has kernels for the settings on their device.
///
/// # Errors
/// `Refused` with the first setting that it has not there.
pub(crate) fn check_settings(settings: &Settings) -> Result<(), RunError> {
    if !settings.device.runs_cuda_kernels {
        return Ok(());
    }
    all([
        (
            !settings.document_mask,
            "document mask",
            "on".into(),
            "on a GPU attention does not know documents: leave it out, or compute on processors",
        ),
        (
            settings.z_loss == 0.0,
            "z-loss",
            settings.z_loss.to_string(),
            "on a GPU the loss is plain cross entropy: leave it out, or compute on processors",
        ),
        (
            settings.label_smoothing == 0.0,
            "label smoothing",
            settings.label_smoothing.to_string(),
            "on a GPU the loss is plain cross entropy: leave it out, or compute on processors",
        ),
    ])
}

/// Whether products in fp8 have sides that tensor cores accept.
fn fp8_sides(plan: &Plan) -> Result<(), RunError> {
    if plan.job.precision != Precision::Fp8 {
        return Ok(());
    }
    let tensor = plan.mesh.tensor;
    let of_block = |block: &Block| {
        let (of, Mlp::Dense(mlp)) = (&block.attention, &block.mlp) else { return Vec::new() };
        let packed = of.heads * of.head_dim + of.kv_heads * (of.head_dim + of.value_head_dim);
        let outputs = of.heads * of.value_head_dim;
        vec![
            ("model.blocks.attention", packed / tensor),
            ("model.blocks.attention", outputs / tensor),
            ("model.blocks.mlp.width", mlp.width / tensor),
        ]
    };
    let tokens = plan.micro_batch * plan.job.sequence / plan.mesh.context;
    let of_plan = [("micro_batch", tokens), ("model.hidden", plan.model.hidden)];
    let mut sides = of_plan.into_iter().chain(plan.model.blocks.iter().flat_map(|run| of_block(&run.block)));
    match sides.find(|(_, side)| !side.is_multiple_of(FP8_SIDES)) {
        None => Ok(()),
        Some((key, side)) => {
            let value = format!("{side} rows or columns of a rank's product in `fp8`");
            Err(refuse(key, &value, format!("on a GPU {FP8_SIDES} divides them")))
        }
    }
}
