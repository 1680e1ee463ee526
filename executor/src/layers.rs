//! Weights and gradients of layers on their way between the ranks that hold the same.
//!
//! Where the optimizer's state is divided, a rank owns one piece of every parameter. A message has the pieces of one owner
//! next to each other, so that owner r's are chunk r of the tensor.

use crate::collective::{Combine, Communicator, Members};
use crate::device::{Device, on_host};
use crate::error::Fault;
use crate::parameters::Sharing;
use crate::state::LayerState;
use crate::tensor::{give_back, take_buffer};
use std::ops::Range;
use trainwright_spec::collective::CollectiveKind;
use trainwright_spec::program::Axis;

/// Sums a layer's gradients over the members: all of them, or for each its pieces. Where sets of ranks have the same
/// pieces, they are summed over the sets behind that.
pub(crate) fn reduce_gradients(
    device: &dyn Device,
    communicator: &mut Communicator,
    members: &Members,
    (kind, axis): (CollectiveKind, Axis),
    layer: &mut LayerState,
) -> Result<(), Fault> {
    let sharing = Sharing::of(axis);
    if axis == Axis::Replica {
        if let Some(mut sums) = layer.fresh.take() {
            communicator.all_reduce(members, &mut sums, Combine::Sum)?;
            layer.take_in(device, sharing, sums);
        }
        return Ok(());
    }
    let range = layer.range(sharing);
    if range.is_empty() || layer.gradients.whole.is_empty() {
        // Nothing to sum, or no pass has added to it, on no rank.
        return Ok(());
    }
    if kind == CollectiveKind::AllReduce {
        let gradients = layer.gradients.whole.slice_mut().part(range);
        return on_host(device, gradients, |data| communicator.all_reduce(members, data, Combine::Sum));
    }
    let mut message = take_buffer(range.len());
    let whole = device.read(layer.gradients.whole.slice());
    let mut at = 0;
    for owner in 0..members.ranks.len() {
        for piece in pieces(layer, sharing, owner) {
            message[at..at + piece.len()].copy_from_slice(&whole[piece.clone()]);
            at += piece.len();
        }
    }
    let sums = communicator.reduce_scatter(members, message)?;
    match layer.has_replicas && sharing == Sharing::Dense {
        true => layer.fresh = Some(sums),
        false => layer.take_in(device, sharing, sums),
    }
    Ok(())
}

/// Brings every member's pieces of a layer's weights to all.
pub(crate) fn gather_weights(
    device: &dyn Device,
    communicator: &mut Communicator,
    members: &Members,
    axis: Axis,
    layer: &mut LayerState,
) -> Result<(), Fault> {
    let (ranks, sharing) = (members.ranks.len(), Sharing::of(axis));
    let mut own = Vec::new();
    layer.owned(|owned| {
        if owned.parameter.sharing == sharing {
            own.extend_from_slice(&device.read(owned.weights.as_slice()));
        }
    });
    if own.is_empty() {
        return Ok(());
    }
    let all = communicator.all_gather(members, &own)?;
    for (owner, data) in all.chunks_exact(all.len() / ranks).enumerate() {
        let mut at = 0;
        for piece in pieces(layer, sharing, owner) {
            let length = piece.len();
            device.write(layer.whole_weights(device).part(piece), &data[at..at + length]);
            at += length;
        }
    }
    give_back(all);
    Ok(())
}

/// An owner's pieces in the layer's buffer.
fn pieces(layer: &LayerState, sharing: Sharing, owner: usize) -> Vec<Range<usize>> {
    let own = layer.parameters.iter().filter(|parameter| parameter.sharing == sharing);
    own.map(|parameter| parameter.piece(owner)).collect()
}
