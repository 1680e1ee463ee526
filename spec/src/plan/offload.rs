//! The state that is offloaded to the memory of the nodes' processors or to their drives, and which choices are legal.
//!
//! - The optimizer's step runs where its state is. Gradients are copied there during the last backward pass, the
//!   processors update, and the weights are copied back (ZeRO-Offload, Ren et al. 2021, arXiv 2101.06840; Megatron-Core's
//!   `--optimizer-cpu-offload`).
//! - Gradients, if offloaded too, leave the GPU in every backward pass, bucket by bucket.
//! - Weights, if offloaded too, are fetched before each layer of every pass and dropped after it (ZeRO-Infinity,
//!   Rajbhandari et al. 2021, arXiv 2104.07857).
//! - The activations of a stage's first blocks leave after forward and are fetched before backward, one block ahead.
//!
//! State on the drives passes through the processors' memory.

use super::Plan;
use super::check::bad;
use crate::cluster::Fault;
use crate::data::Divided;
use crate::precision::Precision;
use crate::program::Place;
use crate::schedule::ActionKind;
use serde::{Deserialize, Serialize};

/// Where the parts of the training state are; what is left out stays on the GPUs.
#[derive(Debug, Clone, Copy, PartialEq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct Offload {
    /// Master weights and moments.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub optimizer: Option<Place>,
    /// The part of each layer's parameters whose optimizer is there, above 0 to 1; the others' stays on the GPU.
    #[serde(default = "all", skip_serializing_if = "is_all")]
    pub optimizer_fraction: f64,
    /// Whether the processors update with the gradients of the step before, during this step's passes
    /// (ZeRO-Offload's delayed parameter update).
    #[serde(default, skip_serializing_if = "std::ops::Not::not")]
    pub delayed_update: bool,
    /// Accumulated gradients.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub gradients: Option<Place>,
    /// Weights in the precision of the matrix products.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub parameters: Option<Place>,
    /// The activations that blocks keep from forward to backward.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub activations: Option<Place>,
    /// Of how many of a stage's first blocks; left out: of all.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub activation_blocks: Option<usize>,
}

fn all() -> f64 {
    1.0
}

fn is_all(fraction: &f64) -> bool {
    *fraction == 1.0
}

impl Default for Offload {
    /// Everything stays on the GPUs.
    fn default() -> Self {
        Self {
            optimizer: None,
            optimizer_fraction: 1.0,
            delayed_update: false,
            gradients: None,
            parameters: None,
            activations: None,
            activation_blocks: None,
        }
    }
}

impl Offload {
    /// Whether everything stays on the GPUs.
    pub fn is_none(&self) -> bool {
        *self == Self::default()
    }

    /// The part of the parameters that the processors update, 0 to 1.
    pub fn updated_by_host(&self) -> f64 {
        if self.optimizer.is_some() { self.optimizer_fraction } else { 0.0 }
    }

    /// Where the gradients go for the processors' update.
    pub fn gradients_place(&self) -> Place {
        self.gradients.unwrap_or(Place::Host)
    }

    /// Whether the activations of a stage's block, counted from 0, leave the GPU.
    pub fn takes_activations(&self, block: usize) -> bool {
        self.activations.is_some() && self.activation_blocks.is_none_or(|blocks| block < blocks)
    }

    /// In words, as in `optimizer and gradients on host`; empty if everything stays on the GPUs.
    pub fn in_words(&self) -> String {
        let parts = [
            ("optimizer", self.optimizer),
            ("gradients", self.gradients),
            ("parameters", self.parameters),
            ("activations", self.activations),
        ];
        let on = |place: Place| -> Option<String> {
            let there =
                parts.iter().filter(|(_, wanted)| *wanted == Some(place)).map(|(name, _)| match *name {
                    "optimizer" if self.optimizer_fraction < 1.0 => {
                        format!("{:.0} % of the optimizer", 100.0 * self.optimizer_fraction)
                    }
                    "activations" => match self.activation_blocks {
                        Some(blocks) => format!("activations of {blocks} blocks a stage"),
                        None => "activations".into(),
                    },
                    name => name.to_string(),
                });
            let there: Vec<String> = there.collect();
            (!there.is_empty()).then(|| format!("{} on {}", there.join(" and "), place.name()))
        };
        let delayed = self.delayed_update.then(|| "delayed update".to_string());
        [on(Place::Host), on(Place::Nvme), delayed].into_iter().flatten().collect::<Vec<_>>().join(", ")
    }
}

