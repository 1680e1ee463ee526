//! Fewer nodes than there are, against every number of nodes planned alone.

use trainwright_planner::{
    Found, Nodes, Pins, PlannerError, Question, Risk, Scope, Verdict, WithAllNodes, plan_within,
};
use trainwright_spec::cluster::Cluster;
use trainwright_spec::job::Job;
use trainwright_spec::model::preset::preset;
use trainwright_spec::precision::Precision;
use trainwright_spec::stack::Stack;
use trainwright_spec::units::{Bytes, Seconds};

/// How much slower than the best number of nodes the answer may be.
const TOLERANCE: f64 = 1.001;

/// The first blocks of a model on some nodes of `gpus` GPUs.
struct Small {
    model: &'static str,
    blocks: usize,
    cluster: &'static str,
    gpus: usize,
    gib: f64,
    sequence: usize,
    global_batch: usize,
}

impl Small {
    fn question(&self) -> Question {
        let mut model = preset(self.model).unwrap();
        model.blocks[0].count = self.blocks;
        let mut cluster = Cluster::from_name(self.cluster).unwrap();
        cluster.node.gpus.value = self.gpus;
        cluster.node.gpu.memory.value = Bytes::GIB * self.gib;
        Question {
            model,
            cluster,
            job: Job {
                sequence: self.sequence,
                global_batch: self.global_batch,
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
}

/// The answer with all nodes, or with as many as are best.
fn answer(question: &Question, nodes: Nodes) -> Result<Verdict, PlannerError> {
    plan_within(question, Scope { nodes, ..Scope::BEST }, &|_| {})
}

/// Expected time of the best plan with exactly this number of nodes, if there is one.
fn alone(question: &Question, nodes: usize) -> Option<Seconds> {
    let cluster = question.cluster.with_fewer_nodes(nodes).unwrap();
    match answer(&Question { cluster, ..question.clone() }, Nodes::All) {
        Ok(Verdict::Found(found)) => Some(found.ranked[0].expected),
        Ok(Verdict::Infeasible(_)) | Err(PlannerError::NoCandidate { .. }) => None,
        other => panic!("{other:?}"),
    }
}

/// Checks the answer to a question against every number of nodes; returns how many nodes it uses.
fn check(name: &str, question: &Question) -> usize {
    let given = question.cluster.nodes;
    let each: Vec<Option<Seconds>> = (1..=given).map(|nodes| alone(question, nodes)).collect();
    let Ok(Verdict::Found(Found { ranked, nodes: Some(nodes), search, .. })) =
        answer(question, Nodes::UpToAll)
    else {
        panic!("{name}: no plan, or no numbers of nodes")
    };
    let best = &ranked[0];
    assert_eq!((nodes.given, nodes.used), (given, best.plan.cluster.nodes), "{name}");
    // Used nodes give what they give alone, to the digit.
    assert_eq!(Some(best.expected), each[nodes.used - 1], "{name}: {} nodes", nodes.used);
    let fastest = each.iter().flatten().copied().reduce(Seconds::min).unwrap();
    assert!(best.expected <= fastest * TOLERANCE, "{name}: {} with {}, {each:?}", best.expected, nodes.used);
    match (&nodes.with_all, each[given - 1]) {
        (WithAllNodes::Best { expected, .. }, Some(all)) => assert_eq!(*expected, all, "{name}"),
        (WithAllNodes::Impossible(_), None) => {}
        other => panic!("{name}: {other:?}"),
    }
    assert_eq!(nodes.unseen, 0, "{name}");
    let bound = search.bound.unwrap();
    assert!(bound <= fastest, "{name}: a plan takes {fastest}, the bound is {bound}");
    assert!(bound > best.expected * 0.3, "{name}: {bound} says nothing of {}", best.expected);
    nodes.used
}

#[test]
fn no_number_of_nodes_is_faster_than_the_one_that_is_used() {
    let gpt2 = Small {
        model: "gpt2",
        blocks: 6,
        cluster: "dgx-a100:5",
        gpus: 2,
        gib: 79.0,
        sequence: 1024,
        global_batch: 16,
    };
    let llama = Small { model: "llama-3-8b", sequence: 2048, gib: 40.0, ..gpt2 };
    let slow = "l40s-8-ethernet:4";
    let questions = [
        ("five nodes, a batch of 16", Small { ..gpt2 }),
        ("five nodes, a batch of 20", Small { global_batch: 20, ..gpt2 }),
        ("seven nodes of one GPU", Small { cluster: "dgx-a100:7", gpus: 1, ..gpt2 }),
        ("a slow network", Small { cluster: slow, gpus: 4, ..gpt2 }),
        ("a slow network, a large batch", Small { cluster: slow, gpus: 4, global_batch: 1024, ..gpt2 }),
        ("llama, four nodes", Small { cluster: "dgx-h100:4", ..llama }),
        ("llama, six nodes", Small { cluster: "dgx-h100:6", blocks: 8, ..llama }),
        ("llama, seven nodes", Small { cluster: "dgx-h100:7", blocks: 5, global_batch: 64, ..llama }),
        (
            "tight, seven nodes",
            Small { cluster: "dgx-h100:7", gib: 11.0, blocks: 9, global_batch: 24, ..llama },
        ),
    ];
    let (mut all, mut fewer) = (0, 0);
    for (name, small) in questions {
        let question = small.question();
        match check(name, &question) == question.cluster.nodes {
            true => all += 1,
            false => fewer += 1,
        }
    }
    assert!(all >= 2 && fewer >= 3, "{all} use all nodes, {fewer} use fewer");
}

#[test]
fn with_one_node_no_numbers_of_nodes_are_searched() {
    let small = Small {
        model: "gpt2",
        blocks: 4,
        cluster: "dgx-a100:1",
        gpus: 2,
        gib: 79.0,
        sequence: 1024,
        global_batch: 8,
    };
    let Ok(Verdict::Found(found)) = answer(&small.question(), Nodes::UpToAll) else { panic!("no plan") };
    assert_eq!(found.nodes, None);
}
