//! Collectives as step lists: every list does what its kind promises, and moves what the textbook says.

use std::collections::BTreeMap;
use trainwright_spec::collective::CollectiveKind::{self, *};
use trainwright_spec::collective::{ALGORITHMS, Algorithm, Effect, Layout, Steps, Switch, Transfer};
use trainwright_spec::collective::{
    BinomialTree, CollNet, Direct, Dissemination, DoubleBinaryTree, HalvingDoubling, InSwitch,
    InSwitchCollNet, Pairwise, ParameterServer, Ring, TwoLevel,
};

/// 1 to 17 ranks, 24, 32 and 64, on nodes of 1, 2, 4 and 8, with 1, 3 and 8 pieces.
fn layouts() -> impl Iterator<Item = Layout> {
    let groups =
        (1..=17).chain([24, 32, 64]).flat_map(|ranks| [1, 2, 4, 8].map(|per_node| (ranks, per_node)));
    groups
        .filter(|(ranks, per_node)| ranks % per_node == 0)
        .flat_map(|(ranks, per_node)| [1, 3, 8].map(|pieces| Layout::new(ranks, per_node, pieces).unwrap()))
}

/// Every list over every layout, with a title.
fn every_list() -> impl Iterator<Item = (String, CollectiveKind, Layout, Steps)> {
    let cases = ALGORITHMS.iter().flat_map(|algorithm| CollectiveKind::ALL.map(|kind| (algorithm, kind)));
    cases.flat_map(|(algorithm, kind)| {
        layouts().filter_map(move |layout| {
            let title = format!("{} {kind} over {layout:?}", algorithm.name());
            Some((title, kind, layout, algorithm.steps(kind, layout)?))
        })
    })
}

/// The buffers of all members, by chunk; `None` where a chunk is empty.
type Buffers = Vec<Vec<Option<u64>>>;

/// The content of a chunk of a rank at first: sums of different ones differ, but for a chance of 2⁻⁶⁴.
fn initial(rank: usize, chunk: usize) -> u64 {
    let mixed = (rank as u64 + 1).wrapping_mul(0x9E37_79B9_7F4A_7C15) ^ (chunk as u64 + 1);
    let mixed = (mixed ^ (mixed >> 31)).wrapping_mul(0xBF58_476D_1CE4_E5B9);
    mixed ^ (mixed >> 29)
}

/// Performs the list on numbers. All transfers of a step read what the step before left.
fn perform(title: &str, steps: &Steps, ranks: usize) -> Buffers {
    let mut buffers: Buffers = vec![vec![None; steps.names()]; steps.members()];
    for (rank, buffer) in buffers.iter_mut().take(ranks).enumerate() {
        steps.input(rank).iter().for_each(|chunk| buffer[chunk] = Some(initial(rank, chunk)));
    }
    for transfers in steps.iter() {
        let mut arrivals: BTreeMap<(usize, usize), Vec<(Effect, u64)>> = BTreeMap::new();
        for transfer in &transfers {
            for chunk in transfer.chunks.iter() {
                let sent = buffers[transfer.from as usize][chunk];
                let sent = sent.unwrap_or_else(|| panic!("{title}: {transfer} has nothing to send"));
                arrivals.entry((transfer.to as usize, chunk)).or_default().push((transfer.effect, sent));
            }
        }
        for transfer in &transfers {
            for chunk in transfer.chunks.iter() {
                let written = arrivals.contains_key(&(transfer.from as usize, chunk));
                assert!(!written, "{title}: {transfer} reads what is written in the same step");
            }
        }
        for ((member, chunk), arrived) in arrivals {
            let held = &mut buffers[member][chunk];
            *held = match arrived.as_slice() {
                [(Effect::Copy, value)] => Some(*value),
                added => {
                    assert!(
                        added.iter().all(|(effect, _)| *effect == Effect::Add),
                        "{title}: copies collide"
                    );
                    assert!(held.is_some() || member >= ranks, "{title}: rank {member} adds to nothing");
                    Some(added.iter().fold(held.unwrap_or(0), |sum, (_, value)| sum.wrapping_add(*value)))
                }
            };
        }
        // What a switch has handed out it forgets, so that it cannot be summed twice.
        for transfer in transfers.iter().filter(|transfer| transfer.from as usize >= ranks) {
            transfer.chunks.iter().for_each(|chunk| buffers[transfer.from as usize][chunk] = None);
        }
    }
    buffers
}

