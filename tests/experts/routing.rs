//! Which experts tokens visit: uneven loads, gates by sentence, files of routings.

use super::*;

/// Rows of all products of the experts' first matrices.
fn rows(plan: &Plan) -> usize {
    let first = |op: &Op| op.module == "expert fc1" && op.pass == Pass::Forward;
    let rows = block_ops(plan, first).into_iter().map(|op| match op.work {
        Work::Compute(Kernel::Gemm { count, m, .. }) => count * m,
        other => panic!("{other:?}"),
    });
    rows.sum()
}

fn with_one_expert_per_token(mut plan: Plan) -> Plan {
    for run in &mut plan.model.blocks {
        if let Mlp::Experts(experts) = &mut run.block.mlp {
            experts.per_token = 1;
        }
    }
    plan
}

fn trace(tokens: impl Fn(usize) -> u64) -> Load {
    let rows = (0..2).flat_map(|layer| (0..8).map(move |expert| (layer, expert)));
    let rows = rows.map(|(layer, expert)| format!("{layer},{expert},{}\n", tokens(expert)));
    Load::from_csv(&format!("layer,expert,tokens\n{}", rows.collect::<String>()), "trace.csv").unwrap()
}

#[test]
fn uneven_loads_are_as_slow_as_their_busiest_rank() {
    let plan = with_one_expert_per_token(mixtral([1, 1, 8], [4, 1]));
    let with =
        |load: Load, capacity_factor| routed(&plan, Routing { load, capacity_factor, ..Routing::default() });
    let time = |plan: &Plan| step_time(&lower(plan), &ClusterCosts::new(&plan.cluster)).unwrap();
    // A balanced trace is no imbalance: the same program.
    let balanced = with(trace(|_| 77), None);
    assert_eq!(lower(&balanced), lower(&plan));
    assert_eq!(rows(&plan), 1024);
    // All tokens on one expert: E times the rows, and as many bytes for its rank.
    let one = with(trace(|expert| if expert == 3 { 1000 } else { 0 }), None);
    assert_eq!(rows(&one), 4 * 1024);
    let exchanged = |plan: &Plan| sent(plan, Pass::Forward);
    assert_eq!(exchanged(&one), expected(&[(Axis::Expert, AllToAll, 4 * 1024 * 4096 * 2, 2)]));
    assert!(time(&one) > time(&plan));
    // Experts 0 and 1 are on rank 0, with 3/16 + 5/16 of the tokens: half of 4 · 1024.
    let half = with(trace(|expert| [3, 5, 1, 1, 1, 1, 2, 2][expert]), None);
    assert_eq!(rows(&half), 2 * 1024);
    // Dropping: expert 1 has 2.5 times the mean and takes 1.25 of it, so does expert 0 with 1.5: 1.25 · 1024 rows.
    let dropping = with(trace(|expert| [3, 5, 1, 1, 1, 1, 2, 2][expert]), Some(1.25));
    assert_eq!(rows(&dropping), 1280);
    assert!(time(&dropping) < time(&half));
    // All on one of two experts of a rank, each of which takes the mean: half of it is idle.
    assert_eq!(rows(&with(trace(|expert| u64::from(expert == 3)), Some(1.0))), 512);
    // Between balanced and all on one, and the same each time.
    for load in [Load::Zipf { exponent: 1.0, seed: 1 }, Load::LogNormal { sigma: 0.5, seed: 1 }] {
        let drawn = with(load.clone(), None);
        assert!((1025..4096).contains(&rows(&drawn)), "{load:?}: {}", rows(&drawn));
        assert_eq!(lower(&drawn), lower(&with(load, None)));
    }
}

