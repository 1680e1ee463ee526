//! Messages between stages: their size, and whether they overlap kernels.

use crate::emit::Emitter;
use crate::process;
use crate::shape::Shape;
use trainwright_spec::collective::CollectiveKind;
use trainwright_spec::plan::Plan;
use trainwright_spec::program::{Axis, Channel, CollectiveCall, Pass, Stream, Work};
use trainwright_spec::stack::PipelineOverlap;
use trainwright_spec::units::Bytes;

/// Whether messages between stages overlap compute.
fn overlaps_messages(plan: &Plan) -> bool {
    match plan.stack.overlap_pipeline {
        PipelineOverlap::Never => false,
        PipelineOverlap::Interleaved => plan.virtual_stages > 1,
        PipelineOverlap::Always => true,
    }
}

/// Whether each tensor rank sends 1/t of a message that all of them hold.
fn scatters(plan: &Plan) -> bool {
    let shape = Shape::of(plan);
    shape.tensor > 1 && shape.replicates_activations() && plan.stack.scatter_gather_pipeline
}

/// Size of a message between the first stages if kernels wait for it; `None` if it overlaps them.
pub fn messages_in_line(plan: &Plan) -> Option<Bytes> {
    (!overlaps_messages(plan)).then(|| message_bytes(plan, 1))
}

/// Size that no message between two stages is below, whichever layers these have.
pub fn least_message(plan: &Plan) -> Bytes {
    bytes_of(plan, 1)
}

/// Tensors of b s h elements that enter a stage forward, and whose gradients leave it backward.
///
/// In an encoder-decoder two, as long as a later block reads the encoder's output: that and the decoder's activations;
/// before the decoder, the encoder's activations and the decoder's embedded tokens, which the first stage looks up too.
fn tensors_into(plan: &Plan, stage: usize) -> usize {
    let before: usize = plan.stages.iter().take(stage).map(|blocks| blocks.0.len()).sum();
    let runs = plan.model.blocks.iter();
    let blocks = runs.flat_map(|run| std::iter::repeat_n(&run.block, run.count));
    if blocks.skip(before).any(|block| block.cross_attention.is_some()) { 2 } else { 1 }
}

fn message_bytes(plan: &Plan, into_stage: usize) -> Bytes {
    bytes_of(plan, tensors_into(plan, into_stage))
}

fn bytes_of(plan: &Plan, tensors: usize) -> Bytes {
    let shape = Shape::of(plan);
    let bytes = shape.activations(tensors * shape.local_tokens() * shape.local_hidden());
    if scatters(plan) { bytes / shape.tensor as f64 } else { bytes }
}

/// A message between two stages.
#[derive(Clone, Copy)]
pub(crate) struct Message {
    pub pass: Pass,
    pub channel: Channel,
}

pub(crate) fn send(plan: &Plan, emitter: &mut Emitter, Message { pass, channel }: Message, to_stage: usize) {
    let to = plan.pipeline_rank_of(to_stage);
    if to == sender(plan, channel) {
        return;
    }
    process::message(plan, pass, emitter);
    let work = Work::Send { channel, to, bytes: message_bytes(plan, stage_entered(channel)) };
    match overlaps_messages(plan) {
        true => {
            let after = emitter.frontier();
            emitter.push("send", pass, Stream::Send, work, after);
        }
        false => {
            emitter.in_line("send", pass, work);
        }
    }
}

pub(crate) fn receive(plan: &Plan, emitter: &mut Emitter, Message { pass, channel }: Message, stage: usize) {
    let from = sender(plan, channel);
    if from == plan.pipeline_rank_of(stage) {
        return;
    }
    let work = Work::Receive { channel, from, bytes: message_bytes(plan, stage_entered(channel)) };
    match overlaps_messages(plan) {
        true => {
            let op = emitter.push("receive", pass, Stream::Receive, work, Vec::new());
            emitter.wait_for(op);
        }
        false => {
            emitter.in_line("receive", pass, work);
        }
    }
    process::message(plan, pass, emitter);
    if scatters(plan) {
        let shape = Shape::of(plan);
        let tensors = tensors_into(plan, stage_entered(channel));
        let bytes = shape.activations(tensors * shape.tokens() * shape.hidden);
        let call = CollectiveCall::Single;
        let work = Work::Collective { kind: CollectiveKind::AllGather, axis: Axis::Tensor, bytes, call };
        // The pass cannot begin without it, and the passes before do not know of it.
        emitter.in_line("gather message", pass, work);
    }
}

/// The stage that a message enters forward, or whose input's gradient it is.
fn stage_entered(channel: Channel) -> usize {
    match channel {
        Channel::Activation(stage) => stage + 1,
        Channel::Gradient(stage) => stage,
    }
}

/// The pipeline rank that sends on `channel`.
fn sender(plan: &Plan, channel: Channel) -> usize {
    let (Channel::Activation(stage) | Channel::Gradient(stage)) = channel;
    plan.pipeline_rank_of(stage)
}
