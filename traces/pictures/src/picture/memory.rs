//! The curves of memory in a picture.

use super::{FONT_SIZE, Frame, STROKE, filled, label};
use crate::canvas::{Anchor, Canvas, Dash, Path};
use crate::palette::{AREA, GREY, LINE};
use trainwright_spec::units::Bytes;
use trainwright_timeline::memory::{changes_of, levels};
use trainwright_timeline::timeline::Timeline;

/// Peak memory of each row's rank.
pub fn peaks(timeline: &Timeline, rows: &[usize]) -> Vec<Bytes> {
    let peak = |&rank: &usize| {
        levels(changes_of(timeline, rank)).map(|level| level.total()).fold(Bytes::ZERO, Bytes::max)
    };
    rows.iter().map(peak).collect()
}

/// The heading of the curves.
pub fn heading(peaks: &[Bytes]) -> String {
    format!("Memory of each rank with its peak; every row is {} high", highest(peaks))
}

/// Draws a curve for each row, all of them to the same scale, each with its peak as a number and, if
/// there is room, as a line.
pub fn draw(canvas: &mut Canvas, timeline: &Timeline, rows: &[usize], frame: &Frame, top: f64, pitch: f64) {
    let peaks = peaks(timeline, rows);
    let scale = filled(pitch) / highest(&peaks).get();
    let every = (FONT_SIZE / pitch).ceil() as usize;
    for (row, (&rank, &peak)) in rows.iter().zip(&peaks).enumerate() {
        let base = top + pitch * row as f64 + filled(pitch);
        let mut curve = vec![(frame.left, base)];
        let mut before = base;
        for (column, &held) in columns(timeline, rank, frame).iter().enumerate() {
            let level = base - held * scale;
            if level != before {
                let x = frame.left + column as f64;
                curve.extend([(x, before), (x, level)]);
                before = level;
            }
        }
        let right = frame.x(frame.end);
        curve.extend([(right, before), (right, base)]);
        let (lines, fill) = (vec![curve], Some(AREA));
        canvas.path(Path { lines, fill, stroke: LINE, width: STROKE, dash: Dash::Solid });
        if pitch > FONT_SIZE {
            let level = base - peak.get() * scale;
            let lines = vec![vec![(frame.left, level), (right, level)]];
            canvas.path(Path { lines, fill: None, stroke: GREY, width: STROKE, dash: Dash::Dashed });
        }
        if row % every == 0 {
            let middle = base - filled(pitch) / 2.0;
            let place = (frame.left + frame.width + 6.0, middle + FONT_SIZE * 0.36);
            canvas.text(label(place, Anchor::Start, &peak.to_string()));
        }
    }
}

fn highest(peaks: &[Bytes]) -> Bytes {
    peaks.iter().copied().fold(Bytes::ZERO, Bytes::max)
}

/// The most bytes that a rank holds in each column of pixels, so that no peak is too short to be seen.
fn columns(timeline: &Timeline, rank: usize, frame: &Frame) -> Vec<f64> {
    let count = frame.width.ceil() as usize;
    let mut columns = vec![0.0; count];
    let column_of = |time: u64| ((frame.x(time) - frame.left) as usize).min(count - 1);
    let mut levels = levels(changes_of(timeline, rank)).peekable();
    while let Some(level) = levels.next() {
        let until = levels.peek().map_or(frame.end, |next| next.time.0);
        for column in &mut columns[column_of(level.time.0)..=column_of(until)] {
            *column = f64::max(*column, level.total().get());
        }
    }
    columns
}
