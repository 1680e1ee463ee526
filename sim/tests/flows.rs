//! Max-min fair flows: cases done by hand, a slow twin, and what must hold for any flows.

use crate::flow_cases::random_case;
use crate::twin::{Random, slow_completion_times};
use trainwright_sim::flow::{
    Error, Flow, FlowId, Link, LinkId, Network, Reason, Sharing, Transfer, completion_times,
};
use trainwright_spec::units::{Bytes, BytesPerSecond, Picoseconds, Seconds};

/// GB/s of a shared link.
fn shared(gigabytes: f64) -> Link {
    Link::shared(BytesPerSecond::new(gigabytes * 1e9))
}

/// GB over links, from the start.
fn transfer(gigabytes: f64, path: &[u32]) -> Transfer {
    Transfer {
        start: Seconds::ZERO,
        latency: Seconds::ZERO,
        amount: Bytes::new(gigabytes * 1e9),
        path: path.iter().map(|link| (LinkId(*link), 1.0)).collect(),
        cap: None,
    }
}

fn starting(seconds: f64, transfer: Transfer) -> Transfer {
    Transfer { start: Seconds::new(seconds), ..transfer }
}

fn times(links: &[Link], transfers: &[Transfer]) -> Vec<f64> {
    let ends = completion_times(links, transfers).unwrap();
    ends.into_iter().map(|end| Seconds::from(end).get()).collect()
}

fn close(times: &[f64], expected: &[f64], case: &str) {
    assert_eq!(times.len(), expected.len(), "{case}");
    for (flow, (time, expected)) in times.iter().zip(expected).enumerate() {
        assert!((time - expected).abs() <= 1e-7 * expected, "{case}, flow {flow}: {time} for {expected}");
    }
}

fn check(case: &str, links: &[f64], transfers: &[Transfer], expected: &[f64]) {
    let links: Vec<_> = links.iter().map(|capacity| shared(*capacity)).collect();
    close(&times(&links, transfers), expected, case);
    close(&slow_completion_times(&links, transfers), expected, &format!("{case}, slow twin"));
}

#[test]
fn a_few_flows_by_hand() {
    // 5 GB/s each until 0.2 s; then the second has 1 GB left and 10 GB/s.
    check("two share", &[10.0], &[transfer(1.0, &[0]), transfer(2.0, &[0])], &[0.2, 0.3]);
    // All at 5 until 1 s, when sb is done; sa still shares a with long: both at 5 until 2 s.
    let flows = [transfer(10.0, &[0, 1]), transfer(10.0, &[0]), transfer(5.0, &[1])];
    check("parking lot", &[10.0, 10.0], &flows, &[2.0, 2.0, 1.0]);
    // x is held to 1 by b; y has the other 9.
    check("unequal", &[10.0, 1.0], &[transfer(1.0, &[0, 1]), transfer(9.0, &[0])], &[1.0, 1.0]);
    // l3: three flows at 1. l1: what f5 leaves, 9, for f1 and f2: 4.5 each; l2 then carries 5.5 of 8.
    let paths: [&[u32]; 5] = [&[0], &[0, 1], &[1, 2], &[2], &[0, 2]];
    let flows = paths.map(|path| transfer(6.0, path));
    check("water-filling", &[10.0, 8.0, 3.0], &flows, &[6.0 / 4.5, 6.0 / 4.5, 6.0, 6.0, 6.0]);
    // f1 alone to .25 (9 left); two at 6 to .5 (7.5, 4.5 left); three at 4 to 1 (5.5, 2.5, 1 left); four at 3 to
    // 4/3, f3 is done (4.5, 1.5, 11 left); three at 4 to 41/24, f2 (3, 9.5 left); two at 6 to 53/24, f1 (6.5 left);
    // f4 at 12 to 2.75.
    let flows = [(12.0, 0.0), (6.0, 0.25), (3.0, 0.5), (12.0, 1.0)]
        .map(|(gigabytes, start)| starting(start, transfer(gigabytes, &[0])));
    check("staggered", &[12.0], &flows, &[53.0 / 24.0, 41.0 / 24.0, 4.0 / 3.0, 2.75]);
    // The capped one at 1, the others at 4.5 until u2 is done at 1 s; u1 at 9 for its other 4.5: 1.5 s.
    let capped = Transfer { cap: Some(BytesPerSecond::new(1e9)), ..transfer(2.0, &[0]) };
    check("rate cap", &[10.0], &[capped, transfer(9.0, &[0]), transfer(4.5, &[0])], &[2.0, 1.5, 1.0]);
}

