//! Factors on the few numbers of the catalog that measured step times may correct, and how far forecasts are
//! off with them.
//!
//! ```toml
//! source = "fit of runs.csv, 120 rows"
//! band = { low = 0.9, high = 1.15 }     # a tenth of the steps took less than 0.9 of the forecast, a tenth more than 1.15
//!
//! [[factors]]
//! parameter = "matrix"                  # a file of spec/catalog/parameters
//! of = "ampere"                         # whose
//! factor = 0.94
//!
//! [[factors]]
//! parameter = "matrix"
//! of = "any"                            # of each owner without a factor: the mean of the owners that were seen
//! factor = 0.97
//! ```
//!
//! Nothing here knows how factors are found.

pub mod ranges;
pub mod residuals;

use self::ranges::{Distribution, Range};
use self::residuals::{Quantity, Residuals, Traits};
use crate::catalog;
use crate::cluster::{Cluster, Node};
use crate::error::SpecError;
use crate::sourced::Sourced;
use crate::stack::Stack;
use crate::units::Seconds;
use serde::{Deserialize, Serialize};
use std::sync::{Arc, LazyLock};

/// The calibration of forecasts for which none was chosen.
pub const DEFAULT: &str = "published";

/// A quantity that a factor may multiply: its meaning and range, from the catalog.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct Parameter {
    /// Name in the catalog.
    #[serde(default)]
    pub name: String,
    /// The parameter.
    pub meaning: String,
    /// The kind of entry that has a separate factor.
    pub of: Owner,
    /// What it measures.
    pub kind: Kind,
    /// The least factor that is physical.
    pub low: f64,
    /// The largest.
    pub high: f64,
    /// Where the range is from.
    pub source: String,
}

/// The kind of entry that a parameter belongs to: never a model, a paper or a row.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "kebab-case")]
pub enum Owner {
    /// A generation of NVIDIA GPUs; other chips have no such factor.
    Generation,
    /// A stack.
    Stack,
    /// A kind of NIC.
    Kind,
}

/// What a parameter measures: this says in which direction a slower machine moves it.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "kebab-case")]
pub enum Kind {
    /// A rate: less is slower.
    Rate,
    /// A time: more is slower.
    Time,
    /// An amount of work: the machine's speed does not change it.
    Bytes,
}

/// The owner whose factor applies to each owner that has none: the family's mean.
pub const ANY: &str = "any";

/// Factors, and the band of what is left.
#[derive(Debug, Clone, PartialEq, Default, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct Calibration {
    /// Its name in the catalog, or that of its file.
    #[serde(skip)]
    pub name: String,
    /// Its source.
    pub source: String,
    /// The band of step times; `None` if there were no measurements.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub band: Option<Band>,
    /// The factors; what is not named has 1.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    pub factors: Vec<Factor>,
    /// Errors of step times by source of the runs that the factors were fitted to, and of all.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    pub sources: Vec<SourceErrors>,
    /// Residuals of measured runs, as CSV in the file: the ranges of forecasts come from them.
    #[serde(default, with = "shared", skip_serializing_if = "no_residuals")]
    pub residuals: Arc<Residuals>,
}

fn no_residuals(residuals: &Arc<Residuals>) -> bool {
    residuals.is_empty()
}

/// Residuals that several questions share.
mod shared {
    use super::residuals::Residuals;
    use serde::{Deserialize, Deserializer, Serialize, Serializer};
    use std::sync::Arc;

    pub fn serialize<S: Serializer>(residuals: &Residuals, serializer: S) -> Result<S::Ok, S::Error> {
        residuals.serialize(serializer)
    }

    pub fn deserialize<'de, D: Deserializer<'de>>(deserializer: D) -> Result<Arc<Residuals>, D::Error> {
        Residuals::deserialize(deserializer).map(Arc::new)
    }
}

/// Errors of a source's step times.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct SourceErrors {
    /// Its name.
    pub name: String,
    /// Runs.
    pub rows: usize,
    /// With the catalog as it is.
    pub catalog: Figures,
    /// With factors from the other sources.
    pub left_out: Figures,
    /// With factors from all.
    pub in_sample: Figures,
}

/// Of errors, forecast over measured less one, in percent.
#[derive(Debug, Clone, Copy, PartialEq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct Figures {
    /// Median of their sizes.
    pub median: f64,
    /// Mean of their sizes.
    pub mean: f64,
    /// Mean with signs.
    pub signed: f64,
    /// 90th percentile of their sizes.
    pub p90: f64,
}

/// The range in which four of five steps lie, over the forecast.
#[derive(Debug, Clone, Copy, PartialEq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct Band {
    /// A tenth take less.
    pub low: f64,
    /// A tenth take more.
    pub high: f64,
}

