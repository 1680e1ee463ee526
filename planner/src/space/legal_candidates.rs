//! What of the space is legal. `Plan::check` is the only judge: each layout is shown to it in the plainest plan, and each
//! kind of pipeline with each kind of state in a plan of few microbatches, on whose number no rule but the schedule's
//! depends.

use super::dimensions::{LAYOUT, PIPELINE, STATE, extended};
use super::pin_choices::{check_pins, recompute_choices};
use super::{no_candidate, offload_kinds};
use crate::candidate::Candidate;
use crate::question::{Pins, Question};
use crate::verdict::PlannerError;
use rayon::prelude::*;
use std::collections::BTreeMap;
use std::ops::Range;
use trainwright_spec::plan::{MOST, Plan, sequence_allowed};
use trainwright_spec::schedule::PipelineShape;

/// The most passes of a block through a pipeline that are simulated for a candidate; the largest published runs have
/// about a hundredth of it.
const MOST_PASSES: usize = 1_000_000;

/// What the pipelines of a layout depend on: ranks and microbatches.
type PipelineKey = (usize, usize);

/// What the states of a layout depend on: ranks with the same weights, and how many of them are in a node.
type StateKey = (usize, usize);

/// What the legal combinations of both with a layout depend on: whether it is a grid, whether it is sequence parallel.
type KindKey = (bool, bool, PipelineKey, StateKey);

/// Where a pair stands in the lists of pipelines and states.
type PairPosition = ((usize, usize), Pair);

/// What decides whether a pipeline and a state go with each other and a layout.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord)]
struct Pair {
    several_ranks: bool,
    several_microbatches: bool,
    grid: bool,
    sequence_parallel: bool,
    schedule: &'static str,
    several_stages: bool,
    data_sharding: &'static str,
    several_shards: bool,
    offload: &'static str,
}

impl Pair {
    fn of(candidate: &Candidate, global_batch: usize) -> Self {
        Self {
            several_ranks: candidate.mesh.pipeline > 1,
            several_microbatches: candidate.shape(global_batch).microbatches > 1,
            grid: candidate.mesh.tensor_rows > 1,
            sequence_parallel: candidate.sequence_parallel,
            schedule: candidate.schedule,
            several_stages: candidate.virtual_stages > 1,
            data_sharding: candidate.data_sharding,
            several_shards: candidate.mesh.shard() > 1,
            offload: offload_kinds::name(&candidate.offload),
        }
    }
}

/// Every legal combination, in a fixed order.
pub(crate) struct LegalCandidates<'a> {
    question: &'a Question,
    /// How ranks can run their layers, each in the plainest plan.
    pub layouts: Vec<Candidate>,
    pipelines: BTreeMap<PipelineKey, Vec<Candidate>>,
    states: BTreeMap<StateKey, Vec<Candidate>>,
    /// Indices of the pipelines and states that go with each other.
    kinds: BTreeMap<KindKey, Vec<(usize, usize)>>,
    /// Why some cannot be simulated; `None` if all can.
    pub left_out: Option<String>,
}

impl<'a> LegalCandidates<'a> {
    /// Looks for them.
    ///
    /// # Errors
    /// `BadPin`, or `NoCandidate` with what stands in the way.
    pub fn of(question: &'a Question) -> Result<Self, PlannerError> {
        check_pins(question)?;
        let none = |reason| PlannerError::NoCandidate { reason };
        sizes(question).map_err(none)?;
        if recompute_choices(question).is_empty() {
            return Err(none(no_candidate::no_recompute(question)));
        }
        let drafts = extended(question, LAYOUT, vec![Candidate::plainest(question)]);
        if drafts.is_empty() {
            return Err(none(no_candidate::no_layout(question)));
        }
        let layouts =
            check_layouts(question, &drafts).map_err(|reason| none(no_legal_layout(question, reason)))?;
        let (layouts, left_out) = simulated(question, layouts).map_err(none)?;
        let pipelines = by_key(
            &layouts,
            |layout| pipeline_key(question, layout),
            |layout| extended(question, PIPELINE, vec![*layout]),
        );
        let states = by_key(
            &layouts,
            |layout| state_key(question, layout),
            |layout| extended(question, STATE, vec![*layout]),
        );
        let mut legal = Self { question, layouts, pipelines, states, kinds: BTreeMap::new(), left_out };
        let refused = legal.check_pairs();
        let legal = legal;
        match legal.layouts.iter().any(|layout| legal.count(layout) > 0) {
            true => Ok(legal),
            false => Err(none(no_candidate::nothing_goes_together(question, &legal.layouts, refused))),
        }
    }

