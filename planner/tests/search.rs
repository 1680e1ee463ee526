//! The planner's answers to small questions: what a plan must be, what pins and bad input lead to, which remedies let a
//! question without an answer have one.

use rayon::ThreadPoolBuilder;
use trainwright_lower::memory::plan_memory;
use trainwright_planner::{
    Breadth, Found, Infeasible, Pins, PlannerError, Question, Ranked, Risk, Scope, Verdict, plan, plan_within,
};
use trainwright_sim::costs::ClusterCosts;
use trainwright_sim::forecast;
use trainwright_spec::cluster::Cluster;
use trainwright_spec::job::Job;
use trainwright_spec::model::hf::from_hugging_face;
use trainwright_spec::model::preset::preset;
use trainwright_spec::plan::{Plan, Recompute};
use trainwright_spec::precision::Precision;
use trainwright_spec::stack::Stack;
use trainwright_spec::units::{Bytes, Seconds};
use trainwright_timeline::draw::{Style, draw};

/// A question with the usual choices: bf16, AdamW, clipping, Megatron-Core.
fn question(model: &str, cluster: &str, sequence: usize, global_batch: usize) -> Question {
    Question {
        model: preset(model).unwrap(),
        cluster: Cluster::from_name(cluster).unwrap(),
        job: Job {
            sequence,
            global_batch,
            precision: Precision::Bf16,
            optimizer: "adamw".into(),
            gradient_clipping: true,
            adapters: None,
        },
        stack: Stack::from_name("megatron-core").unwrap(),
        pins: Pins::default(),
        risk: Risk::default(),
    }
}

fn with_memory(mut question: Question, gib: usize) -> Question {
    question.cluster.node.gpu.memory.value = Bytes::GIB * gib as f64;
    question
}

fn with_blocks(mut question: Question, blocks: usize) -> Question {
    question.model.blocks[0].count = blocks;
    question
}

/// With links inside nodes that are `times` as fast.
fn with_links(mut question: Question, times: f64) -> Question {
    let bandwidth = &mut question.cluster.node.interconnect.bandwidth.value;
    *bandwidth = *bandwidth * times;
    question
}

fn with_pins(question: Question, pins: Pins) -> Question {
    Question { pins, ..question }
}

fn found(question: &Question) -> Found {
    match plan(question, &|_| {}).unwrap() {
        Verdict::Found(found) => found,
        other => panic!("{other:?}"),
    }
}

fn infeasible(question: &Question) -> Infeasible {
    match plan(question, &|_| {}).unwrap() {
        Verdict::Infeasible(infeasible) => infeasible,
        other => panic!("{other:?}"),
    }
}

/// Blocks of each stage that are computed again as a whole or in part.
fn recomputed(plan: &Plan) -> Vec<usize> {
    let again = |choices: &[Recompute]| choices.iter().filter(|choice| **choice != Recompute::None).count();
    plan.stages.iter().map(|stage| again(&stage.0)).collect()
}

#[test]
fn no_pin_makes_the_best_plan_faster_where_the_data_axis_is_slow() {
    // Its exchange is a third of the step, and in no bound of a stage: the plan of the integer program is a tenth slower than these.
    let question = question("llama-3-8b", "l40s-8-ethernet:4", 4096, 64);
    let time = |pins: Pins| found(&with_pins(question.clone(), pins)).ranked[0].forecast.step_time;
    let free = time(Pins::default());
    let (none, pipeline) = (Some(Recompute::None), Some(4));
    let pinned = [
        Pins { recompute: none, ..Pins::default() },
        Pins { pipeline, ..Pins::default() },
        Pins { recompute: none, pipeline, ..Pins::default() },
    ];
    for pins in pinned {
        let pinned = time(pins.clone());
        assert!(pinned >= free * 0.999, "{pins:?}: {pinned}, not {free} without");
    }
    // A wider space has more plans, whose fastest are others before they are improved.
    let wider = time(Pins { breadth: Breadth::Usual, ..Pins::default() });
    assert!(wider <= free, "{wider} in a wider space, not {free}");
}

