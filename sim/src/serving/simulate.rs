//! Requests through an engine, step by step.

use super::load::{Load, Request};
use super::policies::Policy;
use super::queue::{Limits, Queue, Work};
use super::step::Batch;
use super::step_source::StepSource;
use crate::libraries::Unknown;
use std::collections::VecDeque;
use thiserror::Error;
use trainwright_spec::statistics::quantile;
use trainwright_spec::units::Seconds;

/// Steps that are summed at once, where the same sequences compute a token each, at most.
const STRIDE: usize = 64;

/// A request that was served.
#[derive(Debug, Clone, Copy, PartialEq)]
pub struct ServedRequest {
    /// Tokens of its prompt.
    pub input: usize,
    /// Tokens of its answer.
    pub output: usize,
    /// When it arrived.
    pub arrival: Seconds,
    /// When its first token was there.
    pub first: Seconds,
    /// When its last token was there.
    pub last: Seconds,
}

impl ServedRequest {
    /// Time to the first token.
    pub fn ttft(&self) -> Seconds {
        self.first - self.arrival
    }

    /// Time for each token after the first; `None` if there is none.
    pub fn tpot(&self) -> Option<Seconds> {
        (self.output > 1).then(|| (self.last - self.first) / (self.output - 1) as f64)
    }

    /// Time to the last token.
    pub fn latency(&self) -> Seconds {
        self.last - self.arrival
    }
}

/// The state of an engine after a step.
#[derive(Debug, Clone, Copy, PartialEq)]
pub struct Sample {
    /// When.
    pub at: Seconds,
    /// Sequences that run.
    pub running: usize,
    /// Sequences that wait.
    pub waiting: usize,
    /// Blocks of the cache that are held.
    pub blocks: usize,
}

/// What became of requests.
#[derive(Debug, Clone, PartialEq, Default)]
pub struct Served {
    /// Every request, in the order of the load.
    pub requests: Vec<ServedRequest>,
    /// When the last ended.
    pub duration: Seconds,
    /// Steps of the engine.
    pub steps: usize,
    /// How often a sequence lost its blocks.
    pub preemptions: usize,
    /// Most sequences that ran at once.
    pub most_running: usize,
    /// Its states.
    pub samples: Vec<Sample>,
}

impl Served {
    /// Mean time to the first token.
    pub fn mean_ttft(&self) -> Seconds {
        mean(self.requests.iter().map(ServedRequest::ttft))
    }

    /// Mean over requests of the time for each token after the first; zero if there are none.
    pub fn mean_tpot(&self) -> Seconds {
        mean(self.requests.iter().filter_map(ServedRequest::tpot))
    }

    /// Mean time to the last token.
    pub fn mean_latency(&self) -> Seconds {
        mean(self.requests.iter().map(ServedRequest::latency))
    }

    /// The time to the first token that a part of the requests does not exceed, 0.9 for P90.
    pub fn ttft_at(&self, part: f64) -> Seconds {
        quantile_of(self.requests.iter().map(ServedRequest::ttft), part)
    }

    /// The time for each token after the first that a part of the requests does not exceed; zero if there are none.
    pub fn tpot_at(&self, part: f64) -> Seconds {
        quantile_of(self.requests.iter().filter_map(ServedRequest::tpot), part)
    }

    /// Sequences that ran, in the mean over time.
    pub fn mean_running(&self) -> usize {
        let mut before = Seconds::ZERO;
        let mut sum = Seconds::ZERO;
        for sample in &self.samples {
            sum += sample.running as f64 * (sample.at - before);
            before = sample.at;
        }
        if before > Seconds::ZERO { (sum / before).round() as usize } else { 0 }
    }

    /// Tokens of answers per second.
    pub fn output_rate(&self) -> f64 {
        self.requests.iter().map(|request| request.output as f64).sum::<f64>() / self.duration.get()
    }

    /// Tokens of prompts and answers per second.
    pub fn total_rate(&self) -> f64 {
        self.requests.iter().map(|request| (request.input + request.output) as f64).sum::<f64>()
            / self.duration.get()
    }

