//! A run leaves a timeline with the simulator's names, and its loss falls.

use crate::drafts::{Draft, settings, tokens};
use trainwright_executor::{LearningRate, Settings, train};
use trainwright_spec::program::Stream;
use trainwright_timeline::timeline::{Activity, Timeline};

#[test]
fn the_loss_falls() {
    for model in ["gpt", "llama"] {
        let plan = Draft { optimizer: "adamw", micro_batch: 4, ..Draft::of(model) }.plan();
        let steps = Settings {
            learning_rate: LearningRate { warmup: 5, ..LearningRate::constant(0.005) },
            adam_epsilon: 1e-8,
            ..settings(40)
        };
        let outcome = train(&plan, &tokens(), &steps, &mut |_| {}).unwrap();
        let (first, last) = (outcome.steps[0].loss, outcome.steps[39].loss);
        // Every token alike: ln 67 = 4.205.
        assert!((first - 67f64.ln()).abs() < 0.1 && last < first - 0.5, "{model}: {first} {last}");
    }
}

fn check_timeline(timeline: &Timeline, spans_at_least: usize) {
    assert!(timeline.spans.len() >= spans_at_least);
    for pair in timeline.spans.windows(2) {
        let key = |index: usize| {
            (pair[index].rank, Stream::ALL.iter().position(|stream| *stream == pair[index].stream))
        };
        assert!(key(0) < key(1) || key(0) == key(1) && pair[0].end <= pair[1].start, "{pair:?}");
    }
    assert!(timeline.spans.iter().all(|span| span.end <= timeline.duration && span.start <= span.end));
    let mut held = 0.0;
    for change in timeline.memory.iter().filter(|change| change.rank == 0) {
        held += change.bytes.get();
        assert!(held >= 0.0);
    }
}

#[test]
fn every_op_of_the_last_step_is_a_span() {
    let draft = Draft { mesh: [2, 2, 1], ..Draft::of("llama") };
    let timeline = draft.train().unwrap().timeline;
    assert_eq!(timeline.ranks.len(), 4);
    // 8 microbatches, 2 blocks and more, forward and backward, 12 ops each at least, on each rank.
    check_timeline(&timeline, 4 * 8 * 2 * 2 * 12);
    let names: Vec<&str> = timeline.labels.iter().map(String::as_str).collect();
    for name in
        ["block 0 qkv", "block 3 attention", "embedding", "loss", "optimizer", "block 1 reduce output"]
    {
        assert!(names.contains(&name), "{name}");
    }
    assert!(timeline.spans.iter().any(|span| span.activity == Activity::Wait));
}