/// What a question without pins finds, over what pins find.
fn free_over_pinned(question: &Question, pins: Pins) -> f64 {
    let best = |question: &Question| match plan_within(question, Scope::BEST, &|_| {}).unwrap() {
        Verdict::Found(found) => found.ranked[0].expected,
        other => panic!("{other:?}"),
    };
    best(question) / best(&with_pins(question.clone(), pins))
}

#[test]
fn no_number_of_stages_on_a_rank_is_faster_than_what_is_found_without_it() {
    // Several stages on a rank leave room for blocks that are not computed again where few microbatches are in flight: the
    // partition's program, which takes all to be as long as the slowest, is 5 to 6 % slower.
    let one_node = question("llama-3-8b", "dgx-h100:1", 8192, 128);
    let fast_links = with_links(question("llama-3-8b", "dgx-h100:2", 8192, 64), 2.0);
    for (question, most) in [(one_node, 4), (fast_links, 8)] {
        for virtual_stages in [most / 2, most] {
            let pins = Pins { virtual_stages: Some(virtual_stages), ..Pins::default() };
            let ratio = free_over_pinned(&question, pins);
            assert!(ratio <= 1.001, "{} with {virtual_stages} pinned: {ratio}", question.cluster.name);
        }
    }
}

#[test]
fn faster_links_make_no_plan_slower() {
    let times = [1.0, 2.0, 4.0].map(|times| {
        found(&with_links(question("llama-3-8b", "dgx-h100:2", 8192, 64), times)).ranked[0].expected
    });
    assert!(times.windows(2).all(|pair| pair[1] <= pair[0] * 1.0005), "{times:?}");
}

#[test]
fn the_best_alone_is_the_first_of_those_that_are_explained() {
    let questions = [
        question("llama-3-8b", "dgx-h100:1", 8192, 64),
        question("llama-3-8b", "dgx-h100:1", 8192, 128),
        question("gpt2-xl", "dgx-a100:2", 1024, 64),
        question("mixtral-8x7b", "dgx-h100:2", 4096, 64),
        question("gpt3-13b", "l40s-8-ethernet:2", 2048, 64),
    ];
    for question in questions {
        let Verdict::Found(best) = plan_within(&question, Scope::BEST, &|_| {}).unwrap() else { panic!() };
        let explained = found(&question);
        assert_eq!(best.ranked[0].plan, explained.ranked[0].plan, "{}", question.model.name);
        assert_eq!(best.ranked[0].expected, explained.ranked[0].expected, "{}", question.model.name);
    }
}

#[test]
fn every_ranked_plan_is_legal_fits_and_takes_about_what_was_estimated() {
    // Estimates leave out the communication of the data axis and of tied embeddings, which large batches dwarf.
    let check = |question: &Question| {
        for schedule in [None, Some("1f1b"), Some("gpipe"), Some("interleaved")] {
            let pins = Pins { schedule: schedule.map(str::to_string), ..Pins::default() };
            let question = with_pins(question.clone(), pins);
            let found = found(&question);
            assert!(found.ranked.is_sorted_by_key(|ranked| ranked.forecast.report.step_time));
            for ranked in &found.ranked {
                check_ranked(&question, ranked);
            }
        }
    };
    check(&question("gpt3-13b", "dgx-a100:2", 2048, 256));
    check(&question("gpt2-xl", "dgx-a100:2", 1024, 512));
    check(&question("llama-3-8b", "dgx-h100:2", 8192, 64));
    check(&with_memory(question("llama-3-8b", "dgx-h100:2", 4096, 128), 40));
    check(&with_blocks(question("mixtral-8x7b", "dgx-h100:2", 4096, 64), 16));
}