#[test]
fn every_list_does_what_its_kind_promises() {
    for (title, kind, layout, steps) in every_list().filter(|(_, kind, ..)| *kind != Barrier) {
        let p = layout.ranks();
        let buffers = perform(&title, &steps, p);
        let sum = |chunk| (0..p).fold(0, |sum: u64, rank| sum.wrapping_add(initial(rank, chunk)));
        let parts = steps.chunks() / p;
        for (rank, buffer) in buffers.iter().take(p).enumerate() {
            let expected: Vec<(usize, u64)> = match kind {
                AllReduce => (0..steps.chunks()).map(|chunk| (chunk, sum(chunk))).collect(),
                AllGather => {
                    (0..steps.chunks()).map(|chunk| (chunk, initial(chunk / parts, chunk))).collect()
                }
                ReduceScatter => (0..parts).map(|i| (rank * parts + i, sum(rank * parts + i))).collect(),
                Broadcast => (0..steps.chunks()).map(|chunk| (chunk, initial(0, chunk))).collect(),
                Reduce if rank == 0 => (0..steps.chunks()).map(|chunk| (chunk, sum(chunk))).collect(),
                Reduce => vec![],
                AllToAll => (0..p).map(|from| (from * p + rank, initial(from, from * p + rank))).collect(),
                SendReceive => vec![((rank + p - 1) % p, initial((rank + p - 1) % p, (rank + p - 1) % p))],
                Barrier => unreachable!("filtered"),
            };
            assert_eq!(
                steps.output(rank).iter().collect::<Vec<_>>(),
                expected.iter().map(|(chunk, _)| *chunk).collect::<Vec<_>>(),
                "{title}: what rank {rank} takes home"
            );
            for (chunk, value) in expected {
                assert_eq!(buffer[chunk], Some(value), "{title}: rank {rank}, chunk {chunk}");
            }
        }
    }
}

#[test]
fn nobody_passes_a_barrier_before_everybody_has_come() {
    for (title, _, layout, steps) in every_list().filter(|(_, kind, ..)| *kind == Barrier) {
        // Bit r of a rank's word: it knows that rank r has come.
        let mut knows: Vec<u128> = (0..layout.ranks()).map(|rank| 1 << rank).collect();
        for transfers in steps.iter() {
            let before = knows.clone();
            transfers.iter().for_each(|one| knows[one.to as usize] |= before[one.from as usize]);
        }
        assert!(knows.iter().all(|known| *known == (1 << layout.ranks()) - 1), "{title}");
    }
}

#[test]
fn the_steps_of_a_phase_are_alike() {
    let shape = |transfers: Vec<Transfer>| {
        let mut shape: Vec<_> = transfers.iter().map(|one| (one.from, one.to, one.chunks.count)).collect();
        shape.sort_unstable();
        shape
    };
    for (title, _, _, steps) in every_list() {
        for (number, phase) in steps.phases().iter().enumerate() {
            let first = shape(phase.transfers(0));
            assert!(!first.is_empty(), "{title}: phase {number} does nothing");
            for index in 1..phase.steps() {
                assert_eq!(shape(phase.transfers(index)), first, "{title}: phase {number}, step {index}");
            }
        }
    }
}

#[test]
fn nobody_sends_to_itself_and_one_rank_needs_no_step() {
    for (title, _, layout, steps) in every_list() {
        assert_eq!(steps.count() == 0, layout.ranks() == 1, "{title}");
        for transfer in steps.iter().flatten() {
            assert_ne!(transfer.from, transfer.to, "{title}: {transfer}");
            assert!((transfer.from.max(transfer.to) as usize) < steps.members(), "{title}: {transfer}");
        }
    }
}

#[test]
fn in_rings_and_pairs_each_rank_sends_and_receives_one_message_at_a_time() {
    let one_at_a_time = [&Ring as &dyn Algorithm, &Pairwise, &HalvingDoubling, &TwoLevel, &Dissemination]
        .map(|algorithm| algorithm.name());
    for (title, _, _, steps) in every_list() {
        if !one_at_a_time.iter().any(|name| title.starts_with(name)) {
            continue;
        }
        for transfers in steps.iter() {
            for end in [|one: &Transfer| one.from, |one: &Transfer| one.to] {
                let mut members: Vec<u32> = transfers.iter().map(end).collect();
                members.sort_unstable();
                assert!(members.windows(2).all(|pair| pair[0] < pair[1]), "{title}: {transfers:?}");
            }
        }
    }
}

