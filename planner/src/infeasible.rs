//! When nothing fits: which limits are broken by how much, and what would mend it.

use crate::candidate::Candidate;
use crate::question::{Pins, Question};
use crate::search::{Explored, Space, Trial};
use crate::stages::{Staged, stage};
use crate::verdict::{BrokenLimit, Infeasible, Search};
use trainwright_spec::mesh::Mesh;
use trainwright_spec::units::Bytes;

/// How many broken limits are reported.
const REPORTED: usize = 5;

/// How many times the nodes, or the memory of a GPU, are doubled in search of what suffices.
const DOUBLINGS: u32 = 12;

/// What is not varied in search of what suffices.
const USUAL: [(&str, &str); 6] = [
    ("tensor-scheme", "1d"),
    ("context-scheme", "ring"),
    ("dispatcher", "all-to-all"),
    ("micro-batch", "1"),
    ("schedule", "1f1b"),
    ("offload", "none"),
];

/// How many candidates are solved, those that need least memory first, before a question is taken not to fit.
const LOOKS: usize = 64;

/// The verdict on a space none of whose candidates fits.
pub(crate) fn infeasible(space: &Space, explored: &Explored, search: Search) -> Infeasible {
    let gpu = space.question.cluster.mean_memory();
    let of_rank = |rank: usize| format!("memory of pipeline rank {rank}");
    let solved = explored.seen.iter().filter_map(|seen| match seen.trial {
        Trial::OutOfMemory { rank, needs, has } => Some((seen.candidate, of_rank(rank), needs, has)),
        Trial::Simulated { .. } | Trial::TooSlow | Trial::Undecided => None,
    });
    // Candidates whose state fits but whose activations do not, however much is recomputed.
    let crowded = explored.crowded_first.iter().filter_map(|candidate| {
        match stage(space.question, candidate, &space.layers, &space.costs) {
            Staged::OutOfMemory { rank, needs, has } => Some((*candidate, of_rank(rank), needs, has)),
            Staged::Plan(..) | Staged::Undecided => None,
        }
    });
    let state = "memory for weights, gradients and optimizer alone".to_string();
    let lacking =
        explored.lacking.values().map(|(needs, candidate)| (*candidate, state.clone(), *needs, gpu));
    let mut broken: Vec<_> = solved.chain(crowded).chain(lacking).collect();
    // Stable: of equal ones, the one that was more hopeful comes first.
    broken.sort_by(|a, b| (a.2 / a.3).total_cmp(&(b.2 / b.3)));
    let mut meshes: Vec<Mesh> = Vec::new();
    let mut reported = Vec::new();
    for (candidate, limit, needs, has) in broken {
        let mesh = Mesh { shard: None, ..candidate.mesh };
        if reported.len() < REPORTED && !meshes.contains(&mesh) {
            meshes.push(mesh);
            reported.push(BrokenLimit { plans: candidate.words(), limit, needs, has });
        }
    }
    let state_fits = explored.seen.len() + explored.crowded > 0;
    let remedies = remedies(space, &reported, state_fits);
    Infeasible { broken: reported, remedies, search }
}

/// Changes after which a plan exists, each tried.
fn remedies(space: &Space, broken: &[BrokenLimit], state_fits: bool) -> Vec<String> {
    let question = space.question;
    let mut remedies = Vec::new();
    let free = Pins { breadth: question.pins.breadth, ..Pins::default() };
    if question.pins != free && fits(&Question { pins: free, ..question.clone() }) {
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
        larger.cluster.each_kind_mut().for_each(|node| node.gpu.memory.value = Bytes::GIB * gib as f64);
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

/// Whether a plan that fits in memory was found among the candidates that need least. Choices that matter little to
/// memory are those of most software, where they are not pinned.
fn fits(question: &Question) -> bool {
    let mut question = question.clone();
    for (key, value) in USUAL {
        if question.pins.pinned(key).is_none() && !question.pins.forbids_some(key) {
            question.pins.only.push((key.into(), value.into()));
        }
    }
    let Ok(space) = Space::new(&question) else { return false };
    let gpu = question.cluster.mean_memory();
    let candidates: Vec<Candidate> =
        space.legal.layouts.iter().flat_map(|layout| space.legal.candidates(layout)).collect();
    let mut plan = space.legal.layouts[0].plan(&question, Vec::new());
    let needs = candidates.iter().map(|candidate| space.limits(candidate, &mut plan).1);
    let mut order: Vec<(usize, Bytes, Candidate)> = needs
        .zip(&candidates)
        .filter(|(needs, _)| *needs <= gpu)
        .map(|(needs, candidate)| (candidate.micro_batch, needs, *candidate))
        .collect();
    order.sort_by(|a, b| a.0.cmp(&b.0).then(a.1.get().total_cmp(&b.1.get())));
    order.iter().take(LOOKS).any(|(_, _, candidate)| {
        matches!(stage(&question, candidate, &space.layers, &space.costs), Staged::Plan(..))
    })
}
