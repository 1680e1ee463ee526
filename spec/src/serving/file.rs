//! A serving plan as a file.

use super::{Engine, ServingPlan};
use crate::cluster::{self, Cluster, Fault};
use crate::error::SpecError;
use crate::limits::MOST;
use crate::model::Model;
use crate::plan::{check_model, named, one_line};
use serde::{Deserialize, Serialize};

/// Equal instances that serve a model. What the catalog has is written by its name: always the engine, of which the file says what
/// differs, and model and cluster where they are its entries.
///
/// ```
/// use trainwright_spec::serving::ServingFile;
/// let text = "instances = 2\nmodel = \"llama-3-8b\"\ncluster = \"dgx-h100\"\nengine = \"vllm-v1\"\nmemory_share = 0.6\n\
///             tensor = 4\nweights = \"bfloat16\"\nexpert_weights = \"bfloat16\"\ncache = \"bfloat16\"\n";
/// let file = ServingFile::from_toml(text, "generation.toml")?;
/// let plan = file.plan("generation.toml")?;
/// assert_eq!((plan.gpus(), plan.engine.batching.memory_share.value), (4, 0.6));
/// # Ok::<(), trainwright_spec::error::SpecError>(())
/// ```
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct ServingFile {
    /// How many instances there are.
    pub instances: usize,
    /// The engine's name in the catalog.
    pub engine: String,
    /// The part of a GPU's memory that weights, activations and cache may fill: above 0, at most 1.
    pub memory_share: f64,
    /// Ranks that share each product of attention, and of the feed-forward layers where experts do not.
    pub tensor: usize,
    /// Stages of blocks.
    #[serde(default = "one", skip_serializing_if = "is_one")]
    pub pipeline: usize,
    /// Ranks that the experts are distributed over.
    #[serde(default = "one", skip_serializing_if = "is_one")]
    pub expert: usize,
    /// Groups of tensor ranks that attend to requests of their own and share the experts.
    #[serde(default = "one", skip_serializing_if = "is_one")]
    pub attention_data: usize,
    /// Format of the weights, as kernel tables spell it.
    pub weights: String,
    /// Format of the experts' weights.
    pub expert_weights: String,
    /// Format of keys and values in the cache.
    pub cache: String,
    /// Whether requests ask for the log-probability of each token.
    #[serde(default, skip_serializing_if = "std::ops::Not::not")]
    pub log_probs: bool,
    /// On what: the GPUs of all instances.
    #[serde(deserialize_with = "named::read", serialize_with = "named::write")]
    pub cluster: Cluster,
    /// The model that is served.
    #[serde(deserialize_with = "named::read", serialize_with = "named::write")]
    pub model: Model,
}

fn one() -> usize {
    1
}

fn is_one(count: &usize) -> bool {
    *count == 1
}

impl ServingFile {
    /// The file of a plan whose engine is the catalog's but for the memory's share.
    pub fn new(instances: usize, plan: &ServingPlan, model: &Model, cluster: &Cluster) -> Self {
        Self {
            instances,
            engine: plan.engine.name.clone(),
            memory_share: plan.engine.batching.memory_share.value,
            tensor: plan.tensor,
            pipeline: plan.pipeline,
            expert: plan.expert,
            attention_data: plan.attention_data,
            weights: plan.weights.clone(),
            expert_weights: plan.expert_weights.clone(),
            cache: plan.cache.clone(),
            log_probs: plan.log_probs,
            cluster: cluster.clone(),
            model: model.clone(),
        }
    }

    /// Reads a file and checks each value by itself. `origin` names it in messages.
    ///
    /// # Errors
    /// `Syntax` with line and column, or `BadValue`.
    pub fn from_toml(text: &str, origin: &str) -> Result<Self, SpecError> {
        let file: Self = toml::from_str(text)
            .map_err(|error| SpecError::Syntax { origin: origin.into(), message: one_line(&error, text) })?;
        let checked = file.check_numbers().and_then(|()| check_model(&file.model)).and_then(|()| {
            cluster::check(&file.cluster)
                .map_err(|fault| Fault { key: format!("cluster.{}", fault.key), ..fault })
        });
        checked.map_err(|Fault { key, value, allowed }| SpecError::BadValue {
            origin: origin.into(),
            key,
            value,
            allowed,
        })?;
        Ok(file)
    }

