//! Residuals of measured runs, and how much two runs resemble each other.

use crate::mesh::Mesh;
use serde::de::Error;
use serde::{Deserialize, Deserializer, Serialize, Serializer};

/// Properties of a run on which the error of its forecast depends.
#[derive(Debug, Clone, PartialEq)]
pub struct Traits {
    /// Those that are known before a step is simulated.
    pub kind: Kind,
    /// Exposed communication over the step time, 0 to 1.
    pub exposed: f64,
    /// Launch time of a rank's process over the step time, 0 to 1.
    pub host: f64,
}

/// What is run on which hardware.
#[derive(Debug, Clone, PartialEq)]
pub struct Kind {
    /// Whether the model has experts.
    pub experts: bool,
    /// Whether adapters are trained beside frozen weights.
    pub adapters: bool,
    /// Generation of the GPUs.
    pub generation: String,
    /// Precision of the matrix products; fp16 counts as bf16.
    pub precision: String,
    /// How it is spread over nodes.
    pub spread: Spread,
}

/// How the ranks of a run are spread.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
pub struct Spread {
    /// Whether a tensor group is on several nodes.
    pub tensor_over_nodes: bool,
    /// Whether a context axis has several ranks.
    pub context: bool,
    /// Whether the run is on several nodes.
    pub several_nodes: bool,
}

impl Spread {
    /// Of a mesh on nodes of `gpus` GPUs. Tensor ranks are consecutive, so the first group is on several nodes if it is
    /// larger than a node.
    pub fn of(mesh: &Mesh, gpus: usize) -> Self {
        Self {
            tensor_over_nodes: mesh.tensor > gpus,
            context: mesh.context > 1,
            several_nodes: mesh.ranks() > gpus,
        }
    }
}

/// What a measured run says about forecasts of similar runs.
#[derive(Debug, Clone, PartialEq)]
pub struct Residual {
    /// The source of the measurement.
    pub source: String,
    /// ln(measured / forecast) of the step time, with a calibration that has not seen the source.
    pub time: Option<f64>,
    /// ln(measured / forecast) of the peak memory.
    pub memory: Option<f64>,
    /// Whether `memory` is not that of a peak but of a time between two steps, when a GPU holds hardly more than its state.
    pub between_steps: bool,
    /// The run's properties.
    pub traits: Traits,
}

/// A residual as a row of a CSV file.
#[derive(Serialize, Deserialize)]
struct Row {
    source: String,
    time: Option<f64>,
    memory: Option<f64>,
    #[serde(default)]
    between_steps: u8,
    experts: u8,
    #[serde(default)]
    adapters: u8,
    tensor_over_nodes: u8,
    context: u8,
    several_nodes: u8,
    generation: String,
    precision: String,
    exposed: f64,
    host: f64,
}

/// Which of a run's quantities.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Quantity {
    /// The step time.
    Time,
    /// The peak memory.
    Memory,
}

/// The penalty of memory between steps as evidence of a peak: the forecast of state is better than that of activations. Of 0,
/// 0.5, 1 and 1.5, 1 is the least with which ranges of peaks on A100 hold about 80 %.
const BETWEEN_STEPS: f64 = 1.0;

impl Residual {
    /// The penalty for a measurement of something else than the quantity.
    fn other_measure(&self, quantity: Quantity) -> f64 {
        if quantity == Quantity::Memory && self.between_steps { BETWEEN_STEPS } else { 0.0 }
    }

    fn of(&self, quantity: Quantity) -> Option<f64> {
        match quantity {
            Quantity::Time => self.time,
            Quantity::Memory => self.memory,
        }
    }
}

impl Traits {
    /// The penalties for another split of the step's time.
    pub(super) fn share_distance(&self, other: &Value) -> f64 {
        2.0 * (self.exposed - other.exposed).abs() + 2.0 * (self.host - other.host).abs()
    }
}

impl Kind {
    /// The sum of penalties for the differences of two kinds; 0 for the same kind.
    ///
    /// The penalties were set by hand, in the order of how much residuals of published runs differ between the kinds.
    pub(super) fn distance(&self, other: &Self) -> f64 {
        let differs = |differs: bool, penalty: f64| if differs { penalty } else { 0.0 };
        differs(self.experts != other.experts, 1.5)
            + differs(self.adapters != other.adapters, 1.0)
            + differs(self.spread.tensor_over_nodes != other.spread.tensor_over_nodes, 2.0)
            + differs(self.spread.context != other.spread.context, 1.0)
            + differs(self.spread.several_nodes != other.spread.several_nodes, 0.7)
            + differs(self.generation != other.generation, 0.7)
            + differs(self.precision != other.precision, 0.5)
    }
}

