//! The combinations of offload that have a name.

use trainwright_spec::plan::Offload;
use trainwright_spec::program::Place;

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

/// All names.
pub(super) fn names() -> Vec<&'static str> {
    KINDS.iter().map(|(name, _)| *name).collect()
}

/// The key of offload in pins.
pub(crate) const OFFLOAD: &str = "offload";

/// The names of those that are tried without being pinned.
pub(crate) fn tried() -> impl Iterator<Item = &'static str> {
    KINDS[..TRIED].iter().map(|(name, _)| *name)
}

/// Whether the kind is tried without being pinned.
pub(super) fn is_tried(name: &str) -> bool {
    tried().any(|tried| tried == name)
}

/// The kind of a name from `names`.
pub(super) fn offload(name: &str) -> Offload {
    KINDS.iter().find(|(kind, _)| *kind == name).expect("names come from the list").1
}

/// The name of a kind.
pub(super) fn name(offload: &Offload) -> &'static str {
    let kind = KINDS.iter().find(|(_, kind)| kind == offload);
    kind.expect("candidates have kinds of the list").0
}
