//! Turns parts into ops: who waits for whom, and what is allocated and freed.

use crate::part::{Half, Part, Role, Step};
use trainwright_spec::plan::{Piece, Recompute};
use trainwright_spec::program::{
    Allocation, Axis, Does, MemoryKind, Module, Op, Pass, Stream, Task, Value, Work,
};
use trainwright_spec::units::Bytes;

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
    /// An empty list; `overlap` says whether the software lets the tensor axis's `beside_next` collectives run beside a
    /// kernel.
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
            task: Task::None,
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

    /// The last op on the compute stream.
    pub fn last_kernel(&self) -> Option<usize> {
        self.last_kernel
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

    /// A run of a part's steps.
    fn steps(&mut self, pass: Pass, of: Module, steps: &[Step]) {
        // What makes operands stands before what moves them.
        let is_kernel = |step: &Step| matches!(step, Step::Kernel { does, .. } if *does != Does::Quantise);
        let first_kernel = steps.iter().position(is_kernel).unwrap_or(steps.len());
        for (index, step) in steps.iter().enumerate() {
            let next = steps.get(first_kernel).filter(|_| index < first_kernel);
            let moved = moved(pass, of, step, next);
            self.step(pass, of, step, moved);
        }
    }

    fn step(&mut self, pass: Pass, of: Module, step: &Step, moved: Value) {
        let task = |does| if of == Module::Unnamed { Task::None } else { Task::Module(of, does) };
        match *step {
            Step::Kernel { module, kernel, working, does, .. } => {
                let op = self.in_line(module, pass, Work::Compute(kernel));
                self.ops[op].task = task(does);
                self.allocate(op, MemoryKind::Buffers, working);
                self.free(op, MemoryKind::Buffers, working);
            }
            Step::Collective { module, kind, axis, bytes, beside_next, does } => {
                let work = Work::Collective { kind, axis, bytes };
                let after = self.last_kernel.iter().chain(&self.due).copied().collect();
                let op = self.push(module, pass, Stream::Layer, work, after);
                self.ops[op].task = task(does.unwrap_or(Does::Move(moved)));
                // What the stack leaves open is the tensor axis's; context schemes say themselves what overlaps.
                match beside_next && (self.overlap || axis != Axis::Tensor) {
                    true => self.beside.push(op),
                    false => self.due.push(op),
                }
            }
        }
    }

    /// Memory that an op takes when it starts.
    pub fn allocate(&mut self, op: usize, kind: MemoryKind, bytes: Bytes) {
        if bytes > Bytes::ZERO {
            self.ops[op].allocates.push(Allocation { kind, bytes });
        }
    }

    /// Memory that an op gives back when it ends.
    pub fn free(&mut self, op: usize, kind: MemoryKind, bytes: Bytes) {
        if bytes > Bytes::ZERO {
            self.ops[op].frees.push(Allocation { kind, bytes });
        }
    }

    /// Runs a part's forward steps and keeps `kept` bytes from the first of them on.
    fn run_forward(&mut self, pass: Pass, part: &Part, kept: Bytes) {
        let first = self.ops.len();
        self.steps(pass, part.module, &part.forward);
        self.allocate(first, MemoryKind::Activations, kept);
    }

    /// Runs a part's backward steps and gives back what forward kept, after the last of them.
    fn run_backward(&mut self, part: &Part) {
        self.steps(Pass::Backward, part.module, &part.backward);
        let last = self.ops.len().saturating_sub(1);
        self.free(last, MemoryKind::Activations, part.kept);
    }

    /// Runs the first half of a part's backward steps. What forward kept is given back at its end unless the second
    /// half needs it; then the output's gradient is held too.
    fn run_input(&mut self, part: &Part) {
        let first = self.ops.len();
        self.steps(Pass::Backward, part.module, &part.backward_half(Half::Input));
        match part.output_gradient() {
            Some(gradient) => self.allocate(first, MemoryKind::Activations, gradient),
            None => self.free(self.ops.len().saturating_sub(1), MemoryKind::Activations, part.kept),
        }
    }

    /// Forward of a list of parts.
    pub fn forward(&mut self, parts: &[Part], recompute: Recompute) {
        for (index, part) in parts.iter().enumerate() {
            self.run_forward(Pass::Forward, part, kept_in_forward(index, part, recompute));
        }
    }

    /// Backward of a list of parts: what was not kept is computed again first.
    pub fn backward(&mut self, parts: &[Part], recompute: Recompute) {
        self.back(parts, recompute, Self::run_backward);
    }

    /// The first half of backward of a list of parts, with what is computed again.
    pub fn input(&mut self, parts: &[Part], recompute: Recompute) {
        self.back(parts, recompute, Self::run_input);
    }

    /// The second half: the weights' gradients.
    pub fn weight(&mut self, parts: &[Part]) {
        for part in parts.iter().rev() {
            if let Some(gradient) = part.output_gradient() {
                self.steps(Pass::Backward, part.module, &part.backward_half(Half::Weight));
                self.free(self.ops.len() - 1, MemoryKind::Activations, part.kept + gradient);
            }
        }
    }

    fn back(&mut self, parts: &[Part], recompute: Recompute, run: impl Fn(&mut Self, &Part)) {
        if recompute == Recompute::Full {
            for (index, part) in parts.iter().enumerate() {
                let again = part.kept - kept_in_forward(index, part, recompute);
                self.run_forward(Pass::Recompute, part, again);
            }
        }
        let pieces = pieces_again(parts, recompute);
        for (index, part) in parts.iter().enumerate().rev() {
            for piece in pieces.iter().filter(|piece| piece.before == index) {
                let mut remade = piece.dropped;
                for run in &piece.runs {
                    self.run_forward(Pass::Recompute, &parts[*run], std::mem::take(&mut remade));
                }
            }
            run(self, part);
        }
    }
}

