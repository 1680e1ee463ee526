//! Simulated serving against closed forms, against itself step by step, and against two measured runs.

use trainwright_sim::libraries::Operands;
use trainwright_sim::serving::{
    Batch, Instance, Limits, Load, Part, Policy, Queue, Request, Served, StepModel, memory, policy, serve,
};
use trainwright_spec::cluster::Cluster;
use trainwright_spec::model::Model;
use trainwright_spec::model::preset::preset;
use trainwright_spec::serving::{Engine, ServingPlan};
use trainwright_spec::units::{Bytes, Seconds};

fn setup(model: &str, cluster: &str, engine: &str, tensor: usize) -> (Model, Cluster, ServingPlan) {
    let plan = ServingPlan::new(Engine::from_name(engine).unwrap()).with_tensor(tensor);
    (preset(model).unwrap(), Cluster::from_name(cluster).unwrap(), plan)
}

/// Numbers below a limit, the same in every run.
fn random(state: &mut u64, limit: u64) -> u64 {
    *state = state.wrapping_mul(6364136223846793005).wrapping_add(1442695040888963407);
    (*state >> 33) % limit
}

#[test]
fn a_tokens_cache_is_what_its_closed_form_says() {
    // 2 x 36 blocks x 8 heads x 128 x 2 B a token: 4.5 GiB for 32,768 tokens, as Mooncake prints for Qwen3-8B.
    let (model, cluster, plan) = setup("qwen3-8b", "dgx-h100", "vllm-v1", 1);
    let held = memory(&model, &plan, &cluster, 2048, 1).unwrap();
    assert_eq!((32_768.0 * held.token).as_gib(), 4.5);
    // Latent: (512 + 64) x 61 blocks x 2 B, on every tensor rank.
    let (model, cluster, plan) = setup("deepseek-v3", "dgx-h200", "sglang", 8);
    assert_eq!(memory(&model, &plan, &cluster, 2048, 1).unwrap().token.get(), 576.0 * 61.0 * 2.0);
    // vLLM printed room for 41,408 tokens on an RTX 4090 with a budget of 2,048 tokens and 256 sequences.
    let (model, cluster, plan) = setup("llama-3-8b", "rtx-4090", "vllm-v1", 1);
    let capacity = memory(&model, &plan, &cluster, 2048, 256).unwrap().capacity() as f64;
    assert!((capacity / 41_408.0 - 1.0).abs() < 0.15, "{capacity}");
}

/// Beside what is always there a step has 4 B of logits for each sequence and entry, and 2 B an element of the widest activations
/// of each token: the residual stream twice, and what goes into a feed-forward layer's products and comes out.
#[test]
fn a_steps_memory_is_what_its_closed_form_says() {
    let check = |model: &str, [tensor, pipeline]: [usize; 2], vocabulary: f64, elements: f64| {
        let (model, cluster, mut plan) = setup(model, "dgx-h100", "vllm-v1", tensor);
        plan.pipeline = pipeline;
        let working = |tokens, sequences| memory(&model, &plan, &cluster, tokens, sequences).unwrap().working;
        let step = (working(2048, 16) - working(0, 0)).get();
        assert_eq!(step, 16.0 * 4.0 * vocabulary + 2048.0 * 2.0 * elements);
    };
    // Gate, input and product of half of 14,336 columns beside twice 4,096.
    check("llama-3-8b", [2, 2], 128_256.0, 3.0 * 7_168.0 + 8_192.0);
    // Two experts, of a quarter of 14,336 columns and a copy of the token each.
    check("mixtral-8x7b", [4, 1], 32_000.0, 2.0 * (3.0 * 3_584.0 + 4_096.0) + 8_192.0);
}

#[test]
fn a_stage_keeps_its_blocks_part_of_the_cache() {
    for (model, token, sequence) in [("llama-3-8b", true, false), ("qwen3-next-80b-a3b", true, true)] {
        let (model, cluster, mut plan) = setup(model, "dgx-h100", "vllm-v1", 2);
        let whole = memory(&model, &plan, &cluster, 2048, 1).unwrap();
        plan.pipeline = 2;
        let half = memory(&model, &plan, &cluster, 2048, 1).unwrap();
        assert_eq!((whole.token > Bytes::ZERO, whole.sequence > Bytes::ZERO), (token, sequence));
        assert_eq!((half.token, half.sequence), (whole.token / 2.0, whole.sequence / 2.0));
    }
}

