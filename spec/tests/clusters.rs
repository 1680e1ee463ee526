//! Clusters: every entry of the catalog reads and has its sources; names, files and what is wrong with them.

use std::path::Path;
use trainwright_spec::catalog;
use trainwright_spec::cluster::{Cluster, Node};

/// Every cluster that a name of the catalog stands for, nodes as clusters of one.
fn catalogued() -> Vec<(&'static str, Cluster)> {
    let names = catalog::names("clusters").into_iter().chain(catalog::names("nodes"));
    names
        .map(|name| (name, Cluster::from_name(name).unwrap_or_else(|error| panic!("{name}: {error}"))))
        .collect()
}

#[test]
fn every_entry_of_the_catalog_is_named_as_its_file() {
    for (name, cluster) in catalogued() {
        assert_eq!(cluster.name, name);
    }
    for name in catalog::names("nodes") {
        assert_eq!(Node::from_name(name).unwrap().name, name);
        assert!(!catalog::names("clusters").contains(&name), "`{name}` is a node and a cluster");
    }
}

#[test]
fn every_number_of_the_catalog_has_a_source() {
    for (name, cluster) in catalogued() {
        let numbers = check_sources(name, &toml::Value::try_from(&cluster).unwrap());
        assert!(numbers > 10, "{name} has only {numbers} sourced numbers");
    }
}

/// Counts the tables with a `value`, or with a `source` for all they hold; all of both must have a `source`.
fn check_sources(path: &str, value: &toml::Value) -> usize {
    if let Some(array) = value.as_array() {
        return array.iter().map(|inner| check_sources(path, inner)).sum();
    }
    let Some(table) = value.as_table() else { return 0 };
    if table.contains_key("value") || table.contains_key("source") {
        let source = table.get("source").and_then(|source| source.as_str()).unwrap_or_default();
        assert!(source.len() > 3, "{path} has no source");
        return 1;
    }
    table.iter().map(|(key, inner)| check_sources(&format!("{path}.{key}"), inner)).sum()
}

#[test]
fn what_is_written_is_read_back_equal() {
    for (name, cluster) in catalogued() {
        let text = toml::to_string(&cluster).unwrap();
        assert_eq!(Cluster::from_toml(&text, "written.toml").unwrap(), cluster, "{name}:\n{text}");
    }
}

#[test]
fn a_name_stands_for_a_cluster_a_part_of_one_or_some_nodes() {
    let check = |name: &str, nodes: usize, gpus: usize| {
        let cluster = Cluster::reference(name).unwrap();
        assert_eq!((cluster.name.as_str(), cluster.nodes, cluster.gpus()), (name, nodes, gpus));
    };
    check("selene", 560, 4480);
    check("selene:384", 384, 3072);
    check("meta-llama3", 3072, 24_576);
    check("dgx-h100", 1, 8);
    check("dgx-h100:16", 16, 128);
    check("gb200-nvl72:2", 2, 144);
    check("rtx-4090", 1, 1);
}

#[test]
fn a_name_that_does_not_fit_is_refused_in_one_line() {
    let check = |name: &str, expected: &str| {
        let message = Cluster::from_name(name).unwrap_err().to_string();
        assert!(message.contains(expected), "{name}: {message}");
        assert!(!message.contains('\n'), "{name}: {message}");
    };
    check("dgx-h10", "unknown cluster `dgx-h10` (nearest: dgx-h100");
    check("selen", "nearest: selene");
    check("dgx-h100:0", "`cluster` is `dgx-h100:0`; after the colon stands a number of nodes, at least 1");
    check("dgx-h100:x", "after the colon stands a number of nodes");
    check("dgx-h100:-1", "after the colon stands a number of nodes");
    check("selene:561", "selene has 560 nodes");
    check("rtx-4090:2", "`node.nics` is missing; 2 nodes can only work together over NICs");
    check("dgx-h100:2000000", "at most 10000000 GPUs in all, here each node has 8");
    check("dgx-h100:18446744073709551615", "at most 10000000 GPUs");
    check("", "unknown cluster ``");
}

/// A cluster from a file, with a name of the catalog at each level below.
const FROM_FILE: &str = r#"
nodes = 2
node = { gpu = "a100-80gb-sxm", gpus = 4, interconnect = { kind = "x", bandwidth = "100 GB/s", efficiency = 0.5, latency = "2 us" }, nics = { kind = "y", count = 2, bandwidth = "100 Gbit/s", efficiency = 1, latency = 0 } }
"#;

