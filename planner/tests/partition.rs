//! The partition solver against arithmetic one can do by hand, against exhaustive search, and against the dynamic program.

use trainwright_planner::partition::*;
use trainwright_spec::units::{Bytes, Seconds};

// ---------------------------------------------------------------------------------------------------------------------
// By hand

fn choice(time: f64, kept: f64, peak: f64) -> Choice {
    Choice { time: Seconds::new(time), kept: Bytes::new(kept), peak: Bytes::new(peak) }
}

fn class(state: f64, choices: &[Choice]) -> LayerClass {
    LayerClass { state: Bytes::new(state), idle: Bytes::new(state), choices: choices.to_vec() }
}

/// A stage without a limit worth mentioning, and without a peak of its own.
fn stage(time: f64, memory: f64, in_flight: f64) -> Stage {
    Stage {
        time: Seconds::new(time),
        memory: Bytes::new(memory),
        peak: Bytes::ZERO,
        in_flight,
        limit: Bytes::new(100.0),
        idle: Bytes::ZERO,
        idle_limit: Bytes::new(f64::INFINITY),
        device: 0,
        least_layers: 1,
    }
}

fn with_limit(mut stages: Vec<Stage>, limit: f64) -> Vec<Stage> {
    stages.iter_mut().for_each(|stage| stage.limit = Bytes::new(limit));
    stages
}

fn run(class: usize, count: usize) -> Run {
    Run { class, count }
}

fn solved(problem: &Problem) -> Solution {
    match solve(problem, Seconds::new(60.0)).unwrap() {
        Outcome::Solved(solution) => solution,
        other => panic!("expected a split, got {other:?}"),
    }
}

/// Expects a split with these lengths of the stages, choices of the layers, and objective.
fn check(problem: &Problem, lengths: &[usize], choices: &[usize], objective: f64) {
    let solution = solved(problem);
    let found: Vec<usize> = solution.intervals.iter().map(|interval| interval.len()).collect();
    assert_eq!(found, lengths, "{solution:?}");
    assert_eq!(solution.choices, choices, "{solution:?}");
    assert!((solution.objective.get() - objective).abs() < 1e-9 * objective, "{solution:?}");
}

/// One class whose layers take 1 s, keep 1 B, and with recompute take 1.5 s and keep nothing; they hold 1 B of state.
fn plain(layers: usize, stages: Vec<Stage>, memory: f64) -> Problem {
    Problem {
        runs: vec![run(0, layers)],
        classes: vec![vec![class(1.0, &[choice(1.0, 1.0, 0.0), choice(1.5, 0.0, 0.0)])]],
        stages: with_limit(stages, memory),
        steady: 7.0,
        ramp: 1.0,
    }
}

#[test]
fn equal_layers_split_evenly() {
    // 4 layers of 1 s on 2 ranks: 2 s each; 7 · 2 + (2 + 2) = 18.
    check(&plain(4, vec![stage(0.0, 0.0, 1.0), stage(0.0, 0.0, 1.0)], 100.0), &[2, 2], &[0; 4], 18.0);
}

#[test]
fn a_head_as_heavy_as_a_layer_takes_a_layers_place() {
    // 7 layers and a head of 1 s: 4 s each; 7 · 4 + 8 = 36.
    check(&plain(7, vec![stage(0.0, 0.0, 1.0), stage(1.0, 0.0, 1.0)], 100.0), &[4, 3], &[0; 7], 36.0);
}

#[test]
fn memory_makes_only_the_first_stage_recompute() {
    // 1F1B on 2 ranks keeps 2 microbatches on the first, 1 on the second. 4 layers, 5 B per rank.
    // 2+2: the first holds 2 + 2·2 = 6 > 5, with one layer recomputed 2 + 2·1 = 4; the second 2 + 2 = 4. Times 2.5 and 2:
    // 7 · 2.5 + 4.5 = 22. 1+3: the second holds 3 + 3 = 6, with one recomputed 5, 3.5 s: worse.
    check(&plain(4, vec![stage(0.0, 0.0, 2.0), stage(0.0, 0.0, 1.0)], 5.0), &[2, 2], &[1, 0, 0, 0], 22.0);
}

