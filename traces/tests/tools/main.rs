//! Tests of what goes out to other tools and comes in from them.

mod chakra;
mod drafts;
mod files;
mod kineto;
mod round_trips;
