//! The space of plans as data: a list of dimensions, each of which says what it can be once those before it are given.
//!
//! ```text
//! LAYOUT   precision, tensor, context, pipeline, data, expert, … , micro-batch   how a rank runs its layers
//! PIPELINE schedule, virtual-stages                                              in which order
//! STATE    data-sharding, shard, offload                                         where the training state is
//! ```
//!
//! A layout together with any pipeline and state that go with it is a candidate. `dimensions` is the table of them. Nothing
//! in it decides what is legal: `legal_candidates` asks `Plan::check`.

mod dimension;
mod dimensions;
mod hybrid_shard;
mod legal_candidates;
mod no_candidate;
mod offload_kinds;
mod pin_choices;
mod rank_order;
mod tensor_grid;
#[cfg(test)]
mod tests;
mod virtual_stages;

pub(crate) use dimension::divisors;
pub(crate) use legal_candidates::{LegalCandidates, has_layouts};
pub(crate) use offload_kinds::{OFFLOAD, tried as tried_offload};
pub(crate) use pin_choices::recompute_choices;
pub use pin_choices::{PinChoice, pin_choices};
