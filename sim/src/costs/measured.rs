//! Collectives whose times were measured on the cluster itself: interpolation in its profile.
//!
//! This knows how to read between measured sizes. It does not know how a collective is done.

use trainwright_spec::cluster::{Cluster, MeasuredSweep, MeasuredTime};
use trainwright_spec::collective::CollectiveKind;
use trainwright_spec::units::{Bytes, Seconds};

/// The measured sweep of `kind` over a group like the global `ranks`; `None` if there is none.
///
/// A group of several nodes with only some of each node's ranks shares the NICs with its siblings, as all axes of a
/// mesh do. A sweep of such a group counts only if those siblings worked at the same time.
pub fn measured_sweep<'a>(
    kind: CollectiveKind,
    ranks: &[usize],
    cluster: &'a Cluster,
) -> Option<&'a MeasuredSweep> {
    let profile = cluster.profile.as_ref()?;
    let gpus = cluster.node.gpus.value;
    let (nodes, ranks_per_node) = shape(ranks, gpus)?;
    let suits = |sweep: &&MeasuredSweep| {
        sweep.collective == kind
            && (sweep.nodes, sweep.ranks_per_node) == (nodes, ranks_per_node)
            && (nodes == 1 || ranks_per_node * sweep.groups == gpus)
    };
    profile.sweeps.iter().find(suits)
}

/// Time of a collective of `bytes` by a sweep of measured ones.
///
/// Between two measured sizes n₀ and n₁, on the straight line through both in a double logarithmic plot:
///
/// T = T₀ (T₁ / T₀)^x, x = ln(n / n₀) / ln(n₁ / n₀)
///
/// Beyond the smallest or largest measured size nₑ, the `forecast` F is trusted for its shape only:
///
/// T = F(n) Tₑ / F(nₑ)
pub fn measured_time(sweep: &MeasuredSweep, bytes: Bytes, forecast: impl Fn(Bytes) -> Seconds) -> Seconds {
    let rows = &sweep.rows;
    let scaled = |end: &MeasuredTime| {
        let known = forecast(end.bytes);
        if known == Seconds::ZERO { end.time } else { forecast(bytes) * (end.time / known) }
    };
    match rows.partition_point(|row| row.bytes < bytes) {
        after if after < rows.len() && rows[after].bytes == bytes => rows[after].time,
        0 => scaled(&rows[0]),
        after if after == rows.len() => scaled(&rows[after - 1]),
        after => {
            let (low, high) = (&rows[after - 1], &rows[after]);
            let x = libm::log(bytes / low.bytes) / libm::log(high.bytes / low.bytes);
            low.time * libm::pow(high.time / low.time, x)
        }
    }
}

