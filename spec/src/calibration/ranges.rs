//! The range of a forecast, from the residuals of measured runs that resemble it.
//!
//! A residual is ln(measured / forecast) of a run, with factors that were fitted without the run's source. For a new forecast i
//! each residual j weighs
//!
//! w_j = n_s^(−1/2) · exp(−D_ij),  n_s the runs of its source, D_ij the sum of penalties for differences of the two runs,
//!
//! and the range is between the weighted quantiles at α/2 and 1 − α/2 (conformal prediction with weights: Tibshirani et al. 2019,
//! arXiv 1904.06019), whose distances from the median are multiplied by 1 + 1/S², S = Σ over sources of their largest
//! exp(−D_ij). The forecast's own source is one more draw from the population of sources, so a range from few sources has
//! heavy tails, as Student's t has for a small sample. Quantiles further out would not do: they end at the largest residual
//! of the others. Of S^−1, S^−1 / 2, S^−2 and S^−2 / 2, S^−2 holds slices of the published runs most evenly.

use crate::mesh::Mesh;
use serde::{Deserialize, Serialize};
use std::collections::BTreeMap;

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
    /// The run's properties.
    pub traits: Traits,
}

/// A residual as a row of a CSV file.
#[derive(Serialize, Deserialize)]
struct Row {
    source: String,
    time: Option<f64>,
    memory: Option<f64>,
    experts: u8,
    tensor_over_nodes: u8,
    context: u8,
    several_nodes: u8,
    generation: String,
    precision: String,
    exposed: f64,
    host: f64,
}

