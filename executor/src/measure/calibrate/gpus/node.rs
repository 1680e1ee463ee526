//! A machine with GPUs as a cluster by itself: what the catalog knows of them, with what was measured in its place.

use super::links::{Link, LinkKind};
use crate::measure::calibrate::machine;
use trainwright_kernels::cuda::About;
use trainwright_spec::catalog;
use trainwright_spec::cluster::{Cluster, DeviceProfile, Generation, Gpu, Node, Processors};
use trainwright_spec::precision::Precision;
use trainwright_spec::program::{Access, Direction, Kernel};
use trainwright_spec::sourced::Sourced;
use trainwright_spec::units::{Bytes, BytesPerSecond, FlopsPerSecond, Seconds};

/// The best rates of some kernels.
struct Best<'a>(&'a DeviceProfile);

impl Best<'_> {
    fn of(&self, suits: impl Fn(&Kernel) -> bool, amount: impl Fn(&Kernel) -> f64) -> Option<f64> {
        let rows = self.0.kernels.iter().filter(|row| suits(&row.kernel));
        rows.map(|row| amount(&row.kernel) / row.time.get()).max_by(f64::total_cmp)
    }

    /// FLOP/s of products.
    fn products(&self, precision: Precision) -> Option<f64> {
        let suits =
            |kernel: &Kernel| matches!(kernel, Kernel::Gemm { precision: of, .. } if *of == precision);
        self.of(suits, |kernel| kernel.flops().get())
    }

    /// FLOP/s of attention.
    fn attention(&self, way: Direction) -> Option<f64> {
        let suits = |kernel: &Kernel| matches!(kernel, Kernel::FusedAttention(attention) if attention.direction == way);
        self.of(suits, |kernel| kernel.flops().get())
    }

    /// Bytes/s of what memory binds.
    fn streaming(&self, way: Access) -> Option<f64> {
        let suits = |kernel: &Kernel| matches!(kernel, Kernel::Streaming { access, .. } if *access == way);
        self.of(suits, |kernel| match kernel {
            Kernel::Streaming { read, written, .. } => (*read + *written).get(),
            _ => 0.0,
        })
    }
}

/// The node with that many of them.
pub(super) fn cluster(
    name: &str,
    gpus: usize,
    about: &About,
    kernels: &DeviceProfile,
    links: &[Link],
    source: &str,
) -> Cluster {
    let known = catalog::names("nodes").into_iter().filter_map(|node| Node::from_name(node).ok());
    let known = known.filter(|node| node.gpu.name == name);
    // The first one with as many GPUs, if there is one.
    let known = known.min_by_key(|node| node.gpus.value != gpus);
    let is_known = known.is_some();
    // Of a GPU that the catalog does not know all figures are measured, and nothing is known of what joins several.
    let mut node = known.unwrap_or_else(|| Node::from_name(UNKNOWN).expect("the catalog has it"));
    node.name = "this-machine".into();
    node.gpus = Sourced::new(gpus, source);
    node.nics = None;
    name.clone_into(&mut node.gpu.name);
    figures(&mut node.gpu, is_known, about, kernels, source);
    let launched = links.iter().find(|link| link.kind == LinkKind::LaunchInGraph);
    if let Some(link) = launched {
        let value = Seconds::new(link.timed.seconds);
        node.gpu.achieved.kernel_overhead = Sourced::new(value, source);
    }
    node.processors = processors(gpus, links, source);
    let calibration = Some("none".into());
    Cluster {
        name: "this-machine".into(),
        nodes: 1,
        calibration,
        node,
        ..Cluster::from_name(UNKNOWN).expect("the same")
    }
}

/// No device of a cluster is slower, in FLOP/s; an emulated one is.
const SLOWEST: f64 = 1e9;

/// The node of the catalog whose figures are replaced where the GPU is in none of its nodes.
const UNKNOWN: &str = "rtx-4090";

