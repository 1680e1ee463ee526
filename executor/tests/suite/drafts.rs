//! Small models and plans for them: every choice that a test does not make has a default.

use trainwright_executor::{
    AttentionBy, DeviceKind, LearningRate, Outcome, RunError, Settings, Tokens, train,
};
use trainwright_spec::cluster::Cluster;
use trainwright_spec::error::SpecError;
use trainwright_spec::experts::Routing;
use trainwright_spec::job::Job;
use trainwright_spec::mesh::Mesh;
use trainwright_spec::model::{Model, hf};
use trainwright_spec::plan::{Offload, Plan, Recompute, ScheduleChoice, StageBlocks};
use trainwright_spec::precision::Precision;
use trainwright_spec::schedule::{Custom, text};
use trainwright_spec::stack::Stack;

/// The choices of a plan.
#[derive(Debug, Clone)]
pub struct Draft {
    pub model: &'static str,
    /// Tensor, pipeline, data.
    pub mesh: [usize; 3],
    /// Rows of the grid that tensor ranks form; 1 for none.
    pub tensor_rows: usize,
    /// Ranks that share each sequence, and the neighbouring ones of them that exchange heads.
    pub context: [usize; 2],
    pub context_scheme: &'static str,
    /// Ranks that share the experts, the neighbouring ones of them in a node, ranks that share each expert.
    pub expert: [usize; 3],
    pub dispatcher: &'static str,
    /// Ranks that divide the state among them; 0 for all.
    pub shard: usize,
    pub schedule: &'static str,
    pub virtual_stages: usize,
    pub sequence_parallel: bool,
    pub data_sharding: &'static str,
    pub recompute: Recompute,
    pub micro_batch: usize,
    pub optimizer: &'static str,
    pub gradient_clipping: bool,
    pub precision: Precision,
    pub offload: Offload,
    pub steps: usize,
    pub device: &'static str,
    pub attention: Option<AttentionBy>,
    pub deterministic: bool,
    /// Whether the first stage has the embedding alone and the last the head.
    pub ends_alone: bool,
}

/// Sequences of a step.
pub const BATCH: usize = 8;
const BLOCKS: usize = 4;

/// GPT-2's architecture, 4 blocks of width 32, or LLaMA's with 2 key heads for 4 query heads. The vocabulary divides
/// by nothing.
pub fn model(name: &str) -> Model {
    let text = match name {
        "gpt" => {
            r#"{"model_type": "gpt2", "n_embd": 32, "n_head": 4, "n_layer": 4, "n_positions": 20, "vocab_size": 67,
                "resid_pdrop": 0.0, "embd_pdrop": 0.0, "attn_pdrop": 0.0}"#
        }
        "gpt-dropping" => {
            r#"{"model_type": "gpt2", "n_embd": 32, "n_head": 4, "n_layer": 4, "n_positions": 20, "vocab_size": 67,
                "resid_pdrop": 0.1, "embd_pdrop": 0.2, "attn_pdrop": 0.3}"#
        }
        "llama-dropping" => {
            r#"{"model_type": "llama", "hidden_size": 32, "num_attention_heads": 4, "num_key_value_heads": 2,
                "num_hidden_layers": 4, "intermediate_size": 48, "vocab_size": 67, "hidden_act": "silu",
                "tie_word_embeddings": false, "max_position_embeddings": 64, "attention_dropout": 0.5}"#
        }
        "mixtral" => {
            r#"{"model_type": "mixtral", "hidden_size": 32, "num_attention_heads": 4, "num_key_value_heads": 2,
                "num_hidden_layers": 4, "intermediate_size": 24, "vocab_size": 67, "hidden_act": "silu",
                "tie_word_embeddings": false, "max_position_embeddings": 64, "num_local_experts": 4,
                "num_experts_per_tok": 2, "sliding_window": null}"#
        }
        _ => {
            r#"{"model_type": "llama", "hidden_size": 32, "num_attention_heads": 4, "num_key_value_heads": 2,
                "num_hidden_layers": 4, "intermediate_size": 48, "vocab_size": 67, "hidden_act": "silu",
                "tie_word_embeddings": false, "max_position_embeddings": 64}"#
        }
    };
    hf::from_hugging_face(text, name).unwrap()
}