/// Every kind is done by some algorithm over every layout.
#[test]
fn every_kind_has_an_algorithm_everywhere() {
    for layout in layouts() {
        for kind in CollectiveKind::ALL {
            let found = ALGORITHMS.iter().any(|algorithm| algorithm.steps(kind, layout).is_some());
            assert!(found, "{kind} over {layout:?}");
        }
    }
}

#[test]
fn algorithms_have_different_names() {
    let mut names: Vec<&str> = ALGORITHMS.iter().map(|algorithm| algorithm.name()).collect();
    names.sort_unstable();
    names.dedup();
    assert_eq!(names.len(), ALGORITHMS.len());
}

/// What a member sends in all, in units of the collective's size.
fn sent(steps: &Steps, member: usize) -> f64 {
    let chunks = |one: &Transfer| if one.from as usize == member { one.chunks.count } else { 0 };
    steps.iter().flatten().map(|one| chunks(&one)).sum::<usize>() as f64 / steps.chunks() as f64
}

fn received(steps: &Steps, member: usize) -> f64 {
    let chunks = |one: &Transfer| if one.to as usize == member { one.chunks.count } else { 0 };
    steps.iter().flatten().map(|one| chunks(&one)).sum::<usize>() as f64 / steps.chunks() as f64
}

/// What all ranks of a node send out of it.
fn sent_out_of_node(steps: &Steps, layout: Layout, node: usize) -> f64 {
    let node_of = |member: u32| member as usize / layout.per_node();
    // Node switches lie inside their nodes; only the fabric is outside.
    let inside = |member: u32| match (member as usize).checked_sub(layout.ranks()) {
        None => node_of(member) == node,
        Some(switch) => steps.switches()[switch] == Switch::Node(node),
    };
    let crossing = |one: &Transfer| if inside(one.from) && !inside(one.to) { one.chunks.count } else { 0 };
    steps.iter().flatten().map(|one| crossing(&one)).sum::<usize>() as f64 / steps.chunks() as f64
}

#[test]
fn volumes_and_steps_are_those_of_the_textbook() {
    // (algorithm, kind, ranks, per node, pieces): elements that every rank sends, in units of n, and the steps.
    let check = |algorithm: &dyn Algorithm, kind, [p, k, m]: [usize; 3], volume: f64, count: usize| {
        let steps = algorithm.steps(kind, Layout::new(p, k, m).unwrap()).unwrap();
        let title = format!("{} {kind} over {p} ranks, {k} per node, {m} pieces", algorithm.name());
        assert_eq!(steps.count(), count, "{title}: steps");
        for rank in 0..p {
            assert!((sent(&steps, rank) - volume).abs() < 1e-12, "{title}: {} sent", sent(&steps, rank));
            assert!((received(&steps, rank) - volume).abs() < 1e-12, "{title}: received");
        }
    };
    for p in [2, 3, 8, 12] {
        let others = (p - 1) as f64 / p as f64;
        // Patarasuk & Yuan: 2 (p − 1)/p · n in 2 (p − 1) steps; each half of it is half of that.
        check(&Ring, AllReduce, [p, 1, 1], 2.0 * others, 2 * (p - 1));
        check(&Ring, AllGather, [p, 1, 1], others, p - 1);
        check(&Ring, ReduceScatter, [p, 1, 1], others, p - 1);
        // To each of p − 1 others a p-th, at once or one after the other.
        check(&Direct, AllToAll, [p, 1, 1], others, 1);
        check(&Pairwise, AllToAll, [p, 1, 1], others, p - 1);
        check(&Direct, SendReceive, [p, 1, 1], 1.0, 1);
        // In one node: n to the switch and a p-th of the sum back; that up, and all of it down. It tends to n, half of
        // the ring's. Four steps for one piece, one more for each further one.
        check(&InSwitch, AllReduce, [p, p, 1], 1.0 + 1.0 / p as f64, 4);
        check(&InSwitch, AllReduce, [p, p, 8], 1.0 + 1.0 / p as f64, 11);
    }
    for (p, log) in [(2, 1), (4, 2), (8, 3), (64, 6)] {
        // Half, a quarter, … of n: 1 − 1/p in log₂ p steps, twice for an all-reduce.
        let others = (p - 1) as f64 / p as f64;
        check(&HalvingDoubling, AllReduce, [p, 1, 1], 2.0 * others, 2 * log);
        check(&HalvingDoubling, AllGather, [p, 1, 1], others, log);
        check(&HalvingDoubling, ReduceScatter, [p, 1, 1], others, log);
    }
    // 4 nodes of 8: inside 7/8 of n, out 3/32 of n; 31/32 together, as in a ring, in 7 + 3 steps instead of 31.
    check(&TwoLevel, ReduceScatter, [32, 8, 1], 31.0 / 32.0, 10);
    check(&TwoLevel, AllGather, [32, 8, 1], 31.0 / 32.0, 10);
    check(&TwoLevel, AllReduce, [32, 8, 1], 31.0 / 16.0, 20);
    // All-to-all on 4 nodes of 8: 7 messages inside of 4 parts, then 3 between of 8: 28/32 + 24/32.
    check(&TwoLevel, AllToAll, [32, 8, 1], 52.0 / 32.0, 10);
    // 4 nodes of 8: n to the switch and an eighth of n back to it, an eighth to the fabric; up, the rank's part, fabric
    // and back, the rank's part, all: 6 steps.
    check(&InSwitchCollNet, AllReduce, [32, 8, 1], 1.0 + 2.0 / 8.0, 6);
    // Without switches inside: 7 eighths to the others, an eighth to the fabric, 7 eighths to the others; 4 steps.
    check(&CollNet, AllReduce, [32, 8, 1], 15.0 / 8.0, 4);
    // One rank on each node: all of it to the fabric and back.
    check(&CollNet, AllReduce, [5, 1, 3], 1.0, 4);
}

