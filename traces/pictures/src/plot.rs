//! Curves in two panels, as SVG or PNG: here a collective by size, forecast and measured; any other quantities on
//! logarithmic axes in `chart`, a training by step in `training`, and the requests of a service in `serving`.
//!
//! ```text
//! title
//! ── forecast   o measured   o …
//! bus bandwidth |        ──o──o      time |          o
//!               |    ──o─                 |       ─o─
//!               |  ─o                     | ─o──o─
//!                 size                      size
//! ```
//!
//! The same plot always gives the same bytes. Nothing here knows where the numbers come from.

mod chart;
mod figure;
mod serving;
mod training;

pub use chart::{Chart, ChartCurve, ChartPanel, chart_png, chart_svg};
pub use serving::{ServingCurves, serving_png, serving_svg};
pub use training::{TrainingCurves, training_png, training_svg};

use crate::axis::{Axis, Unit};
use crate::canvas;
use crate::palette::CURVES;
use figure::{Figure, Panel};
use trainwright_spec::units::{Bytes, Seconds};

/// Times of a collective by size.
#[derive(Debug, Clone, PartialEq)]
pub struct SweepPlot {
    /// The title.
    pub title: String,
    /// Bus bandwidth divided by size / time.
    pub bus_factor: f64,
    /// The compared times, the forecast first.
    pub curves: Vec<Curve>,
}

/// Times of one source.
#[derive(Debug, Clone, PartialEq)]
pub struct Curve {
    /// Its name in the legend.
    pub name: String,
    /// How it is drawn.
    pub mark: Mark,
    /// Sizes, ascending, and their times, all above zero.
    pub points: Vec<(Bytes, Seconds)>,
}

/// How a curve is drawn.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Mark {
    /// As a line: a forecast.
    Line,
    /// As points: measurements.
    Points,
}

/// Draws the plot as an SVG document.
pub fn svg(plot: &SweepPlot) -> String {
    canvas::svg::document(&plot.figure().draw(), &plot.title)
}

/// Draws the plot as a PNG file.
pub fn png(plot: &SweepPlot) -> Vec<u8> {
    canvas::png::file(&plot.figure().draw())
}

impl SweepPlot {
    fn figure(&self) -> Figure<'_> {
        let panel = |name: &'static str, unit: Unit, value: &dyn Fn(&(Bytes, Seconds)) -> f64| {
            let curves: Vec<Vec<(f64, f64)>> = self
                .curves
                .iter()
                .map(|curve| curve.points.iter().map(|point| (point.0.get(), value(point))).collect())
                .collect();
            let points = || curves.iter().flatten();
            let across = Axis::logarithmic(Unit::Size, points().map(|point| point.0));
            let up = Axis::logarithmic(unit, points().map(|point| point.1));
            Panel { names: ("size", name), across, up, curves }
        };
        Figure {
            title: &self.title,
            curves: self.curves.iter().map(|curve| (curve.name.as_str(), curve.mark)).collect(),
            panels: [
                panel("bus bandwidth", Unit::Bandwidth, &|(bytes, time)| {
                    self.bus_factor * (*bytes / *time).get() / 1e9
                }),
                panel("time", Unit::Time, &|(_, time)| time.get()),
            ],
            dots_on_lines: false,
            colours: CURVES.len(),
        }
    }
}
