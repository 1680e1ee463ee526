//! The forecast of one plan.

use super::stages::{by_pipeline_rank, simulated_memory, stages};
use super::table::{Column, merge_ranks, table};
use super::words::{
    beside, choices, fit, grouped, heading, memory_of_gpus, pairs, percent, question as asked, share, wrap,
};
use Column::Right;
use trainwright_sim::{Detail, Forecast};
use trainwright_spec::plan::Plan;
use trainwright_spec::program::{Axis, Stream};
use trainwright_spec::units::{Picoseconds, Seconds};
use trainwright_timeline::draw::{Style, draw};
use trainwright_timeline::timeline::Timeline;

/// Everything that a person wants to know of a plan; the drawing fills `columns`.
pub fn page(plan: &Plan, forecast: &Forecast, timeline: &Timeline, columns: usize) -> String {
    let Plan { model, cluster, job, stack, .. } = plan;
    let mut page = wrap(&asked(model, cluster, job, &stack.name), 0);
    page.push_str(&wrap(&choices(plan), 0));
    page.push_str(&heading("Forecast of a step"));
    page.push_str(&figures(plan, forecast));
    if forecast.detail == Detail::Calls {
        let note = "The step has millions of ops and was simulated call by call: what communication hides is told within \
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

/// Both ways in which people count it.
pub fn mfu(forecast: &Forecast) -> String {
    format!(
        "{} % (all attention scores counted), {} % (causal attention halved)",
        percent(forecast.mfu_full_attention),
        percent(forecast.mfu_causal_attention),
    )
}

/// What the GPUs execute.
pub fn hfu(forecast: &Forecast) -> String {
    format!("{} % (executed, recomputation included)", percent(forecast.hfu))
}

fn figures(plan: &Plan, forecast: &Forecast) -> String {
    let mut figures = vec![
        ("step time", forecast.step_time.to_string()),
        (
            "tokens/s",
            format!(
                "{} ({} per GPU)",
                grouped(forecast.tokens_per_s),
                grouped(forecast.tokens_per_s_per_gpu)
            ),
        ),
        ("MFU", mfu(forecast)),
        ("HFU", hfu(forecast)),
        (
            "model FLOPs",
            format!(
                "{} (all attention scores counted), {} (causal attention halved)",
                forecast.model_flops_full_attention, forecast.model_flops_causal_attention
            ),
        ),
        ("hardware FLOPs", format!("{} (executed, recomputation included)", forecast.hardware_flops)),
        ("memory", fit(plan, forecast)),
    ];
    figures.extend(forecast.node_memory.map(|node| ("host memory", beside(&node))));
    pairs(figures)
}

/// What a rank does all step long. Compute, exposed communication and bubble add up to the step.
fn times(forecast: &Forecast) -> String {
    let columns = [
        Right("rank"),
        Right("compute"),
        Right("bubble"),
        Right("bubble %"),
        Right("exposed"),
        Right("exposed %"),
    ];
    let reports = || by_pipeline_rank(forecast).map(|report| &report.time);
    let moves = |axis: &Axis| reports().any(|time| !time.communication[*axis as usize].is_zero());
    let axes: Vec<Axis> = Axis::ALL.into_iter().filter(moves).collect();
    let works = |stream: &usize| reports().any(|time| time.offload[*stream].total > Picoseconds::ZERO);
    let streams: Vec<usize> = (0..Stream::OFFLOAD.len()).filter(works).collect();
    let axis_columns = axes.iter().map(|axis| Right(axis.name()));
    let stream_columns = streams.iter().map(|stream| Right(Stream::OFFLOAD[*stream].name()));
    let columns: Vec<_> =
        columns.into_iter().chain(axis_columns).chain(stream_columns).chain([Right("overlapped")]).collect();
    let unit = Unit::of(forecast);
    let step = forecast.report.step_time;
    let rows = by_pipeline_rank(forecast).map(|report| {
        let time = &report.time;
        let on_axes = time.communication.iter().map(|axis| axis.overlapped);
        let on_streams = time.offload.iter().map(|stream| stream.overlapped);
        let overlapped = on_axes.chain(on_streams).sum::<Picoseconds>();
        let mut cells = vec![
            unit.print(time.compute),
            unit.print(time.bubble),
            percent(time.bubble_share),
            unit.print(time.exposed),
            percent(share(time.exposed, step)),
        ];
        cells.extend(axes.iter().map(|axis| unit.print(time.communication[*axis as usize].exposed)));
        cells.extend(streams.iter().map(|stream| unit.print(time.offload[*stream].exposed)));
        cells.push(unit.print(overlapped));
        (report.pipeline_rank, cells)
    });
    let legend = "exposed: communication while no kernel runs, then by axis; overlapped: communication beside kernels, \
                  all axes";
    let offload = "; to-host, from-host, host: copies out of and into the GPU and work of the processors, of which no \
                   earlier column takes the time";
    let legend = if streams.is_empty() { legend.to_string() } else { format!("{legend}{offload}") };
    table(&columns, merge_ranks(rows)) + &wrap(&legend, 0)
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
