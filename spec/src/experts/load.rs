//! How unevenly tokens spread over the experts.

use super::LayerTokens;
use crate::model::Experts;
use serde::{Deserialize, Serialize};

/// Which experts the tokens of a layer visit. All microbatches are alike; layers differ, unless balanced.
#[derive(Debug, Clone, PartialEq, Default, Serialize, Deserialize)]
#[serde(tag = "kind", rename_all = "kebab-case", deny_unknown_fields)]
pub enum Load {
    /// The same number for every expert.
    #[default]
    Balanced,
    /// The i-th most visited of a layer i^−exponent, experts in random order.
    Zipf {
        /// 0 is balanced, 1 is Zipf's law.
        exponent: f64,
        /// Of the order.
        seed: u64,
    },
    /// The logarithms of the visits are normally distributed.
    LogNormal {
        /// Their standard deviation.
        sigma: f64,
        /// Of the draws.
        seed: u64,
    },
    /// As it was seen.
    Trace {
        /// Each layer of experts.
        layers: Vec<LayerTokens>,
    },
}

impl Load {
    /// The tokens of each expert of block `layer`, over the mean of all.
    ///
    /// A token visits k different experts, so that none has more than count / k times the mean: what a distribution
    /// gives beyond is shared out over the others, in proportion.
    pub fn multiples(&self, experts: &Experts, layer: usize) -> Vec<f64> {
        let count = experts.count;
        let most = count as f64 / experts.per_token as f64;
        let drawn = |seed: u64, weights: &dyn Fn(&mut Draws) -> Vec<f64>| {
            // A layer's draws do not depend on how many other layers there are.
            let mut draws = Draws(seed ^ (layer as u64).wrapping_mul(0xD1B5_4A32_D192_ED03));
            limited(weights(&mut draws), most)
        };
        match self {
            Load::Balanced => vec![1.0; count],
            Load::Zipf { exponent, seed } => drawn(*seed, &|draws| {
                let mut weights: Vec<f64> =
                    (1..=count).map(|place| libm::pow(place as f64, -exponent)).collect();
                for last in (1..count).rev() {
                    weights.swap(last, (draws.uniform() * (last + 1) as f64) as usize);
                }
                weights
            }),
            Load::LogNormal { sigma, seed } => {
                drawn(*seed, &|draws| (0..count).map(|_| libm::exp(sigma * draws.normal())).collect())
            }
            Load::Trace { layers } => {
                let of_layer = layers.iter().find(|seen| seen.layer == layer);
                of_layer
                    .map_or_else(|| vec![1.0; count], |seen| over_mean(seen.tokens.iter().map(|n| *n as f64)))
            }
        }
    }
}

fn over_mean(weights: impl ExactSizeIterator<Item = f64> + Clone) -> Vec<f64> {
    let count = weights.len() as f64;
    let sum: f64 = weights.clone().sum();
    weights.map(|weight| weight * count / sum).collect()
}

/// Weights over their mean, none above `most`.
fn limited(weights: Vec<f64>, most: f64) -> Vec<f64> {
    let count = weights.len() as f64;
    let mut multiples = over_mean(weights.into_iter());
    loop {
        let full = multiples.iter().filter(|multiple| **multiple >= most).count() as f64;
        let others: f64 = multiples.iter().filter(|multiple| **multiple < most).sum();
        let grow = (count - full * most) / others;
        if multiples.iter().all(|multiple| *multiple <= most) || others <= 0.0 {
            return multiples;
        }
        for multiple in &mut multiples {
            *multiple = if *multiple >= most { most } else { *multiple * grow };
        }
    }
}

/// Random numbers from a seed.
///
/// Source: Steele, Lea & Flood 2014, Fast splittable pseudorandom number generators, OOPSLA, 453–472 (SplitMix64).
struct Draws(u64);

impl Draws {
    fn next(&mut self) -> u64 {
        self.0 = self.0.wrapping_add(0x9E37_79B9_7F4A_7C15);
        let mixed = (self.0 ^ (self.0 >> 30)).wrapping_mul(0xBF58_476D_1CE4_E5B9);
        let mixed = (mixed ^ (mixed >> 27)).wrapping_mul(0x94D0_49BB_1331_11EB);
        mixed ^ (mixed >> 31)
    }

    /// From 0 up to 1, without 1.
    fn uniform(&mut self) -> f64 {
        (self.next() >> 11) as f64 / (1u64 << 53) as f64
    }

    /// Box & Muller's transform of two of them.
    fn normal(&mut self) -> f64 {
        let (radius, angle) = (1.0 - self.uniform(), self.uniform());
        (-2.0 * libm::log(radius)).sqrt() * libm::cos(2.0 * std::f64::consts::PI * angle)
    }
}
