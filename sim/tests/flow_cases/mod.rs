//! Random networks and flows, to hold the flow simulation against its slow twin.

use crate::twin::Random;
use trainwright_sim::flow::{Link, LinkId, Transfer};
use trainwright_spec::units::{Bytes, BytesPerSecond, Seconds};

/// Links and transfers of a seed: few or many links; any paths, or those of a tree of hosts; one size or any; caps,
/// weights, per-flow links and starts, or none of them.
pub fn random_case(seed: u64) -> (Vec<Link>, Vec<Transfer>) {
    let mut random = Random(seed);
    let is_tree = percent(&mut random, 40);
    let equal_links = percent(&mut random, 30);
    let links: Vec<Link> = (0..if is_tree { 40 } else { 2 + random.below(30) })
        .map(|_| {
            let bandwidth = if equal_links { 10e9 } else { random.pick(&[1e9, 2e9, 5e9, 10e9, 25e9]) };
            let per_flow = !is_tree && percent(&mut random, 10);
            let link = if per_flow { Link::per_flow } else { Link::shared };
            link(BytesPerSecond::new(bandwidth))
        })
        .collect();
    let [equal_sizes, together, capped, weighted] = [40, 30, 50, 50].map(|times| percent(&mut random, times));
    let transfers = (0..1 + random.below(80)).map(|_| {
        let path = if is_tree { tree_path(&mut random) } else { any_path(&mut random, links.len()) };
        let mut weight = || if weighted { random.pick(&[0.3, 0.5, 1.0, 2.0, 7.0]) } else { 1.0 };
        let path = path.into_iter().map(|link| (LinkId(link as u32), weight())).collect();
        Transfer {
            start: Seconds::new(if together { 0.0 } else { random.pick(&[0.0, 0.5]) + random.unit() }),
            latency: Seconds::new(random.pick(&[0.0, 0.0, 1e-6])),
            amount: Bytes::new(if equal_sizes { 1e9 } else { 4e9 * (1.0 - random.unit()) }),
            path,
            cap: (capped && percent(&mut random, 30))
                .then(|| BytesPerSecond::new(2e9 * (0.1 + random.unit()))),
        }
    });
    let transfers = transfers.collect();
    (links, transfers)
}

/// From one to five links, none twice.
fn any_path(random: &mut Random, links: usize) -> Vec<usize> {
    let mut path: Vec<usize> = (0..1 + random.below(5)).map(|_| random.below(links)).collect();
    path.sort_unstable();
    path.dedup();
    path
}

/// Between hosts of a tree: 16 hosts up and down, 4 leaves up and down.
fn tree_path(random: &mut Random) -> Vec<usize> {
    let from = random.below(16);
    let to = (from + 1 + random.below(15)) % 16;
    let mut path = vec![from, 16 + to];
    if from / 4 != to / 4 {
        path.extend([32 + from / 4, 36 + to / 4]);
    }
    path
}

/// True so often in 100.
fn percent(random: &mut Random, times: usize) -> bool {
    random.below(100) < times
}
