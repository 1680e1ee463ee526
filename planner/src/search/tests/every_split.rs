//! The fastest plan found against every split of every candidate, each simulated.
//!
//! Where nothing is computed again a plan is a candidate and the lengths of its stages. Small questions have few enough of
//! these to simulate all that a bound does not exclude: on fast and slow networks, with data ranks, with vocabularies whose
//! embedding and head weigh as much as several blocks, and with stages that hold only one of the two.

use super::{divisions_of_model, fits, question, with_adapters};
use crate::candidate::Candidate;
use crate::explore::{Goal, SearchSpace, Seen};
use crate::question::Question;
use crate::search::{Scope, plan_within};
use crate::verdict::Verdict;
use rayon::prelude::*;
use trainwright_lower::memory::plan_memory;
use trainwright_sim::costs::ClusterCosts;
use trainwright_sim::step_time_for_ranking;
use trainwright_spec::adapters::BaseFormat;
use trainwright_spec::model::preset::preset;
use trainwright_spec::plan::{Plan, Recompute, StageBlocks};
use trainwright_spec::units::{Picoseconds, Seconds};

/// How many questions are asked, and how many if `TRAINWRIGHT_LONG` is set.
const INSTANCES: [usize; 2] = [24, 200];

/// How much slower than the fastest of all the fastest plan found may be.
const TOLERANCE: f64 = 1e-3;

/// Numbers below a limit, the same in every run.
struct Random(u64);

impl Random {
    fn below(&mut self, limit: usize) -> usize {
        self.0 = self.0.wrapping_mul(6364136223846793005).wrapping_add(1442695040888963407);
        (self.0 >> 33) as usize % limit
    }

    fn of<T: Copy>(&mut self, values: &[T]) -> T {
        values[self.below(values.len())]
    }
}

/// A small question without recomputation, and its name.
fn random_question(random: &mut Random) -> (String, Question) {
    let (model, sequence) = random.of(&[("gpt3-2.7b", 2048), ("llama-3-8b", 4096), ("nemotron-4-15b", 2048)]);
    let blocks = 4 + random.below(7);
    let pipeline = 2 + random.below(3);
    let cluster = random.of(&["dgx-h100", "dgx-a100", "a100-ethernet", "l40s-8-ethernet"]);
    let nodes = 1 + random.below(2);
    let tensor = random.of(&[1, 2]);
    let batch = random.of(&[16, 32, 48]);
    let vocab = random.of(&[32_000, 128_256, 256_000]);
    let mut question =
        question(model, blocks, &format!("{cluster}:{nodes}"), 79.0, [sequence, batch], "megatron-core");
    question.model.vocab = vocab;
    question.cluster.node.gpus.value = if pipeline == 3 { 6 } else { 8 };
    question.pins.pipeline = Some(pipeline);
    question.pins.tensor = Some(tensor);
    question.pins.micro_batch = Some(random.of(&[1, 2]));
    question.pins.recompute = Some(Recompute::None);
    let question =
        if blocks.is_multiple_of(4) { with_adapters(question, BaseFormat::Full) } else { question };
    let adapters = if question.job.adapters.is_some() { ", adapters" } else { "" };
    let name = format!(
        "{model}{adapters}, {blocks} blocks, vocabulary {vocab}, batch {batch}, {cluster}:{nodes}, tensor {tensor}, pipeline {pipeline}"
    );
    (name, question)
}

/// How many plans of the candidates there are and how many were simulated, and the fastest that fits of those that may take
/// less than `most`.
fn fastest_below(
    space: &SearchSpace,
    candidates: impl Iterator<Item = Candidate>,
    most: Picoseconds,
) -> (usize, usize, Option<(Picoseconds, Plan)>) {
    let layers = space.question().model.layers();
    let plans: Vec<(_, Plan)> = candidates
        .flat_map(|candidate| {
            let stages = candidate.mesh.pipeline * candidate.virtual_stages;
            let plan = move |lengths: Vec<usize>| {
                let blocks = |length: &usize| StageBlocks(vec![Recompute::None; *length]);
                (candidate, candidate.plan(space.question(), lengths.iter().map(blocks).collect()))
            };
            divisions_of_model(layers, stages).into_iter().map(plan)
        })
        .collect();
    let simulated: Vec<(Picoseconds, &Plan)> = plans
        .par_iter()
        .filter_map(|(candidate, plan)| {
            let outlook = space.model().outlook(candidate);
            if space.bound_of(candidate, plan) >= Seconds::from(most)
                || !fits(plan, &plan_memory(plan), outlook)
            {
                return None;
            }
            let time = step_time_for_ranking(plan, &space.model().costs).unwrap();
            Some((outlook.expected_exactly(time), plan))
        })
        .collect();
    let fastest = simulated.iter().min_by_key(|(time, _)| *time);
    (plans.len(), simulated.len(), fastest.map(|(time, plan)| (*time, (*plan).clone())))
}

