//! Generation behind prompts: a pass over a prompt, then one for each token, of one sequence at a time.

use super::Rank;
use super::passes::{Choice, NewTokens};
use crate::comm::transport::{Envelope, Tag};
use crate::error::Fault;
use crate::train::frame::KeyValues;
use crate::train::generation::sampling::Sampling;
use crate::train::generation::{Completion, Generation, TrainingSample};
use crate::train::instruction::Instruction;
use crate::train::run_context::RunContext;
use crate::train::sizes::Divides;
use std::collections::BTreeMap;
use std::time::Instant;
use trainwright_spec::program::RankProgram;

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
        let Choosing { sampling, prompt: number, count, stop, returns_logits } = choosing;
        let mut key_values = KeyValues::default();
        let (mut tokens, mut prefill, mut logits) = (Vec::new(), 0.0, Vec::new());
        loop {
            let (new, first) = match tokens.last() {
                None => (prompt, 0),
                Some(last) => (std::slice::from_ref(last), prompt.len() + tokens.len() - 1),
            };
            let part = NewTokens { tokens: new, first, samples: true, key_values: &mut key_values };
            let made = self.pass(&mut [part])?;
            let choice = Choice { sampling, prompt: number, place: tokens.len() };
            for chosen in self.choose(made, &[choice], returns_logits)? {
                tokens.push(chosen.token);
                logits.extend(returns_logits.then_some(chosen.logits));
            }
            if tokens.len() == 1 {
                prefill = began.elapsed().as_secs_f64();
            }
            if tokens.len() == count || tokens.last() == stop.as_ref() {
                break;
            }
        }
        if self.sizes.divides == Divides::Weights {
            // Some stay gathered until backward.
            self.state.layers_mut().for_each(|(_, layer)| layer.weights.free_full());
        }
        let decode = began.elapsed().as_secs_f64() - prefill;
        Ok(Completion { tokens, prefill, decode, logits })
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
