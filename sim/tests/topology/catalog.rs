//! Every cluster of the catalog and every example of the guide.

use super::{check_path, route};
use std::path::Path;
use trainwright_sim::network::topology::Topology;
use trainwright_spec::catalog;
use trainwright_spec::cluster::Cluster;

#[test]
fn every_cluster_of_the_catalog_joins_its_gpus_with_few_links() {
    for name in catalog::names("clusters").into_iter().chain(catalog::names("nodes")) {
        let cluster = Cluster::from_name(name).unwrap();
        let cluster = match cluster.nodes {
            1 if cluster.node.nics.is_some() => Cluster::from_name(&format!("{name}:3")).unwrap(),
            _ => cluster,
        };
        let topology = Topology::new(&cluster);
        assert_eq!(topology.gpus(), cluster.gpus());
        let most = 12 * cluster.gpus() + 16;
        assert!(topology.links().len() <= most, "{name}: {} links", topology.links().len());
        for (index, link) in topology.links().iter().enumerate() {
            assert!(
                link.bandwidth.get() > 1e6 && link.latency.get() >= 0.0,
                "{name}, link {index}: {link:?}"
            );
        }
        for step in 0..200 {
            let (from, to) = (step * 7919 % cluster.gpus(), step * 104_729 % cluster.gpus());
            check_path(&topology, &cluster, from, to);
            check_path(&topology, &cluster, from, (from + step % 16) % cluster.gpus());
        }
    }
}

#[test]
fn the_same_cluster_gives_the_same_graph() {
    let cluster = Cluster::from_name("perlmutter").unwrap();
    assert_eq!(Topology::new(&cluster).links(), Topology::new(&cluster).links());
}

#[test]
fn a_large_cluster_has_links_in_proportion() {
    let topology = Topology::new(&Cluster::from_name("meta-llama3").unwrap());
    // 2 for each GPU to its switches, 2 for its NIC; 1,536 racks and 8 pods, each one up and one down.
    assert_eq!(topology.links().len(), 24_576 * 4 + 2 * (1536 + 8));
}

/// Each example of the guide is a whole cluster that works.
#[test]
fn the_examples_of_the_guide_are_read_and_joined() {
    let guide = Path::new(env!("CARGO_MANIFEST_DIR")).join("../docs/topologies.md");
    let text = std::fs::read_to_string(guide).unwrap();
    let examples: Vec<&str> =
        text.split("```toml\n").skip(1).map(|rest| rest.split("```").next().unwrap()).collect();
    assert!(examples.len() >= 8, "{} examples", examples.len());
    for example in examples {
        let cluster =
            Cluster::from_toml(example, "example.toml").unwrap_or_else(|error| panic!("{error}\n{example}"));
        let topology = Topology::new(&cluster);
        for gpu in 0..cluster.gpus() {
            let path = route(&topology, gpu, (gpu + cluster.gpus() / 2) % cluster.gpus());
            assert!(!path.is_empty(), "{example}");
        }
    }
}
