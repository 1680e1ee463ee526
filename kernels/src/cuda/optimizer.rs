//! Launches of optimizer.cu.

use super::launch::{Address, Launch};

const FILE: &str = "optimizer";
/// Numbers of a piece, as in optimizer.cu.
pub const PIECE: usize = 16_384;

/// At most `PIECE` numbers of one tensor.
#[derive(Debug, Clone, Copy, Default, PartialEq)]
#[repr(C)]
pub struct Piece {
    /// f32.
    pub weight: Address,
    /// f32.
    pub gradient: Address,
    /// f32: momentum, or the first moment, or nothing.
    pub first: Address,
    /// f32: the second moment, or nothing.
    pub second: Address,
    /// bf16: what forward and backward use, or nothing.
    pub copy: Address,
    /// How many numbers.
    pub count: i32,
    /// Which tensor.
    pub tensor: i32,
    /// Weight decay.
    pub decay: f32,
    /// Fills up.
    pub unused: i32,
}

impl Piece {
    /// A tensor of `count` numbers in pieces. `self` has its addresses.
    pub fn cut(&self, count: usize) -> Vec<Piece> {
        let part = |first: usize| {
            let behind = |address: Address, size: usize| match address {
                Address::NULL => Address::NULL,
                address => address.after(first * size),
            };
            Piece {
                weight: behind(self.weight, 4),
                gradient: behind(self.gradient, 4),
                first: behind(self.first, 4),
                second: behind(self.second, 4),
                copy: behind(self.copy, 2),
                count: PIECE.min(count - first) as i32,
                ..*self
            }
        };
        (0..count).step_by(PIECE).map(part).collect()
    }

    /// As it lies in the device's memory.
    pub fn bytes(&self) -> [u8; size_of::<Piece>()] {
        // SAFETY: its fields fill it, so each of its bytes is one.
        unsafe { std::mem::transmute(*self) }
    }
}

/// What changes from step to step. It is in the device's memory, so that the launches of a step are those of any other.
#[derive(Debug, Clone, Copy, Default, PartialEq)]
#[repr(C)]
pub struct Now {
    /// η.
    pub rate: f32,
    /// 1 − β₁ᵗ.
    pub correction1: f32,
    /// 1 − β₂ᵗ.
    pub correction2: f32,
}

impl Now {
    /// In step t, counted from 1.
    pub fn of(rate: f32, betas: [f32; 2], t: u32) -> Self {
        let [correction1, correction2] = betas.map(|beta| (1.0 - f64::from(beta).powi(t as i32)) as f32);
        Self { rate, correction1, correction2 }
    }

    /// As it lies in the device's memory.
    pub fn bytes(&self) -> [u8; size_of::<Now>()] {
        // SAFETY: its fields fill it, so each of its bytes is one.
        unsafe { std::mem::transmute(*self) }
    }
}

/// A step over all pieces.
#[derive(Debug, Clone, Copy, Default, PartialEq)]
#[repr(C)]
pub struct Optimizer {
    /// `Piece`s.
    pub pieces: Address,
    /// f32: what gradients are multiplied by, as `reduce::ClipFactor` makes it.
    pub factor: Address,
    /// A `Now`.
    pub now: Address,
    /// f64, two per piece: Σ w², Σ u². LAMB and LARS only.
    pub partial: Address,
    /// f32 per tensor. LAMB and LARS only.
    pub ratios: Address,
    /// β₁, or momentum.
    pub beta1: f32,
    /// β₂.
    pub beta2: f32,
    /// ε.
    pub epsilon: f32,
    /// LARS' coefficient.
    pub trust: f32,
    /// 1: weight decay is part of the gradient. `launches` sets it.
    pub coupled: i32,
}

/// Which optimizer.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Method {
    /// Adam with decoupled weight decay.
    AdamW,
    /// Adam whose weight decay is part of the gradient.
    Adam,
    /// SGD with momentum, or without where pieces have no place for it.
    Momentum,
    /// Adam whose step is scaled by layer.
    Lamb,
    /// Momentum whose step is scaled by layer.
    Lars,
}

impl Optimizer {
    /// The launches of a step over that many pieces. LAMB and LARS need `ratios`.
    pub fn launches(&self, method: Method, pieces: usize, ratios: &TrustRatios) -> Vec<Launch> {
        let between = || {
            let ratios = TrustRatios { lars: i32::from(method == Method::Lars), ..*ratios };
            Launch::new(FILE, "trust_ratios", [(ratios.tensors + 127) / 128, 1, 1], 128, &ratios)
        };
        let norms = self.norms(method, pieces).map(|norms| [norms, between()]);
        norms.into_iter().flatten().chain([self.step(method, pieces)]).collect()
    }

    /// The first half of a step of LAMB or LARS: Σ w² and Σ u² of each piece, and LAMB's moments.
    pub fn norms(&self, method: Method, pieces: usize) -> Option<Launch> {
        match method {
            Method::Lamb => Some(self.of_pieces("lamb_norms", pieces)),
            Method::Lars => Some(self.of_pieces("lars_norms", pieces)),
            _ => None,
        }
    }

    /// The step, for LAMB and LARS the second half of it.
    pub fn step(&self, method: Method, pieces: usize) -> Launch {
        let own = Optimizer { coupled: i32::from(method == Method::Adam), ..*self };
        own.of_pieces(
            match method {
                Method::AdamW | Method::Adam => "adamw",
                Method::Momentum => "momentum",
                Method::Lamb => "lamb_step",
                Method::Lars => "lars_step",
            },
            pieces,
        )
    }

    fn of_pieces(&self, kernel: &str, pieces: usize) -> Launch {
        Launch::new(FILE, kernel, [pieces as i32, 1, 1], 256, self)
    }
}

/// What each tensor's step is multiplied by.
#[derive(Debug, Clone, Copy, Default, PartialEq)]
#[repr(C)]
pub struct TrustRatios {
    /// f64, two per piece.
    pub partial: Address,
    /// u32: where each tensor's pieces begin; tensors + 1.
    pub starts: Address,
    /// f32 per tensor.
    pub decays: Address,
    /// f32 per tensor.
    pub ratios: Address,
    /// Tensors.
    pub tensors: i32,
    /// 1 for LARS.
    pub lars: i32,
    /// LARS' coefficient.
    pub trust: f32,
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn pieces_cover_a_tensor() {
        let whole = Piece { weight: Address(1 << 20), copy: Address(1 << 30), ..Piece::default() };
        let pieces = whole.cut(PIECE + 5);
        assert_eq!(pieces.iter().map(|piece| piece.count).collect::<Vec<_>>(), [PIECE as i32, 5]);
        // 16384 numbers on: 65536 bytes of f32, half of bf16. Nothing stays nothing.
        assert_eq!(pieces[1].weight, Address((1 << 20) + 65_536));
        assert_eq!(pieces[1].copy, Address((1 << 30) + 32_768));
        assert_eq!(pieces[1].second, Address::NULL);
    }
}