/// Which of a part's tensors a collective moves that stands before `first_kernel`, the part's first one, or behind it.
///
/// In backward, one that is not waited for by that kernel brings the input that the weight's gradient is made of.
fn moved(pass: Pass, of: Module, step: &Step, first_kernel: Option<&Step>) -> Value {
    let aside = matches!(step, Step::Collective { beside_next: true, .. });
    let makes_weight = |kernel: &Step| matches!(kernel, Step::Kernel { does: Does::WeightGradient, .. });
    match (pass, first_kernel) {
        _ if of == Module::Loss => Value::Statistic,
        (Pass::Forward | Pass::Recompute, Some(_)) => Value::Input,
        (Pass::Forward | Pass::Recompute, None) => Value::Output,
        (_, Some(kernel)) if aside || makes_weight(kernel) => Value::Input,
        (_, Some(_)) => Value::OutputGradient,
        (_, None) => Value::InputGradient,
    }
}

/// A piece of a list of parts that is computed again by itself.
#[derive(Debug)]
struct PieceAgain {
    /// The part before whose backward it is computed again.
    before: usize,
    /// The parts that run again.
    runs: Vec<usize>,
    /// Those and the parts that read what they make.
    members: Vec<usize>,
    /// What is made again.
    dropped: Bytes,
}

/// The pieces of a list of parts that a choice computes again one by one, in the order of forward.
///
/// A piece is made again just before the first backward that needs it: that of its last part, or, where it is read
/// by a part that runs again for another piece, when that one is made.
fn pieces_again(parts: &[Part], recompute: Recompute) -> Vec<PieceAgain> {
    let mut pieces: Vec<(Piece, PieceAgain)> = Vec::new();
    for (index, part) in parts.iter().enumerate() {
        for again in part.chosen(recompute.pieces()) {
            if again.role == Role::First {
                let none =
                    PieceAgain { before: 0, runs: Vec::new(), members: Vec::new(), dropped: Bytes::ZERO };
                pieces.push((again.piece, none));
            }
            let own = pieces.iter_mut().rev().find(|(piece, _)| *piece == again.piece);
            let (_, own) = own.expect("a piece begins with its first part");
            own.before = index;
            own.members.push(index);
            own.dropped += again.dropped;
            if again.role != Role::Reads {
                own.runs.push(index);
            }
        }
    }
    let mut pieces: Vec<PieceAgain> = pieces.into_iter().map(|(_, piece)| piece).collect();
    pieces.sort_by_key(|piece| piece.members[0]);
    // Later pieces read what earlier ones make, so one pass from the last to the first settles all.
    for later in (0..pieces.len()).rev() {
        for earlier in 0..later {
            if pieces[earlier].members.iter().any(|member| pieces[later].runs.contains(member)) {
                pieces[earlier].before = pieces[earlier].before.max(pieces[later].before);
            }
        }
    }
    pieces
}

/// What a part keeps from forward to backward: with full recompute only the block's input, which its first part
/// keeps; else all but what its pieces drop.
pub(crate) fn kept_in_forward(index: usize, part: &Part, recompute: Recompute) -> Bytes {
    match recompute {
        Recompute::None | Recompute::Selective | Recompute::Pieces(_) => {
            let dropped = part.chosen(recompute.pieces()).map(|again| again.dropped);
            dropped.fold(part.kept, |kept, dropped| kept - dropped)
        }
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

/// What a list of parts holds between the halves of backward: of each part with products its input and the gradient
/// of its output.
pub(crate) fn held_between(parts: &[Part]) -> Bytes {
    parts.iter().filter_map(|part| Some(part.kept + part.output_gradient()?)).sum()
}

/// The most that the first half of backward of a list of parts holds, temporaries included, of which forward kept a
/// part.
pub(crate) fn input_peak(parts: &[Part], recompute: Recompute) -> Bytes {
    let all: Bytes = parts.iter().map(|part| part.kept).sum();
    let mut held = if recompute == Recompute::Full { all } else { kept(parts, recompute) };
    let mut peak = held;
    let pieces = pieces_again(parts, recompute);
    for (index, part) in parts.iter().enumerate().rev() {
        let made = pieces.iter().filter(|piece| piece.before == index);
        held += made.map(|piece| piece.dropped).sum::<Bytes>();
        held += part.output_gradient().unwrap_or(Bytes::ZERO);
        peak = peak.max(held);
        held -= if part.output_gradient().is_none() { part.kept } else { Bytes::ZERO };
    }
    peak + largest_temporary(parts)
}

/// The largest temporary of a list of parts in forward and in the second half of backward.
pub(crate) fn temporary_beside_input(parts: &[Part]) -> Bytes {
    let weights = |part: &Part| part.backward_half(Half::Weight);
    let steps = parts.iter().flat_map(|part| part.forward.iter().copied().chain(weights(part)));
    steps.map(|step| temporary(&step)).fold(Bytes::ZERO, Bytes::max)
}

fn temporary(step: &Step) -> Bytes {
    if let Step::Kernel { working, .. } = step { *working } else { Bytes::ZERO }
}

/// The largest temporary of any step.
pub(crate) fn largest_temporary(parts: &[Part]) -> Bytes {
    let steps = parts.iter().flat_map(|part| part.forward.iter().chain(&part.backward));
    steps.map(temporary).fold(Bytes::ZERO, Bytes::max)
}