    /// The candidates with a layout.
    pub fn candidates(&self, layout: &Candidate) -> CandidatesOfLayout<'_> {
        let (pipelines, states) = self.parts(layout);
        CandidatesOfLayout { layout: *layout, pipelines, states, pairs: &self.kinds[&self.kind(layout)] }
    }

    /// How many there are.
    pub fn count(&self, layout: &Candidate) -> usize {
        self.kinds[&self.kind(layout)].len()
    }

    /// The numbers of their stages.
    pub fn stages(&self, layout: &Candidate) -> impl Iterator<Item = usize> {
        let (pipelines, _) = self.parts(layout);
        let pairs = self.kinds[&self.kind(layout)].iter();
        pairs.map(|(order, _)| pipelines[*order].mesh.pipeline * pipelines[*order].virtual_stages)
    }

    fn kind(&self, layout: &Candidate) -> KindKey {
        let keys = (pipeline_key(self.question, layout), state_key(self.question, layout));
        (layout.mesh.tensor_rows > 1, layout.sequence_parallel, keys.0, keys.1)
    }

    fn pair(&self, candidate: &Candidate) -> Pair {
        Pair::of(candidate, self.question.job.global_batch)
    }

    fn parts(&self, layout: &Candidate) -> (&[Candidate], &[Candidate]) {
        let pipelines = &self.pipelines[&pipeline_key(self.question, layout)];
        (pipelines, &self.states[&state_key(self.question, layout)])
    }

    /// Shows each kind of pipeline with each kind of state to the judge; returns the first refusal.
    fn check_pairs(&mut self) -> Option<String> {
        let mut kinds: BTreeMap<KindKey, &Candidate> = BTreeMap::new();
        for layout in &self.layouts {
            kinds.entry(self.kind(layout)).or_insert(layout);
        }
        // All pairs of a kind with their positions, and one candidate of each pair.
        let mut first: BTreeMap<Pair, Candidate> = BTreeMap::new();
        let mut positions: Vec<(KindKey, Vec<PairPosition>)> = Vec::new();
        for (kind, layout) in kinds {
            let (pipelines, states) = self.parts(layout);
            let mut pairs = Vec::with_capacity(pipelines.len() * states.len());
            for (at_order, order) in pipelines.iter().enumerate() {
                for (at_state, state) in states.iter().enumerate() {
                    let candidate = join(layout, order, state);
                    let pair = self.pair(&candidate);
                    first.entry(pair).or_insert(candidate);
                    pairs.push(((at_order, at_state), pair));
                }
            }
            positions.push((kind, pairs));
        }
        let judged: BTreeMap<Pair, Result<(), String>> =
            first.into_par_iter().map(|(pair, candidate)| (pair, self.judge(&candidate))).collect();
        let legal = |pairs: Vec<PairPosition>| -> Vec<(usize, usize)> {
            pairs.into_iter().filter(|(_, pair)| judged[pair].is_ok()).map(|(position, _)| position).collect()
        };
        self.kinds = positions.into_iter().map(|(kind, pairs)| (kind, legal(pairs))).collect();
        judged.into_values().find_map(Result::err)
    }

    /// Whether a candidate is legal, asked with few microbatches, several if it has several.
    fn judge(&self, candidate: &Candidate) -> Result<(), String> {
        let shape = candidate.shape(self.question.job.global_batch);
        let few = |microbatches: &usize| {
            let shape = PipelineShape { microbatches: *microbatches, ..shape };
            *microbatches <= shape.microbatches && candidate.schedule().check(shape).is_ok()
        };
        let tried = [2, 4, 1].map(|times| times * shape.ranks);
        let microbatches = tried.into_iter().filter(|few| *few <= shape.microbatches).find(few);
        check(self.question, candidate, microbatches.unwrap_or(shape.microbatches))
    }
}

