//! GPUs that several ranks of a plan share: what one of them takes alone, and how they get in each other's way.
//!
//! A GPU runs the kernels of its ranks' streams side by side, each the slower the more there are: to a simulator it is like a
//! core that threads share all the time.

use super::kernels::Shapes;
use crate::device::{DeviceKind, GpuName, LocalRank};
use crate::error::{Fault, RunError};
use std::collections::BTreeSet;
use trainwright_kernels::cuda::measure::Bench;
use trainwright_kernels::cuda::reduce::SumBuffers;
use trainwright_kernels::cuda::{DeviceError, Number};
use trainwright_spec::cluster::{Cores, MeasuredTime, StepTimes};
use trainwright_spec::plan::Plan;
use trainwright_spec::sourced::Sourced;
use trainwright_spec::units::{Bytes, Seconds};

/// The GPUs of this machine as what the ranks of a plan share, with the steps of collectives on them; `None` if each rank has a separate
/// GPU.
///
/// # Errors
/// `Device` if it fails.
pub fn shared_gpus(plan: &Plan, device: DeviceKind) -> Result<Option<Cores>, RunError> {
    let ranks = plan.mesh.ranks();
    let gpu = |local| (device.gpu)(LocalRank { number: local, is_process: false });
    let gpus: BTreeSet<GpuName> = (0..ranks).filter_map(gpu).collect();
    let Some(bare) = device.bare.filter(|_| gpus.len() < ranks) else { return Ok(None) };
    let fault = |error| RunError::Device { name: device.name, reason: Fault::Device(error).to_string() };
    let mut first = (bare.open)(0).map_err(fault)?;
    let shapes = Shapes::of(&bare);
    let source = super::source(&first.about(), "");
    let steps = steps(&mut Bench::new(&mut *first, shapes.effort), shapes, &source).map_err(fault)?;
    let sourced = |value| Sourced::new(value, source.clone());
    Ok(Some(Cores {
        count: sourced(gpus.len().max(1)),
        threads: sourced(1),
        emulated: false,
        steps,
        network: None,
        crowding: 0.0,
        turns: None,
        jitter: Vec::new(),
        exchanges: Vec::new(),
    }))
}

/// Copies within the GPU, and sums of two buffers.
fn steps(bench: &mut Bench, shapes: &Shapes, source: &str) -> Result<StepTimes, DeviceError> {
    let most = super::links::largest(shapes);
    let mut buffer = || bench.random(Number::Bf16, most / 2);
    let [from, other, to] = [buffer()?, buffer()?, buffer()?];
    let (mut copies, mut adds) = (Vec::new(), Vec::new());
    for bytes in shapes.bytes {
        let sum = SumBuffers::of(&[from, other], to, bytes / 2)
            .launch(Number::Bf16, bench.device.multiprocessors());
        let row = |seconds| MeasuredTime { bytes: Bytes::new(*bytes as f64), time: Seconds::new(seconds) };
        copies.push(row(bench.time(|device| device.copy(to, from, *bytes))?.seconds));
        adds.push(row(bench.time(|device| device.launch(&sum))?.seconds));
    }
    Ok(StepTimes { source: source.into(), copies, adds })
}
