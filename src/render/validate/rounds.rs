//! Rounds of measuring the machine and the plan in turn: how much the machine itself varies, and errors that cancel.

use trainwright_spec::units::Seconds;
use trainwright_timeline::comparison::{Comparison, Pair};

/// What each round found, and how busy the machine was with other things.
#[derive(Debug, Clone, Default)]
pub struct Rounds {
    /// A step's time in each: the forecast from the machine as the round measured it, and the median of its steps.
    pub times: Vec<Pair<Seconds>>,
    /// The part of the cores' time that other programs took meanwhile, 0 to 1; `None` if the system does not say.
    pub others: Option<f64>,
}

impl Rounds {
    /// The smallest and the largest error of a round; `None` of a single round.
    pub fn errors(&self) -> Option<[f64; 2]> {
        let errors = || self.times.iter().filter_map(Pair::<Seconds>::error);
        let ends = |best: fn(f64, f64) -> f64| errors().reduce(best);
        (self.times.len() > 1).then(|| Some([ends(f64::min)?, ends(f64::max)?])).flatten()
    }

    /// How much the error varies although nothing but the machine's load has changed; `None` of a single round.
    ///
    /// n = (max e − min e) / 2, with the error e = forecast / measured − 1 of each round
    pub fn noise(&self) -> Option<f64> {
        self.errors().map(|[least, most]| (most - least) / 2.0)
    }

    /// Whether an error says nothing, since the noise is larger.
    pub fn hide(&self, error: Option<f64>) -> bool {
        matches!((self.noise(), error), (Some(noise), Some(error)) if noise > error.abs())
    }
}

/// How far off the kinds of ops are, each for itself, as a part of the time of all.
///
/// Σ |forecast − measured| / Σ measured, over kinds of ops
///
/// It is never less than the error of their sum, in which errors of opposite signs cancel.
pub fn error_by_kind(compared: &Comparison) -> f64 {
    let times = || compared.kinds.iter().map(|kind| (kind.time.forecast.get(), kind.time.measured.get()));
    let off: f64 = times().map(|(forecast, measured)| (forecast - measured).abs()).sum();
    off / times().map(|(_, measured)| measured).sum::<f64>()
}

/// The error of the sum of all ops' times, as a part of it: what is left of the errors by kind.
pub fn error_of_sum(compared: &Comparison) -> f64 {
    let times = || compared.kinds.iter().map(|kind| (kind.time.forecast.get(), kind.time.measured.get()));
    let off: f64 = times().map(|(forecast, measured)| forecast - measured).sum();
    off / times().map(|(_, measured)| measured).sum::<f64>()
}

/// What several rounds and the kinds of ops say of the error of the step time, in words.
pub fn in_words(compared: &Comparison, rounds: &Rounds) -> String {
    let percent = |part: f64| format!("{:+.1} %", 100.0 * part);
    let mut text = format!(
        "Kinds of ops are off by {:.1} % of their time, each for itself; in their sum errors cancel to {}.\n",
        100.0 * error_by_kind(compared),
        percent(error_of_sum(compared)),
    );
    if let Some(others) = rounds.others {
        text += &format!("Other programs took {:.0} % of the cores' time meanwhile.\n", 100.0 * others);
    }
    let (Some([least, most]), Some(noise)) = (rounds.errors(), rounds.noise()) else { return text };
    text += &format!(
        "The errors of {} rounds, each with its own forecast, are {} to {}: a noise of ±{:.1} points.\n",
        rounds.times.len(),
        percent(least),
        percent(most),
        100.0 * noise,
    );
    if rounds.hide(compared.step_time.error()) {
        text += "The noise is larger than the error of the step time: more rounds, or a machine that nobody else uses, would \
                 say more.\n";
    }
    text
}

#[cfg(test)]
mod tests {
    use super::*;

    fn rounds(errors: &[f64]) -> Rounds {
        let pair = |error: &f64| Pair { forecast: Seconds::new(1.0 + error), measured: Seconds::new(1.0) };
        Rounds { times: errors.iter().map(pair).collect(), others: None }
    }

    #[test]
    fn noise_is_half_the_range_of_the_rounds_errors() {
        let noise = rounds(&[0.02, -0.04, 0.06]).noise().unwrap();
        assert!((noise - 0.05).abs() < 1e-12, "{noise}");
        assert_eq!(rounds(&[0.5]).noise(), None);
        // An error of 4 % could be one of none; one of 6 % in either direction could not.
        let hidden = [0.04, 0.06, -0.06].map(|error| rounds(&[0.02, -0.04, 0.06]).hide(Some(error)));
        assert_eq!(hidden, [true, false, false]);
        assert!(!rounds(&[0.5]).hide(Some(0.0)), "one round does not know");
    }
}
