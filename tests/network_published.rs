//! Collectives against what others measured: the error of each machine and collective, as it is today.

use std::collections::{BTreeMap, BTreeSet};
use trainwright_evidence::published::{self, MeasuredCall, PublishedTime};
use trainwright_sim::network::{ALGORITHMS, Choice, Forced, Placement};
use trainwright_spec::catalog;
use trainwright_spec::cluster::Cluster;
use trainwright_spec::collective::CollectiveKind;
use trainwright_spec::units::{Bytes, Seconds};

const ROWS: &str = include_str!("../traces/published/collectives.csv");
const PAGE: &str = include_str!("../docs/trust.md");

/// Messages are large from here on, and small below the other.
const LARGE: Bytes = Bytes::new(1e6);
const SMALL: Bytes = Bytes::new(65_536.0);

/// How many percentage points worse an error may get before it counts.
const SLACK: f64 = 0.5;

/// Whether the forecast has what the way of measuring adds.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum Methods {
    Added,
    Ignored,
}

/// Predicted over measured time.
fn ratio(row: &PublishedTime, methods: Methods) -> f64 {
    let mut cluster = Cluster::from_name(&format!("{}:{}", row.cluster, row.nodes)).unwrap();
    cluster.nccl = row.nccl.unwrap_or_default();
    let (gpus, here) = (cluster.node.gpus.value, row.ranks / row.nodes);
    // A group that is alone on its nodes has all of their NICs.
    let apart = if row.nodes > 1 && row.groups == 1 { here } else { gpus };
    cluster.node.gpus.value = apart;
    let ranks: Vec<usize> =
        (0..row.nodes).flat_map(|node| (0..here).map(move |rank| apart * node + rank)).collect();
    let placement = Placement::new(&ranks, &cluster);
    let forced = Forced { algorithm: row.forced.as_deref().map(algorithm_named), ..Forced::default() };
    let Choice { time, .. } = placement.choose(row.collective, row.bytes, &forced).unwrap();
    let Placement { start, memory, .. } = placement;
    let call = MeasuredCall { collective: row.collective, bytes: row.bytes, ranks: row.ranks, start, memory };
    let added = match (methods, row.method) {
        (Methods::Added, Some(method)) => method.adds(&call),
        _ => Seconds::ZERO,
    };
    (time + added) / row.time
}

fn algorithm_named(name: &str) -> &'static str {
    let mut names = ALGORITHMS.iter().map(|algorithm| algorithm.name());
    names.find(|known| *known == name).unwrap_or_else(|| panic!("no algorithm {name}"))
}

/// Machine, size of the group and collective.
fn class(row: &PublishedTime) -> String {
    let place = match row.nodes {
        1 => format!("{} GPUs", row.ranks),
        2..=4 => format!("{} nodes", row.nodes),
        _ => "5 and more nodes".to_string(),
    };
    format!("{}, {place}, {}", row.cluster, row.collective)
}

/// |ratio − 1| of each row in percent, sorted, by what `group` says.
fn errors<'a>(
    rows: impl Iterator<Item = &'a PublishedTime>,
    group: impl Fn(&PublishedTime) -> String,
) -> BTreeMap<String, Vec<f64>> {
    let mut errors: BTreeMap<String, Vec<f64>> = BTreeMap::new();
    for row in rows {
        errors.entry(group(row)).or_default().push(error(row, Methods::Added));
    }
    errors.values_mut().for_each(|errors| errors.sort_by(f64::total_cmp));
    errors
}

fn error(row: &PublishedTime, methods: Methods) -> f64 {
    100.0 * (ratio(row, methods) - 1.0).abs()
}

/// The judged rows of messages of 1 MB and more.
fn large() -> impl Iterator<Item = &'static PublishedTime> {
    published::collectives().filter(|row| row.bytes >= LARGE)
}

fn quantile(sorted: &[f64], part: f64) -> f64 {
    sorted[(part * (sorted.len() - 1) as f64).round() as usize]
}

/// Median and 90th percentile.
fn summary(sorted: &[f64]) -> (f64, f64) {
    (quantile(sorted, 0.5), quantile(sorted, 0.9))
}

