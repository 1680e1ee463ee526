//! The choices that a reader might have expected of the best plan, as a table.

use crate::candidate::Candidate;
use crate::question::Question;
use trainwright_spec::mesh::Mesh;
use trainwright_spec::plan::{Plan, Recompute};
use trainwright_spec::schedule::SCHEDULES;

/// A choice that a reader might have expected.
pub(super) struct Choice {
    pub words: String,
    /// Which layouts make it.
    pub layouts: Box<dyn Fn(&Candidate) -> bool + Sync>,
    /// Which of their candidates make it.
    pub candidates: Box<dyn Fn(&Candidate) -> bool + Sync>,
    /// The same recomputation for every block; `None` if the choice is about something else.
    pub recompute: Option<Recompute>,
}

impl Choice {
    /// Of a layout.
    fn of(words: impl Into<String>, layouts: impl Fn(&Candidate) -> bool + Sync + 'static) -> Self {
        let words = words.into();
        Self { words, layouts: Box::new(layouts), candidates: Box::new(|_| true), recompute: None }
    }

    /// Of a schedule or a place of the state, in the same mesh.
    fn in_mesh(
        words: impl Into<String>,
        mesh: Mesh,
        candidates: impl Fn(&Candidate) -> bool + Sync + 'static,
    ) -> Self {
        let in_mesh = move |layout: &Candidate| layout.mesh == unsharded(mesh);
        Self { candidates: Box::new(candidates), ..Self::of(words, in_mesh) }
    }

    /// Of one candidate.
    fn exactly(words: impl Into<String>, candidate: Candidate) -> Self {
        let layout = candidate.layout();
        let layouts = Box::new(move |other: &Candidate| *other == layout);
        Self { layouts, ..Self::in_mesh(words, candidate.mesh, move |other| *other == candidate) }
    }
}

/// What the choices follow from.
struct Winner<'a> {
    question: &'a Question,
    candidate: Candidate,
    plan: &'a Plan,
}

/// The kinds of choices in the order in which they are reported; each is empty where the best plan leaves nothing to ask.
const KINDS: [fn(&Winner) -> Vec<Choice>; 8] = [
    data_parallel_only,
    other_degrees,
    tensor_grid,
    other_schedules,
    other_microbatches,
    other_sequence_parallelism,
    other_data_sharding,
    recompute_everywhere,
];

/// The choices that one would expect of the best candidate and its plan, and that they did not make.
pub(super) fn expected_choices(question: &Question, candidate: Candidate, plan: &Plan) -> Vec<Choice> {
    let winner = Winner { question, candidate, plan };
    KINDS.iter().flat_map(|choices| choices(&winner)).collect()
}

fn data_parallel_only(winner: &Winner) -> Vec<Choice> {
    let model_ranks = |mesh: &Mesh| mesh.tensor * mesh.pipeline * mesh.context;
    match model_ranks(&winner.candidate.mesh) {
        1 => Vec::new(),
        _ => vec![Choice::of("data parallel only", move |other| model_ranks(&other.mesh) == 1)],
    }
}

/// An axis whose degree may be another.
type Axis = (&'static str, fn(&Mesh) -> usize);

const AXES: [Axis; 4] = [
    ("tensor", |mesh| mesh.tensor),
    ("pipeline", |mesh| mesh.pipeline),
    ("context", |mesh| mesh.context),
    ("expert", |mesh| mesh.expert),
];

/// The degrees of an axis that one would ask about: none, half and double.
fn other_degrees(winner: &Winner) -> Vec<Choice> {
    let of_axis = |(name, degree): Axis| {
        let current = degree(&winner.candidate.mesh);
        let mut others = vec![1, current / 2, current * 2];
        others.retain(|other| *other >= 1 && *other != current);
        others.dedup();
        let choice = move |wanted: usize| {
            Choice::of(format!("{name} {wanted}"), move |other| degree(&other.mesh) == wanted)
        };
        others.into_iter().map(choice)
    };
    AXES.into_iter().flat_map(of_axis).collect()
}

fn tensor_grid(winner: &Winner) -> Vec<Choice> {
    let Mesh { tensor, tensor_rows, .. } = winner.candidate.mesh;
    match tensor_rows == 1 && tensor > 1 {
        true => vec![Choice::of("tensor in a grid", |other| other.mesh.tensor_rows > 1)],
        false => Vec::new(),
    }
}

fn other_schedules(winner: &Winner) -> Vec<Choice> {
    let Candidate { mesh, schedule: current, .. } = winner.candidate;
    let names = SCHEDULES.iter().filter(|schedule| schedule.searched()).map(|schedule| schedule.name());
    let choice = |name: &'static str| {
        Choice::in_mesh(format!("schedule {name}, same mesh"), mesh, move |other| other.schedule == name)
    };
    names.filter(|name| mesh.pipeline > 1 && *name != current).map(choice).collect()
}

fn other_microbatches(winner: &Winner) -> Vec<Choice> {
    let Candidate { mesh, micro_batch: current, .. } = winner.candidate;
    let choice = |size: usize| {
        let words = format!("microbatch {size}, same mesh");
        Choice::of(words, move |other| other.micro_batch == size && other.mesh == unsharded(mesh))
    };
    [current / 2, current * 2].map(choice).into()
}

fn other_sequence_parallelism(winner: &Winner) -> Vec<Choice> {
    let Candidate { mesh, sequence_parallel, .. } = winner.candidate;
    if mesh.tensor == 1 || mesh.tensor_rows > 1 {
        return Vec::new();
    }
    let with = if sequence_parallel { "no" } else { "with" };
    let other = Candidate { sequence_parallel: !sequence_parallel, ..winner.candidate };
    vec![Choice::exactly(format!("{with} sequence parallelism, same mesh"), other)]
}

fn other_data_sharding(winner: &Winner) -> Vec<Choice> {
    let Candidate { mesh, data_sharding, .. } = winner.candidate;
    if mesh.weight_copies() == 1 {
        return Vec::new();
    }
    let (data_sharding, words) = match data_sharding {
        "none" => ("zero1", "optimizer sharded (ZeRO-1), same mesh"),
        _ => ("none", "optimizer not sharded (DDP), same mesh"),
    };
    let other = Candidate { data_sharding, mesh: unsharded(mesh), ..winner.candidate };
    vec![Choice::exactly(words, other)]
}

fn recompute_everywhere(winner: &Winner) -> Vec<Choice> {
    let everywhere = |recompute: Recompute| {
        winner.plan.stages.iter().all(|stage| stage.0.iter().all(|choice| *choice == recompute))
    };
    let pins = &winner.question.pins;
    let free = |recompute: &Recompute| {
        pins.recompute.is_none() && !pins.forbids("recompute", &recompute.to_string())
    };
    let expected = |recompute: &Recompute| free(recompute) && !everywhere(*recompute);
    let choice = |recompute: Recompute| Choice {
        recompute: Some(recompute),
        ..Choice::exactly(format!("recompute {} everywhere", recompute.name()), winner.candidate)
    };
    Recompute::ALL.into_iter().filter(expected).map(choice).collect()
}

/// The mesh of a layout, which says nothing about its state.
fn unsharded(mesh: Mesh) -> Mesh {
    Mesh { shard: None, ..mesh }
}
