//! The state that the ranks of the data axis divide among them, the messages for it, and when they are sent.
//!
//! ```text
//!                    optimizer   gradients   weights    sent, in tensors of all parameters Ψ, by each of d ranks
//! none               whole       whole       whole      all-reduce
//! zero1              1/d         whole       whole      reduce-scatter, then all-gather
//! zero2              1/d         1/d         whole      reduce-scatter for each microbatch, then all-gather
//! zero3, fsdp        1/d         1/d         1/d        for each microbatch 2 all-gathers and a reduce-scatter
//! ```
//!
//! A scheme says which; `lower` makes the ops of it and `memory` the bytes. Nothing here knows models or clusters.

mod ddp;
mod fsdp;
mod horovod;
mod hsdp;
mod parameter_server;
mod zero1;
mod zero2;
mod zero2_fsdp;
mod zero3;

use crate::catalog::nearest;
use crate::error::SpecError;
use crate::units::Bytes;
use serde::{Deserialize, Serialize};

/// A way to train on several ranks that each have other sequences.
pub trait DataScheme: Sync {
    /// The name in plans and arguments.
    fn name(&self) -> &'static str;

    /// One line for `show data-schemes`.
    fn summary(&self) -> &'static str;

    /// Where it is from.
    fn source(&self) -> &'static str;

    /// The parts of the state that are divided.
    fn divides(&self) -> Divided;

    /// When gathered weights are freed, unless the plan says otherwise; without effect if weights are not divided.
    fn reshard(&self) -> Reshard {
        Reshard::AfterForward
    }

    /// When gradients are reduced, unless the plan says otherwise.
    fn reduction(&self) -> Reduction {
        match self.divides() {
            Divided::Nothing | Divided::Optimizer => Reduction::LastMicrobatch,
            Divided::Gradients | Divided::Weights => Reduction::EveryMicrobatch,
        }
    }

    /// How gradients come together.
    fn exchange(&self) -> Exchange {
        Exchange::Collectives
    }

    /// Size of the buffers in which gradients are fused whatever the stack's buckets are; `None` if the stack decides.
    fn fusion(&self) -> Option<Bytes> {
        None
    }

    /// Why these choices do not go with the scheme, if they do not: the key and what is allowed.
    ///
    /// # Errors
    /// One line for each of them.
    fn check(&self, _choices: &DataChoices) -> Result<(), (&'static str, String)> {
        Ok(())
    }

    /// The bytes that a rank sends in a step, in closed form.
    fn volume(&self, step: &StepSizes) -> Volume;
}

/// The training state that each rank holds only a part of. Each includes those before it.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub enum Divided {
    /// Nothing.
    Nothing,
    /// Master weights and moments.
    Optimizer,
    /// Gradients.
    Gradients,
    /// Weights.
    Weights,
}

/// When a rank gives up the other ranks' parts of weights that it has gathered.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash, Serialize, Deserialize)]
#[serde(rename_all = "kebab-case")]
pub enum Reshard {
    /// After each use: backward gathers them again.
    AfterForward,
    /// After the backward pass of each microbatch.
    AfterBackward,
    /// After the backward pass of the last microbatch.
    AfterStep,
}

/// When gradients are reduced.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash, Serialize, Deserialize)]
#[serde(rename_all = "kebab-case")]
pub enum Reduction {
    /// In the backward pass of each.
    EveryMicrobatch,
    /// In that of the last, after which there is nothing to add (`no_sync`).
    LastMicrobatch,
}

/// How gradients of several ranks come together.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
pub enum Exchange {
    /// By collectives among all.
    Collectives,
    /// Through servers, which add what all send them and send it back.
    Servers,
}

/// Choices of a plan in addition to the scheme's name; the scheme has a default for each.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct DataOptions {
    /// When gathered weights are given up.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub reshard: Option<Reshard>,
    /// Units of weights that are gathered ahead of the one in use, 1 if left out. A unit is a block, the embedding or
    /// the head.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub prefetch: Option<usize>,
    /// When gradients are reduced.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub reduce: Option<Reduction>,
    /// Ranks of the data axis that are servers too, 1 if left out.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub servers: Option<usize>,
}

impl DataOptions {
    /// Whether nothing is chosen.
    pub fn is_default(&self) -> bool {
        *self == Self::default()
    }
}

/// The part of a plan that `DataScheme::check` reads.
#[derive(Debug, Clone, Copy)]
pub struct DataChoices {
    /// The plan's.
    pub options: DataOptions,
    /// Ranks that divide the state, if the mesh says it.
    pub shard: Option<usize>,
}

