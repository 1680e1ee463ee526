//! Plans of serving: mixes against every mix, rates against a scan of rates, pools against what `serve` says.

use trainwright_planner::serving::{
    Kind, LatencyLimits, Mix, Objective, OptionOfPool, Role, ServedFormats, ServingQuestion, Traffic,
    TriedOutcome, best_mix, plan_serving,
};
use trainwright_sim::serving::{Instance, Load, Request};
use trainwright_spec::cluster::Cluster;
use trainwright_spec::model::preset::preset;
use trainwright_spec::serving::Engine;
use trainwright_spec::units::Seconds;

/// Numbers below a limit, the same in every run.
fn random(state: &mut u64, limit: u64) -> u64 {
    *state = state.wrapping_mul(6364136223846793005).wrapping_add(1442695040888963407);
    (*state >> 33) % limit
}

/// Requests a second that a mix keeps.
fn rate_of(options: &[OptionOfPool], instances: &[usize]) -> f64 {
    let sum = |role: Role| -> f64 {
        let mine = options.iter().zip(instances).filter(|(option, _)| option.role == role);
        mine.map(|(option, count)| *count as f64 * option.rate).sum()
    };
    sum(Role::Whole) + sum(Role::Prefill).min(sum(Role::Decode))
}

fn worth_of(options: &[OptionOfPool], instances: &[usize]) -> f64 {
    options.iter().zip(instances).map(|(option, count)| *count as f64 * option.worth).sum()
}

/// Calls `visit` with every mix that the GPUs have room for.
fn every_mix(
    options: &[OptionOfPool],
    gpus: &[usize],
    chosen: &mut Vec<usize>,
    visit: &mut dyn FnMut(&[usize]),
) {
    let Some(option) = options.get(chosen.len()) else { return visit(chosen) };
    let taken: usize = options
        .iter()
        .zip(chosen.iter())
        .filter(|(other, _)| other.kind == option.kind)
        .map(|(other, count)| other.gpus * count)
        .sum();
    for count in 0..=(gpus[option.kind] - taken) / option.gpus {
        chosen.push(count);
        every_mix(options, gpus, chosen, visit);
        chosen.pop();
    }
}

#[test]
fn no_mix_is_better() {
    let mut state = 11;
    let (mut found, mut infeasible, mut apart) = (0, 0, 0);
    for question in 0..300 {
        let gpus: Vec<usize> =
            (0..1 + random(&mut state, 2)).map(|_| 2 + random(&mut state, 7) as usize).collect();
        let options: Vec<OptionOfPool> = (0..2 + random(&mut state, 4))
            .map(|_| {
                let kind = random(&mut state, gpus.len() as u64) as usize;
                let of = 1 << random(&mut state, 3);
                let size = if of > gpus[kind] { 1 } else { of };
                let role = [Role::Whole, Role::Prefill, Role::Decode][random(&mut state, 3) as usize];
                let dollars = if question % 2 == 0 { 1.0 } else { 1.0 + kind as f64 * 0.7 };
                let rate = (1 + random(&mut state, 900)) as f64 / 100.0;
                OptionOfPool { kind, role, gpus: size, rate, worth: dollars * size as f64 }
            })
            .collect();
        let asked = (1 + random(&mut state, 3000)) as f64 / 100.0;
        let used = |instances: &[usize]| instances.iter().filter(|count| **count > 0).count();
        // What it is worth, then how many different options it has.
        let (mut least, mut fewest, mut most) = (f64::INFINITY, 0, 0.0f64);
        every_mix(&options, &gpus, &mut Vec::new(), &mut |instances| {
            let rate = rate_of(&options, instances);
            most = most.max(rate);
            let worth = worth_of(&options, instances);
            if rate >= asked * (1.0 - 1e-9) && worth < least - 1e-9 {
                (least, fewest) = (worth, used(instances));
            } else if rate >= asked * (1.0 - 1e-9) && worth < least + 1e-9 {
                fewest = fewest.min(used(instances));
            }
        });
        match best_mix(&options, &gpus, Some(asked)) {
            Some(Mix { instances, worth, rate, proved }) => {
                assert!(proved, "{options:?}");
                assert!((worth - least).abs() < 1e-6, "{worth}, not {least}: {options:?} {gpus:?} {asked}");
                assert_eq!(used(&instances), fewest, "{instances:?}: {options:?} {gpus:?} {asked}");
                assert!((worth_of(&options, &instances) - worth).abs() < 1e-9);
                assert!((rate_of(&options, &instances) - rate).abs() < 1e-9 && rate >= asked * (1.0 - 1e-6));
                found += 1;
                let is_apart =
                    |(option, count): (&OptionOfPool, &usize)| option.role == Role::Decode && *count > 0;
                apart += usize::from(options.iter().zip(&instances).any(is_apart));
            }
            None => {
                assert!(least.is_infinite(), "{least} was possible: {options:?} {gpus:?} {asked}");
                infeasible += 1;
            }
        }
        let kept = best_mix(&options, &gpus, None).map_or(0.0, |mix| mix.rate);
        assert!((kept - most).abs() <= 1e-6 * most, "{kept}, not {most}: {options:?} {gpus:?}");
    }
    assert!(found > 100 && infeasible > 100 && apart > 15, "{found} {infeasible} {apart}");
}

