//! Weights and gradients of layers on their way between the ranks that hold the same.
//!
//! Where the optimizer's state is divided, a rank owns one piece of every parameter. A message has the pieces of one owner
//! next to each other, so that owner r's are chunk r of the tensor.

use crate::collective::{Combine, Communicator, Members};
use crate::error::Fault;
use crate::parameters::Parameter;
use crate::state::LayerState;
use crate::tensor::{give_back, take_buffer};
use trainwright_kernels::elementwise;
use trainwright_spec::collective::CollectiveKind;

/// Sums a layer's gradients over the members: all of them, or for each its pieces.
pub(crate) fn reduce_gradients(
    communicator: &mut Communicator,
    members: &Members,
    kind: CollectiveKind,
    layer: &mut LayerState,
) -> Result<(), Fault> {
    let gradients = &mut layer.gradients;
    if kind == CollectiveKind::AllReduce {
        return communicator.all_reduce(members, &mut gradients.whole, Combine::Sum);
    }
    if gradients.whole.is_empty() {
        // No pass has added to it, on no rank.
        return Ok(());
    }
    let mut message = take_buffer(gradients.whole.len());
    let mut at = 0;
    for owner in 0..members.ranks.len() {
        for piece in layer.parameters.iter().map(|parameter| parameter.piece(owner)) {
            message[at..at + piece.len()].copy_from_slice(&gradients.whole[piece.clone()]);
            at += piece.len();
        }
    }
    let sum = communicator.reduce_scatter(members, message)?;
    match &mut gradients.own {
        Some(own) => elementwise::add(own, &sum),
        None => spread(&layer.parameters, members.place, &sum, &mut gradients.whole),
    }
    give_back(sum);
    gradients.give_up_whole();
    Ok(())
}

/// Brings every member's pieces of a layer's weights to all.
pub(crate) fn gather_weights(
    communicator: &mut Communicator,
    members: &Members,
    layer: &mut LayerState,
) -> Result<(), Fault> {
    let ranks = members.ranks.len();
    let mut own = Vec::new();
    layer.owned(|owned| own.extend_from_slice(owned.weights));
    let all = communicator.all_gather(members, &own)?;
    if layer.weights.whole.is_empty() {
        layer.weights.whole = take_buffer(all.len());
    }
    for (owner, pieces) in all.chunks_exact(all.len() / ranks).enumerate() {
        spread(&layer.parameters, owner, pieces, &mut layer.weights.whole);
    }
    give_back(all);
    Ok(())
}

/// Puts an owner's pieces, which stand behind each other, into the whole.
fn spread(parameters: &[Parameter], owner: usize, pieces: &[f32], whole: &mut [f32]) {
    let mut at = 0;
    for piece in parameters.iter().map(|parameter| parameter.piece(owner)) {
        let length = piece.len();
        whole[piece].copy_from_slice(&pieces[at..at + length]);
        at += length;
    }
}
