//! This machine as a node that a simulator knows: each rank a device of a few threads, all sharing the cores.

use super::robust::median;
use crate::error::RunError;
use crate::train::supported;
use jiff::Timestamp;
use jiff::tz::TimeZone;
use std::num::NonZeroUsize;
use std::time::Instant;
use trainwright_kernels::optimizer::{AdamW, StepSize};
use trainwright_kernels::{Matrix, Onto, Threads, elementwise, multiply};
use trainwright_spec::cluster::{Cluster, Cores, DeviceProfile};
use trainwright_spec::plan::Plan;
use trainwright_spec::program::{Direction, Kernel};
use trainwright_spec::sourced::Sourced;
use trainwright_spec::units::Bytes;

/// How ranks are laid on the cores: as `train` does it.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) struct Threading {
    /// Cores of the machine.
    pub cores: usize,
    /// Threads of each rank.
    pub threads: usize,
    /// Ranks of the machine.
    pub ranks: usize,
}

impl Threading {
    /// Of `ranks` ranks on this machine.
    pub fn of(ranks: usize) -> Self {
        let cores = std::thread::available_parallelism().map_or(1, NonZeroUsize::get);
        Self { cores, threads: (cores / ranks.max(1)).max(1), ranks }
    }

    /// Threads that want to run for each core, 1 at least.
    pub fn a_core(self) -> f64 {
        ((self.ranks * self.threads) as f64 / self.cores as f64).max(1.0)
    }

    /// Ranks that compute at once, each on separate cores.
    pub fn at_once(self) -> usize {
        (self.cores / self.threads).min(self.ranks).max(1)
    }
}

/// What a device reaches at best.
pub(super) struct Figures {
    /// FLOP/s of a large product.
    peak: f64,
    /// Bytes/s of a large sum.
    bandwidth: f64,
    /// Parts of the peak that attention reaches, forward and backward.
    attention: [f64; 2],
    /// Seconds of the shortest op.
    overhead: f64,
}

/// Side of the large product, elements of the large sum, and how often each is done.
const SIDE: usize = 768;
const ELEMENTS: usize = 16 << 20;
const TIMES: usize = 7;

impl Figures {
    /// Measures them on as many threads as a rank has; what is known of single ops is in the profile.
    pub fn measure(threading: Threading, profile: &DeviceProfile) -> Self {
        let threads = Threads::new(threading.threads);
        let operands = [vec![1.0f32; SIDE * SIDE], vec![1.0f32; SIDE * SIDE]];
        let mut product = vec![0.0f32; SIDE * SIDE];
        let (mut sum, summand) = (vec![1.0f32; ELEMENTS], vec![1.0f32; ELEMENTS]);
        let [product_time, sum_time] = medians_of([
            &mut || {
                let [a, b] = [0, 1].map(|at| Matrix::rows(&operands[at], SIDE));
                multiply(&mut product, Onto::Replace, a, b, threads);
            },
            &mut || elementwise::add(&mut sum, &summand),
        ]);
        let rate = |kernel: &Kernel, seconds: f64| kernel.flops().get() / seconds;
        let products = profile.ops.iter().filter(|row| matches!(row.measured.kernel, Kernel::Gemm { .. }));
        let in_steps = products.map(|row| rate(&row.measured.kernel, row.measured.time.get()));
        let peak = in_steps.fold(2.0 * (SIDE as f64).powi(3) / product_time, f64::max);
        let attention = [Direction::Forward, Direction::Backward].map(|way| {
            let of_way = profile.ops.iter().filter(
                |row| matches!(row.measured.kernel, Kernel::FusedAttention(attention) if attention.direction == way),
            );
            let best = of_way.map(|row| rate(&row.measured.kernel, row.measured.time.get())).fold(0.0, f64::max);
            (best / peak).clamp(0.01, 1.0)
        });
        let shortest = profile.ops.iter().map(|row| row.measured.time.get()).fold(1e-6, f64::min);
        Self { peak, bandwidth: (3 * 4 * ELEMENTS) as f64 / sum_time, attention, overhead: shortest }
    }
}

/// Median seconds of several things, done in turn.
fn medians_of<const N: usize>(mut work: [&mut dyn FnMut(); N]) -> [f64; N] {
    let mut samples = [const { Vec::new() }; N];
    for _ in 0..TIMES {
        for (work, samples) in work.iter_mut().zip(&mut samples) {
            let start = Instant::now();
            work();
            samples.push(start.elapsed().as_secs_f64());
        }
    }
    samples.map(median)
}

/// Bytes/s of host memory that a large sum reads and writes, and those that a step of AdamW does, which has 28 for each parameter;
/// of one thread, as the executor steps where the optimizer's state is on the host.
pub(super) fn host_update() -> [f64; 2] {
    let mut tensors = [0; 4].map(|_| vec![1.0f32; ELEMENTS]);
    let [weights, gradients, first, second] = &mut tensors;
    let (mut sums, summands) = (vec![1.0f32; ELEMENTS], vec![1.0f32; ELEMENTS]);
    let adam = AdamW { beta1: 0.9, beta2: 0.95, epsilon: 1e-8 };
    let size = StepSize { rate: 0.0, decay: 0.0, gradient_scale: 1.0, step: 1 };
    let [sum, step] = medians_of([&mut || elementwise::add(&mut sums, &summands), &mut || {
        adam.update(weights, gradients, [first, second], size, Threads::ONE)
    }]);
    [12.0 / sum, 28.0 / step].map(|rate| rate * ELEMENTS as f64)
}

