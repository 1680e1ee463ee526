//! The tests across crates, as one program: each file here is a module of it. (Linking one program takes seconds.)

mod adapters;
mod common;
mod context;
mod data_parallel;
mod examples;
mod experts;
mod facts;
mod hardening;
mod imports;
mod joining;
#[path = "common/long.rs"]
mod long;
mod memory;
mod mixed;
mod mutations;
mod network_published;
mod offload;
mod planner;
mod post_training;
mod precision;
mod properties;
mod recompute;
mod routes;
mod schedules;
mod scoreboard;
mod symmetry;
mod tensor;
mod tour;
#[path = "common/undisturbed.rs"]
mod undisturbed;
mod volumes;
