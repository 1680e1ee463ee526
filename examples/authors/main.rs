//! Published runs beside the planner's answer to the same question: the table of `docs/plans.md`.
//!
//! `cargo run --release --example authors`

mod table;

fn main() {
    print!("{}", table::HEAD);
    for id in table::RUNS {
        print!("{}", table::row(id));
    }
}
