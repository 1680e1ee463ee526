//! Reads what PyTorch's profiler (Kineto) writes: a Chrome trace of one rank.
//!
//! On a GPU the time of an op is that of its kernels: events of the category `kernel`. Without a GPU it is that of the
//! operators, `cpu_op`, less that of the operators they call. Kernels are told apart by the names that the libraries
//! give them; what has no such name goes through memory once, as most of a framework's own kernels do.

use crate::kinds::{KindTimes, OpKind};
use serde::Deserialize;
use std::collections::BTreeMap;
use thiserror::Error;
use trainwright_spec::collective::CollectiveKind;
use trainwright_spec::units::Seconds;

/// Why a trace cannot be used.
#[derive(Debug, Error)]
pub enum KinetoError {
    /// It is not such a trace.
    #[error("{origin}: not a trace of PyTorch's profiler: {message}")]
    Syntax {
        /// The file.
        origin: String,
        /// What the parser said.
        message: String,
    },
    /// It has no op with a time.
    #[error("{origin}: the trace has no kernels and no operators: record ProfilerActivity.CUDA or .CPU")]
    Empty {
        /// The file.
        origin: String,
    },
}

/// What a rank did in a step, in the mean over those that were recorded.
#[derive(Debug, Clone, PartialEq)]
pub struct MeasuredStep {
    /// Steps that were recorded; 1 if the profiler was not told where they end.
    pub steps: usize,
    /// From the beginning to the end of a step.
    pub step_time: Seconds,
    /// Whether times are of a GPU's kernels or of operators on the host.
    pub device: Device,
    /// Times by kind. Ops of different streams may have run at once.
    pub kinds: KindTimes,
    /// The names that took longest with their times, of those that no rule knows.
    pub others: Vec<(String, Seconds)>,
}

/// What was timed.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Device {
    /// Kernels.
    Gpu,
    /// Operators.
    Cpu,
}

#[derive(Deserialize)]
struct Trace {
    #[serde(rename = "traceEvents")]
    events: Vec<Event>,
}

/// Times are in microseconds.
#[derive(Deserialize)]
struct Event {
    #[serde(default)]
    ph: String,
    #[serde(default)]
    cat: String,
    #[serde(default)]
    name: String,
    #[serde(default)]
    tid: serde_json::Value,
    #[serde(default)]
    ts: f64,
    #[serde(default)]
    dur: f64,
}

impl Event {
    fn end(&self) -> f64 {
        self.ts + self.dur
    }
}

/// The names of this many ops that no rule knows are kept.
const KEPT: usize = 5;

/// Reads a trace. `origin` names the file in messages.
///
/// # Errors
/// `Syntax` and `Empty`.
pub fn read(text: &str, origin: &str) -> Result<MeasuredStep, KinetoError> {
    let syntax =
        |error: serde_json::Error| KinetoError::Syntax { origin: origin.into(), message: error.to_string() };
    let mut events = serde_json::from_str::<Trace>(text).map_err(syntax)?.events;
    events
        .retain(|event| event.ph == "X" && event.dur.is_finite() && event.ts.is_finite() && event.dur >= 0.0);
    let of_gpu = |event: &&Event| matches!(event.cat.as_str(), "kernel" | "gpu_memcpy" | "gpu_memset");
    let device = if events.iter().any(|event| of_gpu(&event)) { Device::Gpu } else { Device::Cpu };
    let timed: Vec<(&str, f64)> = match device {
        Device::Gpu => events.iter().filter(of_gpu).map(|event| (event.name.as_str(), event.dur)).collect(),
        Device::Cpu => on_host(&events),
    };
    if timed.is_empty() {
        return Err(KinetoError::Empty { origin: origin.into() });
    }
    let marks = events
        .iter()
        .filter(|event| event.cat == "user_annotation" && event.name.starts_with("ProfilerStep#"));
    let spans: Vec<(f64, f64)> = marks.map(|mark| (mark.ts, mark.end())).collect();
    let steps = spans.len().max(1);
    let first = |spans: &[(f64, f64)]| spans.iter().map(|span| span.0).fold(f64::INFINITY, f64::min);
    let last = |spans: &[(f64, f64)]| spans.iter().map(|span| span.1).fold(0.0, f64::max);
    let whole: Vec<(f64, f64)> = events.iter().map(|event| (event.ts, event.end())).collect();
    let spans = if spans.is_empty() { whole } else { spans };
    let (mut kinds, mut others) = (KindTimes::default(), BTreeMap::new());
    for (name, time) in &timed {
        let known = kind(name);
        let time = Seconds::new(time * 1e-6);
        kinds.add(known.unwrap_or(OpKind::Elementwise), 1, time);
        if known.is_none() {
            let total = others.entry(name.to_string()).or_insert(Seconds::ZERO);
            *total += time;
        }
    }
    let n = steps as f64;
    for (count, time) in kinds.0.values_mut() {
        (*count, *time) = (count.div_ceil(steps as u64), *time / n);
    }
    let mut others: Vec<(String, Seconds)> =
        others.into_iter().map(|(name, time)| (name, time / n)).collect();
    others.sort_by(|a, b| b.1.get().total_cmp(&a.1.get()).then(a.0.cmp(&b.0)));
    others.truncate(KEPT);
    let step_time = Seconds::new((last(&spans) - first(&spans)) * 1e-6) / n;
    Ok(MeasuredStep { steps, step_time, device, kinds, others })
}