/// A factor on a parameter of one owner.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct Factor {
    /// The parameter's name.
    pub parameter: String,
    /// The owner's: `ampere`, `megatron-core`, `infiniband-hdr`; or [`ANY`].
    pub of: String,
    /// By what it is multiplied.
    pub factor: f64,
}

/// Every parameter of the catalog, read once.
static PARAMETERS: LazyLock<Vec<Parameter>> = LazyLock::new(|| {
    catalog::names("parameters").into_iter().filter_map(|name| Parameter::from_name(name).ok()).collect()
});

impl Parameter {
    /// The parameter of that name.
    ///
    /// # Errors
    /// `UnknownName` with the nearest names.
    pub fn from_name(name: &str) -> Result<Self, SpecError> {
        let text = catalog::text("parameter", name)?;
        let parameter: Self = toml::from_str(text).map_err(|error| SpecError::Syntax {
            origin: format!("parameter {name}"),
            message: error.to_string(),
        })?;
        Ok(Self { name: name.into(), ..parameter })
    }

    /// Every parameter of the catalog.
    pub fn all() -> &'static [Self] {
        &PARAMETERS
    }

    /// The entry that has this parameter when `stack` runs on `cluster`; `None` if there is no such entry.
    pub fn owner(&self, cluster: &Cluster, stack: &Stack) -> Option<String> {
        match self.of {
            // The runs behind the factors are of CUDA kernels. They say nothing of programs that XLA compiles, whose
            // catalog figures are those of whole steps, or of figures that were never measured.
            Owner::Generation => {
                let gpu = &cluster.node.gpu;
                gpu.library.is_none().then(|| gpu.family().into())
            }
            Owner::Stack if self.name == "traffic" => stack.traffic.as_ref().map(|_| stack.name.clone()),
            Owner::Stack if self.name == "collective" => {
                stack.host.as_ref().and_then(|host| host.collective.as_ref()).map(|_| stack.name.clone())
            }
            Owner::Stack => stack.host.as_ref().map(|_| stack.name.clone()),
            Owner::Kind if cluster.nodes > 1 => cluster.node.nics.as_ref().map(|nics| nics.kind.clone()),
            Owner::Kind => None,
        }
    }
}

impl Calibration {
    /// A calibration of the catalog.
    ///
    /// # Errors
    /// `UnknownName` with the nearest names.
    pub fn from_name(name: &str) -> Result<Self, SpecError> {
        Self::from_toml(catalog::text("calibration", name)?, name)
    }

    /// Reads a calibration; `origin` names it in messages.
    ///
    /// # Errors
    /// `Syntax`; `UnknownName` for a parameter that there is not, `BadValue` for a factor out of its range.
    pub fn from_toml(text: &str, origin: &str) -> Result<Self, SpecError> {
        let calibration: Self = toml::from_str(text).map_err(|error| SpecError::Syntax {
            origin: origin.into(),
            message: crate::plan::one_line(&error, text),
        })?;
        let calibration = Self { name: origin.into(), ..calibration };
        for (index, Factor { parameter, of, factor }) in calibration.factors.iter().enumerate() {
            let known = Parameter::from_name(parameter)?;
            if !(known.low..=known.high).contains(factor) {
                return Err(SpecError::BadValue {
                    origin: origin.into(),
                    key: format!("factor of {parameter} of {of}"),
                    value: factor.to_string(),
                    allowed: format!("from {} to {}", known.low, known.high),
                });
            }
            let same = |other: &Factor| other.parameter == *parameter && other.of == *of;
            if calibration.factors[..index].iter().any(same) {
                return Err(SpecError::BadValue {
                    origin: origin.into(),
                    key: format!("second factor of {parameter} of {of}"),
                    value: factor.to_string(),
                    allowed: "one for each owner".into(),
                });
            }
        }
        Ok(calibration)
    }

    /// The calibration as a file.
    pub fn to_toml(&self) -> String {
        toml::to_string(self).expect("a calibration has only text and numbers")
    }

    /// The distribution of measured over forecast values for a run with some properties; `None` if no run is known. `without`
    /// is a source that does not count.
    pub fn distribution(
        &self,
        quantity: Quantity,
        traits: &Traits,
        without: Option<&str>,
    ) -> Option<Distribution> {
        Distribution::new(&self.residuals, quantity, traits, without)
    }

    /// The range of these values.
    pub fn range(&self, quantity: Quantity, traits: &Traits, without: Option<&str>) -> Option<Range> {
        Some(self.distribution(quantity, traits, without)?.range())
    }

    /// Corrects hardware and software. Another calibration that they have is undone first, so applying one twice changes
    /// nothing. An owner without a factor gets that of [`ANY`]. The cluster then has the calibration's name.
    pub fn apply(&self, cluster: &mut Cluster, stack: &mut Stack) {
        restore(cluster, stack);
        self.multiply_kinds(cluster, stack);
        cluster.calibration = Some(self.name.clone());
    }

