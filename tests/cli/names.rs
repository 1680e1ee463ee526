//! Names that come from a file stay text in every page and picture.

use crate::{Folder, small_plan};
use trainwright_spec::model::Model;
use trainwright_spec::plan::Plan;

const SCRIPT: &str = "<script>alert(1)</script>";

#[test]
fn a_script_in_a_name_is_text_in_every_page_and_picture() {
    let folder = Folder::new();
    let plan = small_plan();
    let mut cluster = plan.cluster.clone();
    cluster.name = format!("{SCRIPT}\"'&");
    let plan = Plan { model: Model { name: format!("{SCRIPT}\"'&"), ..plan.model.clone() }, cluster, ..plan };
    folder.write("plan.toml", &plan.to_toml());
    let metrics = "{\"step\": 1, \"loss\": 5.5}\n{\"step\": 2, \"loss\": 5.4}\n";
    std::fs::create_dir(folder.path("<script>alert(1)<")).unwrap();
    folder.write("<script>alert(1)<.jsonl", metrics);
    for (command, file) in [
        ("simulate plan.toml --report", "page.html"),
        ("simulate plan.toml --svg", "pipeline.svg"),
        ("what-if --plan plan.toml --vary micro_batch=1,2 --report", "sweep.html"),
        ("what-if --plan plan.toml --vary micro_batch=1,2 --svg", "sweep.svg"),
        ("curves <script>alert(1)<.jsonl --svg", "curves.svg"),
        ("curves <script>alert(1)<.jsonl --title <script>alert(1)</script> --svg", "title.svg"),
    ] {
        let ran = folder.run(&format!("{command} {file}"));
        assert_eq!(ran.code, 0, "{command}: {ran:?}");
        let page = folder.read(file);
        assert!(!page.contains("<script>alert"), "{command}: a name became a script");
        assert!(!page.contains("</script>\"'&"), "{command}: a name ended a script");
    }
    // It is there, as text.
    assert!(folder.read("page.html").contains("alert(1)"));
}
