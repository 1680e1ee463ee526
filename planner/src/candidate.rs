//! The space of plans: every legal combination of mesh, microbatch, schedule, sequence parallelism and sharding.

use crate::verdict::{PlannerError, Question};
use trainwright_spec::data::{DataOptions, data_scheme};
use trainwright_spec::mesh::Mesh;
use trainwright_spec::plan::{
    MOST, Plan, Recompute, StageBlocks, pipeline_allowed, sequence_allowed, tensor_degree_allowed,
};
use trainwright_spec::schedule::{PipelineShape, SCHEDULES, schedule};

/// The most passes of a block through a pipeline that are simulated for a candidate; the largest published runs have
/// about a hundredth of it.
const MOST_PASSES: usize = 1_000_000;

/// The data-parallel schemes among which the planner chooses, where the software and the mesh have both.
const SEARCHED: [&str; 2] = ["zero1", "none"];

/// Everything about a plan but its partition and recomputation.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) struct Candidate {
    pub mesh: Mesh,
    pub micro_batch: usize,
    pub schedule: &'static str,
    pub virtual_stages: usize,
    pub sequence_parallel: bool,
    pub data_sharding: &'static str,
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

    /// Makes these choices in a plan that answers the same question.
    pub fn apply_to(&self, plan: &mut Plan) {
        plan.schedule = self.schedule.into();
        plan.mesh = self.mesh;
        plan.micro_batch = self.micro_batch;
        plan.virtual_stages = self.virtual_stages;
        plan.sequence_parallel = self.sequence_parallel;
        self.data_sharding.clone_into(&mut plan.data_sharding);
    }

    /// The plan with these choices and the given stages.
    pub fn plan(&self, question: &Question, stages: Vec<StageBlocks>) -> Plan {
        Plan {
            micro_batch: self.micro_batch,
            schedule: self.schedule.into(),
            virtual_stages: self.virtual_stages,
            tensor_scheme: "1d".into(),
            sequence_parallel: self.sequence_parallel,
            context_scheme: "ring".into(),
            data_sharding: self.data_sharding.into(),
            stages,
            state: Default::default(),
            offload: Default::default(),
            data: DataOptions::default(),
            mesh: self.mesh,
            experts: Default::default(),
            job: question.job.clone(),
            stack: question.stack.clone(),
            cluster: question.cluster.clone(),
            model: question.model.clone(),
        }
    }

    /// In words: `tensor 8, pipeline 4, data 4, microbatch 1`.
    pub fn words(&self) -> String {
        let Mesh { tensor, pipeline, data, .. } = self.mesh;
        format!("tensor {tensor}, pipeline {pipeline}, data {data}, microbatch {}", self.micro_batch)
    }
}

/// The candidates of a question.
pub(crate) struct Candidates {
    /// Every legal one whose step can be simulated, in a fixed order.
    pub found: Vec<Candidate>,
    /// Why some cannot be simulated, if there are such.
    pub left_out: Option<String>,
}

impl Candidates {
    /// Looks for them.
    ///
    /// # Errors
    /// `NoCandidate` with what stands in the way.
    pub fn of(question: &Question) -> Result<Self, PlannerError> {
        legal(question).map_err(|reason| PlannerError::NoCandidate { reason })
    }
}

fn legal(question: &Question) -> Result<Candidates, String> {
    let job = &question.job;
    for (what, size) in [("sequence", job.sequence), ("global batch", job.global_batch)] {
        if !(1..=MOST).contains(&size) {
            return Err(format!("{what} {size}: it must be from 1 to {MOST}"));
        }
    }
    sequence_allowed(&question.model, job.sequence)
        .map_err(|reason| format!("sequence {}: {reason}", job.sequence))?;
    let meshes = meshes(question);
    // The longest pipeline leaves schedules the most room: if nothing suits any mesh, its reason is the telling one.
    let longest = meshes.iter().max_by_key(|mesh| mesh.pipeline).ok_or_else(|| why_no_mesh(question))?;
    let mut found: Vec<Candidate> =
        meshes.iter().filter_map(|mesh| with_mesh(question, *mesh).ok()).flatten().collect();
    let check = |candidate: &Candidate| {
        let plan = candidate.plan(question, even_stages(question.model.layers(), candidate));
        plan.check("question").map_err(|error| error.to_string())
    };
    // A scheme that is not searched may not go with every pipeline.
    let refused = found.first().map(check);
    if question.pins.data_sharding.as_ref().is_some_and(|name| !SEARCHED.contains(&name.as_str())) {
        found.retain(|candidate| check(candidate).is_ok());
    }
    if let (Some(Err(reason)), true) = (refused, found.is_empty()) {
        return Err(reason);
    }
    let Some(first) = found.first() else {
        return with_mesh(question, *longest).map(|found| Candidates { found, left_out: None });
    };
    // What all candidates have in common is checked on one of them.
    check(first)?;
    let replicas = meshes.iter().map(|mesh| mesh.data).min().unwrap_or(1);
    let microbatches = job.global_batch / replicas / question.pins.micro_batch.unwrap_or(1);
    let left_out = simulation_allowed(microbatches, question.model.layers()).err();
    Ok(Candidates { found, left_out })
}

