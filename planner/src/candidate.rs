//! The space of plans: every legal combination of mesh, microbatch, schedule, sequence parallelism and sharding.

use crate::verdict::{PlannerError, Question};
use trainwright_spec::mesh::Mesh;
use trainwright_spec::plan::{
    DataSharding, Plan, StageBlocks, pipeline_allowed, sequence_allowed, tensor_degree_allowed,
};
use trainwright_spec::schedule::{PipelineShape, SCHEDULES};

/// Everything about a plan but its partition and recomputation.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) struct Candidate {
    pub mesh: Mesh,
    pub micro_batch: usize,
    pub schedule: &'static str,
    pub virtual_stages: usize,
    pub sequence_parallel: bool,
    pub data_sharding: DataSharding,
}

impl Candidate {
    /// The sizes of its pipeline for a global batch.
    pub fn shape(&self, global_batch: usize) -> PipelineShape {
        PipelineShape {
            ranks: self.mesh.pipeline,
            virtual_stages: self.virtual_stages,
            microbatches: global_batch / (self.mesh.data * self.micro_batch),
        }
    }

    /// The plan with these choices and the given stages.
    pub fn plan(&self, question: &Question, stages: Vec<StageBlocks>) -> Plan {
        Plan {
            micro_batch: self.micro_batch,
            schedule: self.schedule.into(),
            virtual_stages: self.virtual_stages,
            sequence_parallel: self.sequence_parallel,
            data_sharding: self.data_sharding,
            stages,
            mesh: self.mesh,
            job: question.job.clone(),
            stack: question.stack.clone(),
            cluster: question.cluster.clone(),
            model: question.model.clone(),
        }
    }

    /// In words: `tensor 8, pipeline 4, data 4, microbatch 1`.
    pub fn words(&self) -> String {
        let Mesh { tensor, pipeline, data } = self.mesh;
        format!("tensor {tensor}, pipeline {pipeline}, data {data}, microbatch {}", self.micro_batch)
    }
}

/// Every legal candidate, in a fixed order.
///
/// # Errors
/// `NoCandidate` with what stands in the way.
pub(crate) fn candidates(question: &Question) -> Result<Vec<Candidate>, PlannerError> {
    let none = |reason: String| Err(PlannerError::NoCandidate { reason });
    if let Err(reason) = sequence_allowed(&question.model, question.job.sequence) {
        return none(format!("sequence {}: {reason}", question.job.sequence));
    }
    let meshes = meshes(question);
    if meshes.is_empty() {
        return none(why_no_mesh(question));
    }
    let found: Vec<Candidate> = meshes.iter().flat_map(|mesh| with_mesh(question, *mesh)).collect();
    if found.is_empty() {
        let data: Vec<usize> = meshes.iter().map(|mesh| mesh.data).collect();
        return none(format!(
            "no microbatch and schedule suit global batch {} on any of {} meshes, whose data axes have {} ranks and more",
            question.job.global_batch,
            meshes.len(),
            data.iter().min().unwrap_or(&1),
        ));
    }
    Ok(found)
}

/// Whether a pinned value, if there is one, is this one.
fn pinned<T: PartialEq>(pin: &Option<T>, value: &T) -> bool {
    pin.as_ref().is_none_or(|pin| pin == value)
}

fn divisors(number: usize) -> impl Iterator<Item = usize> + Clone {
    (1..=number).filter(move |divisor| number.is_multiple_of(*divisor))
}

fn meshes(question: &Question) -> Vec<Mesh> {
    let Question { model, cluster, job, pins, .. } = question;
    let gpus = cluster.gpus();
    // A tensor group lies in one node or fills whole ones: where some groups straddle a node's end, all wait for them.
    let node = cluster.node.gpus.value;
    let aligned = |tensor: usize| node.is_multiple_of(tensor) || tensor.is_multiple_of(node);
    let considered = |tensor: &usize| match pins.tensor {
        Some(pin) => *tensor == pin,
        None => aligned(*tensor),
    };
    let tensors = divisors(gpus).filter(|tensor| {
        considered(tensor) && *tensor <= job.sequence && tensor_degree_allowed(model, *tensor).is_ok()
    });
    let split = |tensor: usize| {
        divisors(gpus / tensor)
            .filter(|pipeline| pinned(&pins.pipeline, pipeline) && pipeline_allowed(model, *pipeline).is_ok())
            .map(move |pipeline| Mesh { tensor, pipeline, data: gpus / tensor / pipeline })
            .filter(|mesh| pinned(&pins.data, &mesh.data) && job.global_batch.is_multiple_of(mesh.data))
            .collect::<Vec<_>>()
    };
    tensors.flat_map(split).collect()
}