/// The candidates with one layout, each made when it is asked for: all states of the first pipeline, then of the next.
pub(crate) struct CandidatesOfLayout<'a> {
    layout: Candidate,
    pipelines: &'a [Candidate],
    states: &'a [Candidate],
    pairs: &'a [(usize, usize)],
}

impl<'a> CandidatesOfLayout<'a> {
    /// One of them by its position.
    pub fn at(&self, position: usize) -> Candidate {
        let (order, state) = self.pairs[position];
        join(&self.layout, &self.pipelines[order], &self.states[state])
    }

    /// The positions of those with the pipeline of the one at a position, from that one on.
    pub fn of_pipeline(&self, first: usize) -> Range<usize> {
        let (order, _) = self.pairs[first];
        let others = self.pairs[first..].iter().take_while(|(other, _)| *other == order);
        first..first + others.count()
    }

    /// The positions of all by their pipelines.
    pub fn pipelines(&self) -> impl Iterator<Item = Range<usize>> + use<'_, 'a> {
        let next = |last: &Range<usize>| (last.end < self.pairs.len()).then(|| self.of_pipeline(last.end));
        std::iter::successors((!self.pairs.is_empty()).then(|| self.of_pipeline(0)), next)
    }

    /// All, in order.
    pub fn iter(&self) -> impl Iterator<Item = Candidate> + use<'a> {
        let Self { layout, pipelines, states, pairs } = *self;
        pairs.iter().map(move |(order, state)| join(&layout, &pipelines[*order], &states[*state]))
    }
}

/// A layout in a pipeline with a state.
fn join(layout: &Candidate, order: &Candidate, state: &Candidate) -> Candidate {
    let mut joined = *layout;
    joined.schedule = order.schedule;
    joined.virtual_stages = order.virtual_stages;
    joined.data_sharding = state.data_sharding;
    joined.mesh.shard = state.mesh.shard;
    joined.offload = state.offload;
    joined
}

fn pipeline_key(question: &Question, layout: &Candidate) -> PipelineKey {
    (layout.mesh.pipeline, layout.shape(question.job.global_batch).microbatches)
}

fn state_key(question: &Question, layout: &Candidate) -> StateKey {
    (layout.mesh.weight_copies(), question.cluster.node.gpus.value / layout.mesh.tensor)
}

/// What `make` makes of the first layout with each key.
fn by_key<K: Ord + Send, T: Send>(
    layouts: &[Candidate],
    key: impl Fn(&Candidate) -> K,
    make: impl Fn(&Candidate) -> T + Sync,
) -> BTreeMap<K, T> {
    let mut first: BTreeMap<K, &Candidate> = BTreeMap::new();
    for layout in layouts {
        first.entry(key(layout)).or_insert(layout);
    }
    first.into_par_iter().map(|(key, layout)| (key, make(layout))).collect()
}

fn sizes(question: &Question) -> Result<(), String> {
    let job = &question.job;
    for (what, size) in [("sequence", job.sequence), ("global batch", job.global_batch)] {
        if !(1..=MOST).contains(&size) {
            return Err(format!("{what} {size}: it must be from 1 to {MOST}"));
        }
    }
    sequence_allowed(&question.model, job.sequence)
        .map_err(|reason| format!("sequence {}: {reason}", job.sequence))
}

/// The verdict of `Plan::check` on a candidate with even stages and `microbatches`.
fn check(question: &Question, candidate: &Candidate, microbatches: usize) -> Result<(), String> {
    let mut plan = candidate.plan(question, candidate.even_stages(question.model.layers()));
    plan.job.global_batch = candidate.mesh.data * candidate.micro_batch * microbatches;
    plan.check("question").map_err(|error| error.to_string())
}