/// Hosts 0 to 7: link h is the way up of host h, link 8 + h its way down.
#[test]
fn flows_on_a_crossbar_by_hand() {
    let hosts = 8;
    let over = |from: u32, to: u32, gigabytes| transfer(gigabytes, &[from, hosts + to]);
    // Seven share the way down of host 0: 7 GB at 50 GB/s. Host 1's other flow has 50 · 6/7 = 42.857 GB/s until
    // 0.14 s, 6 GB, and 50 GB/s for the 4 that are left.
    let mut flows: Vec<_> = (1..hosts).map(|host| over(host, 0, 1.0)).collect();
    flows.push(over(1, 2, 10.0));
    check("incast", &[50.0; 16], &flows, &[0.14, 0.14, 0.14, 0.14, 0.14, 0.14, 0.14, 0.22]);

    // 16 MB to every other GPU, 64 MB to GPU 0, 400 GB/s. Into GPU 0: 7 · 64 MB / 400 GB/s = 1.12 ms. Each way up
    // and down has seven flows, so all have 400/7 GB/s at first: 16 MB takes 0.28 ms.
    let (mut flows, mut expected) = (Vec::new(), Vec::new());
    for from in 0..hosts {
        for to in (0..hosts).filter(|to| *to != from) {
            flows.push(over(from, to, if to == 0 { 0.064 } else { 0.016 }));
            expected.push(if to == 0 { 1.12e-3 } else { 0.28e-3 });
        }
    }
    check("hot expert", &[400.0; 16], &flows, &expected);

    // 8 nodes at 25 GB/s and a spine of 100 GB/s in all (link 16). The ring's eight flows have 12.5 GB/s each.
    // At 0.1 ms the 50 MB flow joins: nine flows on the spine at 100/9; the ring has 30.75 MB left of each:
    // 30.75 · 9 / 100 = 2.7675 ms. The 50 MB flow then has 19.25 MB left and 25 GB/s: 0.77 ms.
    let mut flows: Vec<_> =
        (0..hosts).map(|host| transfer(0.032, &[host, 16, hosts + (host + 1) % hosts])).collect();
    flows.push(starting(1e-4, transfer(0.05, &[0, 16, hosts + 4])));
    let mut links = vec![25.0; 16];
    links.push(100.0);
    let mut expected = vec![2.8675e-3; 8];
    expected.push(3.6375e-3);
    check("ring and pipeline", &links, &flows, &expected);
}

/// Four leaves of four hosts: links 0 to 15 up from hosts, 16 to 31 down to them, 32 to 35 up from leaves, 36 to 39
/// down to them, 50 GB/s each.
#[test]
fn an_oversubscribed_leaf_by_hand() {
    let (mut flows, mut expected) = (Vec::new(), Vec::new());
    for host in 0..16 {
        let (leaf, there) = (host / 4, (host + 4) % 16);
        flows.push(transfer(1.0, &[host, 32 + leaf, 36 + there / 4, 16 + there]));
        // Four flows share the way up of their leaf: 12.5 GB/s.
        expected.push(0.08);
        let next = 4 * leaf + (host + 1) % 4;
        flows.push(transfer(1.0, &[host, 16 + next]));
        // They have the rest of the hosts' links: 37.5 GB/s.
        expected.push(1.0 / 37.5);
    }
    check("oversubscribed leaf", &[50.0; 40], &flows, &expected);
}

/// The limit of f1 is a's 4 GB/s; f2 and f3 share b's 20 and are each limited to 10.
#[test]
fn a_per_flow_link_is_not_shared() {
    let links = [Link::per_flow(BytesPerSecond::new(10e9)), shared(4.0), shared(20.0)];
    let flows = [transfer(10.0, &[0, 1]), transfer(10.0, &[0, 2]), transfer(10.0, &[0, 2])];
    close(&times(&links, &flows), &[2.5, 1.0, 1.0], "per-flow link");
}

