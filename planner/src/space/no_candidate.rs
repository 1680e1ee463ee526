//! Why a question has no candidate at all: the first thing that stands in the way.

use super::dimensions::{LAYOUT, PIPELINE, STATE, extended};
use super::offload_kinds;
use super::pin_choices::RECOMPUTE;
use crate::candidate::Candidate;
use crate::question::Question;
use trainwright_spec::plan::{pipeline_allowed, tensor_degree_allowed};
use trainwright_spec::schedule::schedule;

/// When the pins leave a block no way to be run.
pub(super) fn no_recompute(question: &Question) -> String {
    let pins = &question.pins;
    format!("pins leave `{RECOMPUTE}` nothing: {}", pins.words_of(RECOMPUTE))
}

/// When no layout is left before any rule is asked.
pub(super) fn no_layout(question: &Question) -> String {
    if let Some(reason) = no_mesh(question) {
        return reason;
    }
    let mut drafts = vec![Candidate::plainest(question)];
    for dimension in LAYOUT {
        let next = extended(question, std::slice::from_ref(dimension), drafts.clone());
        if next.is_empty() {
            let last = drafts.last().expect("there were drafts so far");
            return match dimension.key() {
                "tensor" | "pipeline" | "data" if !pins_name(question, dimension.key()) => {
                    mesh_in_general(question)
                }
                key => refusal(question, key, last),
            };
        }
        drafts = next;
    }
    mesh_in_general(question)
}

/// Whether a pin with a key and a value names this key.
fn pins_name(question: &Question, key: &str) -> bool {
    question.pins.only.iter().chain(&question.pins.never).any(|(name, _)| name == key)
}

/// When there are layouts, but no schedule or no place of the state that goes with any; `refused` is the first verdict
/// on a pair.
pub(super) fn nothing_goes_together(
    question: &Question,
    layouts: &[Candidate],
    refused: Option<String>,
) -> String {
    // The longest pipeline with most microbatches leaves schedules the most room: its reason is the telling one.
    let room =
        |layout: &&Candidate| (layout.mesh.pipeline, layout.shape(question.job.global_batch).microbatches);
    let longest = layouts.iter().max_by_key(room).expect("there are layouts");
    for dimension in STATE {
        let next = extended(question, std::slice::from_ref(dimension), vec![*longest]);
        if next.is_empty() {
            return refusal(question, dimension.key(), longest);
        }
    }
    if extended(question, PIPELINE, vec![*longest]).is_empty() {
        return no_pipeline(question, longest);
    }
    refused.unwrap_or_else(|| "no schedule goes with any place of the training state".into())
}

/// Why a layout has no schedule: later schedules and more stages are those with conditions.
fn no_pipeline(question: &Question, layout: &Candidate) -> String {
    let (model, pipeline) = (&question.model, layout.mesh.pipeline);
    let names = question.pins.pinned("schedule").unwrap_or_default();
    let stack = &question.stack;
    if names.is_empty() && !stack.has_pipelines() {
        return format!(
            "stack {} has no pipelines: pin a schedule to plan with one all the same",
            stack.name
        );
    }
    let pinned = question.pins.pinned("virtual-stages").unwrap_or_default();
    let stages: Vec<usize> = pinned.iter().filter_map(|text| text.parse().ok()).collect();
    let stages = if stages.is_empty() { vec![1, 2] } else { stages };
    for (name, virtual_stages) in
        names.iter().rev().flat_map(|name| stages.iter().rev().map(move |v| (name, *v)))
    {
        let candidate = Candidate { virtual_stages, ..*layout };
        let shape = candidate.shape(question.job.global_batch);
        match schedule(name) {
            Err(error) => return error.to_string(),
            Ok(schedule) => {
                if let Err(reason) = schedule.check(shape) {
                    return reason;
                }
            }
        }
    }
    let most = stages.iter().max().copied().unwrap_or(1).saturating_mul(pipeline);
    pipeline_allowed(model, most).err().unwrap_or_else(|| "no schedule exists for any pipeline".into())
}

