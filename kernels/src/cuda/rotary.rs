//! Launches of rotary.cu.

use super::launch::{Address, Launch, Multiprocessors, Number, round_to_warps};

const FILE: &str = "rotary";

/// Rotary embedding of some heads of each row, in place.
#[derive(Debug, Clone, Copy, Default, PartialEq)]
#[repr(C)]
pub struct Rotary {
    /// tokens × row.
    pub x: Address,
    /// f32: positions × half.
    pub cosines: Address,
    /// f32: positions × half.
    pub sines: Address,
    /// Tokens.
    pub tokens: i32,
    /// Length of a row.
    pub row: i32,
    /// Column of the first rotated head.
    pub first: i32,
    /// Rotated heads.
    pub heads: i32,
    /// Width of a head.
    pub head_dim: i32,
    /// Pairs of a head that are rotated: columns i and i + half.
    pub half: i32,
    /// Sequences: token = position · batch + sequence.
    pub batch: i32,
    /// Position of the first tokens.
    pub first_position: i32,
    /// 1 forward, −1 for the gradient.
    pub direction: f32,
}

impl Rotary {
    /// All versions for its shape, the fastest last.
    pub fn ladder(&self, number: Number, gpu: Multiprocessors) -> Vec<Launch> {
        let end = number.suffix();
        let pairs = i64::from(self.tokens) * i64::from(self.heads) * i64::from(self.half);
        let mut ladder = vec![Launch::new(
            FILE,
            format!("rotary_simple_{end}"),
            [gpu.strided(pairs, 256), 1, 1],
            256,
            self,
        )];
        if [self.half, self.row, self.first, self.head_dim].iter().all(|width| width % number.pack() == 0) {
            let threads = round_to_warps(self.heads * self.half / number.pack(), 256);
            ladder.push(Launch::new(
                FILE,
                format!("rotary_packed_{end}"),
                [self.tokens, 1, 1],
                threads,
                self,
            ));
        }
        ladder
    }

    /// The fastest version.
    pub fn launch(&self, number: Number, gpu: Multiprocessors) -> Launch {
        self.ladder(number, gpu).pop().expect("the simple version does all")
    }
}
