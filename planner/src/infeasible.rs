//! When nothing fits: which limits are broken by how much, and what would mend it.

use crate::search::{Seen, Space, Trial};
use crate::stages::{Staged, stage};
use crate::verdict::{BrokenLimit, Infeasible, Pins, Question, Search};
use trainwright_spec::mesh::Mesh;
use trainwright_spec::units::Bytes;

/// How many broken limits are reported.
const REPORTED: usize = 5;

/// How many times the nodes, or the memory of a GPU, are doubled in search of what suffices.
const DOUBLINGS: u32 = 12;

/// How many candidates are solved, those that need least memory first, before a question is taken not to fit.
const LOOKS: usize = 64;

/// The verdict on a space none of whose candidates fits.
pub(crate) fn infeasible(space: &Space, seen: &Seen, search: Search) -> Infeasible {
    let gpu = space.question.cluster.node.gpu.memory.value;
    let solved = seen.trials().filter_map(|(index, trial)| match trial {
        Trial::OutOfMemory { rank, needs, has } => {
            Some((index, format!("memory of pipeline rank {rank}"), *needs, *has))
        }
        Trial::Simulated { .. } | Trial::Undecided => None,
    });
    // Candidates whose state fits but whose activations do not, however much is recomputed.
    let mut crowded: Vec<usize> = (0..space.candidates.len())
        .filter(|index| space.memory[*index] <= gpu && space.bounds[*index].get().is_infinite())
        .collect();
    crowded.sort_by(|a, b| space.memory[*a].get().total_cmp(&space.memory[*b].get()).then(a.cmp(b)));
    crowded.truncate(LOOKS);
    let crowded = crowded.into_iter().filter_map(|index| {
        match stage(space.question, &space.candidates[index], &space.layers, &space.costs) {
            Staged::OutOfMemory { rank, needs, has } => {
                Some((index, format!("memory of pipeline rank {rank}"), needs, has))
            }
            Staged::Plan(..) | Staged::Undecided => None,
        }
    });
    let state = "memory for weights, gradients and optimizer alone".to_string();
    let bounded = (0..space.candidates.len())
        .filter(|index| space.memory[*index] > gpu)
        .map(|index| (index, state.clone(), space.memory[index], gpu));
    let mut broken: Vec<_> = solved.chain(crowded).chain(bounded).collect();
    broken.sort_by(|a, b| (a.2 / a.3).total_cmp(&(b.2 / b.3)).then(a.0.cmp(&b.0)));
    let mut meshes: Vec<Mesh> = Vec::new();
    let mut reported = Vec::new();
    for (index, limit, needs, has) in broken {
        let candidate = &space.candidates[index];
        if reported.len() < REPORTED && !meshes.contains(&candidate.mesh) {
            meshes.push(candidate.mesh);
            reported.push(BrokenLimit { plans: candidate.words(), limit, needs, has });
        }
    }
    let remedies = remedies(space, &reported);
    Infeasible { broken: reported, remedies, search }
}

/// Changes after which a plan exists, each tried.
fn remedies(space: &Space, broken: &[BrokenLimit]) -> Vec<String> {
    let question = space.question;
    let gpu = question.cluster.node.gpu.memory.value;
    let mut remedies = Vec::new();
    let unpinned = Question { pins: Pins::default(), ..question.clone() };
    if question.pins != Pins::default() && fits(&unpinned) {
        remedies.push("leave the pinned choices to the planner".to_string());
    }
    // Nodes without network cards cannot be joined.
    let doublings = if question.cluster.node.nics.is_some() { DOUBLINGS } else { 0 };
    let more = (1..=doublings).map(|times| {
        let mut larger = question.clone();
        larger.cluster.nodes <<= times;
        larger
    });
    if let Some(larger) = more.into_iter().find(fits) {
        let (nodes, gpus) = (larger.cluster.nodes, larger.cluster.gpus());
        remedies.push(format!("{nodes} nodes ({gpus} GPUs) are enough"));
    }
    // Shorter sequences need less for activations, and nothing else.
    let state_fits = space.memory.iter().any(|memory| *memory <= gpu);
    let mut shorter = question.clone();
    while state_fits && shorter.job.sequence > 1 && shorter.job.sequence.is_multiple_of(2) {
        shorter.job.sequence /= 2;
        if fits(&shorter) {
            remedies.push(format!("sequences of {} tokens fit", shorter.job.sequence));
            break;
        }
    }
    if let Some(gib) = broken.first().and_then(|least| memory_that_suffices(question, least.needs)) {
        remedies.push(format!("GPUs with {gib} GiB are enough"));
    }
    remedies
}

/// A number of GiB per GPU with which a plan fits while with one less none was found; not below `least`.
fn memory_that_suffices(question: &Question, least: Bytes) -> Option<usize> {
    let suffices = |gib: usize| {
        let mut larger = question.clone();
        larger.cluster.node.gpu.memory.value = Bytes::GIB * gib as f64;
        fits(&larger)
    };
    let first = least.as_gib().ceil() as usize;
    let doubled = (0..DOUBLINGS).map(|times| first << times);
    let mut enough = doubled.into_iter().find(|gib| suffices(*gib))?;
    let mut short = if enough == first { first - 1 } else { enough / 2 };
    while enough - short > 1 {
        let middle = short.midpoint(enough);
        match suffices(middle) {
            true => enough = middle,
            false => short = middle,
        }
    }
    Some(enough)
}

/// Whether a plan that fits in memory was found among the candidates that need least.
fn fits(question: &Question) -> bool {
    let Ok(space) = Space::new(question, &|_| {}) else { return false };
    let mut order = space.order.clone();
    let smallest = |index: &usize| (space.candidates[*index].micro_batch, space.memory[*index].get());
    order.sort_by(|a, b| smallest(a).partial_cmp(&smallest(b)).expect("memory is a number").then(a.cmp(b)));
    order.iter().take(LOOKS).any(|index| {
        let candidate = &space.candidates[*index];
        matches!(stage(question, candidate, &space.layers, &space.costs), Staged::Plan(..))
    })
}
