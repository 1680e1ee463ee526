//! Trainings by step: their losses on the left, the norms of their gradients on the right.

use super::Mark;
use super::figure::{Figure, Panel};
use crate::axis::Axis;
use crate::canvas;
use crate::palette::CURVES;

/// A run, or one of several that are compared. All points are (step, value).
#[derive(Debug, Clone, PartialEq, Default)]
pub struct TrainingCurves {
    /// Its name in the legend; empty if it is the only one.
    pub name: String,
    /// Losses of training.
    pub loss: Vec<(f64, f64)>,
    /// Losses of held-out tokens.
    pub validation: Vec<(f64, f64)>,
    /// Norms of gradients.
    pub norm: Vec<(f64, f64)>,
}

/// The most points of a curve: more of them are drawn as means of neighbours, which keeps the picture small.
const MOST_POINTS: usize = 600;

/// Draws trainings as an SVG document.
pub fn training_svg(title: &str, runs: &[TrainingCurves]) -> String {
    canvas::svg::document(&figure(title, &names(runs), runs).draw(), title)
}

/// Draws trainings as a PNG file.
pub fn training_png(title: &str, runs: &[TrainingCurves]) -> Vec<u8> {
    canvas::png::file(&figure(title, &names(runs), runs).draw())
}

/// Of the curves of each run: training, and validation if there is any.
fn names(runs: &[TrainingCurves]) -> Vec<(String, Mark)> {
    let of_run = |run: &TrainingCurves| {
        let name = |what: &str| format!("{} {what}", run.name).trim().to_string();
        let validation = (!run.validation.is_empty()).then(|| (name("validation"), Mark::Points));
        [Some((name("training"), Mark::Line)), validation]
    };
    runs.iter().flat_map(of_run).flatten().collect()
}

fn figure<'a>(title: &'a str, names: &'a [(String, Mark)], runs: &[TrainingCurves]) -> Figure<'a> {
    let mut losses = Vec::new();
    let mut norms = Vec::new();
    for run in runs {
        losses.push(thinned(&run.loss));
        norms.push(thinned(&run.norm));
        if !run.validation.is_empty() {
            losses.push(thinned(&run.validation));
            norms.push(Vec::new());
        }
    }
    let panel = |up: &'static str, curves: Vec<Vec<(f64, f64)>>| {
        let points = || curves.iter().flatten();
        let across = Axis::linear(points().map(|point| point.0));
        let axis = Axis::linear(points().map(|point| point.1));
        Panel { names: ("step", up), across, up: axis, curves }
    };
    Figure {
        title,
        curves: names.iter().map(|(name, mark)| (name.as_str(), *mark)).collect(),
        panels: [panel("loss (nats per token)", losses), panel("norm of the gradients", norms)],
        dots_on_lines: false,
        colours: CURVES.len(),
    }
}

/// At most `MOST_POINTS` points, each the mean of as many neighbours. Values that are not finite have no place.
fn thinned(points: &[(f64, f64)]) -> Vec<(f64, f64)> {
    let finite: Vec<(f64, f64)> = points.iter().copied().filter(|point| point.1.is_finite()).collect();
    let together = finite.len().div_ceil(MOST_POINTS).max(1);
    let mean = |points: &[(f64, f64)]| {
        let sum = points.iter().fold((0.0, 0.0), |sum, point| (sum.0 + point.0, sum.1 + point.1));
        (sum.0 / points.len() as f64, sum.1 / points.len() as f64)
    };
    finite.chunks(together).map(mean).collect()
}

#[cfg(test)]
mod tests {
    use super::*;

    /// A loss that falls as 5 / √step.
    fn run(name: &str, steps: usize) -> TrainingCurves {
        let loss = (1..=steps).map(|step| (step as f64, 5.0 / (step as f64).sqrt())).collect();
        let validation = vec![(steps as f64, 4.5)];
        TrainingCurves { name: name.into(), loss, validation, norm: vec![(1.0, 2.0), (2.0, f64::NAN)] }
    }

    #[test]
    fn neighbours_are_drawn_as_their_mean() {
        let points: Vec<(f64, f64)> = (0..1200).map(|step| (f64::from(step), f64::from(step % 2))).collect();
        let drawn = thinned(&points);
        assert_eq!((drawn.len(), drawn[0], drawn[599]), (600, (0.5, 0.5), (1198.5, 0.5)));
        assert_eq!(thinned(&[(1.0, f64::INFINITY), (2.0, 3.0)]), [(2.0, 3.0)]);
        assert_eq!(thinned(&points[..600]), points[..600]);
    }

    #[test]
    fn a_picture_names_its_curves_and_stays_small() {
        let drawn = training_svg("title", &[run("", 100_000)]);
        for word in
            ["title", ">training<", ">validation<", "loss (nats per token)", "norm of the gradients", "step"]
        {
            assert!(drawn.contains(word), "{word}");
        }
        assert!(drawn.len() < 60_000, "{} bytes", drawn.len());
        assert_eq!(drawn, training_svg("title", &[run("", 100_000)]));
        let both = [run("one", 10), run("two", 10)];
        let compared = training_svg("title", &both);
        assert!(
            ["one training", "one validation", "two training"].iter().all(|name| compared.contains(name))
        );
        assert_eq!(training_png("title", &both)[1..4], *b"PNG");
        // Nothing at all is drawn as empty panels.
        assert!(training_svg("title", &[]).contains("step"));
    }
}