    fn check_numbers(&self) -> Result<(), Fault> {
        let counts = [
            ("instances", self.instances),
            ("tensor", self.tensor),
            ("pipeline", self.pipeline),
            ("expert", self.expert),
            ("attention_data", self.attention_data),
        ];
        let fault =
            |key: &str, value: String, allowed: String| Err(Fault { key: key.into(), value, allowed });
        if let Some((key, count)) = counts.into_iter().find(|(_, count)| !(1..=MOST).contains(count)) {
            return fault(key, count.to_string(), format!("it should be from 1 to {MOST}"));
        }
        match self.memory_share > 0.0 && self.memory_share <= 1.0 {
            true => Ok(()),
            false => fault(
                "memory_share",
                self.memory_share.to_string(),
                "it should be above 0 and at most 1".into(),
            ),
        }
    }

    /// Writes a file that reads back equal.
    pub fn to_toml(&self) -> String {
        toml::to_string(self).expect("a serving plan has only tables, text and numbers")
    }

    /// The plan of an instance. `origin` names the file in messages.
    ///
    /// # Errors
    /// `UnknownName` of the engine.
    pub fn plan(&self, origin: &str) -> Result<ServingPlan, SpecError> {
        let mut engine = Engine::from_name(&self.engine)?;
        if engine.batching.memory_share.value != self.memory_share {
            engine.batching.memory_share.value = self.memory_share;
            engine.batching.memory_share.source = origin.into();
        }
        Ok(ServingPlan {
            engine,
            tensor: self.tensor,
            pipeline: self.pipeline,
            expert: self.expert,
            attention_data: self.attention_data,
            weights: self.weights.clone(),
            expert_weights: self.expert_weights.clone(),
            cache: self.cache.clone(),
            log_probs: self.log_probs,
        })
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::model::preset::preset;

    fn file() -> ServingFile {
        let plan = ServingPlan::new(Engine::from_name("vllm-v1").unwrap()).with_tensor(2);
        ServingFile::new(4, &plan, &preset("llama-3-8b").unwrap(), &Cluster::from_name("dgx-h100").unwrap())
    }

    #[test]
    fn a_file_reads_back_equal_and_names_what_the_catalog_has() {
        let mut file = file();
        let text = file.to_toml();
        assert!(text.lines().count() < 12 && text.contains("model = \"llama-3-8b\""), "{text}");
        assert_eq!(ServingFile::from_toml(&text, "").unwrap(), file);
        let plan = file.plan("").unwrap();
        assert_eq!(ServingFile::new(4, &plan, &file.model, &file.cluster), file);
        file.cluster = file.cluster.with_fewer_gpus(4).unwrap();
        file.memory_share = 0.5;
        let text = file.to_toml();
        assert!(text.contains("[cluster.node.gpu]"), "{text}");
        let back = ServingFile::from_toml(&text, "").unwrap();
        assert_eq!(back, file);
        assert_eq!(back.plan("").unwrap().engine.batching.memory_share.value, 0.5);
    }

    #[test]
    fn what_is_wrong_is_one_line_with_its_key() {
        let text = file().to_toml();
        let check = |from: &str, to: &str, expected: &str| {
            assert!(text.contains(from), "{text}");
            let read = ServingFile::from_toml(&text.replace(from, to), "a.toml");
            let error = read.and_then(|file| file.plan("a.toml")).unwrap_err().to_string();
            assert!(error.contains(expected) && error.lines().count() == 1, "{error}");
        };
        check("tensor = 2", "tensor = 0", "a.toml: `tensor` is 0; it should be from 1 to 10000000");
        check("tensor = 2", "tenser = 2", "a.toml: line ");
        check("memory_share = 0.9", "memory_share = 1.5", "`memory_share` is 1.5; it should be above 0");
        check("memory_share = 0.9", "memory_share = nan", "`memory_share` is NaN");
        check("vllm-v1", "vlm-v1", "unknown engine `vlm-v1`");
        check("llama-3-8b", "llama-3-8", "unknown model `llama-3-8`");
        check("instances = 4", "", "missing field `instances`");
    }
}