/// Links a and b with a latency of 1 ms each; f1 crosses a, f2 crosses a and b, 10 GB each.
///
/// Shares do not depend on latency here, as they do in models of TCP, which give the flow over one link twice the
/// rate of the other and end both earlier or later (1.5005 s and 2.001 s). Equal shares: f1 moves alone from 1 ms
/// to 2 ms, 0.01 GB. Then both have 5 GB/s: f1 needs 9.99/5 = 1.998 s, to 2.000 s. f2 has 0.01 GB left and all
/// 10 GB/s: 1 ms, to 2.001 s.
#[test]
fn latency_delays_a_flow_and_leaves_its_share() {
    let delayed =
        |milliseconds: f64, transfer| Transfer { latency: Seconds::new(milliseconds * 1e-3), ..transfer };
    let flows = [delayed(1.0, transfer(10.0, &[0])), delayed(2.0, transfer(10.0, &[0, 1]))];
    check("latency", &[10.0, 10.0], &flows, &[2.000, 2.001]);
}

/// Forty flows over twelve links.
///
/// Source: SimGrid 3.32 (model CM02, no TCP window, cross-traffic or weights), and water-filling in exact rational
/// numbers; they agree to 1.3e-8.
#[test]
fn forty_random_flows() {
    const CAPACITIES: [f64; 12] = [5.0, 2.0, 10.0, 1.0, 1.0, 25.0, 1.0, 5.0, 25.0, 1.0, 25.0, 2.0];
    /// Start, GB, path, end.
    const FLOWS: [(f64, f64, &[u32], f64); 40] = [
        (0.037, 2.8, &[1, 3, 11, 8], 19.646967857),
        (0.425, 3.7, &[3], 22.453333333),
        (0.631, 3.8, &[9], 15.715426429),
        (0.586, 0.4, &[0, 8], 0.759468966),
        (0.858, 1.9, &[2, 8, 1, 4], 14.120259269),
        (0.56, 1.2, &[9], 8.744397352),
        (0.571, 1.3, &[1, 8, 11], 6.903835880),
        (0.564, 4.0, &[7, 10], 2.150033472),
        (0.532, 2.1, &[9, 7, 5, 4], 15.112353467),
        (0.248, 1.2, &[1, 9], 8.204461181),
        (0.3, 3.2, &[11, 7, 4], 18.568376389),
        (0.609, 0.5, &[8], 0.638186650),
        (0.418, 2.2, &[7, 6], 12.688872891),
        (0.039, 0.5, &[5, 11, 9], 2.812599479),
        (0.497, 3.0, &[1], 12.562972704),
        (0.945, 3.1, &[0], 1.610345917),
        (0.731, 2.0, &[4, 6, 5, 0], 14.546461650),
        (0.941, 2.3, &[9, 1], 13.522690817),
        (0.494, 1.4, &[2, 3, 6], 12.607867857),
        (0.391, 3.2, &[2], 1.028595352),
        (0.449, 3.6, &[2, 6, 8], 16.421680278),
        (0.278, 2.7, &[10, 6, 3], 19.916051190),
        (0.151, 1.2, &[3, 10], 10.028310714),
        (0.233, 3.2, &[4, 11], 18.404876389),
        (0.004, 2.7, &[9, 11, 5], 13.820060740),
        (0.953, 3.3, &[7], 2.300106454),
        (0.9, 3.6, &[6, 11, 10, 1], 16.602806429),
        (0.482, 2.6, &[3], 19.769051190),
        (0.067, 1.4, &[2, 1, 5, 0], 5.814006175),
        (0.102, 3.7, &[8, 1], 13.566141627),
        (0.949, 4.0, &[1], 14.172709031),
        (0.874, 4.0, &[2, 10, 4, 5], 19.645500000),
        (0.602, 3.1, &[1], 13.009480187),
        (0.849, 3.0, &[7, 4, 1, 2], 18.640857407),
        (0.102, 2.2, &[7, 2, 8], 0.700604548),
        (0.023, 3.4, &[2, 8, 0], 0.938295523),
        (0.758, 2.0, &[11], 2.844490173),
        (0.845, 3.4, &[2, 5, 3], 22.220465476),
        (0.533, 3.3, &[10, 3, 9], 21.932501190),
        (0.812, 1.3, &[6, 3], 12.232367857),
    ];
    let flows = FLOWS.map(|(start, gigabytes, path, _)| starting(start, transfer(gigabytes, path)));
    check("random40", &CAPACITIES, &flows, &FLOWS.map(|flow| flow.3));
}

