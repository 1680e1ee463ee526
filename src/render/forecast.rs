//! The forecast of one plan.

use super::stages::{by_pipeline_rank, simulated_memory, stages};
use super::table::Table;
use super::words::{
    self, choices, count, fit, gib, grouped, heading, job_in_words, memory_of_gpus, offloaded, pairs,
    percent, share, wrap,
};
use trainwright_sim::likeness::Confidence;
use trainwright_sim::{Detail, Forecast};
use trainwright_spec::calibration::ranges::Range;
use trainwright_spec::plan::Plan;
use trainwright_spec::program::{Axis, Stream};
use trainwright_spec::units::{Picoseconds, Seconds};
use trainwright_timeline::draw::{Style, draw};
use trainwright_timeline::report::RankReport;
use trainwright_timeline::timeline::Timeline;

/// Everything that a person wants to know of a plan; the drawing fills `columns`.
pub fn page(
    plan: &Plan,
    forecast: &Forecast,
    confidence: &Confidence,
    timeline: &Timeline,
    columns: usize,
) -> String {
    let Plan { model, cluster, job, stack, .. } = plan;
    let mut page = wrap(&job_in_words(model, cluster, job, &stack.name), 0);
    page.push_str(&wrap(&choices(plan), 0));
    page.push_str(&heading("Forecast of a step"));
    page.push_str(&pairs(figures(plan, forecast, confidence)));
    if forecast.detail == Detail::Calls {
        let note = "The step has millions of ops and was simulated call by call: hidden communication is exact to \
                    a hundredth of the step, and simulated memory is without temporaries.";
        page.push_str(&wrap(note, 0));
    }
    page.push_str(&heading(&format!(
        "Time of each pipeline rank in {} (the step takes {})",
        Unit::of(forecast).name,
        forecast.step_time
    )));
    page.push_str(&times(forecast));
    page.push_str(&heading(&format!(
        "Memory of each pipeline rank in closed form, in GiB ({})",
        memory_of_gpus(&plan.cluster)
    )));
    page.push_str(&stages(plan, forecast));
    page.push_str(&heading("Memory of each pipeline rank at its simulated peak, in GiB"));
    page.push_str(&simulated_memory(plan, forecast));
    page.push_str(&heading("Pipeline"));
    page.push_str(&drawing(timeline, columns));
    if !forecast.fits {
        page.push_str(&format!("\nThe plan {}.\n", fit(plan, forecast)));
    }
    page
}

/// The pipeline as text, with how to read it.
pub fn drawing(timeline: &Timeline, columns: usize) -> String {
    let legend = "A row for each pipeline rank, named after its first GPU. F0: forward of microbatch 0, B0: its \
                  backward (1F0: of stage 1), ==: goes on, ##: gradients and weights, ..: idle";
    draw(timeline, &Style::fitting(columns)) + &wrap(legend, 0)
}

/// Tokens a second, in all and on each GPU.
pub fn tokens_per_s(forecast: &Forecast) -> String {
    format!("{} ({} per GPU)", grouped(forecast.tokens_per_s), grouped(forecast.tokens_per_s_per_gpu))
}

/// Both ways in which people count it.
pub fn mfu(forecast: &Forecast) -> String {
    format!(
        "{} % (causal attention halved), {} % (all attention scores counted)",
        percent(forecast.mfu_causal_attention),
        percent(forecast.mfu_full_attention),
    )
}

/// The FLOPs that the GPUs execute.
pub fn hfu(forecast: &Forecast) -> String {
    format!("{} % (executed, recomputation included)", percent(forecast.hfu))
}

/// Exposed communication in % of the step, in the mean over ranks.
pub fn exposed(forecast: &Forecast) -> String {
    percent(share(forecast.report.mean.exposed, forecast.report.step_time))
}

/// The range of the step time and of the memory, and the calibration.
pub fn trust(forecast: &Forecast, confidence: &Confidence) -> Vec<(&'static str, String)> {
    let Confidence { calibration, source, ceiling, expected, time, memory, fits_with } = confidence;
    let mut lines = Vec::new();
    if time.is_some() {
        let ratio = *expected / forecast.step_time;
        lines.push((
            "expected",
            format!("{expected}: runs of this kind take {ratio:.2} times their forecast"),
        ));
    }
    if let Some(range) = time {
        let times = format!("{} to {}", range.low * forecast.step_time, range.high * forecast.step_time);
        lines.push(("80 % range", format!("{times}: {}", evidence(range))));
    }
    if let Some(range) = memory {
        let [low, high] = [range.low, range.high].map(|end| gib(end * forecast.peak_memory));
        let fits = fits_with.map_or_else(String::new, |part| format!("fits with {:.0} %, ", 100.0 * part));
        lines.push(("memory range", format!("{fits}{low} to {high} GiB: {}", evidence(range))));
    }
    let name = words::calibration(Some(calibration));
    lines.push(match calibration.as_str() {
        "none" => ("calibration", name),
        _ => {
            // A plan's file has the name of its calibration alone.
            let source = if source.is_empty() { String::new() } else { format!(", {source}") };
            (
                "calibration",
                format!("{name}{source}; without it the step takes {ceiling}, a ceiling on speed"),
            )
        }
    });
    lines
}

