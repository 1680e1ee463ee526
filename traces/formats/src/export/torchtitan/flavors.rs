//! torchtitan's models that are models of the catalog, recognised by their shapes.

use crate::details::{Details, GPT_OSS_SCALING, RopeScaling, Yarn};
use crate::export::Request;
use crate::export::coverage::Coverage;
use trainwright_spec::model::{Model, preset};

/// A model of the catalog in torchtitan.
pub struct Flavor {
    /// Its name in the catalog.
    pub preset: &'static str,
    /// The model and its flavor in torchtitan.
    pub name: (&'static str, &'static str),
    /// θ of rotary positions, where it is not that of the catalog.
    pub rotary_base: Option<f64>,
    /// How they are scaled.
    pub scaling: RopeScaling,
    /// Whether version 0.2 has it.
    pub second: bool,
    /// Whether version 0.2 runs it in a pipeline.
    pub second_pipeline: bool,
    /// Whether plans of it are written; others are read alone.
    pub written: bool,
}

const LLAMA: RopeScaling = RopeScaling::Llama { factor: 8.0 };
const DEEPSEEK: RopeScaling = RopeScaling::Yarn(Yarn {
    factor: 40.0,
    original: 4096,
    beta_fast: 32.0,
    beta_slow: 1.0,
    mscale: 1.0,
    mscale_all_dim: 1.0,
});

const fn flavor(preset: &'static str, name: (&'static str, &'static str), scaling: RopeScaling) -> Flavor {
    Flavor { preset, name, rotary_base: None, scaling, second: true, second_pipeline: true, written: true }
}

/// Those of versions 0.2.2 and 0.3.0, `torchtitan/models/*/__init__.py`.
pub static FLAVORS: &[Flavor] = &[
    Flavor { second: false, ..flavor("llama-3.2-1b", ("llama3", "1B"), LLAMA) },
    Flavor { second: false, ..flavor("llama-3.2-3b", ("llama3", "3B"), LLAMA) },
    flavor("llama-3-8b", ("llama3", "8B"), LLAMA),
    flavor("llama-3-70b", ("llama3", "70B"), LLAMA),
    flavor("llama-3-405b", ("llama3", "405B"), LLAMA),
    flavor("deepseek-v2", ("deepseek_v3", "236B"), DEEPSEEK),
    flavor("deepseek-v3", ("deepseek_v3", "671B"), DEEPSEEK),
    Flavor { written: false, ..flavor("gpt-oss-20b", ("gpt_oss", "20b"), GPT_OSS_SCALING) },
    Flavor { written: false, ..flavor("gpt-oss-120b", ("gpt_oss", "120b"), GPT_OSS_SCALING) },
    Flavor { second_pipeline: false, ..flavor("qwen3-8b", ("qwen3", "8B"), RopeScaling::None) },
    Flavor { second_pipeline: false, ..flavor("qwen3-32b", ("qwen3", "32B"), RopeScaling::None) },
    Flavor { second_pipeline: false, ..flavor("qwen3-30b-a3b", ("qwen3", "30B-A3B"), RopeScaling::None) },
    Flavor {
        second_pipeline: false,
        rotary_base: Some(5e6),
        ..flavor("qwen3-235b-a22b", ("qwen3", "235B-A22B"), RopeScaling::None)
    },
];

/// The flavor that is written for the shape of this model.
pub fn of_shape(model: &Model) -> Option<&'static Flavor> {
    known(model).filter(|flavor| flavor.written)
}

/// Why there is none.
pub fn lacking(model: &Model) -> &'static str {
    match known(model) {
        Some(Flavor { written: false, .. }) => "its flavor is read, not written",
        _ => "torchtitan has no flavor of this shape: one of this name is needed in its registry",
    }
}

/// The flavor whose catalog model has the shape of this one.
fn known(model: &Model) -> Option<&'static Flavor> {
    let equal = |flavor: &&Flavor| {
        let known = preset::preset(flavor.preset);
        known.is_ok_and(|known| Model { name: model.name.clone(), ..known } == *model)
    };
    FLAVORS.iter().find(equal)
}

/// Refuses a flavor whose rotary positions are not the model's. `changes` are those that the files can make.
pub fn check_positions(request: &Request, flavor: &Flavor, coverage: &mut Coverage) {
    let model = &request.plan.model;
    let base = model.blocks.first().and_then(|run| run.block.attention.rotary_base).unwrap_or(1e4);
    if let Some(other) = flavor.rotary_base.filter(|other| *other != base) {
        coverage.refuse("model.blocks", format!("θ of rotary positions is {other} there"));
    }
    let Details { rope_scaling, .. } = request.details();
    if request.details.is_some() && rope_scaling != flavor.scaling {
        let (name, kind) = flavor.name;
        let why = format!("{name} {kind} scales rotary positions otherwise: {}", words(flavor.scaling));
        coverage.refuse("model.blocks", why);
    }
}

fn words(scaling: RopeScaling) -> String {
    match scaling {
        RopeScaling::None => "not at all".into(),
        RopeScaling::Llama { factor } => format!("as LLaMA 3.1, by {factor}"),
        RopeScaling::Linear { factor } => format!("all by {factor}"),
        RopeScaling::Yarn(Yarn { factor, mscale, .. }) => format!("YaRN by {factor} with mscale {mscale}"),
    }
}
