//! The cost and gain of formats below 16 bits and of fused kernels in a block, by hand.

use crate::common::Draft;
use trainwright_lower::memory::plan_memory;
use trainwright_lower::{StageCost, lower};
use trainwright_sim::costs::ClusterCosts;
use trainwright_sim::step_time;
use trainwright_spec::cluster::Cluster;
use trainwright_spec::job::Job;
use trainwright_spec::plan::{Plan, Recompute};
use trainwright_spec::precision::Precision;
use trainwright_spec::program::{Kernel, Op, Work};
use trainwright_spec::stack::{Fusion, Stack};
use trainwright_spec::units::{Bytes, Seconds};

/// GPT-2 with flash attention on one GPU of that node in that format.
fn plan(node: &str, precision: Precision) -> Plan {
    let plan = Draft { stack: "megatron-core", ..Draft::of("gpt2", [1, 1, 1]) }.plan();
    let mut cluster = Cluster::from_name(&format!("{node}:1")).unwrap();
    cluster.node.gpus.value = 1;
    let plan = Plan { job: Job { precision, ..plan.job.clone() }, cluster, ..plan };
    plan.check("draft").unwrap();
    plan
}

fn block(plan: &Plan) -> StageCost {
    StageCost::of_block(plan, &plan.model.blocks[0].block, Recompute::None)
}

/// Reads and writes of the memory-bound kernels of that name.
fn streams(ops: &[Op], module: &str) -> Vec<(f64, f64)> {
    let of = |op: &Op| match op.work {
        Work::Compute(Kernel::Streaming { read, written, .. }) if op.module == module => {
            Some((read.get(), written.get()))
        }
        _ => None,
    };
    ops.iter().filter_map(of).collect()
}

/// In which formats the products of a list of ops are.
fn products(ops: &[Op]) -> Vec<Precision> {
    let of = |op: &Op| match op.work {
        Work::Compute(Kernel::Gemm { precision, .. }) => Some(precision),
        _ => None,
    };
    ops.iter().filter_map(of).collect()
}

#[test]
fn operands_are_quantised_once_for_each_dim_they_are_summed_along() {
    // Forward quantises the inputs of qkv, projection, fc1 and fc2: s h, s h, s h and 4 s h elements of 2 bytes; backward
    // their outputs' gradients, from fc2 on: s h, 4 s h, s h and 3 s h. Two copies of 1 byte each (fp8), with a 32nd for
    // the scales (fp8-block: 4 bytes for 128, mxfp8: 1 for 32), or of half a byte and a 16th (nvfp4).
    let sh = 1024.0 * 768.0;
    for (node, precision, operand) in [
        ("dgx-h100", Precision::Fp8, 1.0),
        ("dgx-h100", Precision::Fp8Block, 33.0 / 32.0),
        ("dgx-b200", Precision::MxFp8, 33.0 / 32.0),
        ("dgx-b200", Precision::NvFp4, 9.0 / 16.0),
    ] {
        let cost = block(&plan(node, precision));
        let pass = |elements: &[f64]| -> Vec<(f64, f64)> {
            elements.iter().map(|n| (2.0 * n * sh, 2.0 * operand * n * sh)).collect()
        };
        assert_eq!(streams(&cost.forward.ops, "quantise"), pass(&[1.0, 1.0, 1.0, 4.0]), "{precision}");
        assert_eq!(streams(&cost.backward.ops, "quantise"), pass(&[1.0, 4.0, 1.0, 3.0]), "{precision}");
        // nvfp4 looks for the tensor's largest value first.
        let maxima = streams(&cost.forward.ops, "find maximum");
        let expected = [1.0, 1.0, 1.0, 4.0].map(|n| (2.0 * n * sh, 0.0));
        assert_eq!(maxima, if precision == Precision::NvFp4 { expected.to_vec() } else { Vec::new() });
        assert!(products(&cost.forward.ops).iter().all(|format| *format == precision));
        assert!(products(&cost.backward.ops).iter().all(|format| *format == precision));
    }
}

#[test]
fn attention_and_the_ends_stay_in_16_bits() {
    let plan = plan("dgx-h100", Precision::Fp8);
    let attention = block(&plan).forward.ops.into_iter().find_map(|op| match op.work {
        Work::Compute(Kernel::FusedAttention(attention)) => Some(attention.precision),
        _ => None,
    });
    assert_eq!(attention, Some(Precision::Bf16));
    assert_eq!(products(&StageCost::of_head(&plan).forward.ops), [Precision::Bf16]);
    // The first and the last block too where the stack says so: 4 products in each of 12 blocks, and the head's.
    let count = |plan: &Plan| {
        let all = products(&lower(plan).segments[0].ops);
        all.iter().filter(|format| **format == Precision::Fp8).count()
    };
    assert_eq!(count(&plan), 48);
    let mut wide = plan.clone();
    let text = "first = { value = 1, source = \"test\" }\nlast = { value = 2, source = \"test\" }";
    wide.stack.base_blocks = Some(toml::from_str(text).unwrap());
    assert_eq!(count(&wide), 36);
    assert_eq!(Plan::from_toml(&wide.to_toml(), "test").unwrap(), wide);
}

#[test]
fn integers_go_forward_and_16_bits_back() {
    let plan = plan("dgx-a100", Precision::Int8);
    let cost = block(&plan);
    let sh = 1024.0 * 768.0;
    let pass = [1.0, 1.0, 1.0, 4.0].map(|n| (2.0 * n * sh, n * sh));
    assert_eq!(streams(&cost.forward.ops, "quantise"), pass);
    assert_eq!(streams(&cost.backward.ops, "quantise"), []);
    let back = [4.0, 1.0, 1.0, 1.0].map(|n| (n * sh, 2.0 * n * sh));
    assert_eq!(streams(&cost.backward.ops, "restore"), back);
    assert!(products(&cost.forward.ops).iter().all(|format| *format == Precision::Int8));
    assert!(products(&cost.backward.ops).iter().all(|format| *format == Precision::Fp16));
}

