//! What recording itself costs a run.

use crate::train::record::Recorder;
use crate::train::settings::Records;
use std::time::Instant;
use trainwright_spec::units::Seconds;

/// Seconds to record an op, in the mean over many: a reading of the clock, and two entries in lists.
pub fn recording_cost() -> Seconds {
    const OPS: usize = 20_000;
    let mut recorder = Recorder::new(Instant::now(), Records::LastStep);
    // The lists of a run have room after the first step.
    for _ in 0..2 {
        recorder.begin(None);
        (0..OPS).for_each(|op| recorder.ended(0, op, recorder.start(), [0, 0]));
    }
    let began = Instant::now();
    recorder.begin(None);
    (0..OPS).for_each(|op| recorder.ended(0, op, recorder.start(), [0, 0]));
    Seconds::new(began.elapsed().as_secs_f64() / OPS as f64)
}
