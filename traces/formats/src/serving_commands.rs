//! Command lines that start an instance of a serving plan in vLLM, SGLang or TensorRT-LLM.
//!
//! Each flag names its source in the tool's documentation. What a tool cannot do is refused; what a flag cannot say, such as the
//! format of a checkpoint, is a remark.
//!
//! ```
//! use trainwright_formats::serving_commands::{Duty, Instance};
//! use trainwright_spec::serving::{Engine, ServingPlan};
//! let plan = ServingPlan::new(Engine::from_name("vllm-v1")?).with_tensor(4);
//! let command = Instance { model: "meta-llama/Llama-3.1-70B", plan: &plan, duty: Duty::Whole, nodes: 1 }.command()?;
//! assert!(command.text().starts_with("vllm serve meta-llama/Llama-3.1-70B --tensor-parallel-size 4"));
//! # Ok::<(), Box<dyn std::error::Error>>(())
//! ```

mod sglang;
mod tensorrt_llm;
mod vllm;

use thiserror::Error;
use trainwright_spec::serving::ServingPlan;

/// What an instance does of each request.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Duty {
    /// All of it.
    Whole,
    /// The prompt and the first token.
    Prefill,
    /// The tokens after the first.
    Decode,
}

/// An instance to start.
#[derive(Debug, Clone, Copy)]
pub struct Instance<'a> {
    /// The model: its name on Hugging Face, or the folder of a checkpoint.
    pub model: &'a str,
    /// The plan of the instance.
    pub plan: &'a ServingPlan,
    /// What it does.
    pub duty: Duty,
    /// Nodes that its GPUs are on.
    pub nodes: usize,
}

/// A flag of a command.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Flag {
    /// The flag.
    pub name: &'static str,
    /// Its value; `None` for a switch.
    pub value: Option<String>,
    /// Where the tool documents it.
    pub source: &'static str,
}

/// A command with what it needs.
#[derive(Debug, Clone, PartialEq, Eq, Default)]
pub struct Command {
    /// Program and model.
    pub program: Vec<String>,
    /// Its flags.
    pub flags: Vec<Flag>,
    /// A file that it reads: name and content.
    pub file: Option<(&'static str, String)>,
    /// What no flag says.
    pub remarks: Vec<String>,
}

/// What a tool cannot do.
#[derive(Debug, Clone, PartialEq, Eq, Error)]
#[error("`{key}` is {value}: {allowed}")]
pub struct NotExpressible {
    /// The key of the plan.
    pub key: &'static str,
    /// Its value.
    pub value: String,
    /// What the tool can do.
    pub allowed: String,
}

/// A tool: the engines of the catalog that it is, and its writer.
struct Tool {
    engines: &'static [&'static str],
    write: fn(&Instance) -> Result<Command, NotExpressible>,
}

const TOOLS: [Tool; 3] = [
    Tool { engines: &["vllm-v1", "vllm-v0"], write: vllm::write },
    Tool { engines: &["sglang"], write: sglang::write },
    Tool { engines: &["tensorrt-llm"], write: tensorrt_llm::write },
];

/// The engines that have a command line.
pub fn engines() -> impl Iterator<Item = &'static str> {
    TOOLS.iter().flat_map(|tool| tool.engines.iter().copied())
}

impl Instance<'_> {
    /// The command that starts it with its plan's engine.
    ///
    /// # Errors
    /// `NotExpressible` if the engine has no command line here, or cannot do what the plan says.
    pub fn command(&self) -> Result<Command, NotExpressible> {
        let name = self.plan.engine.name.as_str();
        match TOOLS.iter().find(|tool| tool.engines.contains(&name)) {
            Some(tool) => Ok((tool.write)(self)?.remark(self.spread())),
            None => {
                let known = engines().collect::<Vec<_>>().join(", ");
                Err(refuse("engine", name, format!("engines with a command line are {known}")))
            }
        }
    }

    /// The remark that several nodes take part; `None` if one does.
    fn spread(&self) -> Option<String> {
        let nodes = self.nodes;
        (nodes > 1).then(|| format!("on each of {nodes} nodes, with the tool's options for several nodes"))
    }

    /// The remark that the checkpoint must have a format which no flag makes; `None` if a flag or any checkpoint will do.
    fn checkpoint(&self, made: &[&str]) -> Option<String> {
        let (weights, experts) = (self.plan.weights.as_str(), self.plan.expert_weights.as_str());
        if weights == experts {
            return (!made.contains(&weights))
                .then(|| format!("the checkpoint must have weights in {weights}"));
        }
        Some(format!("the checkpoint must have weights in {weights} and experts in {experts}"))
    }

    /// Whether the cache has 8 bits.
    fn has_small_cache(&self) -> Result<bool, NotExpressible> {
        match self.plan.cache.as_str() {
            "bfloat16" => Ok(false),
            "fp8" => Ok(true),
            other => Err(refuse("cache", other, "it can be bfloat16 or fp8".into())),
        }
    }
}

fn refuse(key: &'static str, value: impl ToString, allowed: String) -> NotExpressible {
    NotExpressible { key, value: value.to_string(), allowed }
}

impl Command {
    fn new(program: &[&str]) -> Self {
        let program = program.iter().map(|word| quoted(word)).collect();
        Self { program, ..Self::default() }
    }

    fn with(mut self, name: &'static str, value: impl ToString, source: &'static str) -> Self {
        self.flags.push(Flag { name, value: Some(quoted(&value.to_string())), source });
        self
    }

    fn switch(mut self, name: &'static str, source: &'static str) -> Self {
        self.flags.push(Flag { name, value: None, source });
        self
    }

    /// The flags of a degree that is 1 without them.
    fn degree(self, name: &'static str, degree: usize, source: &'static str) -> Self {
        if degree > 1 { self.with(name, degree, source) } else { self }
    }

    fn remark(mut self, remark: Option<String>) -> Self {
        self.remarks.extend(remark);
        self
    }

    /// One line that a shell runs.
    pub fn text(&self) -> String {
        let mut words = self.program.clone();
        for flag in &self.flags {
            words.push(flag.name.into());
            words.extend(flag.value.clone());
        }
        words.join(" ")
    }

    /// What a shell runs: its file, remarks as comments, and the command.
    pub fn script(&self) -> String {
        let mut script: String = self.remarks.iter().map(|remark| format!("# {remark}\n")).collect();
        if let Some((name, content)) = &self.file {
            script += &format!("cat > {name} <<'EOF'\n{content}EOF\n");
        }
        script + &self.text() + "\n"
    }
}

/// A word as a shell takes it for one.
fn quoted(word: &str) -> String {
    let plain = |char: char| char.is_ascii_alphanumeric() || "-_./:=,+@%".contains(char);
    match !word.is_empty() && word.chars().all(plain) {
        true => word.into(),
        false => format!("'{}'", word.replace('\'', r"'\''")),
    }
}

#[cfg(test)]
mod tests;
