//! The tests of the vocabulary, as one program.

mod clusters;
mod collectives;
mod hugging_face;
mod list_scheduler;
mod models;
mod schedules;
