//! Small questions whose whole space can be solved.

use crate::candidate::Candidate;
use crate::question::{Breadth, Pins, Question};
use crate::risk::{MemoryLimit, Order, Risk};
use std::sync::Arc;
use trainwright_sim::likeness::kind;
use trainwright_spec::adapters::{Adapters, BaseFormat};
use trainwright_spec::calibration::residuals::{Kind, Residual, Spread, Traits};
use trainwright_spec::cluster::{
    Cluster, DeviceProfile, MeasuredKernel, MeasuredOp, NetworkProfile, Node, Others,
};
use trainwright_spec::job::Job;
use trainwright_spec::mesh::Mesh;
use trainwright_spec::model::preset::preset;
use trainwright_spec::precision::Precision;
use trainwright_spec::program::{Access, Kernel};
use trainwright_spec::stack::Stack;
use trainwright_spec::units::{Bytes, Seconds};

/// A question on the first blocks of a model, on GPUs of a given memory.
pub(super) fn question(
    model: &str,
    blocks: usize,
    cluster: &str,
    gib: f64,
    job: [usize; 2],
    stack: &str,
) -> Question {
    let mut model = preset(model).unwrap();
    model.blocks[0].count = blocks;
    let mut cluster = Cluster::from_name(cluster).unwrap();
    cluster.node.gpu.memory.value = Bytes::GIB * gib;
    let [sequence, global_batch] = job;
    Question {
        model,
        cluster,
        job: Job {
            sequence,
            global_batch,
            precision: Precision::Bf16,
            optimizer: "adamw".into(),
            gradient_clipping: true,
            adapters: None,
        },
        stack: Stack::from_name(stack).unwrap(),
        pins: Pins::default(),
        risk: Risk::default(),
    }
}

/// The question on nodes of two GPUs.
pub(super) fn two_of(nodes: usize, mut question: Question) -> Question {
    question.cluster.node.gpus.value = 2;
    question.cluster.nodes = nodes;
    question
}

/// The question with adapters beside every matrix that can have one.
pub(super) fn with_adapters(mut question: Question, base: BaseFormat) -> Question {
    question.job.adapters = Some(Adapters::of_all(16, base, &question.model));
    question
}

/// The question with forecasts that err: tensor groups over nodes take 1.1 to 2.1 times their forecast, others 0.88 to 1.06
/// times; one run in ten needs 1.1 times the memory, the others 0.9 times.
pub(super) fn with_errors(mut question: Question, memory: MemoryLimit, order: Order) -> Question {
    let candidate = Candidate { mesh: Mesh::new(1, 1, 1), ..Candidate::plainest(&question) };
    let of_one_rank = kind(&candidate.plan(&question, Vec::new()));
    let spreads = [(false, false), (false, true), (true, true)];
    let runs = spreads.into_iter().flat_map(|spread| (0..100).map(move |run| (spread, run)));
    let residual = |((tensor_over_nodes, several_nodes), run): ((bool, bool), u32)| {
        let part = f64::from(run) / 99.0;
        let time = if tensor_over_nodes { 1.1 + part } else { 0.88 + 0.18 * part };
        let memory: f64 = if run % 10 == 0 { 1.1 } else { 0.9 };
        let spread = Spread { tensor_over_nodes, context: false, several_nodes };
        Residual {
            source: format!("source {run}"),
            time: Some(libm::log(time)),
            memory: Some(libm::log(memory)),
            between_steps: false,
            traits: Traits { kind: Kind { spread, ..of_one_rank.clone() }, exposed: 0.1, host: 0.1 },
        }
    };
    question.risk =
        Risk { residuals: Arc::new(runs.map(residual).collect()), memory, order, ..Risk::default() };
    question
}