fn print(title: &str, errors: &BTreeMap<String, Vec<f64>>) {
    println!("\n{title:<50} {:>4} {:>7} {:>7}", "rows", "median", "p90");
    for (name, errors) in errors {
        let (median, p90) = summary(errors);
        println!("{name:<50} {:>4} {median:>6.1}% {p90:>6.1}%", errors.len());
    }
}

/// Median and 90th percentile of the error of messages of 1 MB and more, in percent.
#[rustfmt::skip]
const TODAY: [(&str, f64, f64); 69] = [
    ("aws-g4dn, 2 nodes, all-reduce", 5.2, 6.9),
    ("aws-g6, 2 GPUs, all-gather", 0.2, 0.5),
    ("aws-g6, 4 GPUs, all-gather", 0.4, 0.7),
    ("aws-g6, 8 GPUs, all-gather", 0.6, 0.9),
    ("aws-p3, 4 GPUs, all-gather", 37.1, 37.9),
    ("aws-p3, 8 GPUs, all-gather", 3.9, 5.8),
    ("aws-p4d, 2 GPUs, all-gather", 5.2, 10.1),
    ("aws-p4d, 4 GPUs, all-gather", 2.3, 5.7),
    ("aws-p4d, 8 GPUs, all-gather", 2.4, 5.5),
    ("aws-p5, 2 GPUs, send-receive", 7.0, 10.9),
    ("aws-p5, 2 nodes, all-reduce", 5.4, 34.2),
    ("aws-p5, 3 nodes, send-receive", 1.5, 20.0),
    ("aws-p5, 4 nodes, all-to-all", 12.8, 19.9),
    ("aws-p5, 4 nodes, send-receive", 1.9, 21.7),
    ("aws-p5, 5 and more nodes, all-reduce", 7.0, 18.9),
    ("aws-p5, 5 and more nodes, all-to-all", 5.6, 14.6),
    ("aws-p5, 5 and more nodes, send-receive", 1.0, 12.2),
    ("aws-p5, 8 GPUs, all-reduce", 3.8, 10.3),
    ("aws-p5, 8 GPUs, all-to-all", 3.0, 7.0),
    ("aws-p6-b200, 4 GPUs, all-reduce", 0.3, 0.3),
    ("aws-p6-b200, 4 nodes, all-reduce", 3.1, 13.6),
    ("aws-p6-b200, 5 GPUs, all-reduce", 0.0, 0.0),
    ("aws-p6-b200, 6 GPUs, all-reduce", 1.3, 1.3),
    ("aws-p6-b200, 7 GPUs, all-reduce", 0.5, 0.5),
    ("aws-p6-b200, 8 GPUs, all-reduce", 1.2, 1.2),
    ("azure-nd-h100-v5, 8 GPUs, all-reduce", 4.8, 12.9),
    ("dgx-1v, 2 GPUs, all-reduce", 1.2, 7.9),
    ("dgx-1v, 2 GPUs, all-to-all", 5.3, 52.3),
    ("dgx-1v, 2 GPUs, reduce-scatter", 18.7, 34.4),
    ("dgx-1v, 3 GPUs, all-reduce", 7.6, 15.9),
    ("dgx-1v, 4 GPUs, all-gather", 8.3, 40.1),
    ("dgx-1v, 4 GPUs, all-reduce", 6.5, 13.6),
    ("dgx-1v, 4 GPUs, reduce-scatter", 10.4, 29.2),
    ("dgx-1v, 6 GPUs, all-reduce", 6.7, 14.9),
    ("dgx-1v, 7 GPUs, all-reduce", 2.9, 9.0),
    ("dgx-1v, 8 GPUs, all-gather", 3.3, 41.7),
    ("dgx-1v, 8 GPUs, all-reduce", 6.4, 14.8),
    ("dgx-1v, 8 GPUs, all-to-all", 8.9, 15.8),
    ("dgx-1v, 8 GPUs, reduce-scatter", 4.4, 32.9),
    ("dgx-1v-roce, 2 nodes, all-reduce", 2.1, 21.9),
    ("dgx-a100, 2 GPUs, all-reduce", 4.1, 6.2),
    ("dgx-a100, 2 nodes, all-reduce", 3.8, 6.8),
    ("dgx-a100, 3 GPUs, all-reduce", 3.6, 7.9),
    ("dgx-a100, 4 GPUs, all-reduce", 2.1, 9.0),
    ("dgx-a100, 4 nodes, all-reduce", 7.2, 18.7),
    ("dgx-a100, 5 GPUs, all-reduce", 2.2, 13.4),
    ("dgx-a100, 6 GPUs, all-reduce", 2.4, 10.8),
    ("dgx-a100, 7 GPUs, all-reduce", 2.4, 10.3),
    ("dgx-a100, 8 GPUs, all-reduce", 3.1, 11.3),
    ("dgx-a100-40gb, 8 GPUs, all-reduce", 1.4, 7.3),
    ("dgx-a100-40gb, 8 GPUs, all-to-all", 5.2, 14.8),
    ("dgx-a100-40gb, 8 GPUs, broadcast", 2.0, 11.5),
    ("dgx-a100-40gb, 8 GPUs, reduce", 2.1, 12.0),
    ("dgx-b200, 8 GPUs, all-reduce", 0.2, 0.2),
    ("dgx-h100, 8 GPUs, all-reduce", 3.5, 9.6),
    ("gcp-a3-mega, 2 nodes, all-gather", 2.8, 8.2),
    ("gcp-a3-ultra, 2 nodes, all-gather", 4.1, 16.0),
    ("gcp-a3-ultra, 5 and more nodes, all-reduce", 2.9, 25.2),
    ("gtx-1080-ti-4, 2 GPUs, all-reduce", 6.8, 7.0),
    ("gtx-1080-ti-4, 4 GPUs, all-reduce", 4.6, 5.1),
    ("h100-pcie-pair, 2 GPUs, all-reduce", 3.4, 3.4),
    ("hgx-a100-4nic, 3 nodes, all-reduce", 9.5, 10.0),
    ("mi300x-8, 2 GPUs, all-reduce", 5.6, 5.6),
    ("mi300x-8, 2 nodes, all-reduce", 0.8, 2.0),
    ("mi300x-8, 8 GPUs, all-reduce", 10.9, 10.9),
    ("oci-bm-gpu-h100, 2 nodes, all-reduce", 3.3, 7.4),
    ("p100-pcie-8, 2 GPUs, all-reduce", 5.5, 15.7),
    ("p100-pcie-8, 4 GPUs, all-reduce", 1.3, 20.3),
    ("p100-pcie-8, 8 GPUs, all-reduce", 1.5, 19.8),
];