fn check_ranked(question: &Question, ranked: &Ranked) {
    let Ranked { plan, forecast: promised, estimate, .. } = ranked;
    let name = format!("{} {:?} {} v{}", plan.model.name, plan.mesh, plan.schedule, plan.virtual_stages);
    plan.check("ranked").unwrap();
    let has = question.cluster.node.gpu.memory.value;
    assert!(plan_memory(plan).iter().all(|rank| rank.total() <= has), "{name} does not fit");
    assert!(promised.fits && promised.report.peak_memory <= has, "{name} does not fit by simulation");
    let read_back = Plan::from_toml(&plan.to_toml(), "ranked").unwrap();
    let (again, _) = forecast(&read_back, &ClusterCosts::new(&read_back.cluster)).unwrap();
    assert_eq!(again, *promised, "{name}");
    let off = *estimate / promised.step_time - 1.0;
    // Stages of unequal lengths do not keep step as the objective has it: up to 11 % are seen here.
    // The data axis of experts has fewer ranks, and more of what it sends is exposed: up to 6 %.
    let most = match plan.schedule == "interleaved" {
        true => 0.15,
        false if plan.mesh.expert > 1 => 0.08,
        false => 0.05,
    };
    assert!(off.abs() <= most, "{name}: the estimate is {:+.1} % off", 100.0 * off);
}

#[test]
fn the_answer_does_not_depend_on_threads_nor_on_the_run() {
    let check = |question: &Question| {
        let answer = |threads: usize| {
            let pool = ThreadPoolBuilder::new().num_threads(threads).build().unwrap();
            format!("{:?}", pool.install(|| plan(question, &|_| {})))
        };
        let first = answer(1);
        for threads in [1, 2, 4] {
            assert!(answer(threads) == first, "{} on {threads} threads", question.model.name);
        }
    };
    check(&question("gpt2", "dgx-a100:1", 1024, 64));
    check(&with_memory(question("llama-3-8b", "dgx-h100:2", 4096, 32), 24));
    check(&with_blocks(with_memory(question("mixtral-8x7b", "dgx-h100:1", 4096, 16), 40), 8));
    check(&with_memory(question("gpt2-xl", "dgx-a100:1", 1024, 8), 3)); // nothing fits
}

#[test]
fn pins_are_obeyed() {
    let free = with_blocks(question("llama-3-8b", "dgx-h100:2", 4096, 32), 16);
    let check = |pins: Pins, obeys: fn(&Plan) -> bool| {
        let found = found(&with_pins(free.clone(), pins.clone()));
        assert!(found.ranked.iter().all(|ranked| obeys(&ranked.plan)), "{pins:?}");
    };
    let none = Pins::default;
    check(Pins { tensor: Some(4), ..none() }, |plan| plan.mesh.tensor == 4);
    check(Pins { pipeline: Some(8), ..none() }, |plan| plan.mesh.pipeline == 8);
    check(Pins { data: Some(2), ..none() }, |plan| plan.mesh.data == 2);
    check(Pins { virtual_stages: Some(4), ..none() }, |plan| plan.virtual_stages == 4);
    // 16 blocks on 2 ranks: 6 stages each hold one or two, as 4 do, so that only a pin leads there.
    check(Pins { virtual_stages: Some(6), ..none() }, |plan| plan.virtual_stages == 6);
    check(Pins { micro_batch: Some(4), ..none() }, |plan| plan.micro_batch == 4);
    check(Pins { schedule: Some("gpipe".into()), ..none() }, |plan| plan.schedule == "gpipe");
    check(Pins { schedule: Some("gpipe".into()), pipeline: Some(1), ..none() }, |plan| {
        plan.schedule == "gpipe" && plan.mesh.pipeline == 1
    });
    check(Pins { sequence_parallel: Some(true), ..none() }, |plan| {
        plan.sequence_parallel && plan.mesh.tensor > 1
    });
    check(Pins { sequence_parallel: Some(false), ..none() }, |plan| !plan.sequence_parallel);
    check(Pins { data_sharding: Some("none".into()), ..none() }, |plan| plan.data_sharding == "none");
    check(Pins { data_sharding: Some("zero1".into()), ..none() }, |plan| plan.shards_optimizer());
    check(Pins { recompute: Some(Recompute::Full), ..none() }, |plan| {
        plan.stages.iter().all(|stage| stage.0.iter().all(|choice| *choice == Recompute::Full))
    });
    // Neither is it asked what a forbidden recompute choice everywhere would take.
    let never = vec![("recompute".to_string(), "none".to_string())];
    check(Pins { never, ..none() }, |plan| {
        plan.stages.iter().all(|stage| !stage.0.contains(&Recompute::None))
    });
    let all = Pins {
        tensor: Some(2),
        pipeline: Some(4),
        data: Some(2),
        virtual_stages: Some(2),
        micro_batch: Some(2),
        schedule: Some("interleaved".into()),
        sequence_parallel: Some(true),
        data_sharding: Some("zero1".into()),
        recompute: Some(Recompute::Selective),
        ..Pins::default()
    };
    let only = found(&with_pins(free.clone(), all));
    assert_eq!((only.ranked.len(), only.search.candidates), (1, 1));
}

