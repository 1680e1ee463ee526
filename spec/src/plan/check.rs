//! Which plans are legal.

mod adapters;
mod data;
mod experts;
mod model;
mod tensor;

pub use adapters::adapters_allowed;
pub(crate) use model::check as check_model;

use super::{Piece, Plan, Recompute, ScheduleChoice};
use crate::cluster::{self, Fault, Node};
use crate::context::{CONTEXT_SCHEMES, Refusal, SharedAttention, context_scheme};
use crate::error::SpecError;
use crate::limits::MOST;
use crate::mesh::Mesh;
use crate::model::{Attention, FeedForward, Mlp, Model};
use crate::optimizer::{OPTIMIZERS, optimizer};
use crate::program::FlashVersion;
use crate::schedule::{SCHEDULES, schedule};
use crate::units::FlopsPerSecond;

impl Plan {
    /// Whether the choices fit each other, the model and the cluster. `origin` names the file in messages.
    ///
    /// # Errors
    /// The first choice that is not possible, with its value and what is allowed.
    pub fn check(&self, origin: &str) -> Result<(), SpecError> {
        let found = self
            .check_sizes()
            .and_then(|()| self.check_hardware())
            .and_then(|()| model::check(&self.model))
            .and_then(|()| self.check_experts())
            .and_then(|()| self.check_job())
            .and_then(|()| self.check_adapters())
            .and_then(|()| self.check_tensor())
            .and_then(|()| self.check_pipeline())
            .and_then(|()| self.check_context())
            .and_then(|()| self.check_stack())
            .and_then(|()| self.check_data())
            .and_then(|()| self.check_state())
            .and_then(|()| self.check_offload())
            .and_then(|()| self.check_tensor_steps());
        found.map_err(|Fault { key, value, allowed }| SpecError::BadValue {
            origin: origin.into(),
            key,
            value,
            allowed,
        })
    }

    fn check_sizes(&self) -> Result<(), Fault> {
        let sizes = [
            ("mesh.tensor", self.mesh.tensor),
            ("mesh.pipeline", self.mesh.pipeline),
            ("mesh.data", self.mesh.data),
            ("mesh.context", self.mesh.context),
            ("mesh.context_inner", self.mesh.context_inner),
            ("mesh.expert", self.mesh.expert),
            ("mesh.expert_inner", self.mesh.expert_inner),
            ("mesh.expert_tensor", self.mesh.expert_tensor()),
            ("mesh.tensor_rows", self.mesh.tensor_rows),
            ("mesh.shard", self.mesh.shard()),
            ("micro_batch", self.micro_batch),
            ("virtual_stages", self.virtual_stages),
            ("job.sequence", self.job.sequence),
            ("job.global_batch", self.job.global_batch),
            ("cluster.nodes", self.cluster.nodes),
            ("cluster.node.gpus", self.cluster.node.gpus.value),
            ("stack.vocabulary_multiple", self.stack.vocabulary_multiple.value),
        ];
        sizes.into_iter().try_for_each(|(key, value)| must_count(key, value))?;
        self.check_divisions()
    }

    /// Whether the axes that divide others do so evenly.
    fn check_divisions(&self) -> Result<(), Fault> {
        let mesh = &self.mesh;
        let square = mesh.tensor_rows * mesh.tensor_rows;
        let experts = mesh.expert * mesh.expert_tensor();
        let divides = |key: &str, value: usize, part: usize, what: &str, total: usize| match total
            .is_multiple_of(part)
        {
            true => Ok(()),
            false => bad(key, value.to_string(), format!("{part} must divide {what} = {total}")),
        };
        divides("mesh.context_inner", mesh.context_inner, mesh.context_inner, "mesh.context", mesh.context)?;
        divides("mesh.tensor_rows", mesh.tensor_rows, square, "mesh.tensor", mesh.tensor)?;
        divides("mesh.expert_inner", mesh.expert_inner, mesh.expert_inner, "mesh.expert", mesh.expert)?;
        divides("mesh.expert", mesh.expert, experts, "the ranks of a stage", mesh.stage_ranks())?;
        divides("mesh.shard", mesh.shard(), mesh.shard(), "mesh.context x mesh.data", mesh.weight_copies())
    }

