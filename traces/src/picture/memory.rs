//! The curves of memory in a picture.

use super::canvas::{Canvas, GREY, number};
use super::{FONT_SIZE, Frame, filled};
use crate::memory::{changes_of, levels};
use crate::timeline::Timeline;
use trainwright_spec::units::Bytes;

const AREA: &str = "#dfe7f2";
const LINE: &str = "#3b5b8c";

/// The most that each row's rank holds.
pub fn peaks(timeline: &Timeline, rows: &[usize]) -> Vec<Bytes> {
    let peak = |&rank: &usize| {
        levels(changes_of(timeline, rank)).map(|level| level.total()).fold(Bytes::ZERO, Bytes::max)
    };
    rows.iter().map(peak).collect()
}

/// What stands above the curves.
pub fn heading(peaks: &[Bytes]) -> String {
    format!("Memory of each rank with its peak; every row is {} high", highest(peaks))
}

/// Draws a curve for each row, all of them to the same scale, each with its peak as a number and, where
/// there is room, as a line.
pub fn draw(canvas: &mut Canvas, timeline: &Timeline, rows: &[usize], frame: &Frame, top: f64, pitch: f64) {
    let peaks = peaks(timeline, rows);
    let scale = filled(pitch) / highest(&peaks).get();
    let every = (FONT_SIZE / pitch).ceil() as usize;
    for (row, (&rank, &peak)) in rows.iter().zip(&peaks).enumerate() {
        let base = top + pitch * row as f64 + filled(pitch);
        let mut curve = format!("M{} {}", number(frame.left), number(base));
        let mut before = 0.0;
        for (column, &held) in columns(timeline, rank, frame).iter().enumerate() {
            if held != before {
                let x = frame.left + column as f64;
                curve.push_str(&format!("H{}V{}", number(x), number(base - held * scale)));
                before = held;
            }
        }
        let right = frame.left + frame.width;
        curve.push_str(&format!("H{}V{}", number(right), number(base)));
        canvas.path(&curve, &format!("fill=\"{AREA}\" stroke=\"{LINE}\" stroke-width=\"0.8\""));
        if pitch > FONT_SIZE {
            let line =
                format!("M{} {}H{}", number(frame.left), number(base - peak.get() * scale), number(right));
            canvas.path(&line, &format!("stroke=\"{GREY}\" stroke-width=\"0.8\" stroke-dasharray=\"3 3\""));
        }
        if row % every == 0 {
            let middle = base - filled(pitch) / 2.0;
            canvas.text(right + 6.0, middle + FONT_SIZE * 0.36, "", &peak.to_string());
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
        let until = levels.peek().map_or(frame.duration, |next| next.time.0);
        for column in &mut columns[column_of(level.time.0)..=column_of(until)] {
            *column = f64::max(*column, level.total().get());
        }
    }
    columns
}
