//! A row of a table of serving runs: what was served, on what, and how.

use super::names;
use crate::kernels::{Cells, NoCase};
use trainwright_sim::serving::Load;
use trainwright_spec::cluster::Cluster;
use trainwright_spec::model::Model;
use trainwright_spec::serving::{Engine, ServingPlan};

/// How often each client asks, if a row does not say how many requests there were.
const ROUNDS: usize = 10;

/// Requests that are simulated at most.
const MOST_REQUESTS: usize = 4096;

/// Requests where a row says how they come but not how many.
const OPEN_REQUESTS: usize = 1000;

/// What a row asks for.
#[derive(Debug, Clone, PartialEq)]
pub struct ServingCase {
    /// The model.
    pub model: Model,
    /// The cluster that the instance is on.
    pub cluster: Cluster,
    /// One instance.
    pub plan: ServingPlan,
    /// Instances that share the load.
    pub replicas: usize,
    /// What each instance is asked.
    pub load: Load,
    /// Most sequences of a step, where the row says so.
    pub most: Option<usize>,
    /// The name of the engine as printed, if another stands for it.
    pub stands_for: Option<String>,
    /// Whether latency is that of a whole batch, from its start to the end of its last sequence.
    pub whole_batch: bool,
}

impl ServingCase {
    /// The case of a row.
    ///
    /// # Errors
    /// `Unsupported` for what is not known, `Invalid` for cells that make no sense.
    pub fn of(cells: &Cells) -> Result<Self, NoCase> {
        let unsupported = |text: String| NoCase::Unsupported(text);
        let name = cells.text("model_name");
        let model = names::model(name)
            .ok_or_else(|| unsupported(format!("the model {name} is not in the catalog")))?;
        let gpu = cells.text("gpu");
        let degree = |column: &str| Ok::<_, NoCase>(cells.maybe(column, 0.0)?.filter(|degree| *degree > 0));
        let gpus = degree("gpus")?;
        let pipeline = degree("pp")?.unwrap_or(1);
        let attention_data = degree("dp")?.unwrap_or(1);
        let tensor = match degree("tp")? {
            Some(tensor) => tensor,
            None => (gpus.unwrap_or(1) / (pipeline * attention_data)).max(1),
        };
        let instance = tensor * pipeline * attention_data;
        let cluster = names::cluster(gpu, instance)
            .ok_or_else(|| unsupported(format!("the GPU {gpu} is not in the catalog")))?;
        let replicas = (gpus.unwrap_or(instance) / instance).max(1);
        let precision = cells.text("precision_weights");
        let [weights, expert_weights] = names::formats(precision, &model, &cluster)
            .ok_or_else(|| unsupported(format!("the number format {precision} has no measured kernels")))?;
        let printed = cells.text("engine");
        let date = cells.text("date");
        let known = Engine::of_table(printed, date);
        let engine = known.or_else(|| Engine::of_table("vllm", date)).expect("the catalog has vLLM").clone();
        let cache = match cells.text("precision_kv").to_lowercase().as_str() {
            "fp8" => "fp8",
            // Published weights of few bits come with an 8-bit cache for the one, and 4-bit ones for all.
            "" if expert_weights == "nvfp4" => "fp8",
            "" if engine.library == "trtllm" && matches!(weights, "fp8" | "fp8_block") => "fp8",
            _ => "bfloat16",
        };
        let expert = degree("ep")?.unwrap_or(1).min(tensor * attention_data);
        let plan = ServingPlan {
            tensor,
            pipeline,
            expert,
            attention_data,
            weights: weights.into(),
            expert_weights: expert_weights.into(),
            cache: cache.into(),
            engine,
            log_probs: false,
        };
        let (load, most) = load(cells, replicas, attention_data)?;
        let whole_batch = cells.text("concurrency").is_empty() && !cells.text("batch").is_empty();
        let stands_for = known.is_none().then(|| printed.to_string());
        Ok(Self { model, cluster, plan, replicas, load, most, stands_for, whole_batch })
    }
}

/// A length in tokens, which may be a mean; `None` if it is blank.
fn length(cells: &Cells, column: &str) -> Result<Option<usize>, NoCase> {
    match cells.text(column) {
        "" => Ok(None),
        text => match text.parse::<f64>() {
            Ok(tokens) if (0.0..=1e8).contains(&tokens) => Ok(Some(tokens.round() as usize)),
            _ => Err(NoCase::Invalid(format!("`{column}` is {text}, no number of tokens from 0 to 1e8"))),
        },
    }
}

/// What each instance is asked, and the most sequences of a step if the row says so.
fn load(cells: &Cells, replicas: usize, attention_data: usize) -> Result<(Load, Option<usize>), NoCase> {
    let input = length(cells, "input_len")?;
    let output = length(cells, "output_len")?;
    // A prompt that a table leaves out is a short one.
    let input = input.unwrap_or(16).max(1);
    let Some(output) = output else { return Err(NoCase::Unsupported("`output_len` is blank".into())) };
    let output = output.max(1);
    let share = |count: usize| count.div_ceil(replicas);
    let batch = cells.maybe("batch", 1.0)?;
    if let Some(clients) = cells.maybe("concurrency", 1.0)? {
        let clients = share(clients);
        let rounds = (MOST_REQUESTS / clients).clamp(3, ROUNDS);
        let most = batch.map(|batch| share(batch) * attention_data).filter(|batch| *batch < clients);
        return Ok((Load::closed(clients, rounds, input, output), most));
    }
    if let Some(batch) = batch {
        return Ok((Load::batch(share(batch), input, output), None));
    }
    match cells.text("request_rate") {
        "" => {
            Err(NoCase::Unsupported("neither `batch` nor `concurrency` nor `request_rate` is given".into()))
        }
        "inf" => Ok((Load::batch(MOST_REQUESTS, input, output), None)),
        text => match text.parse::<f64>() {
            Ok(rate) if rate > 0.0 && rate.is_finite() => {
                let load = Load::at_rate(rate / replicas as f64, OPEN_REQUESTS, input, output);
                Ok((load, None))
            }
            _ => Err(NoCase::Invalid(format!("`request_rate` is {text}, no number above 0"))),
        },
    }
}
