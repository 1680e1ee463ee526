//! What candidates cost before their layers are split into stages.
//!
//! ```text
//! schedule, sizes ──► in_flight ──► pipelines ─┐
//! layer on a rank ──► layer_cost ► layout_costs ┼─► cost_model ──► bound, stages
//! ops, messages   ──► cached_costs ─────────────┘
//! ```

mod cached_costs;
mod cost_model;
mod in_flight;
mod joint_passes;
mod layer_cost;
mod layout_costs;
mod outlooks;
mod pipelines;
mod shared_cache;

pub(crate) use cached_costs::CachedCosts;
pub(crate) use cost_model::CostModel;
pub(crate) use in_flight::Peak;
pub(crate) use layer_cost::{LayerCost, ModelCost, Parameters};
pub(crate) use layout_costs::LayoutCosts;
pub(crate) use outlooks::Outlooks;
pub(crate) use pipelines::{PipelineKey, enough_microbatches};
pub(crate) use shared_cache::SharedCache;
