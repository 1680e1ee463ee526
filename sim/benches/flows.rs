//! Time to simulate flows that share links: `cargo bench -p trainwright-sim --bench flows`. All on one core.
//!
//! The random flows are also given to the slow twin, which must find the same times.

#[path = "../tests/twin/mod.rs"]
mod twin;

use divan::Bencher;
use divan::counter::ItemsCount;
use std::sync::LazyLock;
use trainwright_sim::flow::{Link, LinkId, Transfer, completion_times};
use trainwright_spec::units::{Bytes, BytesPerSecond, Picoseconds, Seconds};
use twin::{Random, slow_completion_times};

fn main() {
    divan::main();
}

/// Links, and flows over them.
struct Case {
    links: Vec<Link>,
    transfers: Vec<Transfer>,
}

impl Case {
    fn ends(&self) -> Vec<Picoseconds> {
        completion_times(divan::black_box(&self.links), &self.transfers).expect("all flows can end")
    }

    /// Starts and ends.
    fn events(&self) -> ItemsCount {
        ItemsCount::new(2 * self.transfers.len())
    }
}

fn links(count: usize, gigabytes: impl FnMut() -> f64) -> Vec<Link> {
    let gigabytes = std::iter::repeat_with(gigabytes).take(count);
    gigabytes.map(|gigabytes| Link::shared(BytesPerSecond::new(gigabytes * 1e9))).collect()
}

fn transfer(start: f64, megabytes: f64, path: impl IntoIterator<Item = usize>) -> Transfer {
    Transfer {
        start: Seconds::new(start),
        latency: Seconds::ZERO,
        amount: Bytes::new(megabytes * 1e6),
        path: path.into_iter().map(|link| (LinkId(link as u32), 1.0)).collect(),
        cap: None,
    }
}

/// 4,000 flows of up to 1 GB over 3 to 5 of 400 links of 1 to 25 GB/s, starting within 4 s; the last ends after
/// some 20 s, so most flows are there at once.
static RANDOM: LazyLock<Case> = LazyLock::new(|| {
    let mut random = Random(7);
    let links = links(400, || random.pick(&[1.0, 2.0, 5.0, 10.0, 25.0]));
    let transfers = (0..4000).map(|_| {
        let mut path = Vec::new();
        let length = 3 + random.below(3);
        while path.len() < length {
            let link = random.below(links.len());
            if !path.contains(&link) {
                path.push(link);
            }
        }
        transfer(4.0 * random.unit(), 1e3 * (1.0 - random.unit()), path)
    });
    let transfers = transfers.collect();
    Case { links, transfers }
});

#[divan::bench(sample_count = 20, sample_size = 1)]
fn random_flows(bencher: Bencher) {
    bencher.counter(RANDOM.events()).bench_local(|| RANDOM.ends());
}

#[divan::bench(sample_count = 1, sample_size = 1)]
fn random_flows_slow_twin(bencher: Bencher) {
    let ends = RANDOM.ends();
    bencher.counter(RANDOM.events()).bench_local(|| {
        let slow = slow_completion_times(&RANDOM.links, &RANDOM.transfers);
        for (end, slow) in ends.iter().zip(slow) {
            assert!((Seconds::from(*end).get() - slow).abs() <= 1e-7 * slow, "{end} for {slow} s");
        }
    });
}

const HOSTS: usize = 432;

/// 432 hosts of 50 GB/s: `path(from, to)` for 16 MB from each to all others.
fn all_to_all(links: Vec<Link>, path: impl Fn(usize, usize) -> Vec<usize>) -> Case {
    let pairs = (0..HOSTS).flat_map(|from| (0..HOSTS).map(move |to| (from, to)));
    let pairs = pairs.filter(|(from, to)| from != to);
    let transfers = pairs.map(|(from, to)| transfer(0.0, 16.0, path(from, to))).collect();
    Case { links, transfers }
}

static CROSSBAR: LazyLock<Case> =
    LazyLock::new(|| all_to_all(links(2 * HOSTS, || 50.0), |from, to| vec![from, HOSTS + to]));

#[divan::bench(sample_count = 20, sample_size = 1)]
fn all_to_all_crossbar(bencher: Bencher) {
    bencher.counter(CROSSBAR.events()).bench_local(|| CROSSBAR.ends());
}

/// 24 leaves of 18 hosts and 18 spines; a flow goes over the spine of its destination's place on its leaf.
static LEAF_SPINE: LazyLock<Case> = LazyLock::new(|| {
    const PLACES: usize = 18;
    all_to_all(links(4 * HOSTS, || 50.0), |from, to| {
        let spine = to % PLACES;
        let (up, down) = (from / PLACES * PLACES + spine, to / PLACES * PLACES + spine);
        let direct = from / PLACES == to / PLACES;
        if direct { vec![from, HOSTS + to] } else { vec![from, 2 * HOSTS + up, 3 * HOSTS + down, HOSTS + to] }
    })
});

#[divan::bench(sample_count = 20, sample_size = 1)]
fn all_to_all_leaf_spine(bencher: Bencher) {
    bencher.counter(LEAF_SPINE.events()).bench_local(|| LEAF_SPINE.ends());
}

/// 10,000 flows of 1 to 10 MB between random hosts of a fat tree of 16-port switches, each over a core switch that it
/// chooses (1,024 hosts in 16 pods; all links 12.5 GB/s), starting at random within `seconds`.
///
/// Up and down, there are three stages of 1,024 links: host to edge, edge to aggregation, aggregation to core.
fn fat_tree(within: f64) -> Case {
    const HALF: usize = 8;
    const STAGE: usize = 1024;
    let mut random = Random(11);
    let transfers = (0..10_000).map(|_| {
        let from = random.below(STAGE);
        let to = (from + 1 + random.below(STAGE - 1)) % STAGE;
        let (aggregation, core) = (random.below(HALF), random.below(HALF));
        // Hosts of an edge switch and links of a switch are in groups of eight.
        let edge = |host: usize| host / HALF * HALF + aggregation;
        let pod = |host: usize| host / (HALF * HALF) * HALF * HALF + aggregation * HALF + core;
        let mut path = vec![from, 3 * STAGE + to];
        if from / HALF != to / HALF {
            path.extend([STAGE + edge(from), 4 * STAGE + edge(to)]);
        }
        if from / (HALF * HALF) != to / (HALF * HALF) {
            path.extend([2 * STAGE + pod(from), 5 * STAGE + pod(to)]);
        }
        transfer(within * random.unit(), 1.0 + 9.0 * random.unit(), path)
    });
    let transfers = transfers.collect();
    Case { links: links(6 * STAGE, || 12.5), transfers }
}

/// A host sends 55 MB at 12.5 GB/s, which alone is 4.3 ms: starts within ten times as long keep hosts busy for a
/// tenth of the time, starts within twice as long for half of it.
#[divan::bench(args = [43e-3, 8.6e-3], sample_count = 50, sample_size = 1)]
fn fat_tree_starting_within(bencher: Bencher, seconds: f64) {
    let case = fat_tree(seconds);
    bencher.counter(case.events()).bench_local(|| case.ends());
}

/// All at once: some ten flows on each host link.
#[divan::bench(sample_count = 20, sample_size = 1)]
fn fat_tree_burst(bencher: Bencher) {
    let case = fat_tree(0.0);
    bencher.counter(case.events()).bench_local(|| case.ends());
}
