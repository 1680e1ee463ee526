//! The sequences of an engine, and the blocks of its cache that they hold.

use super::load::Request;
use std::collections::VecDeque;

/// Work of one sequence in a step.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Work {
    /// The sequence, by its number.
    pub sequence: usize,
    /// Tokens that are computed; the last of a prompt, or of what is left of it, gives a new token.
    pub tokens: usize,
}

/// A sequence.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Sequence {
    /// Tokens of its prompt.
    pub input: usize,
    /// Tokens of its answer.
    pub output: usize,
    /// Tokens whose keys and values are in the cache.
    pub computed: usize,
    /// Tokens of the answer that are there.
    pub generated: usize,
    /// Blocks of the cache that it holds.
    pub blocks: usize,
}

impl Sequence {
    /// Tokens to compute before the next token is there: what is left of the prompt, or the last token.
    pub fn left(&self) -> usize {
        self.input + self.generated - self.computed
    }

    /// Whether its next step gives a token after one token of work.
    pub fn decodes(&self) -> bool {
        self.generated > 0 && self.left() == 1
    }
}

/// What limits a step.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Limits {
    /// Sequences of a step at most.
    pub sequences: usize,
    /// Tokens of a step at most.
    pub tokens: usize,
    /// Tokens in a block of the cache.
    pub block: usize,
}

/// The sequences that wait and those that run.
#[derive(Debug, Clone)]
pub struct Queue {
    /// Every sequence, by its number.
    pub sequences: Vec<Sequence>,
    /// Those that wait, the next first.
    pub waiting: VecDeque<usize>,
    /// Those that run, in the order of their admission.
    pub running: Vec<usize>,
    /// What limits a step.
    pub limits: Limits,
    /// Blocks of the cache that nobody holds.
    pub free: usize,
    /// How often a sequence lost its blocks and went back to wait.
    pub preemptions: usize,
}

impl Queue {
    /// Nobody waits; the cache has room for `capacity` tokens.
    pub fn new(requests: &[Request], limits: Limits, capacity: usize) -> Self {
        let sequence = |request: &Request| Sequence {
            input: request.input,
            output: request.output,
            computed: request.cached,
            generated: 0,
            blocks: 0,
        };
        Self {
            sequences: requests.iter().map(sequence).collect(),
            waiting: VecDeque::new(),
            running: Vec::new(),
            limits,
            free: capacity / limits.block,
            preemptions: 0,
        }
    }

    /// Gives a sequence the blocks that so many tokens in all need; `false`, and nothing, if too few are free.
    pub fn hold(&mut self, sequence: usize, tokens: usize) -> bool {
        let held = self.sequences[sequence].blocks;
        // Most tokens go to the block of the one before: that needs no division.
        if tokens <= held * self.limits.block {
            return true;
        }
        let more = tokens.div_ceil(self.limits.block).saturating_sub(held);
        if more > self.free {
            return false;
        }
        self.free -= more;
        self.sequences[sequence].blocks += more;
        true
    }

    /// Takes the blocks of a sequence back.
    fn release(&mut self, sequence: usize) {
        self.free += std::mem::take(&mut self.sequences[sequence].blocks);
    }

    /// The sequence that was admitted last goes back to the front of those that wait, and computes all its tokens again.
    pub fn preempt_last(&mut self) -> Option<usize> {
        let last = self.running.pop()?;
        self.release(last);
        self.sequences[last].computed = 0;
        self.waiting.push_front(last);
        self.preemptions += 1;
        Some(last)
    }

    /// The first that waits runs.
    pub fn admit(&mut self) {
        let first = self.waiting.pop_front();
        self.running.extend(first);
    }

    /// Those that wait run, the first first, while a step has room for another sequence, tokens of the budget are left and the cache
    /// has room for what the first computes: its prompt as far as the budget allows. Adds their work.
    pub fn admit_chunks(&mut self, mut budget: usize, works: &mut Vec<Work>) {
        while let Some(sequence) = self.waiting.front().copied()
            && self.running.len() < self.limits.sequences
            && budget > 0
        {
            let state = self.sequences[sequence];
            let tokens = state.left().min(budget);
            if !self.hold(sequence, state.computed + tokens) {
                break;
            }
            self.admit();
            works.push(Work { sequence, tokens });
            budget -= tokens;
        }
    }

    /// Every running sequence that decodes, with one token each and its blocks; those admitted last lose theirs where too few are
    /// free.
    pub fn all_decodes(&mut self) -> Vec<Work> {
        let mut works = Vec::with_capacity(self.running.len());
        let mut index = 0;
        while index < self.running.len() {
            let sequence = self.running[index];
            if self.sequences[sequence].decodes() {
                if !self.hold_or_preempt(sequence, 1) {
                    break;
                }
                works.push(Work { sequence, tokens: 1 });
            }
            index += 1;
        }
        works
    }

    /// Blocks for `tokens` more of a running sequence; others lose theirs for it, the last admitted first. `false` if it was its
    /// own turn to lose them.
    pub fn hold_or_preempt(&mut self, sequence: usize, tokens: usize) -> bool {
        let needed = self.sequences[sequence].computed + tokens;
        while !self.hold(sequence, needed) {
            if self.preempt_last() == Some(sequence) {
                return false;
            }
        }
        true
    }

    /// Carries work out. Returns the sequences that got their first token, and those that ended and no longer run.
    pub fn carry_out(&mut self, works: &[Work]) -> (Vec<usize>, Vec<usize>) {
        let (mut first, mut ended) = (Vec::new(), Vec::new());
        for Work { sequence, tokens } in works {
            let state = &mut self.sequences[*sequence];
            state.computed += tokens;
            if state.left() > 0 {
                continue;
            }
            state.generated += 1;
            if state.generated == 1 {
                first.push(*sequence);
            }
            if state.generated == state.output {
                ended.push(*sequence);
            }
        }
        for sequence in &ended {
            self.release(*sequence);
        }
        if ended.is_empty() {
            return (first, ended);
        }
        let sequences = &self.sequences;
        self.running.retain(|sequence| sequences[*sequence].generated < sequences[*sequence].output);
        (first, ended)
    }
}