/// Operators with the time that they do not spend in others, and the collectives of gloo, which run on threads of
/// their own.
fn on_host(events: &[Event]) -> Vec<(&str, f64)> {
    let mut threads: BTreeMap<String, Vec<&Event>> = BTreeMap::new();
    for event in events.iter().filter(|event| event.cat == "cpu_op") {
        threads.entry(event.tid.to_string()).or_default().push(event);
    }
    let mut timed = Vec::new();
    for ops in threads.values_mut() {
        // An operator stands before those it calls.
        ops.sort_by(|a, b| a.ts.total_cmp(&b.ts).then(b.dur.total_cmp(&a.dur)));
        let mut open: Vec<(&Event, f64)> = Vec::new();
        for op in ops.iter() {
            while open.last().is_some_and(|(outer, _)| outer.end() <= op.ts) {
                timed.extend(open.pop().map(|(outer, own)| (outer.name.as_str(), own.max(0.0))));
            }
            if let Some((_, own)) = open.last_mut() {
                *own -= op.dur;
            }
            open.push((op, op.dur));
        }
        timed.extend(open.into_iter().map(|(outer, own)| (outer.name.as_str(), own.max(0.0))));
    }
    let collectives = events.iter().filter(|event| event.name.starts_with("gloo:"));
    timed.extend(collectives.map(|event| (event.name.as_str(), event.dur)));
    timed
}

/// The kind of an op by its name; none where no rule knows it.
fn kind(name: &str) -> Option<OpKind> {
    let name = name.to_lowercase();
    let has = |parts: &[&str]| parts.iter().any(|part| name.contains(part));
    if has(&["nccl", "gloo:", "rccl"]) {
        return collective(&name);
    }
    if has(&["flash", "fmha", "scaled_dot_product", "attention", "mha_"]) {
        return Some(OpKind::Attention);
    }
    let products = [
        "gemm",
        "nvjet",
        "cutlass",
        "wgmma",
        "xmma",
        "cijk_",
        "aten::mm",
        "aten::addmm",
        "aten::bmm",
        "aten::baddbmm",
    ];
    if has(&products) {
        return Some(OpKind::Gemm);
    }
    if has(&["memcpy htod", "memcpy dtoh"]) {
        return Some(OpKind::Offload);
    }
    let streaming = [
        "elementwise",
        "norm",
        "softmax",
        "reduce",
        "dropout",
        "gelu",
        "silu",
        "swiglu",
        "adam",
        "multi_tensor",
        "memset",
        "memcpy",
        "copy",
        "cat",
        "embedding",
        "index",
        "cross_entropy",
        "triton",
        "fill",
        "rope",
        "rotary",
        "transpose",
        "aten::add",
        "aten::mul",
        "aten::div",
        "aten::sum",
        "aten::lerp",
        "aten::sqrt",
        "aten::mean",
        "aten::pow",
    ];
    has(&streaming).then_some(OpKind::Elementwise)
}

/// `ncclDevKernel_AllReduce_Sum_bf16_RING_LL`, `nccl:all_gather`, `gloo:reduce_scatter`.
fn collective(name: &str) -> Option<OpKind> {
    let name = name.replace('_', "");
    let kinds = [
        ("allreduce", CollectiveKind::AllReduce),
        ("allgather", CollectiveKind::AllGather),
        ("reducescatter", CollectiveKind::ReduceScatter),
        ("alltoall", CollectiveKind::AllToAll),
        ("broadcast", CollectiveKind::Broadcast),
        ("barrier", CollectiveKind::Barrier),
        ("reduce", CollectiveKind::Reduce),
    ];
    let found = kinds.iter().find(|(part, _)| name.contains(part)).map(|(_, kind)| OpKind::Collective(*kind));
    found.or_else(|| ["send", "recv"].iter().any(|part| name.contains(part)).then_some(OpKind::Message))
}
