//! Jitter and slow ranks, and how they are drawn.

use super::maximum::Moments;
use rand::SeedableRng;
use rand::rngs::ChaCha8Rng;
use rand_distr::{Bernoulli, Distribution, StandardNormal};
use trainwright_sim::{Kind, Piece};

/// Jitter and slow ranks. A jitter σ multiplies a duration by e^(σ z) with z drawn from the standard normal
/// distribution: half of the draws are below 1, and two thirds between 1 − σ and 1 + σ for small σ.
#[derive(Debug, Clone, PartialEq, Default)]
pub struct Noise {
    /// σ of every op that a GPU computes, drawn anew for each op, GPU and step.
    pub ops: f64,
    /// σ of every collective between tensor groups and of every message.
    pub network: f64,
    /// σ of all kernels of a GPU together, drawn for each GPU and step.
    pub gpus: f64,
    /// A part of all GPUs that is slower.
    pub slow_part: Option<SlowPart>,
    /// Ranks that are always slower.
    pub slow_ranks: Vec<SlowRank>,
}

/// Some GPUs, others in each sample, are slower.
#[derive(Debug, Clone, Copy, PartialEq)]
pub struct SlowPart {
    /// The chance of each GPU to be one of them, 0 to 1.
    pub share: f64,
    /// How many times longer they compute.
    pub slowness: f64,
}

/// One rank is slower.
#[derive(Debug, Clone, Copy, PartialEq)]
pub struct SlowRank {
    /// Its number.
    pub rank: usize,
    /// How many times longer it computes.
    pub slowness: f64,
}

/// Noise for the ranks of a program, each the first of a tensor group.
pub(super) struct Draws<'a> {
    noise: &'a Noise,
    firsts: &'a [usize],
    tensor: usize,
    chance: Option<Bernoulli>,
    ops: Moments,
    network: Moments,
}

/// The draws of one sample.
pub(super) struct Sample<'a> {
    draws: &'a Draws<'a>,
    random: ChaCha8Rng,
    /// How many times longer each rank computes.
    ranks: Vec<f64>,
}

impl<'a> Draws<'a> {
    pub fn new(noise: &'a Noise, firsts: &'a [usize], tensor: usize) -> Self {
        let chance = noise.slow_part.and_then(|part| Bernoulli::new(part.share).ok());
        Self {
            noise,
            firsts,
            tensor,
            chance,
            ops: Moments::of_largest(noise.ops, tensor),
            network: Moments::of_largest(noise.network, 1),
        }
    }

    pub fn sample(&'a self, seed: u64, number: u64) -> Sample<'a> {
        let mut bytes = [0; 32];
        bytes[..8].copy_from_slice(&seed.to_le_bytes());
        bytes[8..16].copy_from_slice(&number.to_le_bytes());
        let mut random = ChaCha8Rng::from_seed(bytes);
        let ranks = self.firsts.iter().map(|first| self.slowness(*first, &mut random)).collect();
        Sample { draws: self, random, ranks }
    }

    /// A tensor group is as slow as its slowest GPU: it meets in every layer.
    fn slowness(&self, first: usize, random: &mut ChaCha8Rng) -> f64 {
        let of_gpu = |rank: usize| {
            let z: f64 = if self.noise.gpus > 0.0 { StandardNormal.sample(random) } else { 0.0 };
            let is_slow = self.chance.is_some_and(|chance| chance.sample(random));
            let part = self.noise.slow_part.filter(|_| is_slow).map_or(1.0, |part| part.slowness);
            let always = self.noise.slow_ranks.iter().filter(|slow| slow.rank == rank);
            libm::exp(self.noise.gpus * z) * part * always.map(|slow| slow.slowness).product::<f64>()
        };
        (first..first + self.tensor).map(of_gpu).fold(0.0, f64::max)
    }
}

impl Sample<'_> {
    /// How many times longer a piece takes than undisturbed. A slow rank computes longer; the links of its group are as
    /// fast as ever.
    pub fn factor(&mut self, piece: &Piece) -> f64 {
        let (moments, rank) = match piece.kind {
            Kind::Work => (&self.draws.ops, 1.0 + piece.computing * (self.ranks[piece.rank] - 1.0)),
            Kind::Network => (&self.draws.network, 1.0),
        };
        if moments.is_one() {
            return rank;
        }
        let z: f64 = StandardNormal.sample(&mut self.random);
        let (location, scale) = moments.of_sum(piece.evenness);
        rank * libm::exp(location + scale * z)
    }
}
