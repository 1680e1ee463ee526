//! Faults that are made on purpose, to see what becomes of a run.

/// A fault that is made on purpose, to see what becomes of a run.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Drill {
    /// On which rank.
    pub rank: usize,
    /// In which step, from 1.
    pub step: usize,
    /// Before which op of the step, from 0; after the last one it does not come.
    pub op: usize,
    /// What happens.
    pub kind: DrillKind,
}

/// What goes wrong.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum DrillKind {
    /// The rank dies.
    Death,
    /// The rank does nothing any more.
    Stall,
    /// A weight is no number.
    NotANumber,
}