/// Residuals of many runs, arranged for the ranges of many forecasts.
#[derive(Debug, Clone, Default)]
pub struct Residuals {
    all: Vec<Residual>,
    /// Each kind of run once.
    kinds: Vec<Kind>,
    /// The sources' names, ascending.
    sources: Vec<String>,
    /// By quantity.
    ascending: [Ascending; 2],
}

/// The residuals of one quantity.
#[derive(Debug, Clone, Default)]
pub(super) struct Ascending {
    /// By value; of equal ones, in the order of the runs.
    pub values: Vec<Value>,
    /// By source: the square root of the number of its residuals.
    pub roots: Vec<f64>,
}

/// A residual of a quantity.
#[derive(Debug, Clone, Copy)]
pub(super) struct Value {
    /// ln(measured / forecast).
    pub value: f64,
    /// Index into `Residuals::kinds`.
    pub kind: u32,
    /// Index into `Residuals::sources`.
    pub source: u32,
    pub exposed: f64,
    pub host: f64,
    /// The penalty for a measurement of something else than the quantity.
    pub penalty: f64,
}

impl PartialEq for Residuals {
    fn eq(&self, other: &Self) -> bool {
        self.all == other.all
    }
}

impl FromIterator<Residual> for Residuals {
    fn from_iter<I: IntoIterator<Item = Residual>>(residuals: I) -> Self {
        let all: Vec<Residual> = residuals.into_iter().collect();
        let mut sources: Vec<String> = all.iter().map(|residual| residual.source.clone()).collect();
        sources.sort_unstable();
        sources.dedup();
        let mut kinds: Vec<Kind> = Vec::new();
        let mut kind_of = |kind: &Kind| match kinds.iter().position(|known| known == kind) {
            Some(index) => index as u32,
            None => {
                kinds.push(kind.clone());
                kinds.len() as u32 - 1
            }
        };
        let numbers: Vec<(u32, u32)> = all
            .iter()
            .map(|residual| {
                let source = sources.binary_search(&residual.source).expect("the list has every source");
                (kind_of(&residual.traits.kind), source as u32)
            })
            .collect();
        let ascending = [Quantity::Time, Quantity::Memory].map(|quantity| {
            let value = |(residual, (kind, source)): (&Residual, &(u32, u32))| {
                let Traits { exposed, host, .. } = residual.traits;
                let penalty = residual.other_measure(quantity);
                let value = residual.of(quantity)?;
                Some(Value { value, kind: *kind, source: *source, exposed, host, penalty })
            };
            let mut values: Vec<Value> = all.iter().zip(&numbers).filter_map(value).collect();
            let mut runs = vec![0.0f64; sources.len()];
            values.iter().for_each(|value| runs[value.source as usize] += 1.0);
            values.sort_by(|a, b| a.value.total_cmp(&b.value));
            Ascending { values, roots: runs.into_iter().map(f64::sqrt).collect() }
        });
        Self { all, kinds, sources, ascending }
    }
}

impl Residuals {
    /// Whether there are none.
    pub fn is_empty(&self) -> bool {
        self.all.is_empty()
    }

    /// Each kind of run once.
    pub(super) fn kinds(&self) -> &[Kind] {
        &self.kinds
    }

    /// The number of a source; `None` if it has no residual.
    pub(super) fn source(&self, name: &str) -> Option<u32> {
        self.sources.binary_search_by(|source| source.as_str().cmp(name)).ok().map(|index| index as u32)
    }

    /// The residuals of one quantity.
    pub(super) fn of(&self, quantity: Quantity) -> &Ascending {
        &self.ascending[quantity as usize]
    }

