//! Collectives over the weights and gradients of layers, between the ranks that hold the same ones.
//!
//! If the optimizer's state is sharded, a rank owns one shard of every parameter. In a message the shards of one owner are
//! neighbours, so that owner r's are chunk r of the message.

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

/// Sums a layer's gradients over the members: an all-reduce, or a reduce-scatter that leaves each member the sums of its
/// shards. If several sets of ranks have the same shards, these sums are then summed over the sets.
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
            let full = device.read(layer.gradients.full.slice());
            let mut at = 0;
            for owner in 0..members.ranks.len() {
                for shard in shards(layer, sharing, owner) {
                    message[at..at + shard.len()].copy_from_slice(&full[shard.clone()]);
                    at += shard.len();
                }
            }
            device.take(communicator.reduce_scatter(members, message)?, Number::F32)
        }
        _ => {
            let shards = |owner| shards(layer, sharing, owner);
            communicator.sum_shards(device, members, layer.gradients.full.slice(), shards)?
        }
    };
    match layer.has_replicas && sharing == Sharing::Dense {
        true => layer.fresh = Some(sums),
        false => layer.take_in(device, sharing, sums),
    }
    Ok(())
}

/// All-gathers the weights of a layer from every member's shards.
pub(crate) fn gather_weights(
    device: &dyn Device,
    communicator: &mut Communicator,
    members: &Members,
    axis: Axis,
    layer: &mut LayerState,
) -> Result<(), Fault> {
    let (ranks, sharing) = (members.ranks.len(), Sharing::of(axis));
    if communicator.route(members) != Route::Host {
        return copy_weights(device, communicator, members, sharing, layer);
    }
    let mut shards_here = Vec::new();
    layer.owned(|owned| {
        if owned.parameter.sharing == sharing {
            shards_here.extend_from_slice(&device.read(owned.weights.as_slice()));
        }
    });
    if shards_here.is_empty() {
        return Ok(());
    }
    let all = communicator.all_gather(members, &shards_here)?;
    for (owner, data) in all.chunks_exact(all.len() / ranks).enumerate() {
        let mut at = 0;
        for shard in shards(layer, sharing, owner) {
            let length = shard.len();
            device.write(layer.full_weights(device).part(shard), &data[at..at + length]);
            at += length;
        }
    }
    return_buffer(all);
    Ok(())
}

/// Gathers weights on GPUs: each member copies the others' shards from the buffers in which they keep them, at the offsets of its shards.
fn copy_weights(
    device: &dyn Device,
    communicator: &mut Communicator,
    members: &Members,
    sharing: Sharing,
    layer: &mut LayerState,
) -> Result<(), Fault> {
    if layer.range(sharing).is_empty() {
        return Ok(());
    }
    let full = layer.full_weights(device).device();
    // NCCL cannot copy from the others' buffers: it sends the shards only.
    let packed = (communicator.route(members) == Route::Nccl && layer.weights.shard.is_none()).then(|| {
        let local: Vec<Range<usize>> = layer.parameters.iter().map(Parameter::local_shard).collect();
        let mut packed = device.any(local.iter().map(Range::len).sum(), device.number());
        let mut at = 0;
        for shard in local {
            let range = at..at + shard.len();
            at = range.end;
            device.copy(packed.slice_mut().part(range), Slice::Device(full).part(shard));
        }
        packed
    });
    let kept = packed.as_ref().or(layer.weights.shard.as_ref()).map(|shard| shard.slice().device());
    communicator.read_all(device, members, Slice::Device(kept.unwrap_or(full)), |all| {
        let others = |owner: &usize| kept.is_some() || *owner != members.place;
        for owner in (0..members.ranks.len()).filter(others) {
            let mut at = 0;
            for parameter in &layer.parameters {
                let in_shards = at..at + parameter.shard_length();
                at = in_shards.end;
                if parameter.sharing == sharing {
                    let shard = parameter.shard(owner);
                    let from = if kept.is_some() { in_shards } else { shard.clone() };
                    device.copy(SliceMut::Device(full).part(shard), all[owner].part(from));
                }
            }
        }
    })
}

/// An owner's shards in the layer's buffer.
fn shards(layer: &LayerState, sharing: Sharing, owner: usize) -> Vec<Range<usize>> {
    let parameters = layer.parameters.iter().filter(|parameter| parameter.sharing == sharing);
    parameters.map(|parameter| parameter.shard(owner)).collect()
}
