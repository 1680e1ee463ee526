//! Rebuilds the crate when a catalog file is added or changed.

fn main() {
    println!("cargo:rerun-if-changed=catalog");
}
