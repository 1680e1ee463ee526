//! Curves of any quantities in two panels beside each other.

use super::axis::{Axis, Unit};
use super::canvas::{Canvas, Painted};
use super::panel::Panel;
use super::{COLOURS, Layout, Mark, SAMPLES, WIDTH, head, smooth};
use plotters::backend::{DrawingBackend, SVGBackend};
use plotters::drawing::IntoDrawingArea;

/// Two panels with the same curves.
#[derive(Debug, Clone, PartialEq)]
pub struct Chart {
    /// Stands above it.
    pub title: String,
    /// What their axes are called, from left to right.
    pub panels: [ChartPanel; 2],
    /// What is compared.
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
    /// What the legend calls it.
    pub name: String,
    /// How it is drawn.
    pub mark: Mark,
    /// Its points in each panel; what is not above zero has no place on a logarithmic axis and is left out.
    pub points: [Vec<(f64, f64)>; 2],
}

/// The largest number that a count's axis names in digits.
const MOST_COUNT: f64 = 1e6;

/// Draws the chart as an SVG document.
pub fn chart_svg(chart: &Chart) -> String {
    let mut text = String::new();
    let layout = Layout::new(chart.names(), 1);
    draw(chart, &layout, SVGBackend::with_string(&mut text, layout.size()));
    text
}

/// Draws the chart as a PNG file.
pub fn chart_png(chart: &Chart) -> Vec<u8> {
    smooth(&Layout::new(chart.names(), SAMPLES), |layout, backend| draw(chart, layout, backend))
}

impl Chart {
    fn names(&self) -> impl Iterator<Item = &str> {
        self.curves.iter().map(|curve| curve.name.as_str())
    }
}

fn draw<B: DrawingBackend>(chart: &Chart, layout: &Layout, backend: B) {
    let canvas = Canvas { area: backend.into_drawing_area(), scale: layout.scale };
    paint(chart, layout, &canvas).expect("memory takes all that is drawn, in a font that is there");
}

fn paint<B: DrawingBackend>(chart: &Chart, layout: &Layout, canvas: &Canvas<B>) -> Painted<B> {
    let legend = chart.curves.iter().map(|curve| (curve.name.as_str(), curve.mark));
    head(&chart.title, legend, layout, canvas)?;
    for (column, names) in chart.panels.iter().enumerate() {
        let of = |curve: &ChartCurve| -> Vec<(f64, f64)> {
            let drawable =
                |point: &&(f64, f64)| point.0 > 0.0 && point.1 > 0.0 && (point.0 + point.1).is_finite();
            curve.points[column].iter().filter(drawable).copied().collect()
        };
        let all: Vec<(f64, f64)> = chart.curves.iter().flat_map(of).collect();
        let across = Axis::new(kind(all.iter().map(|point| point.0)), all.iter().map(|point| point.0));
        let up = Axis::new(Unit::Number, all.iter().map(|point| point.1));
        let left = WIDTH / 2 * column as i32;
        let panel = Panel {
            canvas,
            x: (left + 96, left + WIDTH / 2 - 24),
            y: (layout.panel_top(), layout.height - 66),
            size: &across,
            value: &up,
        };
        panel.frame(&names.across, &names.up)?;
        for (index, curve) in chart.curves.iter().enumerate() {
            let places: Vec<(i32, i32)> =
                of(curve).iter().map(|point| panel.place(point.0, point.1)).collect();
            let colour = COLOURS[index % COLOURS.len()];
            canvas.curve(curve.mark, colour, places.clone())?;
            if curve.mark == Mark::Line {
                canvas.dots(colour, places)?;
            }
        }
    }
    canvas.area.present()
}

/// Whole numbers that are not too large are counts: their axis has powers of two.
fn kind(values: impl Iterator<Item = f64>) -> Unit {
    let mut values = values.peekable();
    let some = values.peek().is_some();
    match some && values.all(|value| value.fract() == 0.0 && value < MOST_COUNT) {
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
        for word in ["title", "nodes", "tokens/s", "days", "USD", "one", "two", "200k", ">\n8\n<", ">\n64\n<"]
        {
            assert!(drawn.contains(word), "{word}");
        }
        assert_eq!(drawn, chart_svg(&chart));
        assert_eq!(chart_png(&chart), chart_png(&chart));
    }
}
