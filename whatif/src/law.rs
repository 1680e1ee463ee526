//! Scaling laws: how large a model, and on how many tokens, a budget of FLOPs is spent best.

use serde::Deserialize;
use trainwright_spec::catalog;
use trainwright_spec::error::SpecError;
use trainwright_spec::sourced::Sourced;
use trainwright_spec::units::Flops;

/// The FLOPs that training spends on a parameter and a token: 2 forward, 4 backward.
const PER_PARAMETER_AND_TOKEN: f64 = 6.0;

/// The loss of a model of N parameters after D tokens.
///
/// L(N, D) = E + A / N^α + B / D^β
///
/// Source: Hoffmann et al. 2022, arXiv 2203.15556, equation 2; the constants are in the catalog, with theirs.
#[derive(Debug, Clone, PartialEq, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct ScalingLaw {
    /// E.
    pub entropy: Sourced<f64>,
    /// A.
    pub parameter_factor: Sourced<f64>,
    /// B.
    pub token_factor: Sourced<f64>,
    /// α.
    pub parameter_exponent: Sourced<f64>,
    /// β.
    pub token_exponent: Sourced<f64>,
}

/// How a budget is spent best.
#[derive(Debug, Clone, Copy, PartialEq)]
pub struct Optimum {
    /// Parameters of the model.
    pub parameters: f64,
    /// Tokens it is trained on.
    pub tokens: f64,
    /// Loss that the law expects, in nats per token of its data.
    pub loss: f64,
}

impl ScalingLaw {
    /// The law of that name in the catalog.
    ///
    /// # Errors
    /// `UnknownName` with the nearest names.
    pub fn from_name(name: &str) -> Result<ScalingLaw, SpecError> {
        let text = catalog::text("scaling-laws", name)?;
        Ok(toml::from_str(text).unwrap_or_else(|error| panic!("the catalog's {name} can be read: {error}")))
    }

    /// L(N, D).
    pub fn loss(&self, parameters: f64, tokens: f64) -> f64 {
        self.entropy.value
            + self.parameter_factor.value / libm::pow(parameters, self.parameter_exponent.value)
            + self.token_factor.value / libm::pow(tokens, self.token_exponent.value)
    }

    /// The least loss that a budget of C = 6 N D can buy.
    ///
    /// N = G (C/6)^a, D = (C/6)^b / G, G = (α A / (β B))^(1/(α+β)), a = β/(α+β), b = α/(α+β)
    ///
    /// Source: Hoffmann et al. 2022, arXiv 2203.15556, equation 4.
    pub fn optimum(&self, budget: Flops) -> Optimum {
        let (alpha, beta) = (self.parameter_exponent.value, self.token_exponent.value);
        let ratio = alpha * self.parameter_factor.value / (beta * self.token_factor.value);
        let g = libm::pow(ratio, 1.0 / (alpha + beta));
        let product = budget.get() / PER_PARAMETER_AND_TOKEN;
        let parameters = g * libm::pow(product, beta / (alpha + beta));
        let tokens = libm::pow(product, alpha / (alpha + beta)) / g;
        Optimum { parameters, tokens, loss: self.loss(parameters, tokens) }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn law(name: &str) -> ScalingLaw {
        ScalingLaw::from_name(name).unwrap()
    }

    #[test]
    fn the_optimum_spends_the_budget_and_no_other_split_of_it_is_better() {
        for name in catalog::names("scaling-laws") {
            for budget in [1e19, 5.76e23, 3.8e25] {
                let best = law(name).optimum(Flops::new(budget));
                assert!((6.0 * best.parameters * best.tokens / budget - 1.0).abs() < 1e-9, "{name}");
                for factor in [0.5, 0.9, 1.1, 2.0] {
                    let other = law(name).loss(factor * best.parameters, best.tokens / factor);
                    assert!(other > best.loss, "{name} {budget} {factor}");
                }
            }
        }
    }

    /// Hoffmann et al. 2022, table A3, approach 3: parameters and tokens of compute-optimal models.
    #[test]
    fn the_papers_third_approach_is_met() {
        for (budget, parameters, tokens) in
            [(2.21e19, 400e6, 9.2e9), (1.62e20, 1e9, 27.1e9), (2.46e22, 10e9, 410.1e9)]
        {
            let best = law("chinchilla").optimum(Flops::new(budget));
            assert!((best.parameters / parameters - 1.0).abs() < 0.06, "{budget}: {}", best.parameters);
            assert!((best.tokens / tokens - 1.0).abs() < 0.06, "{budget}: {}", best.tokens);
        }
    }
}
