//! Progress bars, on standard error and only for people.

use indicatif::{ProgressBar, ProgressDrawTarget, ProgressStyle};
use trainwright_planner::Progress;

/// Progress of a training run.
pub struct TrainingBar(ProgressBar);

impl TrainingBar {
    /// A bar for steps up to `last`; invisible unless `wanted`.
    pub fn new(wanted: bool, last: usize) -> TrainingBar {
        let target = if wanted { ProgressDrawTarget::stderr() } else { ProgressDrawTarget::hidden() };
        let bar = ProgressBar::with_draw_target(Some(last as u64), target);
        let style = ProgressStyle::with_template("{pos}/{len} {wide_bar} {msg}");
        bar.set_style(style.expect("the template is right"));
        TrainingBar(bar)
    }

    /// Says something above the bar.
    pub fn above<R>(&self, say: impl FnOnce() -> R) -> R {
        self.0.suspend(say)
    }

    /// Moves the bar; `message` is called only if the bar is visible.
    pub fn show(&self, step: usize, message: impl FnOnce() -> String) {
        if !self.0.is_hidden() {
            self.0.set_position(step as u64);
            self.0.set_message(message());
        }
    }
}

/// The bar leaves no trace.
impl Drop for TrainingBar {
    fn drop(&mut self) {
        self.0.finish_and_clear();
    }
}

/// A bar that is invisible where standard error is not a terminal.
pub struct Bar(ProgressBar);

impl Bar {
    /// A bar; invisible if the program is quiet.
    pub fn new() -> Bar {
        let target = match crate::output::is_quiet() {
            true => ProgressDrawTarget::hidden(),
            false => ProgressDrawTarget::stderr(),
        };
        let bar = ProgressBar::with_draw_target(Some(0), target);
        let style = ProgressStyle::with_template("{msg:12} {wide_bar} {pos}/{len}");
        bar.set_style(style.expect("the template is right"));
        Bar(bar)
    }

    /// Moves the bar of a simulation that is run many times. May be called from several threads.
    pub fn samples(&self, done: usize, total: usize) {
        self.show(Progress { phase: "samples", done, total });
    }

    /// Moves the bar of measuring runs.
    pub fn runs(&self, done: usize, total: usize) {
        self.show(Progress { phase: "runs", done, total });
    }

    /// Says something above the bar.
    pub fn above<R>(&self, say: impl FnOnce() -> R) -> R {
        self.0.suspend(say)
    }

    /// Moves the bar of a sweep. May be called from several threads.
    pub fn points(&self, done: usize, total: usize) {
        self.show(Progress { phase: "points", done, total });
    }

    /// Moves the bar. May be called from several threads.
    pub fn show(&self, progress: Progress) {
        self.0.set_length(progress.total as u64);
        self.0.set_position(progress.done as u64);
        self.0.set_message(progress.phase);
    }
}

/// The bar leaves no trace, whether there is an answer or an error.
impl Drop for Bar {
    fn drop(&mut self) {
        self.0.finish_and_clear();
    }
}
