//! A plan's speed with failures, as text and as JSON.

use super::json::print;
use super::words;
use serde_json::json;
use trainwright_sim::goodput::Goodput;
use trainwright_spec::plan::Plan;
use trainwright_spec::reliability::Reliability;
use trainwright_spec::units::Seconds;

/// The answer of `goodput`.
pub struct Answer<'a> {
    /// The plan.
    pub plan: &'a Plan,
    /// Its step, without failures.
    pub step_time: Seconds,
    /// Tokens of all GPUs, without failures.
    pub tokens_per_s: f64,
    /// The share of the speed that remains.
    pub goodput: Goodput,
    /// The assumed rates of failures.
    pub reliability: &'a Reliability,
    /// Tokens to train.
    pub tokens: Option<f64>,
}

impl Answer<'_> {
    /// Steps between checkpoints.
    fn steps(&self) -> f64 {
        (self.goodput.interval / self.step_time).round().max(1.0)
    }

    /// How long it takes to train the tokens, without failures and with them.
    fn days(&self) -> Option<[f64; 2]> {
        let days = self.tokens? / self.tokens_per_s / 86_400.0;
        Some([days, days / self.goodput.goodput])
    }
}

/// The page of `goodput`.
pub fn page(answer: &Answer) -> String {
    let Answer { plan, goodput, reliability, .. } = answer;
    let lost = 1.0 - goodput.goodput;
    let mut pairs = vec![
        ("failures", format!("one every {}, as on {}", duration(goodput.between_failures), reliability.name)),
        (
            "checkpoint",
            format!("{} GiB in {}", words::gib(goodput.checkpoint), duration(goodput.checkpoint_time)),
        ),
        ("restart", duration(goodput.restart)),
        (
            "interval",
            format!(
                "a checkpoint every {} ({} steps) by Daly, {} by Young",
                duration(goodput.interval),
                words::grouped(answer.steps()),
                duration(goodput.young_interval)
            ),
        ),
        ("calibration", words::calibration(plan.cluster.calibration.as_deref())),
        ("goodput", format!("{} %, {} % is lost", words::percent(goodput.goodput), words::percent(lost))),
        (
            "tokens/s",
            format!(
                "{} with failures, {} without",
                words::grouped(answer.tokens_per_s * goodput.goodput),
                words::grouped(answer.tokens_per_s)
            ),
        ),
    ];
    let extra = plan.job.optimizer().extra_passes();
    if extra > 0.0 {
        let (name, passes) = (&plan.job.optimizer, words::percent(extra));
        pairs.push((
            "optimizer",
            format!("{name} adds {passes} % of passes in the mean of steps: lost time too"),
        ));
    }
    if let Some([without, with]) = answer.days() {
        let [without, with] = [without, with].map(|days| duration(Seconds::of_days(days)));
        pairs.push(("time", format!("{with} with failures, {without} without")));
    }
    let title = format!("{} on {}", plan.model.name, plan.cluster.name);
    words::heading(&title) + &words::pairs(pairs)
}

/// The answer as JSON.
pub fn json(answer: &Answer) -> String {
    let days = answer.days();
    print(&json!({
        "reliability": answer.reliability.name,
        "goodput": answer.goodput,
        "steps_between_checkpoints": answer.steps(),
        "step_time_s": answer.step_time,
        "tokens_per_s": answer.tokens_per_s,
        "tokens_per_s_with_failures": answer.tokens_per_s * answer.goodput.goodput,
        "days": days.map(|days| days[0]),
        "days_with_failures": days.map(|days| days[1]),
    }))
}

fn duration(time: Seconds) -> String {
    let seconds = time.get();
    let units = [(86_400.0, "days"), (3600.0, "hours"), (60.0, "minutes")];
    match units.iter().find(|(unit, _)| seconds >= 1.5 * unit) {
        Some((unit, name)) => format!("{:.1} {name}", seconds / unit),
        None => format!("{seconds:.1} s"),
    }
}
