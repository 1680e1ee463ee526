//! Lower bounds: what no partition of a candidate can beat.
//!
//! ```text
//! LeastWork::bound       a layout, nothing lowered             FLOPs over a rate     least_work
//! LowerBounds::layout    a layout under any schedule and state      its blocks' times     pipeline_work
//! LowerBounds::pipeline  a layout in a pipeline with any state      closed forms          pipeline_work
//! LowerBounds::step      a candidate, memory left aside             closed forms          pipeline_work, update_time
//! LowerBounds::tight     a candidate, in its memory, with what its  dual of the longest   ordered_work, data_axis,
//!                        data axis sends                            path, bisection       rank_capacity, …
//! LowerBounds::whole_blocks   whole blocks of a candidate in its    integer program      whole_blocks,
//!                        memory and in the order of its passes                            stage_program
//! LowerBounds::of_plan   a candidate with one partition and         one run of the order  ordered_work
//!                        recomputation
//! ```
//!
//! Each is at least the one before; the search takes the higher of the tight one and that of whole blocks. A property test holds
//! them below simulated times.

mod activation_copies;
mod activation_memory;
mod block_mixes;
mod data_axis;
mod joined_collectives;
mod layers_in_order;
mod least_work;
mod longest_paths;
mod lower_bounds;
mod message_path;
mod ordered_work;
mod pass_order;
mod pipeline_work;
mod rank_capacity;
mod stage_program;
mod update_time;
mod whole_blocks;

pub(crate) use least_work::LeastWork;
pub(crate) use lower_bounds::LowerBounds;
pub(crate) use update_time::update_bound;
