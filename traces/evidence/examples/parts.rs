use trainwright_sim::serving::{Batch, StepModel};
use trainwright_spec::cluster::Cluster;
use trainwright_spec::model::preset::preset;
use trainwright_spec::serving::{Engine, ServingPlan};
fn main() {
    let a: Vec<String> = std::env::args().skip(1).collect();
    let n = |i: usize| a[i].parse::<usize>().unwrap();
    let model = preset(&a[0]).unwrap();
    let cluster = Cluster::from_name(&a[1]).unwrap();
    let mut plan = ServingPlan::new(Engine::from_name(&a[2]).unwrap()).with_tensor(n(3));
    plan.expert = n(4);
    plan.weights = a[5].clone(); plan.expert_weights = a[6].clone(); plan.cache = a[7].clone();
    let batch = Batch { chunks: usize::from(n(8) > 0), queries: n(8), before: 0, decodes: n(9), history: n(10), sampled: n(9).max(1) };
    let mut steps = StepModel::new(&model, &plan, &cluster).unwrap();
    let step = steps.step(&batch).unwrap();
    for (part, time) in &step.parts { println!("{:24} {:9.3} ms", part.name(), 1e3 * time.get()); }
    println!("gpu {:.3} ms, {} kernels, total {:.3} ms", 1e3 * step.gpu().get(), step.kernels, 1e3 * step.total.get());
}
