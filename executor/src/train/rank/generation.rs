//! Passes that generate: the forward calls of one microbatch over the new tokens of a sequence, whose earlier tokens' keys and
//! values are kept.
//!
//! The logits are on the ranks of the last stage, each with its part of the vocabulary. These put them together and choose the
//! same token, and each sends it to the ranks of its pipeline.

use super::Rank;
use crate::comm::transport::{Envelope, Tag};
use crate::device::Words;
use crate::device::tensor::Tensor;
use crate::error::Fault;
use crate::train::frame::{Frame, KeyValues, MicrobatchTokens};
use crate::train::generation::sampling::{Sampling, greedy};
use crate::train::generation::{Completion, Generation, TrainingSample};
use crate::train::groups::place_of;
use crate::train::instruction::Instruction;
use crate::train::masks::Masks;
use crate::train::run_context::RunContext;
use crate::train::sizes::Divides;
use std::collections::BTreeMap;
use std::time::Instant;
use trainwright_spec::program::{Axis, Call, Module, Program, RankProgram, StageEnd, Work};
use trainwright_spec::schedule::{Action, ActionKind};

/// A program that a rank runs for a while instead of its own, with the same layers.
pub(crate) struct OtherProgram<'a> {
    pub shared: &'a RunContext<'a>,
    pub program: &'a RankProgram,
    pub instructions: BTreeMap<usize, Vec<Instruction<'a>>>,
}

/// How the tokens of a prompt are chosen.
#[derive(Clone, Copy)]
struct Choosing {
    sampling: Option<Sampling>,
    /// The number of the prompt.
    prompt: usize,
    count: usize,
    stop: Option<u32>,
    returns_logits: bool,
}

impl<'a> Rank<'a> {
    /// What this rank's data rank generates: the tokens behind every prompt that is its, with the prompt's number.
    pub fn generate(&mut self, generation: &Generation) -> Result<Vec<(usize, Completion)>, Fault> {
        let (data, place) = (self.shared.plan.mesh.data, self.sizes.at.data);
        // Ranks that share experts run as many passes each.
        let in_step = self.shared.plan.mesh.expert > 1;
        let mut made = Vec::new();
        for first in (0..generation.prompts.len()).step_by(data) {
            let prompt = first + place;
            let tokens = generation.prompts.get(prompt);
            let stop = generation.stop.filter(|_| !in_step);
            let (sampling, count) = (generation.sampling, generation.tokens.get());
            let returns_logits = generation.return_logits;
            let choosing = Choosing { sampling, prompt, count, stop, returns_logits };
            match tokens {
                Some(tokens) => {
                    let mut completion = self.complete(tokens, choosing)?;
                    let end = completion.tokens.iter().position(|token| Some(*token) == generation.stop);
                    completion.tokens.truncate(end.map_or(count, |end| end + 1));
                    made.push((prompt, completion));
                }
                None if in_step => drop(self.complete(&[0], choosing)?),
                None => {}
            }
        }
        self.collect(made)
    }

    /// The tokens behind the prompt of a training.
    pub fn sample(
        &mut self,
        sample: &TrainingSample,
        other: Option<&mut OtherProgram<'a>>,
    ) -> Result<Vec<u32>, Fault> {
        let count = sample.tokens.get();
        let choosing = Choosing { sampling: None, prompt: 0, count, stop: None, returns_logits: false };
        let Some(other) = other else { return Ok(self.complete(&sample.prompt, choosing)?.tokens) };
        self.exchange(other);
        let made = self.complete(&sample.prompt, choosing);
        self.exchange(other);
        Ok(made?.tokens)
    }

    fn exchange(&mut self, OtherProgram { shared, program, instructions }: &mut OtherProgram<'a>) {
        std::mem::swap(&mut self.shared, shared);
        std::mem::swap(&mut self.program, program);
        std::mem::swap(&mut self.instructions, instructions);
    }

