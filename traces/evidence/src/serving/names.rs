//! What tables call models, GPUs and number formats.

use trainwright_spec::cluster::Cluster;
use trainwright_spec::library;
use trainwright_spec::model::Model;
use trainwright_spec::model::preset::preset;
use trainwright_spec::precision::Precision;

/// Endings of models' names that say nothing of their shape.
const ENDINGS: [&str; 9] = ["-hf", "-instruct", "-chat", "-fp8", "-fp4", "-nvfp4", "-bf16", "-mxfp4", "-awq"];

/// The model that a table calls so; `None` if it is not known.
pub fn model(name: &str) -> Option<Model> {
    let name = name.to_lowercase();
    let mut name =
        name.rsplit_once('/').filter(|(_, end)| end.len() > 2).map_or(name.as_str(), |(_, end)| end);
    while let Some(shorter) = ENDINGS.iter().find_map(|ending| name.strip_suffix(ending)) {
        name = shorter;
    }
    let known = library::served_model(name).unwrap_or(name);
    preset(known).ok()
}

/// The cluster with the GPUs that a table calls so, as many nodes of it as `gpus` need; `None` if they are not known.
pub fn cluster(name: &str, gpus: usize) -> Option<Cluster> {
    let plain = name.split(" (").next().unwrap_or(name).trim();
    let found = library::machine(name).or_else(|| library::machine(plain))?;
    let one = Cluster::from_name(found).ok()?;
    let per_node = one.node.gpus.value;
    match gpus.div_ceil(per_node) {
        0 | 1 => Some(one),
        nodes => Cluster::from_name(&format!("{found}:{nodes}")).ok(),
    }
}

/// The formats of products and of experts' weights, as kernel tables spell them; `None` if the precision is not known. Where the
/// matrix units have none of few bits, weights are widened before the product.
pub fn formats(precision: &str, model: &Model, cluster: &Cluster) -> Option<[&'static str; 2]> {
    let has = |precision| cluster.node.gpu.peak.contains_key(&precision);
    let precision = precision.to_lowercase();
    let first = precision.split([' ', ',', '(']).next().unwrap_or_default();
    if let Some(published) = library::served_formats(&model.name, first)
        && (has(Precision::Fp8) || published.iter().all(|format| format.ends_with("_wo")))
    {
        // Units of 4 bits take activations of 8 bits to weights of 4.
        let widened = |format| match format {
            "w4a16_mxfp4" if has(Precision::NvFp4) => "w4a8_mxfp4_mxfp8",
            format => format,
        };
        return Some(published.map(widened));
    }
    Some(match first {
        "" | "bf16" | "fp16" | "f16" | "half" | "bfloat16" | "float16" => ["bfloat16"; 2],
        "fp8" | "w8a8" if has(Precision::Fp8) => ["fp8"; 2],
        "fp4" | "nvfp4" | "mxfp4" if has(Precision::NvFp4) => ["nvfp4"; 2],
        "fp8" | "w8a8" | "int8" => ["int8_wo"; 2],
        "fp4" | "nvfp4" | "mxfp4" | "int4" | "uint4" | "w4a16" | "awq" | "gptq" | "q4_k_m" | "4-bit" => {
            ["int4_wo"; 2]
        }
        _ => return None,
    })
}