#[test]
fn a_file_may_name_the_catalog_at_any_level() {
    let check = |text: &str, nodes: usize, node: &str, gpu: &str, oversubscription: f64| {
        let cluster =
            Cluster::from_toml(text, "some/cluster.toml").unwrap_or_else(|error| panic!("{text}\n{error}"));
        assert_eq!(cluster.name, "cluster");
        assert_eq!((cluster.nodes, cluster.node.name.as_str()), (nodes, node));
        assert_eq!(cluster.node.gpu.name, gpu);
        assert_eq!(cluster.fabric.tapers()[0].oversubscription.value, oversubscription);
    };
    check("nodes = 3\nnode = \"dgx-a100\"", 3, "dgx-a100", "a100-80gb-sxm", 1.0);
    check("nodes = 3\nnode = \"dgx-a100\"\nfabric.oversubscription = 2", 3, "dgx-a100", "a100-80gb-sxm", 2.0);
    check(FROM_FILE, 2, "custom", "a100-80gb-sxm", 1.0);

    let mut all = toml::Table::try_from(Cluster::from_name("dgx-a100:3").unwrap()).unwrap();
    all.remove("name");
    all["node"].as_table_mut().unwrap()["gpu"].as_table_mut().unwrap().remove("name");
    check(&all.to_string(), 3, "dgx-a100", "custom", 1.0);
}

/// A GPU that the catalog lacks has to say which of NCCL's tables count for it.
#[test]
fn a_gpu_without_a_generation_is_refused() {
    let mut cluster = toml::Table::try_from(Cluster::from_name("dgx-a100").unwrap()).unwrap();
    cluster["node"].as_table_mut().unwrap()["gpu"].as_table_mut().unwrap().remove("generation");
    let message = Cluster::from_toml(&cluster.to_string(), "cluster.toml").unwrap_err().to_string();
    assert!(message.contains("missing field `generation`"), "{message}");
    for (gpu, library) in [("mi300x-8", Some("rccl")), ("tpu-v4-host", Some("xla")), ("dgx-a100", None)] {
        assert_eq!(Cluster::from_name(gpu).unwrap().node.gpu.library.as_deref(), library, "{gpu}");
    }
}

/// A kind of the catalog fills in what is left out; what is written stays.
#[test]
fn an_interconnect_and_a_nic_may_name_their_kind() {
    let text = r#"
nodes = 2
[node]
gpu = "a100-80gb-sxm"
gpus = 8
interconnect = "nvlink3-nvswitch"
nics = { kind = "infiniband-hdr", count = 3, latency = "9 us" }
"#;
    let (custom, dgx) =
        (Cluster::from_toml(text, "cluster.toml").unwrap(), Cluster::from_name("dgx-a100:2").unwrap());
    assert_eq!(custom.node.interconnect, dgx.node.interconnect);
    let (custom_nics, dgx_nics) = (custom.node.nics.unwrap(), dgx.node.nics.unwrap());
    assert_eq!(custom_nics.bandwidth, dgx_nics.bandwidth);
    assert_eq!((custom_nics.count.value, custom_nics.latency.value.get()), (3, 9e-6));
    let check = |from: &str, to: &str, expected: &str| {
        let error = Cluster::from_toml(&text.replace(from, to), "cluster.toml").unwrap_err().to_string();
        assert!(error.contains(expected), "{error}");
    };
    check(
        "nvlink3-nvswitch",
        "nvlink3-nvswich",
        "cluster.toml:6: `node.interconnect` is `nvlink3-nvswich`; unknown interconnect",
    );
    check("infiniband-hdr", "private-nic", "missing field `bandwidth`");
}