/// The lengths of a plan's stages.
fn lengths(plan: &Plan) -> Vec<usize> {
    plan.stages.iter().map(|stage| stage.0.len()).collect()
}

#[test]
fn no_split_is_faster_than_the_fastest_plan_found() {
    let long = std::env::var_os("TRAINWRIGHT_LONG").is_some();
    let mut random = Random(0x5eed_0011);
    let (mut plans, mut simulated, mut fit, mut gaps) = (0, 0, 0, Vec::new());
    for _ in 0..INSTANCES[usize::from(long)] {
        let (name, question) = random_question(&mut random);
        let scope = Scope { explained: false, ..Scope::default() };
        let Verdict::Found(found) = plan_within(&question, scope, &|_| {}).unwrap() else { continue };
        // Of plans that forecasts do not distinguish, the first has most evidence and need not be the fastest.
        let timed = found.ranked.iter().map(|ranked| {
            let plan = &ranked.plan;
            (step_time_for_ranking(plan, &ClusterCosts::new(&plan.cluster)).unwrap(), plan)
        });
        let (time, found) = timed.min_by_key(|(time, _)| *time).expect("a verdict with a plan has plans");
        let space = SearchSpace::new(&question).unwrap();
        let (count, timed, fastest) = fastest_below(&space, space.candidates(), time);
        (plans, simulated, fit) = (plans + count, simulated + timed, fit + 1);
        if let Some((least, plan)) = fastest
            && least < time
        {
            let gap = time.0 as f64 / least.0 as f64 - 1.0;
            let words = |plan: &Plan, time: Picoseconds| {
                let Plan { schedule, data_sharding, .. } = plan;
                format!("{schedule} {:?} {data_sharding} {}", lengths(plan), Seconds::from(time))
            };
            let (ours, other) = (words(found, time), words(&plan, least));
            gaps.push((gap, format!("{:.2} %: {name}: found {ours}, fastest {other}", 100.0 * gap)));
        }
    }
    assert!(fit >= 20 && simulated >= 1000, "{fit} questions with {simulated} plans that may be faster");
    let worst = gaps.iter().map(|(gap, _)| *gap).fold(0.0, f64::max);
    let all: Vec<String> = gaps.into_iter().map(|(_, words)| words).collect();
    let counts = format!("{} of {fit} plans found are not the fastest of {plans}", all.len());
    assert!(worst < TOLERANCE, "{counts}:\n{}", all.join("\n"));
}

/// A model on a cluster; a job is the tokens of a sequence and the sequences of a step. The fastest candidate of four stages without
/// recomputation is improved, and by how much.
fn check(model: &str, cluster: &str, gib: f64, job: [usize; 2], improves: bool) {
    let mut question = question("gpt2", 1, cluster, gib, job, "megatron-core");
    question.model = preset(model).unwrap();
    question.pins.pipeline = Some(4);
    question.pins.virtual_stages = Some(1);
    question.pins.recompute = Some(Recompute::None);
    let space = SearchSpace::new(&question).unwrap();
    let goal = Goal::fastest(1, &|| false);
    let mut explored = space.explore(&goal, &|_| {}).unwrap();
    let fastest = |seen: &[Seen]| {
        let times = seen.iter().filter_map(|seen| Some((seen.time()?, seen.candidate)));
        times.min_by_key(|(time, _)| *time).unwrap()
    };
    let (solved, _) = fastest(&explored.seen);
    space.improve(&mut explored, 1, &|| false).unwrap();
    let (time, candidate) = fastest(&explored.seen);
    assert_eq!(time < solved, improves, "{model}: {time:?} after {solved:?}");
    let (plans, _, other) = fastest_below(&space, std::iter::once(candidate), time);
    assert!(plans > 5_000, "{model}: {plans}");
    let faster = other.filter(|(other, _)| *other < time);
    assert!(
        faster.is_none(),
        "{model}: {time:?}, but {:?}",
        faster.map(|(time, plan)| (time, lengths(&plan)))
    );
}

#[test]
fn four_stages_of_a_whole_model_are_the_fastest_of_all() {
    check("gpt3-13b", "l40s-8-ethernet:8", 44.0, [2048, 256], true);
    check("llama-3-8b", "a100-ethernet:2", 79.0, [8192, 128], true);
    check("nemotron-4-15b", "dgx-h100:8", 79.0, [4096, 384], false);
}