/// Ample and tight memory, one node and several, pipelines of uneven stages, experts, every stack.
pub(super) fn questions() -> Vec<(&'static str, Question)> {
    // As many GPUs of another kind, with other memory.
    let with_others = |node: &str, gib: f64, mut question: Question| {
        let mut node = Node::from_name(node).unwrap();
        node.gpus = question.cluster.node.gpus.clone();
        node.gpu.memory.value = Bytes::GIB * gib;
        question.cluster.others.push(Others { nodes: question.cluster.nodes, node });
        question.cluster.nodes *= 2;
        question
    };
    let unclipped = |mut question: Question| {
        question.job.gradient_clipping = false;
        question
    };
    let core = "megatron-core";
    let with_optimizer = |optimizer: &str, mut question: Question| {
        question.job.optimizer = optimizer.into();
        question
    };
    let mut experts_after_dense = question("deepseek-v3", 2, "dgx-h100:2", 79.0, [1024, 16], core);
    experts_after_dense.model.blocks[1].count = 3;
    vec![
        ("one GPU", two_of(1, question("gpt2", 12, "dgx-a100:1", 79.0, [1024, 8], core))),
        ("gpt2, ample", question("gpt2", 12, "dgx-a100:1", 79.0, [1024, 16], core)),
        ("gpt2, tight", question("gpt2", 12, "dgx-a100:1", 3.8, [1024, 16], core)),
        ("gpt2 in three", two_of(3, question("gpt2", 7, "dgx-a100:1", 79.0, [1024, 12], "pytorch-eager"))),
        ("gpt2-xl, tight", question("gpt2-xl", 24, "dgx-a100:1", 7.0, [1024, 8], "megatron-lm-2022")),
        ("gpt2-xl on small nodes", two_of(4, question("gpt2-xl", 24, "dgx-a100:1", 12.0, [1024, 8], core))),
        ("gpt2-xl, unclipped", unclipped(question("gpt2-xl", 12, "dgx-a100:2", 79.0, [1024, 16], core))),
        ("llama-3-8b, ample", question("llama-3-8b", 8, "dgx-h100:1", 79.0, [4096, 8], core)),
        ("llama-3-8b, tight", question("llama-3-8b", 16, "dgx-h100:1", 14.0, [4096, 8], core)),
        ("llama-3-8b, two nodes", question("llama-3-8b", 12, "dgx-h100:2", 10.0, [8192, 16], core)),
        (
            "llama-3-8b by muon",
            with_optimizer("muon", question("llama-3-8b", 16, "dgx-h100:1", 14.0, [4096, 8], core)),
        ),
        (
            "llama-3-8b by shampoo",
            with_optimizer("shampoo", question("llama-3-8b", 12, "dgx-h100:2", 16.0, [8192, 16], core)),
        ),
        (
            "mixtral-8x7b by muon",
            with_optimizer("muon", question("mixtral-8x7b", 6, "dgx-h100:2", 24.0, [4096, 16], core)),
        ),
        ("llama, 2021", question("llama-3-8b", 8, "dgx-h100:1", 20.0, [2048, 8], "megatron-lm-2021")),
        (
            "adapters, tight",
            with_adapters(question("llama-3-8b", 12, "dgx-h100:1", 7.0, [4096, 8], core), BaseFormat::Nf4),
        ),
        (
            "adapters, divided weights",
            with_adapters(
                question("llama-3-8b", 12, "dgx-a100:1", 5.0, [2048, 8], "torchtitan"),
                BaseFormat::Full,
            ),
        ),
        (
            "adapters beside experts",
            with_adapters(
                question("mixtral-8x7b", 6, "dgx-h100:2", 12.0, [4096, 16], core),
                BaseFormat::Int8,
            ),
        ),
        ("mixtral-8x7b", question("mixtral-8x7b", 6, "dgx-h100:2", 24.0, [4096, 16], core)),
        ("experts after dense", experts_after_dense),
        (
            "measured all-reduces",
            measured("all-reduce", question("gpt2", 12, "dgx-a100:2", 79.0, [1024, 16], core)),
        ),
        (
            "measured reduce-scatters",
            measured("reduce-scatter", question("gpt2-xl", 12, "dgx-a100:1", 79.0, [1024, 16], core)),
        ),
        (
            "errors",
            with_errors(
                two_of(4, question("llama-3-8b", 8, "dgx-h100:1", 40.0, [2048, 8], core)),
                MemoryLimit::Risk(0.05),
                Order::Expected,
            ),
        ),
        (
            "errors, at risk, tight",
            with_errors(
                question("llama-3-8b", 12, "dgx-h100:2", 12.0, [8192, 16], core),
                MemoryLimit::Reserve(Bytes::GIB * 2.0),
                Order::Quantile(0.9),
            ),
        ),
        ("measured updates", measured_update(question("gpt2", 12, "dgx-a100:1", 79.0, [1024, 16], core))),
        (
            "two kinds",
            with_others(
                "dgx-a100",
                79.0,
                two_of(2, question("llama-3-8b", 9, "dgx-h100:1", 79.0, [4096, 8], core)),
            ),
        ),
        (
            "two kinds, tight",
            with_others(
                "dgx-h100",
                17.0,
                two_of(2, question("llama-3-8b", 10, "dgx-a100:1", 24.0, [4096, 8], core)),
            ),
        ),
    ]
}

