//! Reads what PyTorch's profiler (Kineto) writes: a Chrome trace of one rank, as JSON.
//!
//! On a GPU the time of an op is that of its kernels: events of the category `kernel`. Without a GPU it is that of the
//! operators, `cpu_op`, less that of the operators they call. With `record_shapes` an operator has the sizes of its
//! inputs, and with them the kernels that it launched have shapes.

use crate::measured::{Call, Device, MeasuredStep, Recording, precision};
use serde::Deserialize;
use serde_json::Value;
use std::collections::BTreeMap;
use thiserror::Error;
use trainwright_spec::limits;
use trainwright_spec::program::Kernel;
use trainwright_spec::units::Seconds;

/// Why a trace cannot be used.
#[derive(Debug, Error)]
pub enum KinetoError {
    /// It is no Kineto trace.
    #[error("{origin}: not a trace of PyTorch's profiler: {message}")]
    Syntax {
        /// The file.
        origin: String,
        /// The parser's message.
        message: String,
    },
    /// It has no op with a time.
    #[error("{origin}: the trace has no kernels and no operators: record ProfilerActivity.CUDA or .CPU")]
    Empty {
        /// The file.
        origin: String,
    },
}

#[derive(Deserialize)]
struct Trace {
    #[serde(rename = "traceEvents")]
    events: Vec<Event>,
}

/// Times are in microseconds.
#[derive(Deserialize, Default)]
#[serde(default)]
struct Event {
    ph: String,
    cat: String,
    name: String,
    tid: Value,
    ts: f64,
    dur: f64,
    args: Arguments,
}

/// Additional fields of an event, as far as they are used.
#[derive(Deserialize, Default)]
#[serde(default)]
struct Arguments {
    /// The same number for an operator and the kernels that it launched.
    #[serde(rename = "External id")]
    external: Value,
    #[serde(rename = "Input Dims")]
    sizes: Value,
    #[serde(rename = "Input type")]
    types: Value,
    #[serde(rename = "Concrete Inputs")]
    scalars: Value,
}

/// Seconds in the unit of a trace's times.
const MICROSECONDS: f64 = 1e-6;

impl Event {
    fn end(&self) -> f64 {
        self.ts + self.dur
    }

    /// The number of the operator; older versions write it as text.
    fn operator(&self) -> Option<u64> {
        let id = &self.args.external;
        id.as_u64().or_else(|| id.as_str()?.parse().ok())
    }

    /// The operator's call, if the profiler recorded shapes.
    fn call(&self) -> Option<Call> {
        // A list of tensors among the inputs has one level more: it is no shape.
        let sizes_of = |input: &Value| serde_json::from_value(input.clone()).unwrap_or_default();
        let texts = |list: &Value| -> Vec<String> {
            let all = list.as_array().map(Vec::as_slice).unwrap_or_default();
            all.iter().map(|text| text.as_str().unwrap_or_default().to_string()).collect()
        };
        Some(Call {
            name: self.name.clone(),
            sizes: self.args.sizes.as_array()?.iter().map(sizes_of).collect(),
            precision: texts(&self.args.types).iter().find_map(|name| precision(name)),
            scalars: texts(&self.args.scalars),
        })
    }
}

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
    let longest = limits::LONGEST.get() / MICROSECONDS;
    if let Some(Event { name, dur, .. }) = events.iter().find(|event| event.dur > longest) {
        let message = format!("`dur` of the event `{name}` is {dur}; at most {longest} microseconds, a day");
        return Err(KinetoError::Syntax { origin: origin.into(), message });
    }
    let of_gpu = |event: &&Event| matches!(event.cat.as_str(), "kernel" | "gpu_memcpy" | "gpu_memset");
    let device = if events.iter().any(|event| of_gpu(&event)) { Device::Gpu } else { Device::Cpu };
    let timed: Vec<(&Event, f64)> = match device {
        Device::Gpu => events.iter().filter(of_gpu).map(|event| (event, event.dur)).collect(),
        Device::Cpu => on_host(&events),
    };
    if timed.is_empty() {
        return Err(KinetoError::Empty { origin: origin.into() });
    }
    let marks = events
        .iter()
        .filter(|event| event.cat == "user_annotation" && event.name.starts_with("ProfilerStep#"));
    let start = events.iter().map(|event| event.ts).fold(f64::INFINITY, f64::min);
    let end = events.iter().map(Event::end).fold(0.0, f64::max);
    let recording = Recording {
        device,
        ops: timed.iter().map(|(op, time)| (op.name.clone(), Seconds::new(time * MICROSECONDS))).collect(),
        kernels: match device {
            Device::Gpu => launched(&events),
            Device::Cpu => {
                let known = |(op, time): &(&Event, f64)| {
                    Some((op.call()?.kernel(None)?, Seconds::new(time * MICROSECONDS)))
                };
                timed.iter().filter_map(known).collect()
            }
        },
        steps: marks.map(|mark| (mark.ts, mark.end())).collect(),
        extent: (start, end),
        unit: MICROSECONDS,
    };
    Ok(recording.step())
}

/// Kernels whose operators have shapes, summed by operator: a product may launch several.
fn launched(events: &[Event]) -> Vec<(Kernel, Seconds)> {
    let mut times: BTreeMap<u64, f64> = BTreeMap::new();
    for kernel in events.iter().filter(|event| event.cat == "kernel") {
        if let Some(id) = kernel.operator() {
            *times.entry(id).or_default() += kernel.dur;
        }
    }
    let operators = events.iter().filter(|event| event.cat == "cpu_op");
    let known = |operator: &Event| {
        let time = times.get(&operator.operator()?)?;
        Some((operator.call()?.kernel(None)?, Seconds::new(time * MICROSECONDS)))
    };
    operators.filter_map(known).collect()
}

/// Operators with their exclusive time, and the collectives of gloo, which run on other threads.
fn on_host(events: &[Event]) -> Vec<(&Event, f64)> {
    let mut threads: BTreeMap<String, Vec<&Event>> = BTreeMap::new();
    for event in events.iter().filter(|event| event.cat == "cpu_op") {
        threads.entry(event.tid.to_string()).or_default().push(event);
    }
    let mut timed = Vec::new();
    for ops in threads.values_mut() {
        // An operator comes before those it calls.
        ops.sort_by(|a, b| a.ts.total_cmp(&b.ts).then(b.dur.total_cmp(&a.dur)));
        let mut open: Vec<(&Event, f64)> = Vec::new();
        for op in ops.iter() {
            while open.last().is_some_and(|(outer, _)| outer.end() <= op.ts) {
                timed.extend(open.pop().map(|(outer, exclusive)| (outer, exclusive.max(0.0))));
            }
            if let Some((_, exclusive)) = open.last_mut() {
                *exclusive -= op.dur;
            }
            open.push((op, op.dur));
        }
        timed.extend(open.into_iter().map(|(outer, exclusive)| (outer, exclusive.max(0.0))));
    }
    let collectives = events.iter().filter(|event| event.name.starts_with("gloo:"));
    timed.extend(collectives.map(|event| (event, event.dur)));
    timed
}