    /// Corrects each kind of node by its factors.
    fn multiply_kinds(&self, cluster: &mut Cluster, stack: &mut Stack) {
        for kind in 1..=cluster.others.len() {
            let mut only = cluster.only(kind);
            only.nodes = cluster.nodes;
            self.multiply_kinds(&mut only, &mut stack.clone());
            cluster.others[kind - 1].node = only.node;
        }
        for parameter in PARAMETERS.iter() {
            let Some(owner) = parameter.owner(cluster, stack) else { continue };
            if let Some(factor) = self.factor(&parameter.name, &owner) {
                each(&parameter.name, &mut cluster.node, stack, &mut |number| number.multiply(factor));
            }
        }
    }

    /// The factor on a parameter of this owner, or the family's mean; `None` if the file has neither.
    pub fn factor(&self, parameter: &str, owner: &str) -> Option<f64> {
        let of =
            |of: &str| self.factors.iter().find(|factor| factor.parameter == parameter && factor.of == of);
        of(owner).or_else(|| of(ANY)).map(|factor| factor.factor)
    }
}

/// Gives hardware and software the numbers of their sources.
pub fn restore(cluster: &mut Cluster, stack: &mut Stack) {
    let others = cluster.others.iter_mut().map(|others| &mut others.node);
    for node in std::iter::once(&mut cluster.node).chain(others) {
        for parameter in Parameter::all() {
            each(&parameter.name, node, stack, &mut |number| number.restore());
        }
    }
    cluster.calibration = None;
}

