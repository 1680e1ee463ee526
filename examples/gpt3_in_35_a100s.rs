//! GPT-3's weights, gradients and optimizer state fill 35 A100s of 80 GB.
//!
//! 16 bytes a parameter (Rajbhandari et al. 2020, arXiv 1910.02054, section 3.1): 2 of weight, 2 of gradient, and 12 of
//! Adam's fp32 copy and two moments. 175 billion times that are 2.8 TB.

use trainwright_spec::model::preset::preset;
use trainwright_spec::optimizer::{Rule, StateBytes, StatePrecision, optimizer};
use trainwright_spec::precision::Precision;
use trainwright_spec::units::Bytes;

/// All of the model's state, and how many GPUs of 80 GB it fills.
pub fn state() -> (Bytes, usize) {
    let adam = optimizer("adam").unwrap();
    let one =
        StateBytes::new(adam, Rule::Elements, Precision::Fp16, Precision::Fp16, &StatePrecision::default());
    let one = one.weight + one.gradient + one.master + one.moments;
    let all = one * preset("gpt3-175b").unwrap().parameters() as f64;
    (all, (all / Bytes::new(80e9)).ceil() as usize)
}

/// Says it.
pub fn main() {
    let (bytes, gpus) = state();
    println!(
        "the state of GPT-3 is {:.2} TB: {gpus} A100s of 80 GB, and nothing else fits in",
        bytes.get() / 1e12
    );
}
