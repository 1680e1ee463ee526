//! The layers in the form that the methods count with.

use super::problem::{Choice, LayerClass, Problem};

/// The layers of a problem, without the classes and choices that cannot matter.
///
/// Times and bytes are rounded to a grid of 2⁻⁵¹ of their total, so that sums are exact in any order and equal costs
/// compare equal.
pub(super) struct CountedLayers {
    /// Of each kind of device, only classes that occur.
    pub classes: Vec<Vec<Class>>,
    /// The class of each layer.
    pub sequence: Vec<usize>,
    /// Every peak that a choice has, in bytes, ascending.
    pub peaks: Vec<f64>,
    /// Times in seconds of what stages run besides their layers, on the same grid as the layers'.
    pub stage_times: Vec<f64>,
}

/// A kind of layer.
pub(super) struct Class {
    pub state: f64,
    pub idle: f64,
    /// None is worse than another in time, kept memory and peak at once; fastest first.
    pub choices: Vec<LayerChoice>,
    /// Indices into `choices`, that which keeps least first.
    pub by_kept: Vec<usize>,
}

/// A choice, in seconds and bytes.
#[derive(Clone, Copy)]
pub(super) struct LayerChoice {
    /// Index into the class's choices as given.
    pub index: usize,
    pub time: f64,
    pub kept: f64,
    pub peak: f64,
}

impl CountedLayers {
    /// Needs a validated problem.
    pub fn new(problem: &Problem) -> Self {
        let mut position = vec![usize::MAX; problem.classes[0].len()];
        let mut used = Vec::new();
        let mut sequence = Vec::new();
        for run in problem.runs.iter().filter(|run| run.count > 0) {
            if position[run.class] == usize::MAX {
                position[run.class] = used.len();
                used.push(run.class);
            }
            sequence.extend(std::iter::repeat_n(position[run.class], run.count));
        }
        let largest = |of: fn(&Choice) -> f64| {
            let classes =
                problem.classes.iter().flat_map(|classes| used.iter().map(|&class| &classes[class]));
            let choices = classes.flat_map(|class| &class.choices);
            sequence.len() as f64 * choices.map(of).fold(0.0, f64::max)
        };
        let stage_time: f64 = problem.stages.iter().map(|stage| stage.time.get()).sum();
        let seconds = Grid::new(largest(|choice| choice.time.get()) + stage_time);
        let bytes = Grid::new(largest(|choice| choice.kept.get()));
        let of_class = |class: &LayerClass| class.state.max(class.idle).get();
        let states: f64 = problem.classes.iter().flatten().map(of_class).sum();
        let state_bytes = Grid::new(states * sequence.len() as f64);
        let counted = |class: &LayerClass| {
            let options = class.choices.iter().enumerate().map(|(index, choice)| LayerChoice {
                index,
                time: seconds.round(choice.time.get()),
                kept: bytes.round(choice.kept.get()),
                peak: choice.peak.get(),
            });
            let choices = undominated(options.collect());
            let mut by_kept: Vec<usize> = (0..choices.len()).collect();
            by_kept.sort_by(|&a, &b| choices[a].kept.total_cmp(&choices[b].kept));
            let [state, idle] = [class.state, class.idle].map(|bytes| state_bytes.round(bytes.get()));
            Class { state, idle, choices, by_kept }
        };
        let of_device =
            |classes: &Vec<LayerClass>| used.iter().map(|&class| counted(&classes[class])).collect();
        let classes: Vec<Vec<Class>> = problem.classes.iter().map(of_device).collect();
        let all = classes.iter().flatten();
        let mut peaks: Vec<f64> =
            all.flat_map(|class| class.choices.iter().map(|choice| choice.peak)).collect();
        peaks.sort_by(f64::total_cmp);
        peaks.dedup();
        let stage_times = problem.stages.iter().map(|stage| seconds.round(stage.time.get())).collect();
        Self { classes, sequence, peaks, stage_times }
    }

    /// Time of all layers, each run the fastest way on the fastest device.
    pub fn fastest(&self) -> f64 {
        let on = |class: usize| self.classes.iter().map(move |classes| classes[class].choices[0].time);
        self.sequence.iter().map(|&class| on(class).fold(f64::INFINITY, f64::min)).sum()
    }
}

/// Fastest first, then least kept, then least peak, without those that another one beats or equals in all three.
fn undominated(mut options: Vec<LayerChoice>) -> Vec<LayerChoice> {
    options.sort_by(|a, b| {
        a.time.total_cmp(&b.time).then(a.kept.total_cmp(&b.kept)).then(a.peak.total_cmp(&b.peak))
    });
    let mut front: Vec<LayerChoice> = Vec::new();
    for option in options {
        if !front.iter().any(|better| better.kept <= option.kept && better.peak <= option.peak) {
            front.push(option);
        }
    }
    front
}

/// Multiples of a power of two, fine enough to hold a total in 51 bits.
struct Grid(f64);

impl Grid {
    fn new(total: f64) -> Self {
        if total > 0.0 { Self(libm::exp2(libm::log2(total).ceil() - 51.0)) } else { Self(1.0) }
    }

    fn round(&self, value: f64) -> f64 {
        // Below 1e-290 the step would be subnormal; no quantity of a training step is that small.
        if self.0 < f64::MIN_POSITIVE { value } else { (value / self.0).round() * self.0 }
    }
}
