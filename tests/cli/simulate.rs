//! `simulate`.

use crate::{Folder, small_plan};

#[test]
fn a_plan() {
    let folder = Folder::new();
    folder.write("plan.toml", &small_plan().to_toml());
    let ran = folder.run("simulate plan.toml --trace step.json --svg step.svg");
    println!("{}{}", ran.stdout, ran.stderr);
    std::fs::write("/tmp/cli-plan.toml", small_plan().to_toml()).unwrap();
    assert_eq!(ran.code, 0);
}