#[test]
fn the_largest_peak_counts_once() {
    // 2 layers on 1 stage, limit 3 B. Each holds 1 B of state. Fast: keeps nothing, peak 2 B: 2 + 2 = 4 > 3.
    // Slow (3 s): peak 1 B: 2 + max(1, 1) = 3. One fast would still need 2 + 2. So both slow: 1 · 6 + 6 = 12.
    let problem = |limit: f64, own_peak: f64| Problem {
        runs: vec![run(0, 2)],
        classes: vec![vec![class(1.0, &[choice(1.0, 0.0, 2.0), choice(3.0, 0.0, 1.0)])]],
        stages: with_limit(vec![Stage { peak: Bytes::new(own_peak), ..stage(0.0, 0.0, 1.0) }], limit),
        steady: 1.0,
        ramp: 1.0,
    };
    check(&problem(3.0, 0.0), &[2], &[1, 1], 12.0);
    // With 4 B both are fast; so they are beside a head that needs 2 B for a moment.
    check(&problem(4.0, 0.0), &[2], &[0, 0], 4.0);
    check(&problem(4.0, 2.0), &[2], &[0, 0], 4.0);
    // A head that needs 3 B leaves room for nothing else: 2 + 3 = 5.
    let infeasible = Infeasible::Memory { stage: 0, needs: Bytes::new(5.0), limit: Bytes::new(4.0) };
    assert_eq!(solve(&problem(4.0, 3.0), Seconds::new(1.0)), Ok(Outcome::Infeasible(infeasible)));
}

#[test]
fn what_layers_leave_between_steps_has_a_limit_of_its_own() {
    // 6 layers of 1 s that each leave 1 B; the head of 2 s leaves 1 B too. Without a limit 4 + 2: 4 s each, 7 · 4 + 8 = 36.
    // At most 3 B: 3 + 2 with the head is 3, 4 is too much. 6 layers do not fit: 3 + 2. With 4 B on the first stage they do.
    let problem = |first: f64, last: f64| {
        let limits = [Bytes::new(first), Bytes::new(last)];
        let head = Stage { idle: Bytes::new(1.0), idle_limit: limits[1], ..stage(2.0, 0.0, 1.0) };
        plain(6, vec![Stage { idle_limit: limits[0], ..stage(0.0, 0.0, 1.0) }, head], 100.0)
    };
    check(&problem(f64::INFINITY, f64::INFINITY), &[4, 2], &[0; 6], 36.0);
    // 3 + 3: the head's stage leaves 4 B and takes 5 s: 7 · 5 + 8.
    check(&problem(3.0, 4.0), &[3, 3], &[0; 6], 43.0);
    let infeasible = Infeasible::Memory { stage: 1, needs: Bytes::new(101.0), limit: Bytes::new(100.0) };
    assert_eq!(solve(&problem(3.0, 3.0), Seconds::new(1.0)), Ok(Outcome::Infeasible(infeasible)));
}

#[test]
fn a_heavy_end_may_stand_alone() {
    // 6 layers of 1 s, an embedding of 1 s and a head of 3 s on 4 ranks: 10 s in all. Where each has a layer the head's has
    // 4 s: 7 · 4 + 10 = 38; with the head alone 3 s suffice: 7 · 3 + 10 = 31.
    let end = |time: f64| Stage { least_layers: 0, ..stage(time, 0.0, 1.0) };
    let between = stage(0.0, 0.0, 1.0);
    let with_ends = |first: Stage, last: Stage| plain(6, vec![first, between, between, last], 100.0);
    let lengths = |problem: &Problem| -> Vec<usize> {
        solved(problem).intervals.iter().map(|interval| interval.len()).collect()
    };
    let each = with_ends(Stage { least_layers: 1, ..end(1.0) }, Stage { least_layers: 1, ..end(3.0) });
    assert_eq!((solved(&each).objective.get(), lengths(&each)[3]), (38.0, 1));
    let alone = with_ends(end(1.0), end(3.0));
    assert_eq!((solved(&alone).objective.get(), lengths(&alone)[3]), (31.0, 0));
    // As many layers as stages between the ends, which are heavy: both are alone.
    let few = Problem { runs: vec![run(0, 2)], ..with_ends(end(2.0), end(2.0)) };
    check(&few, &[0, 1, 1, 0], &[0; 2], 7.0 * 2.0 + 6.0);
    let none = Problem { runs: vec![run(0, 1)], ..few };
    let too_few = Infeasible::TooFewLayers { layers: 1, needed: 2 };
    assert_eq!(solve(&none, Seconds::new(1.0)), Ok(Outcome::Infeasible(too_few)));
}