fn question(cluster: &str, rate: Option<f64>) -> ServingQuestion {
    let bf16 = || String::from("bfloat16");
    ServingQuestion {
        model: preset("llama-3-8b").unwrap(),
        kinds: vec![Kind { cluster: Cluster::from_name(cluster).unwrap(), price: Some(2.0) }],
        engines: vec![Engine::from_name("vllm-v1").unwrap()],
        formats: vec![ServedFormats { weights: bf16(), expert_weights: bf16(), cache: bf16() }],
        traffic: Traffic::Alike { input: 512, output: 128, cached: 0 },
        rate,
        limits: LatencyLimits { ttft: Seconds::new(0.5), tpot: Seconds::new(0.02), part: 0.9 },
        apart: false,
        objective: Objective::Gpus,
    }
}

#[test]
fn a_rate_is_kept_and_the_next_is_not() {
    let question = question("dgx-h100", None);
    let verdict = plan_serving(&question, true, None, &|_, _| ());
    let mut checked = 0;
    for tried in &verdict.tried {
        let TriedOutcome::Kept(capacity) = &tried.outcome else { panic!("{tried:?}") };
        let (over, _) = capacity.over.expect("an instance has an end");
        assert!(over.rate / capacity.kept.rate < 1.021, "{capacity:?}");
        let keeps = |rate: f64, requests: usize| {
            let load = Load::at_rate(rate, requests, 512, 128);
            let plan = &tried.option.plan;
            let mut instance =
                Instance::new(&question.model, plan, &question.kinds[0].cluster, &load, None).unwrap();
            let served = instance.serve(&load).unwrap();
            (served.ttft_at(0.9), served.tpot_at(0.9))
        };
        let (ttft, tpot) = keeps(capacity.kept.rate, capacity.kept.requests);
        assert_eq!((ttft, tpot), (capacity.kept.ttft, capacity.kept.tpot));
        assert!(ttft <= question.limits.ttft && tpot <= question.limits.tpot);
        // A scan from below finds no rate above the next that is kept, to a step of 10 %.
        for step in 1..8 {
            let rate = over.rate * 1.1f64.powi(step);
            let (ttft, tpot) = keeps(rate, (over.requests as f64 * 1.1f64.powi(step)) as usize);
            assert!(
                ttft > question.limits.ttft || tpot > question.limits.tpot,
                "{rate} is kept: {capacity:?}"
            );
        }
        checked += 1;
    }
    assert!(checked >= 9, "{checked}");
}