#[test]
fn a_state_takes_the_same_memory_whatever_the_length() {
    // Qwen3-Next on 4 GPUs: 36 blocks with 8 states of 128 x 128 x 4 B and 3 tokens of 2 x 512 + 1024 channels x 2 B on each; the
    // other 12 keep 2 x 256 x 2 B of a token, as 2 heads on 4 ranks are one each.
    let (model, cluster, plan) = setup("qwen3-next-80b-a3b", "dgx-h100", "vllm-v1", 4);
    let held = memory(&model, &plan, &cluster, 2048, 1).unwrap();
    assert_eq!(held.sequence.get(), 36.0 * (8.0 * 128.0 * 128.0 * 4.0 + 3.0 * 2048.0 * 2.0));
    assert_eq!(held.token.get(), 12.0 * 512.0 * 2.0);
    // A step of single tokens takes longer with longer histories, by the 12 blocks with attention alone.
    let mut steps = StepModel::new(&model, &plan, &cluster).unwrap();
    let mut parts = |history| {
        let batch = Batch { decodes: 64, history, sampled: 64, ..Batch::default() };
        steps.step(&batch).unwrap().parts
    };
    let (short, long) = (parts(1000), parts(100_000));
    for (part, time) in &short {
        let grows = *part == Part::DecodeAttention;
        assert_eq!(long[part] > *time, grows, "{part:?}");
    }
    assert!(short.contains_key(&Part::States));
}

#[test]
fn picked_keys_bound_the_attention_of_long_histories() {
    // DeepSeek-V3.2 keeps an indexer's key of 132 B beside 576 x 2 B of V3, in 61 blocks.
    let (dense, cluster, plan) = setup("deepseek-v3", "dgx-h200", "sglang", 8);
    let (sparse, ..) = setup("deepseek-v3.2", "dgx-h200", "sglang", 8);
    let token = |model: &Model| memory(model, &plan, &cluster, 2048, 1).unwrap().token.get();
    assert_eq!(token(&sparse), token(&dense) + 61.0 * 132.0);
    let attention = |model: &Model, history| {
        let batch = Batch { decodes: 32, history, sampled: 32, ..Batch::default() };
        StepModel::new(model, &plan, &cluster).unwrap().step(&batch).unwrap().gpu().get()
    };
    let growth = |model: &Model| attention(model, 128_000) - attention(model, 8_000);
    assert!(growth(&sparse) < 0.5 * growth(&dense), "{} and {}", growth(&sparse), growth(&dense));
}

#[test]
fn prompts_alone_wait_as_in_a_queue_with_one_server() {
    // Answers of one token: the engine serves one prompt of 8,192 tokens after the other, in random arrival M/D/1.
    let (model, cluster, mut plan) = setup("llama-3-8b", "dgx-h100", "vllm-v1", 1);
    plan.engine.host.request.value = Seconds::ZERO;
    let mut steps = StepModel::new(&model, &plan, &cluster).unwrap();
    let one = Batch { chunks: 1, queries: 8192, sampled: 1, ..Batch::default() };
    let time = steps.time(&one).unwrap().get();
    for load in [0.3, 0.6, 0.8] {
        let rate = load / time;
        let (mut state, mut arrival) = (7, 0.0);
        let request = |_| {
            let drawn = (random(&mut state, 1 << 30) as f64 + 0.5) / f64::from(1 << 30);
            arrival -= libm::log(drawn) / rate;
            Request::new(Seconds::new(arrival), 8192, 1)
        };
        let load_of = Load::Open((0..40_000).map(request).collect());
        let limits = Limits { sequences: 1, tokens: 8192, block: 16 };
        let served = serve(&mut steps, policy("token-budget").unwrap(), limits, 1 << 20, &load_of).unwrap();
        let expected = time + rate * time * time / (2.0 * (1.0 - rate * time));
        let error = served.mean_ttft().get() / expected - 1.0;
        assert!(error.abs() < 0.05, "load {load}: {:?}, not {expected}", served.mean_ttft());
    }
}

#[test]
fn clients_get_what_their_waits_leave() {
    // A closed loop: requests/s = clients / (mean latency), less the end when clients have no more to ask.
    let (model, cluster, plan) = setup("llama-3-8b", "dgx-h100", "vllm-v1", 1);
    let load = Load::closed(32, 40, 512, 128);
    let mut instance = Instance::new(&model, &plan, &cluster, &load, None).unwrap();
    let served = instance.serve(&load).unwrap();
    let expected = 32.0 / served.mean_latency().get();
    assert!((served.request_rate() / expected - 1.0).abs() < 0.03, "{} {expected}", served.request_rate());
}

