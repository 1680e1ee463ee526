//! `network` with `--by-steps`, `--side-by-side` and the algorithms that NCCL has not.

use crate::network::json;
use crate::{Folder, Ran};

/// Two DGX A100, 1 GiB: textbook lists on the cluster's links.
#[test]
fn algorithms_beyond_nccl_are_timed_step_by_step() {
    let folder = Folder::new();
    let row = |arguments: &str| {
        let answer = json(&folder, &format!("--cluster dgx-a100:2 --bytes 1G {arguments}"));
        let sweep = &answer["sweeps"][0];
        (sweep["rows"][0].clone(), sweep["groups"].as_u64().unwrap())
    };
    let (listed, groups) = row("--collective all_reduce --algorithm halving-doubling");
    assert_eq!((listed["algorithm"].as_str(), groups), (Some("halving-doubling"), 1));
    assert!(
        listed["protocol"].is_null() && listed["channels"].is_null() && listed["pieces"] == 1,
        "{listed}"
    );
    // A name that NCCL has too is NCCL's algorithm, unless `--by-steps` is given.
    assert_eq!(row("--collective all_reduce --algorithm ring").0["protocol"], "Simple");
    let (ring, _) = row("--collective all_reduce --algorithm ring --by-steps");
    assert!(ring["protocol"].is_null(), "{ring}");
    // All 8 NICs of 25 GB/s, 0.968 of it, carry 2 · 15/16 GiB: 10.4 ms. Steps in the node are not slower.
    let expected = 1.875 * 1_073_741_824.0 / (8.0 * 25e9 * 0.968);
    assert!((ring["time_s"].as_f64().unwrap() / expected - 1.0).abs() < 0.03, "{ring} for {expected} s");
    let (tree, _) = row("--collective all_reduce --algorithm double-binary-tree");
    assert!(tree["pieces"].as_u64().unwrap() > 1, "{tree}");
    let page =
        folder.run("network --cluster dgx-a100:2 --collective bcast --algorithm binomial-tree --bytes 1G");
    let line = page.stdout.lines().find(|line| line.starts_with("1,073,741,824 ")).unwrap();
    assert!(line.ends_with("  binomial-tree  -                -"), "{line}");
    let page =
        folder.run("network --cluster dgx-a100:2 --collective all_reduce --algorithm coll-net --bytes 1G");
    assert!(page.stdout.contains("; as if the\nfabric's switches could add\n"), "{}", page.stdout);
}

/// Pods of 2 nodes with a way out a fourth as wide as their 16 NICs: pairs of nodes in different pods share it.
#[test]
fn groups_of_a_shape_fill_the_cluster_side_by_side() {
    let folder = Folder::new();
    folder.write(
        "pods.toml",
        "nodes = 4\nnode = \"dgx-a100\"\nfabric = { oversubscription = 4, pod_nodes = 2 }",
    );
    let of = |arguments: &str| {
        let answer = json(&folder, &format!("--cluster pods.toml --bytes 8G {arguments}"));
        let sweep = &answer["sweeps"][0];
        (sweep["groups"].as_u64().unwrap(), sweep["rows"][0]["time_s"].as_f64().unwrap())
    };
    let rails = "--collective all_to_all --nodes 4 --ranks-per-node 1 --algorithm direct";
    let (alone, together) = (of(&format!("{rails} --by-steps")), of(&format!("{rails} --side-by-side")));
    assert_eq!((alone.0, together.0), (1, 8));
    // Each rank sends 3/4 of 8 GiB, at 24.2 GB/s of its NIC. Half of the 8 GiB leaves the pod: from 2 ranks over 4 NICs'
    // worth when alone; from 16 over the same when all are at work, which is what they then wait for.
    let (nic, bytes) = (25e9 * 0.968, 8.0 * 1_073_741_824.0);
    let close = |time: f64, expected: f64| (time / expected - 1.0).abs() < 0.01;
    assert!(close(alone.1, 0.75 * bytes / nic), "{alone:?}");
    assert!(close(together.1, 16.0 * 0.5 * bytes / (4.0 * nic)), "{together:?}");
    // Groups in the pods: 2 of them, with all GPUs of their nodes.
    assert_eq!(of("--collective all_reduce --nodes 2 --algorithm two-level --side-by-side").0, 2);
    let page = folder.run(&format!("network --cluster pods.toml --bytes 8G {rails} --side-by-side")).stdout;
    assert!(page.starts_with("all-to-all over 4 GPUs on 4 nodes of pods, 8 groups side by side\n"), "{page}");
}

