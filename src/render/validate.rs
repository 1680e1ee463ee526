//! A plan's forecast and its measured steps on this machine.

mod rounds;

pub use rounds::Rounds;

use super::table::Table;
use super::words::{self, dash};
use serde::Serialize;
use trainwright_executor::{DeviceMemory, GraphUse, InUse, recording_cost};
use trainwright_pictures::html::page as html_page;
use trainwright_pictures::html::{Bar, BarScale, Section};
use trainwright_pictures::picture::svg_pair;
use trainwright_spec::plan::Plan;
use trainwright_spec::units::{Bytes, Seconds};
use trainwright_timeline::comparison::{Comparison, KindPair, Pair};
use trainwright_timeline::report::Report;
use trainwright_timeline::timeline::Timeline;

/// A plan's forecast and its measured steps.
pub struct Validated {
    /// The plan's name for people.
    pub name: String,
    /// The plan, on this machine.
    pub plan: Plan,
    /// Both, figure by figure.
    pub compared: Comparison,
    /// The step time by round; empty if the machine was not measured in rounds.
    pub rounds: Rounds,
    /// The forecast step.
    pub expected: Timeline,
    /// A measured one: of median length, on a device with streams the last one.
    pub measured: Timeline,
    /// A run on GPUs; `None` for ranks on the cores.
    pub on_device: Option<OnDevice>,
}

/// A run on GPUs.
pub struct OnDevice {
    /// Whether the measured steps ran as a CUDA graph.
    pub graph: Option<GraphUse>,
    /// Of the rank that needed the most.
    pub memory: Option<DeviceMemory>,
}

/// The page in a terminal.
pub fn page(of: &Validated) -> String {
    let Validated { plan, compared, rounds, .. } = of;
    format!(
        "{}\n\n{}\n{}{}{}\n{}",
        title(plan),
        figures(&figure_rows(compared)).text(),
        ops(compared).text(),
        rounds::in_words(compared, rounds),
        how_measured(of),
        shared_cores(plan),
    )
}

/// How the measured figures were obtained.
fn how_measured(of: &Validated) -> String {
    let Comparison { steps, spread, .. } = of.compared;
    let Some(OnDevice { graph, memory }) = &of.on_device else {
        return format!(
            "Times are means over ranks; measured figures are medians of {steps} steps, which differ by {:.0} %. \
             Recording takes {:.3} % of the step.",
            100.0 * spread,
            100.0 * recording(&of.compared),
        );
    };
    let mut text = format!(
        "The measured step time is the median of {steps} steps as they are trained, which differ by {:.0} %; all other \
         times are those of one more step, enqueued op by op with the device's times, in the mean over ranks.",
        100.0 * spread,
    );
    text += &graph.as_ref().map(|graph| format!("\ngraph: {graph}")).unwrap_or_default();
    if let Some(DeviceMemory { in_use, .. }) = memory {
        text += "\nThe measured peak memory is what the rank that needed the most asked its GPU for: tensors, state, workspaces \
                 and what was kept for sizes that come again; by kind it is what ranks held.";
        let in_words = |used: &InUse| {
            let [reserved, on_gpu] = [used.reserved, used.on_gpu].map(|count| Bytes::new(count as f64));
            format!(" {reserved} were reserved for it, and {on_gpu} of the GPU were in use at the end.")
        };
        text += &in_use.as_ref().map(in_words).unwrap_or_default();
    }
    text
}

/// The measured effect of cores that ranks share with each other and with the network; empty if there is none.
fn shared_cores(plan: &Plan) -> String {
    let Some(cores) = &plan.cluster.node.cores else { return String::new() };
    let mut text = String::new();
    if cores.crowding != 0.0 {
        text += &format!("With another rank on its core an op takes {:+.1} %. ", 100.0 * cores.crowding);
    }
    if let Some(network) = &cores.network {
        let [sent, received] = network.of(Bytes::new(1.0)).map(|time| 1e9 * time.get());
        text += &format!(
            "The network takes {sent:.1} ns of a core where a byte leaves, {received:.1} ns where it arrives. "
        );
    }
    if text.is_empty() { text } else { format!("{}\n", text.trim_end()) }
}

/// The part of a step that a rank spends on recording its ops.
fn recording(compared: &Comparison) -> f64 {
    let ops: f64 = compared.kinds.iter().map(|kind| kind.count).sum();
    ops * recording_cost() / compared.step_time.measured
}

