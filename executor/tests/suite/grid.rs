//! Plans of every axis, of pairs, triples and more of them, and of every schedule, on up to 16 ranks. Every 307th runs for three
//! steps, every 101st in long tests; with `TRAINWRIGHT_FULL_GRID=n` every n-th, for ten steps below 101.

use crate::drafts::{Draft, model};
use crate::long::cases;
use crate::parity::check_all;
use trainwright_spec::plan::Recompute;
use trainwright_spec::schedule::SCHEDULES;

/// A choice on one axis.
type Choice = fn(&mut Draft);

const TENSOR: [Choice; 3] = [
    |draft| (draft.mesh[0], draft.tensor_rows, draft.micro_batch) = (4, 2, 2),
    |draft| draft.mesh[0] = 2,
    |draft| {
        draft.mesh[0] = 2;
        draft.sequence_parallel = true;
    },
];

const PIPELINE: [Choice; 5] = [
    |draft| draft.mesh[1] = 2,
    |draft| (draft.mesh[1], draft.schedule) = (2, "zb-h1"),
    |draft| (draft.mesh[1], draft.schedule, draft.virtual_stages) = (2, "dualpipev", 2),
    |draft| (draft.mesh[1], draft.schedule, draft.virtual_stages) = (2, "interleaved", 2),
    |draft| (draft.mesh[1], draft.schedule) = (2, "chimera"),
];

const DATA: [Choice; 5] = [
    |draft| draft.mesh[2] = 2,
    |draft| (draft.mesh[2], draft.data_sharding) = (2, "zero1"),
    |draft| (draft.mesh[2], draft.data_sharding) = (2, "zero2"),
    |draft| (draft.mesh[2], draft.data_sharding) = (2, "zero3"),
    |draft| (draft.mesh[2], draft.data_sharding, draft.shard) = (4, "hsdp", 2),
];

const CONTEXT: [Choice; 4] = [
    |draft| draft.context = [2, 1],
    |draft| (draft.context, draft.context_scheme) = ([2, 1], "all-gather"),
    |draft| (draft.context, draft.context_scheme) = ([2, 1], "ulysses"),
    |draft| (draft.context, draft.context_scheme) = ([4, 2], "hybrid"),
];

const EXPERT: [Choice; 3] = [
    |draft| draft.expert[0] = 2,
    |draft| (draft.expert[0], draft.dispatcher) = (2, "all-gather"),
    |draft| draft.expert[0] = 4,
];

const RECOMPUTE: [Choice; 2] =
    [|draft| draft.recompute = Recompute::Full, |draft| draft.recompute = Recompute::Selective];

const AXES: [&[Choice]; 6] = [&TENSOR, &PIPELINE, &DATA, &CONTEXT, &EXPERT, &RECOMPUTE];

/// Every choice on every set of axes, as far as it gives a valid plan.
pub fn drafts(model: &'static str) -> Vec<Draft> {
    let mut drafts = vec![Draft { optimizer: "adamw", ..Draft::of(model) }];
    for axis in AXES {
        let more: Vec<Draft> = drafts
            .iter()
            .flat_map(|draft| {
                axis.iter().map(|choice| {
                    let mut draft = draft.clone();
                    choice(&mut draft);
                    draft
                })
            })
            .collect();
        drafts.extend(more);
    }
    for schedule in SCHEDULES.iter().filter(|schedule| schedule.flushes()) {
        for (pipeline, virtual_stages) in [(2, 1), (4, 1), (2, 2)] {
            let schedule = schedule.name();
            drafts.push(Draft { mesh: [1, pipeline, 1], schedule, virtual_stages, ..drafts[0].clone() });
        }
    }
    drafts.retain(|draft| ranks(draft) <= 16 && draft.try_plan().is_ok());
    drafts
}

fn ranks(draft: &Draft) -> usize {
    draft.mesh.iter().product::<usize>() * draft.context[0]
}

#[test]
fn every_axis_with_every_other() {
    let all: Vec<Draft> = ["gpt", "llama", "mixtral"].into_iter().flat_map(drafts).collect();
    assert!(all.len() > 300 && all.iter().any(|draft| ranks(draft) == 16), "{}", all.len());
    assert_eq!(model("mixtral").blocks.len(), 1);
    // Steps that no number of choices on an axis divides.
    let every = cases("TRAINWRIGHT_FULL_GRID", 307, 101);
    let steps = if every < 101 { 10 } else { 3 };
    let chosen: Vec<Draft> = all.into_iter().step_by(every).map(|draft| Draft { steps, ..draft }).collect();
    // Some at a time, so that one sees how far it is.
    chosen.chunks(200).for_each(check_all);
}