/// The legal ones of the drafts, which stand in the order of enumeration: those that differ in their microbatch alone
/// follow each other, and outside of grids no rule depends on it.
///
/// # Errors
/// The refusal if none is legal.
fn check_layouts(question: &Question, drafts: &[Candidate]) -> Result<Vec<Candidate>, Refusal> {
    let alike = |a: &Candidate, b: &Candidate| {
        a.mesh.tensor_rows == 1 && Candidate { micro_batch: b.micro_batch, ..*a } == *b
    };
    let groups: Vec<&[Candidate]> = drafts.chunk_by(alike).collect();
    let stages = |layout: &Candidate| layout.even_stages(question.model.layers());
    let scratch = || drafts[0].plan(question, Vec::new());
    let judged: Vec<Result<(), String>> = groups
        .par_iter()
        .map_init(scratch, |plan: &mut Plan, group| {
            let layout = &group[0];
            layout.apply_to(plan);
            plan.stages = stages(layout);
            plan.job.global_batch = layout.mesh.data * layout.micro_batch;
            plan.check("question").map_err(|error| error.to_string())
        })
        .collect();
    let legal = groups.iter().zip(&judged).filter(|(_, verdict)| verdict.is_ok());
    let found: Vec<Candidate> = legal.flat_map(|(group, _)| group.iter().copied()).collect();
    let mut refusals = judged.into_iter().filter_map(Result::err);
    match refusals.next() {
        Some(first) if found.is_empty() => {
            let unanimous = refusals.all(|other| other == first);
            Err(Refusal { first, unanimous })
        }
        _ => Ok(found),
    }
}

/// Why `Plan::check` takes no layout.
struct Refusal {
    /// What it says of the first one.
    first: String,
    /// Whether it says the same of all: then it is not the mesh.
    unanimous: bool,
}

/// Why no layout is legal; where no single rule and no pin is the reason, with the nearest smaller number of nodes that has one.
fn no_legal_layout(question: &Question, refusal: Refusal) -> String {
    if let Some(reason) = no_candidate::no_mesh(question) {
        return reason;
    }
    if refusal.unanimous || question.pins != (Pins { breadth: question.pins.breadth, ..Pins::default() }) {
        return refusal.first;
    }
    let fewer = fewer_nodes(question).map_or_else(String::new, |nodes| {
        let gpus = nodes * question.cluster.node.gpus.value;
        format!("; {nodes} nodes ({gpus} GPUs) are the most below {} that have one", question.cluster.nodes)
    });
    format!("{}{fewer}", no_candidate::mesh_in_general(question))
}

/// How many fewer nodes are looked at for a legal layout.
const FEWER_NODES: usize = 64;

/// The largest smaller number of nodes on which some layout is legal, of those that are looked at.
fn fewer_nodes(question: &Question) -> Option<usize> {
    let nodes = question.cluster.nodes;
    let legal = |nodes: &usize| {
        let cluster = question.cluster.with_fewer_nodes(*nodes);
        cluster.is_some_and(|cluster| has_layouts(&Question { cluster, ..question.clone() }))
    };
    (nodes.saturating_sub(FEWER_NODES).max(1)..nodes).rev().find(legal)
}

/// Whether some layout is legal, with whatever pipeline and state.
pub(crate) fn has_layouts(question: &Question) -> bool {
    let drafts = extended(question, LAYOUT, vec![Candidate::plainest(question)]);
    !drafts.is_empty() && check_layouts(question, &drafts).is_ok()
}

/// Those layouts whose step is not too long to be simulated, and why others are.
///
/// # Errors
/// That reason if there are no other ones.
fn simulated(
    question: &Question,
    mut layouts: Vec<Candidate>,
) -> Result<(Vec<Candidate>, Option<String>), String> {
    let layers = question.model.layers();
    let microbatches = |layout: &Candidate| layout.shape(question.job.global_batch).microbatches;
    let most = layouts.iter().map(microbatches).max().unwrap_or(0);
    layouts.retain(|layout| microbatches(layout).saturating_mul(layers) <= MOST_PASSES);
    let reason = (most.saturating_mul(layers) > MOST_PASSES).then(|| {
        format!(
            "{most} microbatches of {layers} blocks are more than the {MOST_PASSES} passes that are simulated"
        )
    });
    match reason {
        Some(reason) if layouts.is_empty() => Err(reason),
        reason => Ok((layouts, reason)),
    }
}
