//! Traces and logs of measurements.

use super::{CHAKRA, JSON, SQLITE, TEXT, Target, fate, of_text, reader};
use crate::files;
use trainwright_formats::{chakra, kineto, nccl_tests, nsight, vllm_bench};
use trainwright_sim::costs::ClusterCosts;
use trainwright_sim::replay::replay;
use trainwright_spec::cluster::Cluster;
use trainwright_spec::precision::Precision;

pub fn targets() -> Vec<Target> {
    vec![
        of_text(
            "kineto",
            || vec![files::KINETO.into()],
            JSON,
            &["gpu_memcpy", "gloo:all_reduce"],
            |text| fate(kineto::read(text, "f").map(|step| step.profile("f"))),
        ),
        reader("nsight", nsight_files, SQLITE, &[], |bytes| {
            let choice = nsight::Choice { device: None, precision: Some(Precision::Bf16) };
            fate(nsight::read(bytes, "f", choice).map(|step| step.profile("f")))
        }),
        reader("chakra", || vec![files::chakra().0], CHAKRA, &["comm_size", "is_cpu_op"], traced),
        of_text("nccl-tests", || vec![files::NCCL.into()], TEXT, &["sendrecv", "bfloat16"], log),
        of_text("vllm-bench", benches, JSON, &["input_lens", "output_lens"], |text| {
            fate(vllm_bench::BenchResult::read(text))
        }),
    ]
}

fn nsight_files() -> Vec<Vec<u8>> {
    vec![super::file("traces/formats/tests/data/two-steps.sqlite")]
}

fn benches() -> Vec<String> {
    let result = r#"{"completed": 3, "total_input_tokens": 3072, "total_output_tokens": 384, "request_rate": "inf",
        "max_concurrency": 16, "input_lens": [1024, 1024, 1024], "output_lens": [128, 128, 128], "mean_ttft_ms": 120.5,
        "p99_tpot_ms": 31.0, "request_throughput": 2.5}"#;
    vec![result.into(), result.replace("\"inf\"", "2.5").replace("[128, 128, 128]", "[]")]
}

/// A trace that can be read is replayed.
fn traced(bytes: &[u8]) -> Result<(), String> {
    let (metadata, nodes) = chakra::read(bytes, "f").map_err(|error| error.to_string())?;
    let groups = files::chakra_groups();
    let workload = chakra::workload::workload(&[("f.0.et".into(), metadata, nodes)], groups);
    let workload = workload.map_err(|error| error.to_string())?;
    let cluster = Cluster::from_name("dgx-a100").unwrap();
    // Alone, a rank of several waits for ever: that is an answer too.
    let _ = replay(&workload, cluster.gpus(), &ClusterCosts::new(&cluster));
    Ok(())
}

fn log(text: &str) -> Result<(), String> {
    fate(nccl_tests::read(text, "f"))
}