    /// Requests per second.
    pub fn request_rate(&self) -> f64 {
        self.requests.len() as f64 / self.duration.get()
    }
}

fn mean(times: impl Iterator<Item = Seconds>) -> Seconds {
    let (count, sum) = times.fold((0, Seconds::ZERO), |(count, sum), time| (count + 1, sum + time));
    sum / f64::from(count.max(1))
}

fn quantile_of(times: impl Iterator<Item = Seconds>, part: f64) -> Seconds {
    let times: Vec<f64> = times.map(Seconds::get).collect();
    Seconds::new(quantile(&times, part))
}

/// Why requests cannot be served.
#[derive(Debug, Clone, PartialEq, Error)]
pub enum ServingError {
    /// The GPU lacks something.
    #[error("{0}")]
    Unknown(#[from] Unknown),
    /// A sequence is too long for the cache.
    #[error(
        "a sequence of {tokens} tokens needs more than the {capacity} tokens that the cache has room for"
    )]
    TooLong {
        /// Tokens of prompt and answer.
        tokens: usize,
        /// Tokens that the cache has room for.
        capacity: usize,
    },
}

/// Serves requests; the cache has room for `capacity` tokens.
///
/// # Errors
/// `TooLong` for a sequence that does not fit alone; those of the source of steps.
pub fn serve<S: StepSource>(
    steps: &mut S,
    policy: &dyn Policy,
    limits: Limits,
    capacity: usize,
    load: &Load,
) -> Result<Served, S::Error> {
    let requests = load.requests();
    let whole = |request: &Request| (request.input + request.output).div_ceil(limits.block) * limits.block;
    if let Some(long) = requests.iter().map(whole).filter(|tokens| *tokens > capacity).max() {
        return Err(ServingError::TooLong { tokens: long, capacity }.into());
    }
    let mut engine = Engine {
        steps,
        queue: Queue::new(requests, limits, capacity),
        now: Seconds::ZERO,
        on_the_way: VecDeque::new(),
        asked: 0,
        served: Served { requests: requests.iter().map(waiting).collect(), ..Served::default() },
    };
    let at_first = match load {
        Load::Open(requests) => requests.len(),
        Load::Closed { clients, .. } => (*clients).min(requests.len()),
    };
    for request in &requests[..at_first] {
        engine.ask(request.arrival);
    }
    loop {
        engine.arrivals();
        let waits = engine.queue.waiting.len();
        let works = policy.next(&mut engine.queue);
        if works.is_empty() {
            match engine.next_arrival() {
                Some(arrival) => engine.now = engine.now.max(arrival),
                None => {
                    // A sequence that fits alone runs at the latest when nobody else does.
                    assert!(
                        engine.queue.waiting.is_empty(),
                        "the policy {} leaves requests unserved",
                        policy.name()
                    );
                    break;
                }
            }
            continue;
        }
        let ended = engine.step(&works)?;
        let only_decodes = works.len() == engine.queue.running.len()
            && works.iter().all(|work| engine.queue.sequences[work.sequence].decodes());
        if only_decodes && !ended && waits == engine.queue.waiting.len() {
            engine.stride()?;
        }
    }
    let Engine { mut served, now, queue, .. } = engine;
    served.duration = now;
    served.preemptions = queue.preemptions;
    Ok(served)
}

fn waiting(request: &Request) -> ServedRequest {
    let Request { arrival, input, output, .. } = *request;
    ServedRequest { input, output: output.max(1), arrival, first: Seconds::ZERO, last: Seconds::ZERO }
}

/// An engine at work.
struct Engine<'a, S> {
    steps: &'a mut S,
    queue: Queue,
    now: Seconds,
    /// When requests that were asked reach the queue, in that order, and their numbers.
    on_the_way: VecDeque<(Seconds, usize)>,
    /// How many were asked.
    asked: usize,
    served: Served,
}

