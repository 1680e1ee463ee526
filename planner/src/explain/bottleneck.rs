//! Why a plan is as fast as it is.

use trainwright_sim::TimeForecast;
use trainwright_spec::units::{Picoseconds, Seconds};

/// What a plan's time goes to beyond the model's arithmetic, the two largest parts: `bubble 11 %, exposed tensor
/// communication 8 %`.
pub(crate) fn limited_by(forecast: &TimeForecast) -> String {
    let mean = &forecast.mean;
    let share = |time: Picoseconds| Seconds::from(time) / forecast.step_time;
    let mut parts = vec![(mean.bubble_share, "bubble".to_string())];
    for time in &mean.communication {
        parts.push((share(time.exposed), format!("exposed {} communication", time.axis.name())));
    }
    parts.push((forecast.recompute_time / forecast.step_time, "recomputation".to_string()));
    parts.sort_by(|a, b| b.0.total_cmp(&a.0));
    let large: Vec<String> = parts
        .iter()
        .filter(|(share, _)| *share >= 0.01)
        .take(2)
        .map(|(share, name)| format!("{name} {:.0} %", 100.0 * share))
        .collect();
    match large.is_empty() {
        true => "compute".into(),
        false => large.join(", "),
    }
}