fn simulation_allowed(microbatches: usize, layers: usize) -> Result<(), String> {
    match microbatches.saturating_mul(layers) > MOST_PASSES {
        true => Err(format!(
            "{microbatches} microbatches of {layers} blocks are more than the {MOST_PASSES} passes that are simulated"
        )),
        false => Ok(()),
    }
}

fn even_stages(layers: usize, candidate: &Candidate) -> Vec<StageBlocks> {
    let stages = candidate.mesh.pipeline * candidate.virtual_stages;
    let share = |stage| layers / stages + usize::from(stage < layers % stages);
    (0..stages).map(|stage| StageBlocks(vec![Recompute::None; share(stage)])).collect()
}

/// Whether a pinned value, if there is one, is this one.
fn pinned<T: PartialEq>(pin: &Option<T>, value: &T) -> bool {
    pin.as_ref().is_none_or(|pin| pin == value)
}

/// The divisors of a number, ascending.
fn divisors(number: usize) -> Vec<usize> {
    let small = (1..=number.isqrt()).filter(|divisor| number.is_multiple_of(*divisor));
    let mut divisors: Vec<usize> = small.flat_map(|divisor| [divisor, number / divisor]).collect();
    divisors.sort_unstable();
    divisors.dedup();
    divisors
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
    let tensors = divisors(gpus).into_iter().filter(|tensor| {
        considered(tensor) && *tensor <= job.sequence && tensor_degree_allowed(model, *tensor).is_ok()
    });
    let split = |tensor: usize| {
        divisors(gpus / tensor)
            .into_iter()
            .filter(|pipeline| pinned(&pins.pipeline, pipeline) && pipeline_allowed(model, *pipeline).is_ok())
            .map(move |pipeline| Mesh::new(tensor, pipeline, gpus / tensor / pipeline))
            .filter(|mesh| pinned(&pins.data, &mesh.data) && job.global_batch.is_multiple_of(mesh.data))
            .collect::<Vec<_>>()
    };
    tensors.flat_map(split).collect()
}

/// Which of the rules leaves no mesh.
fn why_no_mesh(question: &Question) -> String {
    let Question { model, cluster, job, pins, .. } = question;
    let gpus = cluster.gpus();
    let axes = [("tensor", pins.tensor), ("pipeline", pins.pipeline), ("data", pins.data)];
    let given: Vec<(&str, usize)> =
        axes.into_iter().filter_map(|(name, pin)| pin.map(|size| (name, size))).collect();
    for (name, size) in &given {
        if !gpus.is_multiple_of(*size) {
            return format!("{name} {size} does not divide the cluster's {gpus} GPUs");
        }
    }
    if let Some(tensor) = pins.tensor
        && let Err(reason) = tensor_degree_allowed(model, tensor)
    {
        return format!("tensor {tensor}: {reason}");
    }
    if let Some(pipeline) = pins.pipeline
        && let Err(reason) = pipeline_allowed(model, pipeline)
    {
        return format!("pipeline {pipeline}: {reason}");
    }
    if let Some(data) = pins.data
        && !job.global_batch.is_multiple_of(data)
    {
        return format!("data {data} does not divide global batch {}", job.global_batch);
    }
    let words: Vec<String> = given.iter().map(|(name, size)| format!("{name} {size}")).collect();
    let words = words.join(" x ");
    let product = given.iter().fold(1usize, |product, (_, size)| product.saturating_mul(*size));
    if !gpus.is_multiple_of(product) || (given.len() == axes.len() && product != gpus) {
        return format!("{words} is {product} ranks, and the cluster has {gpus} GPUs");
    }
    let with = if given.is_empty() { String::new() } else { format!(" with {words}") };
    format!(
        "no tensor x pipeline x data of {gpus} GPUs{with} has a tensor degree that divides the model's heads and \
         widths, a pipeline of at most {} stages, and a data degree that divides global batch {}",
        if pipeline_allowed(model, 2).is_ok() { model.layers() } else { 1 },
        job.global_batch
    )
}

/// The candidates with a mesh.
///
/// # Errors
/// The first reason why there are none.
fn with_mesh(question: &Question, mesh: Mesh) -> Result<Vec<Candidate>, String> {
    let layouts = layouts(question, mesh)?;
    let of_replica = question.job.global_batch / mesh.data;
    let mut micro_batches = divisors(of_replica);
    micro_batches.retain(|micro_batch| pinned(&question.pins.micro_batch, micro_batch));
    if let (Some(pin), []) = (question.pins.micro_batch, micro_batches.as_slice()) {
        return Err(format!("microbatch {pin} does not divide the {of_replica} sequences of a data rank"));
    }
    let mut found = Vec::new();
    let mut refused = None;
    for micro_batch in micro_batches {
        match pipelines(question, mesh, of_replica / micro_batch) {
            Ok(pipelines) => {
                for (schedule, virtual_stages) in pipelines {
                    found.extend(layouts.iter().map(|&(sequence_parallel, data_sharding)| Candidate {
                        mesh,
                        micro_batch,
                        schedule,
                        virtual_stages,
                        sequence_parallel,
                        data_sharding,
                    }));
                }
            }
            Err(reason) => refused = refused.or(Some(reason)),
        }
    }
    match refused {
        Some(reason) if found.is_empty() => Err(reason),
        _ => Ok(found),
    }
}