    fn check_hardware(&self) -> Result<(), Fault> {
        cluster::check(&self.cluster)
            .map_err(|fault| Fault { key: format!("cluster.{}", fault.key), ..fault })?;
        if self.mesh.ranks() != self.cluster.gpus() {
            let Mesh { tensor, pipeline, context, data, .. } = self.mesh;
            return bad(
                "mesh",
                format!("{tensor} x {pipeline} x {context} x {data} = {} ranks", self.mesh.ranks()),
                format!(
                    "tensor x pipeline x context x data must be the cluster's {} GPUs",
                    self.cluster.gpus()
                ),
            );
        }
        let precision = self.job.precision;
        for (_, node) in self.cluster.kinds() {
            let gpu = &node.gpu;
            if ![precision, precision.base()].iter().all(|needed| gpu.peak.contains_key(needed)) {
                let known: Vec<&str> = gpu.peak.keys().map(|precision| precision.name()).collect();
                let allowed = format!("{} computes in {}", gpu.name, known.join(", "));
                return bad("job.precision", self.job.precision.to_string(), allowed);
            }
        }
        self.check_kinds()
    }

    /// Whether each pipeline rank's GPUs are in nodes of one kind: what shares layers must be equally fast.
    fn check_kinds(&self) -> Result<(), Fault> {
        for at in (0..self.mesh.pipeline).filter(|_| self.cluster.is_mixed()) {
            let ends = [self.mesh.first_of(at), self.mesh.last_of(at)].map(|rank| self.cluster.kind_of(rank));
            if ends[0] != ends[1] {
                let [first, last] = ends.map(|kind| &self.cluster.node_of(kind).name);
                return bad(
                    "mesh.pipeline",
                    self.mesh.pipeline.to_string(),
                    format!(
                        "pipeline rank {at} would lie on {first} and {last}: each needs nodes of one kind"
                    ),
                );
            }
        }
        Ok(())
    }

    /// The kind of the nodes of a pipeline rank.
    pub fn kind(&self, pipeline_rank: usize) -> usize {
        match self.cluster.is_mixed() {
            true => self.cluster.kind_of(self.mesh.first_of(pipeline_rank)),
            false => 0,
        }
    }

    /// A node of a pipeline rank.
    pub fn node(&self, pipeline_rank: usize) -> &Node {
        self.cluster.node_of(self.kind(pipeline_rank))
    }

    /// The sum of all GPUs' published peaks.
    pub fn peak(&self) -> FlopsPerSecond {
        self.cluster.peak(self.job.precision)
    }

    fn check_job(&self) -> Result<(), Fault> {
        let sequences = self.mesh.data * self.micro_batch;
        if !self.job.global_batch.is_multiple_of(sequences) {
            return bad(
                "job.global_batch",
                self.job.global_batch.to_string(),
                format!("it must divide by mesh.data x micro_batch = {sequences}"),
            );
        }
        if optimizer(&self.job.optimizer).is_err() {
            let known: Vec<&str> = OPTIMIZERS.iter().map(|optimizer| optimizer.name()).collect();
            let allowed = format!("known are {}", known.join(", "));
            return bad("job.optimizer", format!("`{}`", self.job.optimizer), allowed);
        }
        if self.sequence_parallel && !self.job.sequence.is_multiple_of(self.mesh.tensor) {
            return bad(
                "job.sequence",
                self.job.sequence.to_string(),
                format!("with sequence_parallel it must divide by mesh.tensor = {}", self.mesh.tensor),
            );
        }
        sequence_allowed(&self.model, self.job.sequence)
            .or_else(|allowed| bad("job.sequence", self.job.sequence.to_string(), allowed))
    }