/// A number that a parameter stands for.
enum Number<'a> {
    /// The fraction of a peak that is reached: at most 1.
    Fraction(&'a mut Sourced<f64>),
    /// Traffic over the least traffic: at least 1.
    Multiple(&'a mut Sourced<f64>),
    /// A time.
    Time(&'a mut Sourced<Seconds>),
}

impl Number<'_> {
    fn multiply(self, factor: f64) {
        match self {
            Number::Fraction(fraction) => fraction.calibrate(|value| (value * factor).min(1.0)),
            Number::Multiple(multiple) => multiple.calibrate(|value| (value * factor).max(1.0)),
            Number::Time(time) => time.calibrate(|value| factor * *value),
        }
    }

    fn restore(self) {
        match self {
            Number::Fraction(number) | Number::Multiple(number) => number.restore(),
            Number::Time(time) => time.restore(),
        }
    }
}

/// Calls `change` with each number that a parameter of the catalog stands for.
fn each(parameter: &str, node: &mut Node, stack: &mut Stack, change: &mut dyn FnMut(Number)) {
    let achieved = &mut node.gpu.achieved;
    let host = stack.host.as_mut();
    match parameter {
        "matrix" => achieved.matrix.values_mut().map(Number::Fraction).for_each(change),
        "memory" => {
            let rates = [&mut achieved.memory, &mut achieved.reduction];
            rates.into_iter().map(Number::Fraction).for_each(change);
        }
        "attention" => {
            let kinds = achieved.attention.values_mut();
            let kinds = kinds.flat_map(|reached| [&mut reached.forward, &mut reached.backward]);
            let best = [&mut achieved.attention_forward, &mut achieved.attention_backward];
            kinds.chain(best).map(Number::Fraction).for_each(change);
        }
        "exchange" => {
            node.nics.iter_mut().map(|nics| Number::Fraction(&mut nics.efficiency)).for_each(change)
        }
        "traffic" => stack.traffic.iter_mut().map(Number::Multiple).for_each(change),
        "launch" => host.into_iter().map(|host| Number::Time(&mut host.launch)).for_each(change),
        "collective" => {
            let times = host.into_iter().flat_map(|host| [&mut host.collective, &mut host.collective_node]);
            times.flatten().map(Number::Time).for_each(change);
        }
        "message" => host.into_iter().map(|host| Number::Time(&mut host.message)).for_each(change),
        "step" => host.into_iter().map(|host| Number::Time(&mut host.step)).for_each(change),
        other => unreachable!("`{other}` is no parameter of the catalog"),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn every_parameter_has_a_meaning_a_range_around_one_and_a_source() {
        let names = catalog::names("parameters");
        assert_eq!(Parameter::all().len(), names.len());
        for parameter in Parameter::all() {
            assert!(parameter.low < 1.0 && parameter.high > 1.0, "{parameter:?}");
            assert!(!parameter.meaning.is_empty() && !parameter.source.is_empty(), "{parameter:?}");
        }
    }

    #[test]
    fn every_calibration_of_the_catalog_is_read_and_has_a_band() {
        for name in catalog::names("calibrations") {
            let calibration = Calibration::from_name(name).unwrap();
            let band = calibration.band.unwrap();
            assert!(0.0 < band.low && band.low < band.high, "{name}");
            assert_eq!(Calibration::from_toml(&calibration.to_toml(), name).unwrap(), calibration);
        }
    }

    #[test]
    fn factors_reach_what_they_are_of_and_nothing_else() {
        let mut cluster = Cluster::from_name("dgx-a100:2").unwrap();
        let mut stack = Stack::from_name("nanotron").unwrap();
        let before = (cluster.clone(), stack.clone());
        let text = "source = \"a\"\n[[factors]]\nparameter = \"matrix\"\nof = \"ampere\"\nfactor = 0.9\n\
                    [[factors]]\nparameter = \"launch\"\nof = \"nanotron\"\nfactor = 2\n\
                    [[factors]]\nparameter = \"memory\"\nof = \"hopper\"\nfactor = 0.8\n";
        Calibration::from_toml(text, "a.toml").unwrap().apply(&mut cluster, &mut stack);
        let bf16 =
            |cluster: &Cluster| cluster.node.gpu.achieved.matrix[&crate::precision::Precision::Bf16].value;
        assert!((bf16(&cluster) / bf16(&before.0) - 0.9).abs() < 1e-12);
        assert_eq!(cluster.node.gpu.achieved.memory, before.0.node.gpu.achieved.memory);
        let launch = |stack: &Stack| stack.host.as_ref().unwrap().launch.value;
        assert_eq!(launch(&stack), 2.0 * launch(&before.1));
        assert_eq!(cluster.calibration.as_deref(), Some("a.toml"));
    }

    #[test]
    fn a_calibration_is_undone_exactly_and_does_not_add_up() {
        let published = Calibration::from_name("published").unwrap();
        for (cluster, stack) in [
            ("dgx-a100:2", "nanotron"),
            ("dgx-h100:2+dgx-a100:2", "megatron-core-2024"),
            ("gb200-nvl72:2", "megatron-core-2025"),
        ] {
            let stated = (Cluster::reference(cluster).unwrap(), Stack::from_name(stack).unwrap());
            let (mut once, mut stack) = stated.clone();
            published.apply(&mut once, &mut stack);
            assert_ne!((&once, &stack), (&stated.0, &stated.1));
            let (mut twice, mut stack_twice) = (once.clone(), stack.clone());
            published.apply(&mut twice, &mut stack_twice);
            assert_eq!((&twice, &stack_twice), (&once, &stack));
            restore(&mut twice, &mut stack_twice);
            assert_eq!((twice, stack_twice), stated);
        }
    }

    #[test]
    fn an_owner_without_a_factor_gets_the_mean_of_its_family() {
        let factor = |of: &str, factor: f64| Factor { parameter: "memory".into(), of: of.into(), factor };
        let calibration =
            Calibration { factors: vec![factor(ANY, 0.8), factor("ampere", 0.9)], ..Calibration::default() };
        let memory = |reference: &str| {
            let mut cluster = Cluster::from_name(reference).unwrap();
            let before = cluster.node.gpu.achieved.memory.value;
            calibration.apply(&mut cluster, &mut Stack::from_name("nanotron").unwrap());
            cluster.node.gpu.achieved.memory.value / before
        };
        // The separate factor replaces the mean and is not multiplied by it.
        assert!((memory("dgx-a100:2") - 0.9).abs() < 1e-12);
        assert!((memory("dgx-h100:2") - 0.8).abs() < 1e-12);
        assert_eq!(calibration.factor("memory", "volta"), Some(0.8));
        assert_eq!(calibration.factor("matrix", "ampere"), None);
        // The catalog gives other vendors' chips an NVIDIA generation only for NCCL's tables.
        for other in ["tpu-v5p-host:2", "azure-nd-mi300x-v5:2", "aws-trn2:1"] {
            assert_eq!(memory(other), 1.0, "{other}");
        }
    }

    #[test]
    fn what_is_out_of_range_or_unknown_is_refused() {
        let check = |factor: &str, message: &str| {
            let text = format!("source = \"a\"\n[[factors]]\n{factor}");
            let error = Calibration::from_toml(&text, "a.toml").unwrap_err().to_string();
            assert!(error.contains(message), "{error}");
        };
        check("parameter = \"matrix\"\nof = \"ampere\"\nfactor = 2", "from 0.75 to 1.1");
        let twice = "parameter = \"matrix\"\nof = \"ampere\"\nfactor = 0.9";
        check(&format!("{twice}\n[[factors]]\n{twice}"), "one for each owner");
        check("parameter = \"matrices\"\nof = \"ampere\"\nfactor = 1", "matrix");
        check("parameter = \"matrix\"\nfactor = 1", "of");
    }
}
