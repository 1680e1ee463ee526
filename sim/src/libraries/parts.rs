//! A formula's coefficients, and the parts of the time that it gives.

use trainwright_spec::units::Seconds;

/// A coefficient of a formula, and the range that is physical.
#[derive(Debug, Clone, Copy, PartialEq)]
pub struct Coefficient {
    /// Name in the catalog's files.
    pub name: &'static str,
    /// Where a fit starts.
    pub start: f64,
    /// The least value.
    pub low: f64,
    /// The largest value.
    pub high: f64,
    /// Meaning, with its unit.
    pub meaning: &'static str,
}

/// A family of kernels.
#[derive(Debug)]
pub struct Family {
    /// Name in the catalog's files.
    pub name: &'static str,
    /// For people.
    pub title: &'static str,
    /// What its formula takes, in this order.
    pub coefficients: &'static [Coefficient],
}

/// The parts of a kernel's time.
#[derive(Debug, Clone, Copy, PartialEq, Default)]
pub struct Parts {
    /// Launch, first and last steps: what a call with nothing to do takes.
    pub latency: Seconds,
    /// On the matrix units.
    pub arithmetic: Seconds,
    /// Through memory.
    pub memory: Seconds,
    /// Over the links.
    pub links: Seconds,
    /// For each tile, row or token, hidden by nothing.
    pub overhead: Seconds,
}

/// The largest part of a kernel's time.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Bound {
    /// Launch and fixed steps.
    Latency,
    /// The matrix units.
    Arithmetic,
    /// The memory.
    Memory,
    /// The links.
    Links,
    /// Work for each tile, row or token.
    Overhead,
}

impl Bound {
    /// For people.
    pub fn name(self) -> &'static str {
        match self {
            Bound::Latency => "latency",
            Bound::Arithmetic => "compute",
            Bound::Memory => "memory",
            Bound::Links => "links",
            Bound::Overhead => "overhead of tiles",
        }
    }
}

impl Parts {
    /// T = L + √(A² + M²) + N + O: arithmetic and memory overlap in part, everything else does not overlap.
    ///
    /// Source of the root of squares: as of matrix products in `compute`.
    pub fn total(&self) -> Seconds {
        let overlapped = Seconds::new(libm::hypot(self.arithmetic.get(), self.memory.get()));
        self.latency + overlapped + self.links + self.overhead
    }

    /// The largest part.
    pub fn bound(&self) -> Bound {
        let parts = [
            (self.latency, Bound::Latency),
            (self.arithmetic, Bound::Arithmetic),
            (self.memory, Bound::Memory),
            (self.links, Bound::Links),
            (self.overhead, Bound::Overhead),
        ];
        parts
            .into_iter()
            .max_by(|a, b| a.0.get().total_cmp(&b.0.get()))
            .map_or(Bound::Latency, |(_, bound)| bound)
    }
}

/// Seconds from microseconds.
pub(super) fn us(microseconds: f64) -> Seconds {
    Seconds::new(microseconds * 1e-6)
}

/// The start-up time that every family has.
pub(super) const fn latency(start: f64) -> Coefficient {
    let meaning = "us of a call with nothing to do: launch, first and last steps";
    Coefficient { name: "latency", start, low: 0.5, high: 400.0, meaning }
}

/// The part of the matrix units' peak.
pub(super) const COMPUTE: Coefficient = Coefficient {
    name: "compute",
    start: 0.75,
    low: 0.02,
    high: 1.0,
    meaning: "part of the peak of the matrix units that full tiles reach",
};

/// The part of the memory bandwidth.
pub(super) const MEMORY: Coefficient = Coefficient {
    name: "memory",
    start: 0.85,
    low: 0.05,
    high: 1.0,
    meaning: "part of the memory bandwidth that large calls reach",
};

/// The speed of the cache.
pub(super) const CACHE: Coefficient = Coefficient {
    name: "cache",
    start: 1.3,
    low: 0.5,
    high: 4.0,
    meaning: "speed of data in the second-level cache, over that in memory",
};
