//! GPT-3 on one V100: about 288 years, if it fitted.
//!
//! Narayanan et al. 2021, arXiv 2104.04473, section 1: "training GPT-3 with 175 billion parameters [3] would require
//! approximately 288 years with a single V100 NVIDIA GPU". Their equation 4, T = 8 D P / (n X), says how fast that V100 is;
//! the simulator says how fast it would be with the software of that spring and memory without end.

use trainwright_planner::{Pins, Question};
use trainwright_spec::cluster::Cluster;
use trainwright_spec::job::Job;
use trainwright_spec::model::preset::preset;
use trainwright_spec::plan::Recompute;
use trainwright_spec::precision::Precision;
use trainwright_spec::stack::Stack;
use trainwright_spec::units::{Flops, FlopsPerSecond, Seconds};
use trainwright_whatif::input::set;
use trainwright_whatif::run::rule_of_thumb;
use trainwright_whatif::scenario::{Base, Rates, Scenario};
use trainwright_whatif::sweep::sweep;

/// A year of 365.25 days.
const YEAR: Seconds = Seconds::of_days(365.25);

/// What GPT-3 was trained on.
const TOKENS: f64 = 300e9;

/// Years by the rule of thumb with a V100 at this rate.
pub fn years_at(reached: FlopsPerSecond) -> f64 {
    rule_of_thumb(Flops::new(8.0 * TOKENS * 175e9), 1, reached) / YEAR
}

/// Years by simulation, and the FLOP/s that the V100 reaches, recomputation included.
pub fn simulated() -> (f64, FlopsPerSecond) {
    let question = Question {
        model: preset("gpt3-175b").unwrap(),
        cluster: Cluster::from_name("dgx-1v").unwrap(),
        job: Job {
            sequence: 2048,
            global_batch: 1536,
            precision: Precision::Fp16,
            optimizer: "adam".into(),
            gradient_clipping: true,
        },
        stack: Stack::from_name("megatron-lm-2021").unwrap(),
        pins: Pins { recompute: Some(Recompute::Full), micro_batch: Some(1), ..Pins::default() },
    };
    let rates = Rates { price: None, pue: 1.0, tokens: Some(TOKENS) };
    let mut scenario = Scenario { base: Base::Question(Box::new(question)), rates };
    set(&mut scenario, "gpus", "1").unwrap();
    set(&mut scenario, "memory", "8 TB").unwrap();
    let answer = sweep(&scenario, &[], &|_, _| {}).unwrap().remove(0);
    let forecast = &answer.outcome.as_ref().unwrap().forecast;
    (answer.wanted_run().unwrap().time / YEAR, forecast.hardware_flops / forecast.step_time)
}

/// Says it.
pub fn main() {
    let needed = FlopsPerSecond::new(8.0 * TOKENS * 175e9 / (288.0 * YEAR.get()));
    println!(
        "288 years mean {needed}, 37 % of the V100's peak of 125 TFLOP/s: {:.0} years",
        years_at(needed)
    );
    let (years, reached) = simulated();
    println!("simulated, if the memory held it: {years:.0} years at {reached}");
}
