//! What lives beside the GPUs.

use super::{Dimension, Given, Values};
use crate::candidate::Candidate;
use trainwright_spec::plan::Offload;
use trainwright_spec::program::Place;

/// Nothing, the optimizer, its gradients too, or activations, where nodes have figures of their processors. More of it,
/// and drives, must be pinned.
pub(super) struct Beside;

/// The kinds of offload by name, those first that are tried.
fn kinds() -> Vec<(&'static str, Offload)> {
    let none = Offload::default();
    let with = |optimizer, gradients, parameters, activations| Offload {
        optimizer,
        gradients,
        parameters,
        activations,
        ..none
    };
    let (host, nvme) = (Some(Place::Host), Some(Place::Nvme));
    vec![
        ("none", none),
        ("optimizer", with(host, None, None, None)),
        ("optimizer+gradients", with(host, host, None, None)),
        ("activations", with(None, None, None, host)),
        ("optimizer+activations", with(host, None, None, host)),
        ("optimizer+gradients+parameters", with(host, host, host, None)),
        ("all", with(host, host, host, host)),
        ("delayed-optimizer", Offload { delayed_update: true, ..with(host, host, None, None) }),
        ("optimizer-on-nvme", with(nvme, host, None, None)),
        ("all-on-nvme", with(nvme, nvme, nvme, host)),
    ]
}

/// How many kinds are tried.
const TRIED: usize = 4;

/// The name of a kind.
pub(super) fn name(offload: &Offload) -> &'static str {
    let kind = kinds().into_iter().find(|(_, kind)| kind == offload);
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
        Values::Names(kinds().into_iter().map(|(name, _)| name).collect())
    }

    fn options(&self, given: &Given, draft: &Candidate) -> Vec<Candidate> {
        let known: Vec<&'static str> = kinds().into_iter().map(|(name, _)| name).collect();
        let has_host = given.question.cluster.node.processors.is_some();
        let tried = if has_host { &known[..TRIED] } else { &known[..1] };
        let names = given.names(&known, tried);
        let chosen = kinds().into_iter().filter(|(name, _)| names.contains(name));
        chosen.map(|(_, offload)| Candidate { offload, ..*draft }).collect()
    }

    fn value(&self, candidate: &Candidate) -> String {
        name(&candidate.offload).into()
    }
}