/// Every request has its tokens, in order of time.
fn is_whole(served: &Served, load: &Load, name: &str) {
    assert_eq!(served.requests.len(), load.requests().len());
    for (request, asked) in served.requests.iter().zip(load.requests()) {
        assert_eq!((request.input, request.output), (asked.input, asked.output), "{name}");
        assert!(request.first > request.arrival && request.last >= request.first, "{name}: {request:?}");
        assert!(request.last <= served.duration, "{name}: {request:?}");
        assert_eq!(request.output > 1, request.last > request.first, "{name}: {request:?}");
    }
}

#[test]
fn every_policy_serves_every_request_within_the_cache() {
    let (model, cluster, plan) = setup("llama-3-8b", "dgx-h100", "vllm-v1", 1);
    let mut steps = StepModel::new(&model, &plan, &cluster).unwrap();
    let mut state = 3;
    let mut preemptions = 0;
    for case in 0..60 {
        let name = ["token-budget", "prefill-first", "in-flight", "static"][case % 4];
        let mut arrival = 0.0;
        let requests: Vec<Request> = (0..80)
            .map(|_| {
                arrival += random(&mut state, 1000) as f64 * 1e-4;
                let [input, output] = [1500, 200].map(|most| 1 + random(&mut state, most) as usize);
                Request::new(Seconds::new(arrival), input, output)
            })
            .collect();
        let capacity = 1800 + random(&mut state, 8000) as usize;
        let limits =
            Limits { sequences: 1 + random(&mut state, 40) as usize, tokens: 256 << (case % 5), block: 16 };
        let load = Load::Open(requests);
        let served = serve(&mut steps, policy(name).unwrap(), limits, capacity, &load).unwrap();
        is_whole(&served, &load, name);
        for sample in &served.samples {
            assert!(
                sample.blocks <= capacity / 16 && sample.running <= limits.sequences,
                "{name}: {sample:?}"
            );
        }
        preemptions += served.preemptions;
        assert!(served.preemptions == 0 || !["in-flight", "static"].contains(&name), "{name}");
    }
    assert!(preemptions > 20, "caches were never full");
}

#[test]
fn steps_in_strides_take_what_they_take_one_by_one() {
    let (model, cluster, plan) = setup("llama-3-8b", "dgx-h100", "vllm-v1", 1);
    let mut steps = StepModel::new(&model, &plan, &cluster).unwrap();
    for name in ["token-budget", "prefill-first", "in-flight", "static"] {
        let requests = (0..50).map(|index| {
            let arrival = Seconds::new(f64::from(index) * 0.05);
            Request::new(arrival, 100 + 37 * (index as usize % 11), 50 + 91 * (index as usize % 7))
        });
        let load = Load::Open(requests.collect());
        let limits = Limits { sequences: 24, tokens: 2048, block: 16 };
        let quick = serve(&mut steps, policy(name).unwrap(), limits, 100_000, &load).unwrap();
        let slow = one_by_one(&mut steps, policy(name).unwrap(), limits, 100_000, &load);
        let error = quick.duration / slow - 1.0;
        assert!(error.abs() < 2e-3, "{name}: {:?}, one by one {slow:?}", quick.duration);
    }
}

/// The twin: asks the policy for every step.
fn one_by_one(
    steps: &mut StepModel,
    policy: &dyn Policy,
    limits: Limits,
    capacity: usize,
    load: &Load,
) -> Seconds {
    let mut queue = Queue::new(load.requests(), limits, capacity);
    let request_time = steps.plan().engine.host.request.value;
    let (mut now, mut next) = (Seconds::ZERO, 0);
    loop {
        while let Some(request) = load.requests().get(next)
            && request.arrival + request_time <= now
        {
            queue.waiting.push_back(next);
            next += 1;
        }
        let works = policy.next(&mut queue);
        if works.is_empty() {
            match load.requests().get(next) {
                Some(request) => now = now.max(request.arrival + request_time),
                None => return now,
            }
            continue;
        }
        let mut batch = Batch::default();
        let (mut before, mut history) = (0, 0);
        for work in &works {
            let state = queue.sequences[work.sequence];
            if state.decodes() {
                (batch.decodes, history) = (batch.decodes + 1, history + state.computed);
            } else {
                (batch.chunks, batch.queries) = (batch.chunks + 1, batch.queries + work.tokens);
                before += state.computed;
            }
            batch.sampled += usize::from(state.left() == work.tokens);
        }
        batch.before = before / batch.chunks.max(1);
        batch.history = history / batch.decodes.max(1);
        now += steps.time(&batch).unwrap();
        queue.carry_out(&works);
    }
}