#[test]
fn dense_layers_weigh_less_than_expert_layers() {
    // 3 layers of 1 s, then 3 of 3 s, on 2 ranks: 12 s in all, 6 s each: the three dense and one expert, two experts.
    let problem = Problem {
        runs: vec![run(0, 3), run(1, 3)],
        classes: vec![vec![class(1.0, &[choice(1.0, 0.0, 0.0)]), class(1.0, &[choice(3.0, 0.0, 0.0)])]],
        stages: vec![stage(0.0, 0.0, 1.0), stage(0.0, 0.0, 1.0)],
        steady: 3.0,
        ramp: 1.0,
    };
    check(&problem, &[4, 2], &[0; 6], 30.0);
}

#[test]
fn a_device_that_is_twice_as_slow_takes_half_the_layers() {
    // 6 layers of 1 s on one device and of 2 s on the other: 4 and 2 of them, 4 s each, 7 · 4 + 8 = 36.
    let slow = class(1.0, &[choice(2.0, 1.0, 0.0), choice(3.0, 0.0, 0.0)]);
    let mut problem =
        plain(6, vec![stage(0.0, 0.0, 1.0), Stage { device: 1, ..stage(0.0, 0.0, 1.0) }], 100.0);
    problem.classes.push(vec![slow]);
    check(&problem, &[4, 2], &[0; 6], 36.0);
    // Only 6 B on the fast one: 3 layers with their activations, or 4 of which two are computed again, 5 s.
    // 3 + 3 takes 3 and 6 s, 4 + 2 takes 5 and 4 s: 7 · 5 + 9 = 44.
    problem.stages[0].limit = Bytes::new(6.0);
    check(&problem, &[4, 2], &[1, 1, 0, 0, 0, 0], 44.0);
}

#[test]
fn a_slower_stage_can_spare_the_sum() {
    // 3 layers, 2 stages, steady 1, ramp 4. 6 B each; the first holds 4 in flight, the second 1.
    // 1+2: the first 1 + 4 = 5, the second 2 + 2 = 4: times 1 and 2, 2 + 4 · 3 = 14. 2+1: the first 2 + 8 = 10, with one
    // recomputed 6: times 2.5 and 1, 2.5 + 4 · 3.5 = 16.5.
    let problem = plain(3, vec![stage(0.0, 0.0, 4.0), stage(0.0, 0.0, 1.0)], 6.0);
    check(&Problem { steady: 1.0, ramp: 4.0, ..problem }, &[1, 2], &[0; 3], 14.0);
}

#[test]
fn of_equally_good_splits_the_evenest_is_taken() {
    // 13 layers on 4 ranks: some rank gets 4 and the sum is 13 s in any split, also in 4 + 4 + 4 + 1.
    let one_each = vec![stage(0.0, 0.0, 1.0); 4];
    let mut lengths: Vec<usize> =
        solved(&plain(13, one_each, 100.0)).intervals.iter().map(|i| i.len()).collect();
    lengths.sort();
    assert_eq!(lengths, [3, 3, 3, 4]);
}

#[test]
fn without_time_for_the_solver_shortest_paths_find_the_same() {
    // 13 layers on 4 stages: many splits have a longest stage of 4.
    let problem = plain(13, vec![stage(0.0, 0.0, 1.0); 4], 100.0);
    let Ok(Outcome::Solved(hurried)) = solve(&problem, Seconds::ZERO) else { panic!() };
    let unhurried = solved(&problem);
    assert_eq!(unhurried.effort.method, Method::IntegerProgram, "{unhurried:?}");
    assert_eq!(hurried.effort.method, Method::ShortestPaths, "{hurried:?}");
    assert_eq!(Solution { effort: hurried.effort, ..unhurried }, hurried);
    // 12 layers on 4 stages: only 3 each are as good.
    let one_left = solved(&plain(12, vec![stage(0.0, 0.0, 1.0); 4], 100.0));
    assert_eq!((one_left.effort.method, one_left.effort.columns), (Method::ShortestPaths, 0));
}