impl Plan {
    /// Whether what is offloaded has a place, and everything that it needs is there.
    pub(super) fn check_offload(&self) -> Result<(), Fault> {
        let offload = &self.offload;
        if offload.is_none() {
            return Ok(());
        }
        let placed = [
            ("offload.optimizer", offload.optimizer),
            ("offload.gradients", offload.gradients),
            ("offload.parameters", offload.parameters),
            ("offload.activations", offload.activations),
        ];
        let kinds = || self.cluster.kinds().map(|(_, node)| node);
        for ((key, place), node) in
            placed.into_iter().flat_map(|placed| kinds().map(move |node| (placed, node)))
        {
            let Some(place) = place else { continue };
            let drives = node.processors.as_ref().map(|processors| processors.drives.is_some());
            let lacks = match (place, drives) {
                (_, None) => "cluster.node.processors",
                (Place::Nvme, Some(false)) => "cluster.node.processors.drives",
                _ => continue,
            };
            return bad(key, format!("`{}`", place.name()), format!("node {} has no `{lacks}`", node.name));
        }
        let fraction = offload.optimizer_fraction;
        if !(fraction > 0.0 && fraction <= 1.0) {
            return bad("offload.optimizer_fraction", fraction.to_string(), "above 0, at most 1".into());
        }
        let needs_optimizer = "it needs `offload.optimizer`";
        if offload.optimizer.is_none() {
            if fraction < 1.0 {
                return bad("offload.optimizer_fraction", fraction.to_string(), needs_optimizer.into());
            }
            if offload.delayed_update {
                return bad("offload.delayed_update", "true".into(), needs_optimizer.into());
            }
        }
        if let Some(place) = offload.optimizer
            && self.job.optimizer().of_matrices().is_some()
        {
            let name = &self.job.optimizer;
            let allowed = format!("processors update element by element: not with optimizer `{name}`");
            return bad("offload.optimizer", format!("`{}`", place.name()), allowed);
        }
        for (key, place) in &placed[1..3] {
            if let Some(place) = place
                && offload.updated_by_host() < 1.0
            {
                let allowed = format!("{needs_optimizer} of all parameters");
                return bad(key, format!("`{}`", place.name()), allowed);
            }
        }
        if let (Some(place), true) = (offload.gradients, self.replicates_weights())
            && !self.stack.overlap_gradient_reduction
        {
            let allowed = format!(
                "where ranks have the same weights gradients leave as they are reduced, which stack {} does after \
                 backward",
                self.stack.name
            );
            return bad("offload.gradients", format!("`{}`", place.name()), allowed);
        }
        if let (Some(place), true) = (offload.parameters, self.shards_optimizer()) {
            let allowed =
                "only where the optimizer is not divided, so that every rank fetches whole layers".into();
            return bad("offload.parameters", format!("`{}`", place.name()), allowed);
        }
        if let (Some(place), Some(_)) = (offload.parameters, self.job.precision.quantisation()) {
            let allowed =
                format!("training in {} keeps copies of the weights on the GPU", self.job.precision);
            return bad("offload.parameters", format!("`{}`", place.name()), allowed);
        }
        match offload.activation_blocks {
            Some(blocks) if offload.activations.is_none() => {
                bad("offload.activation_blocks", blocks.to_string(), "it needs `offload.activations`".into())
            }
            Some(0) => bad("offload.activation_blocks", "0".into(), "at least 1".into()),
            _ => self.check_beside(),
        }
    }

    /// Whether backward passes are not in halves and followed by an update, and gradients and weights of a rank are
    /// undivided: copies exist for neither halves nor shards.
    fn check_beside(&self) -> Result<(), Fault> {
        let schedule = self.schedule();
        let lists = schedule.lists(self.pipeline_shape()).ranks;
        let halves = lists.iter().flatten().any(|action| action.kind == ActionKind::Input);
        let refuse = |allowed| bad("offload", format!("`{}`", self.offload.in_words()), allowed);
        if halves || schedule.copies() > 1 || !schedule.flushes() {
            return refuse(format!(
                "not with schedule {}, which runs backward in halves, two copies of the stages or without flush",
                self.schedule
            ));
        }
        if self.divides(Divided::Gradients) || self.servers().is_some() {
            let name = &self.data_sharding;
            let known = "only where every rank has all gradients and weights and updates its part";
            return refuse(format!("not with data_sharding = `{name}`: {known}"));
        }
        if self.mesh.tensor_rows > 1 {
            return refuse(format!("not with tensor scheme `{}`: use `1d`", self.tensor_scheme));
        }
        Ok(())
    }

    /// Whether the precisions of the training state fit that of the training.
    pub(super) fn check_state(&self) -> Result<(), Fault> {
        let state = &self.state;
        if let Some(gradients) = state.gradients
            && ![Precision::Fp32, Precision::Bf16, Precision::Fp16].contains(&gradients)
        {
            return bad("state.gradients", format!("`{gradients}`"), "fp32, bf16 or fp16".into());
        }
        let precision = self.job.precision;
        if state.master_weights != Default::default() && !precision.needs_master_weights() {
            let allowed = format!("training in {precision} has no master weights");
            return bad(
                "state.master_weights",
                format!("`{:?}`", state.master_weights).to_lowercase(),
                allowed,
            );
        }
        Ok(())
    }
}
