//! Well-known facts of the field, as the program computes them.

use crate::common::Draft;
use trainwright_lower::memory::{plan_memory, state_per_parameter};
use trainwright_lower::{StageCost, lower};
use trainwright_sim::costs::ClusterCosts;
use trainwright_sim::{Detail, hardware_flops, simulate};
use trainwright_spec::model::flops::AttentionCount;
use trainwright_spec::optimizer::Rule;
use trainwright_spec::plan::Recompute;
use trainwright_spec::program::{Axis, MemoryKind, Program};
use trainwright_spec::units::{Bytes, Flops, FlopsPerSecond, Seconds};
use trainwright_timeline::report::Report;

const DAY: Seconds = Seconds::new(86_400.0);

fn assert_close(value: f64, expected: f64, tolerance: f64, case: &str) {
    let error = value / expected - 1.0;
    assert!(error.abs() <= tolerance, "{case}: {value:.4e} is {:+.2} % off {expected:.4e}", 100.0 * error);
}

/// Weights, gradients and optimizer state of the whole model, all ranks of one replica together.
fn model_state(draft: &Draft) -> Bytes {
    state_per_parameter(&draft.plan(), Axis::Data, Rule::Elements).total() * draft.model.parameters() as f64
}

#[test]
fn gpt3_needs_2_8_terabytes_of_model_state_and_more_than_35_gpus_of_80_gb() {
    // 174.6e9 parameters of 2 + 2 + 4 + 4 + 4 bytes are 2.79 TB: 34.9 times 80 GB. The tenth of a GPU
    // that is left is not enough for the libraries of 35.
    let draft = Draft { stack: "megatron-lm-2021", ..Draft::of("gpt3-175b", [1, 1, 1]) };
    assert_close(model_state(&draft).get(), 2.8e12, 0.01, "16 bytes per parameter");
    let context = draft.plan().stack.context_memory.value;
    let of_35 = 35.0 * Bytes::new(80e9);
    assert!(model_state(&draft) > 34.0 * Bytes::new(80e9));
    assert!(model_state(&draft) + 35.0 * context > of_35, "35 GPUs do not hold it and their libraries");
    // With fp32 gradients, as Megatron accumulates them since 2022, the state alone is more: 18 bytes.
    let draft = Draft { stack: "megatron-lm-2022", ..draft };
    assert!(model_state(&draft) > of_35);
    assert_close(model_state(&draft).get(), 18.0 * 174.6e9, 0.001, "18 bytes per parameter");
}

#[test]
fn gpt3_does_not_fit_on_32_gpus_and_does_on_48() {
    // Only weights, gradients, optimizer state and libraries are sure; full recompute keeps little else.
    let check = |mesh, fits| {
        let plan = Draft {
            stack: "megatron-lm-2021",
            recompute: Recompute::Full,
            sequence: 2048,
            ..Draft::of("gpt3-175b", mesh)
        }
        .plan();
        let gpu = plan.cluster.node.gpu.memory.value;
        let most = plan_memory(&plan).iter().map(|rank| rank.total()).fold(Bytes::ZERO, Bytes::max);
        assert_eq!(most <= gpu, fits, "{mesh:?}: {most} of {gpu}");
    };
    check([8, 4, 1], false);
    check([8, 6, 1], true);
}

#[test]
fn gpt2_xl_has_3_gb_of_weights_and_25_gb_of_model_state() {
    // 1,557,611,200 parameters: 2 bytes each are 3.1 GB, 16 bytes each 24.9 GB.
    let draft = Draft { stack: "pytorch-eager", ..Draft::of("gpt2-xl", [1, 1, 1]) };
    let memory = plan_memory(&draft.plan())[0];
    assert_eq!(memory.weights, Bytes::new(2.0 * 1_557_611_200.0));
    let state = memory.weights + memory.gradients + memory.optimizer;
    assert_eq!(state, Bytes::new(16.0 * 1_557_611_200.0));
    assert_eq!(model_state(&draft), state);
}

/// GPT-3 as 2104.04473 counts it: batch 1536, sequence 2048, full recompute, every score computed.
fn gpt3_iteration() -> (Draft, Program) {
    let draft = Draft {
        recompute: Recompute::Full,
        sequence: 2048,
        microbatches: 96,
        ..Draft::of("gpt3-175b", [8, 8, 16])
    };
    assert_eq!(draft.plan().job.global_batch, 1536);
    let program = lower(&draft.plan());
    (draft, program)
}