#[test]
fn what_cannot_fit_names_the_stage_and_what_it_lacks() {
    // Stage 1 has 10 B of head besides a limit of 8 B: with one recomputed layer it needs 11.
    let problem = plain(4, vec![stage(0.0, 0.0, 1.0), stage(0.0, 10.0, 1.0)], 8.0);
    let infeasible = Infeasible::Memory { stage: 1, needs: Bytes::new(11.0), limit: Bytes::new(8.0) };
    assert_eq!(solve(&problem, Seconds::new(1.0)), Ok(Outcome::Infeasible(infeasible)));
    // 9 layers of 1 B on two stages of 4 B: one stage gets five.
    let problem = plain(9, vec![stage(0.0, 0.0, 1.0), stage(0.0, 0.0, 1.0)], 4.0);
    let Ok(Outcome::Infeasible(Infeasible::Memory { needs, limit, .. })) = solve(&problem, Seconds::new(1.0))
    else {
        panic!()
    };
    assert_eq!((needs, limit), (Bytes::new(5.0), Bytes::new(4.0)));
    let problem = plain(1, vec![stage(0.0, 0.0, 1.0), stage(0.0, 0.0, 1.0)], 4.0);
    let few = Infeasible::TooFewLayers { layers: 1, needed: 2 };
    assert_eq!(solve(&problem, Seconds::new(1.0)), Ok(Outcome::Infeasible(few)));
}

#[test]
fn nonsense_is_refused() {
    let good = plain(2, vec![stage(0.0, 0.0, 1.0)], 10.0);
    let cases = [
        (Problem { stages: vec![], ..good.clone() }, "the problem has no stages: give one or more"),
        (Problem { runs: vec![run(1, 2)], ..good.clone() }, "the class of run 0 is 1, but there are only 1"),
        (
            Problem { stages: vec![Stage { device: 1, ..stage(0.0, 0.0, 1.0) }], ..good.clone() },
            "the device of stage 0 is 1, but there are only 1",
        ),
        (
            Problem { classes: vec![good.classes[0].clone(), vec![]], ..good.clone() },
            "device 1 has other classes or choices than device 0: give each as many",
        ),
        (Problem { steady: f64::NAN, ..good.clone() }, "steady is NaN: it must be finite and not negative"),
        (
            Problem { classes: vec![vec![class(1.0, &[])]], ..good.clone() },
            "the problem has no choices of class 0: give one or more",
        ),
        (
            Problem { stages: vec![stage(-1.0, 0.0, 1.0)], ..good.clone() },
            "the time of stage 0 is -1: it must be finite and not negative",
        ),
    ];
    for (problem, expected) in cases {
        assert_eq!(solve(&problem, Seconds::new(1.0)).unwrap_err().to_string(), expected);
    }
}

// ---------------------------------------------------------------------------------------------------------------------
// Exhaustive search

/// The best objective over every split and every choice of every layer; or the least excess that the worst stage can have.
fn exhaustive(problem: &Problem) -> Result<f64, f64> {
    let classes: Vec<usize> = problem.runs.iter().flat_map(|run| vec![run.class; run.count]).collect();
    let mut best = f64::INFINITY;
    let mut least_excess = f64::INFINITY;
    let mut cuts = vec![0];
    let least: Vec<usize> = problem.stages.iter().map(|stage| stage.least_layers).collect();
    every_cut(&least, classes.len(), &mut cuts, &mut |cuts| {
        let (mut slowest, mut sum, mut excess) = (0.0f64, 0.0, f64::NEG_INFINITY);
        for (index, stage) in problem.stages.iter().enumerate() {
            let layers: Vec<(usize, f64)> =
                (cuts[index]..cuts[index + 1]).map(|layer| (classes[layer], stage.in_flight)).collect();
            let (time, held, peak) = (stage.time.get(), stage.memory.get(), stage.peak.get());
            let limit = stage.limit.get();
            let mut found = (f64::INFINITY, f64::INFINITY);
            every_choice(&problem.classes[stage.device], &layers, time, held, peak, limit, &mut found);
            slowest = slowest.max(found.0);
            sum += found.0;
            excess = excess.max(found.1 - limit);
            let on_device = &problem.classes[stage.device];
            let idle: f64 = layers.iter().map(|(class, _)| on_device[*class].idle.get()).sum();
            let lacks = stage.idle.get() + idle - stage.idle_limit.get();
            if lacks > 1e-9 * stage.idle_limit.get() {
                slowest = f64::INFINITY;
            }
            excess = excess.max(lacks);
        }
        if slowest.is_finite() {
            best = best.min(problem.steady * slowest + problem.ramp * sum);
        }
        least_excess = least_excess.min(excess);
    });
    if best.is_finite() { Ok(best) } else { Err(least_excess) }
}

