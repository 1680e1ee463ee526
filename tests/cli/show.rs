//! `show`.

use crate::Folder;
use trainwright_sim::network;
use trainwright_spec::catalog;
use trainwright_spec::cluster::Fabric;
use trainwright_spec::collective::{ALGORITHMS, CollectiveKind};
use trainwright_spec::context::CONTEXT_SCHEMES;
use trainwright_spec::data::DATA_SCHEMES;
use trainwright_spec::experts::DISPATCHERS;
use trainwright_spec::optimizer::OPTIMIZERS;
use trainwright_spec::schedule::SCHEDULES;
use trainwright_spec::tensor::TENSOR_SCHEMES;

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
    for list in [
        "models",
        "gpus",
        "clusters",
        "nodes",
        "stacks",
        "engines",
        "controllers",
        "interconnects",
        "nics",
        "nccl",
    ] {
        check(list, catalog::names(list));
    }
    check("schedules", SCHEDULES.iter().map(|schedule| schedule.name()).collect());
    check("context-schemes", CONTEXT_SCHEMES.iter().map(|scheme| scheme.name()).collect());
    check("data-schemes", DATA_SCHEMES.iter().map(|scheme| scheme.name()).collect());
    check("tensor-schemes", TENSOR_SCHEMES.iter().map(|scheme| scheme.name()).collect());
    check("optimizers", OPTIMIZERS.iter().map(|optimizer| optimizer.name()).collect());
    check("dispatchers", DISPATCHERS.iter().map(|dispatcher| dispatcher.name()).collect());
    check("fabrics", Fabric::KINDS.map(|(kind, _)| kind).to_vec());
}

/// The tables of algorithms and collectives agree, and an algorithm is printed with its steps.
#[test]
fn algorithms_and_collectives_are_listed_with_each_other() {
    let folder = Folder::new();
    let entry = |list: &str, name: &str| -> toml::Table {
        let shown = folder.run(&format!("show {list} {name}"));
        assert_eq!((shown.code, shown.stderr.as_str()), (0, ""), "{list} {name}");
        shown.stdout.parse().unwrap()
    };
    let has = |table: &toml::Table, key: &str, name: &str| {
        table[key].as_array().unwrap().iter().any(|value| value.as_str() == Some(name))
    };
    let by_steps = ALGORITHMS.iter().map(|algorithm| algorithm.name());
    let names: Vec<&str> =
        network::ALGORITHMS.iter().map(|algorithm| algorithm.name()).chain(by_steps).collect();
    let [algorithms, collectives] =
        ["algorithms", "collectives"].map(|list| folder.run(&format!("show {list}")).stdout);
    for name in names {
        assert!(algorithms.lines().any(|line| line.split_whitespace().next() == Some(name)), "{algorithms}");
        let algorithm = entry("algorithms", name);
        let mut done = 0;
        for kind in CollectiveKind::ALL.map(CollectiveKind::name) {
            let collective = entry("collectives", kind);
            for key in ["nccl", "by_steps"] {
                assert_eq!(has(&algorithm, key, kind), has(&collective, key, name), "{name} {key} {kind}");
                done += usize::from(has(&algorithm, key, kind));
            }
        }
        assert!(done > 0, "{name} does nothing");
    }
    for kind in CollectiveKind::ALL.map(CollectiveKind::name) {
        assert!(collectives.lines().any(|line| line.starts_with(kind)), "{collectives}");
    }
    // The part of each rank arrives there last.
    let ring = entry("algorithms", "ring");
    let first = ring["example"]["steps"].as_str().unwrap().lines().next().unwrap().to_string();
    assert_eq!(first, "0→1 add 3  1→2 add 0  2→3 add 1  3→0 add 2");
    let unknown = folder.run("show algorithms rng");
    assert_eq!(
        (unknown.code, unknown.stderr.as_str()),
        (2, "error: unknown algorithm `rng` (nearest: ring); `trainwright show algorithms` lists all\n")
    );
}

#[test]
fn names_are_read_in_any_case() {
    let shown = Folder::new().run("show models GPT2-XL");
    assert_eq!(shown.code, 0);
    assert!(shown.stdout.contains("published_parameters = 1557611200"), "{}", shown.stdout);
}
