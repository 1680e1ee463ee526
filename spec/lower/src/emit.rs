//! Turns parts into ops, with their dependencies and the memory that they allocate and free.

use crate::part::Part;
use crate::recompute::{kept_in_forward, pieces_again, runs};
use crate::step::{Half, Step, StepWork};
use trainwright_spec::plan::Recompute;
use trainwright_spec::program::{
    Allocation, Axis, MemoryKind, Module, ModuleStep, Op, Pass, Stream, Task, Work,
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
    overlapped: Vec<usize>,
}

impl Emitter {
    /// An empty list; `overlap` says whether the software overlaps the tensor axis's `beside_next` collectives with a
    /// kernel.
    pub fn new(overlap: bool) -> Self {
        Self {
            ops: Vec::new(),
            layer: None,
            overlap,
            last_kernel: None,
            due: Vec::new(),
            overlapped: Vec::new(),
        }
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
        self.last_kernel.iter().chain(&self.due).chain(&self.overlapped).copied().collect()
    }

    /// The last op on the compute stream.
    pub fn last_kernel(&self) -> Option<usize> {
        self.last_kernel
    }

    /// Makes the next kernel wait for an op.
    pub fn wait_for(&mut self, op: usize) {
        self.due.push(op);
    }

    /// Whether something is due for which no kernel has waited, as there was none.
    pub fn waits(&self) -> bool {
        self.last_kernel.is_none() && !self.due.is_empty()
    }

    /// An op on the compute stream that waits for all that is due.
    pub fn in_line(&mut self, module: &'static str, pass: Pass, work: Work) -> usize {
        let after = std::mem::take(&mut self.due);
        self.due.append(&mut self.overlapped);
        let op = self.push(module, pass, Stream::Compute, work, after);
        self.last_kernel = Some(op);
        op
    }

    /// The steps of one run of a part. `run` says what the run keeps and releases.
    fn steps(&mut self, pass: Pass, run: ModuleStep, steps: &[Step]) {
        let recomputes = pass == Pass::Recompute;
        let refills = run.refills.filter(|_| recomputes);
        let run = ModuleStep { keeps: run.keeps || recomputes, refills, ..run };
        for (index, step) in steps.iter().enumerate() {
            let op = match step.work {
                StepWork::Kernel { kernel, working } => {
                    let op = self.in_line(step.module, pass, Work::Compute(kernel));
                    self.allocate(op, MemoryKind::Buffers, working);
                    self.free(op, MemoryKind::Buffers, working);
                    op
                }
                StepWork::Collective { kind, axis, bytes, call, beside_next } => {
                    let after = self.last_kernel.iter().chain(&self.due).copied().collect();
                    let work = Work::Collective { kind, axis, bytes, call };
                    let op = self.push(step.module, pass, Stream::Layer, work, after);
                    // The stack decides about the tensor axis; context schemes say themselves what overlaps.
                    match beside_next && (self.overlap || axis != Axis::Tensor) {
                        true => self.overlapped.push(op),
                        false => self.due.push(op),
                    }
                    op
                }
            };
            if run.module != Module::Unnamed {
                let (first, last) = (index == 0, index + 1 == steps.len());
                let releases = run.releases && last;
                let step = ModuleStep { does: step.does, first, last, releases, ..run };
                self.ops[op].task = Task::Module(step);
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
    fn run_forward(&mut self, pass: Pass, part: &Part, run: ModuleStep, kept: Bytes) {
        let first = self.ops.len();
        self.steps(pass, run, &part.forward);
        self.allocate(first, MemoryKind::Activations, kept);
    }

    /// Runs a part's backward steps and gives back what forward kept, after the last of them.
    fn run_backward(&mut self, part: &Part, run: ModuleStep) {
        self.steps(Pass::Backward, ModuleStep { releases: true, ..run }, &part.backward);
        let last = self.ops.len().saturating_sub(1);
        self.free(last, MemoryKind::Activations, part.kept);
    }

    /// Runs the first half of a part's backward steps. What forward kept is given back at its end unless the second
    /// half needs it; then the output's gradient is held too.
    fn run_input(&mut self, part: &Part, run: ModuleStep) {
        let first = self.ops.len();
        let gradient = part.output_gradient();
        let run = ModuleStep { releases: gradient.is_none(), ..run };
        self.steps(Pass::Backward, run, &part.backward_half(Half::Input));
        match gradient {
            Some(gradient) => self.allocate(first, MemoryKind::Activations, gradient),
            None => self.free(self.ops.len().saturating_sub(1), MemoryKind::Activations, part.kept),
        }
    }

    /// Forward of a list of parts.
    pub fn forward(&mut self, parts: &[Part], recompute: Recompute) {
        let runs = runs(parts, recompute);
        for (index, (part, run)) in parts.iter().zip(runs).enumerate() {
            self.run_forward(Pass::Forward, part, run, kept_in_forward(index, part, recompute));
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
    pub fn weight(&mut self, parts: &[Part], recompute: Recompute) {
        for (part, run) in parts.iter().zip(runs(parts, recompute)).rev() {
            if let Some(gradient) = part.output_gradient() {
                let run = ModuleStep { releases: true, ..run };
                self.steps(Pass::Backward, run, &part.backward_half(Half::Weight));
                self.free(self.ops.len() - 1, MemoryKind::Activations, part.kept + gradient);
            }
        }
    }

    fn back(&mut self, parts: &[Part], recompute: Recompute, back: impl Fn(&mut Self, &Part, ModuleStep)) {
        let runs = runs(parts, recompute);
        if recompute == Recompute::Full {
            for (index, part) in parts.iter().enumerate() {
                let again = part.kept - kept_in_forward(index, part, recompute);
                self.run_forward(Pass::Recompute, part, runs[index], again);
            }
        }
        let pieces = pieces_again(parts, recompute);
        for (index, part) in parts.iter().enumerate().rev() {
            for piece in pieces.iter().filter(|piece| piece.before == index) {
                let mut remade = piece.dropped;
                for run in &piece.runs {
                    let remade = std::mem::take(&mut remade);
                    self.run_forward(Pass::Recompute, &parts[*run], runs[*run], remade);
                }
            }
            back(self, part, runs[index]);
        }
    }
}