/// On which measured runs a range rests.
fn evidence(range: &Range) -> String {
    let percent = |part: f64| format!("{:+.0} %", 100.0 * (part - 1.0)).replace('-', "−");
    let relative = format!("{} to {}", percent(range.low), percent(range.high));
    match (range.runs, range.sources) {
        (0, _) => format!("{relative}; no similar run was measured"),
        (runs, sources) => {
            format!("{relative}, by {} of {}", count(runs, "similar run"), count(sources, "source"))
        }
    }
}

/// What the optimizer does beside the steps that are forecast; nothing if all of its work is in each.
pub fn beside_steps(plan: &Plan) -> Option<(&'static str, String)> {
    let (name, passes) = (&plan.job.optimizer, plan.job.optimizer().extra_passes());
    let words =
        || format!("{name} adds {} % of passes in the mean of steps, not in this time", percent(passes));
    (passes > 0.0).then(|| ("optimizer", words()))
}

/// Speed, memory and what both rest on: a name and its words each.
pub fn figures(plan: &Plan, forecast: &Forecast, confidence: &Confidence) -> Vec<(&'static str, String)> {
    let mut figures = vec![("step time", forecast.step_time.to_string())];
    figures.extend(beside_steps(plan));
    figures.extend(trust(forecast, confidence));
    figures.extend([
        ("tokens/s", tokens_per_s(forecast)),
        ("MFU", mfu(forecast)),
        ("HFU", hfu(forecast)),
        (
            "model FLOPs",
            format!(
                "{} (causal attention halved), {} (all attention scores counted)",
                forecast.model_flops_causal_attention, forecast.model_flops_full_attention
            ),
        ),
        ("hardware FLOPs", format!("{} (executed, recomputation included)", forecast.hardware_flops)),
        ("memory", fit(plan, forecast)),
    ]);
    figures.extend(forecast.node_memory.map(|node| ("host memory", offloaded(&node))));
    figures
}

/// Where the time of a rank's step goes. Compute, exposed communication and bubble add up to the step.
fn times(forecast: &Forecast) -> String {
    let reports: Vec<&RankReport> = by_pipeline_rank(forecast).collect();
    let unit = Unit::of(forecast);
    let step = forecast.report.step_time;
    let mut table = Table::of(&reports)
        .right("compute", |report| unit.print(report.time.compute))
        .right("bubble", |report| unit.print(report.time.bubble))
        .right("bubble %", |report| percent(report.time.bubble_share))
        .right("exposed", |report| unit.print(report.time.exposed))
        .right("exposed %", |report| percent(share(report.time.exposed, step)));
    for axis in Axis::ALL {
        if reports.iter().any(|report| !report.time.communication[axis as usize].is_zero()) {
            table = table
                .right(axis.name(), |report| unit.print(report.time.communication[axis as usize].exposed));
        }
    }
    let mut offloads = false;
    for (index, stream) in Stream::OFFLOAD.iter().enumerate() {
        if reports.iter().any(|report| report.time.offload[index].total > Picoseconds::ZERO) {
            table = table.right(stream.name(), |report| unit.print(report.time.offload[index].exposed));
            offloads = true;
        }
    }
    let overlapped = |report: &RankReport| {
        let axes = report.time.communication.iter().map(|axis| axis.overlapped);
        axes.chain(report.time.offload.iter().map(|stream| stream.overlapped)).sum::<Picoseconds>()
    };
    let table = table.right("overlapped", |report| unit.print(overlapped(report)));
    let legend = "exposed: communication while no kernel runs, then by axis; overlapped: communication beside kernels, \
                  all axes";
    let offload = "; to-host, from-host, host: copies out of and into the GPU and work of the processors, of which no \
                   earlier column takes the time";
    let legend = if offloads { format!("{legend}{offload}") } else { legend.to_string() };
    table.text_by_rank(|report| report.pipeline_rank) + &wrap(&legend, 0)
}

/// One unit for all times of a table.
struct Unit {
    name: &'static str,
    per_second: f64,
}

impl Unit {
    fn of(forecast: &Forecast) -> Unit {
        match forecast.step_time {
            step if step >= Seconds::new(10.0) => Unit { name: "s", per_second: 1.0 },
            _ => Unit { name: "ms", per_second: 1e3 },
        }
    }

    fn print(&self, time: Picoseconds) -> String {
        let value = Seconds::from(time).get() * self.per_second;
        let decimals = if self.per_second == 1.0 { 3 } else { 1 };
        format!("{value:.decimals$}")
    }
}
