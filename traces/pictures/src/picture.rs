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

mod axis;
mod bitmap;
mod canvas;
mod memory;
mod pipeline;

use canvas::{Anchor, Canvas, GREY};
use pipeline::Pipeline;
use trainwright_timeline::actions::rows;
use trainwright_timeline::timeline::Timeline;

/// Width of the picture, in pixels, and of what is free beside the plot.
const WIDTH: f64 = 1200.0;
const MARGIN: f64 = 16.0;
/// Estimated width of a character in ems; sans-serif digits are 0.56 wide.
const CHARACTER: f64 = 0.56;
const FONT_SIZE: f64 = 11.0;

/// Draws a timeline as an SVG document. The same timeline always gives the same text.
pub fn svg(timeline: &Timeline, title: &str) -> String {
    let (canvas, height) = draw(timeline, title);
    canvas.document(WIDTH, height, title)
}

/// Draws the same as a PNG file, with letters of its own.
pub fn png(timeline: &Timeline, title: &str) -> Vec<u8> {
    let (canvas, height) = draw(timeline, title);
    bitmap::png(&canvas.elements, WIDTH, height)
}

/// Everything that is in the picture, and how high it is.
fn draw(timeline: &Timeline, title: &str) -> (Canvas, f64) {
    let rows = rows(timeline);
    let labels: Vec<String> = rows.iter().map(|&rank| label(timeline, rank)).collect();
    let peaks = memory::peaks(timeline, &rows);
    let widest =
        |texts: &mut dyn Iterator<Item = usize>| texts.max().unwrap_or(0) as f64 * CHARACTER * FONT_SIZE;
    let left = MARGIN + widest(&mut labels.iter().map(|label| label.chars().count())) + 8.0;
    let right = WIDTH - MARGIN - widest(&mut peaks.iter().map(|peak| peak.to_string().len())) - 6.0;
    let frame = Frame { left, width: right - left, duration: timeline.duration.0.max(1) };

    let mut canvas = Canvas::default();
    let pipeline = Pipeline::new(timeline, &rows);
    canvas.title((MARGIN, 28.0), title);
    legend(&mut canvas, &pipeline, 50.0);
    let step = format!("step time {}", timeline.duration);
    canvas.text((WIDTH - MARGIN, 50.0), Anchor::End, &step);

    let pitch = pitch(rows.len(), 640.0, 34.0);
    let top = 80.0;
    let bottom = top + pitch * rows.len() as f64;
    row_labels(&mut canvas, &labels, left, top, pitch);
    pipeline.draw(&mut canvas, &frame, top, pitch);
    axis::draw(&mut canvas, &frame, bottom);
    let mut height = bottom + 48.0;

    if peaks.iter().any(|peak| peak.get() > 0.0) {
        let pitch = self::pitch(rows.len(), 480.0, 40.0);
        let top = height + 14.0;
        canvas.text((left, top - 8.0), Anchor::Start, &memory::heading(&peaks));
        row_labels(&mut canvas, &labels, left, top, pitch);
        memory::draw(&mut canvas, timeline, &rows, &frame, top, pitch);
        height = top + pitch * rows.len() as f64 + MARGIN;
    }
    (canvas, height)
}

/// Where in the picture the time of the step is.
#[derive(Debug, Clone, Copy)]
struct Frame {
    left: f64,
    width: f64,
    /// In picoseconds, not zero.
    duration: u64,
}

impl Frame {
    fn x(&self, time: u64) -> f64 {
        self.left + self.width * (time as f64 / self.duration as f64)
    }
}

/// The height of a row: what is left of `available` pixels when all have to fit, within limits of what is legible.
fn pitch(rows: usize, available: f64, most: f64) -> f64 {
    (available / rows.max(1) as f64).floor().clamp(5.0, most)
}

/// The part of the pitch that a row fills.
fn filled(pitch: f64) -> f64 {
    if pitch > 12.0 { pitch - 4.0 } else { pitch - 1.0 }
}

fn label(timeline: &Timeline, rank: usize) -> String {
    let track = &timeline.ranks[rank];
    match track.stands_for {
        1 => format!("rank {}", track.rank),
        count => format!("rank {} ×{count}", track.rank),
    }
}

/// Labels every row, or every so many where they are too close.
fn row_labels(canvas: &mut Canvas, labels: &[String], left: f64, top: f64, pitch: f64) {
    let every = (FONT_SIZE / pitch).ceil() as usize;
    for (row, label) in labels.iter().enumerate().step_by(every) {
        let middle = top + pitch * row as f64 + filled(pitch) / 2.0;
        canvas.text((left - 8.0, middle + FONT_SIZE * 0.36), Anchor::End, label);
    }
}

fn legend(canvas: &mut Canvas, pipeline: &Pipeline, baseline: f64) {
    let mut x = MARGIN;
    for (color, name) in pipeline.legend() {
        canvas.rect(x, baseline - 10.0, 12.0, 12.0, color);
        canvas.text((x + 17.0, baseline), Anchor::Start, name);
        x += 17.0 + name.chars().count() as f64 * CHARACTER * FONT_SIZE + 18.0;
    }
    canvas.coloured((MARGIN, baseline + 18.0), Anchor::Start, GREY, &pipeline.note());
}