/// Nodes, and ranks on each of them; `None` if the nodes have different numbers of them.
fn shape(ranks: &[usize], gpus: usize) -> Option<(usize, usize)> {
    let mut homes: Vec<usize> = ranks.iter().map(|rank| rank / gpus).collect();
    homes.sort_unstable();
    let mut sizes = homes.chunk_by(|a, b| a == b).map(<[usize]>::len);
    let first = sizes.next()?;
    let nodes = ranks.len() / first;
    sizes.all(|size| size == first).then_some((nodes, first))
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::costs::{ClusterCosts, Costs, Query, QueryWork};
    use trainwright_spec::cluster::NetworkProfile;
    use trainwright_spec::program::{Axis, CollectiveCall, Group};

    /// 1 KiB in 10 µs and 1 MiB in 1000 µs; `sweep` is its first lines.
    fn cluster(name: &str, gpus: usize, sweep: &str) -> Cluster {
        let text = format!(
            "kind = \"network\"\ncluster = \"c\"\ngpus_per_node = {gpus}\nsource = \"s\"\n[[sweeps]]\n{sweep}\n\
             bytes_and_us = [[1024, 10], [1048576, 1000]]"
        );
        let profile = NetworkProfile::from_toml(&text, "p").unwrap();
        Cluster::from_name(name).unwrap().with_profile(profile, "p").unwrap()
    }

    fn microseconds(cluster: &Cluster, kind: CollectiveKind, bytes: f64, ranks: &[usize]) -> f64 {
        let group = Group { axis: Axis::Data, ranks: ranks.to_vec(), members: Vec::new() };
        let work = QueryWork::Collective {
            kind,
            bytes: Bytes::new(bytes),
            call: CollectiveCall::Single,
            group: &group,
        };
        1e6 * ClusterCosts::new(cluster).cost(&Query { rank: ranks[0], op: None, work }).time.get()
    }

    #[test]
    fn between_measured_sizes_times_lie_on_a_line_in_logarithms() {
        let cluster = cluster("dgx-a100:2", 8, "collective = \"all-reduce\"\nnodes = 2\nranks_per_node = 8");
        let ranks: Vec<usize> = (0..16).collect();
        let check = |bytes: f64, expected: f64| {
            let time = microseconds(&cluster, CollectiveKind::AllReduce, bytes, &ranks);
            assert!((time / expected - 1.0).abs() < 1e-12, "{bytes}: {time} for {expected}");
        };
        check(1024.0, 10.0);
        check(1048576.0, 1000.0);
        // Half of the way from 2^10 to 2^20 in logarithms: √(10 · 1000).
        check(32768.0, 100.0);
        // A fifth of it: 10 · 100^(1/5).
        check(4096.0, 10.0 * libm::pow(100.0, 0.2));
    }

    #[test]
    fn beyond_them_the_forecast_is_scaled() {
        let measured = cluster("dgx-a100:2", 8, "collective = \"all-reduce\"\nnodes = 2\nranks_per_node = 8");
        let plain = Cluster { profile: None, ..measured.clone() };
        let ranks: Vec<usize> = (0..16).collect();
        let time =
            |cluster: &Cluster, bytes: f64| microseconds(cluster, CollectiveKind::AllReduce, bytes, &ranks);
        for (bytes, end, known) in [(64.0, 1024.0, 10.0), (1e9, 1048576.0, 1000.0)] {
            let expected = time(&plain, bytes) * known / time(&plain, end);
            assert!((time(&measured, bytes) / expected - 1.0).abs() < 1e-12, "{bytes} bytes");
        }
        assert_eq!(time(&measured, 0.0), 0.0);
    }

    #[test]
    fn only_the_groups_that_were_measured_are_measured() {
        let check = |sweep: &str, kind: CollectiveKind, ranks: &[usize], measured: bool| {
            let cluster = cluster("dgx-a100:4", 8, &format!("collective = \"all-gather\"\n{sweep}"));
            assert_eq!(measured_sweep(kind, ranks, &cluster).is_some(), measured, "{sweep} {kind} {ranks:?}");
        };
        let gather = CollectiveKind::AllGather;
        let two_nodes: Vec<usize> = (8..24).collect();
        check("nodes = 2\nranks_per_node = 8", gather, &two_nodes, true);
        check("nodes = 2\nranks_per_node = 8", CollectiveKind::ReduceScatter, &two_nodes, false);
        check("nodes = 2\nranks_per_node = 8", gather, &two_nodes[..8], false);
        check("nodes = 1\nranks_per_node = 4", gather, &[12, 13, 14, 15], true);
        check("nodes = 1\nranks_per_node = 4", gather, &[2, 3, 8, 9], false);
        // In training each of the node's 8 GPUs has such a group, and they share the NICs.
        check("nodes = 4\nranks_per_node = 1\ngroups = 8", gather, &[3, 11, 19, 27], true);
        check("nodes = 4\nranks_per_node = 1", gather, &[3, 11, 19, 27], false);
        // Two ranks on one node and one on the next.
        check("nodes = 2\nranks_per_node = 1\ngroups = 8", gather, &[0, 1, 8], false);
    }
}
