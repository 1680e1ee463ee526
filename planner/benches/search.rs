//! The whole planner on the largest jobs that people ask about: `cargo bench -p trainwright-planner --bench search`.
//!
//! Prints how many plans the space has, how many of them were dropped by which rule, time and memory, and how many bounds
//! a core evaluates in a second. Names on the command line choose among the questions, `--space=auto`, `--space=core` and
//! `--space=usual` search a part of the space, `--limit=60` ends each search after 60 seconds.

use std::sync::OnceLock;
use std::time::Instant;
use trainwright_planner::{Bounds, Breadth, Pins, Progress, Question, Risk, Scope, Verdict, plan_within};
use trainwright_spec::cluster::Cluster;
use trainwright_spec::job::Job;
use trainwright_spec::model::preset::preset;
use trainwright_spec::precision::Precision;
use trainwright_spec::stack::Stack;
use trainwright_spec::units::Seconds;

/// Model, cluster, tokens of a sequence, sequences of a step.
const QUESTIONS: [(&str, &str, usize, usize); 4] = [
    ("llama-3-70b", "dgx-h100:16", 8192, 512),
    ("gpt3-175b", "dgx-a100:512", 2048, 1536),
    ("llama-3-405b", "dgx-h100:2048", 8192, 2048),
    ("deepseek-v3", "dgx-h100:256", 4096, 15360),
];

fn question(model: &str, cluster: &str, sequence: usize, global_batch: usize) -> Question {
    Question {
        model: preset(model).expect("a preset"),
        cluster: Cluster::from_name(cluster).expect("a node of the catalog"),
        job: Job {
            sequence,
            global_batch,
            precision: Precision::Bf16,
            optimizer: "adamw".into(),
            gradient_clipping: true,
            adapters: None,
        },
        stack: Stack::from_name("megatron-core").expect("a stack of the catalog"),
        pins: Pins::default(),
        risk: Risk::default(),
    }
}

fn main() {
    let arguments = || std::env::args().skip(1);
    let chosen: Vec<String> = arguments().filter(|name| !name.starts_with('-')).collect();
    let breadth = match arguments().find(|argument| argument.starts_with("--space=")).as_deref() {
        Some("--space=auto") => Breadth::Auto,
        Some("--space=core") => Breadth::Core,
        Some("--space=usual") => Breadth::Usual,
        _ => Breadth::Whole,
    };
    let limit = arguments().find_map(|argument| argument.strip_prefix("--limit=")?.parse().ok());
    for (model, cluster, sequence, global_batch) in QUESTIONS {
        if !chosen.is_empty() && !chosen.iter().any(|name| name == model) {
            continue;
        }
        let mut question = question(model, cluster, sequence, global_batch);
        question.pins.breadth = breadth;
        let rate = bounds_per_second(&question);
        let began = Instant::now();
        let searched = OnceLock::new();
        let watch = |progress: Progress| {
            if progress.phase == "simulations" {
                searched.get_or_init(|| began.elapsed().as_secs_f64());
            }
        };
        let scope = Scope { time: limit.map(Seconds::new), ..Scope::BEST };
        let verdict = plan_within(&question, scope, &watch).expect("there are candidates");
        let search = searched.get().copied().unwrap_or(f64::NAN);
        let seconds = began.elapsed().as_secs_f64();
        println!(
            "{model} on {cluster}: {search:.2} s of search, {seconds:.2} s with forecasts and reasons, {:.0} MiB at most, \
             {rate:.2e} bounds a second",
            peak_mib()
        );
        match verdict {
            Verdict::Found(found) => {
                let best = &found.ranked[0];
                let time = best.forecast.step_time;
                let gap = found.search.gap(time).unwrap_or(f64::NAN);
                println!("  {:?}", found.search);
                println!("  best {time}, within {:.2} % of the bound", 100.0 * gap);
                for ranked in &found.ranked {
                    let plan = &ranked.plan;
                    println!(
                        "  {} {:?} {} v{} microbatch {} {} {} sp {}",
                        ranked.forecast.step_time,
                        plan.mesh,
                        plan.schedule,
                        plan.virtual_stages,
                        plan.micro_batch,
                        plan.data_sharding,
                        plan.context_scheme,
                        plan.sequence_parallel
                    );
                }
            }
            other => println!("  {other:?}"),
        }
    }
}

/// Bounds of time and memory that one core evaluates in a second.
fn bounds_per_second(question: &Question) -> f64 {
    let bounds = Bounds::of(question).expect("there are candidates");
    let began = Instant::now();
    bounds.evaluate(1_000_000) as f64 / began.elapsed().as_secs_f64()
}

/// The most memory that the process has held, where the system says it.
fn peak_mib() -> f64 {
    let status = std::fs::read_to_string("/proc/self/status").unwrap_or_default();
    let peak = status.lines().find_map(|line| line.strip_prefix("VmHWM:"));
    let kib = peak.and_then(|text| text.trim().trim_end_matches(" kB").parse::<f64>().ok());
    kib.unwrap_or(f64::NAN) / 1024.0
}