/// Networks of many shapes: see `random_case`.
#[test]
fn the_slow_twin_agrees() {
    for seed in 0..400 {
        let (links, transfers) = random_case(seed);
        close(
            &times(&links, &transfers),
            &slow_completion_times(&links, &transfers),
            &format!("seed {seed}"),
        );
    }
}

/// Runs transfers on a network and looks at it after each event.
fn watch(
    links: &[Link],
    transfers: &[Transfer],
    mut look: impl FnMut(&mut Network, &[(FlowId, usize)], f64),
) {
    let mut network = Network::new(links.to_vec());
    let mut waiting: Vec<usize> = (0..transfers.len()).collect();
    let start = |flow: usize| Picoseconds::from(transfers[flow].start + transfers[flow].latency);
    waiting.sort_by_key(|flow| std::cmp::Reverse(start(*flow)));
    let mut moving: Vec<(FlowId, usize)> = Vec::new();
    let mut clock = Picoseconds::ZERO;
    loop {
        let next = waiting.last().map(|flow| start(*flow)).into_iter().chain(network.next_end()).min();
        let Some(now) = next else { return };
        look(&mut network, &moving, Seconds::from(now - clock).get());
        clock = now;
        let ended = network.advance(now);
        moving.retain(|(id, _)| !ended.contains(id));
        while let Some(flow) = waiting.pop_if(|flow| start(*flow) == now) {
            let Transfer { amount, path, cap, .. } = transfers[flow].clone();
            let flow_now = Flow { amount: amount.get(), path, cap: cap.map(BytesPerSecond::get) };
            moving.push((network.start(now, flow_now).unwrap(), flow));
        }
    }
}

/// At every instant no link carries more than it can, each flow is at its cap or crosses a full link on which none is
/// faster; and in the end every flow has moved its amount.
#[test]
fn every_flow_has_a_bottleneck() {
    for seed in 0..200 {
        let (links, transfers) = random_case(seed);
        let mut moved = vec![0.0; transfers.len()];
        watch(&links, &transfers, |network, moving, elapsed| {
            let rates: Vec<f64> = moving.iter().map(|(id, _)| network.rate(*id)).collect();
            let (mut loads, mut fastest) = (vec![0.0; links.len()], vec![0.0f64; links.len()]);
            for ((_, flow), rate) in moving.iter().zip(&rates) {
                moved[*flow] += rate * elapsed;
                for (LinkId(link), weight) in &transfers[*flow].path {
                    loads[*link as usize] += weight * rate;
                    fastest[*link as usize] = fastest[*link as usize].max(*rate);
                }
            }
            for (link, load) in links.iter().zip(&loads) {
                let fits = link.sharing == Sharing::PerFlow || *load <= link.capacity * (1.0 + 1e-9);
                assert!(fits, "seed {seed}: {load} on {link:?}");
            }
            for ((_, flow), rate) in moving.iter().zip(&rates) {
                let full = |link: usize| match links[link] {
                    Link { capacity, sharing: Sharing::PerFlow } => *rate >= capacity * (1.0 - 1e-9),
                    Link { capacity, sharing: Sharing::Shared } => {
                        loads[link] >= capacity * (1.0 - 1e-9) && *rate >= fastest[link] * (1.0 - 1e-9)
                    }
                };
                let transfer = &transfers[*flow];
                let at_cap = transfer.cap.is_some_and(|cap| *rate >= cap.get() * (1.0 - 1e-9));
                let held = transfer.path.iter().any(|(link, _)| full(link.0 as usize));
                assert!(at_cap || held, "seed {seed}: nothing holds back {transfer:?} at {rate}");
            }
        });
        for (transfer, moved) in transfers.iter().zip(&moved) {
            let amount = transfer.amount.get();
            assert!((moved - amount).abs() <= 1e-9 * amount + 1.0, "seed {seed}: {moved} of {amount} bytes");
        }
    }
}

