//! Serving a model: the engines of the catalog, and the plan of one instance.
//!
//! ```
//! use trainwright_spec::serving::{Engine, ServingPlan};
//! let engine = Engine::from_name("vllm-v1")?;
//! let plan = ServingPlan::new(engine).with_tensor(4);
//! assert_eq!(plan.gpus(), 4);
//! # Ok::<(), trainwright_spec::error::SpecError>(())
//! ```

mod engine;
mod file;
mod ranges;

pub use engine::{Batching, Engine, HostWork, SmallKernels};
pub use file::ServingFile;
pub use ranges::{ServingRange, ServingRanges};

use serde::{Deserialize, Serialize};

/// How one instance of a model is served. Several instances are replicas: they share nothing.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct ServingPlan {
    /// The engine.
    pub engine: Engine,
    /// Ranks that share each product of attention, and of the feed-forward layers where experts do not.
    pub tensor: usize,
    /// Stages of blocks.
    pub pipeline: usize,
    /// Ranks that the experts are distributed over, out of `tensor × attention_data`; the rest of these shares each expert.
    pub expert: usize,
    /// Groups of tensor ranks that attend to requests of their own and share the experts.
    pub attention_data: usize,
    /// Format of the weights of products as kernel tables spell it: `bfloat16`, `fp8`, `fp8_block`, `nvfp4`, `int4_wo`, …
    pub weights: String,
    /// Format of the experts' weights.
    pub expert_weights: String,
    /// Format of keys and values in the cache.
    pub cache: String,
    /// Whether requests ask for the log-probability of each token.
    #[serde(default, skip_serializing_if = "std::ops::Not::not")]
    pub log_probs: bool,
}

impl ServingPlan {
    /// One GPU, 16-bit weights and cache.
    pub fn new(engine: Engine) -> Self {
        let format = || String::from("bfloat16");
        Self {
            engine,
            tensor: 1,
            pipeline: 1,
            expert: 1,
            attention_data: 1,
            weights: format(),
            expert_weights: format(),
            cache: format(),
            log_probs: false,
        }
    }

    /// The same over that many tensor ranks.
    pub fn with_tensor(self, tensor: usize) -> Self {
        Self { tensor, ..self }
    }

    /// GPUs of the instance.
    pub fn gpus(&self) -> usize {
        self.ranks_of_stage() * self.pipeline
    }

    /// GPUs of one pipeline stage.
    pub fn ranks_of_stage(&self) -> usize {
        self.tensor * self.attention_data
    }

    /// Ranks that share each expert.
    pub fn expert_tensor(&self) -> usize {
        (self.ranks_of_stage() / self.expert.max(1)).max(1)
    }
}