#[test]
fn what_is_left_out_would_not_have_helped() {
    for rate in [20.0, 75.0, 180.0] {
        let question = question("dgx-h100:2", Some(rate));
        let [all, some] = [true, false].map(|every| plan_serving(&question, every, None, &|_, _| ()));
        let gpus = |verdict: &trainwright_planner::serving::ServingVerdict| -> usize {
            verdict.pools.iter().map(|pool| pool.instances * pool.option.plan.gpus()).sum()
        };
        assert!(all.proved && some.proved && gpus(&all) > 0);
        assert_eq!(gpus(&all), gpus(&some), "{rate}");
        let fewer =
            some.tried.iter().filter(|tried| matches!(tried.outcome, TriedOutcome::Fewer(..))).count();
        assert!(fewer > 0, "{rate}");
        let share: f64 = some.pools.iter().map(|pool| pool.instances as f64 * pool.point.rate).sum();
        assert!(share >= rate * (1.0 - 1e-9) && share < rate * 1.002, "{share} for {rate}");
        assert!(some.pools.iter().all(|pool| pool.point.rate <= pool.most));
    }
    let verdict = plan_serving(&question("dgx-h100", Some(1e5)), false, None, &|_, _| ());
    let most = verdict.most.unwrap();
    assert!(verdict.pools.is_empty() && most > 50.0 && most < 1000.0, "{most}");
}

#[test]
fn what_the_time_limit_leaves_is_not_proved() {
    let verdict = plan_serving(&question("dgx-h100", Some(20.0)), false, Some(Seconds::ZERO), &|_, _| ());
    assert!(verdict.pools.is_empty() && !verdict.proved && verdict.most.is_none());
    assert!(verdict.tried.iter().all(|tried| tried.outcome == TriedOutcome::NotTried));
}

/// Prefill and decode one after the other, with each request's own first token, against pools that are sized apart.
#[test]
fn pools_apart_keep_the_limits_together() {
    let mut question = question("dgx-h100", Some(40.0));
    question.apart = true;
    question.limits.tpot = Seconds::new(0.009);
    let verdict = plan_serving(&question, false, None, &|_, _| ());
    let best = |role: Role| {
        let of = |tried: &trainwright_planner::serving::Tried| match &tried.outcome {
            TriedOutcome::Kept(capacity) if tried.option.role == role && tried.option.plan.gpus() == 1 => {
                Some((tried.option.clone(), capacity.kept))
            }
            _ => None,
        };
        verdict.tried.iter().find_map(of).expect("one GPU keeps a rate")
    };
    let (prefill, decode) = (best(Role::Prefill), best(Role::Decode));
    let cluster = &question.kinds[0].cluster;
    // One instance of prefill feeds one of decode at the lower of their rates.
    let rate = prefill.1.rate.min(decode.1.rate) * 0.97;
    let load = Load::at_rate(rate, 2000, 512, 128);
    let Load::Open(requests) = &load else { unreachable!() };
    let first = requests.iter().map(|request| Request { output: 1, ..*request }).collect();
    let first = Load::Open(first);
    let mut instance = Instance::new(&question.model, &prefill.0.plan, cluster, &first, None).unwrap();
    let served = instance.serve(&first).unwrap();
    let mut then: Vec<(Request, Seconds)> = served
        .requests
        .iter()
        .map(|request| {
            let cached = Request { cached: 512, ..Request::new(request.last, 513, 127) };
            (cached, request.last)
        })
        .collect();
    then.sort_by(|one, other| one.0.arrival.get().total_cmp(&other.0.arrival.get()));
    let then = Load::Open(then.into_iter().map(|(request, _)| request).collect());
    let mut instance = Instance::new(&question.model, &decode.0.plan, cluster, &then, None).unwrap();
    let decoded = instance.serve(&then).unwrap();
    let mut tpot: Vec<f64> =
        decoded.requests.iter().map(|request| request.latency().get() / request.output as f64).collect();
    tpot.sort_by(f64::total_cmp);
    let p90 = tpot[tpot.len() * 9 / 10];
    assert!(served.ttft_at(0.9) <= question.limits.ttft, "{:?}", served.ttft_at(0.9));
    // Arrivals from prefill are more even than at random; keys and values take a tenth of a token's time to move.
    assert!(p90 <= question.limits.tpot.get(), "{p90}");
    assert!(p90 > 0.6 * question.limits.tpot.get(), "{p90}: the pool is far larger than need be");
}
