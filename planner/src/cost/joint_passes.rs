//! What passes take at least that may run jointly with another one.
//!
//! Each of two joint passes is cut before every kernel that waits for an exchange of tokens between experts, and the runs take
//! turns on the compute stream:
//!
//! ```text
//! compute | a0 ── a0   b0 ── b0   a1   b1 …       ──  a collective between two kernels of a run: nothing else runs meanwhile
//! layer   |       dispatch a   dispatch b …
//! ```
//!
//! So the kernels of a run and the collectives between them follow each other, whatever the other pass does. Exchanges, and
//! collectives at the ends of a run, may be hidden by it.

use trainwright_spec::program::{Op, Segment, Stream, Work};
use trainwright_spec::units::Seconds;

/// Lets every collective take no time.
pub(super) fn hide_collectives(segment: &mut Segment) {
    segment.ops.iter_mut().filter(|op| is_collective(op)).for_each(hide);
}

/// Lets the collectives take no time that another pass may hide.
pub(super) fn hide_exchanges(segment: &mut Segment) {
    let stays = stay(&segment.ops);
    let ops = segment.ops.iter_mut().zip(stays);
    ops.filter(|(op, stays)| is_collective(op) && !stays).for_each(|(op, _)| hide(op));
}

fn hide(op: &mut Op) {
    op.work = Work::Process(Seconds::ZERO);
}

fn is_collective(op: &Op) -> bool {
    matches!(op.work, Work::Collective { .. })
}

/// Which ops are collectives between two kernels of a run: they wait for one of its kernels, and another one waits for them.
fn stay(ops: &[Op]) -> Vec<bool> {
    let is_exchange = |op: &Op| matches!(op.work, Work::Collective { axis, .. } if axis.is_of_experts());
    let is_kernel = |op: &Op| op.stream == Stream::Compute;
    let mut runs = Vec::with_capacity(ops.len());
    let mut run = 0;
    for op in ops {
        run += usize::from(is_kernel(op) && op.after.iter().any(|earlier| is_exchange(&ops[*earlier])));
        runs.push(run);
    }
    let mut stays = vec![false; ops.len()];
    for (at, op) in ops.iter().enumerate().filter(|(_, op)| is_kernel(op)) {
        for earlier in op.after.iter().filter(|earlier| runs[**earlier] == runs[at]) {
            let collective = &ops[*earlier];
            let mut before = collective.after.iter();
            stays[*earlier] = is_collective(collective)
                && !is_exchange(collective)
                && before.any(|kernel| is_kernel(&ops[*kernel]) && runs[*kernel] == runs[at]);
        }
    }
    stays
}

#[cfg(test)]
mod tests {
    use super::*;
    use trainwright_spec::collective::CollectiveKind;
    use trainwright_spec::program::{Axis, CollectiveCall, Pass, Task};
    use trainwright_spec::units::Bytes;

    fn op(axis: Option<Axis>, after: &[usize]) -> Op {
        let (stream, work) = match axis {
            None => (Stream::Compute, Work::Process(Seconds::new(1.0))),
            Some(axis) => {
                let (kind, call) = (CollectiveKind::AllReduce, CollectiveCall::Single);
                (Stream::Layer, Work::Collective { kind, axis, bytes: Bytes::new(1.0), call })
            }
        };
        Op {
            module: "op",
            layer: None,
            pass: Pass::Forward,
            stream,
            work,
            task: Task::None,
            after: after.to_vec(),
            allocates: Vec::new(),
            frees: Vec::new(),
        }
    }

    #[test]
    fn collectives_between_two_kernels_of_a_run_stay() {
        let (tensor, expert) = (Some(Axis::Tensor), Some(Axis::Expert));
        let ops = [
            op(tensor, &[]),     // 0: before the first kernel
            op(None, &[0]),      // 1
            op(tensor, &[1]),    // 2: between two kernels
            op(tensor, &[1, 2]), // 3: the same, behind the one before
            op(None, &[2, 3]),   // 4
            op(tensor, &[4]),    // 5: at the end of the first run
            op(expert, &[4, 5]), // 6: the exchange
            op(None, &[6]),      // 7: the second run
            op(tensor, &[4]),    // 8: waits for a kernel of the first run alone
            op(None, &[7, 8]),   // 9
            op(tensor, &[9]),    // 10: at the end
        ];
        let stays: Vec<usize> = (0..).zip(stay(&ops)).filter(|(_, stays)| *stays).map(|(at, _)| at).collect();
        assert_eq!(stays, [2, 3]);
        let mut segment = Segment { name: String::new(), ops: ops.to_vec() };
        hide_exchanges(&mut segment);
        let left = segment.ops.iter().filter(|op| is_collective(op)).count();
        hide_collectives(&mut segment);
        assert_eq!((left, segment.ops.iter().filter(|op| is_collective(op)).count()), (2, 0));
    }
}
