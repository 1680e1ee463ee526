//! The training state: how it is divided among ranks, its precision, and its offload.

use super::super::arguments::Arguments;
use super::super::{Request, shard};
use trainwright_spec::error::SpecError;
use trainwright_spec::limits::{LAYERS, RANKS};
use trainwright_spec::optimizer::{MasterWeights, Moments};
use trainwright_spec::plan::Plan;
use trainwright_spec::precision::Precision;
use trainwright_spec::program::Place;

/// Reads the arguments of data parallelism, of the state's precision and of offloading.
pub fn read(given: &Arguments, request: &Request, plan: &mut Plan) -> Result<(), SpecError> {
    sharding(given, request, plan)?;
    precision(given, request, plan)?;
    offload(given, plan)
}

fn sharding(given: &Arguments, request: &Request, plan: &mut Plan) -> Result<(), SpecError> {
    let sets = given.count_or("--num-distributed-optimizer-instances", 1, RANKS)?;
    let copies = plan.mesh.weight_copies();
    if !copies.is_multiple_of(sets) {
        let allowed = format!("it must divide the {copies} ranks with the same weights");
        return Err(request.bad("--num-distributed-optimizer-instances", sets, allowed));
    }
    plan.mesh.shard = (sets > 1).then_some(copies / sets);
    let strategy = given.text("--data-parallel-sharding-strategy");
    let distributed = divides(given);
    let keeps = given.has("--torch-fsdp2-no-reshard-after-forward");
    given.has("--ckpt-format");
    let fsdp = fsdp(given);
    if fsdp == Fsdp::Torch && (plan.mesh.pipeline > 1 || plan.mesh.expert > 1) {
        let allowed = "Megatron-LM has it without pipeline and expert parallelism";
        return Err(request.bad("--use-torch-fsdp2", "given", allowed));
    }
    let scheme = match fsdp {
        Fsdp::None if distributed => "zero1",
        Fsdp::None => "none",
        Fsdp::Torch if keeps => "zero2-fsdp",
        Fsdp::Torch => "fsdp",
        Fsdp::Megatron => {
            if strategy.is_none() {
                given.assume("--data-parallel-sharding-strategy", NO_STRATEGY);
            }
            of_strategy(strategy.unwrap_or(NO_STRATEGY), sets, request)?
        }
    };
    shard(plan, scheme);
    Ok(())
}

/// Whether ranks divide the optimizer's state; `dist_muon` is the former name of `muon` with the flag.
pub fn divides(given: &Arguments) -> bool {
    given.has("--use-distributed-optimizer") || given.text("--optimizer") == Some("dist_muon")
}

/// The code that divides parameters, gradients and optimizer.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Fsdp {
    /// None; the distributed optimizer may divide its state.
    None,
    /// PyTorch's `fully_shard`.
    Torch,
    /// Megatron's own, with a strategy.
    Megatron,
}

/// The flags of each; the second name of Megatron's was the first one.
const FSDP: &[(&str, Fsdp)] = &[
    ("--use-torch-fsdp2", Fsdp::Torch),
    ("--use-megatron-fsdp", Fsdp::Megatron),
    ("--use-custom-fsdp", Fsdp::Megatron),
];

/// The code that the flags choose.
pub fn fsdp(given: &Arguments) -> Fsdp {
    FSDP.iter().find(|(flag, _)| given.has(flag)).map_or(Fsdp::None, |(_, fsdp)| *fsdp)
}

/// What Megatron-FSDP does without a strategy.
const NO_STRATEGY: &str = "no_shard";

/// The scheme of a strategy of Megatron-FSDP with `sets` copies of the state.
fn of_strategy(strategy: &str, sets: usize, request: &Request) -> Result<&'static str, SpecError> {
    match strategy {
        "no_shard" => Ok("none"),
        "optim" => Ok("zero1"),
        "optim_grads" => Ok("zero2"),
        "optim_grads_params" if sets > 1 => Ok("hsdp"),
        "optim_grads_params" => Ok("fsdp"),
        other => Err(request.bad_text(
            "--data-parallel-sharding-strategy",
            other,
            "no_shard, optim, optim_grads or optim_grads_params",
        )),
    }
}

fn precision(given: &Arguments, request: &Request, plan: &mut Plan) -> Result<(), SpecError> {
    let short = given.has("--grad-reduce-in-bf16");
    let long = given.has("--accumulate-allreduce-grads-in-fp32");
    let gradients = match plan.job.precision.base() {
        Precision::Bf16 if short => Precision::Bf16,
        Precision::Fp16 if !long => Precision::Fp16,
        Precision::Tf32 => Precision::Tf32,
        _ => Precision::Fp32,
    };
    let of_stack = plan.stack.gradient_precision(plan.job.precision).base();
    plan.state.gradients = (of_stack != gradients).then_some(gradients);
    let aware = given.has("--use-precision-aware-optimizer");
    let [first, second] =
        ["--exp-avg-dtype", "--exp-avg-sq-dtype"].map(|flag| given.text(flag).unwrap_or("fp32"));
    let offloads = given.has("--optimizer-cpu-offload");
    if !aware || offloads {
        return Ok(());
    }
    plan.state.moments = match (first, second) {
        ("fp32", "fp32") => Moments::Fp32,
        ("bf16", "bf16") => Moments::Bf16,
        _ => {
            let value = format!("{first}, that of squares {second}");
            return Err(request.bad("--exp-avg-dtype", value, "both fp32 or both bf16"));
        }
    };
    if plan.job.precision.base() == Precision::Bf16 {
        plan.state.master_weights = MasterWeights::Remainder;
    }
    Ok(())
}

fn offload(given: &Arguments, plan: &mut Plan) -> Result<(), SpecError> {
    let part = given.number("--optimizer-offload-fraction")?.unwrap_or(1.0);
    if given.has("--optimizer-cpu-offload") {
        plan.offload.optimizer = Some(Place::Host);
        plan.offload.optimizer_fraction = part;
    }
    let blocks = given.count_or("--cpu-offloading-num-layers", 0, LAYERS.or_zero())?;
    if blocks > 0 {
        plan.offload.activations = Some(Place::Host);
        plan.offload.activation_blocks = Some(blocks);
    }
    Ok(())
}
