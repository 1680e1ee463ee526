//! GPT-3 on one V100: about 288 years, if it fitted.
//!
//! Narayanan et al. 2021, arXiv 2104.04473, section 1: "training GPT-3 with 175 billion parameters [3] would require
//! approximately 288 years with a single V100 NVIDIA GPU". Their equation 4, T = 8 D P / (n X), says how fast that V100 is:
//! 46 TFLOP/s, recomputation included, are 37 % of its peak.

use trainwright_spec::cluster::Cluster;
use trainwright_spec::precision::Precision;
use trainwright_spec::units::{Flops, FlopsPerSecond, Seconds};
use trainwright_whatif::run::rule_of_thumb;

/// A year of 365.25 days.
const YEAR: Seconds = Seconds::of_days(365.25);

/// 300 billion tokens for 175 billion parameters, everything computed twice forward.
const TRAINING: Flops = Flops::new(8.0 * 300e9 * 175e9);

/// What the catalog has of a V100.
pub fn peak() -> FlopsPerSecond {
    Cluster::from_name("dgx-1v").unwrap().node.gpu.peak[&Precision::Fp16].value
}

/// Years at a part of the peak.
pub fn years(part_of_peak: f64) -> f64 {
    rule_of_thumb(TRAINING, 1, part_of_peak * peak()) / YEAR
}

/// The part of the peak at which it takes `years`.
pub fn part_of_peak(years: f64) -> f64 {
    TRAINING / (years * YEAR) / peak()
}

/// Says it.
pub fn main() {
    println!("GPT-3 on one V100 at 37 % of {}: {:.0} years", peak(), years(0.37));
    println!("288 years are {:.1} % of the peak", 100.0 * part_of_peak(288.0));
}