#[test]
fn quantised_inputs_are_kept_and_quantised_weights_stay() {
    // Of 34 s h bytes the four products' inputs are 14, in fp8 7; the attention's output, which the projection no longer
    // keeps, is 2 for backward of attention: 34 - 14 + 7 + 2 = 29, and the statistics 4 s a.
    let (s, h, a) = (1024.0, 768.0, 12.0);
    let wide = plan("dgx-h100", Precision::Bf16);
    let narrow = plan("dgx-h100", Precision::Fp8);
    assert_eq!(block(&wide).kept, Bytes::new(34.0 * s * h + 4.0 * s * a));
    assert_eq!(block(&narrow).kept, Bytes::new(29.0 * s * h + 4.0 * s * a));
    // Two copies of 1 byte of each of the 12 h² weights of a block's products, made once in a step.
    let weights = |plan: &Plan| plan_memory(plan)[0].weights.get();
    let elements = 12.0 * 12.0 * h * h;
    assert_eq!(weights(&narrow) - weights(&wide), 2.0 * elements);
    let program = lower(&narrow);
    let update = &program.segments.last().unwrap().ops;
    assert_eq!(streams(update, "quantise weights"), [(2.0 * elements, 2.0 * elements)]);
}

#[test]
fn formats_that_a_gpu_has_no_figures_of_are_refused() {
    let mut plan = plan("dgx-h100", Precision::Fp8);
    plan.job.precision = Precision::NvFp4;
    let error = plan.check("draft").unwrap_err().to_string();
    assert!(
        error.contains("nvfp4") && error.contains("computes in fp32, tf32, fp16, bf16, fp8, fp8-block"),
        "{error}"
    );
}

/// The step of a model under a stack of the catalog.
fn step(model: &str, node: &str, stack: &str) -> Seconds {
    let draft = Draft { sequence: 2048, blocks: 8, ..Draft::of(model, [1, 1, 1]) };
    let mut plan = Plan { stack: Stack::from_name(stack).unwrap(), ..draft.plan() };
    plan.cluster = Cluster::from_name(&format!("{node}:1")).unwrap();
    plan.cluster.node.gpus.value = 1;
    plan.check("draft").unwrap();
    step_time(&lower(&plan), &ClusterCosts::new(&plan.cluster)).unwrap().into()
}

#[test]
fn each_level_of_fusion_is_faster_than_the_one_before() {
    let a100 = ["unfused", "fused-softmax", "flash-1", "flash-2", "fully-fused"];
    let h100 = ["unfused", "fused-softmax", "flash-2", "flash-3", "fully-fused"];
    for (node, levels) in [("dgx-a100", a100), ("dgx-h100", h100)] {
        let times = levels.map(|level| step("gpt3-1.3b", node, &format!("kernels-{level}")));
        assert!(times.windows(2).all(|pair| pair[1] < pair[0]), "{node}: {times:?}");
        // LightSeq2 reports 1.4 to 3.5 times for training with everything fused (arXiv 2110.05722, abstract).
        assert!((1.4..3.5).contains(&(times[0] / times[4])), "{node}: {times:?}");
    }
}

#[test]
fn a_generation_of_attention_that_the_gpu_has_no_figures_of_is_refused() {
    let draft = Draft::of("gpt2", [1, 1, 1]);
    let plan = Plan { stack: Stack::from_name("kernels-flash-3").unwrap(), ..draft.plan() };
    let error = plan.check("draft").unwrap_err().to_string();
    assert!(
        error.contains("`flash-3`") && error.contains("has figures of flash, flash-1, flash-2"),
        "{error}"
    );
}

#[test]
fn separate_norms_cross_entropy_and_optimizer_by_hand() {
    let fused = Draft { stack: "megatron-core", ..Draft::of("gpt2", [1, 1, 1]) }.plan();
    let mut other = fused.clone();
    other.stack.norms = Fusion::Separate;
    other.stack.cross_entropy = Fusion::Fused;
    other.stack.optimizer = Fusion::Separate;
    let (s, h, v) = (1024.0, 768.0, 50304.0);
    // A norm reads four times and writes twice, and keeps what has no gain yet: 2 s h for each of two norms.
    assert_eq!(block(&other).kept - block(&fused).kept, Bytes::new(2.0 * 2.0 * s * h));
    let ops = &block(&other).forward.ops;
    assert_eq!(streams(ops, "norm mean"), [(2.0 * s * h, 0.0); 2]);
    assert_eq!(streams(ops, "norm gain"), [(2.0 * s * h, 2.0 * s * h); 2]);
    // 16-bit logits are kept in place of fp32 probabilities; the final norm keeps 2 s h more.
    let head = |plan| StageCost::of_head(plan).kept.get();
    assert_eq!(head(&fused) - head(&other), 2.0 * s * v - 2.0 * s * h);
    // 14 tensors in each of 12 blocks: 4 of norms, 4 of queries and of keys with values, 2 of the projection, 4 of the
    // feed-forward part; token and position embedding and 2 of the final norm.
    let launches = |plan: &Plan| {
        let program = lower(plan);
        program.segments.last().unwrap().ops.iter().filter(|op| op.module == "optimizer").count()
    };
    assert_eq!(launches(&fused), 1);
    assert_eq!(launches(&other), 12 * 14 + 4);
}
