//! Flows share links max-min fairly, in time.
//!
//! A flow moves an amount of work over a path of links. At any instant the rates are *max-min fair*: no rate can
//! grow without making smaller one that is not larger. They change only when a flow starts or ends, and only where
//! that matters: the solver goes from link to link as far as a change reaches.
//!
//! ```text
//! Network (online: start, next_end, advance) ─► Rates (which rate has each flow?) ─► ReadyLinks (which link next?)
//!    ▲        └─► EarliestEnd (which flow ends next?)
//! completion_times (all starts known)
//! ```
//!
//! Capacities are bytes per second, or any other work per second; amounts are in the same work. Nothing here knows
//! what a flow carries, why it starts, or what a link is made of.
//!
//! ```
//! use trainwright_sim::flow::{Flow, Link, LinkId, Network};
//! use trainwright_spec::units::{BytesPerSecond, Picoseconds};
//!
//! // Two flows share 10 GB/s; when the smaller is done the other has all of it.
//! let mut network = Network::new(vec![Link::shared(BytesPerSecond::new(10e9))]);
//! let path = vec![(LinkId(0), 1.0)];
//! let small = network.start(Picoseconds::ZERO, Flow { amount: 1e9, path: path.clone(), cap: None })?;
//! let large = network.start(Picoseconds::ZERO, Flow { amount: 2e9, path, cap: None })?;
//! assert_eq!(network.next_end(), Some(Picoseconds(200_000_000_000)));
//! assert_eq!(network.advance(Picoseconds(200_000_000_000)), [small]);
//! assert_eq!(network.rate(large), 10e9);
//! assert_eq!(network.next_end(), Some(Picoseconds(300_000_000_000)));
//! # Ok::<(), trainwright_sim::flow::Error>(())
//! ```

mod batch;
mod earliest;
mod fold;
mod link_state;
mod network;
mod rates;
mod ready;

pub use batch::{Transfer, completion_times};
pub use fold::{Folded, fold};
pub use network::Network;

use thiserror::Error;
use trainwright_spec::units::{BytesPerSecond, Picoseconds};

/// A link's place in the list that a network was made of.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct LinkId(pub u32);

/// The number of a flow, in the order in which flows were started.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct FlowId(pub u32);

/// How flows share a link's capacity.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Sharing {
    /// All flows together: the sum of weight × rate.
    Shared,
    /// The rate of each flow by itself, whatever its weight: each of the flows it stands for has a separate limit.
    PerFlow,
}

/// One channel in one direction.
#[derive(Debug, Clone, Copy, PartialEq)]
pub struct Link {
    /// Work per second: bytes per second on a network. It may be infinite.
    pub capacity: f64,
    /// How flows share the capacity.
    pub sharing: Sharing,
}

impl Link {
    /// A link whose bandwidth all its flows share.
    pub fn shared(bandwidth: BytesPerSecond) -> Self {
        Self { capacity: bandwidth.get(), sharing: Sharing::Shared }
    }

    /// A link that gives its bandwidth to each of its flows.
    pub fn per_flow(bandwidth: BytesPerSecond) -> Self {
        Self { capacity: bandwidth.get(), sharing: Sharing::PerFlow }
    }
}

/// Work to move over a path.
#[derive(Debug, Clone, PartialEq)]
pub struct Flow {
    /// How much work: bytes on a network.
    pub amount: f64,
    /// Links with weights: at rate r the flow takes weight · r of a link. A link named twice takes both weights.
    pub path: Vec<(LinkId, f64)>,
    /// The greatest rate, in work per second.
    pub cap: Option<f64>,
}

/// A flow that cannot be simulated.
#[derive(Debug, Clone, PartialEq, Error)]
#[error("flow {flow} {reason}")]
pub struct Error {
    /// Its number in the order of starts, or its place in a list.
    pub flow: usize,
    /// What is wrong.
    pub reason: Reason,
}

/// Why a flow cannot be simulated.
#[derive(Debug, Clone, PartialEq, Error)]
pub enum Reason {
    /// The path names a link that is not there.
    #[error("crosses link {link}, but there are only {links} links (numbered from 0)")]
    UnknownLink {
        /// The link it names.
        link: u32,
        /// How many there are.
        links: usize,
    },
    /// Nothing would ever get through.
    #[error("crosses link {link}, whose capacity is {capacity}: it must be greater than zero")]
    Capacity {
        /// The link.
        link: u32,
        /// Its capacity.
        capacity: f64,
    },
    /// A link must feel a flow that crosses it.
    #[error("has weight {weight} on link {link}: it must be finite and greater than zero")]
    Weight {
        /// The link.
        link: u32,
        /// The weight.
        weight: f64,
    },
    /// An amount that cannot be moved.
    #[error("has the amount {0}: it must be finite and not less than zero")]
    Amount(f64),
    /// A cap that nothing gets through.
    #[error("has the rate cap {0}: it must be greater than zero")]
    Cap(f64),
    /// Neither a link nor a cap limits the rate.
    #[error("has no limit to its rate: give it a link of finite capacity or a rate cap")]
    Unlimited,
    /// The clock is past that.
    #[error("starts at {start}, before the network's clock, which is at {clock}")]
    InThePast {
        /// When it was to start.
        start: Picoseconds,
        /// Where the clock is.
        clock: Picoseconds,
    },
    /// A start or latency that is no time.
    #[error("starts to move at {0} s: start and latency must be finite and not negative")]
    Start(f64),
    /// It would end after the last instant of the clock.
    #[error("needs more than the 213 days that the clock holds")]
    TooLong,
}
