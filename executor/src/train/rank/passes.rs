//! Passes that generate: the forward calls of one microbatch over new tokens of sequences, whose earlier tokens' keys and values
//! are kept.
//!
//! The logits are on the ranks of the last stage, each with its part of the vocabulary. These put them together and choose the
//! same tokens, and each sends them to the ranks of its pipeline.

use super::Rank;
use crate::comm::transport::{Envelope, Tag};
use crate::device::Words;
use crate::device::tensor::Tensor;
use crate::error::Fault;
use crate::train::frame::{Frame, KeyValues, MicrobatchTokens, PassSequence};
use crate::train::generation::batch::ChosenToken;
use crate::train::generation::sampling::{Sampling, greedy};
use crate::train::groups::place_of;
use crate::train::masks::Masks;
use trainwright_spec::program::{Axis, Call, Module, Program, StageEnd, Work};
use trainwright_spec::schedule::{Action, ActionKind};

/// New tokens of a sequence.
pub(super) struct NewTokens<'t> {
    pub tokens: &'t [u32],
    /// The position of the first of them.
    pub first: usize,
    /// Whether the logits behind the last of them are wanted.
    pub samples: bool,
    /// Those of the tokens before.
    pub key_values: &'t mut KeyValues,
}

/// How a token is chosen.
#[derive(Clone, Copy)]
pub(super) struct Choice {
    /// `None` takes the likeliest.
    pub sampling: Option<Sampling>,
    /// The number of its prompt.
    pub prompt: usize,
    /// Its place behind the prompt.
    pub place: usize,
}

