//! Ops of a rank that no outside node interrupts, joined.

use super::node::{Inside, Node, NodeAction, NodeId};
use crate::engine::{Graph, Load, Mixture, OpId, Timing, Use};
use std::ops::Range;
use trainwright_spec::program::{Axis, Stream};
use trainwright_spec::units::Picoseconds;
use trainwright_timeline::timeline::Activity;

/// A run of a segment whose two streams slow each other, and when each of its nodes starts and ends. Most stages of a
/// pipeline have the same.
pub(crate) struct SlowedRun {
    first: usize,
    nodes: Vec<Node>,
    windows: Vec<Range<Picoseconds>>,
}

/// A segment, cut into runs that can be joined and nodes that stay as they are.
struct Parts {
    parts: Vec<Part>,
    /// Whether each node stays as it is.
    stays: Vec<bool>,
}

enum Part {
    Single(usize),
    /// Nodes, of which those that are not local stay as they are, and when each of the others starts and ends, counted from the
    /// run's start.
    Run(Range<usize>, Vec<Range<Picoseconds>>),
}

/// Joins runs of local nodes on the compute and layer streams into one node between the points where a node that stays waits for
/// them or they wait for one.
///
/// Inside a run every start is fixed relative to the run's, because no outside node delays it; what slows a joined
/// node slows all that is in it evenly. That holds if the run begins with a kernel, all its collectives wait for something
/// in it, and both streams are idle when it begins. The nodes of other runs stay as they are: those of a stage with only the
/// embedding, whose activations are summed behind its last kernel. Then the runs of the rank are cut where they start and stop to
/// use the layer stream too, since they may have to wait for it:
///
/// ```text
/// compute |  e    nn  qqqq      mmmm                  op  stream   after        node  stream   after
/// layer   |   rrrrrr      aaaaaa                      e   compute  -            0     compute  -
///                                                     r   layer    e            1     layer    0
///            └ embedding's stage                      n   compute  -            2     compute  -
///                 └ another stage of the rank         a   layer    n, q         3     compute  2, and what the layer stream did
/// ```
///
/// `None` if the times would not be the same.
pub(crate) fn joined(templates: &[Vec<Node>], slowed_runs: &mut Vec<SlowedRun>) -> Option<Vec<Vec<Node>>> {
    let parts: Vec<Parts> = templates.iter().map(|nodes| Parts::of(nodes, slowed_runs)).collect();
    let nodes = || templates.iter().flatten();
    let stays = parts.iter().flat_map(|parts| &parts.stays);
    let all_joined = nodes().zip(stays).all(|(node, stays)| !stays || !is_local(node));
    // Of a collective with others, the place among the rank's own is not known once these are joined.
    let alone = nodes().all(|node| node.stream != Stream::Layer || is_local(node));
    if !all_joined && !alone {
        return None;
    }
    templates.iter().zip(&parts).map(|(nodes, parts)| parts.join(nodes, !all_joined)).collect()
}

impl Parts {
    fn of(nodes: &[Node], slowed_runs: &mut Vec<SlowedRun>) -> Parts {
        let mut stays: Vec<bool> = nodes.iter().map(|node| !is_local(node)).collect();
        let mut parts = Vec::new();
        let mut first = 0;
        while first < nodes.len() {
            if stays[first] || nodes[first].stream != Stream::Compute {
                stays[first] = true;
                parts.push(Part::Single(first));
                first += 1;
                continue;
            }
            let breaks_run = |node: &Node| match is_local(node) {
                true => node.after.iter().any(|earlier| stays[usize::from(*earlier)]),
                false => node.stream == Stream::Compute,
            };
            let length = nodes[first + 1..].iter().take_while(|node| !breaks_run(node)).count();
            let run = first..first + 1 + length;
            first = run.end;
            match local_windows(nodes, run.clone(), slowed_runs) {
                Some(windows) => parts.push(Part::Run(run, windows)),
                None => {
                    stays[run.clone()].fill(true);
                    parts.extend(run.map(Part::Single));
                }
            }
        }
        Parts { parts, stays }
    }