fn every_cut(least: &[usize], layers: usize, cuts: &mut Vec<usize>, visit: &mut dyn FnMut(&[usize])) {
    let first = cuts[cuts.len() - 1] + least[cuts.len() - 1];
    if cuts.len() == least.len() {
        if first <= layers {
            cuts.push(layers);
            visit(cuts);
            cuts.pop();
        }
        return;
    }
    for cut in first..=layers {
        cuts.push(cut);
        every_cut(least, layers, cuts, visit);
        cuts.pop();
    }
}

/// Least time within the limit, and least memory whatever the limit, over all choices of the layers.
fn every_choice(
    classes: &[LayerClass],
    layers: &[(usize, f64)],
    time: f64,
    held: f64,
    peak: f64,
    limit: f64,
    found: &mut (f64, f64),
) {
    let Some((&(class, in_flight), rest)) = layers.split_first() else {
        found.1 = found.1.min(held + peak);
        if held + peak <= limit * (1.0 + 1e-9) {
            found.0 = found.0.min(time);
        }
        return;
    };
    let class = &classes[class];
    for choice in &class.choices {
        let held = held + class.state.get() + in_flight * choice.kept.get();
        let peak = peak.max(choice.peak.get());
        every_choice(classes, rest, time + choice.time.get(), held, peak, limit, found);
    }
}

/// Marsaglia's xorshift64.
struct Random(u64);

impl Random {
    fn next(&mut self) -> u64 {
        self.0 ^= self.0 << 13;
        self.0 ^= self.0 >> 7;
        self.0 ^= self.0 << 17;
        self.0
    }

    fn below(&mut self, end: usize) -> usize {
        (self.next() % end as u64) as usize
    }

    fn unit(&mut self) -> f64 {
        (self.next() >> 11) as f64 / (1u64 << 53) as f64
    }

    /// Up to `most`: a whole number if `whole`, so that equal costs and exact fits occur.
    fn amount(&mut self, most: usize, whole: bool) -> f64 {
        if whole { self.below(most + 1) as f64 } else { self.unit() * most as f64 }
    }
}

/// The shape of a random problem.
struct Shape {
    layers: usize,
    stages: usize,
    classes: usize,
    choices: usize,
}

fn random_problem(random: &mut Random, shape: Shape) -> Problem {
    let whole = random.below(2) == 0;
    let classes: Vec<LayerClass> = (0..shape.classes)
        .map(|_| {
            let base = 1.0 + random.amount(6, whole);
            let kept = 1.0 + random.amount(8, whole);
            let choices: Vec<Choice> = (0..1 + random.below(shape.choices))
                .map(|index| match (index, random.below(3)) {
                    (0, _) => choice(base, kept, random.amount(3, whole)),
                    // Slower, keeps less; now and then neither.
                    (_, 0) => choice(
                        1.0 + random.amount(8, whole),
                        random.amount(8, whole),
                        random.amount(6, whole),
                    ),
                    _ => choice(
                        base + random.amount(3, whole),
                        random.unit().round() * kept * 0.5,
                        random.amount(4, whole),
                    ),
                })
                .collect();
            class(random.amount(4, whole), &choices)
        })
        .collect();
    // The same layers on other devices, each choice as much slower or faster as it may be.
    let devices = 1 + random.below(3);
    let mut kinds = vec![classes];
    for _ in 1..devices {
        let mut other = kinds[0].clone();
        for choice in other.iter_mut().flat_map(|class| &mut class.choices) {
            choice.time = choice.time * 0.5 + Seconds::new(random.amount(6, whole));
        }
        kinds.push(other);
    }
    let mut runs = Vec::new();
    let mut left = shape.layers;
    while left > 0 {
        let count = 1 + random.below(left);
        runs.push(run(random.below(shape.classes), count));
        left -= count;
    }
    // From hopeless to ample: a share of what the layers of an even split would hold.
    let share = shape.layers as f64 / shape.stages as f64;
    let limit = 4.0 + share * (2.0 + random.amount(18, whole));
    // Half of the problems limit what layers leave between steps.
    let idle = if random.below(2) == 0 { f64::INFINITY } else { share * (1.0 + random.amount(4, whole)) };
    let stages: Vec<Stage> = (0..shape.stages)
        .map(|_| Stage {
            time: Seconds::new(random.amount(3, whole) * 0.5),
            memory: Bytes::new(random.amount(4, whole)),
            peak: Bytes::new(random.amount(4, whole)),
            in_flight: if whole { 1.0 + random.below(4) as f64 } else { 0.5 + 3.0 * random.unit() },
            limit: Bytes::new(limit + random.amount(4, whole)),
            idle: Bytes::new(random.amount(2, whole)),
            idle_limit: Bytes::new(idle + random.amount(4, whole)),
            device: random.below(devices),
            least_layers: random.below(4).min(1),
        })
        .collect();
    let (steady, ramp) =
        [(0.0, 1.0), (1.0, 0.0), (1.0, 1.0), (3.0, 1.0), (31.0, 1.0), (1.5, 2.5)][random.below(6)];
    Problem { runs, classes: kinds, stages, steady, ramp }
}

