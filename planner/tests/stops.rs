//! A search that is stopped at any time has an answer: the best plans so far with a bound that holds, or that there are none.
//!
//! Searches are stopped by the number of times that they ask whether to stop, so that nothing here depends on the time.

use std::sync::atomic::{AtomicUsize, Ordering};
use trainwright_planner::{Breadth, Found, Pins, Question, Risk, Scope, Verdict, plan_until, plan_within};
use trainwright_sim::costs::ClusterCosts;
use trainwright_sim::forecast;
use trainwright_spec::cluster::Cluster;
use trainwright_spec::job::Job;
use trainwright_spec::model::preset::preset;
use trainwright_spec::precision::Precision;
use trainwright_spec::stack::Stack;
use trainwright_spec::units::Seconds;

fn question(model: &str, blocks: usize, cluster: &str, breadth: Breadth) -> Question {
    let mut model = preset(model).unwrap();
    model.blocks[0].count = blocks;
    Question {
        model,
        cluster: Cluster::from_name(cluster).unwrap(),
        job: Job {
            sequence: 2048,
            global_batch: 32,
            precision: Precision::Bf16,
            optimizer: "adamw".into(),
            gradient_clipping: true,
            adapters: None,
        },
        stack: Stack::from_name("megatron-core").unwrap(),
        pins: Pins { breadth, ..Pins::default() },
        risk: Risk::default(),
    }
}

/// The verdict of a search that is stopped when it asks for the time after `checks`, and how often it asked.
fn stopped(question: &Question, time: Option<f64>, checks: usize) -> (Verdict, usize) {
    let scope = Scope { time: time.map(Seconds::new), ..Scope::default() };
    let asked = AtomicUsize::new(0);
    let stop = || asked.fetch_add(1, Ordering::Relaxed) >= checks;
    let verdict = plan_until(question, scope, &stop, &|_| {}).unwrap();
    (verdict, asked.into_inner())
}

/// Numbers of checks from none to all of a search's.
fn numbers(all: usize) -> impl Iterator<Item = usize> {
    let mut next = 0;
    std::iter::from_fn(move || {
        let now = next;
        next = (now + 1).max(now * 3 / 2);
        (now <= all).then_some(now)
    })
}

/// A limit that no search reaches.
const LONG: Option<f64> = Some(1e6);

#[test]
fn wherever_a_search_is_stopped_it_has_a_plan_and_a_bound_that_holds() {
    let check = |question: Question, time: Option<f64>| {
        let (whole, checks) = stopped(&question, time, usize::MAX);
        let Verdict::Found(whole) = whole else { panic!("{whole:?}") };
        let (least, name) = (whole.ranked[0].expected, format!("{} {time:?}", question.cluster.name));
        let proved = whole.search.bound.unwrap();
        let (mut worse, mut open) = (0, 0);
        for number in numbers(checks) {
            let Verdict::Found(found) = stopped(&question, time, number).0 else {
                panic!("{name}: nothing after {number} checks")
            };
            let Found { ranked, search, front, .. } = found;
            let best = &ranked[0];
            best.plan.check("stopped").unwrap();
            assert!(best.forecast.fits, "{name} {number}");
            // As `simulate` says of the same plans.
            for ranked in &ranked {
                let (forecast, _) = forecast(&ranked.plan, &ClusterCosts::new(&ranked.plan.cluster)).unwrap();
                assert_eq!(ranked.forecast, forecast, "{name} {number}");
            }
            let bound = search.bound.unwrap();
            assert!(bound <= least * (1.0 + 1e-9), "{name} {number}: {bound} but {least} is possible");
            // More work proves as much or more.
            assert!(bound <= proved * (1.0 + 1e-9), "{name} {number}: {bound}, in the end {proved}");
            assert!((0.0..1.0).contains(&search.gap(best.expected).unwrap()), "{name} {number}");
            assert!(front.iter().all(|point| point.step_time > Seconds::ZERO), "{name} {number}");
            assert!(search.unseen < search.candidates, "{name} {number}: {search:?}");
            worse += usize::from(best.expected > least * 1.001);
            open += usize::from(search.unseen > 0);
        }
        // Else nothing was stopped.
        assert!(open >= 3, "{name}: {open} searches were stopped early, {worse} with a slower plan");
    };
    for time in [None, LONG] {
        check(question("llama-3-8b", 8, "dgx-h100:2", Breadth::Auto), time);
    }
    check(question("mixtral-8x7b", 4, "dgx-h100:1", Breadth::Auto), None);
    check(question("llama-3.2-1b", 6, "dgx-h100:1+dgx-a100:1", Breadth::Core), LONG);
    check(question("llama-3-8b", 4, "dgx-h100:1", Breadth::Whole), LONG);
}