/// A question whose collectives were measured and grow faster than their sizes from 1 MB on: half a tensor takes less than half
/// the time. From 100 MB on they take less again.
fn measured(collective: &str, mut question: Question) -> Question {
    let rows = "[[1024, 20], [1000000, 60], [4000000, 900], [90000000, 90000], [100000000, 20000]]";
    let sweep = |(nodes, ranks): (usize, usize)| {
        format!(
            "[[sweeps]]\ncollective = \"{collective}\"\nnodes = {nodes}\nranks_per_node = {ranks}\n\
             groups = {}\nbytes_and_us = {rows}\n",
            if nodes == 1 { 1 } else { 8 / ranks }
        )
    };
    let shapes = [(1, 2), (1, 4), (1, 8), (2, 1), (2, 2), (2, 4), (2, 8)];
    let text = format!(
        "kind = \"network\"\ncluster = \"c\"\ngpus_per_node = 8\nsource = \"s\"\n{}",
        shapes.map(sweep).concat()
    );
    let profile = NetworkProfile::from_toml(&text, "p").unwrap();
    question.cluster = question.cluster.with_profile(profile, "p").unwrap();
    question
}

/// A question whose optimizer was measured, and takes less for many parameters than for few.
fn measured_update(mut question: Question) -> Question {
    let row = |elements: f64, us: f64| MeasuredOp {
        op: "optimizer update".into(),
        measured: MeasuredKernel {
            kernel: Kernel::Streaming {
                access: Access::Elementwise,
                read: Bytes::new(20.0 * elements),
                written: Bytes::new(14.0 * elements),
            },
            time: Seconds::new(us * 1e-6),
        },
    };
    let ops = vec![row(1e6, 1e4), row(3e7, 2e5), row(6e7, 100.0), row(2e8, 300.0)];
    let profile = DeviceProfile { source: "a test".into(), kernels: Vec::new(), ops };
    question.cluster.node.gpu.profile = Some(profile);
    question
}

/// Small questions about the whole space: grids, contexts, experts, halves of backward, copies of the stages, divided
/// weights, offload.
pub(super) fn whole_questions() -> Vec<(&'static str, Question)> {
    let whole = |mut question: Question, nodes: usize, gpus: usize| {
        question.pins = Pins::whole();
        question.cluster.node.gpus.value = gpus;
        question.cluster.nodes = nodes;
        question
    };
    let forbid = |mut question: Question, never: &[(&str, &str)]| {
        question.pins.never = never.iter().map(|(key, value)| (key.to_string(), value.to_string())).collect();
        question
    };
    let core = "megatron-core";
    let long = question("llama-3-8b", 4, "dgx-h100:1", 79.0, [8192, 4], core);
    let grids = question("gpt2", 4, "dgx-a100:1", 79.0, [1024, 8], core);
    let mixture = question("mixtral-8x7b", 4, "dgx-h100:1", 60.0, [2048, 8], core);
    // A network so slow that its exchanges are most of a layer's time.
    let mut joint = question("mixtral-8x7b", 4, "l40s-8-ethernet:2", 60.0, [2048, 32], core);
    joint.cluster.node.gpus.value = 2;
    let pins = [("schedule", "dualpipe"), ("schedule", "dualpipev"), ("pipeline", "2"), ("expert", "2")];
    joint.pins.only = pins.map(|(key, value)| (key.to_string(), value.to_string())).to_vec();
    joint.pins.breadth = Breadth::Usual;
    let mut latent = question("deepseek-v3", 1, "dgx-h100:1", 400.0, [1024, 8], core);
    latent.model.blocks[1].count = 3;
    let sharded = question("gpt2", 6, "dgx-a100:1", 79.0, [1024, 8], "pytorch-eager");
    let slow = question("gpt2", 4, "l40s-8-ethernet:2", 40.0, [512, 8], "pytorch-eager");
    let deepspeed = question("gpt2", 6, "dgx-a100:1", 3.0, [1024, 8], "deepspeed");
    let no_offload =
        [("offload", "activations"), ("offload", "optimizer"), ("offload", "optimizer+gradients")];
    vec![
        ("four GPUs", whole(grids, 1, 4)),
        ("long", forbid(whole(long, 2, 2), &no_offload)),
        ("mixture", forbid(whole(mixture, 2, 2), &no_offload)),
        ("joint passes", joint),
        ("latent", forbid(whole(latent, 1, 4), &no_offload)),
        ("sharded", whole(sharded, 2, 2)),
        ("sharded, slow network", forbid(whole(slow, 2, 2), &no_offload)),
        ("deepspeed", whole(deepspeed, 1, 4)),
    ]
}
