//! When nothing fits: which limits are broken by how much, and which changes would let a plan fit.

use crate::candidate::Candidate;
use crate::explore::{Explored, SearchSpace};
use crate::question::{Pins, Question};
use crate::risk::{MemoryLimit, Risk};
use crate::stages::{RankMemoryUse, Staged, stage};
use crate::verdict::{BrokenLimit, Infeasible, Search};
use trainwright_sim::Stop;
use trainwright_spec::mesh::Mesh;
use trainwright_spec::units::Bytes;

/// How many broken limits are reported.
const REPORTED: usize = 5;

/// How many times the nodes, or the memory of a GPU, are doubled in search of what suffices.
const DOUBLINGS: u32 = 12;

/// Risks of exceeding the memory that are tried as a remedy.
const RISKS: [f64; 5] = [0.1, 0.2, 0.3, 0.5, 0.7];

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

/// A limit that a candidate breaks.
pub(crate) struct Broken {
    candidate: Candidate,
    limit: String,
    pub needs: Bytes,
    pub has: Bytes,
}

/// The limits that candidates break, the least broken first.
pub(crate) fn broken(space: &SearchSpace, explored: &Explored, stop: Stop) -> Vec<Broken> {
    let of_rank = |candidate: Candidate, shortage: RankMemoryUse| Broken {
        candidate,
        limit: format!("memory of {}", shortage.who()),
        needs: shortage.needs,
        has: shortage.has,
    };
    let solved =
        explored.seen.iter().filter_map(|seen| Some(of_rank(seen.candidate, seen.trial.shortage()?)));
    // Candidates whose state fits but whose activations do not, however much is recomputed.
    let activations = explored.infeasible_activations.iter().filter_map(|candidate| {
        match stage(space.model(), candidate, stop)? {
            Staged::OutOfMemory(shortage) => Some(of_rank(*candidate, shortage)),
            Staged::Plan(..) | Staged::Undecided => None,
        }
    });
    let states = explored.infeasible_states.values().map(|(needs, candidate)| Broken {
        candidate: *candidate,
        limit: "memory for weights, gradients and optimizer alone".to_string(),
        needs: *needs,
        has: space.mean_room(candidate),
    });
    let mut broken: Vec<_> = solved.chain(activations).chain(states).collect();
    // Stable: of equal ones, the one with the lower bound comes first.
    broken.sort_by(|a, b| (a.needs / a.has).total_cmp(&(b.needs / b.has)));
    broken
}

/// The verdict on a space none of whose candidates fits, with as many remedies as the time suffices for.
pub(crate) fn infeasible(space: &SearchSpace, explored: &Explored, search: Search, stop: Stop) -> Infeasible {
    let mut meshes: Vec<Mesh> = Vec::new();
    let mut reported = Vec::new();
    for Broken { candidate, limit, needs, has } in broken(space, explored, stop) {
        let mesh = Mesh { shard: None, ..candidate.mesh };
        if reported.len() < REPORTED && !meshes.contains(&mesh) {
            meshes.push(mesh);
            reported.push(BrokenLimit { plans: candidate.words(), limit, needs, has });
        }
    }
    let state_fits = explored.seen.len() + explored.activations_out_of_memory > 0;
    let remedies = remedies(space, &reported, state_fits, stop);
    Infeasible { broken: reported, remedies, search }
}

impl Infeasible {
    /// With the limits that plans with more choices break too: those that are broken least come first.
    pub(crate) fn with_wider(mut self, wider: Self) -> Self {
        self.broken.extend(wider.broken);
        self.broken.sort_by(|a, b| (a.needs / a.has).total_cmp(&(b.needs / b.has)));
        self.broken.truncate(REPORTED);
        self
    }
}

