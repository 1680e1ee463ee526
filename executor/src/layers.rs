//! Weights and gradients of layers on their way between the ranks that hold the same.
//!
//! Where the optimizer's state is divided, a rank owns one piece of every parameter. A message has the pieces of one owner
//! next to each other, so that owner r's are chunk r of the tensor.

use crate::collective::{Combine, Communicator, Members};
use crate::error::Fault;
use crate::state::LayerState;
use crate::tensor::{give_back, take_buffer};
use trainwright_spec::collective::CollectiveKind;

/// Sums a layer's gradients over the members: all of them, or for each its pieces.
pub(crate) fn reduce_gradients(
    communicator: &mut Communicator,
    members: &Members,
    kind: CollectiveKind,
    layer: &mut LayerState,
) -> Result<(), Fault> {
    match kind {
        CollectiveKind::AllReduce => communicator.all_reduce(members, &mut layer.gradients, Combine::Sum),
        _ => {
            let ranks = members.ranks.len();
            let mut message = take_buffer(layer.gradients.len());
            let mut at = 0;
            for owner in 0..ranks {
                for parameter in &layer.parameters {
                    let piece = parameter.piece(owner);
                    message[at..at + piece.len()].copy_from_slice(&layer.gradients[piece.clone()]);
                    at += piece.len();
                }
            }
            let own = communicator.reduce_scatter(members, message)?;
            let mut at = 0;
            for parameter in &layer.parameters {
                let piece = parameter.piece(members.place);
                let length = piece.len();
                layer.gradients[piece].copy_from_slice(&own[at..at + length]);
                at += length;
            }
            give_back(own);
            Ok(())
        }
    }
}

/// Brings every member's pieces of a layer's weights to all.
pub(crate) fn gather_weights(
    communicator: &mut Communicator,
    members: &Members,
    layer: &mut LayerState,
) -> Result<(), Fault> {
    let ranks = members.ranks.len();
    let mut own = take_buffer(layer.weights.len() / ranks);
    let mut at = 0;
    for parameter in &layer.parameters {
        let piece = parameter.piece(members.place);
        own[at..at + piece.len()].copy_from_slice(&layer.weights[piece.clone()]);
        at += piece.len();
    }
    let all = communicator.all_gather(members, &own)?;
    give_back(own);
    let mut at = 0;
    for owner in 0..ranks {
        for parameter in &layer.parameters {
            let piece = parameter.piece(owner);
            let length = piece.len();
            layer.weights[piece].copy_from_slice(&all[at..at + length]);
            at += length;
        }
    }
    give_back(all);
    Ok(())
}