#[derive(Default, Debug)]
struct Tally {
    paths: usize,
    programs: usize,
    infeasible: usize,
}

impl Tally {
    fn count(&mut self, solution: &Solution) {
        match solution.effort.method {
            Method::ShortestPaths => self.paths += 1,
            Method::IntegerProgram => self.programs += 1,
        }
    }
}

/// Expects the solver to find what exhaustive search finds.
fn check_against_exhaustive(problem: &Problem, tally: &mut Tally) {
    match (solve(problem, Seconds::new(60.0)).unwrap(), exhaustive(problem)) {
        (Outcome::Solved(solution), Ok(objective)) => {
            let error = (solution.objective.get() - objective).abs();
            assert!(error <= 1e-9 * objective, "{objective} expected: {solution:?} of {problem:?}");
            tally.count(&solution);
        }
        (Outcome::Infeasible(Infeasible::Memory { stage, needs, limit }), Err(excess)) => {
            assert_eq!(limit, problem.stages[stage].limit);
            let error = needs.get() - limit.get() - excess;
            assert!(
                error.abs() <= 1e-6 * (1.0 + excess),
                "lacks {excess}: {needs} of {limit} in {problem:?}"
            );
            tally.infeasible += 1;
        }
        (outcome, expected) => panic!("{expected:?} expected: {outcome:?} of {problem:?}"),
    }
}

#[test]
fn small_problems_agree_with_exhaustive_search() {
    let mut random = Random(0x5eed_0001);
    let mut tally = Tally::default();
    for _ in 0..30_000 {
        let stages = 1 + random.below(4);
        let layers = stages + random.below(8 - stages);
        let shape = Shape { layers, stages, classes: 1 + random.below(3), choices: 3 };
        check_against_exhaustive(&random_problem(&mut random, shape), &mut tally);
    }
    // The instances must exercise every outcome.
    assert!(tally.paths > 1000 && tally.programs > 20 && tally.infeasible > 1000, "{tally:?}");
}

// ---------------------------------------------------------------------------------------------------------------------
// The dynamic program

#[test]
fn medium_problems_agree_with_the_dynamic_program() {
    let mut random = Random(0x5eed_0004);
    let mut tally = Tally::default();
    for _ in 0..2000 {
        let stages = 2 + random.below(7);
        let layers = stages + 8 + random.below(16);
        let shape = Shape { layers, stages, classes: 1 + random.below(3), choices: 3 };
        let problem = random_problem(&mut random, shape);
        let expected = exact::least_objective(&problem);
        match (solve(&problem, Seconds::new(60.0)).unwrap(), expected) {
            (Outcome::Solved(solution), Some(expected)) => {
                let error = (solution.objective - expected).get().abs();
                assert!(error <= 1e-9 * expected.get(), "{expected:?} expected: {solution:?} of {problem:?}");
                tally.count(&solution);
            }
            (Outcome::Infeasible(_), None) => tally.infeasible += 1,
            (outcome, expected) => panic!("{expected:?} expected: {outcome:?} of {problem:?}"),
        }
    }
    assert!(tally.paths > 100 && tally.programs > 20 && tally.infeasible > 20, "{tally:?}");
}