#[test]
fn a_file_that_does_not_fit_is_refused_with_file_line_key_and_what_is_allowed() {
    let check = |was: &str, is: &str, expected: &str| {
        assert!(FROM_FILE.contains(was), "{was}");
        let message =
            Cluster::from_toml(&FROM_FILE.replacen(was, is, 1), "cluster.toml").unwrap_err().to_string();
        assert!(message.starts_with(expected), "{is}: {message}");
        assert!(!message.contains('\n'), "{is}: {message}");
    };
    check("nodes = 2", "nodes = 0", "cluster.toml:2: `nodes` is 0; at least 1");
    check("nodes = 2", "nodes = -2", "cluster.toml:2: `nodes`: invalid value: integer `-2`, expected usize");
    check("nodes = 2", "nodes = 9000000", "cluster.toml:2: `nodes` is 9000000; at most 10000000 GPUs in all");
    check(
        "nodes = 2",
        "nods = 2",
        "cluster.toml:2: `nods`: unknown field `nods`, expected one of `name`, `nodes`",
    );
    check("nodes = 2", "", "cluster.toml:1: missing field `nodes`");
    check("nodes = 2", "nodes = ", "cluster.toml:2: ");
    check(
        "\"a100-80gb-sxm\"",
        "\"a100-80\"",
        "cluster.toml:3: `node.gpu` is `a100-80`; unknown gpu `a100-80` (nearest: a100-",
    );
    check("gpus = 4", "gpus = 0", "cluster.toml:3: `node.gpus` is 0; at least 1");
    check("gpus = 4", "gpus = 1.5", "cluster.toml:3: `node.gpus`: 1.5 is out of range");
    check(
        "\"100 GB/s\"",
        "\"0 GB/s\"",
        "cluster.toml:3: `node.interconnect.bandwidth` is 0 GB/s; at least 0.001 GB/s",
    );
    check(
        "\"100 GB/s\"",
        "\"100 GBps\"",
        "cluster.toml:3: `node.interconnect.bandwidth`: `100 GBps` is not a number followed by one of GB/s",
    );
    check("\"100 GB/s\"", "-1", "cluster.toml:3: `node.interconnect.bandwidth`: -1 is out of range");
    check("\"100 GB/s\"", "inf", "cluster.toml:3: `node.interconnect.bandwidth`: inf is out of range");
    check("0.5", "1.5", "cluster.toml:3: `node.interconnect.efficiency` is 1.5; from 0.01 to 1");
    check("0.5", "0", "cluster.toml:3: `node.interconnect.efficiency` is 0; from 0.01 to 1");
    check("\"2 us\"", "\"2 s\"", "cluster.toml:3: `node.interconnect.latency` is 2.00 s; between 0 and 1 s");
    check("nics =", "nicks =", "cluster.toml:3: `node.nicks`: unknown field `nicks`");
    check("count = 2", "count = 0", "cluster.toml:3: `node.nics.count` is 0; at least 1");
    check(
        "efficiency = 1,",
        "efficiency = 0,",
        "cluster.toml:3: `node.nics.efficiency` is 0; from 0.01 to 1",
    );
    check(
        "\n",
        "\nfabric.oversubscription = 0.5\n",
        "cluster.toml:2: `fabric.oversubscription` is 0.5; from 1 (non-blocking) to 1000",
    );
    check(
        "\n",
        "\nfabric = { oversubscription = 1, pod_nodes = 0 }\n",
        "cluster.toml:2: `fabric.pod_nodes` is 0; at least 1",
    );
    let nics =
        ", nics = { kind = \"y\", count = 2, bandwidth = \"100 Gbit/s\", efficiency = 1, latency = 0 }";
    check(nics, "", "cluster.toml:3: `node.nics` is missing; 2 nodes can only work together over NICs");
}

#[test]
fn a_reference_with_a_slash_or_the_ending_toml_is_a_file() {
    let message = Cluster::reference("nowhere/cluster.toml").unwrap_err().to_string();
    assert!(message.starts_with("nowhere/cluster.toml: "), "{message}");
    let message = Cluster::reference("cluster.toml").unwrap_err().to_string();
    assert!(message.starts_with("cluster.toml: "), "{message}");
    let entry = Path::new(env!("CARGO_MANIFEST_DIR")).join("catalog/clusters/selene.toml");
    assert_eq!(
        Cluster::reference(&entry.display().to_string()).unwrap(),
        Cluster::from_name("selene").unwrap()
    );
}