/// Machines that miss a target, with what they have today: groups of 4 V100s, whose wiring the source does not state,
/// and lists of tensors whose times jump (traces/published/README.md).
const MISSED: [(&str, f64, f64); 2] = [("aws-p3", 27.9, 37.6), ("dgx-1v", 7.0, 33.2)];

/// Judged rows of 1 MB and more: how many, and the median and 90th percentile of their error today. What methods add
/// is known from the rows of one source each, so the figures are also there without them, and without those rows.
const OVERALL: [(&str, usize, f64, f64); 3] = [
    ("all", 1396, 4.3, 18.9),
    ("all, uncorrected for the method", 1396, 5.8, 32.6),
    ("those whose method needs no correction", 907, 4.2, 15.2),
];

/// Judged rows below 64 KiB on each machine: how many of them are within a factor of 1.5 today.
const SMALL_TODAY: [(&str, usize, usize); 11] = [
    ("aws-g4dn", 14, 14),
    ("aws-p3dn", 3, 10),
    ("aws-p5", 359, 381),
    ("azure-nd-h100-v5", 4, 6),
    ("dgx-1v-roce", 8, 13),
    ("dgx-a100", 13, 13),
    ("dgx-h100", 11, 13),
    ("gcp-a3-mega", 8, 8),
    ("gcp-a3-ultra", 6, 6),
    ("hgx-h20", 8, 8),
    ("all", 434, 472),
];

