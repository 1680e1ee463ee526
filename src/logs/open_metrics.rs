//! The last values as OpenMetrics text, which a node exporter's textfile collector reads, too.
//!
//! Everything is a gauge: a counter has another form in the older format of that collector.

use super::event_file::now;
use crate::error::CliError;
use crate::output;
use crate::render::training::Quantity;
use std::collections::BTreeMap;
use std::fmt::Write;
use trainwright_spec::plan::Plan;

/// The file of `--openmetrics`.
pub struct OpenMetrics {
    path: String,
    /// The last value of each quantity, with what it is.
    last: BTreeMap<&'static str, (&'static str, f64)>,
}

impl OpenMetrics {
    /// None is written before a step.
    pub fn new(path: String) -> Self {
        Self { path, last: BTreeMap::new() }
    }

    /// Takes a step's values; writes the file anew if a line of the step is printed.
    ///
    /// # Errors
    /// `Writing`.
    pub fn add(
        &mut self,
        (plan, step): (&Plan, usize),
        quantities: Vec<Quantity>,
        is_printed: bool,
    ) -> Result<(), CliError> {
        let values = quantities.into_iter().filter_map(|of| Some((of.name, (of.help, of.value?))));
        self.last.extend(values);
        self.last.insert("step", ("The last step.", step as f64));
        self.last
            .insert("step_timestamp_seconds", ("When the last step ended, in seconds since 1970.", now()));
        if !is_printed {
            return Ok(());
        }
        output::save("--openmetrics", &self.path, text(&plan.model.name, &self.last))
    }
}

/// The whole file.
fn text(model: &str, values: &BTreeMap<&'static str, (&'static str, f64)>) -> String {
    let model = model.replace('\\', r"\\").replace('"', r#"\""#).replace('\n', r"\n");
    let mut text = String::new();
    for (name, (help, value)) in values {
        let lines = [
            format!("# TYPE trainwright_{name} gauge"),
            format!("# HELP trainwright_{name} {help}"),
            format!("trainwright_{name}{{model=\"{model}\"}} {value}"),
        ];
        lines.iter().for_each(|line| writeln!(text, "{line}").expect("a string takes every line"));
    }
    text + "# EOF\n"
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn every_quantity_has_a_type_a_help_and_a_value() {
        let values = BTreeMap::from([("loss", ("The loss.", 2.5)), ("step", ("The last step.", 30.0))]);
        let expected = concat!(
            "# TYPE trainwright_loss gauge\n# HELP trainwright_loss The loss.\n",
            "trainwright_loss{model=\"a\\\"b\"} 2.5\n",
            "# TYPE trainwright_step gauge\n# HELP trainwright_step The last step.\n",
            "trainwright_step{model=\"a\\\"b\"} 30\n# EOF\n",
        );
        assert_eq!(text("a\"b", &values), expected);
    }
}
