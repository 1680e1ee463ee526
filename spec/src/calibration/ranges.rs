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

use super::residuals::{Ascending, Kind, Quantity, Residuals, Traits, Value};
use serde::Serialize;

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

/// The distribution of ln(measured / forecast) for one forecast.
#[derive(Debug, Clone, PartialEq)]
pub struct Distribution {
    /// Ascending, each with the sum of the weights up to it.
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
        residuals: &Residuals,
        quantity: Quantity,
        traits: &Traits,
        without: Option<&str>,
    ) -> Option<Self> {
        let of_kinds = distances(residuals, &traits.kind);
        match quantity {
            Quantity::Time => {
                let distance = |other: &Value| of_kinds[other.kind as usize] + traits.share_distance(other);
                Self::by(residuals.of(quantity), without.and_then(|name| residuals.source(name)), |other| {
                    let distance = distance(other);
                    (distance, libm::exp(-distance))
                })
            }
            // Errors of memory do not depend on how the step's time is spent.
            Quantity::Memory => Self::by_kind(residuals, quantity, &of_kinds, without),
        }
    }

    /// For all runs of a kind, however their step's time is spent.
    pub fn of_kind(residuals: &Residuals, quantity: Quantity, kind: &Kind) -> Option<Self> {
        Self::by_kind(residuals, quantity, &distances(residuals, kind), None)
    }

    /// For runs that differ by these distances from each kind.
    fn by_kind(
        residuals: &Residuals,
        quantity: Quantity,
        of_kinds: &[f64],
        without: Option<&str>,
    ) -> Option<Self> {
        let likeness: Vec<(f64, f64)> =
            of_kinds.iter().map(|distance| (*distance, libm::exp(-distance))).collect();
        let without = without.and_then(|name| residuals.source(name));
        Self::by(residuals.of(quantity), without, |other| likeness[other.kind as usize])
    }

    /// By the distance of each residual and exp(−distance), without a source.
    fn by(
        residuals: &Ascending,
        without: Option<u32>,
        likeness: impl Fn(&Value) -> (f64, f64),
    ) -> Option<Self> {
        let mut nearest = vec![0.0f64; residuals.roots.len()];
        let mut same = vec![0usize; residuals.roots.len()];
        let mut values = Vec::with_capacity(residuals.values.len());
        let mut sum = 0.0;
        for residual in residuals.values.iter().filter(|residual| Some(residual.source) != without) {
            let (distance, likeness) = likeness(residual);
            let (distance, likeness) = match residual.penalty {
                0.0 => (distance, likeness),
                penalty => (distance + penalty, likeness * libm::exp(-penalty)),
            };
            let source = residual.source as usize;
            nearest[source] = nearest[source].max(likeness);
            same[source] += usize::from(distance <= SAME);
            sum += likeness / residuals.roots[source];
            values.push((residual.value, sum));
        }
        let (runs, sources) = (same.iter().sum(), same.iter().filter(|runs| **runs > 0).count());
        (!values.is_empty()).then(|| Self { values, alike: nearest.iter().sum(), runs, sources })
    }

    /// The ratio of measured to forecast that this fraction of runs stays below: m · (q / m)^σ, m the median of the
    /// residuals' ratios and q their quantile, σ the stretch.
    pub fn quantile(&self, fraction: f64) -> f64 {
        let median = weighted_quantile(&self.values, 0.5);
        libm::exp(median + self.stretch() * (weighted_quantile(&self.values, fraction) - median))
    }

    /// The fraction of runs whose ratio of measured to forecast stays below this one: the inverse of `quantile`.
    pub fn fraction_below(&self, ratio: f64) -> f64 {
        let median = weighted_quantile(&self.values, 0.5);
        let value = median + (libm::log(ratio) - median) / self.stretch();
        let weight = |values: &[(f64, f64)]| values.last().map_or(0.0, |(_, sum)| *sum);
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
        let tenth = |tenth: i32| libm::exp(weighted_quantile(&self.values, f64::from(tenth) / 10.0));
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

/// The distance of a kind of run from each kind of the residuals.
fn distances(residuals: &Residuals, kind: &Kind) -> Vec<f64> {
    residuals.kinds().iter().map(|other| kind.distance(other)).collect()
}

/// The least value up to which there is this part of the weight; `values` are ascending, each with the sum of the weights up
/// to it.
fn weighted_quantile(values: &[(f64, f64)], part: f64) -> f64 {
    let all = values.last().map_or(0.0, |(_, sum)| *sum);
    let first = values.partition_point(|(_, sum)| *sum < part * all);
    values.get(first).or(values.last()).map_or(0.0, |(value, _)| *value)
}

#[cfg(test)]
mod tests {
    use super::super::residuals::{Residual, Spread};
    use super::*;

    fn traits(generation: &str) -> Traits {
        let spread = Spread { tensor_over_nodes: false, context: false, several_nodes: true };
        let kind = Kind {
            experts: false,
            adapters: false,
            generation: generation.into(),
            precision: "bf16".into(),
            spread,
        };
        Traits { kind, exposed: 0.1, host: 0.2 }
    }

    fn range(
        residuals: &[Residual],
        quantity: Quantity,
        traits: &Traits,
        without: Option<&str>,
    ) -> Option<Range> {
        Some(distribution(residuals, quantity, traits, without)?.range())
    }

    fn distribution(
        residuals: &[Residual],
        quantity: Quantity,
        traits: &Traits,
        without: Option<&str>,
    ) -> Option<Distribution> {
        Distribution::new(&residuals.iter().cloned().collect(), quantity, traits, without)
    }

    fn of_kind(residuals: &[Residual], kind: &Kind) -> Distribution {
        Distribution::of_kind(&residuals.iter().cloned().collect(), Quantity::Time, kind).unwrap()
    }

    fn residual(source: usize, time: f64, traits: Traits) -> Residual {
        Residual {
            source: format!("source {source}"),
            time: Some(time),
            memory: None,
            between_steps: false,
            traits,
        }
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
        assert!((libm::log(range.median) - 0.05).abs() < 0.002, "{range:?}");
        assert!(
            (libm::log(range.low) + 0.03).abs() < 0.003 && (libm::log(range.high) - 0.13).abs() < 0.003,
            "{range:?}"
        );
        assert_eq!((range.runs, range.sources), (4_000, 40));
    }

    #[test]
    fn a_fraction_is_the_inverse_of_its_quantile() {
        let known = distribution(&runs(40, "hopper"), Quantity::Time, &traits("hopper"), None).unwrap();
        for fraction in [0.05, 0.1, 0.3, 0.5, 0.7, 0.9, 0.95] {
            let found = known.fraction_below(known.quantile(fraction));
            assert!((found - fraction).abs() < 0.02, "{fraction} {found}");
        }
        assert_eq!((known.fraction_below(0.01), known.fraction_below(100.0)), (0.0, 1.0));
        // Half a source alike: the quantile is three times as far from the median.
        let one = distribution(&runs(1, "hopper"), Quantity::Time, &traits("ampere"), None).unwrap();
        assert!(one.quantile(0.9) > known.quantile(0.9));
    }

    #[test]
    fn the_expected_ratio_is_the_mean_of_the_tenths() {
        // 60 of 100 runs at 1, 40 at 2: the tenths up to 0.6 are 1, the others 2. One source: the range is twice as wide, so
        // that its upper end is at 1 · (2 / 1)² = 4; the expected ratio is not concerned.
        let run = |run: i32| residual(0, if run < 60 { 0.0 } else { libm::log(2.0) }, traits("hopper"));
        let runs: Vec<Residual> = (0..100).map(run).collect();
        let of_kind = of_kind(&runs, &traits("hopper").kind);
        assert!((of_kind.expected() - (6.0 + 3.0 * 2.0) / 9.0).abs() < 1e-9, "{}", of_kind.expected());
        assert!((of_kind.quantile(0.9) - 4.0).abs() < 1e-9, "{}", of_kind.quantile(0.9));
        assert!((of_kind.fraction_below(3.9) - 0.6).abs() < 1e-9 && of_kind.fraction_below(4.1) == 1.0);
    }

    #[test]
    fn the_shares_of_the_time_matter_to_the_time_alone() {
        let mut runs = runs(2, "hopper");
        runs.iter_mut().for_each(|residual| residual.memory = residual.time);
        let exposed = Traits { exposed: 0.9, ..traits("hopper") };
        let alike = |quantity, traits: &Traits| distribution(&runs, quantity, traits, None).unwrap().alike();
        assert_eq!(alike(Quantity::Memory, &exposed), 2.0);
        assert!((alike(Quantity::Time, &exposed) - 2.0 * libm::exp(-1.6f64)).abs() < 1e-9);
        let of_kind = of_kind(&runs, &exposed.kind);
        assert_eq!(of_kind.alike(), 2.0);
    }

    #[test]
    fn memory_between_steps_says_less_of_a_peak() {
        let mut runs = runs(2, "hopper");
        runs.iter_mut().for_each(|residual| residual.memory = residual.time);
        runs.iter_mut().filter(|run| run.source == "source 1").for_each(|run| run.between_steps = true);
        let alike = |quantity| {
            let known = distribution(&runs, quantity, &traits("hopper"), None).unwrap();
            (known.alike(), known.range().runs)
        };
        assert_eq!(alike(Quantity::Time), (2.0, 200));
        let (memory, similar) = alike(Quantity::Memory);
        assert!((memory - (1.0 + libm::exp(-1.0f64))).abs() < 1e-12 && similar == 100, "{memory} {similar}");
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

    /// The definition at the top of this file, term by term.
    #[test]
    fn weights_and_quantiles_are_those_of_their_definition() {
        let mut state = 3u64;
        let mut random = move |below: u64| {
            state = state.wrapping_mul(6364136223846793005).wrapping_add(1442695040888963407);
            (state >> 33) % below
        };
        let mut run = || {
            let mut traits = traits(["hopper", "ampere", "volta"][random(3) as usize]);
            traits.kind.experts = random(2) == 0;
            traits.exposed = random(10) as f64 / 10.0;
            let memory = (random(3) > 0).then(|| random(50) as f64 / 100.0);
            Residual { memory, ..residual(random(6) as usize, random(100) as f64 / 100.0, traits) }
        };
        let runs: Vec<Residual> = (0..300).map(|_| run()).collect();
        for (quantity, without) in
            [(Quantity::Time, None), (Quantity::Time, Some("source 2")), (Quantity::Memory, Some("source 4"))]
        {
            let traits = Traits { exposed: 0.3, ..traits("ampere") };
            let of = |run: &Residual| if quantity == Quantity::Time { run.time } else { run.memory };
            let counted: Vec<&Residual> =
                runs.iter().filter(|run| of(run).is_some() && Some(run.source.as_str()) != without).collect();
            let likeness = |run: &Residual| {
                let shares = match quantity {
                    Quantity::Time => 2.0 * (run.traits.exposed - traits.exposed).abs(),
                    Quantity::Memory => 0.0,
                };
                libm::exp(-traits.kind.distance(&run.traits.kind) - shares)
            };
            let in_source = |source: &str| counted.iter().filter(|other| other.source == source).count();
            let weight = |run: &&Residual| likeness(run) / (in_source(&run.source) as f64).sqrt();
            let all: f64 = counted.iter().map(weight).sum();
            let known = distribution(&runs, quantity, &traits, without).unwrap();
            for part in [0.1, 0.37, 0.5, 0.9] {
                let value = weighted_quantile(&known.values, part);
                let below = |limit: f64| {
                    let below = counted.iter().filter(|run| of(run).is_some_and(|value| value < limit));
                    below.map(weight).sum::<f64>() / all
                };
                assert!(below(value) < part && below(value + 1e-9) >= part, "{quantity:?} {part}: {value}");
            }
            let nearest = |source: usize| {
                let runs = counted.iter().filter(|run| run.source == format!("source {source}"));
                runs.map(|run| likeness(run)).fold(0.0, f64::max)
            };
            assert!((known.alike() - (0..6).map(nearest).sum::<f64>()).abs() < 1e-12, "{quantity:?}");
        }
    }

    #[test]
    fn a_large_source_does_not_outvote_the_others() {
        // 10,000 runs of one source at 1.0, 100 each of four at 0: √10,000 = 100 against 4 · √100 = 40. The median is the
        // large source's, the lower end the others': 1 below the median, times 1 + 1/25 for five sources alike.
        let mut residuals: Vec<Residual> = (0..10_000).map(|_| residual(9, 1.0, traits("hopper"))).collect();
        residuals.extend((0..400).map(|run| residual(run % 4, 0.0, traits("hopper"))));
        let range = range(&residuals, Quantity::Time, &traits("hopper"), None).unwrap();
        assert!((libm::log(range.low) + 0.04).abs() < 1e-9 && range.median == libm::exp(1.0), "{range:?}");
    }
}
