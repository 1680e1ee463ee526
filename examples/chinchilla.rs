//! Gopher's budget is spent best on about 70 billion parameters and 1.4 trillion tokens.
//!
//! Hoffmann et al. 2022, arXiv 2203.15556: 5.76e23 FLOPs went into Gopher, 280 billion parameters on 300 billion tokens;
//! Chinchilla spent as much on a quarter of the size and four times the tokens, and was better.

use trainwright_spec::units::Flops;
use trainwright_whatif::law::{Optimum, ScalingLaw};

/// What went into Gopher.
pub const BUDGET: Flops = Flops::new(5.76e23);

/// The optimum by a law of the catalog.
pub fn optimum(law: &str) -> Optimum {
    ScalingLaw::from_name(law).unwrap().optimum(BUDGET)
}

/// Losses that a law expects of Gopher and of Chinchilla.
pub fn gopher_and_chinchilla(law: &str) -> (f64, f64) {
    let law = ScalingLaw::from_name(law).unwrap();
    (law.loss(280e9, 300e9), law.loss(70e9, 1.4e12))
}

/// Says it.
pub fn main() {
    for law in ["chinchilla-refitted", "chinchilla"] {
        let best = optimum(law);
        let (gopher, chinchilla) = gopher_and_chinchilla(law);
        println!(
            "{law}: {:.0}B parameters, {:.1}T tokens, loss {:.3}; Gopher {gopher:.3}, Chinchilla {chinchilla:.3}",
            best.parameters / 1e9,
            best.tokens / 1e12,
            best.loss
        );
    }
}
