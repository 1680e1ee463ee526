//! Which plans are legal.

use super::Plan;
use crate::cluster::{self, Fault};
use crate::error::SpecError;
use crate::model::{Attention, FeedForward, Mlp, Model};
use crate::optimizer::optimizer;
use crate::schedule::schedule;

/// The most of anything a plan may count; beyond it a number is a slip of the pen.
pub const MOST: usize = 10_000_000;

impl Plan {
    /// Whether the choices fit each other, the model and the cluster. `origin` names the file in messages.
    ///
    /// # Errors
    /// The first choice that is not possible, with its value and what is allowed.
    pub fn check(&self, origin: &str) -> Result<(), SpecError> {
        let bad = |key: &str, value: String, allowed: String| {
            Err(SpecError::BadValue { origin: origin.into(), key: key.into(), value, allowed })
        };
        let sizes = [
            ("mesh.tensor", self.mesh.tensor),
            ("mesh.pipeline", self.mesh.pipeline),
            ("mesh.data", self.mesh.data),
            ("micro_batch", self.micro_batch),
            ("virtual_stages", self.virtual_stages),
            ("job.sequence", self.job.sequence),
            ("job.global_batch", self.job.global_batch),
            ("cluster.nodes", self.cluster.nodes),
            ("cluster.node.gpus", self.cluster.node.gpus.value),
        ];
        for (key, value) in sizes {
            if !(1..=MOST).contains(&value) {
                return bad(key, value.to_string(), format!("it must be from 1 to {MOST}"));
            }
        }
        if let Err(Fault { key, value, allowed }) = cluster::check(&self.cluster) {
            return bad(&format!("cluster.{key}"), value, allowed);
        }
        let multiple = self.stack.vocabulary_multiple.value;
        if !(1..=MOST).contains(&multiple) {
            let allowed = format!("it must be from 1 to {MOST}");
            return bad("stack.vocabulary_multiple", multiple.to_string(), allowed);
        }
        let fragmentation = self.stack.fragmentation.value;
        if !(0.0..=1.0).contains(&fragmentation) {
            return bad("stack.fragmentation", fragmentation.to_string(), "it must be from 0 to 1".into());
        }
        if self.mesh.ranks() != self.cluster.gpus() {
            let product = format!("{} x {} x {}", self.mesh.tensor, self.mesh.pipeline, self.mesh.data);
            return bad(
                "mesh",
                format!("{product} = {} ranks", self.mesh.ranks()),
                format!("tensor x pipeline x data must be the cluster's {} GPUs", self.cluster.gpus()),
            );
        }
        let sequences = self.mesh.data * self.micro_batch;
        if !self.job.global_batch.is_multiple_of(sequences) {
            return bad(
                "job.global_batch",
                self.job.global_batch.to_string(),
                format!("it must divide by mesh.data x micro_batch = {sequences}"),
            );
        }
        optimizer(&self.job.optimizer)?;
        if !self.cluster.node.gpu.peak.contains_key(&self.job.precision) {
            let known: Vec<&str> =
                self.cluster.node.gpu.peak.keys().map(|precision| precision.name()).collect();
            return bad(
                "job.precision",
                self.job.precision.to_string(),
                format!("{} computes in {}", self.cluster.node.gpu.name, known.join(", ")),
            );
        }
        if let Err(reason) = schedule(&self.schedule)?.check(self.pipeline_shape()) {
            return bad("schedule", format!("`{}`", self.schedule), reason);
        }
        if self.stages.len() != self.pipeline_shape().stages() {
            return bad(
                "stages",
                format!("a list of {}", self.stages.len()),
                format!("mesh.pipeline x virtual_stages = {} are needed", self.pipeline_shape().stages()),
            );
        }
        let (blocks, placed) =
            (self.model.layers(), self.stages.iter().map(|stage| stage.0.len()).sum::<usize>());
        if placed != blocks {
            return bad("stages", format!("{placed} blocks in all"), format!("the model has {blocks}"));
        }
        if self.sequence_parallel && !self.job.sequence.is_multiple_of(self.mesh.tensor) {
            return bad(
                "job.sequence",
                self.job.sequence.to_string(),
                format!("with sequence_parallel it must divide by mesh.tensor = {}", self.mesh.tensor),
            );
        }
        if let Err(allowed) = tensor_degree_allowed(&self.model, self.mesh.tensor) {
            return bad("mesh.tensor", self.mesh.tensor.to_string(), allowed);
        }
        if let Err(allowed) = pipeline_allowed(&self.model, self.pipeline_shape().stages()) {
            return bad("mesh.pipeline", self.mesh.pipeline.to_string(), allowed);
        }
        if let Err(allowed) = sequence_allowed(&self.model, self.job.sequence) {
            return bad("job.sequence", self.job.sequence.to_string(), allowed);
        }
        Ok(())
    }
}

/// Whether the layers of `model` can be split over `tensor` ranks.
///
/// # Errors
/// What the degree must divide.
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

/// Whether `model` can be cut into `stages`.
///
/// # Errors
/// Why not.
pub fn pipeline_allowed(model: &Model, stages: usize) -> Result<(), String> {
    if stages > model.layers() {
        return Err(format!("{stages} stages are more than the model's {} blocks", model.layers()));
    }
    let crosses = model.blocks.iter().any(|run| run.block.cross_attention.is_some());
    if crosses && stages > 1 {
        return Err(
            "an encoder-decoder is not cut into stages: every decoder block reads the encoder's output"
                .into(),
        );
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
