//! Two panels next to each other under a title and a legend.

use super::Mark;
use crate::axis::Axis;
use crate::canvas::png::text_width;
use crate::canvas::{Anchor, Canvas, Circle, Font, Level, Point, Text};
use crate::palette::{CURVES, Colour, EDGE, GRID, INK};

/// Size of the picture without the lines of the legend.
const WIDTH: f64 = 1200.0;
const HEIGHT: f64 = 520.0;
const MARGIN: f64 = 20.0;
const LEGEND_LINE: f64 = 30.0;
const LEGEND_TOP: f64 = MARGIN + 36.0;
/// Width of the sample of a curve in the legend.
const SAMPLE: f64 = 34.0;

const TITLE: Font = Font { em: 25.0 / 1.24, height: 25.0, bold: false };
const LABEL: Font = Font { em: 20.0 / 1.24, height: 20.0, bold: false };

/// What is drawn.
pub struct Figure<'a> {
    pub title: &'a str,
    /// Name and mark of each curve.
    pub curves: Vec<(&'a str, Mark)>,
    pub panels: [Panel<'a>; 2],
    /// Whether the points of a line have dots.
    pub dots_on_lines: bool,
    /// Curves that are so many places apart have one colour.
    pub colours: usize,
}

/// One coordinate system.
pub struct Panel<'a> {
    /// Names of the axes.
    pub names: (&'a str, &'a str),
    /// The axis from left to right.
    pub across: Axis,
    /// The axis upwards.
    pub up: Axis,
    /// Points of each curve.
    pub curves: Vec<Vec<(f64, f64)>>,
}

/// Edges of a panel.
struct Frame {
    left: f64,
    right: f64,
    top: f64,
    bottom: f64,
}

impl Figure<'_> {
    /// Draws the picture.
    pub fn draw(&self) -> Canvas {
        let samples = self.legend();
        let lines = 1.0 + samples.last().map_or(0.0, |(_, line)| *line);
        let mut canvas = Canvas::new(WIDTH, HEIGHT + LEGEND_LINE * lines);
        text(&mut canvas, (MARGIN, MARGIN + 8.0), (Anchor::Start, Level::Middle), TITLE, self.title);
        for (index, ((name, mark), (x, line))) in self.curves.iter().zip(samples).enumerate() {
            let y = LEGEND_TOP + LEGEND_LINE * line + 8.0;
            let points = match mark {
                Mark::Line => vec![(x, y), (x + SAMPLE - 10.0, y)],
                Mark::Points => vec![(x + SAMPLE / 2.0 - 5.0, y)],
            };
            curve(&mut canvas, *mark, self.colour(index), points);
            label(&mut canvas, (x + SAMPLE, y), (Anchor::Start, Level::Middle), name);
        }
        for (left, panel) in [0.0, WIDTH / 2.0].into_iter().zip(&self.panels) {
            let frame = Frame {
                left: left + 96.0,
                right: left + WIDTH / 2.0 - 24.0,
                top: canvas.height - HEIGHT + LEGEND_TOP + 36.0,
                bottom: canvas.height - 66.0,
            };
            panel.draw_frame(&mut canvas, &frame);
            for (index, ((_, mark), points)) in self.curves.iter().zip(&panel.curves).enumerate() {
                let places: Vec<Point> =
                    points.iter().map(|(x, y)| (panel.x(&frame, *x), panel.y(&frame, *y))).collect();
                curve(&mut canvas, *mark, self.colour(index), places.clone());
                if self.dots_on_lines && *mark == Mark::Line {
                    for centre in places {
                        canvas.circle(Circle { centre, radius: 4.0, colour: self.colour(index), edge: None });
                    }
                }
            }
        }
        canvas
    }

    fn colour(&self, curve: usize) -> Colour {
        CURVES[curve % self.colours % CURVES.len()]
    }

    /// Left end and line, from 0, of each curve in the legend.
    fn legend(&self) -> Vec<(f64, f64)> {
        let (mut x, mut line) = (MARGIN, 0.0);
        let mut places = Vec::new();
        for (name, _) in &self.curves {
            let width = SAMPLE + text_width(name, LABEL) + 24.0;
            if x > MARGIN && x + width > WIDTH - MARGIN {
                (x, line) = (MARGIN, line + 1.0);
            }
            places.push((x, line));
            x += width;
        }
        places
    }
}

impl Panel<'_> {
    fn x(&self, frame: &Frame, value: f64) -> f64 {
        frame.left + self.across.place(value) * (frame.right - frame.left)
    }

    fn y(&self, frame: &Frame, value: f64) -> f64 {
        frame.bottom + self.up.place(value) * (frame.top - frame.bottom)
    }

    /// Grid, edge, ticks and names of the axes.
    fn draw_frame(&self, canvas: &mut Canvas, frame: &Frame) {
        let Frame { left, right, top, bottom } = *frame;
        for tick in &self.across.ticks {
            let x = self.x(frame, *tick);
            canvas.lines(vec![vec![(x, top), (x, bottom)]], GRID, 1.0);
            label(canvas, (x, bottom + 8.0), (Anchor::Middle, Level::Top), &self.across.name(*tick));
        }
        for tick in &self.up.ticks {
            let y = self.y(frame, *tick);
            canvas.lines(vec![vec![(left, y), (right, y)]], GRID, 1.0);
            label(canvas, (left - 8.0, y), (Anchor::End, Level::Middle), &self.up.name(*tick));
        }
        let edge = vec![(left, top), (right, top), (right, bottom), (left, bottom), (left, top)];
        canvas.lines(vec![edge], EDGE, 1.0);
        let (across, up) = self.names;
        let middle = ((left + right) / 2.0, bottom + 38.0);
        label(canvas, middle, (Anchor::Middle, Level::Top), &format!("{across}{}", self.across.unit()));
        let name = format!("{up}{}", self.up.unit());
        label(canvas, (left, top - 10.0), (Anchor::Start, Level::Bottom), &name);
    }
}

fn curve(canvas: &mut Canvas, mark: Mark, colour: Colour, points: Vec<Point>) {
    match mark {
        Mark::Line => canvas.lines(vec![points], colour, 3.0),
        Mark::Points => {
            for centre in points {
                canvas.circle(Circle { centre, radius: 5.0, colour, edge: Some(2.0) });
            }
        }
    }
}

fn label(canvas: &mut Canvas, place: Point, anchors: (Anchor, Level), words: &str) {
    text(canvas, place, anchors, LABEL, words);
}

fn text(canvas: &mut Canvas, place: Point, (anchor, level): (Anchor, Level), font: Font, words: &str) {
    canvas.text(Text { place, anchor, level, font, colour: INK, text: words.into() });
}