#[test]
fn what_cannot_be_is_refused_with_its_value() {
    let free = question("gpt2", "dgx-a100:2", 1024, 64); // 12 heads, 12 blocks, 16 GPUs
    let check = |question: Question, expected: &str| match plan(&question, &|_| {}) {
        Err(PlannerError::NoCandidate { reason }) => assert!(reason.contains(expected), "{reason}"),
        other => panic!("{other:?} instead of: {expected}"),
    };
    let pinned = |pins: Pins| with_pins(free.clone(), pins);
    let none = Pins::default;
    check(pinned(Pins { tensor: Some(3), ..none() }), "tensor 3 does not divide the cluster's 16 GPUs");
    check(pinned(Pins { tensor: Some(0), ..none() }), "tensor 0 does not divide the cluster's 16 GPUs");
    check(pinned(Pins { tensor: Some(8), ..none() }), "tensor 8: it must divide the 12 attention heads");
    check(
        pinned(Pins { pipeline: Some(16), ..none() }),
        "pipeline 16: 16 stages are more than the model's 12",
    );
    check(pinned(Pins { data: Some(5), ..none() }), "data 5 does not divide the cluster's 16 GPUs");
    let full = Pins { tensor: Some(4), pipeline: Some(2), data: Some(4), ..none() };
    check(pinned(full), "tensor 4 x pipeline 2 x data 4 is 32 ranks, and the cluster has 16 GPUs");
    let vast = Pins { tensor: Some(16), pipeline: Some(16), ..none() };
    check(pinned(vast), "tensor 16: it must divide the 12 attention heads");
    let two = Pins { pipeline: Some(8), data: Some(4), ..none() };
    check(pinned(two), "pipeline 8 x data 4 is 32 ranks, and the cluster has 16 GPUs");
    let lone = Pins { data: Some(1), pipeline: Some(2), ..none() };
    check(pinned(lone), "`mesh.tensor` is 8; it must divide the 12 attention heads");

    check(
        pinned(Pins { micro_batch: Some(3), ..none() }),
        "microbatch 3 does not divide the 64 sequences of a data rank",
    );
    let chunks = |schedule: &str, pipeline, virtual_stages| Pins {
        schedule: Some(schedule.into()),
        pipeline,
        virtual_stages,
        ..none()
    };
    check(pinned(chunks("gpipe", None, Some(2))), "`gpipe` has 1 virtual stage, not 2");
    check(pinned(chunks("interleaved", Some(1), None)), "`interleaved` needs a pipeline of at least 2 ranks");
    check(pinned(chunks("interleaved", Some(2), Some(1))), "at least 2 virtual stages, not 1");
    check(pinned(chunks("interleaved", Some(4), Some(4))), "16 stages are more than the model's 12 blocks");
    check(pinned(chunks("zero-bubble", None, None)), "unknown schedule `zero-bubble`");
    let odd = |batch| Question { job: Job { global_batch: batch, ..free.job.clone() }, ..free.clone() };
    let interleaved = with_pins(odd(7), chunks("interleaved", Some(4), None));
    check(interleaved, "microbatches that divides by the 4 pipeline ranks, not 7");
    let parallel = |tensor| Pins { tensor, sequence_parallel: Some(true), ..none() };
    check(pinned(parallel(Some(1))), "sequence parallelism needs a tensor degree of 2 or more");
    let mut short = pinned(parallel(Some(4)));
    short.job.sequence = 1022;
    check(short, "with sequence_parallel it must divide by mesh.tensor = 4");
    let alone = Pins { data: Some(1), data_sharding: Some("zero1".into()), ..none() };
    check(pinned(alone), "data sharding zero1 needs a data degree of 2 or more");

    check(with_pins(odd(6), Pins { data: Some(4), ..none() }), "data 4 does not divide global batch 6");
    check(odd(0), "global batch 0: it must be from 1 to 10000000");
    check(odd(usize::MAX), "global batch 18446744073709551615: it must be from 1 to 10000000");
    check(odd(9_999_991), "9999991 microbatches of 12 blocks are more than the 1000000 passes that");
    let longer = Question { job: Job { sequence: 2048, ..free.job.clone() }, ..free.clone() };
    check(longer, "sequence 2048: the model has learned positions for 1024 tokens");
    let mut unknown = free.clone();
    unknown.job.optimizer = "adamm".into();
    check(unknown, "`job.optimizer` is `adamm`; known are sgd, momentum, adam");
    let mut unsupported = free.clone();
    unsupported.job.precision = Precision::Fp8;
    check(unsupported, "`job.precision` is fp8; a100-80gb-sxm computes in");
}

