//! Partial pooling: a robust linear model whose unknowns belong to levels, with the spread of each level estimated from
//! the data. It is free of units and knows nothing of training.

use nalgebra::{Cholesky, DMatrix, DVector};

/// An observation, linear in the unknowns: value = Σ slope · unknown + error.
#[derive(Debug, Clone, PartialEq)]
pub struct Observation {
    /// What was measured.
    pub value: f64,
    /// The unknowns that it depends on, by index, and how much.
    pub slopes: Vec<(usize, f64)>,
}

/// The levels of the unknowns: an unknown of level l has the prior N(0, τ_l²).
#[derive(Debug, Clone, PartialEq, Default)]
pub struct Levels {
    /// The level of each unknown, by index.
    pub of: Vec<usize>,
    /// The largest τ of each level.
    pub limits: Vec<f64>,
}

/// Degrees of freedom of Student's t, the distribution of errors.
const FREEDOM: f64 = 3.0;

/// First estimates: τ of each level, and the scale of errors.
const FIRST: f64 = 0.1;

/// Least τ, and scale of errors: what is smaller is 0 in a table of three digits.
const LEAST: f64 = 1e-4;

/// Steps of the estimation.
const STEPS: usize = 50;

/// The unknowns' expected values; 0 for those that no observation depends on.
///
/// y = X u + ε,  u ~ N(0, diag τ²),  ε ~ t_ν(0, σ²).  Each step, with weights w:
///
/// C = (Xᵀ W X / σ² + diag τ⁻²)⁻¹,  u = C Xᵀ W y / σ²,  q = (y − x u)² + x C xᵀ,
///
/// τ_l² = mean over the level of u² + C_uu, at most the limit,  w = (ν + 1) / (ν + q / σ²),  σ² = mean of w q
///
/// This is expectation maximisation of the marginal likelihood in τ and σ (empirical Bayes; Dempster, Laird & Rubin
/// 1977, J. R. Stat. Soc. B 39(1), 1–38), with Student's t as a mixture of normals (Lange, Little & Taylor 1989,
/// J. Am. Stat. Assoc. 84(408), 881–896). An outlier gets next to no weight. A level whose unknowns do not differ by more
/// than their uncertainty gets a small τ, which pulls all of them to 0.
pub fn fit(observations: &[Observation], levels: &Levels) -> Vec<f64> {
    // Unknowns without observations would only widen the levels and the matrix.
    let mut used = vec![false; levels.of.len()];
    observations
        .iter()
        .flat_map(|observation| &observation.slopes)
        .for_each(|(index, _)| used[*index] = true);
    let present: Vec<usize> = (0..used.len()).filter(|index| used[*index]).collect();
    let mut at = vec![usize::MAX; used.len()];
    present.iter().enumerate().for_each(|(position, index)| at[*index] = position);
    let rows: Vec<Vec<(usize, f64)>> = observations
        .iter()
        .map(|observation| observation.slopes.iter().map(|(index, slope)| (at[*index], *slope)).collect())
        .collect();
    let of: Vec<usize> = present.iter().map(|index| levels.of[*index]).collect();
    let mut spreads: Vec<f64> = levels.limits.iter().map(|limit| FIRST.min(*limit).powi(2)).collect();
    let mut scale = FIRST * FIRST;
    let mut weights = vec![1.0; rows.len()];
    let mut values = DVector::zeros(present.len());
    for _ in 0..STEPS {
        let mut precision = DMatrix::zeros(present.len(), present.len());
        let mut pulled = DVector::zeros(present.len());
        for (index, level) in of.iter().enumerate() {
            precision[(index, index)] = 1.0 / spreads[*level];
        }
        for ((row, observation), weight) in rows.iter().zip(observations).zip(&weights) {
            for (index, slope) in row {
                let by = slope * weight / scale;
                pulled[*index] += by * observation.value;
                row.iter().for_each(|(other, slope)| precision[(*other, *index)] += by * slope);
            }
        }
        let covariance = Cholesky::new(precision).expect("the priors make the precision definite").inverse();
        values = &covariance * pulled;
        for (level, spread) in spreads.iter_mut().enumerate() {
            let of_level = (0..of.len()).filter(|index| of[*index] == level);
            let squares: Vec<f64> =
                of_level.map(|index| values[index].powi(2) + covariance[(index, index)]).collect();
            let mean = squares.iter().sum::<f64>() / squares.len().max(1) as f64;
            *spread = mean.min(levels.limits[level].powi(2)).max(LEAST * LEAST);
        }
        let mut total = 0.0;
        for ((row, observation), weight) in rows.iter().zip(observations).zip(&mut weights) {
            let expected: f64 = row.iter().map(|(index, slope)| slope * values[*index]).sum();
            let of_one = |(index, slope): &(usize, f64)| -> f64 {
                slope * row.iter().map(|(other, by)| by * covariance[(*other, *index)]).sum::<f64>()
            };
            let square = (observation.value - expected).powi(2) + row.iter().map(of_one).sum::<f64>();
            *weight = (FREEDOM + 1.0) / (FREEDOM + square / scale);
            total += *weight * square;
        }
        scale = (total / rows.len().max(1) as f64).max(LEAST * LEAST);
    }
    let mut all = vec![0.0; used.len()];
    present.iter().zip(values.iter()).for_each(|(index, value)| all[*index] = *value);
    all
}