/// Changes after which a plan exists, each tried.
fn remedies(space: &SearchSpace, broken: &[BrokenLimit], state_fits: bool, stop: Stop) -> Vec<String> {
    let question = space.question();
    let mut remedies = Vec::new();
    let free = Pins { breadth: question.pins.breadth, ..Pins::default() };
    if question.pins != free && fits(&Question { pins: free, ..question.clone() }, stop) {
        remedies.push("leave the pinned choices to the planner".to_string());
    }
    remedies.extend(more_risk(question, stop));
    // Nodes without network cards cannot be joined.
    let doublings = if question.cluster.node.nics.is_some() { DOUBLINGS } else { 0 };
    let more = (1..=doublings).map(|times| {
        let mut larger = question.clone();
        larger.cluster.nodes <<= times;
        larger
    });
    if let Some(larger) = more.into_iter().find(|larger| fits(larger, stop)) {
        let (nodes, gpus) = (larger.cluster.nodes, larger.cluster.gpus());
        remedies.push(format!("{nodes} nodes ({gpus} GPUs) are enough"));
    }
    // Shorter sequences need less for activations, and nothing else.
    let mut shorter = question.clone();
    while !stop() && state_fits && shorter.job.sequence > 1 && shorter.job.sequence.is_multiple_of(2) {
        shorter.job.sequence /= 2;
        if fits(&shorter, stop) {
            remedies.push(format!("sequences of {} tokens fit", shorter.job.sequence));
            break;
        }
    }
    if let Some(gib) = broken.first().and_then(|least| memory_that_suffices(question, least.needs, stop)) {
        remedies.push(format!("GPUs with {gib} GiB are enough"));
    }
    remedies
}

/// The least of a few larger risks with which a plan fits.
fn more_risk(question: &Question, stop: Stop) -> Option<String> {
    let now = match question.risk.memory {
        MemoryLimit::Risk(_) if question.risk.residuals.is_empty() => return None,
        MemoryLimit::Risk(now) => now,
        MemoryLimit::Reserve(_) => return None,
    };
    let fits_with = |risk: f64| {
        let memory = MemoryLimit::Risk(risk);
        fits(&Question { risk: Risk { memory, ..question.risk.clone() }, ..question.clone() }, stop)
    };
    let risk = RISKS.into_iter().find(|risk| *risk > now && fits_with(*risk))?;
    Some(format!("a plan fits with {:.0} % probability: --memory-risk {risk}", 100.0 * (1.0 - risk)))
}

/// A number of GiB per GPU with which a plan fits while with one less none was found; not below `least`.
fn memory_that_suffices(question: &Question, least: Bytes, stop: Stop) -> Option<usize> {
    let suffices = |gib: usize| {
        let mut larger = question.clone();
        larger.cluster.each_kind_mut().for_each(|node| node.gpu.memory.value = Bytes::GIB * gib as f64);
        fits(&larger, stop)
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
/// memory are those of most software, where they are not pinned. Never, once it is stopped.
fn fits(question: &Question, stop: Stop) -> bool {
    if stop() {
        return false;
    }
    let mut question = question.clone();
    for (key, value) in USUAL {
        if question.pins.pinned(key).is_none() && !question.pins.forbids_some(key) {
            question.pins.only.push((key.into(), value.into()));
        }
    }
    let Ok(space) = SearchSpace::new(&question) else { return false };
    let mut plan = space.any_plan();
    let candidates = space.candidates().take_while(|_| !stop());
    let needs = candidates.map(|candidate| (space.limits(&candidate, &mut plan).1, candidate));
    let mut order: Vec<(usize, Bytes, Candidate)> = needs
        .filter(|(needs, candidate)| *needs <= space.mean_room(candidate))
        .map(|(needs, candidate)| (candidate.micro_batch, needs, candidate))
        .collect();
    order.sort_by(|a, b| a.0.cmp(&b.0).then(a.1.get().total_cmp(&b.1.get())));
    let mut tried = order.iter().take(LOOKS);
    tried.any(|(_, _, candidate)| matches!(stage(space.model(), candidate, stop), Some(Staged::Plan(..))))
}
