//! Files of `run --metrics`.

use crate::error::{CliError, refuse};
use crate::inputs;
use serde::Deserialize;
use std::collections::BTreeMap;
use std::path::Path;

/// A line, as far as it is read.
#[derive(Debug, Clone, PartialEq, Deserialize)]
pub struct LoggedStep {
    /// From 1.
    pub step: usize,
    /// Of the step's tokens.
    pub loss: f64,
    /// Of held-out tokens, if it was measured.
    pub validation_loss: Option<f64>,
    /// Before clipping, if it was formed.
    pub gradient_norm: Option<f64>,
    /// Of the step.
    pub tokens_per_second: Option<f64>,
}

/// A training and its name.
pub struct LoggedRun {
    /// Its file's, without the ending.
    pub name: String,
    /// By number, ascending, at least one.
    pub steps: Vec<LoggedStep>,
}

/// The training of a file. Where a resumed run went back, what it did again counts.
///
/// # Errors
/// A file that cannot be read, a line that is no step, or no steps at all.
pub fn logged_run(path: &str) -> Result<LoggedRun, CliError> {
    let text = inputs::text(None, path)?;
    let steps = steps(&text).map_err(|(line, reason)| {
        refuse(
            &format!("{path}:{line}"),
            reason,
            "each line is one of `run --metrics`: {\"step\": 1, \"loss\": 5.5, …}",
        )
    })?;
    match steps.is_empty() {
        true => Err(refuse(path, "empty", "it has no step yet")),
        false => {
            let name = Path::new(path).file_stem().map_or(path.into(), |stem| stem.to_string_lossy());
            Ok(LoggedRun { name: name.into_owned(), steps: steps.into_values().collect() })
        }
    }
}

/// By number; or the number of a line and what is wrong with it.
fn steps(text: &str) -> Result<BTreeMap<usize, LoggedStep>, (usize, String)> {
    let mut steps = BTreeMap::new();
    // A disk that was full may have cut the last line.
    let whole = text.rfind('\n').map_or("", |end| &text[..end]);
    for (number, line) in whole.lines().enumerate() {
        let step: LoggedStep =
            serde_json::from_str(line).map_err(|error| (number + 1, format!("not a step ({error})")))?;
        drop(steps.split_off(&step.step));
        steps.insert(step.step, step);
    }
    Ok(steps)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn what_a_resumed_run_did_again_counts() {
        let line = |step: usize, loss: f64| format!("{{\"step\": {step}, \"loss\": {loss}, \"mfu\": 0.1}}\n");
        let text: String = [(1, 5.0), (2, 4.0), (3, 3.0), (4, 2.0), (2, 4.5), (3, 3.5)]
            .map(|(step, loss)| line(step, loss))
            .concat();
        let losses = |text: &str| -> Vec<(usize, f64)> {
            steps(text).unwrap().into_values().map(|step| (step.step, step.loss)).collect()
        };
        // Step 4 was not done again.
        assert_eq!(losses(&text), [(1, 5.0), (2, 4.5), (3, 3.5)]);
        assert_eq!(losses(&(text.clone() + "{\"step\": 4, \"lo")), losses(&text), "a line that was cut");
        assert_eq!(steps(&(text + "{}\n")).unwrap_err().0, 7);
        assert!(losses("").is_empty());
    }
}
