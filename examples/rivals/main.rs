//! Where GPipe, ZeRO and FSDP each win: the table of `docs/planner.md`.
//!
//! `cargo run --release --example rivals`

mod table;

use rayon::prelude::*;

fn main() {
    println!(
        "| model | batch | cluster | GPipe | ZeRO | FSDP | fastest |\n| --- | --: | --- | --: | --: | --: | --- |"
    );
    let rows: Vec<String> = table::settings().par_iter().map(table::row).collect();
    print!("{}", rows.concat());
}
