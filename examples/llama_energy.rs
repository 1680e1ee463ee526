//! LLaMA 65B took 449 MWh.
//!
//! Touvron et al. 2023, arXiv 2302.13971, table 15: 1,022,362 GPU-hours of A100-80GB at 400 W and a PUE of 1.1; and
//! section 2.4: 1.4 trillion tokens on 2,048 of them take about 21 days at 380 tokens a second and GPU.

use trainwright_spec::cluster::Cluster;
use trainwright_spec::units::{Joules, Seconds};
use trainwright_whatif::run::{default_pue, energy};

/// The energy of GPU-hours.
pub fn of(gpu_hours: f64) -> Joules {
    let gpu = Cluster::from_name("dgx-a100").unwrap().node.gpu;
    energy(Seconds::new(3600.0 * gpu_hours), gpu.power.unwrap().value, default_pue().value)
}

/// Days of LLaMA 65B.
pub fn days() -> f64 {
    Seconds::new(1.4e12 / (2048.0 * 380.0)).as_days()
}

/// Says it.
pub fn main() {
    println!("LLaMA 65B, 1,022,362 GPU-hours: {:.0} MWh", of(1_022_362.0).as_mwh());
    println!("LLaMA 7B, 82,432 GPU-hours: {:.0} MWh", of(82_432.0).as_mwh());
    println!("1.4 trillion tokens on 2,048 GPUs: {:.1} days", days());
}
