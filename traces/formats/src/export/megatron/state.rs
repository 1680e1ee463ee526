//! The training state: how it is divided among ranks, its precision, and its offload.

use super::Arguments;
use crate::export::coverage::Coverage;
use crate::export::fields::gradients;
use trainwright_spec::optimizer::{MasterWeights, Moments};
use trainwright_spec::plan::Plan;
use trainwright_spec::precision::Precision;
use trainwright_spec::program::Place;

/// The arguments of data parallelism, of the state's precision and of offloading.
pub fn arguments(plan: &Plan, coverage: &mut Coverage, out: &mut Arguments) {
    sharding(plan, coverage, out);
    precision(plan, coverage, out);
    offload(plan, coverage, out);
}

fn sharding(plan: &Plan, coverage: &mut Coverage, out: &mut Arguments) {
    coverage.express(&["data_sharding", "mesh.shard"]);
    let sets = plan.mesh.weight_copies() / plan.mesh.shard();
    let distributed =
        |out: &mut Arguments| out.on("--use-distributed-optimizer", "ddp.use_distributed_optimizer");
    let fsdp = |out: &mut Arguments, strategy: &'static str| {
        distributed(out);
        out.on("--use-megatron-fsdp", "ddp.use_megatron_fsdp");
        // It saves in no other format.
        out.set("--ckpt-format", "fsdp_dtensor", "checkpoint.ckpt_format");
        out.set("--data-parallel-sharding-strategy", strategy, "ddp.data_parallel_sharding_strategy");
    };
    match plan.data_sharding.as_str() {
        "none" => {}
        "zero1" => distributed(out),
        "zero2" => fsdp(out, "optim_grads"),
        "fsdp" | "hsdp" => fsdp(out, "optim_grads_params"),
        "zero3" | "zero2-fsdp" => {
            coverage.omit("data_sharding", "fsdp, which it is read back as");
            fsdp(out, "optim_grads_params");
        }
        _ => coverage.omit("data_sharding", "gradients are all-reduced instead"),
    }
    let divides = plan.data_sharding != "none";
    if divides && matches!(plan.job.optimizer.as_str(), "momentum" | "sgd") {
        coverage.refuse("job.optimizer", "the distributed optimizer takes adam alone");
    }
    if plan.job.optimizer == "muon" && !["none", "zero1"].contains(&plan.data_sharding.as_str()) {
        coverage.refuse("job.optimizer", "Megatron-FSDP does not take muon");
    }
    if sets > 1 {
        out.set("--num-distributed-optimizer-instances", sets, "ddp.num_distributed_optimizer_instances");
    }
}

fn precision(plan: &Plan, coverage: &mut Coverage, out: &mut Arguments) {
    coverage.express(&["state.gradients", "state.moments", "state.master_weights"]);
    match (plan.job.precision.base(), gradients(plan)) {
        (Precision::Bf16, Precision::Bf16) => out.on("--grad-reduce-in-bf16", ""),
        (Precision::Fp16, Precision::Fp32) => {
            out.on("--accumulate-allreduce-grads-in-fp32", "ddp.grad_reduce_in_fp32")
        }
        (Precision::Bf16, Precision::Fp32) | (Precision::Fp16, Precision::Fp16) => {}
        (Precision::Fp32 | Precision::Tf32, Precision::Fp32 | Precision::Tf32) => {}
        (base, _) => coverage.omit("state.gradients", format!("fp32 or {base}")),
    }
    let (moments, masters) = (plan.state.moments, plan.state.master_weights);
    let needs_precision_aware = moments == Moments::Bf16 || masters == MasterWeights::Remainder;
    if moments == Moments::Int8 {
        coverage.omit("state.moments", "fp32, fp16, bf16 or fp8");
    }
    if masters == MasterWeights::None {
        coverage.omit("state.master_weights", "there always are master weights");
    }
    let supports_precision_aware = plan.data_sharding == "zero1"
        && plan.job.precision.base() == Precision::Bf16
        && plan.job.optimizer != "muon"
        && plan.offload.optimizer.is_none();
    if !needs_precision_aware {
        return;
    }
    if !supports_precision_aware {
        let why = "only with adam, divided and on the GPU, and weights in bf16";
        coverage.omit("state.moments", why);
        coverage.omit("state.master_weights", why);
        return;
    }
    if masters != MasterWeights::Remainder {
        coverage.omit("state.moments", "only with master weights as remainders");
        return;
    }
    out.on("--use-precision-aware-optimizer", "optimizer.use_precision_aware_optimizer");
    if moments == Moments::Bf16 {
        out.set("--exp-avg-dtype", "bf16", "");
        out.set("--exp-avg-sq-dtype", "bf16", "");
    }
}

fn offload(plan: &Plan, coverage: &mut Coverage, out: &mut Arguments) {
    let offload = &plan.offload;
    match offload.optimizer {
        None => {}
        Some(Place::Nvme) => coverage.omit("offload.optimizer", "host memory only"),
        Some(Place::Host) => {
            coverage.express(&["offload.optimizer", "offload.optimizer_fraction"]);
            out.on("--optimizer-cpu-offload", "optimizer.optimizer_cpu_offload");
            out.set(
                "--optimizer-offload-fraction",
                offload.optimizer_fraction,
                "optimizer.optimizer_offload_fraction",
            );
            out.on("--use-precision-aware-optimizer", "optimizer.use_precision_aware_optimizer");
        }
    }
    coverage.omit("offload.parameters", "weights stay on the GPU");
    coverage.omit("offload.gradients", "gradients stay on the GPU until the update");
    coverage.omit("offload.delayed_update", "an update is waited for");
    let first = offload.activation_blocks.unwrap_or(plan.model.layers());
    if offload.activations == Some(Place::Host) && plan.stages.len() == 1 && first < plan.model.layers() {
        coverage.express(&["offload.activations", "offload.activation_blocks"]);
        out.set("--cpu-offloading-num-layers", first, "model.cpu_offloading_num_layers");
    } else {
        coverage.omit("offload.activations", "those of some blocks, to host memory, without a pipeline");
    }
}