#[test]
fn two_measured_runs_of_vllm_end_when_they_are_forecast_to() {
    // Each request's arrival, lengths and times: traces/published/inference/requests.csv.
    let text = std::fs::read_to_string("../traces/published/inference/requests.csv").unwrap();
    let check = |run: &str, cluster: &str, sequences: usize, most: [f64; 2]| {
        let rows: Vec<Vec<f64>> = text
            .lines()
            .filter(|line| line.starts_with(run))
            .map(|line| line.split(',').skip(2).map(|cell| cell.parse().unwrap()).collect())
            .collect();
        assert_eq!(rows.len(), 300);
        let mean = |of: &dyn Fn(&[f64]) -> f64| rows.iter().map(|row| of(row)).sum::<f64>() / 300.0;
        // arrival, input, output, queued, scheduled, first, last
        let latency = mean(&|row| row[6] - row[3]);
        let tpot = mean(&|row| (row[6] - row[5]) / (row[2] - 1.0).max(1.0));
        let (model, cluster, mut plan) = setup("llama-3-8b", cluster, "vllm-v1", 1);
        plan.engine.batching.max_tokens.value = 2048;
        let requests =
            rows.iter().map(|row| Request::new(Seconds::new(row[0]), row[1] as usize, row[2] as usize));
        let load = Load::Open(requests.collect());
        let mut instance = Instance::new(&model, &plan, &cluster, &load, Some(sequences)).unwrap();
        let served = instance.serve(&load).unwrap();
        is_whole(&served, &load, run);
        let errors = [served.mean_latency().get() / latency - 1.0, served.mean_tpot().get() / tpot - 1.0];
        assert!(errors[0].abs() < most[0] && errors[1].abs() < most[1], "{run}: {errors:?}");
    };
    check("RTX4090-Llama-3.1-8B", "rtx-4090", 256, [0.06, 0.2]);
    check("RTXPRO6000-Llama-3.1-8B", "rtx-pro-6000-8", 128, [0.15, 0.12]);
}

#[test]
fn deepseeks_decode_units_give_what_they_published() {
    // 18 nodes of 8 H800: about 14,800 tokens/s a node, 20 to 22 tokens/s a user, 4,989 tokens in the cache for each in the mean.
    // Source: DeepSeek, open-infra-index, day 6.
    let engine = Engine::from_name("deepseek").unwrap();
    let (model, cluster) = (preset("deepseek-v3").unwrap(), Cluster::from_name("hgx-h800:18").unwrap());
    let block = || String::from("fp8_block");
    let plan = ServingPlan {
        expert: 144,
        attention_data: 144,
        weights: block(),
        expert_weights: block(),
        ..ServingPlan::new(engine)
    };
    let published = 18.0 * 14_800.0;
    let users = (published / 21.0) as usize;
    let mut steps = StepModel::new(&model, &plan, &cluster).unwrap();
    let batch = Batch { decodes: users, history: 4989, sampled: users, ..Batch::default() };
    let rate = users as f64 / steps.time(&batch).unwrap().get();
    assert!((rate / published - 1.0).abs() < 0.2, "{rate}");
    // Without two batches nothing hides the exchange of tokens.
    let mut one = plan.clone();
    one.engine.two_batches = false;
    let slower = StepModel::new(&model, &one, &cluster).unwrap().time(&batch).unwrap();
    assert!(slower > 1.1 * steps.time(&batch).unwrap(), "{slower:?}");
}

#[test]
fn a_cached_prefix_is_not_computed_but_takes_its_blocks() {
    let (model, cluster, plan) = setup("llama-3-8b", "dgx-h100", "vllm-v1", 1);
    let serve_with = |cached: usize| {
        let load = Load::batch(1, 4000, 10).with_cached(cached);
        let mut instance = Instance::new(&model, &plan, &cluster, &load, None).unwrap();
        let served = instance.serve(&load).unwrap();
        is_whole(&served, &load, "cached");
        (served.mean_ttft().get(), served.samples.iter().map(|sample| sample.blocks).max().unwrap())
    };
    let (none, half, all) = (serve_with(0), serve_with(2000), serve_with(4000));
    let host = plan.engine.host.request.value.get();
    // The second half of a prompt has the first before it: attention makes it dearer than half.
    let part = (half.0 - host) / (none.0 - host);
    assert!(part > 0.5 && part < 0.6, "{part}");
    assert!((all.0 - host) < 0.15 * (none.0 - host), "{all:?} {none:?}");
    assert_eq!((none.1, half.1), (all.1, all.1));
}