#[test]
fn a_switch_adds_and_copies_for_its_node() {
    // Of 8 ranks, in units of n: what a rank that is not the root sends and gets, then the root. The switch copies to
    // all alike, so that a rank gets its part of an all-gather back as well.
    let check = |kind, [sends, gets]: [f64; 2], [root_sends, root_gets]: [f64; 2]| {
        let steps = InSwitch.steps(kind, Layout::new(8, 8, 4).unwrap()).unwrap();
        let hops = if kind == AllReduce { 4 } else { 2 };
        assert_eq!(steps.count(), hops + 3, "{kind}: 4 pieces");
        assert_eq!(steps.switches(), [Switch::Node(0)], "{kind}");
        assert_eq!([sent(&steps, 5), received(&steps, 5)], [sends, gets], "{kind}");
        assert_eq!([sent(&steps, 0), received(&steps, 0)], [root_sends, root_gets], "{kind}: the root");
    };
    check(AllReduce, [1.125, 1.125], [1.125, 1.125]);
    check(ReduceScatter, [1.0, 0.125], [1.0, 0.125]);
    check(AllGather, [0.125, 1.0], [0.125, 1.0]);
    check(Broadcast, [0.0, 1.0], [1.0, 0.0]);
    check(Reduce, [1.0, 0.0], [1.0, 1.0]);
}

#[test]
fn a_surplus_over_a_power_of_two_costs_two_steps() {
    // 6 ranks: pairs 0-1 and 2-3 sum on 1 and 3; 1, 3, 4, 5 do 2 log₂ 4 steps and send 2 · 3/4 n; 0 and 2 send n.
    let steps = HalvingDoubling.steps(AllReduce, Layout::flat(6).unwrap()).unwrap();
    assert_eq!(steps.count(), 6);
    assert_eq!([0, 1, 2, 3, 4, 5].map(|rank| sent(&steps, rank)), [1.0, 2.5, 1.0, 2.5, 1.5, 1.5]);
    for kind in [AllGather, ReduceScatter] {
        assert!(HalvingDoubling.steps(kind, Layout::flat(6).unwrap()).is_none());
    }
}

#[test]
fn a_server_carries_the_tensor_for_everybody() {
    // 7 others send n to rank 0 and get n back: with the server's part, 8 n each way.
    let steps = ParameterServer.steps(AllReduce, Layout::flat(8).unwrap()).unwrap();
    assert_eq!(steps.count(), 2);
    assert_eq!([sent(&steps, 0), received(&steps, 0)], [7.0, 7.0]);
    assert_eq!([sent(&steps, 5), received(&steps, 5)], [1.0, 1.0]);
}

