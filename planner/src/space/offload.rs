//! What lives beside the GPUs.

use super::{Dimension, Given, Values};
use crate::candidate::Candidate;
use trainwright_spec::plan::Offload;
use trainwright_spec::program::Place;

/// Nothing; in the whole space the optimizer, its gradients too, or activations as well, where nodes have figures of their
/// processors. More of it, and drives, must be pinned.
pub(super) struct Beside;

const NONE: Offload = Offload {
    optimizer: None,
    optimizer_fraction: 1.0,
    delayed_update: false,
    gradients: None,
    parameters: None,
    activations: None,
    activation_blocks: None,
};
const HOST: Option<Place> = Some(Place::Host);
const NVME: Option<Place> = Some(Place::Nvme);
const OPTIMIZER: Offload = Offload { optimizer: HOST, ..NONE };
const WITH_GRADIENTS: Offload = Offload { gradients: HOST, ..OPTIMIZER };
const WITH_PARAMETERS: Offload = Offload { parameters: HOST, ..WITH_GRADIENTS };

/// The kinds of offload by name, those first that are tried.
static KINDS: [(&str, Offload); 10] = [
    ("none", NONE),
    ("optimizer", OPTIMIZER),
    ("optimizer+gradients", WITH_GRADIENTS),
    ("activations", Offload { activations: HOST, ..NONE }),
    ("optimizer+activations", Offload { activations: HOST, ..OPTIMIZER }),
    ("optimizer+gradients+parameters", WITH_PARAMETERS),
    ("all", Offload { activations: HOST, ..WITH_PARAMETERS }),
    ("delayed-optimizer", Offload { delayed_update: true, ..WITH_GRADIENTS }),
    ("optimizer-on-nvme", Offload { optimizer: NVME, ..WITH_GRADIENTS }),
    (
        "all-on-nvme",
        Offload { optimizer: NVME, gradients: NVME, parameters: NVME, activations: HOST, ..NONE },
    ),
];

/// How many kinds are tried.
const TRIED: usize = 4;

/// The name of a kind.
pub(super) fn name(offload: &Offload) -> &'static str {
    let kind = KINDS.iter().find(|(_, kind)| kind == offload);
    kind.expect("candidates have kinds of the list").0
}

impl Dimension for Beside {
    fn key(&self) -> &'static str {
        "offload"
    }

    fn summary(&self) -> &'static str {
        "what lives beside the GPUs"
    }

    fn values(&self) -> Values {
        Values::Names(KINDS.iter().map(|(name, _)| *name).collect())
    }

    fn options(&self, given: &Given, draft: &Candidate) -> Vec<Candidate> {
        let known: Vec<&'static str> = KINDS.iter().map(|(name, _)| *name).collect();
        let has_host = given.question.cluster.node.processors.is_some();
        let tried = if has_host && given.is_whole() { &known[..TRIED] } else { &known[..1] };
        let names = given.names(&known, tried);
        let chosen = KINDS.iter().filter(|(name, _)| names.contains(name));
        chosen.map(|(_, offload)| Candidate { offload: *offload, ..*draft }).collect()
    }

    fn value(&self, candidate: &Candidate) -> String {
        name(&candidate.offload).into()
    }
}
