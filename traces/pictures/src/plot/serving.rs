//! Requests of a service: the distributions of their times on the left, how many are there at a time on the right.

use super::Mark;
use super::figure::{Figure, Panel};
use crate::axis::{Axis, Unit};
use crate::canvas;

/// What became of requests, simulated or measured. Times are in seconds.
#[derive(Debug, Clone, PartialEq, Default)]
pub struct ServingCurves {
    /// Times to the first token.
    pub ttft: Vec<f64>,
    /// Times for each token after the first.
    pub tpot: Vec<f64>,
    /// Times to the last token.
    pub latency: Vec<f64>,
    /// For each request when it arrived, had its first token, and its last.
    pub spans: Vec<[f64; 3]>,
}

/// What the curves of a run are named.
const NAMES: [&str; 5] = ["TTFT", "TPOT", "latency", "in the engine", "without a token"];
/// Points of a line, and of a measured run, which are drawn further apart.
const POINTS: [usize; 2] = [400, 25];

/// Draws a forecast, and a measured run of the same requests where there is one, as an SVG document.
pub fn serving_svg(title: &str, forecast: &ServingCurves, measured: Option<&ServingCurves>) -> String {
    canvas::svg::document(&draw(title, forecast, measured), title)
}

/// Draws the same as a PNG file.
pub fn serving_png(title: &str, forecast: &ServingCurves, measured: Option<&ServingCurves>) -> Vec<u8> {
    canvas::png::file(&draw(title, forecast, measured))
}

fn draw(title: &str, forecast: &ServingCurves, measured: Option<&ServingCurves>) -> canvas::Canvas {
    let runs = [(Some(forecast), Mark::Line, "forecast"), (measured, Mark::Points, "measured")];
    let (mut names, mut times, mut counts) = (Vec::new(), Vec::new(), Vec::new());
    for (run, mark, what) in runs.into_iter().filter_map(|(run, mark, what)| Some((run?, mark, what))) {
        names.extend(NAMES.map(|name| (format!("{name}, {what}"), mark)));
        let most = POINTS[usize::from(mark == Mark::Points)];
        times.extend([&run.ttft, &run.tpot, &run.latency].map(|times| distribution(times, most)));
        times.extend([Vec::new(), Vec::new()]);
        counts.extend([Vec::new(), Vec::new(), Vec::new()]);
        counts.extend([2, 1].map(|end| present(&run.spans, end, most)));
    }
    let all = |curves: &[Vec<(f64, f64)>]| curves.iter().flatten().copied().collect::<Vec<(f64, f64)>>();
    let (in_times, in_counts) = (all(&times), all(&counts));
    Figure {
        title,
        curves: names.iter().map(|(name, mark)| (name.as_str(), *mark)).collect(),
        panels: [
            Panel {
                names: ("time", "percent of the requests"),
                across: Axis::logarithmic(Unit::Time, in_times.iter().map(|point| point.0)).below(),
                up: Axis::linear([0.0, 100.0].into_iter()),
                curves: times,
            },
            Panel {
                names: ("seconds", "requests"),
                across: Axis::linear(in_counts.iter().map(|point| point.0)),
                up: Axis::linear(in_counts.iter().map(|point| point.1)),
                curves: counts,
            },
        ],
        dots_on_lines: false,
        colours: NAMES.len(),
    }
    .draw()
}

/// At up to `most` times, the percent of them that are no larger. Times of zero have no place on a logarithmic axis.
fn distribution(times: &[f64], most: usize) -> Vec<(f64, f64)> {
    let mut sorted: Vec<f64> = times.iter().copied().filter(|time| *time > 0.0 && time.is_finite()).collect();
    sorted.sort_by(f64::total_cmp);
    let count = sorted.len();
    let points = most.min(count);
    let at = |point: usize| {
        let index = (point + 1) * count / points - 1;
        (sorted[index], 100.0 * (index + 1) as f64 / count as f64)
    };
    (0..points).map(at).collect()
}

/// At `most` moments, the requests that had arrived and not yet reached their `end`: 1 the first token, 2 the last.
fn present(spans: &[[f64; 3]], end: usize, most: usize) -> Vec<(f64, f64)> {
    let last = spans.iter().map(|span| span[2]).fold(0.0, f64::max);
    let at = |point: usize| {
        let moment = last * point as f64 / most as f64;
        let there = spans.iter().filter(|span| span[0] <= moment && moment < span[end]).count();
        (moment, there as f64)
    };
    if spans.is_empty() { Vec::new() } else { (0..=most).map(at).collect() }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn requests_are_counted_between_their_arrival_and_their_end() {
        let spans = [[0.0, 1.0, 4.0], [1.0, 3.0, 8.0]];
        let count = |end| present(&spans, end, 8).into_iter().map(|point| point.1).collect::<Vec<_>>();
        assert_eq!(count(2), [1.0, 2.0, 2.0, 2.0, 1.0, 1.0, 1.0, 1.0, 0.0]);
        assert_eq!(count(1), [1.0, 1.0, 1.0, 0.0, 0.0, 0.0, 0.0, 0.0, 0.0]);
        assert_eq!(distribution(&[3.0, 0.0, 1.0, 2.0, 4.0], 2), [(2.0, 50.0), (4.0, 100.0)]);
    }

    #[test]
    fn both_runs_are_named_and_nothing_at_all_is_drawn_empty() {
        let run = ServingCurves {
            ttft: vec![0.1, 0.2],
            tpot: vec![0.01],
            latency: vec![1.0, 2.0],
            spans: vec![[0.0, 0.1, 1.0], [0.5, 0.7, 2.5]],
        };
        let both = serving_svg("title", &run, Some(&run));
        for word in ["title", "TTFT, forecast", "in the engine, measured", "percent of the requests"] {
            assert!(both.contains(word), "{word}");
        }
        assert!(!serving_svg("title", &run, None).contains("measured"));
        assert!(serving_svg("title", &ServingCurves::default(), None).contains("seconds"));
        assert_eq!(serving_png("title", &run, None)[1..4], *b"PNG");
    }
}
