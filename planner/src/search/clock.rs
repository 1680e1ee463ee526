//! When a search ends: by its time limit, or because who asked wants the best so far.

use std::time::Instant;
use trainwright_sim::Stop;
use trainwright_spec::units::Seconds;

/// When a search began, and when it ends.
#[derive(Clone, Copy)]
pub(crate) struct Clock<'a> {
    began: Instant,
    limit: Limit,
    stop: Stop<'a>,
}

#[derive(Clone, Copy)]
enum Limit {
    /// When nothing that is left can be among the proved.
    Proof,
    /// With the first plan, whenever that is found.
    FirstPlan,
    /// After this time.
    Time(Seconds),
}

/// The part of the time after which a search ends, and the forecasts of what it has found begin.
const ON_SEARCH: f64 = 0.8;

/// How much time forecasts get at most.
const ON_FORECASTS: Seconds = Seconds::new(2.0);

/// The part of the time that a search spends on a part of its space before: on what suits the model, and on what is quick to
/// simulate.
const ON_NARROWER: f64 = 0.4;

impl<'a> Clock<'a> {
    /// Begins now. A limit of zero asks for the first plan.
    pub fn new(limit: Option<Seconds>, stop: Stop<'a>) -> Self {
        let limit = match limit {
            None => Limit::Proof,
            Some(limit) if limit <= Seconds::ZERO => Limit::FirstPlan,
            Some(limit) => Limit::Time(limit),
        };
        Self { began: Instant::now(), limit, stop }
    }

    /// A clock for one of as many searches one after the other, which share what is left of the time.
    pub fn share(&self, searches: usize) -> Self {
        let limit = match self.left() {
            Some(left) => Limit::Time(left / searches as f64),
            None => self.limit,
        };
        Self { began: Instant::now(), limit, stop: self.stop }
    }

    /// Whether the search ends before its proof.
    pub fn is_limited(&self) -> bool {
        !matches!(self.limit, Limit::Proof)
    }

    /// Whether the first plan is all that is asked for.
    pub fn seeks_first_plan(&self) -> bool {
        matches!(self.limit, Limit::FirstPlan)
    }

    /// Whether who asked wants the best so far.
    pub fn is_stopped(&self) -> bool {
        (self.stop)()
    }

    /// Whether everything must end.
    pub fn is_over(&self) -> bool {
        self.has_passed(1.0)
    }

    /// Whether the search must end, so that time is left for forecasts.
    pub fn ends_search(&self) -> bool {
        match self.limit {
            Limit::Time(limit) => self.has_passed(ON_SEARCH.max(1.0 - ON_FORECASTS / limit)),
            _ => self.is_over(),
        }
    }

    /// Whether the search of a part of the space must end, before that of all.
    pub fn ends_narrower(&self) -> bool {
        self.has_passed(ON_NARROWER)
    }

    /// Whether to look no further for a first plan.
    pub fn ends_first_plan(&self) -> bool {
        match self.limit {
            Limit::FirstPlan => self.is_stopped(),
            _ => self.is_over(),
        }
    }

    /// The time until the limit; `None` without one.
    pub fn left(&self) -> Option<Seconds> {
        let gone = Seconds::new(self.began.elapsed().as_secs_f64());
        match self.limit {
            Limit::Time(limit) => Some((limit - gone).max(Seconds::ZERO)),
            Limit::Proof | Limit::FirstPlan => None,
        }
    }

    fn has_passed(&self, part: f64) -> bool {
        let is_late = match self.limit {
            Limit::Proof => false,
            Limit::FirstPlan => true,
            Limit::Time(limit) => self.began.elapsed().as_secs_f64() >= part * limit.get(),
        };
        is_late || self.is_stopped()
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn limits_of_zero_ask_for_the_first_plan_and_stops_end_every_part() {
        let check = |limit: Option<f64>, stopped: bool, expected: [bool; 4]| {
            let stop = move || stopped;
            let clock = Clock::new(limit.map(Seconds::new), &stop);
            let parts = |clock: &Clock| {
                [clock.ends_first_plan(), clock.ends_narrower(), clock.ends_search(), clock.is_over()]
            };
            assert_eq!(parts(&clock), expected, "{limit:?}, {stopped}");
            assert_eq!(parts(&clock.share(2)), expected, "a share of {limit:?}, {stopped}");
        };
        check(None, false, [false; 4]);
        check(Some(0.0), false, [false, true, true, true]);
        check(Some(1e6), false, [false; 4]);
        for limit in [None, Some(0.0), Some(1e6)] {
            check(limit, true, [true; 4]);
        }
    }

    #[test]
    fn searches_one_after_the_other_share_the_time() {
        let clock = Clock::new(Some(Seconds::new(1e6)), &|| false);
        let half = clock.share(2).left().unwrap().get();
        assert!(half <= 0.5e6 && half > 0.49e6, "{half} s");
        assert_eq!(Clock::new(None, &|| false).share(2).left(), None);
    }
}
