//! What a layer computes again in backward: when, what that makes, and what it saves.

use crate::part::{Part, Role};
use crate::step::{Half, Step};
use trainwright_spec::plan::{Piece, Recompute};
use trainwright_spec::program::ModuleStep;
use trainwright_spec::units::Bytes;

/// A piece of a list of parts that is computed again by itself.
#[derive(Debug)]
pub(crate) struct PieceAgain {
    /// The part before whose backward it is computed again.
    pub before: usize,
    /// The parts that run again.
    pub runs: Vec<usize>,
    /// Those and the parts that read what they make.
    members: Vec<usize>,
    /// What is made again.
    pub dropped: Bytes,
}

/// The pieces of a list of parts that a choice computes again one by one, in the order of forward.
///
/// A piece is made again just before the first backward that needs it: that of its last part, or, where it is read
/// by a part that runs again for another piece, when that one is made.
pub(crate) fn pieces_again(parts: &[Part], recompute: Recompute) -> Vec<PieceAgain> {
    let mut pieces: Vec<(Piece, PieceAgain)> = Vec::new();
    for (index, part) in parts.iter().enumerate() {
        for again in part.chosen(recompute.pieces()) {
            if again.role == Role::First {
                let none =
                    PieceAgain { before: 0, runs: Vec::new(), members: Vec::new(), dropped: Bytes::ZERO };
                pieces.push((again.piece, none));
            }
            let open = pieces.iter_mut().rev().find(|(piece, _)| *piece == again.piece);
            let (_, open) = open.expect("a piece begins with its first part");
            open.before = index;
            open.members.push(index);
            open.dropped += again.dropped;
            if again.role != Role::Reads {
                open.runs.push(index);
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

/// What the runs of each part keep: whether forward keeps its input and what else its backward reads, and whose input its
/// second run makes. A run's steps and its end are left open.
pub(crate) fn runs(parts: &[Part], recompute: Recompute) -> Vec<ModuleStep> {
    let pieces = pieces_again(parts, recompute);
    // The last part before whose backward a part has run again, or `None` if it runs once.
    let ready_for = |index: usize| match recompute {
        Recompute::Full => Some(parts.len()),
        _ => pieces.iter().filter(|piece| piece.runs.contains(&index)).map(|piece| piece.before).min(),
    };
    let ready: Vec<Option<usize>> = (0..parts.len()).map(ready_for).collect();
    // A part without steps passes its input on.
    let with_steps: Vec<usize> = (0..parts.len()).filter(|index| !parts[*index].forward.is_empty()).collect();
    let mut runs: Vec<ModuleStep> = Vec::with_capacity(parts.len());
    for (index, part) in parts.iter().enumerate() {
        let keeps = ready[index].is_none();
        runs.push(ModuleStep { module: part.module, keeps, keeps_input: true, ..ModuleStep::default() });
    }
    for pair in with_steps.windows(2) {
        let [before, reader] = [pair[0], pair[1]];
        if ready[before].is_some_and(|ready| ready >= reader) {
            runs[before].refills = Some(parts[reader].module);
            runs[reader].keeps_input = false;
        }
    }
    runs
}

/// What a part keeps from forward to backward: with full recompute only the block's input, which its first part
/// keeps; else all but what its pieces drop.
pub(crate) fn kept_in_forward(index: usize, part: &Part, recompute: Recompute) -> Bytes {
    match recompute {
        Recompute::None | Recompute::Selective | Recompute::Pieces(_) => {
            let dropped = part.chosen(recompute.pieces()).map(|again| again.dropped);
            dropped.fold(part.kept, |kept, dropped| kept - dropped)
        }
        Recompute::Full if index == 0 => part.kept - part.made,
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
pub(crate) fn temporary_outside_input(parts: &[Part]) -> Bytes {
    let weights = |part: &Part| part.backward_half(Half::Weight);
    let steps = parts.iter().flat_map(|part| part.forward.iter().copied().chain(weights(part)));
    steps.map(|step| step.working()).fold(Bytes::ZERO, Bytes::max)
}

/// The largest temporary of any step.
pub(crate) fn largest_temporary(parts: &[Part]) -> Bytes {
    let steps = parts.iter().flat_map(|part| part.forward.iter().chain(&part.backward));
    steps.map(Step::working).fold(Bytes::ZERO, Bytes::max)
}
