//! The calibration's unknowns and their levels: everything → parameter → owner, beside those of each source.

use super::pooled::{self, Levels, Observation};
use std::collections::{BTreeMap, BTreeSet};
use trainwright_spec::calibration::{ANY, Factor, Kind, Parameter};

/// A measured run, linear in the logarithms of the factors.
#[derive(Debug, Clone, PartialEq)]
pub struct Row {
    /// Name of its source.
    pub source: String,
    /// ln measured − ln forecast with the catalog as it is.
    pub value: f64,
    /// The factors that it has: parameter, owner, d ln step time / d ln factor.
    pub slopes: Vec<(&'static Parameter, String, f64)>,
}

/// Factors, and what there is to say about them.
#[derive(Debug, Clone, PartialEq, Default)]
pub struct Solution {
    /// The factors of each owner, and of [`ANY`].
    pub factors: Vec<Factor>,
    /// Factors that the fit would have out of their physical range.
    pub remarks: Vec<String>,
}

/// Lower bound of factors that may be 0, for their logarithm.
pub const LEAST: f64 = 0.05;

/// Largest τ of a parameter's mean and of its owners, over half of the logarithmic width of the physical range: the end
/// of the range is then almost three standard deviations of both away.
const LIMIT: f64 = 0.25;

/// The same for the unknowns of one source: no more than the physical range.
const LIMIT_OF_SOURCE: f64 = 1.0;

/// Largest τ of everything and of one source's slowness, logarithmic: no limit in practice.
const LIMIT_OF_ALL: f64 = 1.0;

/// An unknown of the fit. Derived order is that of the matrix.
#[derive(Debug, Clone, PartialEq, Eq, PartialOrd, Ord)]
enum Unknown {
    /// By how much everything is slower.
    Common,
    /// A parameter's mean.
    Mean(&'static str),
    /// An owner's difference from it.
    Owner(&'static str, String),
    /// By how much everything is slower in one source.
    Source(String),
    /// A source's difference in a parameter.
    OfSource(&'static str, String),
}

impl Unknown {
    /// Name of the level: unknowns of one level share their τ.
    fn level(&self) -> (u8, &'static str) {
        match self {
            Unknown::Common => (0, ""),
            Unknown::Mean(parameter) => (1, parameter),
            Unknown::Owner(parameter, _) => (2, parameter),
            Unknown::Source(_) => (3, ""),
            Unknown::OfSource(parameter, _) => (4, parameter),
        }
    }

    fn limit(&self) -> f64 {
        match self {
            Unknown::Mean(_) | Unknown::Owner(..) => LIMIT,
            Unknown::OfSource(..) => LIMIT_OF_SOURCE,
            Unknown::Common | Unknown::Source(_) => LIMIT_OF_ALL,
        }
    }
}

/// The factors that explain the rows.
///
/// ln f_ko = ±c + h_k (θ_k + δ_ko)
///
/// c: by how much everything is slower; − for rates, + for times, 0 for amounts of work. θ_k: the parameter's mean,
/// δ_ko: the owner's difference from it, both over h_k, half of the logarithmic width of the physical range. A source has
/// separate c_s and δ_ks in the same places. Only what sources share makes factors: a large source decides about its
/// unknowns with all its rows, and about the others like one draw of many. `ANY` has δ = 0.
pub fn solve(rows: &[Row]) -> Solution {
    let terms: Vec<Vec<(Unknown, f64)>> = rows.iter().map(terms).collect();
    let names: BTreeSet<&Unknown> = terms.iter().flatten().map(|(unknown, _)| unknown).collect();
    let names: Vec<&Unknown> = names.into_iter().collect();
    let index: BTreeMap<&Unknown, usize> =
        names.iter().enumerate().map(|(index, name)| (*name, index)).collect();
    let limits: BTreeMap<(u8, &str), f64> = names.iter().map(|name| (name.level(), name.limit())).collect();
    let level = |name: &&Unknown| limits.keys().position(|key| *key == name.level()).expect("listed above");
    let levels = Levels { of: names.iter().map(level).collect(), limits: limits.values().copied().collect() };
    let observation = |(row, terms): (&Row, &Vec<(Unknown, f64)>)| Observation {
        value: row.value,
        slopes: terms.iter().map(|(unknown, slope)| (index[unknown], *slope)).collect(),
    };
    let observations: Vec<Observation> = rows.iter().zip(&terms).map(observation).collect();
    let values = pooled::fit(&observations, &levels);
    let value = |unknown: &Unknown| index.get(unknown).map_or(0.0, |index| values[*index]);
    let mut solution = Solution::default();
    for parameter in Parameter::all() {
        let name = parameter.name.as_str();
        let mean =
            sign(parameter) * value(&Unknown::Common) + half_width(parameter) * value(&Unknown::Mean(name));
        let mut add = |of: &str, logarithm: f64| {
            let (factor, remark) = within(parameter, of, logarithm);
            solution.factors.push(Factor { parameter: name.into(), of: of.into(), factor });
            solution.remarks.extend(remark);
        };
        add(ANY, mean);
        for unknown in &names {
            if let Unknown::Owner(of, owner) = unknown
                && *of == name
            {
                add(owner, mean + half_width(parameter) * value(unknown));
            }
        }
    }
    solution
}

/// The factor to three digits, in the physical range, and a remark if that moved it.
fn within(parameter: &Parameter, of: &str, logarithm: f64) -> (f64, Option<String>) {
    let free = logarithm.exp();
    let factor = (1000.0 * free.clamp(parameter.low, parameter.high)).round() / 1000.0;
    let remark = (free < parameter.low || free > parameter.high).then(|| {
        format!("{} of {of}: the fit asks for {free:.3}, the physical range ends at {factor}", parameter.name)
    });
    (factor, remark)
}

/// What a row says about each unknown.
fn terms(row: &Row) -> Vec<(Unknown, f64)> {
    let slowness: f64 = row.slopes.iter().map(|(parameter, _, slope)| sign(parameter) * slope).sum();
    let all = [(Unknown::Common, slowness), (Unknown::Source(row.source.clone()), slowness)];
    let of_one = |(parameter, owner, slope): &(&'static Parameter, String, f64)| {
        let name = parameter.name.as_str();
        let slope = half_width(parameter) * slope;
        [
            (Unknown::Mean(name), slope),
            (Unknown::Owner(name, owner.clone()), slope),
            (Unknown::OfSource(name, row.source.clone()), slope),
        ]
    };
    all.into_iter().chain(row.slopes.iter().flat_map(of_one)).collect()
}

/// In which direction a slower machine moves the factor.
fn sign(parameter: &Parameter) -> f64 {
    match parameter.kind {
        Kind::Rate => -1.0,
        Kind::Time => 1.0,
        Kind::Bytes => 0.0,
    }
}

/// Half of the logarithmic width of the physical range.
fn half_width(parameter: &Parameter) -> f64 {
    (parameter.high / parameter.low.max(LEAST)).ln() / 2.0
}

#[cfg(test)]
mod tests {
    use super::*;

    /// What a synthetic source measures: logarithms of factors by parameter and owner.
    type Truth<'a> = &'a [(&'a str, &'a str, f64)];

    /// Runs that differ in what they depend on, with errors of up to 1 %.
    fn runs(source: &str, count: usize, truth: Truth) -> Vec<Row> {
        let parameter = |name: &str| Parameter::all().iter().find(|known| known.name == name).unwrap();
        let run = |index: usize| {
            let (parameter_name, owner, _) = truth[index % truth.len()];
            let share = 0.1 + 0.5 * ((index * 7 % 11) as f64 / 11.0);
            let slope = sign(parameter(parameter_name)) * share;
            let logarithm = truth[index % truth.len()].2;
            let error = 0.01 * ((index * 5 % 7) as f64 / 3.0 - 1.0);
            Row {
                source: source.into(),
                value: slope * logarithm + error,
                slopes: vec![(parameter(parameter_name), owner.into(), slope)],
            }
        };
        (0..count).map(run).collect()
    }

    const TRUTH: Truth<'static> = &[
        ("memory", "ampere", -0.17),
        ("memory", "hopper", -0.13),
        ("memory", "volta", -0.15),
        ("launch", "nanotron", 0.3),
    ];

    fn three_sources(truth: Truth) -> Vec<Row> {
        ["a", "b", "c"]
            .iter()
            .zip([80, 120, 160])
            .flat_map(|(source, count)| runs(source, count, truth))
            .collect()
    }

    fn logarithm(solution: &Solution, parameter: &str, of: &str) -> f64 {
        let factor = solution.factors.iter().find(|factor| factor.parameter == parameter && factor.of == of);
        factor.unwrap_or_else(|| panic!("no {parameter} of {of} in {solution:?}")).factor.ln()
    }

    #[test]
    fn factors_are_found_and_owners_that_were_not_seen_get_the_mean() {
        let solution = solve(&three_sources(TRUTH));
        for (parameter, of, expected) in TRUTH {
            let found = logarithm(&solution, parameter, of);
            assert!((found - expected).abs() < 0.02, "{parameter} of {of}: {found} and not {expected}");
        }
        let mean = logarithm(&solution, "memory", ANY);
        assert!((mean + 0.15).abs() < 0.02, "{mean}");
        // Without the runs on one generation: no separate factor, and the mean is close to it.
        let others: Vec<Row> =
            three_sources(TRUTH).into_iter().filter(|row| row.slopes[0].1 != "volta").collect();
        let solution = solve(&others);
        assert!(solution.factors.iter().all(|factor| factor.of != "volta"));
        assert!((logarithm(&solution, "memory", ANY) + 0.15).abs() < 0.03, "{solution:?}");
        // Nothing depends on it, and no machine's speed changes it.
        assert_eq!(logarithm(&solution, "traffic", ANY), 0.0);
        assert!(solution.remarks.is_empty());
    }

    #[test]
    fn a_wild_job_moves_nothing() {
        let calm = solve(&three_sources(TRUTH));
        let mut rows = three_sources(TRUTH);
        // It took e² = 7.4 times the forecast.
        rows[2].value = 2.0;
        let wild = solve(&rows);
        for factor in &calm.factors {
            let moved = logarithm(&wild, &factor.parameter, &factor.of) - factor.factor.ln();
            assert!(moved.abs() < 0.01, "{} of {} moved by {moved}", factor.parameter, factor.of);
        }
        // Nor does a source of one wild job.
        let mut rows = three_sources(TRUTH);
        rows.push(Row { source: "wild".into(), value: 2.0, ..rows[2].clone() });
        let moved = logarithm(&solve(&rows), "memory", ANY) - logarithm(&calm, "memory", ANY);
        assert!(moved.abs() < 0.01, "{moved}");
    }

    #[test]
    fn a_large_source_counts_like_a_small_one() {
        // Three sources with −0.05 and one with −0.25: the mean is −0.1; that of the rows is −0.23.
        // All agree about products: it is no slowness of everything.
        let of = |logarithm: f64| [("memory", "ampere", logarithm), ("matrix", "ampere", 0.0)];
        let small = ["a", "b", "c"].iter().flat_map(|source| runs(source, 80, &of(-0.05)));
        let rows: Vec<Row> = small.chain(runs("large", 2400, &of(-0.25))).collect();
        let found = logarithm(&solve(&rows), "memory", "ampere");
        assert!((-0.14..-0.02).contains(&found), "{found}");
    }

    #[test]
    fn factors_stay_in_the_physical_range_with_a_remark() {
        let solution = solve(&three_sources(&[("memory", "ampere", -0.6), ("memory", "hopper", -0.6)]));
        let memory = Parameter::from_name("memory").unwrap();
        assert_eq!(logarithm(&solution, "memory", "ampere").exp(), memory.low);
        let remark = solution.remarks.iter().find(|remark| remark.contains("ampere"));
        assert!(remark.is_some_and(|remark| remark.contains("range ends at 0.7")), "{:?}", solution.remarks);
    }

    #[test]
    fn everything_slower_means_less_of_rates_and_more_of_times() {
        // Three sources measure 1.1 times every forecast, whatever the runs depend on.
        let slower: Truth =
            &[("matrix", "ampere", -0.1), ("memory", "ampere", -0.1), ("launch", "nanotron", 0.1)];
        let rows: Vec<Row> = ["a", "b", "c", "d"]
            .iter()
            .flat_map(|source| runs(source, 90, slower))
            .map(|row| {
                // The whole step depends on that one parameter.
                let slope = row.slopes[0].2;
                let value = row.value / slope.abs();
                let slopes =
                    row.slopes.into_iter().map(|(known, of, slope)| (known, of, slope.signum())).collect();
                Row { value, slopes, ..row }
            })
            .collect();
        let solution = solve(&rows);
        assert!(logarithm(&solution, "matrix", ANY) < -0.05, "{solution:?}");
        assert!(logarithm(&solution, "exchange", ANY) < -0.02, "{solution:?}");
        assert!(logarithm(&solution, "message", ANY) > 0.02, "{solution:?}");
        assert_eq!(logarithm(&solution, "traffic", ANY), 0.0);
    }
}
