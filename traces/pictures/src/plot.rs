//! Curves in two panels with logarithmic axes, as SVG or PNG: here a collective by size, forecast and measured; any
//! other two panels in `chart`.
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

mod axis;
mod canvas;
mod chart;
mod panel;

pub use chart::{Chart, ChartCurve, ChartPanel, chart_png, chart_svg};

use axis::{Axis, Unit};
use canvas::{Canvas, Painted};
use panel::Panel;
use plotters::backend::{BitMapBackend, DrawingBackend, SVGBackend};
use plotters::drawing::IntoDrawingArea;
use plotters::style::text_anchor::{HPos, VPos};
use plotters::style::{FontStyle, IntoFont, RGBColor, WHITE, register_font};
use std::sync::Once;
use trainwright_spec::units::{Bytes, Seconds};

/// What is drawn.
#[derive(Debug, Clone, PartialEq)]
pub struct SweepPlot {
    /// Stands above it.
    pub title: String,
    /// Bus bandwidth over size / time.
    pub bus_factor: f64,
    /// What is compared, the forecast first.
    pub curves: Vec<Curve>,
}

/// Times of one source.
#[derive(Debug, Clone, PartialEq)]
pub struct Curve {
    /// What the legend calls it.
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

/// Size of the picture in pixels, without the lines of the legend.
const WIDTH: i32 = 1200;
const HEIGHT: i32 = 520;
const MARGIN: i32 = 20;
const TITLE_SIZE: i32 = 25;
const TEXT_SIZE: i32 = 20;
const LEGEND_LINE: i32 = 30;
const LEGEND_TOP: i32 = MARGIN + 36;
/// What a curve's sample in the legend takes.
const SAMPLE: i32 = 34;

/// A PNG is drawn so many times larger and then averaged, which smooths all edges.
pub(crate) const SAMPLES: i32 = 3;

/// One after the other for each curve or source, told apart by people who do not see all colours as far as there are so many.
pub(crate) const COLOURS: [RGBColor; 10] = [
    RGBColor(0, 90, 170),
    RGBColor(217, 95, 2),
    RGBColor(27, 158, 119),
    RGBColor(150, 80, 170),
    RGBColor(166, 118, 29),
    RGBColor(90, 90, 90),
    RGBColor(230, 60, 120),
    RGBColor(60, 180, 220),
    RGBColor(120, 160, 0),
    RGBColor(0, 0, 0),
];

/// Draws the plot as an SVG document.
pub fn svg(plot: &SweepPlot) -> String {
    let mut text = String::new();
    let layout = Layout::new(plot.names(), 1);
    draw(plot, &layout, SVGBackend::with_string(&mut text, layout.size()));
    text
}

/// Draws the plot as a PNG file.
pub fn png(plot: &SweepPlot) -> Vec<u8> {
    smooth(&Layout::new(plot.names(), SAMPLES), |layout, backend| draw(plot, layout, backend))
}

/// What is drawn on a bitmap, as a PNG file.
fn smooth(layout: &Layout, draw: impl FnOnce(&Layout, BitMapBackend)) -> Vec<u8> {
    smoothed(layout.size(), |backend| draw(layout, backend))
}

/// The same of what has a layout of its own; the size is in samples, so many times `SAMPLES` each way.
pub(crate) fn smoothed((width, height): (u32, u32), draw: impl FnOnce(BitMapBackend)) -> Vec<u8> {
    let mut pixels = vec![255; 3 * width as usize * height as usize];
    draw(BitMapBackend::with_buffer(&mut pixels, (width, height)));
    encode(&averaged(&pixels, width as usize), (width, height))
}

impl SweepPlot {
    fn names(&self) -> impl Iterator<Item = &str> {
        self.curves.iter().map(|curve| curve.name.as_str())
    }
}

/// Where everything is, in pixels that are `scale` times those of the constants.
struct Layout {
    scale: i32,
    /// Left end and line of each curve in the legend.
    legend: Vec<(i32, i32)>,
    height: i32,
}

impl Layout {
    fn new<'a>(names: impl Iterator<Item = &'a str>, scale: i32) -> Self {
        load_font();
        let (mut x, mut line) = (MARGIN, 0);
        let mut legend = Vec::new();
        for name in names {
            let width = SAMPLE + text_width(name) + 24;
            if x > MARGIN && x + width > WIDTH - MARGIN {
                (x, line) = (MARGIN, line + 1);
            }
            legend.push((x, line));
            x += width;
        }
        Self { scale, legend, height: HEIGHT + LEGEND_LINE * (line + 1) }
    }

    /// Upper edge of the panels.
    fn panel_top(&self) -> i32 {
        self.height - HEIGHT + LEGEND_TOP + 36
    }

    fn size(&self) -> (u32, u32) {
        ((WIDTH * self.scale) as u32, (self.height * self.scale) as u32)
    }
}

