//! Launches of optimizer.cu.

use super::launch::{Address, Launch};

const FILE: &str = "optimizer";
/// Elements of a chunk, as in optimizer.cu.
pub const CHUNK: usize = 16_384;

/// At most `CHUNK` elements of one tensor.
#[derive(Debug, Clone, Copy, Default, PartialEq)]
#[repr(C)]
pub struct Chunk {
    /// f32.
    pub weight: Address,
    /// f32.
    pub gradient: Address,
    /// f32: momentum or the first moment, or `NULL`.
    pub first: Address,
    /// f32: the second moment, or `NULL`.
    pub second: Address,
    /// bf16: the copy of the weights that forward and backward read, or `NULL`.
    pub copy: Address,
    /// Elements.
    pub count: i32,
    /// Index of the tensor.
    pub tensor: i32,
    /// Weight decay.
    pub decay: f32,
    /// Padding.
    pub unused: i32,
}

impl Chunk {
    /// The chunks of a tensor of `count` elements. `self` has the tensor's addresses.
    pub fn cut(&self, count: usize) -> Vec<Chunk> {
        let part = |first: usize| {
            let behind = |address: Address, size: usize| match address {
                Address::NULL => Address::NULL,
                address => address.after(first * size),
            };
            Chunk {
                weight: behind(self.weight, 4),
                gradient: behind(self.gradient, 4),
                first: behind(self.first, 4),
                second: behind(self.second, 4),
                copy: behind(self.copy, 2),
                count: CHUNK.min(count - first) as i32,
                ..*self
            }
        };
        (0..count).step_by(CHUNK).map(part).collect()
    }

    /// Its bytes in the device's memory.
    pub fn bytes(&self) -> [u8; size_of::<Chunk>()] {
        // SAFETY: its fields fill it, so each of its bytes is one.
        unsafe { std::mem::transmute(*self) }
    }
}

/// The scalars that change from step to step. They are in the device's memory, so that all steps have the same launches.
#[derive(Debug, Clone, Copy, Default, PartialEq)]
#[repr(C)]
pub struct StepScalars {
    /// η.
    pub rate: f32,
    /// 1 − β₁ᵗ.
    pub correction1: f32,
    /// 1 − β₂ᵗ.
    pub correction2: f32,
}

impl StepScalars {
    /// In step t, counted from 1.
    pub fn of(rate: f32, betas: [f32; 2], t: u32) -> Self {
        let [correction1, correction2] = betas.map(|beta| (1.0 - f64::from(beta).powi(t as i32)) as f32);
        Self { rate, correction1, correction2 }
    }

    /// Its bytes in the device's memory.
    pub fn bytes(&self) -> [u8; size_of::<StepScalars>()] {
        // SAFETY: its fields fill it, so each of its bytes is one.
        unsafe { std::mem::transmute(*self) }
    }
}

/// A step over all chunks.
#[derive(Debug, Clone, Copy, Default, PartialEq)]
#[repr(C)]
pub struct Optimizer {
    /// `Chunk`s.
    pub chunks: Address,
    /// f32: the factor of the gradients, from `reduce::ClipFactor`.
    pub factor: Address,
    /// A `StepScalars`.
    pub scalars: Address,
    /// f64, two per chunk: Σ w², Σ u². LAMB and LARS only.
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
    /// SGD with momentum; plain SGD if `Chunk::first` is `NULL`.
    Momentum,
    /// Adam whose step is scaled by layer.
    Lamb,
    /// Momentum whose step is scaled by layer.
    Lars,
}

impl Optimizer {
    /// The launches of a step over that many chunks. LAMB and LARS need `ratios`.
    pub fn launches(&self, method: Method, chunks: usize, ratios: &TrustRatios) -> Vec<Launch> {
        let between = || {
            let ratios = TrustRatios { lars: i32::from(method == Method::Lars), ..*ratios };
            Launch::new(FILE, "trust_ratios", [(ratios.tensors + 127) / 128, 1, 1], 128, &ratios)
        };
        let norms = self.norms(method, chunks).map(|norms| [norms, between()]);
        norms.into_iter().flatten().chain([self.step(method, chunks)]).collect()
    }

    /// The first half of a step of LAMB or LARS: Σ w² and Σ u² of each chunk, and LAMB's moments.
    pub fn norms(&self, method: Method, chunks: usize) -> Option<Launch> {
        match method {
            Method::Lamb => Some(self.over_chunks("lamb_norms", chunks)),
            Method::Lars => Some(self.over_chunks("lars_norms", chunks)),
            _ => None,
        }
    }

    /// The step, for LAMB and LARS the second half of it.
    pub fn step(&self, method: Method, chunks: usize) -> Launch {
        let optimizer = Optimizer { coupled: i32::from(method == Method::Adam), ..*self };
        optimizer.over_chunks(
            match method {
                Method::AdamW | Method::Adam => "adamw",
                Method::Momentum => "momentum",
                Method::Lamb => "lamb_step",
                Method::Lars => "lars_step",
            },
            chunks,
        )
    }

    fn over_chunks(&self, kernel: &str, chunks: usize) -> Launch {
        Launch::new(FILE, kernel, [chunks as i32, 1, 1], 256, self)
    }
}

/// The factor of each tensor's step.
#[derive(Debug, Clone, Copy, Default, PartialEq)]
#[repr(C)]
pub struct TrustRatios {
    /// f64, two per chunk.
    pub partial: Address,
    /// u32, tensors + 1: the first chunk of each tensor, then the number of chunks.
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
    fn chunks_cover_a_tensor() {
        let tensor = Chunk { weight: Address(1 << 20), copy: Address(1 << 30), ..Chunk::default() };
        let chunks = tensor.cut(CHUNK + 5);
        assert_eq!(chunks.iter().map(|chunk| chunk.count).collect::<Vec<_>>(), [CHUNK as i32, 5]);
        // 16384 elements: 65536 bytes of f32, half of that in bf16. NULL stays NULL.
        assert_eq!(chunks[1].weight, Address((1 << 20) + 65_536));
        assert_eq!(chunks[1].copy, Address((1 << 30) + 32_768));
        assert_eq!(chunks[1].second, Address::NULL);
    }
}
