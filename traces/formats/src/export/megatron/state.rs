//! Who holds which part of the training state, in which precision and where.

use super::Arguments;
use crate::export::fields::gradients;
use crate::export::sheet::Sheet;
use trainwright_spec::optimizer::{MasterWeights, Moments};
use trainwright_spec::plan::Plan;
use trainwright_spec::precision::Precision;
use trainwright_spec::program::Place;

/// The arguments of data parallelism, of the state's precision and of offloading.
pub fn arguments(plan: &Plan, sheet: &mut Sheet, out: &mut Arguments) {
    sharding(plan, sheet, out);
    precision(plan, sheet, out);
    offload(plan, sheet, out);
}

fn sharding(plan: &Plan, sheet: &mut Sheet, out: &mut Arguments) {
    sheet.say(&["data_sharding", "mesh.shard"]);
    let sets = plan.mesh.weight_copies() / plan.mesh.shard();
    let distributed =
        |out: &mut Arguments| out.on("--use-distributed-optimizer", "ddp.use_distributed_optimizer");
    let fsdp = |out: &mut Arguments, strategy: &'static str| {
        distributed(out);
        out.on("--use-megatron-fsdp", "ddp.use_megatron_fsdp");
        out.set("--data-parallel-sharding-strategy", strategy, "ddp.data_parallel_sharding_strategy");
    };
    match plan.data_sharding.as_str() {
        "none" => {}
        "zero1" => distributed(out),
        "zero2" => fsdp(out, "optim_grads"),
        "fsdp" | "hsdp" => fsdp(out, "optim_grads_params"),
        "zero3" | "zero2-fsdp" => {
            sheet.leave("data_sharding", "fsdp, which it is read back as");
            fsdp(out, "optim_grads_params");
        }
        _ => sheet.leave("data_sharding", "gradients are all-reduced instead"),
    }
    if sets > 1 {
        out.set("--num-distributed-optimizer-instances", sets, "ddp.num_distributed_optimizer_instances");
    }
}

fn precision(plan: &Plan, sheet: &mut Sheet, out: &mut Arguments) {
    sheet.say(&["state.gradients", "state.moments", "state.master_weights"]);
    match (plan.job.precision.base(), gradients(plan)) {
        (Precision::Bf16, Precision::Bf16) => out.on("--grad-reduce-in-bf16", ""),
        (Precision::Fp16, Precision::Fp32) => {
            out.on("--accumulate-allreduce-grads-in-fp32", "ddp.grad_reduce_in_fp32")
        }
        (Precision::Bf16, Precision::Fp32) | (Precision::Fp16, Precision::Fp16) => {}
        (Precision::Fp32 | Precision::Tf32, Precision::Fp32 | Precision::Tf32) => {}
        (base, _) => sheet.leave("state.gradients", format!("fp32 or {base}")),
    }
    let (moments, masters) = (plan.state.moments, plan.state.master_weights);
    let aware = moments == Moments::Bf16 || masters == MasterWeights::Remainder;
    if moments == Moments::Int8 {
        sheet.leave("state.moments", "fp32, fp16, bf16 or fp8");
    }
    if masters == MasterWeights::None {
        sheet.leave("state.master_weights", "there always are master weights");
    }
    let can = plan.data_sharding == "zero1"
        && plan.job.precision.base() == Precision::Bf16
        && plan.offload.optimizer.is_none();
    if !aware {
        return;
    }
    if !can {
        let why = "only with a divided optimizer on the GPU and weights in bf16";
        sheet.leave("state.moments", why);
        sheet.leave("state.master_weights", why);
        return;
    }
    if masters != MasterWeights::Remainder {
        sheet.leave("state.moments", "only with master weights as remainders");
        return;
    }
    out.on("--use-precision-aware-optimizer", "optimizer.use_precision_aware_optimizer");
    if moments == Moments::Bf16 {
        out.set("--exp-avg-dtype", "bf16", "");
        out.set("--exp-avg-sq-dtype", "bf16", "");
    }
}

fn offload(plan: &Plan, sheet: &mut Sheet, out: &mut Arguments) {
    let offload = &plan.offload;
    match offload.optimizer {
        None => {}
        Some(Place::Nvme) => sheet.leave("offload.optimizer", "host memory only"),
        Some(Place::Host) => {
            sheet.say(&["offload.optimizer", "offload.optimizer_fraction"]);
            out.on("--optimizer-cpu-offload", "optimizer.optimizer_cpu_offload");
            out.set(
                "--optimizer-offload-fraction",
                offload.optimizer_fraction,
                "optimizer.optimizer_offload_fraction",
            );
            out.on("--use-precision-aware-optimizer", "optimizer.use_precision_aware_optimizer");
        }
    }
    sheet.leave("offload.parameters", "weights stay on the GPU");
    sheet.leave("offload.gradients", "gradients stay on the GPU until the update");
    sheet.leave("offload.delayed_update", "an update is waited for");
    let first = offload.activation_blocks.unwrap_or(plan.model.layers());
    if offload.activations == Some(Place::Host) && plan.stages.len() == 1 && first < plan.model.layers() {
        sheet.say(&["offload.activations", "offload.activation_blocks"]);
        out.set("--cpu-offloading-num-layers", first, "model.cpu_offloading_num_layers");
    } else {
        sheet.leave("offload.activations", "those of some blocks, to host memory, without a pipeline");
    }
}
