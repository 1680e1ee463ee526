//! Turns parts into ops: who waits for whom, and what is allocated and freed.

use super::part::{Part, Step};
use crate::plan::Recompute;
use crate::program::{Allocation, MemoryKind, Op, Pass, Stream, Work};
use crate::units::Bytes;

/// An op list under construction.
///
/// Kernels follow each other on the compute stream. A kernel waits for the collectives before it, except that one
/// marked `beside_next` is waited for by the kernel after the next.
pub(crate) struct Emitter {
    /// What has been emitted.
    pub ops: Vec<Op>,
    /// The block that ops belong to.
    pub layer: Option<usize>,
    overlap: bool,
    last_kernel: Option<usize>,
    due: Vec<usize>,
    beside: Vec<usize>,
}

impl Emitter {
    /// An empty list; `overlap` says whether the software lets `beside_next` collectives run beside a kernel.
    pub fn new(overlap: bool) -> Self {
        Self { ops: Vec::new(), layer: None, overlap, last_kernel: None, due: Vec::new(), beside: Vec::new() }
    }

    /// Adds an op that waits for `after`.
    pub fn push(
        &mut self,
        module: &'static str,
        pass: Pass,
        stream: Stream,
        work: Work,
        after: Vec<usize>,
    ) -> usize {
        self.ops.push(Op {
            module,
            layer: self.layer,
            pass,
            stream,
            work,
            after,
            allocates: Vec::new(),
            frees: Vec::new(),
        });
        self.ops.len() - 1
    }

    /// What the next op must wait for if it follows all that has been emitted.
    pub fn frontier(&self) -> Vec<usize> {
        self.last_kernel.iter().chain(&self.due).chain(&self.beside).copied().collect()
    }

    /// Makes the next kernel wait for an op.
    pub fn wait_for(&mut self, op: usize) {
        self.due.push(op);
    }

    /// An op on the compute stream that waits for all that is due.
    pub fn in_line(&mut self, module: &'static str, pass: Pass, work: Work) -> usize {
        let after = std::mem::take(&mut self.due);
        self.due.append(&mut self.beside);
        let op = self.push(module, pass, Stream::Compute, work, after);
        self.last_kernel = Some(op);
        op
    }

    fn step(&mut self, pass: Pass, step: &Step) {
        match *step {
            Step::Kernel { module, kernel, working } => {
                let op = self.in_line(module, pass, Work::Compute(kernel));
                self.allocate(op, MemoryKind::Buffers, working);
                self.free(op, MemoryKind::Buffers, working);
            }
            Step::Collective { module, kind, axis, bytes, beside_next } => {
                let work = Work::Collective { kind, axis, bytes };
                let after = self.last_kernel.iter().chain(&self.due).copied().collect();
                let op = self.push(module, pass, Stream::Layer, work, after);
                match beside_next && self.overlap {
                    true => self.beside.push(op),
                    false => self.due.push(op),
                }
            }
        }
    }

    /// Takes memory when an op starts.
    pub fn allocate(&mut self, op: usize, kind: MemoryKind, bytes: Bytes) {
        if bytes > Bytes::ZERO {
            self.ops[op].allocates.push(Allocation { kind, bytes });
        }
    }

    /// Gives memory back when an op ends.
    pub fn free(&mut self, op: usize, kind: MemoryKind, bytes: Bytes) {
        if bytes > Bytes::ZERO {
            self.ops[op].frees.push(Allocation { kind, bytes });
        }
    }

    /// Runs a part's forward steps and keeps `kept` bytes from the first of them on.
    fn run_forward(&mut self, pass: Pass, part: &Part, kept: Bytes) {
        let first = self.ops.len();
        part.forward.iter().for_each(|step| self.step(pass, step));
        self.allocate(first, MemoryKind::Activations, kept);
    }

    /// Runs a part's backward steps and gives back what forward kept, after the last of them.
    fn run_backward(&mut self, part: &Part) {
        part.backward.iter().for_each(|step| self.step(Pass::Backward, step));
        let last = self.ops.len().saturating_sub(1);
        self.free(last, MemoryKind::Activations, part.kept);
    }

    /// Forward of a list of parts.
    pub fn forward(&mut self, parts: &[Part], recompute: Recompute) {
        for (index, part) in parts.iter().enumerate() {
            self.run_forward(Pass::Forward, part, kept_in_forward(index, part, recompute));
        }
    }

    /// Backward of a list of parts: what was not kept is computed again first.
    pub fn backward(&mut self, parts: &[Part], recompute: Recompute) {
        if recompute == Recompute::Full {
            for (index, part) in parts.iter().enumerate() {
                let again = part.kept - kept_in_forward(index, part, recompute);
                self.run_forward(Pass::Recompute, part, again);
            }
        }
        for part in parts.iter().rev() {
            if let (Recompute::Selective, Some(dropped)) = (recompute, part.core) {
                self.run_forward(Pass::Recompute, part, dropped);
            }
            self.run_backward(part);
        }
    }
}

/// What a part keeps from forward to backward: with full recompute only the block's input, which its first part
/// keeps; with selective recompute all but the attention core's inner tensors.
pub(crate) fn kept_in_forward(index: usize, part: &Part, recompute: Recompute) -> Bytes {
    match recompute {
        Recompute::None => part.kept,
        Recompute::Selective => part.kept - part.core.unwrap_or(Bytes::ZERO),
        Recompute::Full if index == 0 => part.kept,
        Recompute::Full => Bytes::ZERO,
    }
}

/// What a list of parts keeps from forward to backward.
pub(crate) fn kept(parts: &[Part], recompute: Recompute) -> Bytes {
    parts.iter().enumerate().map(|(index, part)| kept_in_forward(index, part, recompute)).sum()
}

/// The most that backward of a list of parts holds at once beyond what forward kept: what is computed again, and
/// the largest temporary.
pub(crate) fn backward_peak(parts: &[Part], recompute: Recompute) -> Bytes {
    let all: Bytes = parts.iter().map(|part| part.kept).sum();
    all - kept(parts, recompute) + largest_temporary(parts)
}

/// The largest temporary of any step.
pub(crate) fn largest_temporary(parts: &[Part]) -> Bytes {
    let steps = parts.iter().flat_map(|part| part.forward.iter().chain(&part.backward));
    steps
        .map(|step| if let Step::Kernel { working, .. } = step { *working } else { Bytes::ZERO })
        .fold(Bytes::ZERO, Bytes::max)
}
