use super::*;
use trainwright_sim::forecast;
use trainwright_spec::cluster::Cluster;
use trainwright_spec::job::Job;
use trainwright_spec::mesh::Mesh;
use trainwright_spec::model::preset::preset;
use trainwright_spec::precision::Precision;
use trainwright_spec::stack::Stack;

/// GPT-2 on one node of A100s.
fn plan(mesh: Mesh) -> Plan {
    let stage = format!("{} none", 12 / mesh.pipeline);
    let cluster = Cluster::from_name("dgx-a100").unwrap();
    let plan = Plan {
        stages: vec![stage.parse().unwrap(); mesh.pipeline],
        mesh,
        ..Plan::plain(
            preset("gpt2").unwrap(),
            Stack::from_name("megatron-core").unwrap(),
            cluster,
            Job::new(1024, 16, Precision::Bf16),
        )
    };
    plan.check("plan").unwrap();
    plan
}

fn drawn(plan: &Plan, noise: &Noise, samples: usize) -> Stragglers {
    stragglers(plan, noise, Sampling { samples, seed: 7 }, &|_, _| {}).unwrap()
}

#[test]
fn without_noise_every_sample_is_the_forecast() {
    for mesh in [Mesh::new(1, 1, 8), Mesh::new(2, 2, 2), Mesh::new(1, 4, 2)] {
        let plan = plan(mesh);
        let answer = drawn(&plan, &Noise::default(), 3);
        let (forecast, _) = forecast(&plan, &ClusterCosts::new(&plan.cluster)).unwrap();
        assert_eq!(answer.undisturbed, forecast.step_time, "{mesh:?}");
        assert_eq!(answer.samples, [answer.undisturbed; 3]);
        // Equal ranks do not wait for others with the same stage.
        assert!(answer.pairs.iter().all(|pair| (pair.waits - pair.undisturbed).get().abs() < 1e-9));
        let across = |rank: usize| plan.mesh.coordinates(rank).pipeline;
        assert!(answer.pairs.iter().all(|pair| across(pair.waiting) != across(pair.waited_for)));
    }
}

#[test]
fn all_wait_for_a_slow_rank() {
    let plan = plan(Mesh::new(1, 1, 8));
    let slow_ranks = vec![SlowRank { rank: 5, slowness: 2.0 }];
    let answer = drawn(&plan, &Noise { slow_ranks, ..Noise::default() }, 2);
    // Compute is nearly all of the step.
    let longer = answer.mean() / answer.undisturbed;
    assert!(longer > 1.8 && longer <= 2.0, "{longer}");
    assert_eq!(answer.ranks[0].rank, 5);
    // Seven others wait as long as the step is longer, less what the reductions themselves take meanwhile, a fifth of it.
    let longer = 7.0 * (answer.mean() - answer.undisturbed).get();
    let waits = answer.ranks[0].waited_for.get() / longer;
    assert!((0.7..1.0).contains(&waits), "{waits}");
    assert_eq!(answer.pairs.len(), 7);
    assert!(answer.pairs.iter().all(|pair| pair.waited_for == 5 && pair.undisturbed == Seconds::ZERO));
}

#[test]
fn a_tensor_group_is_as_slow_as_its_slowest_gpu() {
    let plan = plan(Mesh::new(4, 1, 2));
    let slow = |rank| {
        let slow_ranks = vec![SlowRank { rank, slowness: 1.5 }];
        drawn(&plan, &Noise { slow_ranks, ..Noise::default() }, 1)
    };
    let (one, other) = (slow(4), slow(7));
    assert_eq!(one, other);
    assert_eq!((one.ranks[0].rank, one.gpus_per_rank), (4, 4));
}

#[test]
fn the_number_of_threads_changes_nothing() {
    let plan = plan(Mesh::new(2, 2, 2));
    let noise = Noise {
        ops: 0.1,
        network: 0.3,
        gpus: 0.02,
        slow_part: Some(SlowPart { share: 0.1, slowness: 1.1 }),
        slow_ranks: Vec::new(),
    };
    let with = |threads: usize| {
        let pool = rayon::ThreadPoolBuilder::new().num_threads(threads).build().unwrap();
        pool.install(|| drawn(&plan, &noise, 12))
    };
    let one = with(1);
    assert_eq!(one, with(4));
    assert!(one.quantile(0.95) > one.quantile(0.5) && one.quantile(0.5) > one.undisturbed);
    let other = stragglers(&plan, &noise, Sampling { samples: 12, seed: 8 }, &|_, _| {}).unwrap();
    assert_ne!(one.samples, other.samples);
}

/// Joined ops, each drawn at once, against every op drawn by itself.
#[test]
fn joined_ops_are_as_uneven_together_as_one_by_one() {
    let plan = plan(Mesh::new(1, 2, 4));
    let program = lower_every_copy(&plan);
    let firsts: Vec<usize> = program.ranks.iter().map(|rank| rank.rank).collect();
    let noise = Noise { ops: 0.3, ..Noise::default() };
    let draws = Draws::new(&noise, &firsts, 1);
    let costs = ClusterCosts::new(&plan.cluster);
    let steps = |detail| -> Vec<f64> {
        let repeated = Repeated::new(&program, &costs, detail);
        let step = |number| {
            let mut drawn = draws.sample(1, number);
            Seconds::from(repeated.run(|piece| drawn.factor(piece)).unwrap().step).get()
        };
        (0..60).map(step).collect()
    };
    let (joined, single) = (steps(Detail::Calls), steps(Detail::Ops));
    let close = |a: f64, b: f64, most: f64| assert!((a / b - 1.0).abs() < most, "{a} {b}");
    close(mean(&joined), mean(&single), 0.005);
    close(quantile(&joined, 0.95), quantile(&single, 0.95), 0.01);
}

#[test]
fn invalid_noise_is_refused() {
    let slow_ranks = vec![SlowRank { rank: 8, slowness: 2.0 }];
    let (plan, noise) = (plan(Mesh::new(1, 1, 8)), Noise { slow_ranks, ..Noise::default() });
    let refused = stragglers(&plan, &noise, Sampling { samples: 1, seed: 0 }, &|_, _| {});
    assert_eq!(refused.unwrap_err().to_string(), "rank 8 is slow, but the plan has ranks 0 to 7");
}