/// Batches of a prime number of sequences leave no data axis but 1.
#[test]
fn a_prime_batch_has_no_data_axis() {
    let found = found(&question("llama-3-8b", "dgx-h100:1", 2048, 31));
    assert!(found.ranked.iter().all(|ranked| ranked.plan.mesh.data == 1));
    assert!(found.ranked.iter().all(|ranked| ranked.plan.microbatches() * ranked.plan.micro_batch == 31));
}

#[test]
fn remedies_of_an_infeasible_question_make_it_feasible() {
    let check = |mut question: Question, expected: &[&str]| {
        // Else offload would be tried.
        question.pins.breadth = Breadth::Core;
        let answer = infeasible(&question);
        assert!(!answer.broken.is_empty() && answer.search.simulated == 0);
        assert_eq!(answer.search.candidates, answer.search.out_of_memory + answer.search.bounded_out);
        for limit in &answer.broken {
            assert!(limit.needs > limit.has, "{limit:?}");
            assert_eq!(limit.has, question.cluster.node.gpu.memory.value);
        }
        let lack = |at: usize| answer.broken[at].needs / answer.broken[at].has;
        assert!((1..answer.broken.len()).all(|at| lack(at - 1) <= lack(at)), "{:?}", answer.broken);
        let remedies: Vec<&str> = answer.remedies.iter().map(String::as_str).collect();
        assert_eq!(remedies.len(), expected.len(), "{remedies:?}");
        assert!(
            remedies.iter().zip(expected).all(|(remedy, start)| remedy.starts_with(start)),
            "{remedies:?}"
        );
        for remedy in remedies {
            let remedied = with_remedy(question.clone(), remedy);
            assert!(matches!(plan(&remedied, &|_| {}), Ok(Verdict::Found(_))), "{remedy}");
        }
    };
    // 405 billion parameters · 18 bytes over 32 GPUs are 212 GiB each, libraries come on top.
    check(
        question("llama-3-405b", "dgx-h100:4", 8192, 64),
        &["16 nodes (128 GPUs) are enough", "GPUs with "],
    );
    // 13 billion parameters · (6 + 12/8) bytes are 90 GiB: too much for one GPU, easy for eight.
    let undivided = Pins { tensor: Some(1), pipeline: Some(1), ..Pins::default() };
    check(
        with_pins(question("gpt3-13b", "dgx-a100:1", 2048, 64), undivided),
        &["leave the pinned choices to the planner", "4 nodes (32 GPUs) are enough", "GPUs with "],
    );
    // Sequences of 128 Ki tokens: state fits, activations do not.
    check(
        with_blocks(with_memory(question("llama-3-8b", "dgx-h100:1", 8192 * 16, 8), 20), 16),
        &["2 nodes (16 GPUs) are enough", "sequences of 65536 tokens fit", "GPUs with "],
    );
}

