//! Sia, as far as a table of speeds goes: each job gets one configuration (kind and GPUs), such that Σ (r G)^p with p = −0.5 is least,
//! where G is its speed over its slowest, r what a restart leaves of it, and a job that waits counts 1.1.
//!
//! What is missing: batch sizes stay, so that G is a speed instead of a goodput, and there is no profiling: the table is known.
//! Source: Jayaram Subramanya et al. 2023, SOSP, section 3.4; p and rounds of 60 s from section 4.

use super::pollux::stay;
use super::split::{grants, split};
use super::{Decide, Policy};
use crate::online::{Grant, View};

/// The power.
const POWER: f64 = -0.5;
/// What a job that waits counts.
const WAITING: f64 = 1.1;

/// Configurations by integer programming.
pub struct Sia;

impl Policy for Sia {
    fn name(&self) -> &'static str {
        "sia"
    }

    fn summary(&self) -> &'static str {
        "elastic over kinds of nodes: power sum of speeds; batch sizes stay, unlike in Sia itself"
    }

    fn begin(&self) -> Box<dyn Decide> {
        Box::new(Self)
    }
}

impl Decide for Sia {
    fn decide(&mut self, view: &View) -> Vec<Grant> {
        let of_job = |job: &crate::online::Active| {
            let choices = view.choices(job);
            let slowest = choices.iter().map(|choice| choice.2).fold(f64::INFINITY, f64::min);
            let value = |(kind, gpus, speed): &(usize, usize, f64)| {
                let cost = libm::pow(speed / slowest * stay(view, job, (*kind, *gpus)), POWER);
                (*kind, *gpus, job.of.weight * (WAITING - cost))
            };
            choices.iter().map(value).collect::<Vec<_>>()
        };
        let worth: Vec<_> = view.jobs.iter().map(of_job).collect();
        grants(view, &split(&view.capacity(), &worth))
    }
}