/// Judged rows from 64 KiB to 1 MB, where NCCL changes algorithm and protocol: how many, and the median and 90th
/// percentile of their error today.
const MEDIUM_TODAY: (usize, f64, f64) = (189, 12.5, 27.1);

/// Percent of small messages that have to be within that factor.
const SMALL_TARGET: usize = 75;

#[test]
fn large_messages_are_met_as_well_as_today() {
    let classes = errors(large(), class);
    print("machine, group and collective, 1 MB and more", &classes);
    let mut worse = Vec::new();
    for (class, errors) in &classes {
        let (median, p90) = summary(errors);
        match TODAY.iter().find(|(name, ..)| name == class) {
            Some((_, m, p)) if median <= m + SLACK && p90 <= p + SLACK => {}
            limits => worse.push(format!("{class}: {median:.1} {p90:.1}, today's are {limits:?}")),
        }
    }
    let machines = errors(large(), |row| row.cluster.clone());
    print("machine", &machines);
    for (machine, errors) in &machines {
        let (median, p90) = summary(errors);
        let missed = MISSED.iter().find(|(name, ..)| name == machine);
        let (m, p) = missed.map_or((10.0, 25.0), |(_, median, p90)| (median + SLACK, p90 + SLACK));
        if median > m || p90 > p {
            worse.push(format!("{machine}: median {median:.1}, 90th percentile {p90:.1}"));
        }
    }
    print("source", &errors(large(), |row| row.source.chars().take(50).collect()));
    assert!(worse.is_empty(), "worse than today:\n{}", worse.join("\n"));
    assert_eq!(classes.len(), TODAY.len());
}

#[test]
fn all_large_messages_are_met_as_well_as_today_with_and_without_methods() {
    let of = |methods, rows: &mut dyn Iterator<Item = &PublishedTime>| {
        let mut errors: Vec<f64> = rows.map(|row| error(row, methods)).collect();
        errors.sort_by(f64::total_cmp);
        errors
    };
    let found = [
        of(Methods::Added, &mut large()),
        of(Methods::Ignored, &mut large()),
        of(Methods::Added, &mut large().filter(|row| row.method.is_none())),
    ];
    for ((name, ..), errors) in OVERALL.iter().zip(&found) {
        let (median, p90) = summary(errors);
        println!("{name:<50} {:>4} {median:>6.1}% {p90:>6.1}%", errors.len());
    }
    for ((name, rows, m, p), errors) in OVERALL.iter().zip(&found) {
        let (median, p90) = summary(errors);
        assert_eq!(errors.len(), *rows, "{name}");
        assert!(median <= m + SLACK && p90 <= p + SLACK, "{name}: {median:.1} {p90:.1}");
    }
    let (median, p90) = summary(&found[0]);
    assert!(median <= 10.0 && p90 <= 25.0, "overall {median:.1} {p90:.1}");
}

#[test]
fn small_messages_are_within_a_factor_of_one_and_a_half() {
    let small = || published::collectives().filter(|row| row.bytes < SMALL);
    let hits = |group: fn(&PublishedTime) -> String| {
        let mut hits: BTreeMap<String, (usize, usize)> = BTreeMap::new();
        for row in small() {
            let ratio = ratio(row, Methods::Added);
            let (within, all) = hits.entry(group(row)).or_default();
            *within += usize::from(ratio.max(1.0 / ratio) <= 1.5);
            *all += 1;
        }
        println!("{:<50} {:>9}", "below 64 KiB", "within");
        for (group, (within, all)) in &hits {
            println!("{group:<50} {within:>4}/{all}");
        }
        hits
    };
    hits(class);
    let mut machines = hits(|row| row.cluster.clone());
    machines.extend(hits(|_| "all".into()));
    assert_eq!(machines.len(), SMALL_TODAY.len());
    for (machine, within, all) in SMALL_TODAY {
        let found = machines[machine];
        assert!(found.1 == all && found.0 >= within, "{machine}: {found:?}, today's are {within} of {all}");
    }
    let (within, all) = machines["all"];
    assert!(within * 100 >= all * SMALL_TARGET, "{within} of {all}");
}

