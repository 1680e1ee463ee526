//! The learning rate of each step.
//!
//! ```text
//! rate
//! peak ┤    ╭──────╮        warmup: linear from 0
//!      │   ╱        ╲       then the schedule's height between floor and peak
//! floor┤  ╱          ╰───   from the step `end` on
//!      └──┴──────────┴────► step
//! ```
//!
//! A rate depends on the number of its step alone, so it is the same under every plan and after a resume.

use serde::{Serialize, Serializer};

/// The learning rate by step.
#[derive(Debug, Clone, Copy, PartialEq, Serialize)]
pub struct LearningRate {
    /// The largest one, reached at the end of the warmup.
    pub peak: f32,
    /// Steps in which it rises linearly from 0.
    pub warmup: usize,
    /// What follows the warmup.
    pub schedule: RateSchedule,
    /// The step at which a schedule that decays reaches `floor`.
    pub end: usize,
    /// Steps before `end` in which `wsd` decays.
    pub cooldown: usize,
    /// The smallest rate after the warmup.
    pub floor: f32,
}

/// A learning-rate schedule.
#[derive(Clone, Copy)]
pub struct RateSchedule {
    /// Its name.
    pub name: &'static str,
    /// Its height at a step after the warmup: 1 is the peak, 0 is the floor.
    height: fn(&LearningRate, f64) -> f64,
}

/// By its name.
impl Serialize for RateSchedule {
    fn serialize<S: Serializer>(&self, serializer: S) -> Result<S::Ok, S::Error> {
        serializer.serialize_str(self.name)
    }
}

/// The learning-rate schedules.
pub const RATE_SCHEDULES: [RateSchedule; 5] = [
    RateSchedule { name: "constant", height: |_, _| 1.0 },
    RateSchedule { name: "linear", height: |rate, step| 1.0 - rate.progress(rate.warmup, step) },
    RateSchedule { name: "cosine", height: cosine },
    RateSchedule { name: "wsd", height: warmup_stable_decay },
    RateSchedule { name: "inverse-sqrt", height: inverse_square_root },
];

/// (1 + cos π p) / 2, p the part done of the steps from the warmup to the end.
///
/// Source: Loshchilov & Hutter 2017, arXiv 1608.03983, equation 5, without restarts.
fn cosine(rate: &LearningRate, step: f64) -> f64 {
    0.5 * (1.0 + (std::f64::consts::PI * rate.progress(rate.warmup, step)).cos())
}

/// Stable, then linear to the floor in the last `cooldown` steps.
///
/// Source: Hu et al. 2024, arXiv 2404.06395, section 4; the linear decay: Hägele et al. 2024, arXiv 2405.18392.
fn warmup_stable_decay(rate: &LearningRate, step: f64) -> f64 {
    1.0 - rate.progress(rate.end.saturating_sub(rate.cooldown).max(rate.warmup), step)
}

/// √(w / step), w the steps of the warmup.
///
/// Source: Vaswani et al. 2017, arXiv 1706.03762, equation 3.
fn inverse_square_root(rate: &LearningRate, step: f64) -> f64 {
    (rate.warmup.max(1) as f64 / step).sqrt()
}

impl LearningRate {
    /// The same rate in every step.
    pub fn constant(peak: f32) -> Self {
        let [schedule, ..] = RATE_SCHEDULES;
        Self { peak, warmup: 0, schedule, end: 0, cooldown: 0, floor: 0.0 }
    }

    /// The rate of a step, from 1.
    pub fn at(&self, step: usize) -> f32 {
        if step < self.warmup {
            return self.peak * step as f32 / self.warmup as f32;
        }
        let [peak, floor] = [self.peak, self.floor.min(self.peak)].map(f64::from);
        (floor + (peak - floor) * (self.schedule.height)(self, step as f64)) as f32
    }

    /// The part of the steps from `first` to `end` that is done, from 0 to 1.
    fn progress(&self, first: usize, step: f64) -> f64 {
        match self.end.saturating_sub(first) {
            0 if step < self.end as f64 => 0.0,
            0 => 1.0,
            steps => ((step - first as f64) / steps as f64).clamp(0.0, 1.0),
        }
    }
}

impl PartialEq for RateSchedule {
    fn eq(&self, other: &Self) -> bool {
        self.name == other.name
    }
}

impl std::fmt::Debug for RateSchedule {
    fn fmt(&self, formatter: &mut std::fmt::Formatter) -> std::fmt::Result {
        formatter.write_str(self.name)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    /// Rates of the given steps: peak 1, floor 0.2, a warmup of 4 steps, an end at step 12.
    fn check(name: &str, cooldown: usize, expected: &[(usize, f32)]) {
        let schedule = RATE_SCHEDULES.into_iter().find(|schedule| schedule.name == name).unwrap();
        let rate = LearningRate { peak: 1.0, warmup: 4, schedule, end: 12, cooldown, floor: 0.2 };
        for (step, expected) in expected {
            let found = rate.at(*step);
            assert!((found - expected).abs() < 1e-6, "{name}, step {step}: {found}, expected {expected}");
        }
    }

    #[test]
    fn schedules_follow_their_formulas() {
        let warmup = [(1, 0.25), (2, 0.5), (3, 0.75), (4, 1.0)];
        for schedule in RATE_SCHEDULES {
            check(schedule.name, 4, &warmup);
        }
        check("constant", 0, &[(5, 1.0), (12, 1.0), (1000, 1.0)]);
        // 8 steps from peak to floor: 0.1 each.
        check("linear", 0, &[(5, 0.9), (8, 0.6), (12, 0.2), (1000, 0.2)]);
        // p = 1/4: (1 + √½) / 2 = 0.853553, of 0.8 above 0.2.
        check("cosine", 0, &[(6, 0.882843), (8, 0.6), (10, 0.317157), (12, 0.2), (13, 0.2)]);
        // Stable until step 8, then 4 steps of 0.2.
        check("wsd", 4, &[(5, 1.0), (8, 1.0), (9, 0.8), (11, 0.4), (12, 0.2), (20, 0.2)]);
        // A cooldown longer than the run begins at the warmup's end; without one the rate drops at the end.
        check("wsd", 100, &[(5, 0.9), (8, 0.6), (12, 0.2)]);
        check("wsd", 0, &[(11, 1.0), (12, 0.2)]);
        // √(4 / 16) = ½ of 0.8 above 0.2.
        check("inverse-sqrt", 0, &[(16, 0.6), (64, 0.4)]);
    }

    #[test]
    fn a_rate_without_a_warmup_begins_at_its_peak() {
        assert_eq!([1, 2, 1000].map(|step| LearningRate::constant(0.5).at(step)), [0.5; 3]);
        let [.., inverse] = RATE_SCHEDULES;
        assert_eq!(LearningRate { schedule: inverse, ..LearningRate::constant(1.0) }.at(4), 0.5);
    }
}