    fn complete(&mut self, prompt: &[u32], choosing: Choosing) -> Result<Completion, Fault> {
        let began = Instant::now();
        let mut key_values = KeyValues::default();
        let mut logits = self.pass(prompt, 0, &mut key_values)?;
        let (mut tokens, mut prefill, mut all_logits) = (Vec::new(), 0.0, Vec::new());
        loop {
            all_logits.extend(logits.clone().filter(|_| choosing.returns_logits));
            let token = self.choose(logits, choosing, tokens.len())?;
            tokens.push(token);
            if tokens.len() == 1 {
                prefill = began.elapsed().as_secs_f64();
            }
            if tokens.len() == choosing.count || Some(token) == choosing.stop {
                break;
            }
            logits = self.pass(&[token], prompt.len() + tokens.len() - 1, &mut key_values)?;
        }
        if self.sizes.divides == Divides::Weights {
            // Some stay gathered until backward.
            self.state.layers_mut().for_each(|(_, layer)| layer.weights.free_full());
        }
        let decode = began.elapsed().as_secs_f64() - prefill;
        Ok(Completion { tokens, prefill, decode, logits: all_logits })
    }

    /// A pass over new tokens of a sequence, of which the first one has that position. The logits behind the last one, on ranks of the
    /// last stage.
    pub(super) fn pass(
        &mut self,
        tokens: &[u32],
        first: usize,
        key_values: &mut KeyValues,
    ) -> Result<Option<Vec<f32>>, Fault> {
        let of_pass = self.sizes.of_pass(first..first + tokens.len());
        let of_step = std::mem::replace(&mut self.sizes, of_pass);
        let mut logits = None;
        for (number, call) in self.program.calls.iter().enumerate() {
            if let Some(action) = first_forward(call) {
                let made = self.forward_call((number, call), action, tokens, key_values)?;
                logits = logits.or(made);
            }
        }
        self.sizes = of_step;
        logits.map(|logits| self.full_logits(&logits)).transpose()
    }

    /// The call of a stage. Returns the logits if the stage is the last.
    fn forward_call(
        &mut self,
        (number, call): (usize, &Call),
        action: Action,
        tokens: &[u32],
        key_values: &mut KeyValues,
    ) -> Result<Option<Tensor>, Fault> {
        let program = self.shared.program;
        let targets = Words::on_host(Vec::new());
        let mut frame =
            Frame::new(Some(MicrobatchTokens { inputs: Words::on_host(tokens.to_vec()), targets }));
        frame.masks = Masks::off();
        frame.key_values = Some(std::mem::take(key_values));
        frame.flow = match program.source(action) {
            Some(StageEnd::Model) => Some(Tensor::any_on(&*self.device, tokens.len(), self.sizes.hidden)),
            Some(StageEnd::SameRank(channel)) => self.left_tensors.remove(&(channel, action.microbatch)),
            _ => None,
        };
        let instructions = self.instructions.remove(&call.segment).expect("every segment is compiled");
        for (index, instruction) in instructions.iter().enumerate() {
            let is_of_loss = instruction.module.is_some_and(|module| module.place.1 == Module::Loss);
            if is_of_loss || matches!(instruction.op.work, Work::Copy { .. }) {
                continue;
            }
            self.heartbeat.begin_op(number, index)?;
            self.instruction(instruction, action, &mut frame)?;
        }
        self.instructions.insert(call.segment, instructions);
        *key_values = frame.key_values.take().expect("it was given to the frame");
        match program.destination(action) {
            Some(StageEnd::Model) => return Ok(Some(frame.take_flow())),
            Some(StageEnd::SameRank(channel)) => {
                self.left_tensors.insert((channel, action.microbatch), frame.take_flow());
            }
            _ => {}
        }
        Ok(None)
    }

    /// The logits of the vocabulary, out of those of the tensor ranks.
    fn full_logits(&mut self, local: &Tensor) -> Result<Vec<f32>, Fault> {
        let mut logits = match self.groups[place_of(Axis::Tensor)].clone() {
            Some(members) => self.communicator.all_gather(&members, local.data())?,
            None => local.data().to_vec(),
        };
        logits.truncate(self.sizes.vocabulary);
        Ok(logits)
    }

    /// The next token, on every rank of the pipeline.
    fn choose(&mut self, logits: Option<Vec<f32>>, choosing: Choosing, place: usize) -> Result<u32, Fault> {
        let this = self.program.pipeline_rank;
        let tag = Tag::Group(self.shared.program.groups.len());
        let last = self.last_stage_place();
        let Some(logits) = logits else {
            let envelope = Envelope { from: self.rank_at(last), to: self.rank_at(this), tag };
            let bytes = self.shared.transport.receive_bytes(envelope)?;
            return Ok(u32::from_le_bytes(bytes.try_into().expect("a token has 4 bytes")));
        };
        if logits.iter().any(|logit| !logit.is_finite()) {
            let reason =
                "a logit is not a finite number: the weights overflow, or have NaN or infinity among them";
            return Err(Fault::Data(reason.into()));
        }
        let token = match choosing.sampling {
            None => greedy(&logits),
            Some(sampling) => sampling.draw(&logits, choosing.prompt, place),
        } as u32;
        for other in (0..self.program.pipeline.len()).filter(|other| *other != this) {
            let envelope = Envelope { from: self.rank_at(this), to: self.rank_at(other), tag };
            self.shared.transport.send_bytes(envelope, token.to_le_bytes().to_vec());
        }
        Ok(token)
    }

