//! Kernels of inference libraries: errors of forecasts by table and GPU, fitted coefficients.

use super::counts::Counts;
use super::table::Table;
use serde_json::{Value, json};
use trainwright_evidence::kernels::score::{Errors, Score};
use trainwright_evidence::kernels::{Case, Work};
use trainwright_sim::libraries::{Call, Chip, Estimate};
use trainwright_spec::library::{FittedKernel, Library};
use trainwright_spec::units::Seconds;

/// A kernel's time, and what it is compared with.
pub struct Answer<'a> {
    /// The call.
    pub call: &'a Call,
    /// The GPU.
    pub chip: &'a Chip<'a>,
    /// Its time.
    pub estimate: &'a Estimate,
    /// The likest measurement; `None` if there is none on the GPU.
    pub nearest: Option<&'a Case>,
}

impl Answer<'_> {
    /// For a terminal.
    pub fn text(&self) -> String {
        let Estimate { time, library, fitted } = self.estimate;
        let micro = |time: Seconds| format!("{:.2} us", 1e6 * time.get());
        let mut lines = vec![
            format!("{} on {}", self.call.family().title, self.chip.gpu.name),
            format!("  time        {}", micro(time.total())),
            format!("  bound by    {}", time.bound().name()),
            format!(
                "  parts       latency {}, compute {}, memory {}, links {}, overhead {}",
                micro(time.latency),
                micro(time.arithmetic),
                micro(time.memory),
                micro(time.links),
                micro(time.overhead)
            ),
        ];
        if let Some((achieved, share)) = self.of_peak() {
            lines.push(format!(
                "  achieved    {:.1} TFLOP/s, {:.1} % of the peak",
                achieved / 1e12,
                100.0 * share
            ));
        }
        lines.push(format!(
            "  fitted to   {} {}, {}, on {}: {} measurements, median error {:.1} %",
            library,
            fitted.kernel,
            fitted.format,
            fitted.on,
            fitted.rows,
            100.0 * fitted.median_error
        ));
        if let Some((case, measured)) = self.nearest.and_then(|case| Some((case, case.measured?))) {
            let Work::Kernel(call) = &case.work else { return lines.join("\n") + "\n" };
            let name = format!("{} {}", case.library, case.kernel);
            lines.push(format!("  measured    {}: {name}, {call}", micro(measured)));
            lines.push(format!("  source      {}, traces/published/inference", case.id));
        }
        lines.join("\n") + "\n"
    }

    /// Rate in FLOP/s and its part of the peak; `None` if the family has no products.
    fn of_peak(&self) -> Option<(f64, f64)> {
        let Call::Product(product) = self.call else { return None };
        let flops = 2.0 * product.m as f64 * product.n as f64 * product.k as f64;
        let rate = flops / self.estimate.time.total().get();
        Some((rate, rate / self.chip.peak(product.operands.units)?.get()))
    }

    /// As JSON.
    pub fn json(&self) -> Value {
        let Estimate { time, library, fitted } = self.estimate;
        let nearest = self.nearest.map(|case| {
            let call = match &case.work {
                Work::Kernel(call) => call.to_string(),
                Work::Collective { .. } => String::new(),
            };
            let measured = case.measured.map(Seconds::get);
            json!({ "id": case.id, "library": case.library, "kernel": case.kernel, "call": call, "time_s": measured })
        });
        json!({
            "family": self.call.family().name,
            "call": self.call.to_string(),
            "gpu": self.chip.gpu.name,
            "time_s": time.total().get(),
            "bound": time.bound().name(),
            "latency_s": time.latency.get(),
            "compute_s": time.arithmetic.get(),
            "memory_s": time.memory.get(),
            "links_s": time.links.get(),
            "overhead_s": time.overhead.get(),
            "part_of_peak": self.of_peak().map(|(_, part)| part),
            "library": library,
            "kernel": fitted.kernel,
            "format": fitted.format,
            "fitted_on": fitted.on,
            "fitted_rows": fitted.rows,
            "median_error": fitted.median_error,
            "nearest": nearest,
        })
    }
}

/// The table for a terminal.
pub fn text(scores: &[Score], counts: &Counts) -> String {
    format!("{}\n{}", counts.line(), table(scores).text())
}

/// The page of the scoreboard.
pub fn markdown(scores: &[Score], counts: &Counts) -> String {
    format!(
        "# Kernels of inference libraries\n\n\
         `trainwright predict --kernels … --scoreboard` wrote this page. Errors are |forecast / measured − 1| in percent.\n\
         \"Left out\" forecasts the rows of a GPU with coefficients that were fitted to the other GPUs only.\n\n\
         {}\n{}",
        counts.line(),
        table(scores).markdown()
    )
}

fn table(scores: &[Score]) -> Table<'_, Score> {
    let percent = |part: f64| format!("{:.1}", 100.0 * part);
    let columns = Table::of(scores)
        .left("kind", |score| &score.kind)
        .left("GPU", |score| if score.machine.is_empty() { "all" } else { &score.machine })
        .right("rows", |score| score.known.rows)
        .right("median %", |score| percent(score.known.median))
        .right("mean %", |score| percent(score.known.mean))
        .right("p90 %", |score| percent(score.known.p90));
    if scores.iter().all(|score| score.left_out.is_none()) {
        return columns;
    }
    let left_out = |score: &Score, figure: fn(&Errors) -> f64| match &score.left_out {
        Some(errors) if errors.rows > 0 => percent(figure(errors)),
        _ => String::new(),
    };
    columns
        .right("rows left out", |score| score.left_out.as_ref().map_or(0, |errors| errors.rows))
        .right("median %", move |score| left_out(score, |errors| errors.median))
        .right("mean %", move |score| left_out(score, |errors| errors.mean))
        .right("p90 %", move |score| left_out(score, |errors| errors.p90))
}

/// The errors as JSON.
pub fn as_json(scores: &[Score], counts: &Counts) -> Value {
    let errors = |errors: &Errors| {
        let Errors { rows, median, mean, p90 } = errors;
        json!({ "rows": rows, "median": median, "mean": mean, "p90": p90 })
    };
    let score = |score: &Score| {
        let gpu = (!score.machine.is_empty()).then_some(&score.machine);
        json!({
            "kind": score.kind,
            "gpu": gpu,
            "errors": errors(&score.known),
            "left_out": score.left_out.as_ref().map(errors),
        })
    };
    counts.json(scores.iter().map(score).collect::<Vec<_>>())
}

/// What a fit found.
pub fn fitted(libraries: &[Library]) -> String {
    let rows: Vec<(&str, &FittedKernel)> = libraries
        .iter()
        .flat_map(|library| library.kernels.iter().map(|kernel| (library.name.as_str(), kernel)))
        .collect();
    Table::of(&rows)
        .left("family", |(_, kernel)| &kernel.family)
        .left("library", |(library, _)| library)
        .left("kernel", |(_, kernel)| &kernel.kernel)
        .left("format", |(_, kernel)| &kernel.format)
        .left("on", |(_, kernel)| &kernel.on)
        .right("rows", |(_, kernel)| kernel.rows)
        .right("median %", |(_, kernel)| format!("{:.1}", 100.0 * kernel.median_error))
        .text()
}
