//! The time axis of a picture.

use super::Frame;
use super::canvas::{Anchor, Canvas, Dash, GREY, Path};

/// Units of time with their length in picoseconds.
const UNITS: [(u64, &str); 5] =
    [(1_000_000_000_000, "s"), (1_000_000_000, "ms"), (1_000_000, "µs"), (1000, "ns"), (1, "ps")];

/// Draws the axis at `y`.
pub fn draw(canvas: &mut Canvas, frame: &Frame, y: f64) {
    let (unit, name) = UNITS.into_iter().find(|&(unit, _)| frame.duration >= unit).unwrap_or((1, "ps"));
    let step = tick_step(frame.duration);
    let decimals = decimals(step, unit);
    let mut lines = vec![vec![(frame.left, y), (frame.left + frame.width, y)]];
    for tick in (0..=frame.duration).step_by(step as usize) {
        let x = frame.x(tick);
        lines.push(vec![(x, y), (x, y + 4.0)]);
        let value = tick as f64 / unit as f64;
        canvas.text((x, y + 16.0), Anchor::Middle, &format!("{value:.decimals$}"));
    }
    canvas.path(Path { lines, fill: None, stroke: GREY, dash: Dash::Solid });
    let middle = (frame.left + frame.width / 2.0, y + 32.0);
    canvas.coloured(middle, Anchor::Middle, GREY, &format!("time ({name})"));
}

/// The smallest of 1, 2, 5, 10, 20, … picoseconds of which at most ten fit into `duration`.
fn tick_step(duration: u64) -> u64 {
    let mut decade = 1;
    loop {
        for step in [decade, 2 * decade, 5 * decade] {
            if duration / step <= 10 {
                return step;
            }
        }
        decade *= 10;
    }
}

/// How many decimals tell multiples of `step` apart, in `unit`s.
fn decimals(step: u64, unit: u64) -> usize {
    let (mut step, mut decimals) = (step, 0);
    while step < unit {
        step *= 10;
        decimals += 1;
    }
    decimals
}

#[cfg(test)]
mod tests {
    use super::*;

    #[track_caller]
    fn check(duration: u64, step: u64) {
        assert_eq!(tick_step(duration), step);
    }

    #[test]
    fn an_axis_has_up_to_ten_round_steps() {
        check(1, 1);
        check(10, 1);
        check(11, 2);
        check(21, 2);
        check(22, 5);
        check(54, 5);
        check(55, 10);
        check(1_230_000, 200_000);
    }

    #[test]
    fn ticks_have_the_decimals_that_tell_them_apart() {
        for (step, unit, expected) in
            [(5, 1, 0), (1000, 1000, 0), (200, 1000, 1), (50, 1000, 2), (2000, 1000, 0)]
        {
            assert_eq!(decimals(step, unit), expected);
        }
    }
}