impl Draft {
    /// One rank.
    pub fn of(model: &'static str) -> Draft {
        Draft {
            model,
            mesh: [1, 1, 1],
            tensor_rows: 1,
            context: [1, 1],
            context_scheme: "ring",
            expert: [1, 1, 0],
            dispatcher: "all-to-all",
            shard: 0,
            schedule: "1f1b",
            virtual_stages: 1,
            sequence_parallel: false,
            data_sharding: "none",
            recompute: Recompute::None,
            micro_batch: 1,
            optimizer: "momentum",
            gradient_clipping: true,
            precision: Precision::Fp32,
            offload: Offload::default(),
            steps: 3,
            device: "cpu",
            attention: None,
            deterministic: false,
            ends_alone: false,
        }
    }

    fn mesh(&self) -> Mesh {
        let ([tensor, pipeline, data], [context, context_inner]) = (self.mesh, self.context);
        let [expert, expert_inner, expert_tensor] = self.expert;
        Mesh {
            context,
            context_inner,
            expert,
            expert_inner,
            expert_tensor: (expert_tensor > 0).then_some(expert_tensor),
            tensor_rows: self.tensor_rows,
            shard: (self.shard > 0).then_some(self.shard),
            ..Mesh::new(tensor, pipeline, data)
        }
    }

    /// The plan, which must be one.
    pub fn plan(&self) -> Plan {
        self.try_plan().unwrap_or_else(|error| panic!("{self:?}: {error}"))
    }

    /// The plan, if it is valid.
    pub fn try_plan(&self) -> Result<Plan, SpecError> {
        let [tensor, pipeline, data] = self.mesh;
        let stages = pipeline * self.virtual_stages;
        let ranks = tensor * pipeline * data * self.context[0];
        // The older one computes in no less than 16 bits.
        let node = if self.precision == Precision::Fp8 { "dgx-h100" } else { "dgx-a100" };
        let mut cluster = Cluster::from_name(&format!("{node}:{}", ranks.div_ceil(8))).unwrap();
        cluster.node.gpus.value = ranks.min(8);
        // What does not divide evenly goes to the first stages.
        let share = |stage: usize| match (self.ends_alone, stage) {
            (true, stage) if stage == 0 || stage + 1 == stages => 0,
            (true, stage) => BLOCKS / (stages - 2) + usize::from(stage <= BLOCKS % (stages - 2)),
            (false, stage) => BLOCKS / stages + usize::from(stage < BLOCKS % stages),
        };
        let plan = Plan {
            micro_batch: self.micro_batch,
            schedule: self.schedule(),
            virtual_stages: self.virtual_stages,
            sequence_parallel: self.sequence_parallel,
            tensor_scheme: if self.tensor_rows > 1 { "2d" } else { "1d" }.into(),
            context_scheme: self.context_scheme.into(),
            data_sharding: self.data_sharding.into(),
            stages: (0..stages).map(|stage| StageBlocks(vec![self.recompute; share(stage)])).collect(),
            state: Default::default(),
            offload: self.offload,
            data: Default::default(),
            mesh: self.mesh(),
            experts: Routing { dispatcher: self.dispatcher.into(), ..Routing::default() },
            job: Job {
                sequence: 16,
                global_batch: BATCH,
                precision: self.precision,
                optimizer: self.optimizer.into(),
                gradient_clipping: self.gradient_clipping,
                adapters: None,
            },
            stack: Stack::from_name("trainwright").unwrap(),
            cluster,
            model: model(self.model),
        };
        plan.check("draft")?;
        Ok(plan)
    }

    /// A schedule by its name, or the actions of each rank on a line.
    fn schedule(&self) -> ScheduleChoice {
        match self.schedule.contains('F') {
            true => {
                let lists = text::read(self.schedule, "draft").unwrap();
                ScheduleChoice::Actions(Box::new(Custom::new(lists).unwrap()))
            }
            false => self.schedule.into(),
        }
    }

    /// Some steps on made-up tokens.
    pub fn train(&self) -> Result<Outcome, RunError> {
        let device = DeviceKind::from_name(self.device).unwrap();
        let Draft { attention, deterministic, .. } = *self;
        let settings = Settings { device, attention, deterministic, ..settings(self.steps) };
        train(&self.plan(), &tokens(), &settings, &mut |_| {})
    }
}

pub fn tokens() -> Tokens {
    Tokens::synthetic(67, 1000, 5)
}

/// Large steps, so that a wrong gradient shows at once.
pub fn settings(steps: usize) -> Settings {
    Settings {
        steps,
        seed: 11,
        learning_rate: LearningRate { warmup: 2, ..LearningRate::constant(0.02) },
        weight_decay: 0.1,
        adam_epsilon: 1e-3,
        return_weights: true,
        ..Settings::default()
    }
}
