//! What ops take on a device: runs of plans, timed op by op.

use crate::device::{DeviceKind, Opening};
use crate::error::RunError;
use crate::measure::calibrate::{Refused, Times, alone, shared_gpus, today};
use crate::train::data::tokens::Tokens;
use crate::train::learning_rate::LearningRate;
use crate::train::record::Record;
use crate::train::run::run_plan;
use crate::train::settings::{Records, Settings};
use crate::train::timeline::timed_ops;
use trainwright_spec::cluster::DeviceProfile;
use trainwright_spec::plan::Plan;
use trainwright_spec::program::Work;

/// What was measured, and on what.
#[derive(Debug, Clone, PartialEq)]
pub struct MeasuredDevice {
    /// Of each op and shape the mean over steps and ranks.
    pub profile: DeviceProfile,
    /// The day, in UTC.
    pub date: String,
    /// Versions of what drives it.
    pub versions: String,
    /// Samples that other programs disturbed, and that are not in the profile.
    pub refused: Vec<Refused>,
}

/// Steps of a run, of which the first ones warm up.
const STEPS: usize = 8;
const WARM_UP: usize = 3;

/// Measures every op of some plans as a rank does it that has a device to itself: where ranks share one, in runs of one rank with
/// the layers of one of theirs, since how they slow each other down is the forecast's business. `deterministic` is that of
/// `Settings`.
///
/// # Errors
/// As `train`.
pub fn measure_ops(
    plans: &[Plan],
    device: DeviceKind,
    deterministic: bool,
) -> Result<MeasuredDevice, RunError> {
    (device.require)()?;
    let opened = (device.open)(Opening { deterministic, ..Opening::plain(0) })
        .map_err(|fault| RunError::Device { name: device.name, reason: fault.to_string() })?;
    let [name, versions] = opened.about();
    drop(opened);
    let mut times = Times::default();
    for plan in plans {
        match shared_gpus(plan, device)? {
            None => measure(plan, (device, deterministic), &mut times)?,
            Some(_) => {
                for slice in alone(plan) {
                    measure(&device.with_executor_stack(&slice)?, (device, deterministic), &mut times)?;
                }
            }
        }
    }
    let refused = times.refuse();
    let source = format!("trainwright {} on {name}", env!("CARGO_PKG_VERSION"));
    let profile = DeviceProfile { source, kernels: Vec::new(), ops: times.ops() };
    Ok(MeasuredDevice { profile, date: today(), versions, refused })
}

fn measure(
    plan: &Plan,
    (device, deterministic): (DeviceKind, bool),
    times: &mut Times,
) -> Result<(), RunError> {
    let settings = Settings {
        steps: STEPS,
        // Nothing is learned, so that made-up tokens cannot make numbers that are none.
        learning_rate: LearningRate::constant(0.0),
        records: Records::EveryStep,
        device,
        deterministic,
        ..Settings::default()
    };
    let tokens = Tokens::synthetic(plan.model.vocab, plan.job.tokens() * 2 + 1, 0);
    let ran = run_plan(plan, &tokens, &settings, &mut |_| {})?;
    for step in WARM_UP..STEPS {
        let records: Vec<Record> = ran.ends.iter().map(|end| end.records[step].clone()).collect();
        for timed in timed_ops(&ran.program, &records) {
            if let Work::Compute(kernel) = timed.op.work {
                times.add_op(timed.op.kind(), kernel, timed.seconds);
            }
        }
    }
    Ok(())
}
