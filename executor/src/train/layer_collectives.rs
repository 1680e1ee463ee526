//! Weights and gradients of layers on their way between the ranks that hold the same.
//!
//! Where the optimizer's state is divided, a rank owns one piece of every parameter. A message has the pieces of one owner
//! next to each other, so that owner r's are chunk r of the tensor.

use crate::comm::collective::Communicator;
use crate::comm::members::Members;
use crate::comm::routes::Route;
use crate::device::host_buffers::{return_buffer, take_buffer};
use crate::device::{Device, Slice, SliceMut};
use crate::error::Fault;
use crate::train::parameters::{Parameter, Sharing};
use crate::train::state::LayerState;
use std::ops::Range;
use trainwright_kernels::cuda::Number;
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
            communicator.sum(device, members, sums.slice_mut())?;
            layer.take_in(device, sharing, sums);
        }
        return Ok(());
    }
    let range = layer.range(sharing);
    if range.is_empty() || layer.gradients.full.is_empty() {
        // Nothing to sum, or no pass has added to it, on no rank.
        return Ok(());
    }
    if kind == CollectiveKind::AllReduce {
        return communicator.sum(device, members, layer.gradients.full.slice_mut().part(range));
    }
    let sums = match communicator.route(members) {
        Route::Host => {
            let mut message = take_buffer(range.len());
            let whole = device.read(layer.gradients.full.slice());
            let mut at = 0;
            for owner in 0..members.ranks.len() {
                for piece in pieces(layer, sharing, owner) {
                    message[at..at + piece.len()].copy_from_slice(&whole[piece.clone()]);
                    at += piece.len();
                }
            }
            device.take(communicator.reduce_scatter(members, message)?, Number::F32)
        }
        _ => {
            let pieces = |owner| pieces(layer, sharing, owner);
            communicator.sum_shards(device, members, layer.gradients.full.slice(), pieces)?
        }
    };
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
    if communicator.route(members) != Route::Host {
        return see_weights(device, communicator, members, sharing, layer);
    }
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
            device.write(layer.full_weights(device).part(piece), &data[at..at + length]);
            at += length;
        }
    }
    return_buffer(all);
    Ok(())
}

/// The same where members see each other's: each takes the others' pieces from where they keep them, which is where this
/// one keeps its own.
fn see_weights(
    device: &dyn Device,
    communicator: &mut Communicator,
    members: &Members,
    sharing: Sharing,
    layer: &mut LayerState,
) -> Result<(), Fault> {
    if layer.range(sharing).is_empty() {
        return Ok(());
    }
    let whole = layer.full_weights(device).device();
    // Who cannot look into the others' memory sends no more than it has to.
    let packed = (communicator.route(members) == Route::Nccl && layer.weights.shard.is_none()).then(|| {
        let own: Vec<Range<usize>> = layer.parameters.iter().map(Parameter::own_shard).collect();
        let mut packed = device.any(own.iter().map(Range::len).sum(), device.number());
        let mut at = 0;
        for piece in own {
            let range = at..at + piece.len();
            at = range.end;
            device.copy(packed.slice_mut().part(range), Slice::Device(whole).part(piece));
        }
        packed
    });
    let kept = packed.as_ref().or(layer.weights.shard.as_ref()).map(|own| own.slice().device());
    communicator.read_all(device, members, Slice::Device(kept.unwrap_or(whole)), |all| {
        let others = |owner: &usize| kept.is_some() || *owner != members.place;
        for owner in (0..members.ranks.len()).filter(others) {
            let mut at = 0;
            for parameter in &layer.parameters {
                let own = at..at + parameter.shard_length();
                at = own.end;
                if parameter.sharing == sharing {
                    let piece = parameter.shard(owner);
                    let from = if kept.is_some() { own } else { piece.clone() };
                    device.copy(SliceMut::Device(whole).part(piece), all[owner].part(from));
                }
            }
        }
    })
}

/// An owner's pieces in the layer's buffer.
fn pieces(layer: &LayerState, sharing: Sharing, owner: usize) -> Vec<Range<usize>> {
    let own = layer.parameters.iter().filter(|parameter| parameter.sharing == sharing);
    own.map(|parameter| parameter.shard(owner)).collect()
}