impl<S: StepSource> Engine<'_, S> {
    /// A client asks the next request.
    fn ask(&mut self, at: Seconds) {
        self.served.requests[self.asked].arrival = at;
        self.on_the_way.push_back((at + self.steps.request_delay(), self.asked));
        self.asked += 1;
    }

    /// When the next request reaches the queue; `None` if none is on the way.
    fn next_arrival(&self) -> Option<Seconds> {
        self.on_the_way.front().map(|(at, _)| *at)
    }

    fn arrivals(&mut self) {
        while let Some((at, index)) = self.on_the_way.front().copied()
            && at <= self.now
        {
            self.on_the_way.pop_front();
            self.queue.waiting.push_back(index);
        }
    }

    /// A step; whether a sequence ended.
    fn step(&mut self, works: &[Work]) -> Result<bool, S::Error> {
        self.now += self.steps.take(&self.queue, works)?;
        let (first, ended) = self.queue.carry_out(works);
        self.note(1, works.len());
        for sequence in first {
            self.served.requests[sequence].first = self.now;
        }
        let any = !ended.is_empty();
        for sequence in ended {
            self.served.requests[sequence].last = self.now;
            if self.asked < self.served.requests.len() {
                self.ask(self.now);
            }
        }
        Ok(any)
    }

    /// Goes over steps that are like the last one: the same sequences compute a token each, until one ends, a request arrives or the
    /// cache is full. The time is that of the step in the middle, as attention's grows evenly with the history.
    fn stride(&mut self) -> Result<(), S::Error> {
        let Queue { sequences, running, limits, free, .. } = &self.queue;
        let left =
            running.iter().map(|sequence| sequences[*sequence].output - sequences[*sequence].generated);
        let Some(left) = left.min() else { return Ok(()) };
        let mut steps = (left - 1).min(STRIDE);
        let blocks = |steps: usize| -> usize {
            let more = |sequence: &usize| {
                let state = &sequences[*sequence];
                (state.computed + steps).div_ceil(limits.block).saturating_sub(state.blocks)
            };
            running.iter().map(more).sum()
        };
        while steps > 0 && blocks(steps) > *free {
            steps /= 2;
        }
        if steps == 0 {
            return Ok(());
        }
        let works: Vec<Work> =
            running.iter().map(|sequence| Work { sequence: *sequence, tokens: 1 }).collect();
        let mut batch = batch(&self.queue, &works);
        batch.history += steps / 2;
        let Some(time) = self.steps.forecast(&batch)? else { return Ok(()) };
        if let Some(arrival) = self.next_arrival() {
            let before = ((arrival - self.now) / time).ceil().max(0.0) as usize;
            steps = steps.min(before);
        }
        for Work { sequence, .. } in &works {
            let tokens = self.queue.sequences[*sequence].computed + steps;
            let held = self.queue.hold(*sequence, tokens);
            debug_assert!(held, "blocks were counted");
            let state = &mut self.queue.sequences[*sequence];
            (state.computed, state.generated) = (state.computed + steps, state.generated + steps);
        }
        self.now += steps as f64 * time;
        self.note(steps, works.len());
        Ok(())
    }

    fn note(&mut self, steps: usize, running: usize) {
        self.served.steps += steps;
        self.served.most_running = self.served.most_running.max(running);
        let blocks = self.queue.running.iter().map(|sequence| self.queue.sequences[*sequence].blocks).sum();
        let sample = Sample {
            at: self.now,
            running: self.queue.running.len(),
            waiting: self.queue.waiting.len(),
            blocks,
        };
        self.served.samples.push(sample);
    }
}

/// What the sequences of a step do.
pub(super) fn batch(queue: &Queue, works: &[Work]) -> Batch {
    let mut batch = Batch::default();
    let (mut before, mut history) = (0, 0);
    for Work { sequence, tokens } in works {
        let state = &queue.sequences[*sequence];
        if state.decodes() {
            batch.decodes += 1;
            history += state.computed;
        } else {
            batch.chunks += 1;
            batch.queries += tokens;
            before += state.computed;
        }
        batch.sampled += usize::from(state.left() == *tokens);
    }
    batch.before = before / batch.chunks.max(1);
    batch.history = history / batch.decodes.max(1);
    batch
}