#[test]
fn a_gpt3_iteration_with_full_recompute_costs_4_5e18_flops() {
    // F = 96 B s l h² (1 + s / (6 h) + V / (16 l h)), Narayanan et al. 2021, arXiv 2104.04473, section 3; V padded.
    let (batch, s, l, h, v) = (1536.0, 2048.0, 96.0, 12288.0, 51200.0);
    let formula = 96.0 * batch * s * l * h * h * (1.0 + s / (6.0 * h) + v / (16.0 * l * h));
    let (_, program) = gpt3_iteration();
    let flops = hardware_flops(&program);
    assert_close(flops.get(), formula, 1e-9, "the lowered program against the formula");
    assert_close(flops.get(), 4.5e18, 0.01, "one iteration");

    let iterations = 95_000.0;
    assert_close((iterations * flops).get(), 430e21, 0.01, "a training run of 95,000 iterations");
    let a100 = FlopsPerSecond::new(312e12);
    assert_close(iterations * flops / a100 / DAY, 16_000.0, 0.01, "A100-days at peak");
}

#[test]
fn recompute_costs_what_it_runs_again() {
    // Full recompute adds one forward of the blocks, selective that of the scores and their product with the values:
    // per block and sequence 24 s h² + 4 s² h and 4 s² h.
    let flops = |recompute| {
        let draft = Draft { recompute, ..Draft::of("gpt3-1.3b", [2, 2, 2]) };
        let (s, h) = (draft.sequence as f64, draft.model.hidden as f64);
        let blocks = draft.plan().job.global_batch as f64 * draft.model.layers() as f64;
        (hardware_flops(&lower(&draft.plan())), s, h, blocks)
    };
    let (none, s, h, blocks) = flops(Recompute::None);
    let check = |recompute, expected: f64| {
        let again = flops(recompute).0 - none;
        assert_close(again.get(), blocks * expected, 1e-9, recompute.name());
    };
    check(Recompute::Full, 24.0 * s * h * h + 4.0 * s * s * h);
    check(Recompute::Selective, 4.0 * s * s * h);
}

#[test]
fn without_recompute_and_padding_the_hardware_does_the_model_flops() {
    // Unfused attention computes every score; `pytorch-eager` does not pad the vocabulary.
    for model in ["gpt2", "gpt2-xl", "llama-7b", "llama-3-8b", "gpt-neox-20b", "falcon-7b", "qwen3-8b"] {
        let plan = Draft { stack: "pytorch-eager", ..Draft::of(model, [1, 1, 1]) }.plan();
        let model_flops: Flops =
            plan.job.global_batch as f64 * plan.model.training_flops(1024, AttentionCount::Full);
        assert_close(hardware_flops(&lower(&plan)).get(), model_flops.get(), 1e-9, model);
    }
    // FlashAttention computes the visible scores, and the forward ones once more in backward: seven products in
    // place of six. LLaMA's vocabulary of 32,000 needs no padding.
    let plan = Draft { stack: "megatron-core", ..Draft::of("llama-7b", [1, 1, 1]) }.plan();
    let (s, h, l) = (1024.0, 4096.0, 32.0);
    let again = plan.job.global_batch as f64 * l * s * s * h;
    let model_flops =
        plan.job.global_batch as f64 * plan.model.training_flops(1024, AttentionCount::CausalHalved);
    assert_close(hardware_flops(&lower(&plan)).get(), model_flops.get() + again, 1e-9, "flash");
}

#[test]
fn training_takes_8_t_p_over_n_x() {
    // Narayanan et al. 2021, section 5.1: 300 billion tokens on 1,024 A100 at 140 TFLOP/s each take 34 days.
    let (draft, program) = gpt3_iteration();
    let (tokens, gpus, rate) = (300e9, 1024.0, FlopsPerSecond::new(140e12));
    let rule = 8.0 * Flops::new(tokens * draft.model.parameters() as f64) / (gpus * rate);
    assert_close(rule / DAY, 34.0, 0.01, "the rule");
    let iterations = tokens / draft.plan().job.tokens() as f64;
    let counted = iterations * hardware_flops(&program) / (gpus * rate);
    assert_close(counted / DAY, rule / DAY, 0.05, "the program's FLOPs, attention and vocabulary included");
}

