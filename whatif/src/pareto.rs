//! The points of which none other is both faster and cheaper.

use crate::answer::Answer;

/// The second objective of the front; the first is time.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Cost {
    /// Dollars: every point with a plan has a price.
    Dollars,
    /// GPU-hours: some have none.
    GpuHours,
}

impl Cost {
    /// Dollars where all points have them.
    pub fn of(answers: &[Answer]) -> Cost {
        let priced = answers.iter().filter_map(Answer::wanted_run).all(|run| run.cost.is_some());
        if priced { Cost::Dollars } else { Cost::GpuHours }
    }

    /// The cost of an answer's run; `None` without a plan.
    pub fn value(self, answer: &Answer) -> Option<f64> {
        let run = answer.wanted_run()?;
        match self {
            Cost::Dollars => run.cost.map(|cost| cost.get()),
            Cost::GpuHours => Some(run.gpu_hours),
        }
    }
}

/// Which answers are on the front of time and cost.
pub fn front(answers: &[Answer], cost: Cost) -> Vec<bool> {
    let points: Vec<Option<(f64, f64)>> =
        answers.iter().map(|answer| Some((answer.wanted_run()?.time.get(), cost.value(answer)?))).collect();
    front_of(&points)
}

/// Which points no other beats in one coordinate without losing in the other; of equal ones all.
fn front_of(points: &[Option<(f64, f64)>]) -> Vec<bool> {
    let beats = |a: (f64, f64), b: (f64, f64)| a.0 <= b.0 && a.1 <= b.1 && a != b;
    let is_beaten = |point| points.iter().flatten().any(|other| beats(*other, point));
    points.iter().map(|point| point.is_some_and(|point| !is_beaten(point))).collect()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_front_has_what_nothing_beats() {
        let points =
            [Some((1.0, 9.0)), Some((2.0, 5.0)), Some((2.0, 6.0)), None, Some((3.0, 5.0)), Some((4.0, 1.0))];
        assert_eq!(front_of(&points), [true, true, false, false, false, true]);
        assert_eq!(front_of(&[Some((1.0, 1.0)), Some((1.0, 1.0))]), [true, true]);
    }
}
