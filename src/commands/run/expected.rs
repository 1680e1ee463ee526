//! The forecast of a step on this machine, and steps that are slower than that.

use crate::arguments::{RunArguments, TransportChoice};
use crate::commands::validate::profile;
use crate::error::{CliError, refuse};
use crate::inputs;
use crate::render::words;
use trainwright_executor::{DEVICES, StepReport, Waits, on_machine};
use trainwright_sim::costs::ClusterCosts;
use trainwright_sim::forecast;
use trainwright_spec::plan::Plan;
use trainwright_spec::units::Seconds;

/// The first steps of a run are slower: they allocate.
const WARM_UP: usize = 3;
/// The median of so many steps is compared, so that single slow ones are no reason to warn.
const WINDOW: usize = 10;
/// Forecasts of this machine's steps are at most 17 % off in docs/validation.md, of twenty plans.
const TOLERANCE: f64 = 0.2;
/// Where the rank that waits the most waits for a smaller part of the step, no rank holds others up.
const LEAST_WAIT: f64 = 0.1;

/// The forecast of a step, and the last steps until one warning.
pub struct Expected {
    step_time: Seconds,
    profile: String,
    /// How many steps there were.
    seen: usize,
    last: Vec<StepReport>,
    has_warned: bool,
}

impl Expected {
    /// By the machine's profile; `None` if the arguments name none.
    ///
    /// # Errors
    /// A profile that cannot be read, or that is not of what the ranks run on.
    pub fn of(arguments: &RunArguments, plan: &Plan) -> Result<Option<Self>, CliError> {
        let Some(folder) = &arguments.profile else { return Ok(None) };
        let over = inputs::launched::transport(arguments.transport);
        if arguments.device != DEVICES[0] || over != TransportChoice::Threads {
            let allowed = "it forecasts ranks that are threads on this machine's cores: leave it out";
            return Err(refuse("--profile", folder, allowed));
        }
        let plan = on_machine(plan, &profile(folder, plan)?)?;
        let (forecast, _) = forecast(&plan, &ClusterCosts::new(&plan.cluster))?;
        Ok(Some(Self::new(forecast.step_time, folder)))
    }

    fn new(step_time: Seconds, profile: &str) -> Self {
        Self { step_time, profile: profile.into(), seen: 0, last: Vec::new(), has_warned: false }
    }

    /// Of a step.
    pub fn step_time(&self) -> Seconds {
        self.step_time
    }

    /// `forecast by machine: 212 ms a step, 9,660 tokens/s; slower than 254 ms gets a warning`
    pub fn line(&self, plan: &Plan) -> String {
        let rate = words::grouped((plan.job.tokens() as f64 / self.step_time.get()).round());
        let (profile, step, most) = (&self.profile, self.step_time, self.most());
        format!("forecast by {profile}: {step} a step, {rate} tokens/s; slower than {most} gets a warning\n")
    }

    fn most(&self) -> Seconds {
        Seconds::new(self.step_time.get() * (1.0 + TOLERANCE))
    }

    /// Takes a step; the warning, once.
    pub fn watch(&mut self, report: &StepReport) -> Option<String> {
        self.seen += 1;
        if self.has_warned || self.seen <= WARM_UP {
            return None;
        }
        self.last.push(report.clone());
        if self.last.len() > WINDOW {
            self.last.remove(0);
        }
        let mut sorted: Vec<&StepReport> = self.last.iter().collect();
        sorted.sort_by(|one, other| one.seconds.total_cmp(&other.seconds));
        let median = sorted.get(WINDOW / 2).filter(|_| self.last.len() == WINDOW)?;
        if median.seconds <= self.most().get() {
            return None;
        }
        self.has_warned = true;
        let (first, last) = (self.last[0].step, report.step);
        let (measured, forecast) = (Seconds::new(median.seconds), self.step_time);
        let cause = cause(median.waits.as_ref(), median.seconds);
        Some(format!(
            "slower than forecast: steps {first} to {last} take {measured} (median), forecast {forecast}; {cause}"
        ))
    }
}

/// Why a step of so many seconds is slow, as far as its ranks' waits tell.
fn cause(waits: Option<&Waits>, seconds: f64) -> String {
    let of_all = "no rank waits for another much, so every op takes longer: other programs use these cores, \
                  or the profile is older than a change of the machine";
    let Some(Waits { rank, seconds: waited, op, awaited, awaited_seconds }) = waits else {
        return of_all.into();
    };
    let part = |waited: f64| format!("{:.0} %", 100.0 * waited / seconds);
    if waited - awaited_seconds < LEAST_WAIT * seconds {
        return of_all.into();
    }
    let (most, least) = (part(*waited), part(*awaited_seconds));
    format!(
        "rank {rank} waits or communicates for {most} of the step, most of it in `{op}`, rank {awaited} for {least}: \
         the others wait for rank {awaited}"
    )
}

#[cfg(test)]
mod tests {
    use super::*;

    fn report(step: usize, seconds: f64, waited: f64) -> StepReport {
        let waits = Waits {
            rank: 1,
            seconds: waited,
            op: "receive forward".into(),
            awaited: 0,
            awaited_seconds: 0.01,
        };
        StepReport {
            step,
            loss: 1.0,
            gradient_norm: None,
            learning_rate: 0.0,
            validation_loss: None,
            seconds,
            waits: Some(waits),
        }
    }

    /// The steps with warnings, and what these say.
    fn warnings(seconds: impl Fn(usize) -> f64, waited: f64) -> Vec<(usize, String)> {
        let mut expected = Expected::new(Seconds::new(0.2), "machine");
        let watched = (1..=40).map(|step| (step, expected.watch(&report(step, seconds(step), waited))));
        watched.filter_map(|(step, warning)| Some((step, warning?))).collect()
    }

    #[test]
    fn one_warning_says_how_slow_and_why() {
        // The fourth to the thirteenth step are the first ten that count.
        let [(step, text)] = &warnings(|_| 0.25, 0.1)[..] else { panic!("one warning") };
        assert_eq!(*step, 13);
        let expected = "slower than forecast: steps 4 to 13 take 250 ms (median), forecast 200 ms; rank 1 waits or \
                        communicates for 40 % of the step, most of it in `receive forward`, rank 0 for 4 %: the others \
                        wait for rank 0";
        assert_eq!(text, expected);
        // From step 20 on: the median of ten is slow when six of them are.
        let late = warnings(|step| if step < 20 { 0.2 } else { 0.3 }, 0.02);
        assert_eq!((late.len(), late[0].0), (1, 24));
        assert!(late[0].1.contains("no rank waits for another much"), "{}", late[0].1);
    }

    #[test]
    fn single_slow_steps_and_errors_of_the_forecast_are_no_reason() {
        assert_eq!(warnings(|step| if step % 3 == 0 { 1.0 } else { 0.2 }, 0.1), []);
        assert_eq!(warnings(|_| 0.239, 0.1), []);
    }
}
