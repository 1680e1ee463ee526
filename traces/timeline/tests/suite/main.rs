//! Readers of timelines, on timelines made by hand.

mod chrome;
mod draft;
mod draw;
mod report;
