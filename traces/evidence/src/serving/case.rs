//! A row of a table of serving runs: what was served, on what, and how.

use super::layout::Layout;
use super::names;
use super::shares::{Asked, Bound, Share};
use crate::kernels::{Cells, NoCase};
use trainwright_spec::cluster::Cluster;
use trainwright_spec::model::Model;
use trainwright_spec::serving::{Engine, ServingPlan};

/// What a row asks for.
#[derive(Debug, Clone, PartialEq)]
pub struct ServingCase {
    /// The model.
    pub model: Model,
    /// The cluster that the instance is on.
    pub cluster: Cluster,
    /// One instance.
    pub plan: ServingPlan,
    /// Instances on the row's GPUs.
    pub replicas: usize,
    /// What they are asked: at most two kinds of them, that with more requests first; idle ones are in none.
    pub shares: Vec<Share>,
    /// Most sequences of a step, where the row says so.
    pub most: Option<usize>,
    /// What bounds the requests of clients, where the row states a rate besides.
    pub bound: Option<Bound>,
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
        let printed = cells.text("engine");
        let date = cells.text("date");
        let known = Engine::of_table(printed, date);
        let engine = known.or_else(|| Engine::of_table("vllm", date)).expect("the catalog has vLLM").clone();
        let layout = Layout::of(cells, &model, known)?;
        let Layout { tensor, pipeline, attention_data, expert, replicas } = layout;
        let instance = layout.instance();
        let cluster = names::cluster(gpu, instance)
            .ok_or_else(|| unsupported(format!("the GPU {gpu} is not in the catalog")))?;
        let precision = cells.text("precision_weights");
        let [weights, expert_weights] = names::formats(precision, &model, &cluster)
            .ok_or_else(|| unsupported(format!("the number format {precision} has no measured kernels")))?;
        let cache = match cells.text("precision_kv").to_lowercase().as_str() {
            "fp8" => "fp8",
            // Published weights of few bits come with an 8-bit cache for the one, and 4-bit ones for all.
            "" if expert_weights == "nvfp4" => "fp8",
            "" if engine.library == "trtllm" && matches!(weights, "fp8" | "fp8_block") => "fp8",
            _ => "bfloat16",
        };
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
        let Asked { shares, most, bound } = Asked::of(cells, replicas, attention_data)?;
        let whole_batch = cells.text("concurrency").is_empty() && !cells.text("batch").is_empty();
        let stands_for = known.is_none().then(|| printed.to_string());
        Ok(Self { model, cluster, plan, replicas, shares, most, bound, stands_for, whole_batch })
    }
}