/// Which of the rules leaves no mesh.
fn why_no_mesh(question: &Question) -> String {
    let Question { model, cluster, job, pins, .. } = question;
    let gpus = cluster.gpus();
    if let Some(tensor) = pins.tensor {
        if !gpus.is_multiple_of(tensor) {
            return format!("tensor {tensor} does not divide the cluster's {gpus} GPUs");
        }
        if let Err(reason) = tensor_degree_allowed(model, tensor) {
            return format!("tensor {tensor}: {reason}");
        }
    }
    if let Some(pipeline) = pins.pipeline {
        if !gpus.is_multiple_of(pipeline) {
            return format!("pipeline {pipeline} does not divide the cluster's {gpus} GPUs");
        }
        if let Err(reason) = pipeline_allowed(model, pipeline) {
            return format!("pipeline {pipeline}: {reason}");
        }
    }
    if let Some(data) = pins.data
        && !gpus.is_multiple_of(data)
    {
        return format!("data {data} does not divide the cluster's {gpus} GPUs");
    }
    format!(
        "no tensor x pipeline x data of {gpus} GPUs has a tensor degree that divides the model's heads, a pipeline of \
         at most {} blocks, and a data degree that divides global batch {}",
        model.layers(),
        job.global_batch
    )
}

/// The numbers of stages per rank worth looking at: for each size of the largest stage the smallest number, since more
/// stages of that size only leave more of them partly empty.
fn virtual_stage_counts(layers: usize, pipeline: usize, pin: Option<usize>) -> Vec<usize> {
    let most = (layers / pipeline).max(1);
    if let Some(pin) = pin {
        return if pin <= most { vec![pin] } else { Vec::new() };
    }
    let largest = |v: usize| layers.div_ceil(pipeline * v);
    (1..=most).filter(|v| *v <= 2 || largest(*v) < largest(v - 1)).collect()
}

fn with_mesh(question: &Question, mesh: Mesh) -> Vec<Candidate> {
    let pins = &question.pins;
    let layers = question.model.layers();
    let of_replica = question.job.global_batch / mesh.data;
    let mut found = Vec::new();
    let micro_batches = divisors(of_replica).filter(|micro_batch| pinned(&pins.micro_batch, micro_batch));
    for micro_batch in micro_batches {
        for schedule in SCHEDULES
            .iter()
            .filter(|schedule| pins.schedule.as_ref().is_none_or(|pin| pin == schedule.name()))
        {
            for virtual_stages in virtual_stage_counts(layers, mesh.pipeline, pins.virtual_stages) {
                let microbatches = of_replica / micro_batch;
                let shape = PipelineShape { ranks: mesh.pipeline, virtual_stages, microbatches };
                // Without a pipeline all schedules are the same but for the memory they take: 1F1B takes the least.
                let needless = mesh.pipeline == 1 && pins.schedule.is_none() && schedule.name() != "1f1b";
                if needless || schedule.check(shape).is_err() {
                    continue;
                }
                let sequence_parallel = [true, false].into_iter().filter(|on| {
                    let possible =
                        !on || mesh.tensor > 1 && question.job.sequence.is_multiple_of(mesh.tensor);
                    possible && pinned(&pins.sequence_parallel, on)
                });
                for sequence_parallel in sequence_parallel {
                    let shardings =
                        [DataSharding::Zero1, DataSharding::None].into_iter().filter(|sharding| {
                            (*sharding == DataSharding::None || mesh.data > 1)
                                && pinned(&pins.data_sharding, sharding)
                        });
                    found.extend(shardings.map(|data_sharding| Candidate {
                        mesh,
                        micro_batch,
                        schedule: schedule.name(),
                        virtual_stages,
                        sequence_parallel,
                        data_sharding,
                    }));
                }
            }
        }
    }
    found
}