/// The sizes that the volume of a step depends on.
#[derive(Debug, Clone, Copy, PartialEq)]
pub struct StepSizes {
    /// Weights of a rank before they are divided, Ψ_w.
    pub weights: Bytes,
    /// Gradients of a rank before they are divided, Ψ_g.
    pub gradients: Bytes,
    /// Ranks that divide the state, s.
    pub shard: usize,
    /// Sets of such ranks, r: s · r ranks have the same weights.
    pub replicas: usize,
    /// Microbatches, m.
    pub microbatches: usize,
    /// When gathered weights are given up.
    pub reshard: Reshard,
    /// When gradients are reduced.
    pub reduction: Reduction,
    /// Ranks that are servers.
    pub servers: usize,
}

/// The bytes that a rank sends in a step if collectives are rings.
#[derive(Debug, Clone, Copy, PartialEq, Default)]
pub struct Volume {
    /// Gathering weights.
    pub gathered: Bytes,
    /// Reducing gradients to parts.
    pub scattered: Bytes,
    /// Reducing gradients that each rank holds.
    pub reduced: Bytes,
    /// Out of a server, and as much into it; it is the most that a link carries.
    pub served: Bytes,
}

impl Volume {
    /// Everything.
    pub fn total(&self) -> Bytes {
        self.gathered + self.scattered + self.reduced + self.served
    }
}

impl StepSizes {
    /// (s − 1)/s · n: sent by each rank of a ring that gathers or reduce-scatters a tensor of `bytes`, s = `ranks`.
    fn ring(bytes: Bytes, ranks: usize) -> Bytes {
        bytes * (ranks as f64 - 1.0) / ranks as f64
    }

    /// How often gradients are reduced: m or 1.
    fn reductions(&self) -> f64 {
        match self.reduction {
            Reduction::EveryMicrobatch => self.microbatches as f64,
            Reduction::LastMicrobatch => 1.0,
        }
    }

    /// How often divided weights are gathered: 2 m, m or 1.
    fn gathers(&self) -> f64 {
        match self.reshard {
            Reshard::AfterForward => 2.0 * self.microbatches as f64,
            Reshard::AfterBackward => self.microbatches as f64,
            Reshard::AfterStep => 1.0,
        }
    }

    /// Volume of a scheme that divides gradients' sums and gathers weights `gathers` times.
    ///
    /// V = A (s − 1)/s Ψ_w + R [(s − 1)/s Ψ_g + 2 (r − 1)/r Ψ_g / s]
    ///
    /// A gathers, R reductions in a step; s ranks divide the state, and r sets of them hold the same: each rank
    /// all-reduces its part with its like in the other sets.
    fn sharded(&self, gathers: f64) -> Volume {
        let part = self.gradients / self.shard as f64;
        Volume {
            gathered: gathers * Self::ring(self.weights, self.shard),
            scattered: self.reductions() * Self::ring(self.gradients, self.shard),
            reduced: self.reductions() * 2.0 * Self::ring(part, self.replicas),
            served: Bytes::ZERO,
        }
    }

    /// Volume of a scheme that divides nothing: V = R 2 (d − 1)/d Ψ_g with d = s r ranks, R reductions in a step.
    fn all_reduced(&self) -> Volume {
        let all_reduce = 2.0 * Self::ring(self.gradients, self.shard * self.replicas);
        Volume { reduced: self.reductions() * all_reduce, ..Volume::default() }
    }
}

/// Every scheme. A new one is a file in `data/` and a line here.
pub static DATA_SCHEMES: &[&dyn DataScheme] = &[
    &ddp::Ddp,
    &horovod::Horovod,
    &parameter_server::ParameterServer,
    &zero1::Zero1,
    &zero2::Zero2,
    &zero3::Zero3,
    &fsdp::Fsdp,
    &zero2_fsdp::Zero2Fsdp,
    &hsdp::Hsdp,
];

/// The scheme of that name.
///
/// # Errors
/// `UnknownName` with the nearest names.
pub fn data_scheme(name: &str) -> Result<&'static dyn DataScheme, SpecError> {
    DATA_SCHEMES.iter().copied().find(|scheme| scheme.name() == name).ok_or_else(|| SpecError::UnknownName {
        kind: "data-scheme",
        name: name.into(),
        nearest: nearest(name, DATA_SCHEMES.iter().map(|scheme| scheme.name())),
    })
}

/// For schemes without servers.
fn no_servers(choices: &DataChoices) -> Result<(), (&'static str, String)> {
    match choices.options.servers {
        None => Ok(()),
        Some(_) => Err(("data.servers", "only `parameter-server` has servers: leave it out".into())),
    }
}

