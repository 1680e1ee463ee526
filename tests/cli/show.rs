//! `show`.

use crate::Folder;
use trainwright_spec::catalog;
use trainwright_spec::optimizer::OPTIMIZERS;
use trainwright_spec::schedule::SCHEDULES;

#[test]
fn every_entry_is_listed_and_printed_with_a_source() {
    let folder = Folder::new();
    let check = |list: &str, names: Vec<&str>| {
        let listed = folder.run(&format!("show {list}"));
        assert_eq!((listed.code, listed.stderr.as_str()), (0, ""), "{list}");
        let first: Vec<&str> =
            listed.stdout.lines().filter_map(|line| line.split_whitespace().next()).collect();
        for name in &names {
            assert!(first.contains(name), "{list} lacks {name}");
        }
        let widest = listed.stdout.lines().map(|line| line.chars().count()).max();
        assert!(widest.is_some_and(|widest| widest <= 120), "{list}: {widest:?} columns");

        let entry = folder.run(&format!("show {list} {}", names[0]));
        assert_eq!((entry.code, entry.stderr.as_str()), (0, ""), "{list} {}", names[0]);
        let table: toml::Table = entry.stdout.parse().unwrap();
        assert!(entry.stdout.contains("source = \"") && !table.is_empty(), "{}", entry.stdout);
    };
    for list in ["models", "gpus", "clusters", "nodes", "stacks"] {
        check(list, catalog::names(list));
    }
    check("schedules", SCHEDULES.iter().map(|schedule| schedule.name()).collect());
    check("optimizers", OPTIMIZERS.iter().map(|optimizer| optimizer.name()).collect());
}

#[test]
fn names_are_read_in_any_case() {
    let shown = Folder::new().run("show models GPT2-XL");
    assert_eq!(shown.code, 0);
    assert!(shown.stdout.contains("published_parameters = 1557611200"), "{}", shown.stdout);
}