#[test]
fn impossible_steps_are_refused_with_the_possible_algorithms() {
    let folder = Folder::new();
    let check = |arguments: &str, message: &str| {
        let Ran { code, stdout, stderr } = folder.run(&format!("network {arguments}"));
        assert_eq!((stderr, code, stdout), (format!("error: {message}\n"), 2, String::new()), "{arguments}");
    };
    let two = |arguments: &str, message: &str| check(&format!("--cluster dgx-a100:2 {arguments}"), message);
    let on_two = "step by step all-reduce over 16 GPUs on 2 nodes can be done by ring, double-binary-tree, \
                  halving-doubling, two-level, coll-net, parameter-server";
    two("--collective all_reduce --algorithm pairwise", &format!("`--algorithm` is pairwise; {on_two}"));
    two(
        "--collective all_reduce --algorithm in-switch",
        &format!(
            "`--algorithm` is in-switch; nvlink3-nvswitch has no switches that add, which the algorithm needs; {on_two}"
        ),
    );
    check(
        "--cluster dgx-a100 --collective all_reduce --algorithm coll-net",
        "`--algorithm` is coll-net; step by step all-reduce over 8 GPUs on 1 node can be done by ring, \
         double-binary-tree, halving-doubling, parameter-server",
    );
    check(
        "--cluster tpu-v4-pod --collective all_reduce --algorithm coll-net",
        "`--algorithm` is coll-net; GPU 0 is not joined to switches of the fabric, which the algorithm needs; step by \
         step all-reduce over 4,096 GPUs on 1,024 nodes can be done by ring, double-binary-tree, halving-doubling, \
         two-level, parameter-server",
    );
    check(
        "--cluster dgx-h100:512 --collective all_to_all --algorithm pairwise",
        "`--algorithm` is pairwise; it would have more than 2000000 transfers to simulate: take a smaller group, or \
         another algorithm",
    );
    two(
        "--collective all_gather --algorithm tree",
        "`--algorithm` is tree; all-gather over 16 GPUs on 2 nodes can be done by ring (LL, LL128, Simple), and with \
         `--by-steps` by ring, halving-doubling, two-level",
    );
    two(
        "--collective all_reduce --algorithm tree --by-steps",
        "`--algorithm` is tree; NCCL alone has it; step by step there are ring, double-binary-tree, halving-doubling, \
         two-level, in-switch, in-switch-coll-net, coll-net, parameter-server, binomial-tree, direct, pairwise, \
         dissemination",
    );
    two(
        "--collective all_reduce --algorithm two-level --protocol LL",
        "`--protocol` is LL; two-level is timed step by step, and that choice is of NCCL's algorithms",
    );
    two(
        "--collective all_reduce --by-steps",
        "the following required arguments were not provided: --algorithm <NAME>",
    );
    two(
        "--collective all_reduce --nodes 1 --ranks-per-node 1 --algorithm ring --by-steps",
        "`--ranks-per-node` is 1; a group of one rank has nothing to communicate",
    );
    two(
        "--collective all_reduce --ranks 8,16 --algorithm ring --by-steps",
        "`--ranks` is 8,16; dgx-a100:2 has ranks 0 to 15, not 16",
    );
    check(
        "--cluster dgx-a100:4 --collective all_reduce --nodes 3 --algorithm ring --side-by-side",
        "`--side-by-side` is asked of 3 nodes with 8 ranks each; such groups do not fill dgx-a100:4, which has 4 nodes \
         of 8 GPUs",
    );
    check(
        "--cluster dgx-a100:4 --collective all_reduce --gpus 12 --algorithm ring --side-by-side",
        "`--side-by-side` is asked of nodes with unequal numbers of ranks; such groups do not fill dgx-a100:4, which \
         has 4 nodes of 8 GPUs",
    );
    two(
        "--collective all_reduce --ranks 0,8 --algorithm ring --side-by-side",
        "the argument '--ranks <N,N>' cannot be used with '--side-by-side'",
    );
}
