//! A step of a rank as a profiler recorded it: times by kind of op, and the kernels of known shape.
//!
//! ```text
//! kineto (JSON) ─┐
//!                ├─► Recording ─► MeasuredStep ─┬─► compared with a forecast, by kind
//! nsight (SQLite)┘                              └─► a profile of the GPU, by shape
//! ```

mod names;
mod shapes;

pub use shapes::Call;
pub(crate) use shapes::{precision, sizes};

use std::collections::BTreeMap;
use trainwright_spec::cluster::{DeviceProfile, MeasuredKernel};
use trainwright_spec::program::Kernel;
use trainwright_spec::units::Seconds;
use trainwright_timeline::kinds::{KindTimes, OpKind};

/// A step of a rank, in the mean over the recorded ones.
#[derive(Debug, Clone, PartialEq)]
pub struct MeasuredStep {
    /// Recorded steps; 1 if the recording does not mark their ends.
    pub steps: usize,
    /// From the beginning to the end of a step.
    pub step_time: Seconds,
    /// Whether times are of a GPU's kernels or of operators on the host.
    pub device: Device,
    /// Times by kind. Ops of different streams may have run at once.
    pub kinds: KindTimes,
    /// The longest of the ops whose names no rule knows, with their times.
    pub others: Vec<(String, Seconds)>,
    /// Calls of kernels of known shape, with their times.
    pub kernels: Vec<MeasuredKernel>,
}

/// Whose work was timed.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Device {
    /// Kernels.
    Gpu,
    /// Operators.
    Cpu,
}

/// Ops with times, as a reader finds them.
#[derive(Debug, Clone, PartialEq)]
pub(crate) struct Recording {
    pub device: Device,
    /// Name and time of each op.
    pub ops: Vec<(String, Seconds)>,
    /// Kernels of known shape.
    pub kernels: Vec<(Kernel, Seconds)>,
    /// Start and end of each step; empty if they are not marked.
    pub steps: Vec<(f64, f64)>,
    /// Start and end of the recording.
    pub extent: (f64, f64),
    /// Seconds in the unit of starts and ends.
    pub unit: f64,
}

/// Ops in `MeasuredStep::others`.
const MOST_OTHERS: usize = 5;

impl Recording {
    /// Sums by kind.
    pub fn step(self) -> MeasuredStep {
        let (mut kinds, mut others) = (KindTimes::default(), BTreeMap::new());
        for (name, time) in &self.ops {
            let known = names::kind(name);
            kinds.add(known.unwrap_or(OpKind::Elementwise), 1, *time);
            if known.is_none() {
                *others.entry(name.clone()).or_insert(Seconds::ZERO) += *time;
            }
        }
        let steps = self.steps.len().max(1);
        let n = steps as f64;
        for (count, time) in kinds.0.values_mut() {
            (*count, *time) = (count.div_ceil(steps as u64), *time / n);
        }
        let mut others: Vec<(String, Seconds)> =
            others.into_iter().map(|(name, time)| (name, time / n)).collect();
        others.sort_by(|a, b| b.1.get().total_cmp(&a.1.get()).then(a.0.cmp(&b.0)));
        others.truncate(MOST_OTHERS);
        let marked = self.steps.iter().copied().reduce(|all, step| (all.0.min(step.0), all.1.max(step.1)));
        let (start, end) = marked.unwrap_or(self.extent);
        MeasuredStep {
            steps,
            step_time: Seconds::new((end - start) * self.unit) / n,
            device: self.device,
            kinds,
            others,
            kernels: self
                .kernels
                .into_iter()
                .filter(|(_, time)| *time > Seconds::ZERO)
                .map(|(kernel, time)| MeasuredKernel { kernel, time })
                .collect(),
        }
    }
}

impl MeasuredStep {
    /// The profile of a GPU: each shape once, with the median of its calls. `None` if no shape is known.
    pub fn profile(&self, source: &str) -> Option<DeviceProfile> {
        let profile = DeviceProfile::of_calls(&self.kernels, source);
        (!profile.kernels.is_empty()).then_some(profile)
    }
}