fn draw<B: DrawingBackend>(plot: &SweepPlot, layout: &Layout, backend: B) {
    let canvas = Canvas { area: backend.into_drawing_area(), scale: layout.scale };
    paint(plot, layout, &canvas).expect("memory takes all that is drawn, in a font that is there");
}

fn paint<B: DrawingBackend>(plot: &SweepPlot, layout: &Layout, canvas: &Canvas<B>) -> Painted<B> {
    let legend = plot.curves.iter().map(|curve| (curve.name.as_str(), curve.mark));
    head(&plot.title, legend, layout, canvas)?;
    let points = || plot.curves.iter().flat_map(|curve| &curve.points);
    let bus = |(bytes, time): &(Bytes, Seconds)| plot.bus_factor * (*bytes / *time).get() / 1e9;
    let sizes = Axis::new(Unit::Size, points().map(|(bytes, _)| bytes.get()));
    let bandwidths = Axis::new(Unit::Bandwidth, points().map(bus));
    let times = Axis::new(Unit::Time, points().map(|(_, time)| time.get()));
    let head = layout.panel_top();
    let panels = [("bus bandwidth", bandwidths), ("time", times)];
    for (column, (name, axis)) in (0..).zip(panels) {
        let left = WIDTH / 2 * column;
        let panel = Panel {
            canvas,
            x: (left + 96, left + WIDTH / 2 - 24),
            y: (head, layout.height - 66),
            size: &sizes,
            value: &axis,
        };
        panel.frame("size", name)?;
        for (index, curve) in plot.curves.iter().enumerate() {
            let value = |point: &(Bytes, Seconds)| if column == 0 { bus(point) } else { point.1.get() };
            let places = curve.points.iter().map(|point| panel.place(point.0.get(), value(point))).collect();
            canvas.curve(curve.mark, COLOURS[index % COLOURS.len()], places)?;
        }
    }
    canvas.area.present()
}

/// The title, and below it a sample of each curve beside its name.
fn head<'a, B: DrawingBackend>(
    title: &str,
    curves: impl Iterator<Item = (&'a str, Mark)>,
    layout: &Layout,
    canvas: &Canvas<B>,
) -> Painted<B> {
    canvas.area.fill(&WHITE)?;
    canvas.text(title, (MARGIN, MARGIN + 8), TITLE_SIZE, (HPos::Left, VPos::Center))?;
    for (index, ((name, mark), (x, line))) in curves.zip(&layout.legend).enumerate() {
        let y = LEGEND_TOP + LEGEND_LINE * line + 8;
        let sample: &[i32] = match mark {
            Mark::Line => &[0, SAMPLE - 10],
            Mark::Points => &[SAMPLE / 2 - 5],
        };
        let sample: Vec<(i32, i32)> = sample.iter().map(|right| canvas.place(x + right, y)).collect();
        canvas.curve(mark, COLOURS[index % COLOURS.len()], sample)?;
        canvas.text(name, (x + SAMPLE, y), TEXT_SIZE, (HPos::Left, VPos::Center))?;
    }
    Ok(())
}

/// Width of a text in the size of labels.
fn text_width(text: &str) -> i32 {
    let (width, _) = ("sans-serif", TEXT_SIZE).into_font().box_size(text).unwrap_or_default();
    width as i32
}

/// The letters of a picture are in the program, so that it needs none from the system.
pub(crate) fn load_font() {
    static LOADED: Once = Once::new();
    LOADED.call_once(|| {
        let font = include_bytes!("../fonts/DejaVuSans-subset.ttf");
        let loaded = register_font("sans-serif", FontStyle::Normal, font);
        assert!(loaded.is_ok(), "the font is part of the program");
    });
}

/// Each pixel as the mean of its samples.
fn averaged(pixels: &[u8], width: usize) -> Vec<u8> {
    let samples = SAMPLES as usize;
    let (columns, rows) = (width / samples, pixels.len() / 3 / width / samples);
    let mut means = Vec::with_capacity(3 * columns * rows);
    for (row, column, channel) in
        (0..rows).flat_map(|row| (0..columns).flat_map(move |column| (0..3).map(move |c| (row, column, c))))
    {
        let sample = |index: usize| {
            let (y, x) = (row * samples + index / samples, column * samples + index % samples);
            u32::from(pixels[3 * (y * width + x) + channel])
        };
        let count = samples * samples;
        means.push(((0..count).map(sample).sum::<u32>() / count as u32) as u8);
    }
    means
}

fn encode(pixels: &[u8], (width, height): (u32, u32)) -> Vec<u8> {
    let mut file = Vec::new();
    let mut encoder = png::Encoder::new(&mut file, width / SAMPLES as u32, height / SAMPLES as u32);
    encoder.set_color(png::ColorType::Rgb);
    encoder.set_depth(png::BitDepth::Eight);
    let written = encoder.write_header().and_then(|mut writer| writer.write_image_data(pixels));
    written.expect("memory takes a picture whose size is known");
    file
}