/// Residuals as CSV, with three digits behind the point.
pub fn to_csv(residuals: &[Residual]) -> String {
    let rounded = |value: f64| (1000.0 * value).round() / 1000.0;
    let mut writer = csv::Writer::from_writer(Vec::new());
    for Residual { source, time, memory, traits } in residuals {
        let row = Row {
            source: source.clone(),
            time: time.map(rounded),
            memory: memory.map(rounded),
            experts: traits.kind.experts.into(),
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
pub fn from_csv(text: &str) -> Result<Vec<Residual>, String> {
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
            traits: Traits {
                kind: Kind {
                    experts: row.experts > 0,
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

/// The range of measured over forecast values.
#[derive(Debug, Clone, Copy, PartialEq, Serialize)]
pub struct Range {
    /// The lower end: a tenth is expected below it.
    pub low: f64,
    /// The median.
    pub median: f64,
    /// The upper end: a tenth is expected above it.
    pub high: f64,
    /// Measured runs with the same properties.
    pub runs: usize,
    /// Sources of these runs.
    pub sources: usize,
}

/// The part of values that a range leaves out on both sides together.
const LEFT_OUT: f64 = 0.2;

/// Runs up to this distance have the same kinds and similar shares.
const SAME: f64 = 0.5;

/// Fewer sources alike than this widen a range no further: it is three times as wide (in logarithms) as the residuals'. Of
/// 0.5, 0.7, 0.8 and 1 it has the best interval scores of the published runs.
const FEWEST: f64 = 0.7;

/// Which of a run's quantities.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Quantity {
    /// The step time.
    Time,
    /// The peak memory.
    Memory,
}

impl Residual {
    fn of(&self, quantity: Quantity) -> Option<f64> {
        match quantity {
            Quantity::Time => self.time,
            Quantity::Memory => self.memory,
        }
    }
}

impl Kind {
    /// The sum of penalties for the differences of two kinds; 0 for the same kind.
    ///
    /// The penalties were set by hand, in the order of how much residuals of published runs differ between the kinds.
    fn distance(&self, other: &Self) -> f64 {
        let differs = |differs: bool, penalty: f64| if differs { penalty } else { 0.0 };
        differs(self.experts != other.experts, 1.5)
            + differs(self.spread.tensor_over_nodes != other.spread.tensor_over_nodes, 2.0)
            + differs(self.spread.context != other.spread.context, 1.0)
            + differs(self.spread.several_nodes != other.spread.several_nodes, 0.7)
            + differs(self.generation != other.generation, 0.7)
            + differs(self.precision != other.precision, 0.5)
    }
}

impl Traits {
    /// The same for two runs. Errors of memory do not depend on how the step's time is spent.
    fn distance(&self, other: &Self, quantity: Quantity) -> f64 {
        let shares = 2.0 * (self.exposed - other.exposed).abs() + 2.0 * (self.host - other.host).abs();
        let of_kind = self.kind.distance(&other.kind);
        match quantity {
            Quantity::Time => of_kind + shares,
            Quantity::Memory => of_kind,
        }
    }
}

/// The distribution of ln(measured / forecast) for one forecast.
#[derive(Debug, Clone, PartialEq)]
pub struct Distribution {
    /// Ascending, each with its weight.
    values: Vec<(f64, f64)>,
    /// S: how many sources resemble the run.
    alike: f64,
    /// Measured runs with the same properties.
    runs: usize,
    /// Sources of these runs.
    sources: usize,
}

impl Distribution {
    /// For a run with some properties, without the residuals of one source; `None` if no other has the quantity.
    pub fn new(
        residuals: &[Residual],
        quantity: Quantity,
        traits: &Traits,
        without: Option<&str>,
    ) -> Option<Self> {
        Self::by(residuals, quantity, &|other| traits.distance(other, quantity), without)
    }

    /// For all runs of a kind, however their step's time is spent.
    pub fn of_kind(residuals: &[Residual], quantity: Quantity, kind: &Kind) -> Option<Self> {
        Self::by(residuals, quantity, &|other| kind.distance(&other.kind), None)
    }

    fn by(
        residuals: &[Residual],
        quantity: Quantity,
        distance: &dyn Fn(&Traits) -> f64,
        without: Option<&str>,
    ) -> Option<Self> {
        let counted = residuals.iter().filter(|residual| Some(residual.source.as_str()) != without);
        let counted: Vec<(&Residual, f64)> =
            counted.filter_map(|residual| Some((residual, residual.of(quantity)?))).collect();
        let mut runs_of: BTreeMap<&str, f64> = BTreeMap::new();
        counted.iter().for_each(|(residual, _)| *runs_of.entry(&residual.source).or_default() += 1.0);
        let mut nearest: BTreeMap<&str, f64> = BTreeMap::new();
        let mut same: BTreeMap<&str, usize> = BTreeMap::new();
        let mut values = Vec::with_capacity(counted.len());
        for (residual, value) in &counted {
            let source = residual.source.as_str();
            let distance = distance(&residual.traits);
            let likeness = (-distance).exp();
            let most = nearest.entry(source).or_default();
            *most = most.max(likeness);
            if distance <= SAME {
                *same.entry(source).or_default() += 1;
            }
            values.push((*value, likeness / runs_of[source].sqrt()));
        }
        values.sort_by(|a, b| a.0.total_cmp(&b.0));
        let (runs, sources) = (same.values().sum(), same.len());
        (!values.is_empty()).then(|| Self { values, alike: nearest.values().sum(), runs, sources })
    }

    /// The ratio of measured to forecast that this fraction of runs stays below: m · (q / m)^σ, m the median of the
    /// residuals' ratios and q their quantile, σ the stretch.
    pub fn quantile(&self, fraction: f64) -> f64 {
        let median = weighted_quantile(&self.values, 0.5);
        (median + self.stretch() * (weighted_quantile(&self.values, fraction) - median)).exp()
    }

    /// The fraction of runs whose ratio of measured to forecast stays below this one: the inverse of `quantile`.
    pub fn fraction_below(&self, ratio: f64) -> f64 {
        let median = weighted_quantile(&self.values, 0.5);
        let value = median + (ratio.ln() - median) / self.stretch();
        let weight = |values: &[(f64, f64)]| values.iter().map(|(_, weight)| weight).sum::<f64>();
        let below = self.values.partition_point(|(residual, _)| *residual < value);
        weight(&self.values[..below]) / weight(&self.values)
    }

    /// σ = 1 + 1/S²: how much further from their median quantiles are than those of the residuals.
    fn stretch(&self) -> f64 {
        1.0 + self.alike.max(FEWEST).powi(-2)
    }

    /// The mean of the tenths of the residuals' ratios: the expected ratio without the outermost tenths, which contain
    /// faults of machines that no forecast foresees. That few sources are alike makes a range wider, not its runs slower.
    pub fn expected(&self) -> f64 {
        let tenth = |tenth: i32| weighted_quantile(&self.values, f64::from(tenth) / 10.0).exp();
        (1..10).map(tenth).sum::<f64>() / 9.0
    }

    /// How many sources resemble the run: each counts by its most similar run, exp(−D).
    pub fn alike(&self) -> f64 {
        self.alike
    }

    /// The range that leaves out a tenth on each side.
    pub fn range(&self) -> Range {
        let [low, median, high] = [LEFT_OUT / 2.0, 0.5, 1.0 - LEFT_OUT / 2.0].map(|part| self.quantile(part));
        Range { low, median, high, runs: self.runs, sources: self.sources }
    }
}

/// The least value up to which there is this part of the weight; `values` are ascending, each with its weight.
fn weighted_quantile(values: &[(f64, f64)], part: f64) -> f64 {
    let all: f64 = values.iter().map(|(_, weight)| weight).sum();
    let mut sum = 0.0;
    let reaches = |(_, weight): &&(f64, f64)| {
        sum += weight;
        sum >= part * all
    };
    values.iter().find(reaches).or(values.last()).map_or(0.0, |(value, _)| *value)
}

#[cfg(test)]
mod tests {
    use super::*;

    fn traits(generation: &str) -> Traits {
        let spread = Spread { tensor_over_nodes: false, context: false, several_nodes: true };
        let kind = Kind { experts: false, generation: generation.into(), precision: "bf16".into(), spread };
        Traits { kind, exposed: 0.1, host: 0.2 }
    }

    fn range(
        residuals: &[Residual],
        quantity: Quantity,
        traits: &Traits,
        without: Option<&str>,
    ) -> Option<Range> {
        Some(Distribution::new(residuals, quantity, traits, without)?.range())
    }

    fn residual(source: usize, time: f64, traits: Traits) -> Residual {
        Residual { source: format!("source {source}"), time: Some(time), memory: None, traits }
    }

    /// `sources` of 100 runs each, with residuals from −0.1 to 0.1 around 0.05.
    fn runs(sources: usize, generation: &str) -> Vec<Residual> {
        let of = |source| {
            (0..100)
                .map(move |run| residual(source, 0.05 + 0.002 * (f64::from(run) - 49.5), traits(generation)))
        };
        (0..sources).flat_map(of).collect()
    }

    #[test]
    fn many_sources_alike_give_their_quantiles() {
        // S = 40: the stretch is 1.0006, so the range is that of values from −0.049 to 0.149.
        let range = range(&runs(40, "hopper"), Quantity::Time, &traits("hopper"), None).unwrap();
        assert!((range.median.ln() - 0.05).abs() < 0.002, "{range:?}");
        assert!((range.low.ln() + 0.03).abs() < 0.003 && (range.high.ln() - 0.13).abs() < 0.003, "{range:?}");
        assert_eq!((range.runs, range.sources), (4_000, 40));
    }

    #[test]
    fn a_fraction_is_the_inverse_of_its_quantile() {
        let known = Distribution::new(&runs(40, "hopper"), Quantity::Time, &traits("hopper"), None).unwrap();
        for fraction in [0.05, 0.1, 0.3, 0.5, 0.7, 0.9, 0.95] {
            let found = known.fraction_below(known.quantile(fraction));
            assert!((found - fraction).abs() < 0.02, "{fraction} {found}");
        }
        assert_eq!((known.fraction_below(0.01), known.fraction_below(100.0)), (0.0, 1.0));
        // Half a source alike: the quantile is three times as far from the median.
        let one = Distribution::new(&runs(1, "hopper"), Quantity::Time, &traits("ampere"), None).unwrap();
        assert!(one.quantile(0.9) > known.quantile(0.9));
    }

    #[test]
    fn the_expected_ratio_is_the_mean_of_the_tenths() {
        // 60 of 100 runs at 1, 40 at 2: the tenths up to 0.6 are 1, the others 2. One source: the range is twice as wide, so
        // that its upper end is at 1 · (2 / 1)² = 4; the expected ratio is not concerned.
        let run = |run: i32| residual(0, if run < 60 { 0.0 } else { 2f64.ln() }, traits("hopper"));
        let runs: Vec<Residual> = (0..100).map(run).collect();
        let of_kind = Distribution::of_kind(&runs, Quantity::Time, &traits("hopper").kind).unwrap();
        assert!((of_kind.expected() - (6.0 + 3.0 * 2.0) / 9.0).abs() < 1e-9, "{}", of_kind.expected());
        assert!((of_kind.quantile(0.9) - 4.0).abs() < 1e-9, "{}", of_kind.quantile(0.9));
        assert!((of_kind.fraction_below(3.9) - 0.6).abs() < 1e-9 && of_kind.fraction_below(4.1) == 1.0);
    }

    #[test]
    fn the_shares_of_the_time_matter_to_the_time_alone() {
        let mut runs = runs(2, "hopper");
        runs.iter_mut().for_each(|residual| residual.memory = residual.time);
        let exposed = Traits { exposed: 0.9, ..traits("hopper") };
        let alike =
            |quantity, traits: &Traits| Distribution::new(&runs, quantity, traits, None).unwrap().alike();
        assert_eq!(alike(Quantity::Memory, &exposed), 2.0);
        assert!((alike(Quantity::Time, &exposed) - 2.0 * (-1.6f64).exp()).abs() < 1e-9);
        let of_kind = Distribution::of_kind(&runs, Quantity::Time, &exposed.kind).unwrap();
        assert_eq!(of_kind.alike(), 2.0);
    }

    #[test]
    fn ranges_are_wider_where_less_is_known() {
        let known = runs(3, "hopper");
        let width = |generation: &str, residuals: &[Residual]| {
            let range = range(residuals, Quantity::Time, &traits(generation), None).unwrap();
            (range.high / range.low, range.runs)
        };
        let (seen, runs_seen) = width("hopper", &known);
        let (unseen, runs_unseen) = width("blackwell", &known);
        assert!(unseen > seen && runs_unseen == 0 && runs_seen == 300, "{seen} {unseen}");
        assert!(seen > width("hopper", &runs(40, "hopper")).0);
    }

    #[test]
    fn a_source_left_out_does_not_count_and_another_quantity_has_none() {
        let mut residuals = runs(2, "hopper");
        residuals.extend((0..50).map(|_| residual(9, 2.0, traits("hopper"))));
        let high = |without| range(&residuals, Quantity::Time, &traits("hopper"), without).unwrap().high;
        assert!(high(None) > 7.0 && high(Some("source 9")) < 1.2);
        assert_eq!(range(&residuals, Quantity::Memory, &traits("hopper"), None), None);
    }

    #[test]
    fn residuals_are_read_as_they_were_written() {
        let mut residuals = runs(1, "hopper");
        residuals[0].memory = Some(-0.125);
        residuals[1].time = None;
        residuals[2].traits.kind.experts = true;
        let rounded = from_csv(&to_csv(&residuals)).unwrap();
        assert_eq!(from_csv(&to_csv(&rounded)).unwrap(), rounded);
        assert_eq!((rounded[0].memory, rounded[1].time), (Some(-0.125), None));
        assert!(rounded[2].traits.kind.experts && rounded.len() == 100);
        assert!(from_csv("source,time\na,b\n").unwrap_err().contains("line: 2"));
        let wild = to_csv(&residuals[..1]).replace("-0.125", "inf");
        assert!(from_csv(&wild).unwrap_err().contains("is not a number"));
    }

    #[test]
    fn a_large_source_does_not_outvote_the_others() {
        // 10,000 runs of one source at 1.0, 100 each of four at 0: √10,000 = 100 against 4 · √100 = 40. The median is the
        // large source's, the lower end the others': 1 below the median, times 1 + 1/25 for five sources alike.
        let mut residuals: Vec<Residual> = (0..10_000).map(|_| residual(9, 1.0, traits("hopper"))).collect();
        residuals.extend((0..400).map(|run| residual(run % 4, 0.0, traits("hopper"))));
        let range = range(&residuals, Quantity::Time, &traits("hopper"), None).unwrap();
        assert!((range.low.ln() + 0.04).abs() < 1e-9 && range.median == 1f64.exp(), "{range:?}");
    }
}