    /// The nodes that are left. If `shares_layer`, other nodes of the rank are on the layer stream.
    fn join(&self, nodes: &[Node], shares_layer: bool) -> Option<Vec<Node>> {
        let mut watched = vec![false; nodes.len()];
        for (node, _) in nodes.iter().zip(&self.stays).filter(|(_, stays)| **stays) {
            node.after.iter().for_each(|earlier| watched[usize::from(*earlier)] = true);
        }
        let mut joined: Vec<Node> = Vec::new();
        // The joined node that ends with each watched node, and the copy of each that stays.
        let mut place = vec![NodeId(0); nodes.len()];
        for part in &self.parts {
            let (run, windows) = match part {
                Part::Single(index) => {
                    keep(nodes, *index, &mut place, &mut joined);
                    continue;
                }
                Part::Run(run, windows) => (run.clone(), windows),
            };
            let first = run.start;
            let exchanges = match shares_layer {
                true => exchanges(&nodes[run.clone()], windows)?,
                false => None,
            };
            let local = || nodes[run.clone()].iter().zip(windows).filter(|(node, _)| is_local(node));
            let total = windows.iter().map(|window| window.end).max().unwrap_or(Picoseconds::ZERO);
            let mut cuts: Vec<(Picoseconds, usize)> = run
                .clone()
                .filter(|index| is_local(&nodes[*index]) && watched[*index])
                .map(|index| (windows[index - first].end, index))
                .collect();
            cuts.push((total, run.end));
            let ends = exchanges.iter().flat_map(|exchanges| [exchanges.start, exchanges.end]);
            cuts.extend(ends.filter(|end| *end < total).map(|end| (end, run.end)));
            cuts.sort_unstable();
            let outside = nodes[first].after.iter().filter(|earlier| self.stays[usize::from(**earlier)]);
            let mut after: Vec<NodeId> = outside.map(|earlier| place[*earlier]).collect();
            let mut from = Picoseconds::ZERO;
            for (time, index) in cuts {
                if index < run.end {
                    place[index] = NodeId(joined.len() as u32);
                }
                let (inside, load, evenness) = inside(local(), from..time);
                let within = |all: &Range<Picoseconds>| all.start <= from && time <= all.end;
                joined.push(Node {
                    stream: Stream::Compute,
                    action: NodeAction::Local(time - from),
                    load,
                    after: std::mem::take(&mut after),
                    op: first as u32,
                    activity: Activity::Compute,
                    inside: Some(inside),
                    holds_layer: exchanges.as_ref().is_some_and(within),
                    evenness,
                });
                from = time;
            }
            for index in run.clone().filter(|index| !is_local(&nodes[*index])) {
                keep(nodes, index, &mut place, &mut joined);
            }
        }
        Some(joined)
    }
}

/// From the start of a run's first collective to the end of its last one, if it has any. What delays the first must delay all
/// that is behind it: `None` if a kernel runs meanwhile, or a collective takes no time, so that times do not tell what is behind it.
#[expect(clippy::option_option, reason = "no answer, or the answer that there is none")]
fn exchanges(run: &[Node], windows: &[Range<Picoseconds>]) -> Option<Option<Range<Picoseconds>>> {
    let on = |stream: Stream| {
        let nodes = run.iter().zip(windows).filter(move |(node, _)| is_local(node) && node.stream == stream);
        nodes.map(|(_, window)| window)
    };
    let Some(first) = on(Stream::Layer).min_by_key(|window| window.start) else { return Some(None) };
    if on(Stream::Layer).any(|window| window.is_empty()) {
        return None;
    }
    let end = on(Stream::Layer).map(|window| window.end).max()?;
    let is_meanwhile = |kernel: &Range<Picoseconds>| kernel.start < first.end && kernel.end > first.start;
    let alone = !on(Stream::Compute).any(is_meanwhile);
    alone.then_some(Some(first.start..end))
}

/// Whether a node can be joined with others.
fn is_local(node: &Node) -> bool {
    let is_inside = match node.stream {
        Stream::Compute => node.activity == Activity::Compute,
        stream => stream == Stream::Layer,
    };
    matches!(node.action, NodeAction::Local(_)) && is_inside
}

/// Takes an outside node over as it is.
fn keep(nodes: &[Node], index: usize, place: &mut [NodeId], joined: &mut Vec<Node>) {
    let after = nodes[index].after.iter().map(|earlier| place[*earlier]).collect();
    place[index] = NodeId(joined.len() as u32);
    joined.push(Node { after, ..nodes[index].clone() });
}

