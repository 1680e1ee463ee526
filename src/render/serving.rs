//! What became of requests that an engine served.

use super::table::Table;
use super::words::dash;
use serde_json::{Value, json};
use trainwright_formats::vllm_bench::{BenchResult, FIGURES};
use trainwright_pictures::plot::ServingCurves;
use trainwright_sim::serving::{Batch, Growth, Instance, MemoryUse, Served, ServedRequest, StepTime};
use trainwright_spec::cluster::Cluster;
use trainwright_spec::model::Model;
use trainwright_spec::serving::ServingRanges;
use trainwright_spec::statistics::{mean, quantile};
use trainwright_spec::units::{Bytes, Seconds};

/// A served load.
pub struct Answer<'a> {
    /// The model.
    pub model: &'a Model,
    /// The cluster.
    pub cluster: &'a Cluster,
    /// The instance.
    pub instance: &'a Instance<'a>,
    /// What became of the requests.
    pub served: &'a Served,
    /// The same requests in a real service, if that is known.
    pub measured: Option<&'a [ServedRequest]>,
    /// A benchmark of the same load, if there was one.
    pub bench: Option<&'a BenchResult>,
    /// A step as most are.
    pub typical: Batch,
    /// Its time.
    pub step: StepTime,
}

/// Statistics of a time over requests, in ms.
pub(super) struct Spread {
    pub name: &'static str,
    pub key: &'static str,
    /// Mean, P50, P90, P99; `None` of no times, as answers of one token have none after it.
    figures: Option<[f64; 4]>,
    /// Of the mean; `None` if no run like it was measured.
    range: Option<[f64; 2]>,
}

impl Spread {
    /// Mean and quantiles.
    pub fn json(&self) -> Value {
        let [mean, p50, p90, p99] = self.figures.map_or([None; 4], |figures| figures.map(Some));
        json!({ "mean": mean, "p50": p50, "p90": p90, "p99": p99 })
    }
}

/// `range` gives the ends of the mean's range, both in ms.
pub(super) fn spread(
    [name, key]: [&'static str; 2],
    times: impl Iterator<Item = Seconds>,
    range: impl Fn(f64) -> Option<[f64; 2]>,
) -> Spread {
    let times: Vec<f64> = times.map(Seconds::get).collect();
    let of = |part: f64| 1e3 * quantile(&times, part);
    let mean = (!times.is_empty()).then(|| 1e3 * mean(&times));
    let figures = mean.map(|mean| [mean, of(0.5), of(0.9), of(0.99)]);
    Spread { name, key, figures, range: mean.and_then(range) }
}

/// The mean and quantiles of each.
pub(super) fn table(spreads: &[Spread]) -> Table<'_, Spread> {
    let figure = |index: usize| {
        move |spread: &Spread| spread.figures.map_or_else(dash, |figures| format!("{:.2}", figures[index]))
    };
    Table::of(spreads)
        .left("in ms", |spread: &Spread| spread.name)
        .right("mean", figure(0))
        .right("P50", figure(1))
        .right("P90", figure(2))
        .right("P99", figure(3))
}

