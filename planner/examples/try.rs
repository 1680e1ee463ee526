//! scratch
use trainwright_planner::*;
use trainwright_spec::{
    cluster::Cluster, job::Job, model::preset::preset, precision::Precision, stack::Stack,
};
fn main() {
    let a: Vec<String> = std::env::args().collect();
    let question = Question {
        model: preset(&a[1]).unwrap(),
        cluster: Cluster::from_name(&a[2]).unwrap(),
        job: Job {
            sequence: a[3].parse().unwrap(),
            global_batch: a[4].parse().unwrap(),
            precision: Precision::Bf16,
            optimizer: "adamw".into(),
            gradient_clipping: true,
        },
        stack: Stack::from_name(a.get(5).map_or("megatron-core", |s| s)).unwrap(),
        pins: Pins::default(),
    };
    let t = std::time::Instant::now();
    let log = |p: Progress| {
        if std::env::var("V").is_ok() {
            eprintln!("{:?} {:?}", t.elapsed(), p)
        }
    };
    match plan(&question, &log).unwrap() {
        Verdict::Found(f) => {
            println!("{:?}", f.search);
            for r in &f.ranked {
                let p = &r.plan;
                println!(
                    "{:?} mb {} {} v{} sp {} {:?} | {} est {} mfu {:.1}% mem {:.1} | {} | {}",
                    p.mesh,
                    p.micro_batch,
                    p.schedule,
                    p.virtual_stages,
                    p.sequence_parallel,
                    p.data_sharding,
                    r.forecast.step_time,
                    r.estimate,
                    100.0 * r.forecast.mfu_full_attention,
                    r.forecast.peak_memory.as_gib(),
                    r.limited_by,
                    p.stages[0]
                );
            }
            for a in &f.alternatives {
                println!("  {:50} {}", a.choice, a.reason);
            }
        }
        Verdict::Infeasible(i) => println!("{i:#?}"),
    }
    println!("{:?}", t.elapsed());
}