/// The machine's memory.
pub(super) fn memory() -> Bytes {
    let kibibytes =
        line_of("/proc/meminfo", "MemTotal:").and_then(|line| kibibytes(&line)).unwrap_or(1 << 20);
    Bytes::new(kibibytes as f64 * 1024.0)
}

/// The node as a cluster by itself.
pub(super) fn cluster(
    ranks: usize,
    threads: usize,
    figures: Figures,
    cores: Cores,
    profile: DeviceProfile,
) -> Cluster {
    let Figures { peak, bandwidth, attention: [forward, backward], overhead } = figures;
    let memory = (memory().get() as usize / ranks.max(1)).max(1 << 30);
    let source = quoted(&source());
    let sourced = |value: String| format!("{{ value = {value}, source = {source} }}");
    let [assumed, processor] = ["assumed: no cost of such a node reads it", &processor()].map(quoted);
    let text = format!(
        r#"
name = "this-machine"
nodes = 1
calibration = "none"
[node]
name = {processor}
gpus = {gpus}
[node.interconnect]
kind = "threads"
bandwidth = {bandwidth}
efficiency = {{ value = 1.0, source = {assumed} }}
latency = {{ value = "1 us", source = {assumed} }}
[node.gpu]
name = "cpu-{count}-threads"
generation = "volta"
library = "trainwright"
memory = {memory}
memory_bandwidth = {bandwidth}
multiprocessors = {one}
[node.gpu.peak]
fp32 = {peak}
[node.gpu.achieved]
attention_forward = {forward}
attention_backward = {backward}
memory = {full}
reduction = {full}
kernel_overhead = {overhead}
[node.gpu.achieved.matrix]
fp32 = {full}
"#,
        gpus = sourced(ranks.to_string()),
        count = threads,
        bandwidth = sourced(format!("\"{:.3} GB/s\"", bandwidth / 1e9)),
        memory = sourced(format!("\"{memory} B\"")),
        one = format_args!("{{ value = 1, source = {assumed} }}"),
        peak = sourced(format!("\"{:.3} GFLOP/s\"", peak / 1e9)),
        forward = sourced(format!("{forward:.4}")),
        backward = sourced(format!("{backward:.4}")),
        full = format_args!("{{ value = 1.0, source = {source} }}"),
        overhead = sourced(format!("\"{:.4} us\"", overhead * 1e6)),
    );
    let mut cluster = Cluster::from_toml(&text, "this machine").expect("measured figures make a cluster");
    (cluster.node.gpu.profile, cluster.node.cores) = (Some(profile), Some(cores));
    cluster
}

/// A number that was measured here.
pub(super) fn sourced(value: usize) -> Sourced<usize> {
    Sourced::new(value, source())
}

fn quoted(text: &str) -> String {
    format!("\"{}\"", text.replace(['"', '\\'], ""))
}

/// The plan on a machine that was measured, with the executor as its software.
///
/// # Errors
/// `Refused` if it does not go together.
pub fn on_machine(plan: &Plan, cluster: &Cluster) -> Result<Plan, RunError> {
    let mut plan = Plan { cluster: cluster.clone(), ..plan.clone() };
    let nodes = plan.cluster.nodes;
    plan.cluster.node.gpus.value = plan.mesh.ranks().div_ceil(nodes);
    supported::with_executor_stack(&plan)
}

/// What was measured, and when: `trainwright 0.1.0 on AMD EPYC 9B45, 2 cores, 4100 MHz, 2026-11-21`.
pub(super) fn source() -> String {
    let cores = std::thread::available_parallelism().map_or(1, NonZeroUsize::get);
    let clock =
        line_of("/proc/cpuinfo", "cpu MHz").and_then(|line| Some(line.split(':').nth(1)?.trim().to_string()));
    let clock = clock.map(|clock| format!(", {clock} MHz")).unwrap_or_default();
    format!("trainwright {} on {}, {cores} cores{clock}, {}", env!("CARGO_PKG_VERSION"), processor(), today())
}

pub(crate) fn processor() -> String {
    let line = line_of("/proc/cpuinfo", "model name");
    line.and_then(|line| Some(line.split(':').nth(1)?.trim().to_string()))
        .unwrap_or_else(|| "a processor".into())
}

fn line_of(path: &str, beginning: &str) -> Option<String> {
    let text = std::fs::read_to_string(path).ok()?;
    text.lines().find(|line| line.starts_with(beginning)).map(str::to_string)
}

fn kibibytes(line: &str) -> Option<usize> {
    line.split_whitespace().nth(1)?.parse().ok()
}

/// The day in UTC, as `2026-11-21`.
pub(crate) fn today() -> String {
    Timestamp::now().to_zoned(TimeZone::UTC).date().to_string()
}