impl Answer<'_> {
    fn spreads(&self) -> [Spread; 3] {
        let engine = &self.instance.steps.plan().engine.name;
        let requests = || self.served.requests.iter();
        let ranges = ServingRanges::of_catalog();
        let of = |figure: &'static str| {
            move |mean: f64| ranges.of(figure, engine).map(|range| [mean * range.low, mean * range.high])
        };
        let ttft =
            spread(["time to first token", "ttft_ms"], requests().map(ServedRequest::ttft), of("ttft"));
        let first = ttft.figures.map(|[mean, ..]| mean);
        let of_latency = |mean: f64| ranges.of_latency(engine, [first?, mean]);
        let tpot = requests().filter_map(ServedRequest::tpot);
        [
            ttft,
            spread(["time per output token", "tpot_ms"], tpot, of("tpot")),
            spread(
                ["time to last token", "e2e_latency_ms"],
                requests().map(ServedRequest::latency),
                of_latency,
            ),
        ]
    }

    /// What a picture of it is called.
    pub fn title(&self) -> String {
        let plan = self.instance.steps.plan();
        let gpu = &self.cluster.node.gpu.name;
        format!("{} on {} {gpu} with {}", self.model.name, plan.gpus(), plan.engine.name)
    }

    /// The curves of the forecast, and of the real service.
    pub fn curves(&self) -> [Option<ServingCurves>; 2] {
        let curves = |requests: &[ServedRequest]| ServingCurves {
            ttft: requests.iter().map(|request| request.ttft().get()).collect(),
            tpot: requests.iter().filter_map(ServedRequest::tpot).map(Seconds::get).collect(),
            latency: requests.iter().map(|request| request.latency().get()).collect(),
            spans: requests
                .iter()
                .map(|request| [request.arrival, request.first, request.last].map(Seconds::get))
                .collect(),
        };
        [Some(curves(&self.served.requests)), self.measured.map(curves)]
    }

    /// Times of the real service, in ms: name, mean, P50, P90, P99, and the forecast's error of the mean.
    fn measured(&self) -> Vec<(&'static str, [f64; 5])> {
        let Some(measured) = self.measured else { return Vec::new() };
        type Of = fn(&ServedRequest) -> Option<Seconds>;
        let times: [(&str, Of); 3] = [
            ("time to first token", |request| Some(request.ttft())),
            ("time per output token", ServedRequest::tpot),
            ("time to last token", |request| Some(request.latency())),
        ];
        let row = |(name, of): (&'static str, Of)| {
            let ms = |requests: &[ServedRequest]| -> Vec<f64> {
                requests.iter().filter_map(of).map(|time| 1e3 * time.get()).collect()
            };
            let (forecast, measured) = (mean(&ms(&self.served.requests)), ms(measured));
            let [p50, p90, p99] = [0.5, 0.9, 0.99].map(|part| quantile(&measured, part));
            (name, [mean(&measured), p50, p90, p99, 100.0 * (forecast / mean(&measured) - 1.0)])
        };
        times.map(row).into()
    }

    /// Figures of the benchmark with their forecasts: name, measured, forecast.
    fn benchmark(&self) -> Vec<(&'static str, f64, f64)> {
        let Some(bench) = self.bench else { return Vec::new() };
        let served = self.served;
        type Of = fn(&ServedRequest) -> Option<Seconds>;
        let times: [(&str, Of); 3] = [
            ("ttft_ms", |request| Some(request.ttft())),
            ("tpot_ms", ServedRequest::tpot),
            ("e2el_ms", |request| Some(request.latency())),
        ];
        let forecast = |key: &str| {
            let (statistic, figure) = match key {
                "request_throughput" => return Some(served.request_rate()),
                "output_throughput" => return Some(served.output_rate()),
                "total_token_throughput" => return Some(served.total_rate()),
                key => key.split_once('_')?,
            };
            let (_, of) = times.iter().find(|(name, _)| *name == figure)?;
            let times: Vec<f64> = served.requests.iter().filter_map(of).map(Seconds::get).collect();
            let time = match statistic {
                "mean" => mean(&times),
                "median" => quantile(&times, 0.5),
                percentile => quantile(&times, percentile.strip_prefix('p')?.parse::<f64>().ok()? / 100.0),
            };
            Some(1e3 * time)
        };
        FIGURES.into_iter().filter_map(|key| Some((key, bench.figure(key)?, forecast(key)?))).collect()
    }

    /// For a terminal.
    pub fn text(&self) -> String {
        let plan = self.instance.steps.plan();
        let gpus = plan.gpus();
        let served = self.served;
        let per_gpu = served.output_rate() / gpus as f64;
        let mut layout = vec![format!("tensor {}", plan.tensor)];
        let degrees =
            [("pipeline", plan.pipeline), ("expert", plan.expert), ("attention data", plan.attention_data)];
        layout.extend(
            degrees.iter().filter(|(_, degree)| *degree > 1).map(|(name, degree)| format!("{name} {degree}")),
        );
        let experts = match plan.expert_weights == plan.weights {
            true => String::new(),
            false => format!(", experts {}", plan.expert_weights),
        };
        let memory = &self.instance.memory;
        let most = self.instance.most_memory(served);
        let gpu = &self.cluster.node.gpu;
        let blocks = served.samples.iter().map(|sample| sample.blocks).max().unwrap_or(0);
        let held =
            100.0 * (blocks * self.instance.limits.block) as f64 / self.instance.capacity.max(1) as f64;
        let mut text = format!(
            "{} ({:.1}B parameters) on {} {} with {}: {}, weights {}{experts}, cache {}\n\n",
            self.model.name,
            self.model.parameters() as f64 / 1e9,
            gpus,
            gpu.name,
            plan.engine.name,
            layout.join(" × "),
            plan.weights,
            plan.cache
        );
        text += &table(&self.spreads())
            .right("80 % range of the mean", move |spread| match (spread.range, spread.figures) {
                (Some([low, high]), _) => format!("{low:.2} to {high:.2}"),
                (None, Some(_)) => "nothing like it was measured".into(),
                (None, None) => dash(),
            })
            .text();
        let measured = self.measured();
        if !measured.is_empty() {
            let cell = |index: usize| move |(_, row): &(&str, [f64; 5])| format!("{:.2}", row[index]);
            text += "\n";
            text += &Table::of(&measured)
                .left("measured, in ms", |(name, _)| name)
                .right("mean", cell(0))
                .right("P50", cell(1))
                .right("P90", cell(2))
                .right("P99", cell(3))
                .right("error of the mean %", |(_, row)| format!("{:+.1}", row[4]))
                .text();
        }
        let benchmark = self.benchmark();
        if !benchmark.is_empty() {
            text += "\n";
            text += &Table::of(&benchmark)
                .left("vllm bench", |(name, ..)| name)
                .right("measured", |(_, measured, _)| format!("{measured:.2}"))
                .right("forecast", |(.., forecast)| format!("{forecast:.2}"))
                .right("error %", |(_, measured, forecast)| {
                    format!("{:+.1}", 100.0 * (forecast / measured - 1.0))
                })
                .text();
            if self.bench.is_some_and(|bench| bench.mean_lengths) {
                text += "Requests have the mean lengths of the result: it lists those of each with --save-detailed.\n";
            }
        }
        text += &format!(
            "\nthroughput  {:.1} output tokens/s ({per_gpu:.1} per GPU), {:.1} tokens/s with prompts, {:.2} requests/s\n\
             requests    {} in {:.2} s, {} steps, at most {} sequences at once, {} preemptions\n\
             memory      {} of {} on the fullest GPU: weights {}, working {}, cache {} ({held:.0} % of {} tokens at most)\n",
            served.output_rate(),
            served.total_rate(),
            served.request_rate(),
            served.requests.len(),
            served.duration.get(),
            served.steps,
            served.most_running,
            served.preemptions,
            gib(most),
            gib(gpu.memory.value),
            gib(memory.weights),
            gib(memory.working),
            gib(memory.cache),
            self.instance.capacity,
        );
        if let Some(Growth { come, stay }) = served.growth() {
            text += &format!(
                "queue       grows without end: of {come:.2} requests/s that come {stay:.2} stay in it; with more requests times are longer\n"
            );
        }
        if memory.sequence > Bytes::ZERO {
            let sequence = memory.sequence.get() / 1048576.0;
            text += &format!("states      {sequence:.1} MiB for each sequence, whatever its length\n");
        }
        let parts: Vec<(&str, Seconds)> =
            self.step.parts.iter().map(|(part, time)| (part.name(), *time)).collect();
        let whole = self.step.gpu();
        text += &format!(
            "\nA step of {} sequences that compute a token each, with {} tokens before it: {:.3} ms, {} kernels\n",
            self.typical.decodes,
            self.typical.history,
            1e3 * self.step.total.get(),
            self.step.kernels
        );
        text += &Table::of(&parts)
            .left("part", |(name, _): &(&str, Seconds)| name)
            .right("ms", |(_, time)| format!("{:.3}", 1e3 * time.get()))
            .right("%", move |(_, time)| format!("{:.1}", 100.0 * (*time / whole)))
            .text();
        text
    }

    /// As JSON.
    pub fn json(&self) -> Value {
        let plan = self.instance.steps.plan();
        let served = self.served;
        let memory = &self.instance.memory;
        let mut answer = json!({
            "model": self.model.name,
            "gpu": self.cluster.node.gpu.name,
            "gpus": plan.gpus(),
            "engine": plan.engine.name,
            "tensor": plan.tensor,
            "pipeline": plan.pipeline,
            "expert": plan.expert,
            "attention_data": plan.attention_data,
            "weights": plan.weights,
            "expert_weights": plan.expert_weights,
            "cache": plan.cache,
            "output_tokens_per_s": served.output_rate(),
            "output_tokens_per_s_per_gpu": served.output_rate() / plan.gpus() as f64,
            "total_tokens_per_s": served.total_rate(),
            "requests_per_s": served.request_rate(),
            "requests": served.requests.len(),
            "duration_s": served.duration.get(),
            "steps": served.steps,
            "most_running": served.most_running,
            "preemptions": served.preemptions,
            "queue_grows": served.growth().is_some(),
            "memory_bytes": self.instance.most_memory(served).get(),
            "weights_bytes": memory.weights.get(),
            "kv_capacity_tokens": self.instance.capacity,
            "step": {
                "sequences": self.typical.decodes,
                "history": self.typical.history,
                "time_s": self.step.total.get(),
                "kernels": self.step.kernels,
                "parts_s": self.step.parts.iter().map(|(part, time)| (part.name(), time.get())).collect::<std::collections::BTreeMap<_, _>>(),
            },
        });
        let benchmark = self.benchmark();
        if !benchmark.is_empty() {
            let row = |(name, measured, forecast): &(&'static str, f64, f64)| {
                (*name, json!({ "measured": measured, "forecast": forecast }))
            };
            answer["benchmark"] = benchmark.iter().map(row).collect();
        }
        let measured = self.measured();
        if !measured.is_empty() {
            let row = |(_, [mean, p50, p90, p99, error]): &(&str, [f64; 5])| json!({ "mean": mean, "p50": p50, "p90": p90, "p99": p99, "error_of_mean_percent": error });
            let keys = ["ttft_ms", "tpot_ms", "e2e_latency_ms"];
            answer["measured"] = keys.iter().zip(&measured).map(|(key, of)| (*key, row(of))).collect();
        }
        for spread in self.spreads() {
            answer[spread.key] = spread.json();
            answer[spread.key]["range_of_mean"] = json!(spread.range);
        }
        answer
    }
}

/// Says why nothing is served.
pub fn does_not_fit(reason: &str, memory: &MemoryUse, cluster: &Cluster) -> String {
    format!(
        "Does not fit: {reason}.\nOf {} on a GPU weights take {}, activations, logits and libraries {}; that leaves {} for the \
         cache.\nMore tensor or pipeline ranks, or weights or a cache of fewer bits, leave more.\n",
        gib(cluster.node.gpu.memory.value),
        gib(memory.weights),
        gib(memory.working),
        gib(memory.cache)
    )
}

/// The same as data.
pub fn does_not_fit_json(reason: &str, memory: &MemoryUse, cluster: &Cluster) -> Value {
    json!({
        "verdict": "does not fit",
        "reason": reason,
        "gpu_memory_bytes": cluster.node.gpu.memory.value,
        "weights_bytes": memory.weights,
        "working_bytes": memory.working,
        "cache_bytes": memory.cache,
    })
}

fn gib(bytes: Bytes) -> String {
    format!("{:.1} GiB", bytes.as_gib())
}