    /// The residuals as CSV, with three digits behind the point.
    pub fn to_csv(&self) -> String {
        let rounded = |value: f64| (1000.0 * value).round() / 1000.0;
        let mut writer = csv::Writer::from_writer(Vec::new());
        for Residual { source, time, memory, between_steps, traits } in &self.all {
            let row = Row {
                source: source.clone(),
                time: time.map(rounded),
                memory: memory.map(rounded),
                between_steps: u8::from(*between_steps),
                experts: traits.kind.experts.into(),
                adapters: traits.kind.adapters.into(),
                tensor_over_nodes: traits.kind.spread.tensor_over_nodes.into(),
                context: traits.kind.spread.context.into(),
                several_nodes: traits.kind.spread.several_nodes.into(),
                generation: traits.kind.generation.clone(),
                precision: traits.kind.precision.clone(),
                exposed: rounded(traits.exposed),
                host: rounded(traits.host),
            };
            writer.serialize(row).expect("a row has only text and numbers");
        }
        let bytes = writer.into_inner().expect("writing to memory does not fail");
        String::from_utf8(bytes).expect("the writer wrote text")
    }

    /// Reads what `to_csv` writes.
    ///
    /// # Errors
    /// What is wrong, with the line.
    pub fn from_csv(text: &str) -> Result<Self, String> {
        let rows = csv::Reader::from_reader(text.as_bytes()).into_deserialize();
        let residual = |row: Result<Row, csv::Error>| {
            let row = row.map_err(|error| error.to_string())?;
            let finite = |value: &f64| value.is_finite();
            if !row.time.iter().chain(&row.memory).chain([&row.exposed, &row.host]).all(finite) {
                return Err(format!("a residual of `{}` is not a number", row.source));
            }
            Ok(Residual {
                source: row.source,
                time: row.time,
                memory: row.memory,
                between_steps: row.between_steps > 0,
                traits: Traits {
                    kind: Kind {
                        experts: row.experts > 0,
                        adapters: row.adapters > 0,
                        generation: row.generation,
                        precision: row.precision,
                        spread: Spread {
                            tensor_over_nodes: row.tensor_over_nodes > 0,
                            context: row.context > 0,
                            several_nodes: row.several_nodes > 0,
                        },
                    },
                    exposed: row.exposed,
                    host: row.host,
                },
            })
        };
        rows.map(residual).collect()
    }
}

impl Serialize for Residuals {
    fn serialize<S: Serializer>(&self, serializer: S) -> Result<S::Ok, S::Error> {
        serializer.serialize_str(&self.to_csv())
    }
}

impl<'de> Deserialize<'de> for Residuals {
    fn deserialize<D: Deserializer<'de>>(deserializer: D) -> Result<Self, D::Error> {
        Self::from_csv(&String::deserialize(deserializer)?).map_err(D::Error::custom)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn residuals_are_read_as_they_were_written() {
        let residual = |run: u32| Residual {
            source: format!("source {}", run % 3),
            time: (run != 1).then(|| f64::from(run) / 1000.0),
            memory: (run == 0).then_some(-0.125),
            between_steps: run == 0,
            traits: Traits {
                kind: Kind {
                    experts: run == 2,
                    adapters: run == 3,
                    generation: "hopper".into(),
                    precision: "bf16".into(),
                    spread: Spread { tensor_over_nodes: false, context: false, several_nodes: true },
                },
                exposed: 0.1,
                host: 0.2,
            },
        };
        let residuals: Residuals = (0..100).map(residual).collect();
        let read = Residuals::from_csv(&residuals.to_csv()).unwrap();
        assert_eq!(read, residuals);
        assert_eq!((read.all[0].memory, read.all[1].time), (Some(-0.125), None));
        assert!(read.all[2].traits.kind.experts && read.all.len() == 100);
        assert!(read.all[3].traits.kind.adapters && !read.all[2].traits.kind.adapters);
        // A file without the columns has peaks of whole models only.
        let without = "source,time,memory,experts,tensor_over_nodes,context,several_nodes,generation,precision,exposed,host\n\
                       a,0.1,0.2,0,0,0,0,hopper,bf16,0,0\n";
        let read = Residuals::from_csv(without).unwrap();
        assert!(!read.all[0].between_steps && !read.all[0].traits.kind.adapters);
        assert!(Residuals::from_csv("source,time\na,b\n").unwrap_err().contains("line: 2"));
        let wild = residuals.to_csv().replace("-0.125", "inf");
        assert!(Residuals::from_csv(&wild).unwrap_err().contains("is not a number"));
    }
}