/// Links and flows in another order, hops too: the same times.
#[test]
fn names_do_not_matter() {
    for seed in 0..100 {
        let (links, transfers) = random_case(seed);
        let (last_link, last) = (links.len() as u32 - 1, transfers.len() - 1);
        let renamed_links: Vec<Link> = links.iter().rev().copied().collect();
        let mut renamed: Vec<Transfer> = transfers.iter().rev().cloned().collect();
        for transfer in &mut renamed {
            transfer.path.reverse();
            for (link, _) in &mut transfer.path {
                *link = LinkId(last_link - link.0);
            }
        }
        let (one, other) = (times(&links, &transfers), times(&renamed_links, &renamed));
        for flow in 0..=last {
            let (one, other) = (one[flow], other[last - flow]);
            assert!((one - other).abs() <= 1e-9 * one, "seed {seed}, flow {flow}: {one} and {other}");
        }
    }
}

/// A flow of weight n on its links is n flows that start together and are equal.
#[test]
fn a_weighted_flow_stands_for_equal_flows() {
    for seed in 0..100 {
        let (links, mut transfers) = random_case(seed);
        let mut random = Random(seed);
        let (mut single, mut folded) = (Vec::new(), Vec::new());
        for transfer in &mut transfers {
            let count = 1 + random.below(4);
            for (_, weight) in &mut transfer.path {
                *weight = 1.0;
            }
            single.extend(std::iter::repeat_n(transfer.clone(), count));
            for (_, weight) in &mut transfer.path {
                *weight = count as f64;
            }
            folded.push((single.len() - count..single.len(), transfer.clone()));
        }
        let single = completion_times(&links, &single).unwrap();
        let transfers: Vec<_> = folded.iter().map(|(_, transfer)| transfer.clone()).collect();
        for ((flows, _), time) in folded.iter().zip(times(&links, &transfers)) {
            let first = single[flows.start];
            assert!(single[flows.clone()].iter().all(|end| *end == first), "equal flows end together");
            let first = Seconds::from(first).get();
            assert!((first - time).abs() <= 1e-9 * time, "seed {seed}: {first} for {time}");
        }
    }
}

/// Six hosts to all others over a crossbar of 1 GB/s: 5 · 1/7 GB a host; all thirty flows end at one instant.
#[test]
fn equal_flows_end_in_the_same_picosecond() {
    let mut network = Network::new(vec![shared(1.0); 12]);
    for from in 0..6 {
        for to in (6..12).filter(|to| *to != from + 6) {
            let path = vec![(LinkId(from), 1.0), (LinkId(to), 1.0)];
            network.start(Picoseconds::ZERO, Flow { amount: 1e9 / 7.0, path, cap: None }).unwrap();
        }
    }
    // 5/7 s = 714285714285.71 ps.
    assert_eq!(network.next_end(), Some(Picoseconds(714_285_714_286)));
    assert_eq!(network.rate(FlowId(29)), 0.2e9);
    let ended = network.advance(Picoseconds(714_285_714_286));
    assert_eq!(ended, (0..30).map(FlowId).collect::<Vec<_>>());
    assert_eq!((network.next_end(), network.rate(FlowId(29))), (None, 0.0));
}