/// The outline of a plan is drawn as the timeline of its forecast.
#[test]
fn a_drawing_of_an_outline_shows_the_whole_timeline() {
    let found = found(&with_blocks(question("llama-3-8b", "dgx-h100:2", 8192, 64), 8));
    for Ranked { plan, outline, .. } in &found.ranked {
        let (_, timeline) = forecast(plan, &ClusterCosts::new(&plan.cluster)).unwrap();
        for columns in [40, 100, 1000] {
            let style = Style::fitting(columns);
            assert_eq!(draw(outline, &style), draw(&timeline, &style), "{:?}", plan.mesh);
        }
        assert!(outline.spans.len() < timeline.spans.len() && outline.memory.is_empty());
    }
}

/// A search whose time is up before it begins has the plan that it began with, and a bound.
#[test]
fn a_search_without_time_has_a_plan() {
    let check = |mut question: Question, breadth: Breadth| {
        question.pins.breadth = breadth;
        let scope = Scope { time: Some(Seconds::ZERO), ..Scope::default() };
        let name = format!("{} {breadth:?}", question.model.name);
        let Ok(Verdict::Found(found)) = plan_within(&question, scope, &|_| {}) else { panic!("{name}") };
        let best = &found.ranked[0];
        best.plan.check("first").unwrap();
        // There was time for a forecast call by call, whose report counts a call's activations from its start on.
        let (whole, _) = forecast(&best.plan, &ClusterCosts::new(&best.plan.cluster)).unwrap();
        assert!(whole.fits && whole.report.peak_memory <= whole.gpu_memory, "{name}");
        assert!((best.forecast.step_time / whole.step_time - 1.0).abs() < 0.01, "{name}");
        assert!(best.forecast.fits && best.forecast.peak_memory == whole.peak_memory, "{name}");
        assert!(found.search.bound.unwrap() < best.expected, "{name}");
        assert!(found.search.unseen > 0 && found.alternatives.is_empty(), "{name}");
    };
    for breadth in [Breadth::Auto, Breadth::Core, Breadth::Usual, Breadth::Whole] {
        check(question("llama-3-8b", "dgx-h100:2", 8192, 64), breadth);
        check(with_blocks(question("mixtral-8x7b", "dgx-h100:2", 4096, 64), 16), breadth);
    }
    check(question("qwen3-30b-a3b", "dgx-h100:16", 4096, 512), Breadth::Auto);
    check(question("gpt2", "dgx-a100:1", 1024, 64), Breadth::Auto);
}

#[test]
fn by_default_what_suits_the_model_is_tried() {
    let best = |question: &Question| found(question).ranked[0].plan.clone();
    let mesh = |question: &Question| best(question).mesh;
    assert!(mesh(&with_blocks(question("mixtral-8x7b", "dgx-h100:2", 4096, 64), 16)).expert > 1);
    let with_context = |question: &Question| {
        let wide = with_pins(question.clone(), Pins { breadth: Breadth::Usual, ..Pins::default() });
        [question, &wide].map(|question| found(question).search.layouts)
    };
    // 2 Ki tokens on a rank and more, but no context axis for sequences of 8 Ki.
    let [auto, usual] = with_context(&with_blocks(question("llama-3-8b", "dgx-h100:1", 8192, 16), 4));
    assert!(auto < usual, "{auto} layouts, {usual} of the usual space");
    let long = with_blocks(question("llama-3-8b", "dgx-h100:1", 8192 * 16, 8), 8);
    assert!(mesh(&long).context > 1);
    // The state of two billion parameters on GPUs of 20 GiB, with nothing shared out.
    let pins = Pins { tensor: Some(1), pipeline: Some(1), data: Some(1), ..Pins::default() };
    let mut alone = with_pins(with_memory(question("gpt2-xl", "dgx-a100:1", 1024, 8), 20), pins);
    alone.cluster.node.gpus.value = 1;
    assert!(!best(&alone).offload.is_none());
    assert!(best(&with_memory(alone, 60)).offload.is_none());
}

