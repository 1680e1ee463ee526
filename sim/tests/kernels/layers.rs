//! Whole layers: what the lowering makes of a block or of its experts, simulated with its communication.

use super::{Measured, read};
use serde::Deserialize;
use trainwright_lower::lower;
use trainwright_sim::costs::ClusterCosts;
use trainwright_sim::{Detail, simulate};
use trainwright_spec::cluster::Cluster;
use trainwright_spec::job::Job;
use trainwright_spec::mesh::Mesh;
use trainwright_spec::model::preset::preset;
use trainwright_spec::model::{BlockRun, FeedForward, Mlp, Model, Position};
use trainwright_spec::plan::{Plan, Recompute, StageBlocks};
use trainwright_spec::precision::Precision;
use trainwright_spec::program::Pass;
use trainwright_spec::stack::Stack;
use trainwright_spec::units::{Picoseconds, Seconds};
use trainwright_timeline::timeline::Timeline;

#[derive(Deserialize)]
struct Row {
    model: String,
    part: String,
    variant: String,
    cluster: String,
    stack: String,
    precision: Precision,
    tensor: usize,
    expert: usize,
    sequence_parallel: String,
    recompute: String,
    tokens: usize,
    micro_batch: usize,
    forward_ms: f64,
    backward_ms: f64,
    source: String,
}

pub fn rows() -> impl Iterator<Item = Measured> {
    read::<Row>(include_str!("../data/layers.csv")).flat_map(|row| {
        let plan = row.plan();
        let costs = ClusterCosts::new(&plan.cluster);
        let timeline = simulate(&lower(&plan), &costs, Detail::Ops).unwrap();
        let passes = [
            ("forward", [Pass::Forward].as_slice(), row.forward_ms),
            ("backward", &[Pass::Recompute, Pass::Backward], row.backward_ms),
        ];
        passes.map(|(pass, passes, measured)| Measured {
            gpu: plan.cluster.node.gpu.name.clone(),
            kernel: match row.part.as_str() {
                "experts" => format!("experts {} {pass}: {} {}", row.model, row.variant, row.precision),
                _ => format!("layer {} {pass} {}", row.model, row.precision),
            },
            source: row.source.clone(),
            time: Seconds::new(measured * 1e-3),
            forecast: row.time(&timeline, passes),
        })
    })
}

/// Blocks of the simulated model, of which the middle one counts.
const BLOCKS: usize = 3;

impl Row {
    /// Three blocks, one microbatch, no data axis beyond that of the experts.
    fn plan(&self) -> Plan {
        let ranks = self.tensor * self.expert;
        let mut cluster = Cluster::from_name(&self.cluster).unwrap();
        cluster.node.gpus.value = ranks;
        if ranks == 1 {
            cluster.node.interconnect.wiring = Default::default();
        }
        let recompute = Recompute::ALL.into_iter().find(|choice| choice.name() == self.recompute).unwrap();
        // The layers were measured alone: nothing reduces gradients meanwhile.
        let stack = Stack { overlap_gradient_reduction: false, ..Stack::from_name(&self.stack).unwrap() };
        let plan = Plan {
            micro_batch: self.micro_batch,
            sequence_parallel: self.sequence_parallel == "yes",
            stages: vec![StageBlocks(vec![recompute; BLOCKS])],
            mesh: Mesh { expert: self.expert, ..Mesh::new(self.tensor, 1, self.expert) },
            ..Plan::plain(
                self.model(),
                stack,
                cluster,
                Job {
                    optimizer: "adam".into(),
                    ..Job::new(self.tokens, self.expert * self.micro_batch, self.precision)
                },
            )
        };
        plan.check(&self.variant).unwrap();
        plan
    }

    /// The preset's last block, three times; of DeepSeek-V3's experts the 32 that eight GPUs were given.
    fn model(&self) -> Model {
        let mut model = preset(&self.model).unwrap();
        let mut block = model.blocks.pop().unwrap().block;
        if let Mlp::Experts(experts) = &mut block.mlp {
            experts.count = experts.count.min(32);
            experts.group_limit = None;
            let shared: Option<&FeedForward> = experts.shared.as_ref();
            assert!(shared.is_none_or(|shared| shared.width == experts.expert.width));
        }
        if let Position::Learned(positions) = &mut model.embedding.position {
            *positions = self.tokens.max(*positions);
        }
        model.blocks = vec![BlockRun { count: BLOCKS, block }];
        model
    }

    /// From the first to the last of the middle block's ops in these passes: of all, or of those between router and
    /// combination.
    fn time(&self, timeline: &Timeline, passes: &[Pass]) -> Seconds {
        let label = |label: &str| match (label.strip_prefix("block 1 "), self.part.as_str()) {
            (Some(_), "block") => true,
            (Some(module), "experts") => ["router", "combine"].contains(&module),
            _ => false,
        };
        let spans = || {
            let of_passes =
                timeline.spans.iter().filter(|span| span.rank == 0 && passes.contains(&span.pass));
            of_passes.filter(|span| label(&timeline.labels[span.label as usize]))
        };
        let start = spans().map(|span| span.start).min().expect("the block has ops");
        let end = spans().map(|span| span.end).max().expect("the block has ops");
        Seconds::from(Picoseconds(end.0 - start.0))
    }
}