/// What kernels reach. Of a GPU in the catalog parts of what is published, never more than all of it; of another one parts of the
/// best that was measured.
fn figures(gpu: &mut Gpu, is_known: bool, about: &About, kernels: &DeviceProfile, source: &str) {
    let best = Best(kernels);
    let sourced = |value: f64| Sourced::new(value, source.to_string());
    let part =
        |reached: Option<f64>, most: f64| reached.map(|reached| sourced((reached / most).clamp(0.01, 1.0)));
    gpu.memory = Sourced::new(Bytes::new(about.memory as f64), source);
    gpu.multiprocessors = Sourced::new(about.multiprocessors, source);
    if !is_known {
        let fastest = [Access::Elementwise, Access::Reduction].map(|access| best.streaming(access));
        if let Some(rate) = fastest.into_iter().flatten().max_by(f64::total_cmp) {
            gpu.memory_bandwidth = Sourced::new(BytesPerSecond::new(rate), source);
        }
        let measured = Precision::ALL
            .into_iter()
            .filter_map(|precision| Some((precision, best.products(precision)?.max(SLOWEST))));
        gpu.peak = measured
            .map(|(precision, rate)| (precision, Sourced::new(FlopsPerSecond::new(rate), source)))
            .collect();
        gpu.achieved.matrix = gpu.peak.keys().map(|precision| (*precision, sourced(1.0))).collect();
        gpu.achieved.attention.clear();
        gpu.generation = generation(about.capability);
        (gpu.power, gpu.communication) = (None, None);
    }
    let achieved = &mut gpu.achieved;
    for (precision, peak) in &gpu.peak {
        if let Some(part) = part(best.products(*precision), peak.value.get()) {
            achieved.matrix.insert(*precision, part);
        }
    }
    let peak = gpu.peak.get(&Precision::Bf16).map_or(f64::INFINITY, |peak| peak.value.get());
    let bandwidth = gpu.memory_bandwidth.value.get();
    for (field, reached) in [
        (&mut achieved.attention_forward, part(best.attention(Direction::Forward), peak)),
        (&mut achieved.attention_backward, part(best.attention(Direction::Backward), peak)),
        (&mut achieved.memory, part(best.streaming(Access::Elementwise), bandwidth)),
        (&mut achieved.reduction, part(best.streaming(Access::Reduction), bandwidth)),
    ] {
        if let Some(reached) = reached {
            *field = reached;
        }
    }
}

/// The generation of a compute capability.
///
/// Source: NVIDIA, CUDA GPU Compute Capability (developer.nvidia.com/cuda-gpus).
fn generation(capability: (i32, i32)) -> Generation {
    match capability {
        (..8, _) => Generation::Volta,
        (8, ..9) => Generation::Ampere,
        (8 | 9, _) => Generation::Hopper,
        _ => Generation::Blackwell,
    }
}

/// The host as its GPUs reach it. What the copies of several reach together was not measured.
fn processors(gpus: usize, links: &[Link], source: &str) -> Option<Processors> {
    let of = |kind| links.iter().filter(move |link| link.kind == kind);
    let reached = |kind| {
        let rates = of(kind).map(|link| link.bytes as f64 / link.timed.seconds);
        let value = BytesPerSecond::new(rates.max_by(f64::total_cmp)?);
        Some(Sourced::new(value, source.to_string()))
    };
    let (to_host, from_host) = (reached(LinkKind::ToHost)?, reached(LinkKind::FromHost)?);
    let latency = of(LinkKind::ToHost).map(|link| link.timed.seconds).min_by(f64::total_cmp)?;
    let [bandwidth, update] = machine::host_update();
    Some(Processors {
        kind: machine::processor(),
        memory: Sourced::new(machine::memory(), source),
        memory_bandwidth: Sourced::new(BytesPerSecond::new(bandwidth), source),
        update_efficiency: Sourced::new((update / bandwidth).clamp(0.01, 1.0), source),
        together: Sourced::new(
            to_host.value.min(from_host.value) * gpus as f64,
            "assumed: as many times what one GPU reaches",
        ),
        to_host,
        from_host,
        copy_latency: Sourced::new(Seconds::new(latency), source),
        process_time: None,
        drives: None,
    })
}