/// Eight GPUs in two nodes of four, to which `check` below adds a fabric or a wiring.
const LINKED: &str = r#"
nodes = 2
[node]
gpu = "a100-80gb-sxm"
gpus = 4
interconnect = { kind = "x", bandwidth = "100 GB/s", efficiency = 0.5, latency = "2 us", wiring = "switched" }
nics = { kind = "y", count = 2, bandwidth = "100 Gbit/s", efficiency = 1, latency = 0 }
[fabric]
"#;

#[test]
fn a_wiring_or_a_fabric_that_cannot_be_is_refused_with_its_key() {
    let wiring = |wiring: &str, expected: &str| {
        let text = LINKED.replace("\"switched\"", wiring);
        let message = Cluster::from_toml(&text, "cluster.toml").unwrap_err().to_string();
        assert!(message.contains(expected), "{wiring}: {message}");
        assert!(!message.contains('\n'), "{wiring}: {message}");
    };
    let pairs = "cluster.toml:6: `node.interconnect.wiring.pairs.links";
    let bridges = "cluster.toml:6: `node.interconnect.wiring.bridges";
    wiring("\"ring\"", "cluster.toml:6: `node.interconnect.wiring`: unknown variant `ring`, expected one of");
    wiring(
        "{ pairs = { links = [[0, 4, 1]] } }",
        &format!("{pairs}.0` is [0, 4, 1]; the node's GPUs are 0 to 3"),
    );
    wiring("{ pairs = { links = [[1, 1, 1]] } }", &format!("{pairs}.0` is [1, 1, 1]; a link joins two GPUs"));
    wiring("{ pairs = { links = [[0, 1, 0]] } }", &format!("{pairs}.0` is [0, 1, 0]; at least 1 link"));
    wiring(
        "{ pairs = { links = [[0, 1, 1], [1, 0, 1]] } }",
        &format!("{pairs}.1` is [1, 0, 1]; this pair stands twice"),
    );
    wiring(
        "{ pairs = { links = [[0, 1, 1], [2, 3, 1]] } }",
        &format!(
            "{pairs}` is not joining GPU 2 to GPU 0; every GPU must be joined to every other; a `node.host`"
        ),
    );
    wiring(
        "{ pairs = { links = [[0, 1, 2], [1, 2, 2], [2, 3, 2]] } }, links = 3",
        "cluster.toml:6: `node.interconnect.links` is 3; at least the 4 that the wiring uses",
    );
    wiring(
        "{ bridges = { gpus_per_socket = 2 } }",
        &format!("{bridges}.between_sockets` is missing; several sockets"),
    );
    wiring(
        "{ bridges = { gpus_per_socket = 2, between_sockets = 0 } }",
        &format!("{bridges}.between_sockets` is 0 GB/s; at least 0.001 GB/s"),
    );
    wiring(
        "{ bridges = { gpus_per_switch = 3 } }",
        &format!("{bridges}.gpus_per_switch` is 3; a divisor of the 4 GPUs below a socket"),
    );

    let many = LINKED.replace("gpus = 4", "gpus = 300").replace("switched", "direct");
    let message = Cluster::from_toml(&many, "cluster.toml").unwrap_err().to_string();
    assert!(
        message.starts_with("cluster.toml:5: `node.gpus` is 300; at most 256 GPUs in a node unless"),
        "{message}"
    );

    let fabric = |fabric: &str, expected: &str| {
        let message =
            Cluster::from_toml(&format!("{LINKED}{fabric}"), "cluster.toml").unwrap_err().to_string();
        assert!(message.starts_with("cluster.toml"), "{fabric}: {message}");
        assert!(message.contains(expected), "{fabric}: {message}");
        assert!(!message.contains('\n'), "{fabric}: {message}");
    };
    fabric(
        "fat_tree.levels = [{ nodes = 1, oversubscription = 1, uplinks = 10000001 }]",
        "`fabric.fat_tree.levels.0.uplinks` is 10000001; at most 10000000 links between switches in all, here are ",
    );
    fabric(
        "fat_tree.levels = [{ nodes = 1000000000000000, oversubscription = 1 }]",
        "`fabric.fat_tree.levels.0.nodes` is 1000000000000000; at most 10000000",
    );
    fabric(
        "dragonfly = { nodes_per_router = 1, routers_per_group = 10000, routing = \"minimal\" }",
        "`fabric.dragonfly.routers_per_group` is 10000; at most 10000000 links between switches in all, here are ",
    );
    fabric(
        "oversubscripton = 2",
        "`fabric.oversubscripton`: unknown field `oversubscripton`, expected one of",
    );
    fabric("pod_nodes = 2", "`pod_nodes` needs `oversubscription` beside it");
    fabric("hop_latency = -1", "`fabric.hop_latency`: -1 is out of range");
    fabric(
        "hop_latency = \"-1 us\"",
        "`fabric.hop_latency`: `-1 us` is out of range: neither negative nor endless",
    );
    fabric(
        "oversubscription = 2\ntorus = { dims = [8] }",
        "a fabric has one shape, here are `torus` and `oversubscription`",
    );
    fabric("fat_tree = { levels = [] }", "`fabric.fat_tree.levels` is empty; at least one level");
    fabric(
        "fat_tree = { levels = [{ nodes = 1, oversubscription = 0.5 }] }",
        "cluster.toml:9: `fabric.fat_tree.levels.0.oversubscription` is 0.5; from 1 (non-blocking) to 1000",
    );
    let levels = |nodes: usize, ratio: usize| {
        format!(
            "fat_tree.levels = [\n{{ nodes = 2, oversubscription = 2 }},\n{{ nodes = {nodes}, oversubscription = {ratio} }}]"
        )
    };
    fabric(
        &levels(3, 2),
        "cluster.toml:11: `fabric.fat_tree.levels.1.nodes` is 3; a multiple of the 2 nodes",
    );
    fabric(
        &levels(4, 1),
        "cluster.toml:11: `fabric.fat_tree.levels.1.oversubscription` is 1; at least the 2 of the level below",
    );
    fabric("rail_optimised = { pod_nodes = 0 }", "`fabric.rail_optimised.pod_nodes` is 0; at least 1");
    fabric("dragonfly = { nodes_per_router = 1 }", "missing field `routers_per_group`");
    fabric(
        "dragonfly = { nodes_per_router = 1, routers_per_group = 2, global_oversubscription = 2000 }",
        "`fabric.dragonfly.global_oversubscription` is 2000; from 1",
    );
    fabric(
        "torus = { dims = [2, 3] }",
        "`fabric.torus.dims` is [2, 3]; their product must be the cluster's 8 GPUs",
    );
    fabric(
        "torus = { dims = [2, 4], wrap = [true] }",
        "`fabric.torus.wrap` is [true]; one of true and false for each dim",
    );
    fabric(
        "torus = { dims = [2, 4], node_dims = [4, 1] }",
        "`fabric.torus.node_dims` is [4, 1]; a block of the node's 4 GPUs",
    );

    let cable = |between: &str, bandwidth: &str, latency: &str| {
        format!(
            "links = [{{ between = [\"node0\", \"leaf\"], bandwidth = \"1 GB/s\", latency = 0 }},\n{{ between = {between}, bandwidth = {bandwidth}, latency = {latency} }}]"
        )
    };
    let line = "cluster.toml:10: `fabric.links.1";
    fabric(
        &cable(r#"["node1", "leaf"]"#, "0", "0"),
        &format!("{line}.bandwidth` is 0 GB/s; at least 0.001 GB/s"),
    );
    fabric(&cable(r#"["node1", "leaf"]"#, "1e9", "-1"), "`fabric.links.1.latency`: -1 is out of range");
    fabric(
        &cable(r#"["node1", "leaf"]"#, "1e9", "2"),
        &format!("{line}.latency` is 2.00 s; between 0 and 1 s"),
    );
    fabric(&cable(r#"["leaf", "leaf"]"#, "1e9", "0"), "a link joins two different ends");
    fabric(
        &cable(r#"["node2", "leaf"]"#, "1e9", "0"),
        &format!("{line}.between` is [\"node2\", \"leaf\"]; the nodes are node0 to node1"),
    );
    fabric(&cable(r#"["node1.nic2", "leaf"]"#, "1e9", "0"), "the NICs of a node are nic0 to nic1");
    fabric(
        &cable(r#"["node1.nic0", "leaf"]"#, "1e9", "0"),
        "`fabric.links` is not joining node1.nic1 to node0.nic0; every NIC",
    );
    fabric(
        &cable(r#"["node1", "spine"]"#, "1e9", "0"),
        "`fabric.links` is not joining node1.nic0 to node0.nic0",
    );
}