#[test]
fn medium_messages_are_met_as_well_as_today() {
    let medium = || published::collectives().filter(|row| (SMALL..LARGE).contains(&row.bytes));
    print("machine, 64 KiB to 1 MB", &errors(medium(), |row| row.cluster.clone()));
    let all = &errors(medium(), |_| "all".into())["all"];
    let (median, p90) = summary(all);
    println!("{:<50} {:>4} {median:>6.1}% {p90:>6.1}%", "all", all.len());
    let (rows, m, p) = MEDIUM_TODAY;
    assert_eq!(all.len(), rows);
    assert!(median <= m + SLACK && p90 <= p + SLACK, "{median:.1} {p90:.1}");
}

/// Nodes where a forecast falls by more: to which part, today. Nothing of that size was measured there
/// (docs/network.md).
const FALLS: [(&str, f64); 5] = [
    ("aws-p6-b200", 0.77),
    ("aws-p6-b300", 0.75),
    ("gb200-nvl36", 0.66),
    ("gb200-nvl72", 0.67),
    ("gb300-nvl72", 0.67),
];

/// Twice the bytes of an all-gather or reduce-scatter take at most four times as long, also where the protocol changes. What one
/// protocol has and another lacks, as the gap between the steps of a ring, does not come at once.
#[test]
fn twice_the_bytes_take_no_multiple_of_the_time() {
    let mut done = 0;
    for name in catalog::names("nodes").into_iter().chain(catalog::names("clusters")) {
        for nodes in [2, 4, 16, 64] {
            let Ok(cluster) = Cluster::from_name(&format!("{name}:{nodes}")) else { continue };
            let placement = Placement::new(&(0..cluster.gpus()).collect::<Vec<_>>(), &cluster);
            for kind in [CollectiveKind::AllGather, CollectiveKind::ReduceScatter] {
                let time = |power: i32| {
                    placement.choose(kind, Bytes::new(2f64.powi(power)), &Forced::default()).unwrap().time
                };
                for power in 3..33 {
                    let part = time(power + 1) / time(power);
                    assert!(
                        part < 4.0,
                        "{}: {kind:?} of 2^{power} bytes, then {part:.2} times",
                        cluster.name
                    );
                    done += 1;
                }
            }
        }
    }
    assert!(done > 1000, "{done}");
}

/// NCCL chooses by its expected times, so that where it changes the algorithm twice the bytes may take less time. No
/// forecast falls by more there than measured times did: on 2 aws-p5, from 64 to 128 KiB, 135.1 to 108.9 µs.
#[test]
fn twice_the_bytes_take_less_time_only_as_far_as_measured() {
    let measured = |kibibytes: f64| {
        let bytes = Bytes::new(kibibytes * 1024.0);
        let row = published::collectives().find(|row| row.sweep == "aws-p5-2n-ar" && row.bytes == bytes);
        row.unwrap().time
    };
    let allowed = measured(128.0) / measured(64.0);
    assert!((0.80..0.81).contains(&allowed), "{allowed}");
    let mut least: BTreeMap<&str, f64> = BTreeMap::new();
    for name in catalog::names("nodes").into_iter().chain(catalog::names("clusters")) {
        for nodes in [2, 3, 4, 8, 16, 64] {
            let Ok(cluster) = Cluster::from_name(&format!("{name}:{nodes}")) else { continue };
            if cluster.node.interconnect.in_switch.is_none() {
                continue;
            }
            let placement = Placement::new(&(0..cluster.gpus()).collect::<Vec<_>>(), &cluster);
            let choose = |power: i32| {
                let bytes = Bytes::new(2f64.powi(power));
                placement.choose(CollectiveKind::AllReduce, bytes, &Forced::default()).unwrap()
            };
            for (once, twice) in (3..33).map(|power| (choose(power), choose(power + 1))) {
                let part = twice.time / once.time;
                let least = least.entry(name).or_insert(1.0);
                *least = least.min(part);
                if part < allowed {
                    println!("{part:.2} {}: {once:?} then {twice:?}", cluster.name);
                }
            }
        }
    }
    println!("{least:#.2?}");
    assert!(least.len() > 15, "{least:?}");
    for (name, part) in least {
        let known = FALLS.iter().find(|(known, _)| *known == name);
        let least = known.map_or(allowed, |(_, part)| part - 0.01);
        assert!(part >= least, "{name}: {part}, not below {least}");
        assert!(known.is_none() || part < allowed, "{name} is not to be listed any more");
    }
}

