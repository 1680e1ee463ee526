//! The calibration's unknowns and their levels: parameter → owner, beside those of each source.

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
    /// The factors of each owner and, except for times of the host, of [`ANY`].
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

/// An unknown of the fit. Derived order is that of the matrix.
#[derive(Debug, Clone, PartialEq, Eq, PartialOrd, Ord)]
enum Unknown {
    /// A parameter's mean over its owners.
    Mean(&'static str),
    /// An owner's difference from it.
    Owner(&'static str, String),
    /// A source's difference in a parameter.
    OfSource(&'static str, String),
}

impl Unknown {
    /// Name of the level: unknowns of one level share their τ.
    fn level(&self) -> (u8, &'static str) {
        match self {
            Unknown::Mean(parameter) => (0, parameter),
            Unknown::Owner(parameter, _) => (1, parameter),
            Unknown::OfSource(parameter, _) => (2, parameter),
        }
    }

    fn limit(&self) -> f64 {
        match self {
            Unknown::Mean(_) | Unknown::Owner(..) => LIMIT,
            Unknown::OfSource(..) => LIMIT_OF_SOURCE,
        }
    }
}

/// The factors that explain the rows.
///
/// ln f_ko = h_k (θ_k + δ_ko)
///
/// θ_k: the parameter's mean, δ_ko: the owner's difference from it, both over h_k, half of the logarithmic width of the
/// physical range. A source has a separate δ_ks in the same place. Only what sources share makes factors: a large source
/// decides about its unknowns with all its rows, and about the others like one draw of many. `ANY` has δ = 0.
/// θ_k = 0 for times of the host: the time that one stack takes is no evidence for another stack, so no factor of `ANY`
/// is written. δ_ks = 0 for them too: most stacks have the runs of one source, and a term of the source would take half
/// of what belongs to the stack.
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
        let mean = half_width(parameter) * value(&Unknown::Mean(name));
        let mut add = |of: &str, logarithm: f64| {
            let (factor, remark) = within(parameter, of, logarithm);
            solution.factors.push(Factor { parameter: name.into(), of: of.into(), factor });
            solution.remarks.extend(remark);
        };
        if has_mean(parameter) {
            add(ANY, mean);
        }
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
    let free = libm::exp(logarithm);
    let factor = (1000.0 * free.clamp(parameter.low, parameter.high)).round() / 1000.0;
    let remark = (free < parameter.low || free > parameter.high).then(|| {
        format!("{} of {of}: the fit asks for {free:.3}, the physical range ends at {factor}", parameter.name)
    });
    (factor, remark)
}

/// What a row says about each unknown.
fn terms(row: &Row) -> Vec<(Unknown, f64)> {
    let of_one = |(parameter, owner, slope): &(&'static Parameter, String, f64)| {
        let name = parameter.name.as_str();
        let slope = half_width(parameter) * slope;
        let of_owner = (Unknown::Owner(name, owner.clone()), slope);
        let shared = [(Unknown::Mean(name), slope), (Unknown::OfSource(name, row.source.clone()), slope)];
        std::iter::once(of_owner).chain(shared.into_iter().filter(|_| has_mean(parameter)))
    };
    row.slopes.iter().flat_map(of_one).collect()
}

/// Whether the owners of a parameter have a mean in common, which owners that were not seen get too, and sources differ.
fn has_mean(parameter: &Parameter) -> bool {
    parameter.kind != Kind::Time
}

/// Half of the logarithmic width of the physical range.
fn half_width(parameter: &Parameter) -> f64 {
    libm::log(parameter.high / parameter.low.max(LEAST)) / 2.0
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
            let slope = if parameter(parameter_name).kind == Kind::Rate { -share } else { share };
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
        libm::log(factor.unwrap_or_else(|| panic!("no {parameter} of {of} in {solution:?}")).factor)
    }

    #[test]
    fn factors_are_found_and_owners_that_were_not_seen_get_the_mean() {
        let solution = solve(&three_sources(TRUTH));
        for (parameter, of, expected) in TRUTH {
            let found = logarithm(&solution, parameter, of);
            assert!((found - expected).abs() < 0.02, "{parameter} of {of}: {found} and not {expected}");
        }
        // τ of the mean and of the owners' differences have a limit, which pulls the mean towards 0.
        let mean = logarithm(&solution, "memory", ANY);
        assert!((-0.15..-0.08).contains(&mean), "{mean}");
        // Without the runs on one generation: no separate factor, and the mean is close to it.
        let others: Vec<Row> =
            three_sources(TRUTH).into_iter().filter(|row| row.slopes[0].1 != "volta").collect();
        let solution = solve(&others);
        assert!(solution.factors.iter().all(|factor| factor.of != "volta"));
        assert!((-0.15..-0.07).contains(&logarithm(&solution, "memory", ANY)), "{solution:?}");
        // Nothing depends on it.
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
            let moved = logarithm(&wild, &factor.parameter, &factor.of) - libm::log(factor.factor);
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
        let solution = solve(&three_sources(&[("launch", "nanotron", 1.5), ("launch", "llm-foundry", 0.5)]));
        let launch = Parameter::from_name("launch").unwrap();
        assert!((libm::exp(logarithm(&solution, "launch", "nanotron")) - launch.high).abs() < 1e-12);
        let [remark] = &solution.remarks[..] else { panic!("{:?}", solution.remarks) };
        assert!(remark.contains("nanotron") && remark.contains("range ends at 3"), "{remark}");
    }

    #[test]
    fn times_of_a_host_are_no_evidence_for_another_stack() {
        let truth: Truth =
            &[("launch", "nanotron", 0.3), ("launch", "megatron-core-2024", 0.3), ("matrix", "ampere", -0.1)];
        let solution = solve(&three_sources(truth));
        for stack in ["nanotron", "megatron-core-2024"] {
            let found = logarithm(&solution, "launch", stack);
            assert!((found - 0.3).abs() < 0.03, "{stack}: {found}");
        }
        let of_any: Vec<&str> = solution
            .factors
            .iter()
            .filter(|factor| factor.of == ANY)
            .map(|factor| factor.parameter.as_str())
            .collect();
        assert_eq!(of_any, ["attention", "exchange", "matrix", "memory", "traffic"]);
        // Slower products are no evidence for anything else either.
        assert!(logarithm(&solution, "matrix", ANY) < -0.05, "{solution:?}");
        assert_eq!(logarithm(&solution, "exchange", ANY), 0.0);
    }
}
