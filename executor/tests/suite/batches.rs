//! Continuous batching: logits of batches against those of each sequence alone, for model families and plans.

use crate::drafts::{Draft, settings};
use trainwright_executor::{
    Batch, BatchPart, ChosenToken, RunError, Serving, Settings, WeightFormat, serve_batches,
};
use trainwright_spec::plan::Plan;

/// A sequence that is served: its tokens so far, how many are computed, and the logits of each token of the answer.
struct Sequence {
    tokens: Vec<u32>,
    prompt: usize,
    answer: usize,
    computed: usize,
    logits: Vec<Vec<f32>>,
}

impl Sequence {
    fn new(number: usize) -> Self {
        let prompt = [5, 1, 8, 3, 2, 7][number];
        let tokens = (0..prompt).map(|position| ((number * 23 + position * position * 5 + 3) % 67) as u32);
        let answer = [6, 9, 4, 1, 11, 5][number];
        Self { tokens: tokens.collect(), prompt, answer, computed: 0, logits: Vec::new() }
    }

    fn is_done(&self) -> bool {
        self.tokens.len() == self.prompt + self.answer
    }

    /// Its next tokens, at most `most` of them.
    fn part(&mut self, sequence: usize, most: usize) -> BatchPart {
        let first = self.computed;
        let tokens = self.tokens[first..].iter().copied().take(most).collect::<Vec<u32>>();
        self.computed += tokens.len();
        BatchPart { sequence, first, samples: self.computed == self.tokens.len(), tokens }
    }

    fn take(&mut self, chosen: ChosenToken) {
        // A token that is computed again is chosen again, from the same logits.
        self.tokens.push(chosen.token);
        self.logits.push(chosen.logits);
    }
}

const SEQUENCES: usize = 6;

/// Serves all sequences: `parts` gives those of the step of that number with the most tokens that each computes, and those that
/// lose their keys and values before it.
fn served(
    plan: &Plan,
    parts: impl Fn(usize, &[Sequence]) -> (Vec<usize>, Vec<(usize, usize)>),
) -> Vec<Sequence> {
    let mut serving = Serving::new([20, 60, SEQUENCES, 200], WeightFormat::Fp32);
    serving.return_logits = true;
    let settings = Settings { serving: Some(serving), ..settings(1) };
    let ran: Result<Vec<Sequence>, RunError> = serve_batches(plan, &settings, &mut |_| {}, |ranks| {
        let mut sequences: Vec<Sequence> = (0..SEQUENCES).map(Sequence::new).collect();
        let mut step = 0;
        while sequences.iter().any(|sequence| !sequence.is_done()) {
            let (freed, works) = parts(step, &sequences);
            freed.iter().for_each(|sequence| sequences[*sequence].computed = 0);
            let works = works.into_iter().filter(|(sequence, _)| !sequences[*sequence].is_done());
            let parts: Vec<BatchPart> = works
                .collect::<Vec<_>>()
                .into_iter()
                .map(|(sequence, most)| sequences[sequence].part(sequence, most))
                .collect();
            let sampled: Vec<usize> =
                parts.iter().filter(|part| part.samples).map(|part| part.sequence).collect();
            let chosen = ranks.run(Batch { freed, parts })?;
            assert_eq!(chosen.len(), sampled.len());
            sampled.into_iter().zip(chosen).for_each(|(sequence, chosen)| sequences[sequence].take(chosen));
            step += 1;
            assert!(step < 200, "every sequence goes on");
        }
        Ok(sequences)
    });
    ran.unwrap_or_else(|error| panic!("{error}"))
}

/// One sequence after the other: a whole prompt, then token after token.
fn one_by_one(_: usize, sequences: &[Sequence]) -> (Vec<usize>, Vec<(usize, usize)>) {
    let next = sequences.iter().position(|sequence| !sequence.is_done()).expect("one is not done");
    (Vec::new(), vec![(next, usize::MAX)])
}

/// Chunks of prompts and single tokens together; sequences come one after the other, in changing orders. Two lose their keys and
/// values on the way, one of them in the middle of its prompt. Some steps choose no token.
fn together(step: usize, sequences: &[Sequence]) -> (Vec<usize>, Vec<(usize, usize)>) {
    if step == 0 {
        return (Vec::new(), vec![(2, 3)]);
    }
    let freed = match step {
        2 => vec![2],
        7 => vec![1, 4],
        _ => Vec::new(),
    };
    let mut works: Vec<(usize, usize)> =
        (0..sequences.len().min(1 + step)).map(|sequence| (sequence, 3)).collect();
    works.rotate_left(step % sequences.len().min(1 + step));
    works.truncate(4);
    (freed, works)
}

