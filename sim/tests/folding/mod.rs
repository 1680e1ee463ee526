//! Folding: alike flows become one, and end when they would have ended one by one.

use crate::flow_cases::random_case;
use trainwright_sim::flow::{Flow, Folded, Link, LinkId, Network, Transfer, fold};
use trainwright_spec::units::{BytesPerSecond, Picoseconds};

fn link(gigabytes: f64) -> Link {
    Link::shared(BytesPerSecond::new(gigabytes * 1e9))
}

fn flow(gigabytes: f64, path: &[u32]) -> Flow {
    Flow { amount: gigabytes * 1e9, path: path.iter().map(|link| (LinkId(*link), 1.0)).collect(), cap: None }
}

/// When each flow ends if all start at zero.
fn ends(links: &[Link], flows: &[Flow]) -> Vec<Picoseconds> {
    let mut network = Network::new(links.to_vec());
    let mut ends = vec![Picoseconds::ZERO; flows.len()];
    for flow in flows {
        network.start(Picoseconds::ZERO, flow).unwrap();
    }
    while let Some(now) = network.next_end() {
        network.advance(now).iter().for_each(|ended| ends[ended.0 as usize] = now);
    }
    ends
}

/// The classes, after checking that folded flows end with those they stand for.
fn check(case: &str, links: &[Link], flows: &[Flow]) -> Folded {
    let folded = fold(links, flows);
    let of_class = ends(&folded.links, &folded.flows);
    for (index, (end, class)) in ends(links, flows).iter().zip(&folded.classes).enumerate() {
        let expected = of_class[*class as usize];
        // Sums in another order may round to the next picosecond.
        let difference = end.0.abs_diff(expected.0);
        assert!(difference <= 1 + end.0 / 1_000_000_000, "{case}, flow {index}: {end:?} for {expected:?}");
    }
    folded
}

/// Rank i sends to i + 1 over its outgoing link and the other's incoming one.
fn ring(first: u32, ranks: u32, gigabytes: f64) -> Vec<Flow> {
    let hop = |i| flow(gigabytes, &[first + 2 * i, first + 2 * ((i + 1) % ranks) + 1]);
    (0..ranks).map(hop).collect()
}

#[test]
fn a_ring_is_one_flow() {
    let folded = check("ring of 8", &[link(10.0); 16], &ring(0, 8, 1.0));
    assert_eq!((folded.flows.len(), folded.links.len()), (1, 1));
    assert_eq!(folded.classes, [0; 8]);
    assert_eq!(ends(&folded.links, &folded.flows), [Picoseconds(100_000_000_000)]);
}

#[test]
fn what_differs_stays_apart() {
    // Another size, another capacity, another neighbour.
    let mut flows = [ring(0, 8, 1.0), ring(16, 8, 1.0), ring(32, 8, 2.0)].concat();
    let mut links = vec![link(10.0); 48];
    assert_eq!(check("two sizes", &links, &flows).flows.len(), 2);
    links[0] = link(5.0);
    // In the first ring the flow out of rank 0 is slow; its neighbours differ from one another only by what they
    // share links with, and they share none with it.
    assert_eq!(check("one slow link", &links, &flows).flows.len(), 3);
    flows.push(flow(1.0, &[16, 18]));
    // The second ring now has two flows that share a link with the new one, and six that do not.
    assert_eq!(check("one more flow", &links, &flows).flows.len(), 5);
}

#[test]
fn all_to_all_over_leaves_and_spine() {
    // 4 leaves of 8 hosts; link 2h out of host h, 2h + 1 into it; 64 + 2l up from leaf l, 64 + 2l + 1 down to it.
    let mut flows = Vec::new();
    for (from, to) in (0..32u32).flat_map(|from| (0..32u32).map(move |to| (from, to))) {
        match (from == to, from / 8 == to / 8) {
            (true, _) => {}
            (_, true) => flows.push(flow(0.1, &[2 * from, 2 * to + 1])),
            _ => flows.push(flow(0.1, &[2 * from, 64 + 2 * (from / 8), 64 + 2 * (to / 8) + 1, 2 * to + 1])),
        }
    }
    let links = [vec![link(50.0); 64], vec![link(100.0); 8]].concat();
    let folded = check("all-to-all", &links, &flows);
    // Inside a leaf and across: host links carry 7 and 24 of them, uplinks 8 · 24 of the second.
    assert_eq!((folded.flows.len(), folded.links.len()), (2, 2));
    let mut weights: Vec<f64> =
        folded.flows.iter().flat_map(|flow| flow.path.iter().map(|(_, weight)| *weight)).collect();
    weights.sort_by(f64::total_cmp);
    assert_eq!(weights, [7.0, 24.0, 192.0]);
}

/// Weights, caps and links that limit each flow by itself.
#[test]
fn random_flows_end_as_if_unfolded() {
    for seed in 0..200 {
        let (links, transfers) = random_case(seed);
        let of_transfer = |transfer: &Transfer| Flow {
            amount: transfer.amount.get(),
            path: transfer.path.clone(),
            cap: transfer.cap.map(BytesPerSecond::get),
        };
        let flows: Vec<Flow> = transfers.iter().map(of_transfer).collect();
        // The same network twice, side by side, folds at least to one of them.
        let twice = |flow: &Flow| Flow {
            path: flow
                .path
                .iter()
                .map(|(link, weight)| (LinkId(link.0 + links.len() as u32), *weight))
                .collect(),
            ..*flow
        };
        let both: Vec<Flow> = flows.iter().cloned().chain(flows.iter().map(twice)).collect();
        let folded = check(&format!("seed {seed}"), &[links.clone(), links.clone()].concat(), &both);
        assert!(folded.flows.len() <= flows.len(), "seed {seed}");
    }
}