/// The figures of `docs/trust.md` are those that these tests hold.
#[test]
fn the_page_says_what_is_held_here() {
    let judged: Vec<&PublishedTime> = published::collectives().collect();
    let machines: BTreeSet<&str> = judged.iter().map(|row| row.cluster.as_str()).collect();
    let thousands = |count: usize| match count {
        1000.. => format!("{},{:03}", count / 1000, count % 1000),
        _ => count.to_string(),
    };
    let page = PAGE.replace('\n', " ");
    let says = |text: &str| assert!(page.contains(text), "docs/trust.md does not say: {text}");
    says(&format!("{} published measurements on {} machines", thousands(judged.len()), machines.len()));
    for (name, rows, median, p90) in OVERALL {
        let name = if name == "all" { "1 MB and more".into() } else { name.replace("all, ", "the same, ") };
        says(&format!("| {name} | {} | median {median:.1} %, 90th percentile {p90:.1} % |", thousands(rows)));
    }
    let (rows, median, p90) = MEDIUM_TODAY;
    says(&format!("| 64 KiB to 1 MB | {rows} | median {median:.1} %, 90th percentile {p90:.1} % |"));
    let (_, within, all) = SMALL_TODAY[SMALL_TODAY.len() - 1];
    says(&format!("| below 64 KiB | {all} | {} % within a factor of 1.5 |", 100 * within / all));
    says(&format!("why {} other rows are not judged", ROWS.lines().count() - 1 - judged.len()));
}

/// The overhead of a measuring method is known from one source alone, as `docs/trust.md` says.
#[test]
fn each_method_is_of_one_source() {
    let mut sources: BTreeMap<&str, BTreeSet<String>> = BTreeMap::new();
    for row in published::collectives().filter(|row| row.method.is_some()) {
        let repository: Vec<&str> = row.source.split([' ', '/']).take(2).collect();
        sources.entry(&row.software).or_default().insert(repository.join("/"));
    }
    println!("{sources:#?}");
    assert!(sources.len() == 4 && sources.values().all(|of| of.len() == 1), "{sources:?}");
}

/// Rows that are left out: how many for which reason, and what the model makes of them.
#[test]
fn rows_without_a_judgement_say_why() {
    let lines = ROWS.lines().skip(1).count();
    assert_eq!(lines, 2647);
    let mut reasons: BTreeMap<String, usize> = BTreeMap::new();
    for line in ROWS.lines().skip(1) {
        *reasons.entry(line.split(',').nth(12).unwrap().into()).or_default() += 1;
    }
    for (reason, rows) in &reasons {
        println!("{rows:>5} {reason}");
        assert!(reason == "yes" || reason.starts_with("no: "), "{reason}");
    }
    assert!(reasons["yes"] * 10 > lines * 7, "{} of {lines} are judged", reasons["yes"]);
    let left_out = published::all().iter().filter(|row| row.left_out.is_some() && row.bytes >= LARGE);
    print("not judged", &errors(left_out, class));
}

/// Groups of 1, 2 and 4 ranks on each of two nodes, whose siblings ran at the same time, against the group of all
/// 16, whose bus bandwidth of 11.26 GB/s sets the NICs of this cluster.
#[test]
fn measured_siblings_share_the_nics_evenly() {
    let siblings = published::all().iter().filter(|row| row.cluster == "a100-ethernet" && row.nodes == 2);
    let errors = errors(siblings, |row| format!("{} ranks on 2 nodes", row.ranks));
    print("siblings", &errors);
    assert_eq!(errors.len(), 4);
    for (group, errors) in errors {
        assert!(quantile(&errors, 0.5) < 6.0, "{group}: {errors:?}");
    }
}