/// The page for a browser.
pub fn report(of: &Validated) -> String {
    let Validated { plan, compared, expected, measured, .. } = of;
    let bars = [("forecast", expected), ("measured", measured)].into_iter().flat_map(|(name, timeline)| {
        let bars = Bar::of_ranks(&Report::new(timeline));
        bars.into_iter().map(move |bar| Bar { name: format!("{name}, {}", bar.name), ..bar })
    });
    let mut bars: Vec<Bar> = bars.collect();
    // The two of a pipeline rank next to each other.
    let stages = bars.len() / 2;
    bars = (0..stages).flat_map(|stage| [bars[stage].clone(), bars[stages + stage].clone()]).collect();
    let [forecast, run] = svg_pair([(expected, "forecast"), (measured, "measured")]);
    let sections = [
        Section::Text(title(plan)),
        figures(&figure_rows(compared)).section(),
        Section::Heading("Where the time of each pipeline rank goes".into()),
        Section::Bars(bars, BarScale::Common),
        Section::Heading("Forecast step".into()),
        Section::Picture(forecast),
        Section::Heading(measured_step(of).into()),
        Section::Picture(run),
        Section::Heading("Ops by module and pass, in the mean over ranks".into()),
        ops(compared).section(),
    ];
    html_page(&format!("Forecast and measurement: {}", plan.model.name), &sections)
}

fn measured_step(of: &Validated) -> &'static str {
    if of.on_device.is_some() { "Measured step, the last one" } else { "Measured step of median length" }
}

/// One line of several plans, while they run.
pub fn line(of: &Validated) -> String {
    let step = &of.compared.step_time;
    let [forecast, measured] = [step.forecast, step.measured].map(|time| time.to_string());
    let noise =
        of.rounds.noise().map_or_else(String::new, |noise| format!("  ± {:.1} points", 100.0 * noise));
    format!(
        "{:<28} forecast {forecast:>9}  measured {measured:>9}  {}{noise}\n",
        of.name,
        percent(step.error())
    )
}

fn plans(all: &[Validated]) -> Table<'_, Validated> {
    Table::of(all)
        .left("plan", |of| &of.name)
        .right("ranks", |of| words::mesh(&of.plan.mesh))
        .right("forecast", |of| of.compared.step_time.forecast)
        .right("measured", |of| of.compared.step_time.measured)
        .right("error", |of| percent(of.compared.step_time.error()))
        .right("noise", |of| of.rounds.noise().map_or_else(dash, |noise| format!("± {:.1} %", 100.0 * noise)))
        .right("ops", |of| format!("{:.1} %", 100.0 * rounds::error_by_kind(&of.compared)))
        .right("bubble", |of| format!("{:+.1}", 100.0 * bubbles(&of.compared)[0]))
        .right("largest of a rank", |of| format!("{:+.1}", 100.0 * bubbles(&of.compared)[1]))
        .right("memory", |of| percent(of.compared.peak_memory.error()))
        .right("spread", |of| format!("{:.0} %", 100.0 * of.compared.spread))
        .right("others", |of| of.rounds.others.map_or_else(dash, |others| format!("{:.0} %", 100.0 * others)))
}

/// By how much the forecast bubble is larger, in the mean over ranks and on the pipeline rank where it differs most.
fn bubbles(compared: &Comparison) -> [f64; 2] {
    let more = |pair: &Pair<f64>| pair.forecast - pair.measured;
    let stages = compared.bubble_by_pipeline_rank.iter().map(more);
    let worst = stages.reduce(|worst, other| if other.abs() > worst.abs() { other } else { worst });
    [more(&compared.bubble), worst.unwrap_or(0.0)]
}

/// A comparison with its rounds, for machines.
pub fn json(of: &Validated) -> impl Serialize {
    #[derive(Serialize)]
    struct WithRounds<'a> {
        #[serde(flatten)]
        compared: &'a Comparison,
        rounds: &'a [Pair<Seconds>],
        noise: Option<f64>,
        error_by_kind: f64,
        other_programs: Option<f64>,
    }
    let Validated { compared, rounds, .. } = of;
    WithRounds {
        compared,
        rounds: &rounds.times,
        noise: rounds.noise(),
        error_by_kind: rounds::error_by_kind(compared),
        other_programs: rounds.others,
    }
}

/// All plans in a table, and how far off they are in the mean.
pub fn summary(all: &[Validated]) -> String {
    format!("\n{}{}", plans(all).text(), means(all))
}

fn means(all: &[Validated]) -> String {
    let mean = |error: &dyn Fn(&Validated) -> f64| {
        all.iter().map(|one| error(one).abs()).sum::<f64>() / all.len() as f64
    };
    let most = |error: &dyn Fn(&Validated) -> f64| all.iter().map(|one| error(one).abs()).fold(0.0, f64::max);
    let step = |one: &Validated| 100.0 * one.compared.step_time.error().unwrap_or(0.0);
    let bubble = |one: &Validated| 100.0 * bubbles(&one.compared)[0];
    let memory = |one: &Validated| 100.0 * one.compared.peak_memory.error().unwrap_or(0.0);
    let kinds = |one: &Validated| 100.0 * rounds::error_by_kind(&one.compared);
    let noise = |one: &Validated| 100.0 * one.rounds.noise().unwrap_or(0.0);
    let in_noise = match all.iter().filter(|one| one.rounds.hide(one.compared.step_time.error())).count() {
        0 if all.iter().all(|one| one.rounds.noise().is_none()) => String::new(),
        count => format!(
            " The noise is ± {:.1} % in the mean; it is larger than the error of the step time of {count} of {} plans.",
            mean(&noise),
            all.len(),
        ),
    };
    format!(
        "Mean absolute error of the step time {:.1} % (largest {:.1} %), of ops by kind {:.1} % (largest {:.1} %), \
         of the bubble {:.1} points (largest {:.1}), of the peak memory {:.1} % (largest {:.1} %).{in_noise}\n",
        mean(&step),
        most(&step),
        mean(&kinds),
        most(&kinds),
        mean(&bubble),
        most(&bubble),
        mean(&memory),
        most(&memory),
    )
}

