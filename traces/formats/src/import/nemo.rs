//! NeMo: the YAML of `megatron_gpt_pretraining.py` (NeMo 1), and overrides of a NeMo 2 recipe, one a line.

use super::tables::{Tables, scalar, set};
use super::{Imported, Importer, Request, megatron_lm, megatron_yaml};
use serde_json::Value;
use trainwright_spec::error::SpecError;

/// NeMo.
pub struct NeMo;

impl Importer for NeMo {
    fn name(&self) -> &'static str {
        "nemo"
    }

    fn summary(&self) -> &'static str {
        "NeMo 1's YAML of Megatron GPT, or overrides of a NeMo 2 recipe with --model"
    }

    fn stack(&self) -> &'static str {
        "megatron-core"
    }

    fn draft(&self, request: &Request) -> Result<Imported, SpecError> {
        let lines =
            || request.text.lines().map(str::trim).filter(|line| !line.is_empty() && !line.starts_with('#'));
        let overrides = lines().all(|line| line.contains('=') && !line.contains(": "));
        let tables = match overrides {
            true => {
                request.given_model("a NeMo 2 recipe")?;
                let mut root = Value::Object(Default::default());
                for (path, value) in lines().filter_map(|line| line.split_once('=')) {
                    let value = match value {
                        "True" => Value::Bool(true),
                        "False" => Value::Bool(false),
                        text => scalar(text),
                    };
                    set(&mut root, path, value);
                }
                Tables::from_value(request, root)?
            }
            false => Tables::from_yaml(request)?.interpolated(),
        };
        let given = megatron_yaml::of_tables(request, &tables);
        let mut further = precision(request, &tables)?;
        // NeMo 1 clips by the trainer's option, and names the optimizer by its class.
        if tables.number("trainer.gradient_clip_val")? == Some(0.0) {
            further.push(("--clip-grad", "0"));
        }
        if tables.text("model.optim.name")?.is_some_and(|name| name.contains("distributed")) {
            further.push(("--use-distributed-optimizer", ""));
        }
        if !overrides && tables.get("model.tokenizer.type").is_some_and(|kind| kind == "GPT2BPETokenizer") {
            further.push(("--tokenizer-type", "GPT2BPETokenizer"));
        }
        let given = given.with(further);
        // Said by the cluster, or read above.
        for flag in ["--devices", "--num-nodes", "--precision", "--gradient-clip-val"] {
            given.has(flag);
        }
        megatron_lm::read(request, &given)
    }
}

/// The trainer's precision as arguments.
fn precision(request: &Request, tables: &Tables) -> Result<Vec<(&'static str, &'static str)>, SpecError> {
    let plugin = tables.get("trainer.plugins.precision").or(tables.get("trainer.precision"));
    let text = plugin.map(|value| value.as_str().map_or_else(|| value.to_string(), str::to_string));
    let mut flags = match text.as_deref() {
        Some("bf16" | "bf16-mixed") => vec![("--bf16", "")],
        Some("16" | "16-mixed") => vec![("--fp16", ""), ("--accumulate-allreduce-grads-in-fp32", "")],
        None | Some("32" | "32-true") => Vec::new(),
        Some(other) => return Err(request.bad_text("trainer.precision", other, "bf16, 16 or 32")),
    };
    if tables.get("trainer.plugins.fp8").is_some() {
        flags.extend([("--fp8-format", "hybrid"), ("--fp8-recipe", "delayed")]);
    }
    Ok(flags)
}