    /// Where in the pipeline the logits are made.
    fn last_stage_place(&self) -> usize {
        let program: &Program = self.shared.program;
        let is_last = |place: &usize| {
            let calls = &program.ranks[*place].calls;
            calls.iter().filter_map(first_forward).any(|action| program.stages[action.stage].is_last())
        };
        self.program.pipeline.iter().position(is_last).expect("a pipeline has a last stage")
    }

    /// All completions on rank 0, from the first rank of each data rank; the others keep none.
    fn collect(&mut self, made: Vec<(usize, Completion)>) -> Result<Vec<(usize, Completion)>, Fault> {
        let (rank, tag) = (self.program.rank, Tag::Group(self.shared.program.groups.len()));
        let mesh = self.shared.plan.mesh;
        let speaks = |rank: usize| {
            let at = mesh.coordinates(rank);
            (at.tensor, at.pipeline) == (0, 0)
        };
        if rank > 0 {
            if speaks(rank) {
                let bytes =
                    made.iter().flat_map(|(prompt, made)| completion_to_bytes(*prompt, made)).collect();
                self.shared.transport.send_bytes(Envelope { from: rank, to: 0, tag }, bytes);
            }
            return Ok(Vec::new());
        }
        let mut all = made;
        for from in (1..mesh.ranks()).filter(|rank| speaks(*rank)) {
            let bytes = self.shared.transport.receive_bytes(Envelope { from, to: 0, tag })?;
            let lost = || Fault::Lost { rank: from, how: "what it generated cannot be read".into() };
            all.extend(completions_from_bytes(&bytes).ok_or_else(lost)?);
        }
        all.sort_by_key(|(prompt, _)| *prompt);
        Ok(all)
    }
}

/// The forward action of a call, if it is that of the first microbatch.
fn first_forward(call: &Call) -> Option<Action> {
    call.action.filter(|action| action.kind == ActionKind::Forward && action.microbatch == 0)
}

fn completion_to_bytes(prompt: usize, Completion { tokens, prefill, decode, .. }: &Completion) -> Vec<u8> {
    let head = [prompt as u64, prefill.to_bits(), decode.to_bits(), tokens.len() as u64];
    let words = head.into_iter().chain(tokens.iter().map(|token| u64::from(*token)));
    words.flat_map(u64::to_le_bytes).collect()
}

/// The inverse of several `completion_to_bytes`; `None` if the bytes are none.
fn completions_from_bytes(bytes: &[u8]) -> Option<Vec<(usize, Completion)>> {
    let (words, []) = bytes.as_chunks::<8>() else { return None };
    let mut words = words.iter().map(|word| u64::from_le_bytes(*word));
    let mut all = Vec::new();
    while let Some(prompt) = words.next() {
        let [prefill, decode] = [words.next()?, words.next()?].map(f64::from_bits);
        let count = words.next()?;
        let tokens: Vec<u32> = (0..count).map_while(|_| words.next()).map(|token| token as u32).collect();
        if tokens.len() as u64 != count {
            return None;
        }
        all.push((prompt as usize, Completion { tokens, prefill, decode, logits: Vec::new() }));
    }
    Some(all)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn completions_arrive_as_they_were_sent() {
        let completion = |tokens: &[u32]| Completion {
            tokens: tokens.into(),
            prefill: 0.25,
            decode: 1e-9,
            logits: Vec::new(),
        };
        let all = vec![(3, completion(&[7, u32::MAX])), (5, completion(&[]))];
        let bytes: Vec<u8> = all.iter().flat_map(|(at, made)| completion_to_bytes(*at, made)).collect();
        assert_eq!(completions_from_bytes(&bytes), Some(all));
        assert_eq!(completions_from_bytes(&bytes[..bytes.len() - 1]), None);
        assert_eq!(completions_from_bytes(&bytes[..bytes.len() - 8]), None);
    }
}
