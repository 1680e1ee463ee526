//! GPT-3's training takes about 430 ZettaFLOPs, and 34 days of 1,024 A100s.
//!
//! Narayanan et al. 2021, arXiv 2104.04473: 4.5e18 FLOPs an iteration with full recomputation (section 3), 95,000 iterations
//! of 1,536 sequences of 2,048 tokens; and by equation 4 with 140 TFLOP/s of each A100 34 days, and 84 days for a trillion
//! parameters on 450 billion tokens with 163 TFLOP/s of each of 3,072 (section 5.5).

use trainwright_spec::model::flops::AttentionCount;
use trainwright_spec::model::preset::preset;
use trainwright_spec::units::{Flops, FlopsPerSecond};
use trainwright_whatif::run::rule_of_thumb;

const SEQUENCE: usize = 2048;
const BATCH: f64 = 1536.0;
const ITERATIONS: f64 = 95_000.0;

/// Forward, backward, and the forward pass of the blocks once more.
pub fn iteration() -> Flops {
    let model = preset("gpt3-175b").unwrap();
    let count = AttentionCount::Full;
    let again: Flops = model
        .blocks
        .iter()
        .map(|run| run.count as f64 * run.block.forward_flops(model.hidden, SEQUENCE, count))
        .sum();
    BATCH * (model.training_flops(SEQUENCE, count) + again)
}

/// Of all iterations.
pub fn training() -> Flops {
    ITERATIONS * iteration()
}

/// Days by equation 4: parameters, tokens, GPUs, and the TFLOP/s that each reaches.
pub fn days(parameters: f64, tokens: f64, gpus: usize, teraflops: f64) -> f64 {
    let flops = Flops::new(8.0 * tokens * parameters);
    rule_of_thumb(flops, gpus, FlopsPerSecond::new(teraflops * 1e12)).as_days()
}

/// Says it.
pub fn main() {
    println!("an iteration of GPT-3: {}; {ITERATIONS} of them: {}", iteration(), training());
    println!("on 1,024 A100s at 140 TFLOP/s: {:.0} days", days(175e9, 300e9, 1024, 140.0));
    println!(
        "a trillion parameters on 3,072 A100s at 163 TFLOP/s: {:.0} days",
        days(1e12, 450e9, 3072, 163.0)
    );
}
