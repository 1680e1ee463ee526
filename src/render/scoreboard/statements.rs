//! The section on public statements about training runs.

use crate::render::table::Table;
use trainwright_evidence::runs::{NoPlan, Prediction, Run};
use trainwright_evidence::statistics::median;

/// A statement: a run that no fit has, what its source says of it, and what the row had to assume.
pub struct Statement<'a> {
    /// The run, with the stated rate.
    pub run: &'a Run,
    /// Its forecast.
    pub prediction: &'a Result<Prediction, NoPlan>,
    /// What the source says.
    pub stated: &'a str,
    /// What it does not say.
    pub assumed: &'a str,
}

impl Statement<'_> {
    /// Step times as stated and as forecast, and the ends of the range, all in seconds.
    fn times(&self) -> Option<[f64; 4]> {
        let prediction = self.prediction.as_ref().ok()?;
        let (low, high) = prediction.band?;
        let forecast = prediction.step_seconds;
        Some([self.run.step_seconds()?, forecast, low * forecast, high * forecast])
    }

    fn holds(&self) -> Option<bool> {
        self.times().map(|[stated, _, low, high]| (low..=high).contains(&stated))
    }
}

/// The section; nothing without statements.
pub fn section(statements: &[Statement]) -> String {
    if statements.is_empty() {
        return String::new();
    }
    let time = |statement: &Statement, cell: fn([f64; 4]) -> String| {
        statement.times().map_or_else(|| "–".to_string(), cell)
    };
    let table = Table::of(statements)
        .left("statement", |statement| &statement.run.id)
        .right("stated s", move |statement| time(statement, |[stated, ..]| format!("{stated:.2}")))
        .right("forecast s", move |statement| time(statement, |[_, forecast, ..]| format!("{forecast:.2}")))
        .right("error %", move |statement| {
            time(statement, |[stated, forecast, ..]| format!("{:+.1}", 100.0 * (forecast / stated - 1.0)))
        })
        .right("range of 80 %, s", move |statement| {
            time(statement, |[_, _, low, high]| format!("{low:.2} to {high:.2}"))
        })
        .right("upper over lower", move |statement| {
            time(statement, |[_, _, low, high]| format!("{:.2}", high / low))
        })
        .left("range holds it", |statement| match statement.holds() {
            Some(true) => "yes".into(),
            Some(false) => "no".into(),
            None => statement.prediction.as_ref().err().map_or_else(String::new, NoPlan::to_string),
        })
        .left("forecast fits", |statement| match statement.prediction {
            Ok(prediction) if prediction.outcome == trainwright_evidence::runs::Outcome::Fits => "yes",
            Ok(_) => "no",
            Err(_) => "",
        })
        .markdown();
    let held: Vec<bool> = statements.iter().filter_map(Statement::holds).collect();
    let widths =
        statements.iter().filter_map(|statement| statement.times().map(|[.., low, high]| high / low));
    let widths: Vec<f64> = widths.collect();
    let width = if widths.is_empty() { 1.0 } else { median(&widths) };
    let arrangements = statements.iter().map(|Statement { run, stated, assumed, .. }| {
        format!("- **{}**: {stated}. Assumed: {assumed}. Source: {}.\n", run.id, run.source)
    });
    format!(
        "## Public statements\n\n\
         Runs of which a source states a rate but not the whole arrangement (`traces/published/statements.csv`). No fit and no\n\
         range rests on them. All of these runs ran, so \"no\" under \"forecast fits\" is an error too. What is assumed was chosen\n\
         with the stated rate known, so this is no blind test.\n\n\
         {table}\n{} of {} ranges hold the stated time; upper over lower is {width:.2} in the median.\n\n{}\n",
        held.iter().filter(|held| **held).count(),
        held.len(),
        arrangements.collect::<String>(),
    )
}
