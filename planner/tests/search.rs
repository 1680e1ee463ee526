//! The planner's answers to small questions: what a plan must be, what pins and bad input lead to, what mends a
//! question without an answer.

use rayon::ThreadPoolBuilder;
use trainwright_planner::{Found, Infeasible, Pins, PlannerError, Question, Ranked, Verdict, plan};
use trainwright_sim::costs::ClusterCosts;
use trainwright_sim::forecast;
use trainwright_spec::cluster::Cluster;
use trainwright_spec::job::Job;
use trainwright_spec::memory::{RankMemory, plan_memory};
use trainwright_spec::model::hf::from_hugging_face;
use trainwright_spec::model::preset::preset;
use trainwright_spec::plan::{DataSharding, Plan, Recompute};
use trainwright_spec::precision::Precision;
use trainwright_spec::stack::Stack;
use trainwright_spec::units::Bytes;

/// A question with the usual choices: bf16, AdamW, clipping, Megatron-Core.
fn question(model: &str, cluster: &str, sequence: usize, global_batch: usize) -> Question {
    Question {
        model: preset(model).unwrap(),
        cluster: Cluster::from_name(cluster).unwrap(),
        job: Job {
            sequence,
            global_batch,
            precision: Precision::Bf16,
            optimizer: "adamw".into(),
            gradient_clipping: true,
        },
        stack: Stack::from_name("megatron-core").unwrap(),
        pins: Pins::default(),
    }
}

fn with_memory(mut question: Question, gib: usize) -> Question {
    question.cluster.node.gpu.memory.value = Bytes::GIB * gib as f64;
    question
}

fn with_blocks(mut question: Question, blocks: usize) -> Question {
    question.model.blocks[0].count = blocks;
    question
}

fn with_pins(question: Question, pins: Pins) -> Question {
    Question { pins, ..question }
}

fn found(question: &Question) -> Found {
    match plan(question, &|_| {}).unwrap() {
        Verdict::Found(found) => found,
        Verdict::Infeasible(infeasible) => panic!("{infeasible:?}"),
    }
}

fn infeasible(question: &Question) -> Infeasible {
    match plan(question, &|_| {}).unwrap() {
        Verdict::Infeasible(infeasible) => infeasible,
        Verdict::Found(found) => panic!("{:?} fits", found.ranked[0].plan.mesh),
    }
}

/// Blocks of each stage that are computed again as a whole or in part.
fn recomputed(plan: &Plan) -> Vec<usize> {
    let again = |choices: &[Recompute]| choices.iter().filter(|choice| **choice != Recompute::None).count();
    plan.stages.iter().map(|stage| again(&stage.0)).collect()
}

#[test]
fn print() {
    let t = std::time::Instant::now();
    for (m, c, s, b, gib) in [
        ("gpt2", "dgx-a100:1", 1024, 64, 0), ("gpt2-xl", "dgx-a100:2", 1024, 256, 0), ("llama-3-8b", "dgx-h100:2", 8192, 64, 0),
        ("llama-3-8b", "dgx-h100:2", 8192, 64, 40), ("llama-3-8b", "dgx-h100:4", 4096, 128, 24), ("gpt3-13b", "dgx-a100:4", 2048, 256, 0),
        ("mixtral-8x7b", "dgx-h100:2", 4096, 64, 0),
        ("llama-3-70b", "dgx-h100:8", 8192, 128, 0),
    ] {
        let mut q = question(m, c, s, b);
        if gib > 0 { q = with_memory(q, gib); }
        for schedule in [None, Some("1f1b"), Some("gpipe"), Some("interleaved")] {
            q.pins.schedule = schedule.map(str::to_string);
            match plan(&q, &|_|{}).unwrap() {
            Verdict::Found(f) => for r in &f.ranked {
                let (_, timeline) = forecast(&r.plan, &ClusterCosts{cluster: &q.cluster}).unwrap();
                let _ = timeline;
                println!("{m} {gib} {schedule:?} {:?} {} v{} mb{} {:?}: est/time {:.3} closed/sim mem {:.4} {:?} {:?}", r.plan.mesh, r.plan.schedule, r.plan.virtual_stages, r.plan.micro_batch, r.plan.data_sharding, r.estimate / r.forecast.step_time,
                   r.forecast.peak_memory / r.forecast.report.peak_memory, recomputed(&r.plan), t.elapsed());
            },
            Verdict::Infeasible(_) => println!("none"),
            }
        }
    }
}
