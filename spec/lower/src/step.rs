//! The steps of a part: kernels and collectives, each with what it makes or moves.

use trainwright_spec::collective::CollectiveKind;
use trainwright_spec::precision::Precision;
use trainwright_spec::program::{Access, Axis, CollectiveCall, Does, Kernel};
use trainwright_spec::units::Bytes;

/// One op of a part.
#[derive(Debug, Clone, Copy)]
pub(crate) struct Step {
    /// Name of the span.
    pub module: &'static str,
    /// What it makes or moves.
    pub does: Does,
    /// The half of backward to which it belongs.
    pub half: Half,
    /// The kernel or the collective.
    pub work: StepWork,
}

/// What a step runs.
#[derive(Debug, Clone, Copy)]
pub(crate) enum StepWork {
    /// A kernel call.
    Kernel {
        /// The call.
        kernel: Kernel,
        /// Memory that lives while the kernel runs and no longer.
        working: Bytes,
    },
    /// A collective inside the layer.
    Collective {
        /// Which operation.
        kind: CollectiveKind,
        /// Over which axis.
        axis: Axis,
        /// Size of the whole tensor.
        bytes: Bytes,
        /// What performs it.
        call: CollectiveCall,
        /// Whether the next kernel need not wait for it, only the one after that.
        beside_next: bool,
    },
}

/// The halves of a backward pass, which some schedules run apart.
///
/// The matrix products that make weights' gradients, and what adds those up, are the second half. All else is the
/// first, also the gradients of norms, biases and the embedding: they take little time, and read what only lives while
/// the first half runs.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum Half {
    /// Leads to the gradient of the input.
    Input,
    /// Makes the gradients of weights.
    Weight,
}

impl Step {
    /// A call of a kernel that holds `working` bytes while it runs.
    pub fn kernel(module: &'static str, kernel: Kernel, working: Bytes) -> Step {
        let work = StepWork::Kernel { kernel, working };
        Step { module, does: Does::Run, half: Half::Input, work }
    }

    /// A kernel that goes through memory element by element.
    pub fn streaming(module: &'static str, read: Bytes, written: Bytes) -> Step {
        Step::kernel(module, Kernel::Streaming { access: Access::Elementwise, read, written }, written)
    }

    /// A kernel that sums along a dim.
    pub fn reduction(module: &'static str, read: Bytes, written: Bytes) -> Step {
        Step::kernel(module, Kernel::Streaming { access: Access::Reduction, read, written }, written)
    }

    /// A matrix product of activations: (m × k) · (k × n), `count` times.
    pub fn gemm(module: &'static str, count: usize, [m, n, k]: [usize; 3], precision: Precision) -> Step {
        let working = precision.storage_bytes() * (count * m * n) as f64;
        Step::kernel(module, Kernel::Gemm { count, m, n, k, precision, adds_to: None }, working)
    }

    /// The same product on operands of another precision, with the same temporary memory.
    pub fn in_precision(mut self, other: Precision) -> Step {
        if let StepWork::Kernel { kernel: Kernel::Gemm { precision, .. }, .. } = &mut self.work {
            *precision = other;
        }
        self
    }

    /// A collective for which the next kernel waits.
    pub fn collective(
        module: &'static str,
        kind: CollectiveKind,
        axis: Axis,
        bytes: Bytes,
        does: Does,
    ) -> Step {
        let call = CollectiveCall::Single;
        let work = StepWork::Collective { kind, axis, bytes, call, beside_next: false };
        Step { module, does, half: Half::Input, work }
    }

    /// The same collective, for which the next kernel need not wait if `beside_next`.
    pub fn beside(mut self, beside_next: bool) -> Step {
        if let StepWork::Collective { beside_next: beside, .. } = &mut self.work {
            *beside = beside_next;
        }
        self
    }

    /// The same collective, performed by `call`.
    pub fn called(mut self, call: CollectiveCall) -> Step {
        if let StepWork::Collective { call: by, .. } = &mut self.work {
            *by = call;
        }
        self
    }

    /// The same step with this purpose.
    pub fn doing(self, does: Does) -> Step {
        Step { does, ..self }
    }

    /// The same kernel that goes through memory, with this much more (or less, below zero) read and written; other steps stay
    /// as they are. The temporary memory stays: the caller counts what is written more as kept.
    pub fn moving(mut self, more_read: Bytes, more_written: Bytes) -> Step {
        if let StepWork::Kernel { kernel: Kernel::Streaming { read, written, .. }, .. } = &mut self.work {
            *read += more_read;
            *written += more_written;
        }
        self
    }

    /// The same kernel without temporary memory.
    pub fn in_place(self) -> Step {
        self.with_working(|_| Bytes::ZERO)
    }

    /// The same product, added to a result with elements of this size instead of written to temporary memory.
    pub fn added_to(mut self, element: Bytes) -> Step {
        if let StepWork::Kernel { kernel: Kernel::Gemm { adds_to, .. }, .. } = &mut self.work {
            *adds_to = Some(element);
        }
        self.in_place()
    }

    /// The same kernel with more temporary memory; collectives stay as they are.
    pub fn holding(self, more: Bytes) -> Step {
        self.with_working(|working| working + more)
    }

    fn with_working(mut self, change: impl Fn(Bytes) -> Bytes) -> Step {
        if let StepWork::Kernel { working, .. } = &mut self.work {
            *working = change(*working);
        }
        self
    }

    /// Whether it is a kernel.
    pub fn is_kernel(&self) -> bool {
        matches!(self.work, StepWork::Kernel { .. })
    }

    /// Memory that lives while the step runs and no longer.
    pub fn working(&self) -> Bytes {
        match self.work {
            StepWork::Kernel { working, .. } => working,
            StepWork::Collective { .. } => Bytes::ZERO,
        }
    }

    /// Whether it is a collective beside which the next kernel may run.
    pub fn is_beside_next(&self) -> bool {
        matches!(self.work, StepWork::Collective { beside_next: true, .. })
    }
}