/// How the local nodes of a run, each with the window in which it runs, spend `window` of the run's time; their load of the
/// GPU, and their evenness. While no kernel runs, a collective does: what else would the kernels wait for?
fn inside<'a>(
    nodes: impl Iterator<Item = (&'a Node, &'a Range<Picoseconds>)>,
    window: Range<Picoseconds>,
) -> (Inside, Load, f32) {
    let (mut sum, mut squares) = (0.0, 0.0);
    let (mut compute, mut communication) = (Picoseconds::ZERO, Picoseconds::ZERO);
    let mut axis = None;
    let mut mixture = Mixture::default();
    for (node, ran) in nodes {
        let (start, end) = (ran.start.max(window.start), ran.end.min(window.end));
        if start < end {
            let length = (end - start).0 as f64;
            sum += length;
            squares += length * length;
            match node.activity {
                Activity::Compute => compute += end - start,
                Activity::Communication(over) => {
                    communication += end - start;
                    axis = axis.or(Some(over));
                }
                Activity::Copy(_) | Activity::Host | Activity::Wait => communication += end - start,
            }
            mixture.add(&node.load, (end - start).0 as f64);
        }
    }
    let time = window.end - window.start;
    let exposed = time - compute;
    let overlapped = Picoseconds(communication.0.saturating_sub(exposed.0)).min(compute);
    let axis = axis.unwrap_or(Axis::Tensor);
    let evenness = if sum > 0.0 { squares.sqrt() / sum } else { 1.0 };
    (Inside { compute, overlapped, axis }, mixture.over(time.0 as f64), evenness as f32)
}

/// When each local node of a run starts and ends, counted from the run's start; `None` if the layer stream could
/// start before the run or ends last.
fn local_windows(
    nodes: &[Node],
    run: Range<usize>,
    slowed_runs: &mut Vec<SlowedRun>,
) -> Option<Vec<Range<Picoseconds>>> {
    let mut windows = vec![Picoseconds::ZERO..Picoseconds::ZERO; run.len()];
    // When each stream has done what was put on it, and whether the two ever work at once.
    let (mut compute, mut tensor, mut overlap) = (Picoseconds::ZERO, Picoseconds::ZERO, false);
    for index in run.clone().filter(|index| is_local(&nodes[*index])) {
        let node = &nodes[index];
        let NodeAction::Local(time) = node.action else { continue };
        let mut waited = node.after.iter().filter(|earlier| run.contains(&usize::from(**earlier))).peekable();
        if node.stream == Stream::Layer && waited.peek().is_none() {
            return None;
        }
        let (stream, other) = match node.stream {
            Stream::Compute => (&mut compute, tensor),
            _ => (&mut tensor, compute),
        };
        let ready =
            waited.map(|earlier| windows[usize::from(*earlier) - run.start].end).fold(*stream, Ord::max);
        overlap |= ready < other && time > Picoseconds::ZERO;
        *stream = ready + time;
        windows[index - run.start] = ready..*stream;
    }
    if overlap {
        // Of nodes that are not local only the positions matter.
        let same = |one: &Node, other: &Node| match is_local(one) {
            true => one == other,
            false => !is_local(other),
        };
        let known = slowed_runs.iter().rev().find(|known| {
            known.first == run.start
                && known.nodes.len() == run.len()
                && known.nodes.iter().zip(&nodes[run.clone()]).all(|(one, other)| same(one, other))
        });
        windows = match known {
            Some(known) => known.windows.clone(),
            None => {
                let windows = slowed_windows(nodes, run.clone());
                let nodes = nodes[run.clone()].to_vec();
                slowed_runs.push(SlowedRun { first: run.start, nodes, windows: windows.clone() });
                windows
            }
        };
    }
    let last = |stream| {
        let on_stream =
            run.clone().filter(|index| is_local(&nodes[*index]) && nodes[*index].stream == stream);
        on_stream.map(|index| windows[index - run.start].end).max().unwrap_or(Picoseconds::ZERO)
    };
    (last(Stream::Layer) <= last(Stream::Compute)).then_some(windows)
}

/// The windows of a run whose two streams slow each other.
fn slowed_windows(nodes: &[Node], run: Range<usize>) -> Vec<Range<Picoseconds>> {
    let mut graph = Graph::with_capacity(run.len());
    let queues = [graph.add_queue(), graph.add_queue()];
    let mut ops = vec![None; run.len()];
    for index in run.clone().filter(|index| is_local(&nodes[*index])) {
        let node = &nodes[index];
        let NodeAction::Local(time) = node.action else { continue };
        let op = graph.add(queues[usize::from(node.stream != Stream::Compute)], Timing::Takes(time));
        let uses = graph.add_uses(&[Use { device: 0, load: node.load, thread: None }]);
        graph.set_uses(op, uses);
        let earlier = node.after.iter().filter_map(|earlier| usize::from(*earlier).checked_sub(run.start));
        earlier.filter_map(|earlier| ops[earlier]).for_each(|earlier| graph.wait(op, earlier));
        ops[index - run.start] = Some(op);
    }
    let outcome = graph.run().expect("ops wait for earlier ones only");
    let window = |op: &Option<OpId>| {
        op.map_or(Picoseconds::ZERO..Picoseconds::ZERO, |op| outcome.started[op]..outcome.ended[op])
    };
    ops.iter().map(window).collect()
}
