//! Tests of everything that reads a timeline, on timelines made by hand.

mod chrome;
mod draft;
mod draw;
mod nccl_tests;
mod picture;
mod plot;
mod report;