/// Time may go on over many ends at once, and to starts after them.
#[test]
fn the_clock_may_jump() {
    let gigabytes = |amount: f64| Flow { amount: amount * 1e9, path: vec![(LinkId(0), 1.0)], cap: None };
    let second = Picoseconds(1_000_000_000_000);
    let mut network = Network::new(vec![shared(1.0)]);
    let long = network.start(Picoseconds::ZERO, gigabytes(2.0)).unwrap();
    let short = network.start(Picoseconds::ZERO, gigabytes(0.5)).unwrap();
    let nothing = network.start(Picoseconds::ZERO, gigabytes(0.0)).unwrap();
    assert_eq!(network.next_end(), Some(Picoseconds::ZERO));
    // Nothing at once, the short one at 1 s, the long one at 2.5 s; then one that starts at 3 s and lasts 1 s.
    let late = network.start(second + second + second, gigabytes(1.0)).unwrap();
    assert_eq!(network.advance(second + second + second), [nothing, short, long]);
    assert_eq!(network.advance(Picoseconds(4_000_000_000_000)), [late]);
}

/// A starts when B, 1 GB at 1 GB/s, ends: whether the caller says the one or the other first.
#[test]
fn a_start_and_an_end_at_one_instant() {
    let gigabyte = Flow { amount: 1e9, path: vec![(LinkId(0), 1.0)], cap: None };
    let second = Picoseconds(1_000_000_000_000);
    let mut network = Network::new(vec![shared(1.0)]);
    let b = network.start(Picoseconds::ZERO, &gigabyte).unwrap();
    assert_eq!(network.next_end(), Some(second));
    let a = network.start(second, &gigabyte).unwrap();
    assert_eq!(network.advance(second), [b]);
    assert_eq!(network.next_end(), Some(second + second));
    assert_eq!(network.advance(second + second), [a]);
    let c = network.start(second + second, &gigabyte).unwrap();
    assert_eq!(network.rate(c), 1e9);
}

#[test]
fn what_cannot_be_simulated_is_refused() {
    let links = [shared(1.0), shared(0.0), shared(-1.0), shared(f64::NAN), shared(f64::INFINITY)];
    let check = |transfer: Transfer, reason: &str| {
        let error = completion_times(&links, &[self::transfer(1.0, &[0]), transfer]).unwrap_err();
        assert_eq!(error.to_string(), format!("flow 1 {reason}"));
    };
    check(transfer(1.0, &[7]), "crosses link 7, but there are only 5 links (numbered from 0)");
    check(transfer(1.0, &[0, 1]), "crosses link 1, whose capacity is 0: it must be greater than zero");
    check(transfer(1.0, &[2]), "crosses link 2, whose capacity is -1000000000: it must be greater than zero");
    check(transfer(1.0, &[3]), "crosses link 3, whose capacity is NaN: it must be greater than zero");
    let unlimited = "has no limit to its rate: give it a link of finite capacity or a rate cap";
    check(transfer(1.0, &[]), unlimited);
    check(transfer(1.0, &[4]), unlimited);
    check(transfer(-1.0, &[0]), "has the amount -1000000000: it must be finite and not less than zero");
    check(transfer(f64::NAN, &[0]), "has the amount NaN: it must be finite and not less than zero");
    let weighted = |weight| Transfer { path: vec![(LinkId(0), weight)], ..transfer(1.0, &[]) };
    check(weighted(0.0), "has weight 0 on link 0: it must be finite and greater than zero");
    check(weighted(f64::INFINITY), "has weight inf on link 0: it must be finite and greater than zero");
    let capped = |cap| Transfer { cap: Some(BytesPerSecond::new(cap)), ..transfer(1.0, &[0]) };
    check(capped(0.0), "has the rate cap 0: it must be greater than zero");
    check(capped(f64::NAN), "has the rate cap NaN: it must be greater than zero");
    let start = "starts to move at -1 s: start and latency must be finite and not negative";
    check(starting(-1.0, transfer(1.0, &[0])), start);
    check(capped(1e-9), "needs more than the 213 days that the clock holds");

    let mut network = Network::new(links.to_vec());
    network.advance(Picoseconds(5));
    let flow = Flow { amount: 1.0, path: vec![(LinkId(0), 1.0)], cap: None };
    let reason = Reason::InThePast { start: Picoseconds(4), clock: Picoseconds(5) };
    assert_eq!(network.start(Picoseconds(4), &flow), Err(Error { flow: 0, reason }));
    // What was refused has left nothing behind.
    assert_eq!((network.next_end(), network.start(Picoseconds(5), flow)), (None, Ok(FlowId(0))));
}