impl Rank<'_> {
    /// A pass over new tokens of some sequences. Returns the logits of those that are sampled, on ranks of the last stage.
    pub(super) fn pass(&mut self, parts: &mut [NewTokens]) -> Result<Option<Vec<Vec<f32>>>, Fault> {
        let positions = parts.iter().map(|part| part.first..part.first + part.tokens.len()).collect();
        let of_pass = self.sizes.of_pass(positions);
        let of_step = std::mem::replace(&mut self.sizes, of_pass);
        let mut logits = None;
        for (number, call) in self.program.calls.iter().enumerate() {
            if let Some(action) = first_forward(call) {
                let made = self.forward_call((number, call), action, parts)?;
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
        parts: &mut [NewTokens],
    ) -> Result<Option<Tensor>, Fault> {
        let program = self.shared.program;
        let targets = Words::on_host(Vec::new());
        let tokens = parts.iter().flat_map(|part| part.tokens).copied().collect::<Vec<u32>>();
        let rows = tokens.len();
        let mut frame = Frame::new(Some(MicrobatchTokens { inputs: Words::on_host(tokens), targets }));
        frame.masks = Masks::off();
        let sequence = |part: &mut NewTokens| PassSequence {
            rows: part.tokens.len(),
            samples: part.samples,
            key_values: std::mem::take(part.key_values),
        };
        frame.sequences = Some(parts.iter_mut().map(sequence).collect());
        frame.flow = match program.source(action) {
            Some(StageEnd::Model) => Some(Tensor::any_on(&*self.device, rows, self.sizes.hidden)),
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
        let sequences = frame.sequences.take().expect("they were given to the frame");
        parts.iter_mut().zip(sequences).for_each(|(part, sequence)| *part.key_values = sequence.key_values);
        match program.destination(action) {
            Some(StageEnd::Model) => return Ok(Some(frame.take_flow())),
            Some(StageEnd::SameRank(channel)) => {
                self.left_tensors.insert((channel, action.microbatch), frame.take_flow());
            }
            _ => {}
        }
        Ok(None)
    }

    /// The logits of the vocabulary, out of those of the tensor ranks, row by row.
    fn full_logits(&mut self, local: &Tensor) -> Result<Vec<Vec<f32>>, Fault> {
        let (rows, width) = (local.rows(), local.width());
        let gathered = match self.groups[place_of(Axis::Tensor)].clone() {
            Some(members) if rows > 0 => self.communicator.all_gather(&members, local.data())?,
            _ => local.data().to_vec(),
        };
        let full = |row: usize| {
            let of_members =
                gathered.chunks_exact(rows * width).map(|of| &of[row * width..(row + 1) * width]);
            let mut logits = of_members.collect::<Vec<_>>().concat();
            logits.truncate(self.sizes.vocabulary);
            logits
        };
        Ok((0..rows).map(full).collect())
    }

    /// The next token of each sequence that is sampled, on every rank of the pipeline, with its logits if they are wanted.
    pub(super) fn choose(
        &mut self,
        logits: Option<Vec<Vec<f32>>>,
        choices: &[Choice],
        with_logits: bool,
    ) -> Result<Vec<ChosenToken>, Fault> {
        if choices.is_empty() {
            return Ok(Vec::new());
        }
        let this = self.program.pipeline_rank;
        let tag = Tag::Group(self.shared.program.groups.len());
        let last = self.last_stage_place();
        let Some(logits) = logits else {
            let from = self.rank_at(last);
            let bytes =
                self.shared.transport.receive_bytes(Envelope { from, to: self.rank_at(this), tag })?;
            let lost = || Fault::Lost { rank: from, how: "the tokens that it chose cannot be read".into() };
            return chosen_from_bytes(&bytes, choices.len()).ok_or_else(lost);
        };
        if logits.iter().flatten().any(|logit| !logit.is_finite()) {
            let reason =
                "a logit is not a finite number: the weights overflow, or have NaN or infinity among them";
            return Err(Fault::Data(reason.into()));
        }
        let chosen = logits.into_iter().zip(choices).map(|(logits, choice)| {
            let token = match choice.sampling {
                None => greedy(&logits),
                Some(sampling) => sampling.draw(&logits, choice.prompt, choice.place),
            };
            let logits = if with_logits { logits } else { Vec::new() };
            ChosenToken { token: token as u32, logits }
        });
        let chosen: Vec<ChosenToken> = chosen.collect();
        for other in (0..self.program.pipeline.len()).filter(|other| *other != this) {
            let envelope = Envelope { from: self.rank_at(this), to: self.rank_at(other), tag };
            self.shared.transport.send_bytes(envelope, chosen_to_bytes(&chosen));
        }
        Ok(chosen)
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
}

/// The forward action of a call, if it is that of the first microbatch.
fn first_forward(call: &Call) -> Option<Action> {
    call.action.filter(|action| action.kind == ActionKind::Forward && action.microbatch == 0)
}

/// Of each its token and its logits, which are as many in each.
fn chosen_to_bytes(chosen: &[ChosenToken]) -> Vec<u8> {
    let words = |chosen: &ChosenToken| {
        std::iter::once(chosen.token)
            .chain(chosen.logits.iter().map(|logit| logit.to_bits()))
            .collect::<Vec<u32>>()
    };
    chosen.iter().flat_map(words).flat_map(u32::to_le_bytes).collect()
}

/// The inverse of `chosen_to_bytes` for `count` sequences; `None` if their lists are empty or of unequal lengths.
fn chosen_from_bytes(bytes: &[u8], count: usize) -> Option<Vec<ChosenToken>> {
    let (words, []) = bytes.as_chunks::<4>() else { return None };
    let each = words.len() / count;
    (each > 0 && each * count == words.len()).then(|| {
        let words: Vec<u32> = words.iter().map(|word| u32::from_le_bytes(*word)).collect();
        let chosen = words.chunks_exact(each).map(|words| ChosenToken {
            token: words[0],
            logits: words[1..].iter().map(|bits| f32::from_bits(*bits)).collect(),
        });
        chosen.collect()
    })
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn chosen_tokens_arrive_as_they_were_sent() {
        let chosen = |token, logits: &[f32]| ChosenToken { token, logits: logits.into() };
        for all in [
            vec![chosen(7, &[]), chosen(u32::MAX, &[])],
            vec![chosen(1, &[0.5, -2.0]), chosen(0, &[1e-9, 3.0])],
        ] {
            let bytes = chosen_to_bytes(&all);
            assert_eq!(chosen_from_bytes(&bytes, 2), Some(all));
            assert_eq!(chosen_from_bytes(&bytes[..bytes.len() - 1], 2), None);
            assert_eq!(chosen_from_bytes(&bytes[..bytes.len() - 4], 2), None);
        }
        assert_eq!(chosen_from_bytes(&[], 2), None);
    }
}
