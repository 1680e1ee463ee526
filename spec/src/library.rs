//! Libraries of inference kernels: coefficients by which the times of their kernels follow from a GPU's figures.
//!
//! The catalog's folder `libraries` holds one file for each; `trainwright fit --kernels` writes these files. Nothing here
//! knows what a coefficient means: the families of the simulator (`sim/src/libraries`) do.

use crate::catalog;
use crate::error::SpecError;
use crate::sourced::Sourced;
use crate::units::Bytes;
use serde::{Deserialize, Serialize};
use std::collections::BTreeMap;
use std::sync::LazyLock;

/// A library: an inference engine, or a library of collectives.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct Library {
    /// Name in the catalog.
    pub name: String,
    /// Where the measurements are from.
    pub source: String,
    /// Its kernels.
    pub kernels: Vec<FittedKernel>,
}

/// Coefficients of one kernel on one generation of GPUs.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct FittedKernel {
    /// The family of kernels whose formula takes the coefficients.
    pub family: String,
    /// The library's name of the kernel; `any` for all of them together.
    pub kernel: String,
    /// The number format of its operands as tables spell it (`bfloat16`, `fp8`, …).
    pub format: String,
    /// The GPUs it was fitted on: a generation (`hopper`), or `any`.
    pub on: String,
    /// Measurements that it was fitted to.
    pub rows: usize,
    /// Median error of its times against them, 0.1 for 10 %.
    pub median_error: f64,
    /// By name, in the units that the family states.
    pub coefficients: BTreeMap<String, f64>,
}

impl Library {
    /// Every library of the catalog, in alphabetical order.
    pub fn all() -> &'static [Library] {
        static ALL: LazyLock<Vec<Library>> = LazyLock::new(|| {
            let read = |name| Library::from_toml(catalog::text("libraries", name).ok()?, name).ok();
            catalog::names("libraries")
                .into_iter()
                .map(|name| read(name).expect("the catalog can be read"))
                .collect()
        });
        &ALL
    }

    /// Reads a file as the catalog has them; `origin` names it in messages.
    ///
    /// # Errors
    /// `Syntax` for a fault of the file.
    pub fn from_toml(text: &str, origin: &str) -> Result<Self, SpecError> {
        toml::from_str(text).map_err(|error| SpecError::Syntax {
            origin: origin.into(),
            message: error.message().replace('\n', " "),
        })
    }
}

impl Library {
    /// As the catalog has it, a kernel each line.
    pub fn to_toml(&self) -> String {
        let quoted = |text: &str| toml::Value::from(text).to_string();
        let kernel = |kernel: &FittedKernel| {
            let coefficient = |(name, value): (&String, &f64)| format!("{name} = {value:?}");
            let coefficients: Vec<String> = kernel.coefficients.iter().map(coefficient).collect();
            format!(
                "  {{ family = {}, kernel = {}, format = {}, on = {}, rows = {}, median_error = {:?}, \
                 coefficients = {{ {} }} }},\n",
                quoted(&kernel.family),
                quoted(&kernel.kernel),
                quoted(&kernel.format),
                quoted(&kernel.on),
                kernel.rows,
                kernel.median_error,
                coefficients.join(", ")
            )
        };
        let kernels: String = self.kernels.iter().map(kernel).collect();
        let [name, source] = [&self.name, &self.source].map(|text| quoted(text));
        format!(
            "# Written by `trainwright fit --kernels`.\nname = {name}\nsource = {source}\nkernels = [\n{kernels}]\n"
        )
    }
}

/// Size of the second-level cache of a GPU of the catalog; `None` if it is not known.
pub fn cache(gpu: &str) -> Option<Bytes> {
    static CACHES: LazyLock<BTreeMap<String, Sourced<Bytes>>> = LazyLock::new(|| {
        toml::from_str(catalog::file("caches.toml")).expect("the catalog's table is one of sizes")
    });
    CACHES.get(gpu).map(|cache| cache.value)
}

/// The model of the catalog that tables of served models call `name`, see the file; `None` if there is none.
pub fn served_model(name: &str) -> Option<&'static str> {
    static MODELS: LazyLock<BTreeMap<String, String>> = LazyLock::new(|| {
        toml::from_str(catalog::file("served-names.toml")).expect("the catalog's table is one of names")
    });
    MODELS.get(name).map(String::as_str)
}

/// The formats of the published weights of a model that a table calls 8-bit or 4-bit: for `fp8`, `fp4` and so on, the format of
/// products and that of the experts' weights. `None` if nothing is said of the model.
pub fn served_formats(model: &str, precision: &str) -> Option<[&'static str; 2]> {
    type Formats = BTreeMap<String, BTreeMap<String, [String; 2]>>;
    static FORMATS: LazyLock<Formats> = LazyLock::new(|| {
        toml::from_str(catalog::file("served-formats.toml")).expect("the catalog's table is one of formats")
    });
    let formats = FORMATS.get(model)?.get(precision)?;
    Some([&formats[0], &formats[1]].map(String::as_str))
}

/// The cluster of the catalog whose GPUs a table of measurements calls `name`, as in `A100 SXM`; `None` if there is none.
pub fn machine(name: &str) -> Option<&'static str> {
    static MACHINES: LazyLock<BTreeMap<String, String>> = LazyLock::new(|| {
        toml::from_str(catalog::file("machines.toml")).expect("the catalog's table is one of names")
    });
    MACHINES.get(name).map(String::as_str)
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::cluster::Cluster;

    #[test]
    fn caches_are_of_gpus_of_the_catalog() {
        let table: BTreeMap<String, Sourced<Bytes>> = toml::from_str(catalog::file("caches.toml")).unwrap();
        for (gpu, cache) in table {
            assert!(catalog::names("gpus").contains(&gpu.as_str()), "{gpu} is not in the catalog");
            assert!(!cache.source.is_empty(), "{gpu} has no source");
        }
        assert_eq!(cache("a100-80gb-sxm"), Some(Bytes::new(40e6)));
        assert_eq!(cache("z9"), None);
    }

    #[test]
    fn machines_are_clusters_of_the_catalog() {
        let table: BTreeMap<String, String> = toml::from_str(catalog::file("machines.toml")).unwrap();
        for (name, cluster) in table {
            assert!(Cluster::from_name(&cluster).is_ok(), "{name}: no cluster {cluster}");
        }
        assert_eq!(machine("A100 SXM"), Some("dgx-a100"));
        assert_eq!(machine("Z9"), None);
    }

    #[test]
    fn served_models_are_of_the_catalog() {
        let table: BTreeMap<String, String> = toml::from_str(catalog::file("served-names.toml")).unwrap();
        for (name, model) in table {
            assert!(crate::model::preset::preset(&model).is_ok(), "{name}: no model {model}");
        }
        assert_eq!(served_model("llama-3.1-70b"), Some("llama-3-70b"));
        assert_eq!(served_formats("deepseek-v3", "fp8"), Some(["fp8_block"; 2]));
        assert_eq!(served_formats("llama-3-8b", "fp8"), None);
    }

    #[test]
    fn libraries_name_their_source() {
        assert!(!Library::all().is_empty());
        for library in Library::all() {
            assert!(!library.source.is_empty() && !library.kernels.is_empty(), "{}", library.name);
            assert_eq!(&Library::from_toml(&library.to_toml(), "written").unwrap(), library);
        }
    }
}