/// The comparison as a page of documentation.
pub fn markdown(all: &[Validated]) -> String {
    let machine = all.first().map_or("", |one| {
        one.plan.cluster.node.cores.as_ref().map_or("", |cores| cores.steps.source.as_str())
    });
    format!(
        "# Forecasts and measurements on one machine\n\n\
         Written by `trainwright validate PLANS --rounds N --markdown FILE`; the plans are in examples/validation.\n\
         Measured by {machine}.\n\n\
         Every op is measured first in short runs of the plan's layers, and what ranks take to exchange numbers; the\n\
         forecast follows from these and the plan. With several rounds, measurements and runs alternate, and the medians\n\
         of all rounds count.\n\n\
         - *Forecast* and *measured* are times of a step, measured the median of its steps.\n\
         - *Noise* is half the range of the rounds' errors, each of a round's own forecast and steps. An error below the\n  \
           noise says only that it is small: another run on the same machine may have the other sign.\n\
         - *Ops* is the error of the kinds of ops, each for itself: Σ |forecast − measured| / Σ measured. In the step\n  \
           time, errors of opposite signs cancel.\n\
         - *Bubbles* are in points of the step: forecast less measured, in the mean over ranks and of the pipeline rank\n  \
           where they differ most.\n\
         - *Spread* is the difference of the longest and the shortest step, as a part of the median.\n\
         - *Others* is the part of the cores' time that other programs took meanwhile.\n\n\
         {}\n{}",
        plans(all).all_left().markdown(),
        means(all),
    )
}

fn title(plan: &Plan) -> String {
    format!("{}, {} on {}", plan.model.name, words::choices(plan), plan.cluster.node.name)
}

fn figures(rows: &[[String; 4]]) -> Table<'_, [String; 4]> {
    Table::of(rows)
        .left("figure", |row| &row[0])
        .right("forecast", |row| &row[1])
        .right("measured", |row| &row[2])
        .right("error", |row| &row[3])
}

fn figure_rows(compared: &Comparison) -> Vec<[String; 4]> {
    let time = |name: &str, pair: Pair<Seconds>| {
        [name.into(), pair.forecast.to_string(), pair.measured.to_string(), percent(pair.error())]
    };
    let bytes = |name: &str, pair: Pair<Bytes>| {
        [name.into(), pair.forecast.to_string(), pair.measured.to_string(), percent(pair.error())]
    };
    let share = |name: String, pair: &Pair<f64>| {
        let points = format!("{:+.1} points", 100.0 * (pair.forecast - pair.measured));
        let [forecast, measured] =
            [pair.forecast, pair.measured].map(|part| format!("{:.1} %", 100.0 * part));
        [name, forecast, measured, points]
    };
    let mut rows = vec![time("step time", compared.step_time), share("bubble".into(), &compared.bubble)];
    if compared.bubble_by_pipeline_rank.len() > 1 {
        let stages = compared.bubble_by_pipeline_rank.iter().enumerate();
        rows.extend(stages.map(|(stage, pair)| share(format!("bubble of pipeline rank {stage}"), pair)));
    }
    rows.push(time("exposed communication", compared.exposed));
    rows.push(bytes("peak memory", compared.peak_memory));
    let held = compared.memory.iter().filter(|(_, pair)| pair.measured + pair.forecast > Bytes::ZERO);
    rows.extend(held.map(|(kind, pair)| bytes(&format!("  {}", kind.name()), *pair)));
    rows
}

fn ops(compared: &Comparison) -> Table<'_, KindPair> {
    let milliseconds = |time: Seconds| format!("{:.3}", time.get() * 1e3);
    Table::of(&compared.kinds)
        .left("ops", |kind| &kind.kind)
        .right("count", |kind| format!("{:.0}", kind.count))
        .right("forecast ms", |kind| milliseconds(kind.time.forecast))
        .right("measured ms", |kind| milliseconds(kind.time.measured))
        .right("error", |kind| percent(kind.time.error()))
}

fn percent(error: Option<f64>) -> String {
    error.map_or_else(dash, |error| format!("{:+.1} %", 100.0 * error))
}