#[test]
fn broadcasts_and_reduces_pass_the_tensor_on() {
    let check = |algorithm: &dyn Algorithm,
                 [p, m]: [usize; 2],
                 count: usize,
                 from_root: f64,
                 into_all: f64| {
        let layout = Layout::new(p, 1, m).unwrap();
        let broadcast = algorithm.steps(Broadcast, layout).unwrap();
        let reduce = algorithm.steps(Reduce, layout).unwrap();
        let title = format!("{} over {p}, {m} pieces", algorithm.name());
        assert_eq!([broadcast.count(), reduce.count()], [count, count], "{title}: steps");
        assert_eq!([sent(&broadcast, 0), received(&reduce, 0)], [from_root, from_root], "{title}: the root");
        for rank in 1..p {
            assert_eq!(
                [received(&broadcast, rank), sent(&reduce, rank)],
                [into_all, into_all],
                "{title}: {rank}"
            );
        }
    };
    // A chain of p − 1 hops: p − 2 + m steps for m pieces.
    check(&Ring, [8, 1], 7, 1.0, 1.0);
    check(&Ring, [8, 16], 22, 1.0, 1.0);
    // The binomial tree: ⌈log₂ p⌉ steps, in each of which the root sends the tensor.
    check(&BinomialTree, [8, 1], 3, 3.0, 1.0);
    check(&BinomialTree, [9, 1], 4, 4.0, 1.0);
    check(&BinomialTree, [64, 1], 6, 6.0, 1.0);
}

#[test]
fn barriers_take_the_logarithm() {
    for (p, log) in [(1, 0), (2, 1), (3, 2), (4, 2), (5, 3), (8, 3), (9, 4), (64, 6)] {
        let steps = Dissemination.steps(Barrier, Layout::flat(p).unwrap()).unwrap();
        assert_eq!(steps.count(), log, "{p} ranks");
        assert!(steps.iter().flatten().all(|one| one.chunks.count == 0), "{p} ranks");
    }
}

#[test]
fn trees_are_as_deep_as_the_logarithm_and_balanced() {
    // log₂ N down and up; a chain of k − 1 hops in each node before and after; each further piece adds a step.
    let count = |p, k, m| DoubleBinaryTree.steps(AllReduce, Layout::new(p, k, m).unwrap()).unwrap().count();
    for (nodes, log) in [(2, 1), (4, 2), (7, 2), (8, 3), (64, 6)] {
        assert_eq!(count(nodes, 1, 1), 2 * log, "{nodes} nodes");
        assert_eq!(count(nodes, 1, 8), 2 * log + 7, "{nodes} nodes, 8 pieces");
    }
    assert_eq!(count(64, 8, 1), 2 * (3 + 7));
    // With switches inside: up, each rank's part, the trees, each rank's part, all.
    let through_switches = InSwitch.steps(AllReduce, Layout::new(64, 8, 1).unwrap()).unwrap();
    assert_eq!(through_switches.count(), 2 + 2 * 3 + 2);
    let algorithms = [&DoubleBinaryTree as &dyn Algorithm, &InSwitch];
    for (algorithm, layout) in algorithms.iter().flat_map(|one| layouts().map(move |layout| (one, layout))) {
        let Some(steps) = algorithm.steps(AllReduce, layout) else { continue };
        let volumes = (0..layout.nodes()).map(|node| sent_out_of_node(&steps, layout, node));
        let (mut most, mut all) = (0.0_f64, 0.0);
        volumes.for_each(|volume| (most, all) = (most.max(volume), all + volume));
        assert!(most <= 2.0, "{} over {layout:?}: a node sends {most} n", algorithm.name());
        // Each half crosses each of the N − 1 edges of its tree twice.
        let edges = (layout.nodes() - 1) as f64;
        assert!((all - 2.0 * edges).abs() < 1e-9, "{} over {layout:?}: {all} n in all", algorithm.name());
    }
    // A node that adds in one tree, over the first half of the chunks, does not in the other.
    for nodes in 2..=64 {
        let steps = DoubleBinaryTree.steps(AllReduce, Layout::flat(nodes).unwrap()).unwrap();
        for node in 0..nodes as u32 {
            let added = steps.iter().flatten().filter(|one| one.to == node && one.effect == Effect::Add);
            let mut halves: Vec<usize> = added.map(|one| one.chunks.first).collect();
            halves.dedup();
            assert!(halves.len() <= 1, "node {node} of {nodes} adds in both trees");
        }
    }
}

