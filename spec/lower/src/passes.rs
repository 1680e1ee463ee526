//! The segments of a stage's passes: the ops of its layers, with what is gathered, reduced, copied and sent around them.

use crate::data::{Gathers, Reductions, buckets, gathers, gathers_updated};
use crate::emit::Emitter;
use crate::messages::{Message, receive, send};
use crate::offload::HostCopies;
use crate::process;
use crate::stage::{Stage, Variant};
use trainwright_spec::plan::Plan;
use trainwright_spec::program::{Channel, LayerSpan, Pass, Segment, State, Stream, Task, Work};

/// How much of backward a segment does.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum BackwardPart {
    /// All of it.
    Whole,
    /// What leads to the input's gradient.
    Input,
    /// The gradients of weights.
    Weight,
}

impl Stage {
    /// Forward of one microbatch. Where the ranks of the data axis hold parts of the weights it gathers them layer by
    /// layer; where they have updated parts of them the data variant begins with gathering those, bucket by bucket.
    pub fn forward(&self, plan: &Plan, variant: Variant) -> Segment {
        let mut emitter = Emitter::new(plan.stack.overlap_tensor_backward);
        let mut copies = HostCopies::begin(plan, self, Pass::Forward, &mut emitter);
        let updated = match variant {
            Variant::Data if gathers_updated(plan) => self.gather_updated(plan, &mut emitter),
            _ => Vec::new(),
        };
        let mut weights = Gathers::begin(plan, (Pass::Forward, variant), self.layers(), &mut emitter);
        if self.index > 0 {
            let message = Message { pass: Pass::Forward, channel: Channel::Activation(self.number - 1) };
            receive(plan, &mut emitter, message, self.number);
        }
        for (number, layer) in self.layers().enumerate() {
            emitter.layer = layer.block;
            for (first_layer, gather) in &updated {
                if *first_layer == number {
                    emitter.wait_for(*gather);
                }
            }
            weights.enter(number, &mut emitter);
            copies.before(number, &mut emitter);
            let first = emitter.ops.len();
            emitter.forward(&layer.parts, layer.recompute);
            copies.after(number, first, &mut emitter);
            weights.leave(number, &mut emitter);
        }
        emitter.layer = None;
        process::launch(plan, Pass::Forward, &mut emitter);
        if self.index + 1 < self.stages {
            let message = Message { pass: Pass::Forward, channel: Channel::Activation(self.number) };
            send(plan, &mut emitter, message, self.number + 1);
        }
        Segment { name: format!("stage {} forward", self.number), ops: emitter.ops }
    }

    /// Backward of one microbatch, or a half of it. The data variant, or each, reduces the gradients, bucket by bucket,
    /// as they are complete; the last of a step copies them to where the optimizer is.
    pub fn backward(&self, plan: &Plan, part: BackwardPart, variant: Variant) -> Segment {
        let mut emitter = Emitter::new(plan.stack.overlap_tensor_backward);
        let mut copies = HostCopies::begin(plan, self, Pass::Backward, &mut emitter);
        let layers = || self.layers().rev();
        let moves_gradients = part != BackwardPart::Weight;
        let mut weights = Gathers::begin(plan, (Pass::Backward, variant), layers(), &mut emitter);
        let mut gradients = match part {
            BackwardPart::Whole | BackwardPart::Weight => Reductions::of(plan, variant, layers()),
            BackwardPart::Input => Reductions::none(plan),
        };
        if moves_gradients && self.index + 1 < self.stages {
            let message = Message { pass: Pass::Backward, channel: Channel::Gradient(self.number + 1) };
            receive(plan, &mut emitter, message, self.number);
        }
        for (number, layer) in layers().enumerate() {
            weights.enter(number, &mut emitter);
            gradients.enter(number, &mut emitter);
            emitter.layer = layer.block;
            copies.before(number, &mut emitter);
            let first = emitter.ops.len();
            match part {
                BackwardPart::Whole => emitter.backward(&layer.parts, layer.recompute),
                BackwardPart::Input => emitter.input(&layer.parts, layer.recompute),
                BackwardPart::Weight => emitter.weight(&layer.parts, layer.recompute),
            }
            copies.after(number, first, &mut emitter);
            emitter.layer = None;
            let reduced = gradients.leave(number, first, &mut emitter);
            copies.gradients(number, reduced, variant == Variant::Data, &mut emitter);
            weights.leave(number, &mut emitter);
        }
        process::launch(plan, Pass::Backward, &mut emitter);
        if emitter.waits() {
            // A frozen embedding alone has no backward, yet its rank goes on only when the gradient is there.
            emitter.in_line("pass ends", Pass::Backward, Work::Join);
        }
        if moves_gradients && self.index > 0 {
            let message = Message { pass: Pass::Backward, channel: Channel::Gradient(self.number) };
            send(plan, &mut emitter, message, self.number - 1);
        }
        gradients.end(&mut emitter);
        let name = match part {
            BackwardPart::Whole => "backward",
            BackwardPart::Input => "input gradient",
            BackwardPart::Weight => "weight gradient",
        };
        Segment { name: format!("stage {} {name}", self.number), ops: emitter.ops }
    }

    /// Gathers the updated weights of each bucket of layers; returns the first layer of each bucket with its ops.
    fn gather_updated(&self, plan: &Plan, emitter: &mut Emitter) -> Vec<(usize, usize)> {
        let mut ops = Vec::new();
        let buckets = buckets(plan, self.layers());
        let layers = self.layers().count();
        for (number, (first, copies)) in buckets.iter().enumerate() {
            let (first, end) = (*first, buckets.get(number + 1).map_or(layers, |(next, _)| *next));
            let span = LayerSpan { first, count: end - first };
            for work in gathers(plan, copies) {
                let op = emitter.push("gather weights", Pass::Forward, Stream::Data, work, Vec::new());
                emitter.ops[op].task = Task::Layers(State::Weights, span);
                ops.push((first, op));
            }
        }
        ops
    }
}