    fn check_pipeline(&self) -> Result<(), Fault> {
        let shape = self.pipeline_shape();
        if let ScheduleChoice::Named(name) = &self.schedule
            && schedule(name).is_err()
        {
            let known: Vec<&str> = SCHEDULES.iter().map(|schedule| schedule.name()).collect();
            return bad("schedule", format!("`{name}`"), format!("known are {}", known.join(", ")));
        }
        let schedule = self.schedule();
        schedule.check(shape).or_else(|reason| bad("schedule", format!("`{}`", self.schedule), reason))?;
        if !schedule.flushes() && self.job.gradient_clipping && self.mesh.pipeline > 1 {
            let allowed = format!(
                "schedule `{}` has no moment at which the norm of all gradients is known: it must be false",
                self.schedule
            );
            return bad("job.gradient_clipping", "true".into(), allowed);
        }
        let ends = [0, shape.stages() - 1].map(|stage| schedule.rank_of(stage, shape));
        if self.model.head.tied && ends[0] != ends[1] && ends != [0, self.mesh.pipeline - 1] {
            let allowed = "the first stage must be on the first rank and the last stage on the last or the same \
                           rank: they share the embedding";
            return bad("schedule", format!("`{}`", self.schedule), allowed.into());
        }
        if self.stages.len() != shape.stages() {
            return bad(
                "stages",
                format!("a list of {}", self.stages.len()),
                format!("mesh.pipeline x virtual_stages = {} are needed", shape.stages()),
            );
        }
        let placed: usize = self.stages.iter().map(|stage| stage.0.len()).sum();
        if placed != self.model.layers() {
            let allowed = format!("the model has {}", self.model.layers());
            return bad("stages", format!("{placed} blocks in all"), allowed);
        }
        let inner = self.stages.len().saturating_sub(2);
        if inner > self.model.layers() {
            let layers = self.model.layers();
            let allowed = format!(
                "{inner} stages between the first and the last are more than the model's {layers} blocks"
            );
            return bad("mesh.pipeline", self.mesh.pipeline.to_string(), allowed);
        }
        Ok(())
    }

    /// Whether the context axis can share the attention of every block.
    fn check_context(&self) -> Result<(), Fault> {
        let Ok(scheme) = context_scheme(&self.context_scheme) else {
            let known: Vec<&str> = CONTEXT_SCHEMES.iter().map(|scheme| scheme.name()).collect();
            let allowed = format!("known are {}", known.join(", "));
            return bad("context_scheme", format!("`{}`", self.context_scheme), allowed);
        };
        let parts = self.tensor_scheme().parts(&self.tensor_grid());
        for block in self.model.blocks.iter().map(|run| &run.block) {
            for attention in std::iter::once(&block.attention).chain(&block.cross_attention) {
                if attention.recurrence.is_some() || attention.indexer.is_some() {
                    unshared_sequence(&self.mesh, attention)?;
                    continue;
                }
                let sizes = [self.micro_batch / parts.batch, self.job.sequence];
                let layer = SharedAttention::of(attention, &parts, &self.mesh, sizes);
                scheme.check(&layer, self.stack.attention).or_else(|Refusal { key, allowed }| {
                    let value = match key {
                        "mesh.context" => self.mesh.context.to_string(),
                        "mesh.context_inner" => self.mesh.context_inner.to_string(),
                        _ => format!("`{}`", self.context_scheme),
                    };
                    bad(key, value, allowed)
                })?;
            }
        }
        Ok(())
    }

    fn check_stack(&self) -> Result<(), Fault> {
        let fragmentation = self.stack.fragmentation.value;
        if !(0.0..=1.0).contains(&fragmentation) {
            return bad("stack.fragmentation", fragmentation.to_string(), "it must be from 0 to 1".into());
        }
        if let Some(fragmentation) = &self.stack.tensor_fragmentation
            && !(0.0..=1.0).contains(&fragmentation.value)
        {
            let value = fragmentation.value.to_string();
            return bad("stack.tensor_fragmentation", value, "it must be from 0 to 1".into());
        }
        if let Some(traffic) = &self.stack.traffic
            && !(1.0..=100.0).contains(&traffic.value)
        {
            return bad("stack.traffic", traffic.value.to_string(), "it must be from 1 to 100".into());
        }
        let lacks = |what: &str| format!("stack {} has no {what}", self.stack.name);
        if self.sequence_parallel && !self.stack.sequence_parallel {
            return bad("sequence_parallel", "true".into(), lacks("sequence parallelism"));
        }
        let version = self.stack.attention.version().filter(|version| *version != FlashVersion::Best);
        for gpu in self.cluster.kinds().map(|(_, node)| &node.gpu) {
            let known = &gpu.achieved.attention;
            if let Some(version) = version.filter(|version| !known.contains_key(version)) {
                let names = std::iter::once("flash").chain(known.keys().map(|version| version.name()));
                let allowed = format!("{} has figures of {}", gpu.name, names.collect::<Vec<_>>().join(", "));
                return bad("stack.attention", format!("`{}`", version.name()), allowed);
            }
        }
        let chosen: Vec<Recompute> = self.stages.iter().flat_map(|stage| stage.0.iter().copied()).collect();
        if chosen.iter().any(|choice| choice.name() == "selective") && !self.stack.selective_recompute {
            return bad("stages", "`selective` in some".into(), lacks("selective recompute"));
        }
        pieces_allowed(&self.model, &chosen)
            .or_else(|(choice, allowed)| bad("stages", format!("`{choice}` in some"), allowed))
    }
}

