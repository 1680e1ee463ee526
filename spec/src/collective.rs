//! Collectives as lists of steps: which rank sends which part of the tensor to which other.
//!
//! ```text
//! kind + Layout ─► an Algorithm of ALGORITHMS ─► Steps ─┬─► a simulator times the list
//!                                                       └─► an executor performs the same list on buffers
//! ```
//!
//! Members are numbers: 0..p are the ranks of the group in the order of their nodes, and after them come switches
//! that add and copy, where an algorithm uses some. Nothing here knows bytes, links, time or memory.
//!
//! A ring all-reduce among three ranks. The tensor is cut in three; after two steps each rank has the sum of one
//! third, after two more everyone has all of it:
//!
//! ```
//! use trainwright_spec::collective::{Algorithm, CollectiveKind, Layout, Ring};
//! let steps = Ring.steps(CollectiveKind::AllReduce, Layout::flat(3)?).unwrap();
//! assert_eq!(steps.to_string(), "\
//! 0→1 add 2  1→2 add 0  2→0 add 1
//! 0→1 add 1  1→2 add 2  2→0 add 0
//! 0→1 copy 0  1→2 copy 1  2→0 copy 2
//! 0→1 copy 2  1→2 copy 0  2→0 copy 1
//! ");
//! # Ok::<(), trainwright_spec::error::SpecError>(())
//! ```
//!
//! A list is for one channel. NCCL runs several at once, each over its part of the tensor and with the ranks of
//! each node in another order, so that all NICs are used: whoever wants that runs the list several times with
//! renumbered members.

mod binomial;
mod coll_net;
mod direct;
mod dissemination;
mod double_tree;
mod halving_doubling;
mod in_switch;
mod kind;
mod layout;
mod pairwise;
mod parameter_server;
mod pipeline;
mod ring;
mod steps;
mod two_level;

pub use binomial::BinomialTree;
pub use coll_net::{CollNet, InSwitchCollNet};
pub use direct::Direct;
pub use dissemination::Dissemination;
pub use double_tree::DoubleBinaryTree;
pub use halving_doubling::HalvingDoubling;
pub use in_switch::InSwitch;
pub use kind::CollectiveKind;
pub use layout::Layout;
pub use pairwise::Pairwise;
pub use parameter_server::ParameterServer;
pub use ring::Ring;
pub use steps::{Chunks, Effect, Phase, Steps, Switch, Transfer};
pub use two_level::TwoLevel;

/// One way to do a collective.
pub trait Algorithm: Sync {
    /// The name in tables and arguments.
    fn name(&self) -> &'static str;

    /// The transfers of each step; `None` if the algorithm cannot do this kind over this layout.
    fn steps(&self, kind: CollectiveKind, layout: Layout) -> Option<Steps>;
}

/// Every algorithm. A new one is a file in `collective/` and a line here.
pub static ALGORITHMS: &[&dyn Algorithm] = &[
    &Ring,
    &DoubleBinaryTree,
    &HalvingDoubling,
    &TwoLevel,
    &InSwitch,
    &InSwitchCollNet,
    &CollNet,
    &ParameterServer,
    &BinomialTree,
    &Direct,
    &Pairwise,
    &Dissemination,
];