/// Why a dimension has no value for a draft.
fn refusal(question: &Question, key: &str, draft: &Candidate) -> String {
    let (stack, tensor) = (&question.stack, draft.mesh.tensor);
    let pinned = question.pins.pinned(key).unwrap_or_default().join(", ");
    match key {
        "sequence-parallel" if !stack.sequence_parallel => {
            format!("stack {} has no sequence parallelism", stack.name)
        }
        "sequence-parallel" if tensor == 1 => {
            "sequence parallelism needs a tensor degree of 2 or more".into()
        }
        "micro-batch" => {
            let sequences = question.job.global_batch / draft.mesh.data;
            format!("microbatch {pinned} does not divide the {sequences} sequences of a data rank")
        }
        "data-sharding" if !stack.has_data_scheme(&pinned) && pinned == "zero1" => {
            format!("stack {} has no sharded optimizer", stack.name)
        }
        "data-sharding" if !stack.has_data_scheme(&pinned) => {
            format!("stack {} has no data-parallel scheme {pinned}", stack.name)
        }
        offload_kinds::OFFLOAD if question.job.optimizer().of_matrices().is_some() => format!(
            "processors update element by element: no offload {pinned} with optimizer {}",
            question.job.optimizer
        ),
        "data-sharding" => format!("data sharding {pinned} needs a data degree of 2 or more"),
        _ => format!("pins leave `{key}` nothing: {}", question.pins.words_of(key)),
    }
}

/// Which rule leaves no tensor, pipeline and data degree, if one of these three does.
pub(super) fn no_mesh(question: &Question) -> Option<String> {
    let Question { model, cluster, job, pins, .. } = question;
    let gpus = cluster.gpus();
    let axes = [("tensor", pins.tensor), ("pipeline", pins.pipeline), ("data", pins.data)];
    let given: Vec<(&str, usize)> =
        axes.into_iter().filter_map(|(name, pin)| pin.map(|size| (name, size))).collect();
    for (name, size) in &given {
        if *size == 0 || !gpus.is_multiple_of(*size) {
            return Some(format!("{name} {size} does not divide the cluster's {gpus} GPUs"));
        }
    }
    if let Some(tensor) = pins.tensor
        && let Err(reason) = tensor_degree_allowed(model, tensor)
    {
        return Some(format!("tensor {tensor}: {reason}"));
    }
    if let Some(pipeline) = pins.pipeline
        && let Err(reason) = pipeline_allowed(model, pipeline)
    {
        return Some(format!("pipeline {pipeline}: {reason}"));
    }
    if let Some(data) = pins.data
        && !job.global_batch.is_multiple_of(data)
    {
        return Some(format!("data {data} does not divide global batch {}", job.global_batch));
    }
    let words: Vec<String> = given.iter().map(|(name, size)| format!("{name} {size}")).collect();
    let product = given.iter().fold(1usize, |product, (_, size)| product.saturating_mul(*size));
    let odd = !gpus.is_multiple_of(product) || (given.len() == axes.len() && product != gpus);
    odd.then(|| format!("{} is {product} ranks, and the cluster has {gpus} GPUs", words.join(" x ")))
}

/// The conditions that tensor, pipeline and data degrees have to meet together.
pub(super) fn mesh_in_general(question: &Question) -> String {
    let Question { model, cluster, job, pins, .. } = question;
    let axes = [("tensor", pins.tensor), ("pipeline", pins.pipeline), ("data", pins.data)];
    let given = axes.into_iter().filter_map(|(name, pin)| pin.map(|size| format!("{name} {size}")));
    let words = given.collect::<Vec<_>>().join(" x ");
    let with = if words.is_empty() { String::new() } else { format!(" with {words}") };
    format!(
        "no tensor x pipeline x data of {} GPUs{with} has a tensor degree that divides the model's heads and \
         widths, a pipeline of at most {} stages, and a data degree that divides global batch {}",
        cluster.gpus(),
        model.layers() + 2,
        job.global_batch
    )
}