/// Whether some block of `model` has each piece that the choices name.
///
/// # Errors
/// The choice that names another, and which pieces there are.
pub fn pieces_allowed(model: &Model, chosen: &[Recompute]) -> Result<(), (Recompute, String)> {
    let blocks = || model.blocks.iter().map(|run| &run.block);
    let has = |piece| match piece {
        Piece::Core | Piece::Norm | Piece::Activation => true,
        Piece::Mlp => blocks().any(|block| matches!(block.mlp, Mlp::Dense(_))),
        Piece::Experts => blocks().any(|block| matches!(block.mlp, Mlp::Experts(_))),
        Piece::UpProjection => blocks().any(|block| block.attention.latent.is_some()),
    };
    let known: Vec<&str> = Piece::ALL.into_iter().filter(|piece| has(*piece)).map(Piece::name).collect();
    let lacking =
        |choice: &&Recompute| matches!(choice, Recompute::Pieces(pieces) if !pieces.iter().all(has));
    match chosen.iter().find(lacking) {
        Some(choice) => Err((*choice, format!("the blocks of {} have {}", model.name, known.join(", ")))),
        None => Ok(()),
    }
}

pub(super) fn bad(key: &str, value: String, allowed: String) -> Result<(), Fault> {
    Err(Fault { key: key.into(), value, allowed })
}

fn must_count(key: &str, value: usize) -> Result<(), Fault> {
    match (1..=MOST).contains(&value) {
        true => Ok(()),
        false => bad(key, value.to_string(), format!("it must be from 1 to {MOST}")),
    }
}

/// Whether sequences are whole on a rank, as states and indexers need them.
fn unshared_sequence(mesh: &Mesh, attention: &Attention) -> Result<(), Fault> {
    let what =
        if attention.recurrence.is_some() { "blocks with a state" } else { "attention with an indexer" };
    match mesh.context {
        1 => Ok(()),
        context => bad("mesh.context", context.to_string(), format!("the model has {what}: it must be 1")),
    }
}

/// Whether the layers of `model` can be split over `tensor` ranks.
///
/// # Errors
/// The sizes that the degree must divide.
pub fn tensor_degree_allowed(model: &Model, tensor: usize) -> Result<(), String> {
    let must_divide = |what: &str, size: usize| match size.is_multiple_of(tensor) {
        true => Ok(()),
        false => Err(format!("it must divide the {size} {what}")),
    };
    let attention = |attention: &Attention| {
        must_divide("attention heads", attention.heads)?;
        match attention.kv_heads.is_multiple_of(tensor) || tensor.is_multiple_of(attention.kv_heads) {
            true => Ok(()),
            false => {
                Err(format!("it must divide or be a multiple of the {} key-value heads", attention.kv_heads))
            }
        }
    };
    let feed_forward = |mlp: &FeedForward| must_divide("columns of the feed-forward layer", mlp.width);
    for run in &model.blocks {
        attention(&run.block.attention)?;
        run.block.cross_attention.as_ref().map_or(Ok(()), attention)?;
        match &run.block.mlp {
            Mlp::Dense(mlp) => feed_forward(mlp)?,
            Mlp::Experts(experts) => {
                feed_forward(&experts.expert)?;
                experts.shared.as_ref().map_or(Ok(()), feed_forward)?;
            }
        }
    }
    Ok(())
}

/// Whether `model` can be cut into `stages`: a block or more on each, but the first may have the embedding alone and the last
/// the head.
///
/// # Errors
/// Why not.
pub fn pipeline_allowed(model: &Model, stages: usize) -> Result<(), String> {
    if stages.saturating_sub(2) > model.layers() {
        return Err(format!(
            "{stages} stages are more than the model's {} blocks, embedding and head",
            model.layers()
        ));
    }
    Ok(())
}

/// Whether `model` has positions for `sequence` tokens.
///
/// # Errors
/// How many it has.
pub fn sequence_allowed(model: &Model, sequence: usize) -> Result<(), String> {
    match model.embedding.position {
        crate::model::Position::Learned(positions) if sequence > positions => {
            Err(format!("the model has learned positions for {positions} tokens"))
        }
        _ => Ok(()),
    }
}
