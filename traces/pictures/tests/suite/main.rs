//! Pictures of timelines made by hand, and plots.

// Of what timelines by hand can be, pictures need a part.
#[allow(dead_code)]
#[path = "../../../timeline/tests/suite/draft.rs"]
mod draft;
mod picture;
mod plot;
