//! The pipeline of a timeline as a picture, SVG or PNG.
//!
//! ```text
//! title
//! legend                                   step time
//! how to read the boxes
//! rank 0 | boxes, one for each action                |
//! rank 1 | …                                         |
//!          time axis
//! rank 0 | curve of the memory                       | peak
//! rank 1 | …                                         | peak
//! ```
//!
//! Left to right is always time. Inside a box, bottom to top are the shares of its time: an action that computes
//! for three quarters of its time and only communicates in the rest is three quarters coloured as its pass and one
//! quarter as exposed communication. So a box says how much of each there is and a trace file says when.

mod memory;
mod pipeline;

use crate::axis::Axis;
use crate::canvas::{self, Anchor, Canvas, Font, Level, Point, Text};
use crate::palette::{Colour, GREY, INK};
use pipeline::Pipeline;
use trainwright_spec::units::Picoseconds;
use trainwright_timeline::actions::rows;
use trainwright_timeline::timeline::Timeline;

/// Width of the picture and of its margins, in pixels.
const WIDTH: f64 = 1200.0;
const MARGIN: f64 = 16.0;
/// Estimated width of a character in ems; sans-serif digits are 0.56 wide.
const CHARACTER: f64 = 0.56;
const FONT_SIZE: f64 = 11.0;
const LABEL: Font = Font { em: FONT_SIZE, height: FONT_SIZE, bold: false };
const TITLE: Font = Font { em: 16.0, height: 16.0, bold: true };
/// Width of lines.
const STROKE: f64 = 0.8;

/// Draws a timeline as an SVG document. The same timeline always gives the same text.
pub fn svg(timeline: &Timeline, title: &str) -> String {
    canvas::svg::document(&draw(timeline, title, timeline.duration), title)
}

/// Draws two timelines, each with its title, as SVG documents with one time axis: that of the longer one.
pub fn svg_pair(timelines: [(&Timeline, &str); 2]) -> [String; 2] {
    let longest = timelines.map(|(timeline, _)| timeline.duration).into_iter().max().unwrap_or_default();
    timelines.map(|(timeline, title)| canvas::svg::document(&draw(timeline, title, longest), title))
}

/// Draws a timeline as a PNG file; its font is part of the program.
pub fn png(timeline: &Timeline, title: &str) -> Vec<u8> {
    canvas::png::file(&draw(timeline, title, timeline.duration))
}

fn draw(timeline: &Timeline, title: &str, longest: Picoseconds) -> Canvas {
    let rows = rows(timeline);
    let labels: Vec<String> = rows.iter().map(|&rank| timeline.ranks[rank].name()).collect();
    let peaks = memory::peaks(timeline, &rows);
    let widest =
        |texts: &mut dyn Iterator<Item = usize>| texts.max().unwrap_or(0) as f64 * CHARACTER * FONT_SIZE;
    let left = MARGIN + widest(&mut labels.iter().map(|label| label.chars().count())) + 8.0;
    let right = WIDTH - MARGIN - widest(&mut peaks.iter().map(|peak| peak.to_string().len())) - 6.0;
    let end = timeline.duration.0.max(1);
    let axis = Axis::elapsed(longest.0.max(end));
    let frame = Frame { left, width: right - left, end, axis };

    let mut canvas = Canvas::new(WIDTH, 0.0);
    let pipeline = Pipeline::new(timeline, &rows);
    canvas.text(text((MARGIN, 28.0), Anchor::Start, TITLE, INK, title));
    legend(&mut canvas, &pipeline, 50.0);
    let step = format!("step time {}", timeline.duration);
    canvas.text(label((WIDTH - MARGIN, 50.0), Anchor::End, &step));

    let pitch = pitch(rows.len(), 640.0, 34.0);
    let top = 80.0;
    let bottom = top + pitch * rows.len() as f64;
    row_labels(&mut canvas, &labels, left, top, pitch);
    pipeline.draw(&mut canvas, &frame, top, pitch);
    draw_axis(&mut canvas, &frame, bottom);
    canvas.height = bottom + 48.0;

    if peaks.iter().any(|peak| peak.get() > 0.0) {
        let pitch = self::pitch(rows.len(), 480.0, 40.0);
        let top = canvas.height + 14.0;
        canvas.text(label((left, top - 8.0), Anchor::Start, &memory::heading(&peaks)));
        row_labels(&mut canvas, &labels, left, top, pitch);
        memory::draw(&mut canvas, timeline, &rows, &frame, top, pitch);
        canvas.height = top + pitch * rows.len() as f64 + MARGIN;
    }
    canvas
}

/// Where in the picture the time of the step is.
struct Frame {
    left: f64,
    width: f64,
    /// When the step ends, in picoseconds, not zero; the axis may go on.
    end: u64,
    axis: Axis,
}

impl Frame {
    fn x(&self, time: u64) -> f64 {
        self.left + self.width * self.axis.place(time as f64)
    }
}

/// The height of a row if all have to fit into `available` pixels, within limits of what is legible.
fn pitch(rows: usize, available: f64, most: f64) -> f64 {
    (available / rows.max(1) as f64).floor().clamp(5.0, most)
}

/// The part of the pitch that a row fills.
fn filled(pitch: f64) -> f64 {
    if pitch > 12.0 { pitch - 4.0 } else { pitch - 1.0 }
}

/// A text in the size and colour of labels, at its baseline.
fn label(place: Point, anchor: Anchor, words: &str) -> Text {
    text(place, anchor, LABEL, INK, words)
}

fn text(place: Point, anchor: Anchor, font: Font, colour: Colour, words: &str) -> Text {
    Text { place, anchor, level: Level::Baseline, font, colour, text: words.into() }
}

/// Draws the time axis at `y`.
fn draw_axis(canvas: &mut Canvas, frame: &Frame, y: f64) {
    let mut lines = vec![vec![(frame.left, y), (frame.left + frame.width, y)]];
    for tick in &frame.axis.ticks {
        let x = frame.left + frame.width * frame.axis.place(*tick);
        lines.push(vec![(x, y), (x, y + 4.0)]);
        canvas.text(label((x, y + 16.0), Anchor::Middle, &frame.axis.name(*tick)));
    }
    canvas.lines(lines, GREY, STROKE);
    let middle = (frame.left + frame.width / 2.0, y + 32.0);
    canvas.text(text(middle, Anchor::Middle, LABEL, GREY, &format!("time{}", frame.axis.unit())));
}

/// Labels every row, or every n-th if all would overlap.
fn row_labels(canvas: &mut Canvas, labels: &[String], left: f64, top: f64, pitch: f64) {
    let every = (FONT_SIZE / pitch).ceil() as usize;
    for (row, label) in labels.iter().enumerate().step_by(every) {
        let middle = top + pitch * row as f64 + filled(pitch) / 2.0;
        canvas.text(self::label((left - 8.0, middle + FONT_SIZE * 0.36), Anchor::End, label));
    }
}

fn legend(canvas: &mut Canvas, pipeline: &Pipeline, baseline: f64) {
    let mut x = MARGIN;
    for (color, name) in pipeline.legend() {
        canvas.rect(x, baseline - 10.0, 12.0, 12.0, color);
        canvas.text(label((x + 17.0, baseline), Anchor::Start, &name));
        x += 17.0 + name.chars().count() as f64 * CHARACTER * FONT_SIZE + 18.0;
    }
    canvas.text(text((MARGIN, baseline + 18.0), Anchor::Start, LABEL, GREY, &pipeline.note()));
}
