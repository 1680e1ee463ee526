//! Traces of PyTorch's profiler.

use std::io::Read;
use trainwright_formats::kineto::read;
use trainwright_formats::measured::Device;
use trainwright_spec::collective::CollectiveKind;
use trainwright_spec::precision::Precision;
use trainwright_spec::program::{Direction, FusedAttention, Kernel};
use trainwright_spec::units::Seconds;
use trainwright_timeline::kinds::OpKind;

/// Two ranks trained a GPT of two layers on CPUs; `tests/tools/make_kineto_trace.py` wrote it.
fn gpt() -> String {
    let zipped: &[u8] = include_bytes!("../data/gpt-2-ranks.json.gz");
    let mut text = String::new();
    flate2::read::GzDecoder::new(zipped).read_to_string(&mut text).unwrap();
    text
}

/// Sizes as the script has them: 2 sequences of 64 tokens, width 128, 4 heads.
#[test]
fn operators_with_shapes_are_a_profile() {
    let profile = read(&gpt(), "gpt").unwrap().profile("gpt").unwrap();
    let count = |wanted: &dyn Fn(&Kernel) -> bool| {
        profile.kernels.iter().filter(|measured| wanted(&measured.kernel)).count()
    };
    let product = |m, n, k| Kernel::Gemm { count: 1, m, n, k, precision: Precision::Fp32, adds_to: None };
    // Forward of the four layers, and of the head, which is as large as the third; each has a product for its input's and
    // one for its weight's gradient.
    for kernel in
        [product(128, 384, 128), product(128, 128, 128), product(128, 512, 128), product(128, 128, 512)]
    {
        assert_eq!(count(&|other| *other == kernel), 1, "{kernel:?}");
    }
    for wanted in [Direction::Forward, Direction::Backward] {
        let is_attention = |kernel: &Kernel| {
            matches!(
                kernel,
                Kernel::FusedAttention(FusedAttention { direction, heads: 4, queries: 64, head_dim: 32, .. })
                    if *direction == wanted
            )
        };
        assert_eq!(count(&is_attention), 1, "{wanted:?}");
    }
}

#[test]
fn a_trace_of_operators() {
    let step = read(&gpt(), "gpt").unwrap();
    assert_eq!((step.steps, step.device), (2, Device::Cpu));
    let count = |kind| step.kinds.0[&kind].0;
    // Four linear layers in each of two blocks, and the head: a product forward, two backward. One attention in a block:
    // an operator each way, and three around them. Two megabytes of gradients are two buckets: the first takes one.
    assert_eq!(count(OpKind::Gemm), 27);
    assert_eq!(count(OpKind::Collective(CollectiveKind::AllReduce)), 2);
    assert_eq!(count(OpKind::Attention), 10);
    let total: Seconds = step.kinds.0.values().map(|(_, time)| *time).sum();
    let on_thread = total - step.kinds.0[&OpKind::Collective(CollectiveKind::AllReduce)].1;
    // The rest of the step is Python, and waiting for the other rank.
    assert!(
        on_thread <= step.step_time && on_thread > 0.2 * step.step_time,
        "{on_thread} of {}",
        step.step_time
    );
}

/// Kernels of a GPU by the names that the libraries give them; operators around them are not counted.
#[test]
fn a_trace_of_kernels() {
    let kernel = |name: &str, ts: f64, dur: f64| {
        format!(r#"{{"ph":"X","cat":"kernel","name":"{name}","pid":0,"tid":7,"ts":{ts},"dur":{dur}}}"#)
    };
    let events = [
        r#"{"ph":"X","cat":"cpu_op","name":"aten::mm","pid":1,"tid":1,"ts":0,"dur":500}"#.to_string(),
        r#"{"ph":"X","cat":"user_annotation","name":"ProfilerStep#3","pid":1,"tid":1,"ts":0,"dur":1000}"#
            .into(),
        kernel("nvjet_hsh_256x128_64x4_1x2_h_bz_coopA_TNT", 10.0, 100.0),
        kernel("sm90_xmma_gemm_bf16bf16_bf16f32_f32_tn_n_tilesize128x128x64", 110.0, 50.0),
        kernel("void flash::flash_fwd_kernel<Flash_fwd_kernel_traits<128>>", 160.0, 40.0),
        kernel("ncclDevKernel_AllReduce_Sum_bf16_RING_LL(ncclDevKernelArgsStorage<4096ul>)", 200.0, 300.0),
        kernel("ncclDevKernel_ReduceScatter_Sum_f32_RING_SIMPLE", 500.0, 20.0),
        kernel("ncclDevKernel_SendRecv", 520.0, 10.0),
        kernel("void at::native::vectorized_elementwise_kernel<4>", 530.0, 5.0),
        kernel("somebody's", 535.0, 3.0),
    ];
    let text = format!(r#"{{"traceEvents":[{}]}}"#, events.join(","));
    let step = read(&text, "trace").unwrap();
    let of = |kind| step.kinds.0[&kind];
    let micros = |time: f64| Seconds::new(time * 1e-6);
    assert_eq!((step.steps, step.device, step.step_time), (1, Device::Gpu, micros(1000.0)));
    let check = |kind, count, time: f64| {
        let (found, total) = of(kind);
        assert_eq!(found, count, "{kind}");
        assert!((total.get() * 1e6 - time).abs() < 1e-9, "{kind}: {total}");
    };
    check(OpKind::Gemm, 2, 150.0);
    check(OpKind::Attention, 1, 40.0);
    check(OpKind::Collective(CollectiveKind::AllReduce), 1, 300.0);
    check(OpKind::Collective(CollectiveKind::ReduceScatter), 1, 20.0);
    check(OpKind::Message, 1, 10.0);
    check(OpKind::Elementwise, 2, 8.0);
    assert_eq!(step.others, [("somebody's".to_string(), micros(3.0))]);
}

/// A product launched two kernels; the shape of their operator is that of both together.
#[test]
fn kernels_get_the_shape_of_the_operator_that_launched_them() {
    let operator = r#"{"ph":"X","cat":"cpu_op","name":"aten::mm","tid":1,"ts":0,"dur":9,"args":{"External id":12,
        "Input Dims":[[64,32],[32,16]],"Input type":["c10::BFloat16","c10::BFloat16"]}}"#;
    let kernel = |ts: f64, dur: f64| {
        format!(
            r#"{{"ph":"X","cat":"kernel","name":"nvjet","ts":{ts},"dur":{dur},"args":{{"External id":12}}}}"#
        )
    };
    let text = format!(r#"{{"traceEvents":[{operator},{},{}]}}"#, kernel(10.0, 5.0), kernel(20.0, 2.0));
    let step = read(&text, "trace").unwrap();
    let expected = Kernel::Gemm { count: 1, m: 64, n: 16, k: 32, precision: Precision::Bf16, adds_to: None };
    let [found] = step.kernels.as_slice() else { panic!("{:?}", step.kernels) };
    assert_eq!(found.kernel, expected);
    assert!((found.time.get() - 7e-6).abs() < 1e-15);
    assert_eq!(step.kinds.0[&OpKind::Gemm].0, 2);
}

#[test]
fn other_files_are_refused() {
    let check = |text: &str, expected: &str| {
        let error = read(text, "file").unwrap_err().to_string();
        assert!(error.starts_with(expected), "{error}");
    };
    check("{}", "file: not a trace of PyTorch's profiler: missing field `traceEvents`");
    check("nothing", "file: not a trace of PyTorch's profiler: expected");
    check(r#"{"traceEvents":[]}"#, "file: the trace has no kernels and no operators");
}
