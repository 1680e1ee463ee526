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
use trainwright_timeline::timeline::{Activity, Span, Timeline};

/// The first steps of a run are slower: they allocate.
const WARM_UP: usize = 3;
/// The median of so many steps is compared, so that single slow ones are no reason to warn.
const WINDOW: usize = 10;
/// Forecasts of this machine's steps are at most 17 % off in docs/validation.md, of twenty plans.
const TOLERANCE: f64 = 0.2;
/// Where the rank that waits the most waits for a part of the step that is larger than forecast by less than this, no rank holds
/// others up.
const LEAST_WAIT: f64 = 0.1;

/// The forecast of a step, and the last steps until one warning.
pub struct Expected {
    step_time: Seconds,
    /// The part of the step that each rank waits or communicates in the forecast.
    waits: Vec<f64>,
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
        let (forecast, timeline) = forecast(&plan, &ClusterCosts::new(&plan.cluster))?;
        Ok(Some(Self::new(forecast.step_time, waits(&plan, &timeline), folder)))
    }

    fn new(step_time: Seconds, waits: Vec<f64>, profile: &str) -> Self {
        Self { step_time, waits, profile: profile.into(), seen: 0, last: Vec::new(), has_warned: false }
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
        let cause = self.cause(median);
        Some(format!(
            "slower than forecast: steps {first} to {last} take {measured} (median), forecast {forecast}; {cause}"
        ))
    }

    /// Why a step is slow, as far as its ranks' waits tell.
    fn cause(&self, report: &StepReport) -> String {
        let of_all = "no rank waits for another more than forecast, so every op takes longer: other programs use \
                      these cores, or the profile is of another machine or older than a change of it";
        let Some(Waits { rank, seconds, op, awaited, awaited_seconds }) = &report.waits else {
            return of_all.into();
        };
        let [most, least] = [seconds, awaited_seconds].map(|waited| waited / report.seconds);
        let forecast = self.waits[*rank];
        if most - forecast < LEAST_WAIT || most - least < LEAST_WAIT {
            return of_all.into();
        }
        let [most, forecast, least] = [most, forecast, least].map(|part| format!("{:.0} %", 100.0 * part));
        format!(
            "rank {rank} waits or communicates for {most} of the step (forecast {forecast}), most of it in `{op}`, \
             and rank {awaited} for {least}: the others wait for rank {awaited}"
        )
    }
}

/// The part of the step in which each rank neither computes nor copies: it waits or communicates.
fn waits(plan: &Plan, timeline: &Timeline) -> Vec<f64> {
    let busy = |track: usize| {
        let is_busy = |span: &&Span| !matches!(span.activity, Activity::Wait | Activity::Communication(_));
        let spans = timeline.spans.iter().filter(|span| span.rank as usize == track).filter(is_busy);
        spans.map(|span| span.end.0 - span.start.0).sum::<u64>() as f64
    };
    let of_track = |track: usize| (1.0 - busy(track) / timeline.duration.0 as f64).max(0.0);
    // Ranks of the same stage do the same.
    let track_of = |rank: usize| {
        let pipeline_rank = plan.mesh.coordinates(rank).pipeline;
        timeline.ranks.iter().position(|track| track.pipeline_rank == pipeline_rank)
    };
    (0..plan.mesh.ranks()).map(|rank| track_of(rank).map_or(0.0, of_track)).collect()
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
            z_loss: None,
            gradient_norm: None,
            learning_rate: 0.0,
            validation_loss: None,
            sample: None,
            seconds,
            waits: Some(waits),
        }
    }

    /// The steps with warnings, and what these say.
    fn warnings(seconds: impl Fn(usize) -> f64, waited: f64) -> Vec<(usize, String)> {
        let mut expected = Expected::new(Seconds::new(0.2), vec![0.0, 0.25], "machine");
        let watched = (1..=40).map(|step| (step, expected.watch(&report(step, seconds(step), waited))));
        watched.filter_map(|(step, warning)| Some((step, warning?))).collect()
    }

    #[test]
    fn one_warning_says_how_slow_and_why() {
        // The fourth to the thirteenth step are the first ten that count.
        let [(step, text)] = &warnings(|_| 0.25, 0.1)[..] else { panic!("one warning") };
        assert_eq!(*step, 13);
        let expected = "slower than forecast: steps 4 to 13 take 250 ms (median), forecast 200 ms; rank 1 waits or \
                        communicates for 40 % of the step (forecast 25 %), most of it in `receive forward`, and rank 0 \
                        for 4 %: the others wait for rank 0";
        assert_eq!(text, expected);
        // From step 20 on: the median of ten is slow when six of them are.
        let late = warnings(|step| if step < 20 { 0.2 } else { 0.3 }, 0.02);
        assert_eq!((late.len(), late[0].0), (1, 24));
        assert!(late[0].1.contains("no rank waits for another more than forecast"), "{}", late[0].1);
    }

    /// Rank 1 waits for 34 % of the step, which is 9 points more than forecast.
    #[test]
    fn waits_of_the_plan_itself_are_no_cause() {
        let [(_, text)] = &warnings(|_| 0.25, 0.085)[..] else { panic!("one warning") };
        assert!(text.contains("no rank waits for another more than forecast"), "{text}");
    }

    #[test]
    fn single_slow_steps_and_errors_of_the_forecast_are_no_reason() {
        assert_eq!(warnings(|step| if step % 3 == 0 { 1.0 } else { 0.2 }, 0.1), []);
        assert_eq!(warnings(|_| 0.239, 0.1), []);
    }
}