#[cfg(test)]
mod tests {
    use super::*;

    fn observation(value: f64, slopes: &[(usize, f64)]) -> Observation {
        Observation { value, slopes: slopes.to_vec() }
    }

    #[test]
    fn outliers_do_not_count() {
        // Ninety rows ask for 0.2, ten for −3: the mean would be −0.12.
        let mut rows: Vec<Observation> =
            (0..90).map(|row| observation(0.2 + 0.01 * f64::from(row % 3 - 1), &[(0, 1.0)])).collect();
        rows.extend(vec![observation(-3.0, &[(0, 1.0)]); 10]);
        let values = fit(&rows, &Levels { of: vec![0], limits: vec![10.0] });
        assert!((values[0] - 0.2).abs() < 0.01, "{values:?}");
    }

    #[test]
    fn a_level_without_differences_is_pulled_to_nothing_and_one_with_them_is_not() {
        // Unknowns 0 to 5 (level 0) are ±0.3, 6 to 11 (level 1) all 0; errors of ±0.05 cancel in neither.
        let rows: Vec<Observation> = (0..12)
            .flat_map(|unknown| {
                let truth = if unknown < 6 { 0.3 * [1.0, -1.0][unknown % 2] } else { 0.0 };
                let errors = [0.05, -0.04, 0.05, -0.05, 0.03];
                errors
                    .map(|error| observation(truth + error * [1.0, -1.0][unknown / 2 % 2], &[(unknown, 1.0)]))
            })
            .collect();
        let values =
            fit(&rows, &Levels { of: (0..12).map(|unknown| unknown / 6).collect(), limits: vec![10.0; 2] });
        assert!(values[..6].iter().all(|value| (value.abs() - 0.3).abs() < 0.02), "{values:?}");
        assert!(values[6..].iter().all(|value| value.abs() < 0.004), "{values:?}");
    }

    #[test]
    fn limits_hold_and_unknowns_without_observations_stay() {
        // τ² = 0.01: one observation of 1 with errors of σ² from the others' 0.1 cannot move its unknown by more than 0.5.
        let mut rows = vec![observation(1.0, &[(0, 1.0)])];
        rows.extend((0..40).map(|row| observation(0.1 * f64::from(row % 2 * 2 - 1), &[])));
        let values = fit(&rows, &Levels { of: vec![0, 0], limits: vec![0.1] });
        assert!(values[0] < 0.5, "{values:?}");
        assert_eq!(values[1], 0.0);
    }

    #[test]
    fn two_unknowns_are_separated() {
        // x + y = 0.3 and x − y = 0.1: x = 0.2, y = 0.1.
        let mut rows = vec![observation(0.3, &[(0, 1.0), (1, 1.0)]); 50];
        rows.extend(vec![observation(0.1, &[(0, 1.0), (1, -1.0)]); 50]);
        let values = fit(&rows, &Levels { of: vec![0, 1], limits: vec![10.0; 2] });
        assert!((values[0] - 0.2).abs() < 0.01 && (values[1] - 0.1).abs() < 0.01, "{values:?}");
    }
}