#[test]
fn a_block_keeps_what_korthikanti_2022_says() {
    // arXiv 2205.05198, table 2 and section 5, in 16 bits with dropout and unfused attention; bytes per block:
    //   nothing recomputed           s b h (10 + 24/t + 5 a s/(h t))
    //   with sequence parallelism    s b h / t (34 + 5 a s/h)
    //   selective                    s b h (10 + 24/t), 34 s b h / t with sequence parallelism
    //   full                         2 s b h, over t with sequence parallelism
    let check = |model: &str, tensor: usize, micro_batch: usize, recompute, sequence_parallel| {
        let draft = Draft { micro_batch, sequence_parallel, ..Draft::of(model, [tensor, 1, 1]) };
        let plan = draft.plan();
        let block = &plan.model.blocks[0].block;
        let (s, b, h) = (plan.job.sequence as f64, micro_batch as f64, plan.model.hidden as f64);
        let (a, t) = (block.attention.heads as f64, tensor as f64);
        let sbh = s * b * h;
        let unsharded = if sequence_parallel { 10.0 / t } else { 10.0 };
        let scores = 5.0 * a * s / (h * t);
        let expected = match recompute {
            Recompute::None => sbh * (unsharded + 24.0 / t + scores),
            Recompute::Selective => sbh * (unsharded + 24.0 / t),
            Recompute::Full => sbh * unsharded / 5.0,
            Recompute::Pieces(_) => unreachable!("not among `Recompute::ALL`"),
        };
        let kept = StageCost::of_block(&plan, block, recompute).kept;
        let case = format!("{model} t = {tensor}, {}, {sequence_parallel}", recompute.name());
        assert_close(kept.get(), expected, 1e-12, &case);
    };
    for (model, degrees) in [
        ("gpt2", &[1, 2, 4][..]),
        ("megatron-22b", &[1, 8]),
        ("megatron-175b", &[1, 8]),
        ("megatron-530b", &[8]),
        ("megatron-1t", &[8]),
    ] {
        for tensor in degrees {
            for micro_batch in [1, 4] {
                for recompute in Recompute::ALL {
                    for sequence_parallel in [false, true] {
                        check(model, *tensor, micro_batch, recompute, sequence_parallel);
                    }
                }
            }
        }
    }
}

#[test]
fn the_ends_keep_what_korthikanti_2022_says() {
    // Section 4.3: s b h p of embedding dropout on the first of p stages (s b h per microbatch), and on the last
    // 4 s b h (1 + V / h) / t: input of the norm, input of the product, fp32 logits. Beside them 8 s b of token ids.
    let plan = Draft { sequence_parallel: true, ..Draft::of("megatron-22b", [8, 1, 1]) }.plan();
    let (s, h, v, t) = (1024.0, 6144.0, 51200.0, 8.0);
    assert_eq!(StageCost::of_embedding(&plan).kept, Bytes::new(s * h / t + 8.0 * s));
    assert_eq!(StageCost::of_head(&plan).kept, Bytes::new(4.0 * s * h * (1.0 + v / h) / t));
}

#[test]
fn selective_recompute_with_sequence_parallelism_keeps_a_fifth() {
    // GPT-3 175B at t = 8: 10 + 24/8 + 5·96·2048/(12288·8) = 23 against 34/8 = 4.25 bytes per s b h: 5.4 times.
    let plan = |recompute, sequence_parallel| {
        Draft { recompute, sequence_parallel, sequence: 2048, ..Draft::of("megatron-175b", [8, 8, 1]) }.plan()
    };
    let before = plan(Recompute::None, false);
    let after = plan(Recompute::Selective, true);
    let simulated = |plan| {
        let timeline = simulate(&lower(plan), &ClusterCosts::new(&plan.cluster), Detail::Ops).unwrap();
        Report::new(&timeline)
    };
    let (simulated_before, simulated_after) = (simulated(&before), simulated(&after));
    for rank in 0..7 {
        let closed =
            plan_memory(&before)[rank].activations.get() / plan_memory(&after)[rank].activations.get();
        assert_close(closed, 5.4, 0.02, &format!("closed form on rank {rank}"));
        // In backward the simulated peak also has the scores of the one block that is computed again.
        let peak = |report: &Report| report.ranks[rank].memory.kinds[MemoryKind::Activations as usize].peak;
        let ratio = peak(&simulated_before).get() / peak(&simulated_after).get();
        assert!((4.5..5.5).contains(&ratio), "simulated on rank {rank}: {ratio:.2}");
    }
}

#[test]
fn zero_1_divides_the_optimizer_state() {
    // Rajbhandari et al. 2020, arXiv 1910.02054: 4 + 12/d bytes per parameter; with fp32 gradients 6 + 12/d.
    let check = |stack, held: f64| {
        for data in [1, 2, 8, 64] {
            let draft = Draft { stack, data_sharding: "zero1", ..Draft::of("gpt3-1.3b", [1, 1, data]) };
            let memory = plan_memory(&draft.plan())[0];
            let state = memory.weights + memory.gradients + memory.optimizer;
            let parameters = memory.weights.get() / 2.0;
            assert_close(
                state.get() / parameters,
                held + 12.0 / data as f64,
                1e-12,
                &format!("{stack}, d = {data}"),
            );
        }
    };
    check("megatron-lm-2021", 4.0);
    check("pytorch-eager", 4.0);
    check("megatron-lm-2022", 6.0);
    check("megatron-core", 6.0);
}
