//! The forecast of a row.

use super::case::ServingCase;
use super::null::{NullForecast, null_forecast};
use crate::kernels::NoCase;
use trainwright_sim::serving::{Instance, ServingError};
use trainwright_spec::units::{Bytes, Seconds};

/// What a run is expected to give.
#[derive(Debug, Clone, PartialEq)]
pub struct ServingForecast {
    /// The engine, by its name in the catalog.
    pub engine: String,
    /// What is assumed of what the row does not say; blank if nothing is.
    pub assumed: String,
    /// Mean time to the first token.
    pub ttft: Seconds,
    /// Mean time for each token after the first.
    pub tpot: Seconds,
    /// Mean time to the last token; of a batch that is there at once, of all of it.
    pub latency: Seconds,
    /// Tokens of answers per second, of all instances.
    pub output_rate: f64,
    /// Tokens of prompts and answers per second, of all instances.
    pub total_rate: f64,
    /// Requests per second, of all instances.
    pub request_rate: f64,
    /// GPUs of all instances.
    pub gpus: usize,
    /// Memory of the fullest GPU, with what the sequences put in the cache.
    pub memory: Bytes,
    /// Tokens that the cache of an instance has room for.
    pub capacity: usize,
    /// What the null model says.
    pub null: NullForecast,
}

/// The forecast of a case.
///
/// # Errors
/// `Unsupported` if weights or a sequence do not fit, or the GPU lacks a number format.
pub fn forecast(case: &ServingCase) -> Result<ServingForecast, NoCase> {
    let unsupported = |text: String| NoCase::Unsupported(text);
    let (plan, engine) = (&case.plan, &case.plan.engine);
    let mut instance = Instance::new(&case.model, plan, &case.cluster, &case.load, case.most)
        .map_err(|error| unsupported(error.to_string()))?;
    let served = instance.serve(&case.load).map_err(|error| match error {
        ServingError::TooLong { .. } => unsupported(format!("out of memory: {error}")),
        ServingError::Unknown(error) => unsupported(error.to_string()),
    })?;
    let replicas = case.replicas as f64;
    let assumed = case
        .stands_for
        .as_ref()
        .map(|printed| format!("the engine {printed} is forecast as {}", engine.name));
    Ok(ServingForecast {
        engine: engine.name.clone(),
        assumed: assumed.unwrap_or_default(),
        ttft: served.mean_ttft(),
        tpot: served.mean_tpot(),
        latency: if case.whole_batch { served.duration } else { served.mean_latency() },
        output_rate: served.output_rate() * replicas,
        total_rate: served.total_rate() * replicas,
        request_rate: served.request_rate() * replicas,
        gpus: plan.gpus() * case.replicas,
        memory: instance.most_memory(&served),
        capacity: instance.capacity,
        null: null_forecast(case, &instance),
    })
}