#[test]
fn what_leaves_a_node_is_what_the_textbook_says() {
    let check = |algorithm: &dyn Algorithm, kind, volume: f64| {
        let layout = Layout::new(32, 8, 1).unwrap();
        let steps = algorithm.steps(kind, layout).unwrap();
        for node in 0..4 {
            let found = sent_out_of_node(&steps, layout, node);
            assert!(
                (found - volume).abs() < 1e-12,
                "{} {kind}: node {node} sends {found} n",
                algorithm.name()
            );
        }
    };
    // 4 nodes of 8. One rank of a ring sends out: 2 · 31/32 n. Of eight rings between nodes each moves 2 · 3/4 · n/8.
    check(&Ring, AllReduce, 2.0 * 31.0 / 32.0);
    check(&TwoLevel, AllReduce, 1.5);
    // The fabric adds: n once.
    check(&CollNet, AllReduce, 1.0);
    check(&InSwitchCollNet, AllReduce, 1.0);
    // 8 ranks have 24 of 32 parts for others, however they travel.
    check(&Direct, AllToAll, 6.0);
    check(&Pairwise, AllToAll, 6.0);
    check(&TwoLevel, AllToAll, 6.0);
}

#[test]
fn what_one_step_needs_is_made_alone() {
    // 32,766 steps of 16,384 transfers, two of them made.
    let steps = Ring.steps(AllReduce, Layout::new(16_384, 8, 1).unwrap()).unwrap();
    let counts: Vec<usize> = steps.phases().iter().map(|phase| phase.steps()).collect();
    assert_eq!(counts, [16_383, 16_383]);
    for phase in steps.phases() {
        let last = phase.transfers(16_382);
        assert_eq!(last.len(), 16_384);
        assert!(last.iter().all(|one| one.to == (one.from + 1) % 16_384 && one.chunks.count == 1));
    }
}

#[test]
fn small_lists_by_hand() {
    let check = |algorithm: &dyn Algorithm, kind, [p, k, m]: [usize; 3], expected: &str| {
        let steps = algorithm.steps(kind, Layout::new(p, k, m).unwrap()).unwrap();
        let expected: String = expected.lines().skip(1).map(|line| format!("{}\n", line.trim())).collect();
        assert_eq!(steps.to_string(), expected);
    };
    // The first half is summed on node 1, the second on node 0; then each copies it back.
    check(
        &DoubleBinaryTree,
        AllReduce,
        [2, 1, 1],
        "
        0→1 add 0  1→0 add 1
        1→0 copy 0  0→1 copy 1",
    );
    check(
        &HalvingDoubling,
        AllReduce,
        [4, 1, 1],
        "
        0→1 add 1,3  1→0 add 0,2  2→3 add 1,3  3→2 add 0,2
        0→2 add 2  1→3 add 3  2→0 add 0  3→1 add 1
        0→2 copy 0  1→3 copy 1  2→0 copy 2  3→1 copy 3
        0→1 copy 0,2  1→0 copy 1,3  2→3 copy 0,2  3→2 copy 1,3",
    );
    // Member 2 is the switch. Rank 0 gets the first two chunks of the sum, one for each tree, had there been more nodes.
    check(
        &InSwitch,
        AllReduce,
        [2, 2, 1],
        "
        0→2 add 0..4  1→2 add 0..4
        2→0 copy 0..2  2→1 copy 2..4
        0→2 copy 0..2  1→2 copy 2..4
        2→0 copy 0..4  2→1 copy 0..4",
    );
    // The second piece goes up while the first comes down.
    check(
        &InSwitch,
        Reduce,
        [2, 2, 2],
        "
        0→2 add 0  1→2 add 0
        0→2 add 1  1→2 add 1  2→0 copy 0
        2→0 copy 1",
    );
    // Chunk 4 s + d is what rank s has for rank d. Rank 1 collects for places 1: 1 and 3, and delivers to 3.
    check(
        &TwoLevel,
        AllToAll,
        [4, 2, 1],
        "
        0→1 copy 1,3  2→3 copy 9,11  1→0 copy 4,6  3→2 copy 12,14
        0→2 copy 2,6  1→3 copy 3,7  2→0 copy 8,12  3→1 copy 9,13",
    );
    check(
        &BinomialTree,
        Broadcast,
        [5, 1, 1],
        "
        0→4 copy 0
        0→2 copy 0
        0→1 copy 0  2→3 copy 0",
    );
}