/// The question with a remedy applied.
fn with_remedy(mut question: Question, remedy: &str) -> Question {
    let number = remedy.split(' ').find_map(|word| word.parse::<usize>().ok());
    match (number, remedy) {
        (None, "leave the pinned choices to the planner") => question.pins = Pins::default(),
        (Some(nodes), _) if remedy.contains(" nodes (") => question.cluster.nodes = nodes,
        (Some(tokens), _) if remedy.starts_with("sequences of") => question.job.sequence = tokens,
        (Some(gib), _) if remedy.starts_with("GPUs with ") => question = with_memory(question, gib),
        _ => panic!("what does `{remedy}` mean?"),
    }
    question
}

#[test]
fn early_ranks_recompute_more_where_memory_is_short() {
    // 1F1B keeps min(m, p - r) microbatches on rank r.
    let pins = Pins {
        tensor: Some(2),
        pipeline: Some(4),
        micro_batch: Some(1),
        schedule: Some("1f1b".into()),
        ..Pins::default()
    };
    let question = with_pins(question("llama-3-8b", "dgx-h100:1", 8192, 16), pins);
    let check = |gib: usize, expected: &[usize]| {
        let best = &found(&with_memory(question.clone(), gib)).ranked[0].plan;
        assert_eq!(recomputed(best), expected, "{gib} GiB");
    };
    check(80, &[0; 4]);
    // The last rank keeps one microbatch; the logits take less than the three that the first rank keeps besides.
    check(28, &[6, 2, 1, 0]);
    // Now every rank is short.
    check(24, &[8, 5, 5, 4]);
}

#[test]
fn a_heavy_head_takes_the_place_of_blocks() {
    let config = r#"{"model_type": "llama", "hidden_size": 1024, "num_hidden_layers": 12, "num_attention_heads": 8,
        "intermediate_size": 4096, "vocab_size": VOCABULARY}"#;
    let blocks_of_stages = |vocabulary: &str| -> Vec<usize> {
        let mut question = question("gpt2", "dgx-a100:1", 2048, 64);
        let config = config.replace("VOCABULARY", vocabulary);
        question.model = from_hugging_face(&config, "heavy-head.json").unwrap();
        question.pins = Pins { pipeline: Some(4), schedule: Some("1f1b".into()), ..Pins::default() };
        let best = &found(&question).ranked[0].plan;
        best.stages.iter().map(|stage| stage.0.len()).collect()
    };
    // A block has 4 · 1024² (attention) + 3 · 1024 · 4096 (feed-forward) = 16.8 million weights, the head 1024 · 1000 =
    // 1 million: nothing beside 3 blocks. With 64,000 entries they are 65.5 million, about 4 blocks: 16 in all, 4 to
    // each stage. With 256,000 they are 262 million, more than all blocks: the last stage has the head alone, and no division
    // of the blocks among the others makes any of these the slowest.
    assert_eq!(blocks_of_stages("1000"), [3, 3, 3, 3]);
    let heavy = blocks_of_stages("64000");
    assert!(heavy[3] < heavy[1].min(heavy[2]), "{heavy:?}");
    let heaviest = blocks_of_stages("256000");
    assert_eq!((heaviest.iter().sum::<usize>(), heaviest[3]), (12, 0), "{heaviest:?}");
}