/// For schemes that do not divide weights.
fn require_full_weights(choices: &DataChoices) -> Result<(), (&'static str, String)> {
    let divided = "weights are whole: it is for `zero3`, `fsdp`, `zero2-fsdp` and `hsdp`";
    if choices.options.reshard.is_some() {
        return Err(("data.reshard", divided.into()));
    }
    match choices.options.prefetch {
        None => Ok(()),
        Some(_) => Err(("data.prefetch", divided.into())),
    }
}

/// For schemes that divide nothing.
fn nothing_divided(choices: &DataChoices) -> Result<(), (&'static str, String)> {
    require_full_weights(choices)?;
    match choices.shard {
        None => Ok(()),
        Some(_) => Err(("mesh.shard", "the scheme divides nothing: leave it out".into())),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const SIZES: StepSizes = StepSizes {
        weights: Bytes::new(200.0),
        gradients: Bytes::new(400.0),
        shard: 4,
        replicas: 1,
        microbatches: 3,
        reshard: Reshard::AfterForward,
        reduction: Reduction::EveryMicrobatch,
        servers: 1,
    };

    /// Expected: gathered, scattered, reduced, served.
    fn check(name: &str, step: StepSizes, expected: [f64; 4]) {
        let volume = data_scheme(name).unwrap().volume(&step);
        let found = [volume.gathered, volume.scattered, volume.reduced, volume.served].map(Bytes::get);
        assert_eq!(found, expected, "{name} {step:?}");
    }

    #[test]
    fn volumes_of_a_step() {
        // d = 4: a ring sends 3/4 of the tensor, 150 of weights and 300 of gradients; an all-reduce twice that.
        let last = StepSizes { reduction: Reduction::LastMicrobatch, ..SIZES };
        for name in ["none", "horovod"] {
            check(name, last, [0.0, 0.0, 600.0, 0.0]);
            check(name, SIZES, [0.0, 0.0, 1800.0, 0.0]);
        }
        check("zero1", last, [150.0, 300.0, 0.0, 0.0]);
        check("zero1", SIZES, [150.0, 900.0, 0.0, 0.0]);
        check("zero2", SIZES, [150.0, 900.0, 0.0, 0.0]);
        for name in ["zero3", "fsdp", "hsdp", "zero2-fsdp"] {
            check(name, SIZES, [900.0, 900.0, 0.0, 0.0]);
            check(name, StepSizes { reshard: Reshard::AfterBackward, ..SIZES }, [450.0, 900.0, 0.0, 0.0]);
            check(name, StepSizes { reshard: Reshard::AfterStep, ..last }, [150.0, 300.0, 0.0, 0.0]);
        }
        // Two sets of two: half of the tensor within a set, then an all-reduce of a half between two, 1/2 of it twice.
        let sets = StepSizes { shard: 2, replicas: 2, ..SIZES };
        check("hsdp", sets, [600.0, 600.0, 600.0, 0.0]);
        check(
            "zero1",
            StepSizes { reduction: Reduction::LastMicrobatch, ..sets },
            [100.0, 200.0, 200.0, 0.0],
        );
        // One server: three ranks' gradients into it, and weights to three out of it; four servers share that.
        check("parameter-server", last, [0.0, 0.0, 0.0, 3.0 * (200.0 + 400.0)]);
        check("parameter-server", StepSizes { servers: 4, ..last }, [0.0, 0.0, 0.0, 450.0]);
        check("parameter-server", StepSizes { servers: 4, ..SIZES }, [0.0, 0.0, 0.0, 150.0 + 900.0]);
    }

    #[test]
    fn mixed_precision_adam_without_accumulation_moves_2_psi_and_3_psi() {
        // ZeRO (1910.02054, section 7): 2 Ψ for ZeRO-1 and ZeRO-2 as without, 3 Ψ for ZeRO-3, elements of 2 bytes.
        let step = StepSizes { gradients: SIZES.weights, microbatches: 1, ..SIZES };
        let psi = step.weights * 0.75;
        for (name, times) in [("none", 2.0), ("zero1", 2.0), ("zero2", 2.0), ("zero3", 3.0), ("fsdp", 3.0)] {
            assert_eq!(data_scheme(name).unwrap().volume(&step).total(), times * psi, "{name}");
        }
    }

    #[test]
    fn an_unknown_scheme_is_answered_with_the_nearest() {
        let error = data_scheme("fdsp").err().unwrap().to_string();
        assert!(error.contains("fsdp"), "{error}");
    }
}
