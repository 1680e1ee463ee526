//! The engine by hand-made graphs.

use super::*;

fn takes(time: u64) -> Timing {
    Timing::Takes(Picoseconds(time))
}

fn ends(graph: &Graph) -> Vec<u64> {
    graph.run().unwrap().ended.iter().map(|time| time.0).collect()
}

#[test]
fn a_queue_runs_its_ops_in_turn_and_dependencies_hold_across_queues() {
    let mut graph = Graph::default();
    let (a, b) = (graph.add_queue(), graph.add_queue());
    graph.add(a, takes(3));
    let second = graph.add(a, takes(4));
    let other = graph.add(b, takes(5));
    let last = graph.add(b, takes(1));
    graph.wait(last, second);
    // a: 0-3, 3-7; b: 0-5, then waits for 7: 7-8.
    assert_eq!(ends(&graph), [3, 7, 5, 8]);
    assert_eq!(graph.run().unwrap().posted[last], Picoseconds(7));
    assert_eq!(graph.run().unwrap().started[other], Picoseconds(0));
}

#[test]
fn a_rendezvous_starts_with_its_last_member() {
    let mut graph = Graph::default();
    let (a, b) = (graph.add_queue(), graph.add_queue());
    let rendezvous = graph.add_rendezvous(2);
    graph.add(a, takes(5));
    let first = graph.add(a, Timing::Rendezvous(rendezvous, Picoseconds(2)));
    let second = graph.add(b, Timing::Rendezvous(rendezvous, Picoseconds(2)));
    assert_eq!(ends(&graph), [5, 7, 7]);
    let outcome = graph.run().unwrap();
    assert_eq!(outcome.posted[second], Picoseconds(0));
    assert_eq!(outcome.started[first], Picoseconds(5));
}

#[test]
fn a_receive_ends_with_its_send_but_not_before_it_is_posted() {
    let check = |send_after: u64, receive_after: u64, started: u64, ended: u64| {
        let mut graph = Graph::default();
        let (a, b) = (graph.add_queue(), graph.add_queue());
        graph.add(a, takes(send_after));
        let send = graph.add(a, takes(10));
        graph.add(b, takes(receive_after));
        let receive = graph.add(b, Timing::EndsWith(send));
        let outcome = graph.run().unwrap();
        assert_eq!((outcome.started[receive].0, outcome.ended[receive].0), (started, ended));
    };
    check(5, 0, 5, 15); // posted early: waits for the transfer to start, ends with it
    check(0, 4, 4, 10); // posted during the transfer
    check(0, 30, 30, 30); // posted long after it
}

#[test]
fn a_run_ends_when_it_is_stopped() {
    let mut graph = Graph::default();
    let queue = graph.add_queue();
    for _ in 0..4 * EVENTS_BETWEEN_CHECKS {
        graph.add(queue, takes(1));
    }
    let asked = std::sync::atomic::AtomicUsize::new(0);
    let stop_at = |check: usize| {
        asked.store(0, std::sync::atomic::Ordering::Relaxed);
        let outcome =
            graph.run_until(&|| 1 + asked.fetch_add(1, std::sync::atomic::Ordering::Relaxed) == check);
        (outcome, asked.load(std::sync::atomic::Ordering::Relaxed))
    };
    assert_eq!(stop_at(1), (Err(Halt::Stopped), 1));
    assert_eq!(stop_at(3), (Err(Halt::Stopped), 3));
    let whole = graph.run().unwrap();
    assert_eq!(whole.ended.last(), Some(&Picoseconds(4 * EVENTS_BETWEEN_CHECKS as u64)));
    assert_eq!(stop_at(5), (Ok(whole), 4));
}

#[test]
fn a_cycle_is_a_deadlock_with_its_first_op() {
    let mut graph = Graph::default();
    let (a, b) = (graph.add_queue(), graph.add_queue());
    graph.add(a, takes(1));
    let first = graph.add(a, takes(1));
    let second = graph.add(b, takes(1));
    graph.wait(first, second);
    graph.wait(second, first);
    assert_eq!(graph.run().unwrap_err(), Deadlock { stuck: 2, ops: 3, first });
}

/// Adds an op on a separate queue that does something with a device.
fn add_loaded(graph: &mut Graph, timing: Timing, device: u32, load: Load) -> OpId {
    let queue = graph.add_queue();
    let op = graph.add(queue, timing);
    let uses = graph.add_uses(&[Use { device, load, thread: None }]);
    graph.set_uses(op, uses);
    op
}

#[test]
fn a_kernel_goes_on_at_the_rate_that_communication_leaves() {
    let mut graph = Graph::default();
    let kernel = Load { multiprocessor_bound: 1.0, ..Load::default() };
    let half = Load::communication(Traffic { multiprocessors: 0.5, ..Traffic::default() });
    add_loaded(&mut graph, takes(100), 0, kernel);
    let first = add_loaded(&mut graph, takes(20), 0, half);
    let second = add_loaded(&mut graph, takes(20), 0, half);
    graph.wait(second, first);
    add_loaded(&mut graph, takes(100), 1, kernel);
    // At half the rate until 40, when 80 are left.
    assert_eq!(ends(&graph), [120, 20, 40, 100]);
}

#[test]
fn a_rendezvous_is_as_slow_as_its_slowest_member() {
    let mut graph = Graph::default();
    let link = Load::communication(Traffic { inside: 1.0, ..Traffic::default() });
    let rendezvous = graph.add_rendezvous(2);
    for device in [0, 1] {
        add_loaded(&mut graph, Timing::Rendezvous(rendezvous, Picoseconds(20)), device, link);
    }
    add_loaded(&mut graph, takes(10), 1, link);
    add_loaded(&mut graph, takes(5), 0, Load::default());
    // On device 1 both get half of the link until 20, when the rendezvous has done 10 of 20 on both devices.
    assert_eq!(ends(&graph), [30, 30, 20, 5]);
}

#[test]
fn what_follows_a_rendezvous_is_slowed_from_its_end_on() {
    let mut graph = Graph::default();
    let half = Load { cores: 0.5, ..Load::default() };
    let rendezvous = graph.add_rendezvous(2);
    let uses = graph.add_uses(&[Use { device: 0, load: half, thread: None }]);
    for _ in 0..2 {
        let queue = graph.add_queue();
        for timing in [Timing::Rendezvous(rendezvous, Picoseconds(20)), takes(20)] {
            let op = graph.add(queue, timing);
            graph.set_uses(op, uses);
        }
    }
    add_loaded(&mut graph, takes(100), 0, half);
    // Three threads of two cores until 60: 20 take 30. Of the third one's 100 another 60 are left.
    assert_eq!(ends(&graph), [30, 60, 30, 60, 120]);
}
