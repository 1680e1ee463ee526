//! The bounds against what they bound, and the search against solving everything.

use super::*;
use crate::verdict::Pins;
use trainwright_spec::cluster::Cluster;
use trainwright_spec::job::Job;
use trainwright_spec::model::preset::preset;
use trainwright_spec::precision::Precision;
use trainwright_spec::stack::Stack;

/// A question on the first blocks of a model, on GPUs of a given memory.
fn question(model: &str, blocks: usize, cluster: &str, gib: f64, job: [usize; 2], stack: &str) -> Question {
    let mut model = preset(model).unwrap();
    model.blocks[0].count = blocks;
    let mut cluster = Cluster::from_name(cluster).unwrap();
    cluster.node.gpu.memory.value = Bytes::GIB * gib;
    let [sequence, global_batch] = job;
    Question {
        model,
        cluster,
        job: Job {
            sequence,
            global_batch,
            precision: Precision::Bf16,
            optimizer: "adamw".into(),
            gradient_clipping: true,
        },
        stack: Stack::from_name(stack).unwrap(),
        pins: Pins::default(),
    }
}

/// Ample and tight memory, one node and several, pipelines of uneven stages, experts, every stack.
fn questions() -> Vec<(&'static str, Question)> {
    let two_of = |nodes: usize, mut question: Question| {
        question.cluster.node.gpus.value = 2;
        question.cluster.nodes = nodes;
        question
    };
    let unclipped = |mut question: Question| {
        question.job.gradient_clipping = false;
        question
    };
    let core = "megatron-core";
    vec![
        ("one GPU", two_of(1, question("gpt2", 12, "dgx-a100:1", 79.0, [1024, 8], core))),
        ("gpt2, ample", question("gpt2", 12, "dgx-a100:1", 79.0, [1024, 16], core)),
        ("gpt2, tight", question("gpt2", 12, "dgx-a100:1", 4.0, [1024, 16], core)),
        ("gpt2 in three", two_of(3, question("gpt2", 7, "dgx-a100:1", 79.0, [1024, 12], "pytorch-eager"))),
        ("gpt2-xl, tight", question("gpt2-xl", 24, "dgx-a100:1", 7.0, [1024, 8], "megatron-lm-2022")),
        ("gpt2-xl on small nodes", two_of(4, question("gpt2-xl", 24, "dgx-a100:1", 12.0, [1024, 8], core))),
        ("gpt2-xl, unclipped", unclipped(question("gpt2-xl", 12, "dgx-a100:2", 79.0, [1024, 16], core))),
        ("llama-3-8b, ample", question("llama-3-8b", 8, "dgx-h100:1", 79.0, [4096, 8], core)),
        ("llama-3-8b, tight", question("llama-3-8b", 16, "dgx-h100:1", 14.0, [4096, 8], core)),
        ("llama-3-8b, two nodes", question("llama-3-8b", 12, "dgx-h100:2", 10.0, [8192, 16], core)),
        ("llama, 2021", question("llama-3-8b", 8, "dgx-h100:1", 20.0, [2048, 8], "megatron-lm-2021")),
        ("mixtral-8x7b", question("mixtral-8x7b", 6, "dgx-h100:2", 24.0, [4096, 16], core)),
        ("experts after dense", question("deepseek-v3", 2, "dgx-h100:2", 79.0, [1024, 16], core)),
    ]
}

#[test]
fn print() {
    for (name, mut question) in questions() {
        if name == "experts after dense" {
            question.model.blocks[1].count = 3;
        }
        let start = std::time::Instant::now();
        let space = match Space::new(&question, &|_| {}) {
            Ok(space) => space,
            Err(error) => {
                println!("{name}: {error}");
                continue;
            }
        };
        let all: Vec<usize> = (0..space.candidates.len()).collect();
        let trials = space.tried(&all).unwrap();
        let (mut least, mut which, mut fit, mut wrong) = (f64::INFINITY, 0, 0, 0);
        let mut worst = [[f64::INFINITY, f64::NEG_INFINITY]; 3];
        let mut recomputes = 0;
        for (index, trial) in trials {
            if let Trial::Simulated { time, plan, estimate } = trial {
                fit += 1;
                let ratio = Seconds::from(time) / space.bounds[index];
                if ratio < 1.0 || !space.order.contains(&index) {
                    wrong += 1;
                    if wrong < 4 {
                        println!("{ratio} {:?}", space.candidates[index]);
                    }
                }
                if ratio < least {
                    (least, which) = (ratio, index);
                }
                recomputes += usize::from(
                    plan.stages
                        .iter()
                        .any(|s| s.0.iter().any(|r| *r != trainwright_spec::plan::Recompute::None)),
                );
                let e = estimate / Seconds::from(time);
                let k = ["gpipe", "1f1b", "interleaved"].iter().position(|n| *n == plan.schedule).unwrap();
                worst[k][0] = worst[k][0].min(e);
                worst[k][1] = worst[k][1].max(e);
            }
        }
        println!(
            "{name}: {} candidates, {} ordered, {fit} fit, {recomputes} recompute, {wrong} wrong, least ratio {least:.4} {}; est {worst:.3?}; {:?}",
            all.len(),
            space.order.len(),
            space.candidates[which].words(),
            start.elapsed()
        );
    }
}
