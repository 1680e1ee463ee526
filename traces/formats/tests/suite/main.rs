//! Tests of what goes out to other tools and comes in from them.

mod chakra;
mod drafts;
mod files;
mod kineto;
mod nccl_tests;
mod nsight;
mod refusals;
mod round_trips;
mod stock;