/// The largest difference of two sequences' logits, by the largest logit.
fn apart(found: &Sequence, expected: &Sequence) -> f32 {
    let pairs = || found.logits.iter().flatten().zip(expected.logits.iter().flatten());
    let largest = pairs().map(|(_, expected)| expected.abs()).fold(0.0, f32::max);
    pairs().map(|(found, expected)| (found - expected).abs()).fold(0.0, f32::max) / largest
}

/// Every product, norm and query is of one row, so that no bit depends on the others. A ring of more than two ranks adds parts in an
/// order that depends on a row's place.
#[test]
fn logits_of_batches_are_those_of_each_sequence_alone() {
    for model in ["gpt", "llama", "mixtral"] {
        let of = |mesh| Draft { mesh, ..Draft::of(model) };
        let one_rank = served(&of([1, 1, 1]).plan(), one_by_one);
        let mut drafts = vec![of([1, 1, 1]), of([2, 1, 1]), of([1, 2, 1]), of([1, 4, 1]), of([2, 2, 1])];
        drafts.push(Draft { virtual_stages: 2, schedule: "interleaved", ..of([1, 2, 1]) });
        if model == "gpt" {
            drafts.push(of([4, 1, 1]));
        }
        for draft in drafts {
            let (alone, batched) = (served(&draft.plan(), one_by_one), served(&draft.plan(), together));
            for (number, (found, expected)) in batched.iter().zip(&alone).enumerate() {
                let case = format!("{draft:?}, sequence {number}");
                assert_eq!(found.logits.len(), found.answer, "{case}");
                assert_eq!(found.tokens, expected.tokens, "{case}");
                match draft.mesh[0] {
                    4 => assert!(apart(found, expected) < 1e-5, "{case}: {}", apart(found, expected)),
                    _ => assert!(found.logits == expected.logits, "{case}: {}", apart(found, expected)),
                }
                // The parts of a sum over tensor ranks are added in another order than on one rank.
                assert_eq!(found.tokens, one_rank[number].tokens, "{case}");
                let error = apart(found, &one_rank[number]);
                assert!(if draft.mesh[0] == 1 { error == 0.0 } else { error < 1e-5 }, "{case}: {error}");
            }
        }
    }
}

#[test]
fn what_cannot_be_served_is_refused_before_a_rank_runs() {
    let check = |draft: Draft, serving: Serving, expected: &str| {
        let settings = Settings { serving: Some(serving), ..settings(1) };
        let ran: Result<(), RunError> =
            serve_batches(&draft.plan(), &settings, &mut |_| {}, |_| panic!("{expected}"));
        let error = ran.unwrap_err().to_string();
        assert!(error.contains(expected), "{error}");
    };
    let serving = |longest, weights| Serving::new([longest, 8, 2, 40], weights);
    let plain = || serving(20, WeightFormat::Fp32);
    check(Draft { mesh: [1, 1, 2], ..Draft::of("gpt") }, plain(), "a scheduler has one replica");
    check(Draft::of("gpt"), serving(21, WeightFormat::Fp32), "the model has 20 positions");
    check(Draft::of("gpt"), serving(20, WeightFormat::Int8), "new weights are not rounded");
    check(Draft { context: [2, 1], ..Draft::of("gpt") }, plain(), "generate with `context = 1`");
}

/// A sequence that does not go on behind its tokens is a bug of the scheduler: the run ends with the rank that notices it.
#[test]
fn a_batch_that_does_not_fit_the_caches_ends_the_run() {
    let serving = Some(Serving::new([20, 8, 2, 40], WeightFormat::Fp32));
    let settings = Settings { serving, ..settings(1) };
    for mesh in [[1, 1, 1], [2, 2, 1]] {
        let plan = Draft { mesh, ..Draft::of("gpt") }.plan();
        let ran: Result<(), RunError> = serve_batches(&plan, &settings, &mut |_| {}, |ranks| {
            let part = |first| BatchPart { sequence: 0, first, tokens: vec![1, 2], samples: true };
            let batch = |first| Batch { freed: Vec::new(), parts: vec![part(first)] };
            ranks.run(batch(0))?;
            ranks.run(batch(3)).map(drop)
        });
        let error = ran.unwrap_err().to_string();
        assert!(error.contains("sequence 0 goes on behind its cache"), "{error}");
    }
}