/// With and without sequence parallelism and sharding, as far as a mesh allows.
fn layouts(question: &Question, mesh: Mesh) -> Result<Vec<(bool, &'static str)>, String> {
    let pins = &question.pins;
    let sequence = question.job.sequence;
    let splits_sequence = mesh.tensor > 1 && sequence.is_multiple_of(mesh.tensor);
    if pins.sequence_parallel == Some(true) && !splits_sequence {
        return Err(match mesh.tensor {
            1 => "sequence parallelism needs a tensor degree of 2 or more".into(),
            tensor => format!(
                "sequence parallelism needs a sequence that divides by tensor {tensor}, not {sequence}"
            ),
        });
    }
    let stack = &question.stack;
    if pins.sequence_parallel == Some(true) && !stack.sequence_parallel {
        return Err(format!("stack {} has no sequence parallelism", stack.name));
    }
    let scheme =
        pins.data_sharding.as_deref().map(data_scheme).transpose().map_err(|error| error.to_string())?;
    let scheme = scheme.map(|scheme| scheme.name());
    if let Some(name) = scheme
        && !stack.has_data_scheme(name)
    {
        return Err(match name {
            "zero1" => format!("stack {} has no sharded optimizer", stack.name),
            other => format!("stack {} has no data-parallel scheme {other}", stack.name),
        });
    }
    let selective = pins.recompute.is_some_and(|choice| choice.name() == "selective");
    if selective && !stack.selective_recompute {
        return Err(format!("stack {} has no selective recompute", stack.name));
    }
    if let Some(name) = scheme.filter(|name| *name != "none" && mesh.data == 1) {
        return Err(format!("data sharding {name} needs a data degree of 2 or more"));
    }
    let on = [true, false].into_iter().filter(|on| {
        (!on || splits_sequence && stack.sequence_parallel) && pinned(&pins.sequence_parallel, on)
    });
    let shardings: Vec<&'static str> = match scheme {
        Some(name) => vec![name],
        None if mesh.data > 1 && stack.sharded_optimizer => SEARCHED.to_vec(),
        None => vec!["none"],
    };
    Ok(on.flat_map(|on| shardings.iter().map(move |sharding| (on, *sharding))).collect())
}

/// The schedules that exist for a mesh and a number of microbatches, each with its stages per rank.
///
/// # Errors
/// The last reason why there are none: later schedules and more stages are those with conditions of their own.
fn pipelines(
    question: &Question,
    mesh: Mesh,
    microbatches: usize,
) -> Result<Vec<(&'static str, usize)>, String> {
    let (pins, layers) = (&question.pins, question.model.layers());
    simulation_allowed(microbatches, layers)?;
    // Without a pipeline all schedules are the same but for the memory they take: 1F1B takes the least.
    let schedules = match (&pins.schedule, mesh.pipeline) {
        (Some(name), _) => vec![schedule(name).map_err(|error| error.to_string())?],
        (None, 1) => vec![schedule("1f1b").map_err(|error| error.to_string())?],
        (None, _) => SCHEDULES.iter().copied().filter(|schedule| schedule.searched()).collect(),
    };
    let mut found = Vec::new();
    let mut refused = None;
    for schedule in schedules {
        for virtual_stages in virtual_stage_counts(layers, mesh.pipeline, pins.virtual_stages) {
            let shape = PipelineShape { ranks: mesh.pipeline, virtual_stages, microbatches };
            let stages = mesh.pipeline.saturating_mul(virtual_stages);
            let clipped = question.job.gradient_clipping && mesh.pipeline > 1 && !schedule.flushes();
            let updates = match clipped {
                true => Err(format!("schedule `{}` does not go with gradient clipping", schedule.name())),
                false => Ok(()),
            };
            match updates
                .and_then(|()| schedule.check(shape))
                .and_then(|()| pipeline_allowed(&question.model, stages))
            {
                Ok(()) => found.push((schedule.name(), virtual_stages)),
                Err(reason) => refused = Some(reason),
            }
        }
    }
    match refused {
        Some(reason) if found.is_empty() => Err(reason),
        _ => Ok(found),
    }
}

/// The numbers of stages per rank worth looking at: for each size of the largest stage the smallest number, since more
/// stages of that size only leave more of them partly empty.
fn virtual_stage_counts(layers: usize, pipeline: usize, pin: Option<usize>) -> Vec<usize> {
    if let Some(pin) = pin {
        return vec![pin];
    }
    let most = (layers / pipeline).max(1);
    let largest = |v: usize| layers.div_ceil(pipeline * v);
    (1..=most).filter(|v| *v <= 2 || largest(*v) < largest(v - 1)).collect()
}
