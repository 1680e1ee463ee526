//! Curves of any quantities in two panels next to each other.

use super::Mark;
use super::figure::{Figure, Panel};
use crate::axis::{Axis, Unit};
use crate::canvas;
use crate::palette::CURVES;

/// Two panels with the same curves.
#[derive(Debug, Clone, PartialEq)]
pub struct Chart {
    /// The title.
    pub title: String,
    /// Names of their axes, from left to right.
    pub panels: [ChartPanel; 2],
    /// The compared curves.
    pub curves: Vec<ChartCurve>,
}

/// The axes of a panel, with their units.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct ChartPanel {
    /// From left to right.
    pub across: String,
    /// Upwards.
    pub up: String,
}

/// One curve in both panels.
#[derive(Debug, Clone, PartialEq)]
pub struct ChartCurve {
    /// Its name in the legend.
    pub name: String,
    /// How it is drawn.
    pub mark: Mark,
    /// Its points in each panel; those that are not above zero have no place on a logarithmic axis and are left out.
    pub points: [Vec<(f64, f64)>; 2],
}

/// The largest number that a count's axis names in digits.
const MOST_COUNT: f64 = 1e6;

/// Draws the chart as an SVG document.
pub fn chart_svg(chart: &Chart) -> String {
    canvas::svg::document(&chart.figure().draw(), &chart.title)
}

/// Draws the chart as a PNG file.
pub fn chart_png(chart: &Chart) -> Vec<u8> {
    canvas::png::file(&chart.figure().draw())
}

impl Chart {
    fn figure(&self) -> Figure<'_> {
        let drawable =
            |point: &&(f64, f64)| point.0 > 0.0 && point.1 > 0.0 && (point.0 + point.1).is_finite();
        let panel = |column: usize| {
            let curves: Vec<Vec<(f64, f64)>> = self
                .curves
                .iter()
                .map(|curve| curve.points[column].iter().filter(drawable).copied().collect())
                .collect();
            let across = || curves.iter().flatten().map(|point| point.0);
            let up = curves.iter().flatten().map(|point| point.1);
            let (across, up) =
                (Axis::logarithmic(unit(across()), across()), Axis::logarithmic(Unit::Number, up));
            let names = &self.panels[column];
            Panel { names: (&names.across, &names.up), across, up, curves }
        };
        Figure {
            title: &self.title,
            curves: self.curves.iter().map(|curve| (curve.name.as_str(), curve.mark)).collect(),
            panels: [panel(0), panel(1)],
            dots_on_lines: true,
            colours: CURVES.len(),
        }
    }
}

/// Integers that are not too large are counts: their axis has powers of two.
fn unit(values: impl Iterator<Item = f64>) -> Unit {
    let mut values = values.peekable();
    match values.peek().is_some() && values.all(|value| value.fract() == 0.0 && value < MOST_COUNT) {
        true => Unit::Count,
        false => Unit::Number,
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_chart_is_drawn_the_same_each_time_and_names_its_axes() {
        let curve = |name: &str, factor: f64| ChartCurve {
            name: name.into(),
            mark: Mark::Line,
            points: [vec![(8.0, factor), (64.0, 8.0 * factor)], vec![(0.3, 1e6), (0.0, 5.0)]],
        };
        let panel = |across: &str, up: &str| ChartPanel { across: across.into(), up: up.into() };
        let chart = Chart {
            title: "title".into(),
            panels: [panel("nodes", "tokens/s"), panel("days", "USD")],
            curves: vec![curve("one", 2e4), curve("two", 3e4)],
        };
        let drawn = chart_svg(&chart);
        for word in ["title", "nodes", "tokens/s", "days", "USD", "one", "two", "200k", ">8<", ">64<"] {
            assert!(drawn.contains(word), "{word}");
        }
        assert_eq!(drawn, chart_svg(&chart));
        assert_eq!(chart_png(&chart), chart_png(&chart));
    }
}