#[test]
fn drawn_loads_have_the_shape_of_their_distribution() {
    let plan = mixtral([1, 1, 8], [8, 1]);
    let experts = Experts { count: 4096, ..mixture(&plan).clone() };
    let sum = |list: &[f64]| list.iter().sum::<f64>();
    // Zipf: the i-th most visited has i^−1/2 / Σ of it; below count / k = 2048 times the mean nothing is cut.
    let zipf = Load::Zipf { exponent: 0.5, seed: 3 };
    let drawn = zipf.multiples(&experts, 1);
    let mut sorted = drawn.clone();
    sorted.sort_by(|a, b| b.total_cmp(a));
    assert!((sum(&drawn) - 4096.0).abs() < 1e-6);
    for place in [2usize, 9, 100, 4096] {
        let ratio = sorted[0] / sorted[place - 1];
        assert!((ratio - (place as f64).sqrt()).abs() < 1e-9, "place {place}: {ratio}");
    }
    assert_ne!(drawn, sorted);
    assert_ne!(drawn, zipf.multiples(&experts, 2), "layers differ");
    assert_ne!(drawn, Load::Zipf { exponent: 0.5, seed: 4 }.multiples(&experts, 1), "seeds differ");
    // Log-normal: the deviation of the logarithms of 4096 draws is sigma within a few parts in a hundred.
    let drawn = Load::LogNormal { sigma: 0.7, seed: 3 }.multiples(&experts, 1);
    let logs: Vec<f64> = drawn.iter().map(|multiple| libm::log(*multiple)).collect();
    let mean = sum(&logs) / 4096.0;
    let deviation = (logs.iter().map(|log| (log - mean).powi(2)).sum::<f64>() / 4096.0).sqrt();
    assert!((deviation - 0.7).abs() < 0.03, "{deviation}");
    // A token visits an expert once: of 8 experts and k = 2 none has more than 4 times the mean.
    let steep = Load::Zipf { exponent: 20.0, seed: 3 }.multiples(mixture(&plan), 0);
    assert!(steep.iter().all(|multiple| *multiple <= 4.0 + 1e-9), "{steep:?}");
    assert!((sum(&steep) - 8.0).abs() < 1e-6);
}

#[test]
fn a_gate_by_sentence_sends_complete_sentences() {
    let by_sentence =
        |plan: &Plan| rows(&routed(plan, Routing { gate: Gate::Sentence, ..Routing::default() }));
    // 8 ranks, one sentence of 1024 tokens each, k = 2: 16 visits to 8 ranks are two sentences each.
    assert_eq!(by_sentence(&mixtral([1, 1, 8], [8, 1])), 2 * 1024);
    // k = 1 and 4 tensor ranks that share a sentence: 2 sentences for 8 ranks, so that some rank has a complete one.
    let plan = with_one_expert_per_token(mixtral([4, 1, 2], [8, 1]));
    assert_eq!((rows(&plan), by_sentence(&plan)), (256, 1024));
    // The router sees one mean for each sentence.
    let plan = mixtral([1, 1, 8], [8, 1]);
    let sentence = routed(&plan, Routing { gate: Gate::Sentence, ..Routing::default() });
    let router = |plan: &Plan| match block_ops(plan, |op| op.module == "router")[0].work {
        Work::Compute(Kernel::Gemm { m, .. }) => m,
        other => panic!("{other:?}"),
    };
    assert_eq!((router(&plan), router(&sentence)), (1024, 1));
}

#[test]
fn routing_is_written_and_read_back() {
    let plan = mixtral([1, 1, 8], [8, 1]);
    assert!(!plan.to_toml().contains("[experts]"), "defaults are not written");
    for load in [
        Load::Balanced,
        Load::Zipf { exponent: 0.5, seed: 7 },
        Load::LogNormal { sigma: 0.5, seed: 7 },
        trace(|expert| expert as u64 + 10),
    ] {
        let routing =
            Routing { load, capacity_factor: Some(1.5), gate: Gate::Sentence, ..Routing::default() };
        let plan = routed(&plan, routing);
        assert_eq!(Plan::from_toml(&plan.to_toml(), "plan.toml").unwrap(), plan, "{}", plan.to_toml());
    }
    for (text, message) in [
        ("layer,expert,tokens\n0,x,1\n", "trace.csv: CSV deserialize error"),
        ("layer,expert\n0,1\n", "trace.csv: CSV deserialize error"),
        ("layer,expert,tokens\n0,1000000,1\n", "trace.csv: `expert` is 1000000; it must be less than 100000"),
    ] {
        let error = Load::from_csv(text, "trace.csv").unwrap_err().to_string();
        assert!(error.starts_with(message), "{error}");
    }
}