#[test]
fn a_stopped_search_of_what_does_not_fit_never_finds_a_plan() {
    let question = question("llama-3-405b", 126, "dgx-h100:2", Breadth::Auto);
    let (whole, checks) = stopped(&question, None, usize::MAX);
    assert!(matches!(whole, Verdict::Infeasible(_)), "{whole:?}");
    let (mut early, mut late) = (0, 0);
    for number in numbers(checks) {
        match stopped(&question, None, number).0 {
            Verdict::Found(found) => panic!("{number}: {:?}", found.ranked[0].plan.mesh),
            Verdict::OutOfTime(search) => {
                assert!(search.unseen > 0, "{number}");
                early += 1;
            }
            Verdict::Infeasible(infeasible) => {
                assert!(infeasible.search.unseen == 0 && !infeasible.broken.is_empty(), "{number}");
                late += 1;
            }
        }
    }
    assert!(early > 0 && late > 0, "{early} searches had no time, {late} had");
}

#[test]
fn a_limit_that_is_not_reached_changes_nothing() {
    for breadth in [Breadth::Auto, Breadth::Whole] {
        let question = question("mixtral-8x7b", 4, "dgx-h100:1", breadth);
        let [without, with] = [None, LONG].map(|time| match stopped(&question, time, usize::MAX).0 {
            Verdict::Found(found) => found,
            other => panic!("{other:?}"),
        });
        let times = |found: &Found| -> Vec<(Seconds, bool)> {
            let of = |ranked: &trainwright_planner::Ranked| {
                (ranked.expected, ranked.forecast.detail == trainwright_sim::Detail::Ops)
            };
            found.ranked.iter().map(of).collect()
        };
        assert_eq!(times(&with), times(&without), "{breadth:?}");
        assert!(times(&with).iter().all(|(_, op_by_op)| *op_by_op), "{breadth:?}");
        assert_eq!((with.search.unseen, without.search.unseen), (0, 0), "{breadth:?}");
    }
}

/// The first plans of a search with a limit are found by weaker bounds than those that it has at its end.
#[test]
fn a_limit_that_is_not_reached_proves_no_less() {
    for (model, blocks, cluster) in [
        ("llama-3-8b", 8, "dgx-h100:2"),
        ("mixtral-8x7b", 8, "dgx-h100:4"),
        ("gpt3-13b", 12, "l40s-8-ethernet:2"),
    ] {
        let question = question(model, blocks, cluster, Breadth::Auto);
        let [without, with] = [None, LONG].map(|time| match stopped(&question, time, usize::MAX).0 {
            Verdict::Found(found) => found.search.bound.unwrap(),
            other => panic!("{other:?}"),
        });
        assert!(with >= without * (1.0 - 1e-9), "{model}: {with} with a limit, {without} without");
    }
}

#[test]
fn a_limit_that_is_over_at_once_has_no_plan_but_one_of_zero_has() {
    let question = question("llama-3-8b", 8, "dgx-h100:2", Breadth::Auto);
    let within = |time: f64| {
        let scope = Scope { time: Some(Seconds::new(time)), ..Scope::default() };
        plan_within(&question, scope, &|_| {}).unwrap()
    };
    let Verdict::OutOfTime(search) = within(1e-9) else { panic!("a plan in a nanosecond") };
    assert_eq!((search.unseen, search.simulated), (search.candidates, 0));
    let Verdict::Found(found) = within(0.0) else { panic!("no first plan") };
    assert_eq!((found.search.simulated, found.ranked.len()), (1, 1));
}