/// Log-probabilities are the host's work between steps: 20 µs for each of 64 sequences, 1.28 ms.
#[test]
fn asked_log_probabilities_lengthen_a_step() {
    let engine = Engine::from_name("vllm-v1").unwrap();
    let (model, cluster) = (preset("llama-3-8b").unwrap(), Cluster::from_name("dgx-h100").unwrap());
    let batch = Batch { decodes: 64, history: 1000, sampled: 64, ..Batch::default() };
    let [without, with] = [false, true].map(|log_probs| {
        let plan = ServingPlan { log_probs, ..ServingPlan::new(engine.clone()) };
        StepModel::new(&model, &plan, &cluster).unwrap().step(&batch).unwrap().total.get()
    });
    assert!((with - without - 64.0 * 20e-6).abs() < 1e-9, "{without} {with}");
}

/// One token reads every weight of the blocks and of the head once: 6.98e9 in their format and 128,256 x 4,096 in 16 bits, at no
/// more than the published bandwidth. A kernel without a captured graph says nothing of that, nor one that finds its weights in the
/// cache.
#[test]
fn no_token_takes_less_than_memory_gives_its_weights() {
    let model = preset("llama-3-8b").unwrap();
    let blocks = 32.0 * (4096.0 * 6144.0 + 4096.0 * 4096.0 + 3.0 * 4096.0 * 14336.0);
    let batch = Batch { decodes: 1, history: 1000, sampled: 1, ..Batch::default() };
    let mut products = std::collections::BTreeMap::new();
    for cluster in ["dgx-a100", "dgx-h100", "dgx-h200", "dgx-b200"] {
        let cluster = Cluster::from_name(cluster).unwrap();
        for engine in ["vllm-v1", "sglang", "tensorrt-llm"] {
            for operands in Operands::names().filter_map(Operands::parse) {
                let plan = ServingPlan {
                    weights: operands.name.into(),
                    ..ServingPlan::new(Engine::from_name(engine).unwrap())
                };
                let Ok(step) = StepModel::new(&model, &plan, &cluster).unwrap().step(&batch) else {
                    continue;
                };
                let bytes = blocks * operands.weight + 2.0 * 128_256.0 * 4096.0 * Bytes::new(1.0);
                let least = bytes / cluster.node.gpu.memory_bandwidth.value;
                let time = step.parts[&Part::Products];
                let what = format!("{} {engine} {}", cluster.node.gpu.name, operands.name);
                assert!(time >= least, "{what}: {time:?}, memory {least:?}");
                products.insert(what, time / least);
            }
        }
    }
    // Formats of the same bytes differ by what their kernels lose.
    let [plain, blocks] = ["fp8", "fp8_block"].map(|name| products[&format!("h100-80gb-sxm vllm-v1 {name}")]);
    assert!((blocks / plain - 1.0).abs() < 0.1, "{plain} {blocks}");
}

/// Gaps of a Poisson process: exponential, one independent of the next, so that what comes in a time varies as much as its mean.
#[test]
fn requests_at_a_rate_come_as_a_poisson_process() {
    let load = Load::at_rate(20.0, 4000, 100, 10);
    let arrivals: Vec<f64> = load.requests().iter().map(|request| request.arrival.get()).collect();
    let gaps: Vec<f64> = arrivals.windows(2).map(|pair| pair[1] - pair[0]).collect();
    let mean = gaps.iter().sum::<f64>() / gaps.len() as f64;
    assert!((mean * 20.0 - 1.0).abs() < 0.01, "{mean}");
    let product = |lag: usize| {
        let pairs = gaps.iter().zip(&gaps[lag..]);
        pairs.map(|(one, other)| (one - mean) * (other - mean)).sum::<f64>() / (gaps.len() - lag) as f64
    };
    assert!((product(0) / mean.powi(2) - 1.0).abs() < 0.05, "{}", product(0));
    for lag in 1..5 {
        assert!((product(lag) / product(0)).abs() < 0.05, "lag {lag}: {}", product(lag) / product(0));
    }
    for window in [0.1, 0.5, 2.0] {
        let mut counts = vec![0.0; (arrivals[arrivals.len() - 1] / window) as usize];
        for arrival in &arrivals {
            let at = (arrival / window) as usize;
            if at < counts.len() {
                counts[at] += 1.0;
            }
        }
        let expected = 20.0 * window;
        let spread = counts.iter().map(|count: &f64| (count - expected).powi(2)).sum::<f64>();
        let over_mean = spread / counts.len() as f64 / expected;
        assert!((0.75..1.25).contains(&over_mean), "{window} s: {over_mean}");
    }
}
