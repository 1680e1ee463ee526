//! Progress bars, on standard error and only for people.

use crate::calls::{self, Call};
use crate::output;
use crate::render::words::percent;
use indicatif::{ProgressBar, ProgressDrawTarget, ProgressStyle};
use std::borrow::Cow;
use std::panic::resume_unwind;
use std::sync::Arc;
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

/// A bar that is invisible where standard error is not a terminal; in a call of the library its caller's.
pub struct Bar {
    bar: ProgressBar,
    call: Option<Arc<Call>>,
}

/// What unwinds the stack of a call for whose answer nobody waits any more.
pub struct Stopped;

impl Bar {
    /// A bar; invisible if the program is quiet.
    pub fn new() -> Bar {
        let call = calls::current();
        let target = match output::is_quiet() || call.is_some() {
            true => ProgressDrawTarget::hidden(),
            false => ProgressDrawTarget::stderr(),
        };
        let bar = ProgressBar::with_draw_target(Some(0), target);
        let style = ProgressStyle::with_template("{msg} {wide_bar} {pos}/{len}");
        bar.set_style(style.expect("the template is right"));
        Bar { bar, call }
    }

    /// Moves the bar of a simulation that is run many times. May be called from several threads.
    pub fn samples(&self, done: usize, total: usize) {
        self.show("samples", done, total);
    }

    /// Moves the bar of measuring runs.
    pub fn runs(&self, done: usize, total: usize) {
        self.show("runs", done, total);
    }

    /// Says something above the bar.
    pub fn above<R>(&self, say: impl FnOnce() -> R) -> R {
        self.bar.suspend(say)
    }

    /// Moves the bar of a sweep. May be called from several threads.
    pub fn points(&self, done: usize, total: usize) {
        self.show("points", done, total);
    }

    /// Moves the bar of a search, with the best plan so far. May be called from several threads.
    pub fn search(&self, progress: &Progress) {
        // A search that is stopped ends by itself, with its answer so far.
        self.set(so_far(progress).into(), progress.done, progress.total);
    }

    /// Moves the bar. May be called from several threads.
    pub fn show(&self, message: impl Into<Cow<'static, str>>, done: usize, total: usize) {
        self.set(message.into(), done, total);
        if self.call.as_ref().is_some_and(|call| call.watch().is_stopped()) {
            resume_unwind(Box::new(Stopped));
        }
    }

    fn set(&self, message: Cow<'static, str>, done: usize, total: usize) {
        match &self.call {
            Some(call) => call.watch().progress(&message, done, total),
            None => {
                self.bar.set_length(total as u64);
                self.bar.set_position(done as u64);
                self.bar.set_message(message);
            }
        }
    }
}

/// How far a search is: `partitions: best 5.31 s, bound 4.86 s, gap 8.5 %, 12 s left`.
fn so_far(progress: &Progress) -> String {
    let best = match (progress.best, progress.bound, progress.gap()) {
        (Some(best), Some(bound), Some(gap)) => {
            format!("best {best}, bound {bound}, gap {} %", percent(gap))
        }
        (Some(best), ..) => format!("best {best}"),
        (None, Some(bound), _) => format!("no plan yet, bound {bound}"),
        (None, None, _) => "no plan yet".into(),
    };
    let left = progress.left.map_or_else(String::new, |left| format!(", {:.0} s left", left.get().ceil()));
    format!("{}: {best}{left}", progress.phase)
}

/// The bar leaves no trace, whether there is an answer or an error.
impl Drop for Bar {
    fn drop(&mut self) {
        self.bar.finish_and_clear();
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use trainwright_spec::units::Seconds;

    #[test]
    fn the_progress_of_a_search_has_the_best_the_bound_the_gap_and_the_time_left() {
        let check = |best: Option<f64>, bound: Option<f64>, left: Option<f64>, expected: &str| {
            let [best, bound, left] = [best, bound, left].map(|time| time.map(Seconds::new));
            let progress = Progress { phase: "partitions", done: 1, total: 2, best, bound, left };
            assert_eq!(so_far(&progress), expected);
        };
        check(None, None, None, "partitions: no plan yet");
        check(None, Some(3.0), Some(1.2), "partitions: no plan yet, bound 3.00 s, 2 s left");
        // 1 - 3/4 = 25 %.
        check(Some(4.0), Some(3.0), None, "partitions: best 4.00 s, bound 3.00 s, gap 25.0 %");
        check(Some(4.0), Some(4.5), Some(0.0), "partitions: best 4.00 s, bound 4.50 s, gap 0.0 %, 0 s left");
        check(Some(4.0), None, None, "partitions: best 4.00 s");
    }
}
