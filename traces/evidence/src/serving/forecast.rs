//! The forecast of a row.

use super::case::ServingCase;
use super::null::{NullForecast, null_forecast};
use super::shares::Share;
use crate::kernels::NoCase;
use trainwright_sim::serving::{Instance, Served, ServingError};
use trainwright_spec::units::{Bytes, Seconds};

/// What a run is expected to give.
#[derive(Debug, Clone, PartialEq)]
pub struct ServingForecast {
    /// The engine, by its name in the catalog.
    pub engine: String,
    /// What is assumed of what the row does not say, and what bounds its load if that may be either of two; blank if nothing is.
    pub assumed: String,
    /// Mean time to the first token.
    pub ttft: Seconds,
    /// Mean time for each token after the first.
    pub tpot: Seconds,
    /// Mean time to the last token; of a batch that is there at once, of all of it.
    pub latency: Seconds,
    /// Tokens of answers per second, of all instances.
    pub output_rate: f64,
    /// Tokens of prompts and answers per second, of all instances.
    pub total_rate: f64,
    /// Requests per second, of all instances.
    pub request_rate: f64,
    /// GPUs of all instances, idle ones too.
    pub gpus: usize,
    /// Memory of the fullest GPU, with what the sequences put in the cache.
    pub memory: Bytes,
    /// Tokens that the cache of an instance has room for.
    pub capacity: usize,
    /// What the null model says.
    pub null: NullForecast,
}

/// What instances did that were asked the same.
struct Part {
    instances: usize,
    served: Served,
    memory: Bytes,
}

/// The forecast of a case.
///
/// # Errors
/// `Unsupported` if weights or a sequence do not fit, or the GPU lacks a number format.
pub fn forecast(case: &ServingCase) -> Result<ServingForecast, NoCase> {
    let unsupported = |text: String| NoCase::Unsupported(text);
    let (plan, engine) = (&case.plan, &case.plan.engine);
    let first = Instance::new(&case.model, plan, &case.cluster, &case.shares[0].load, case.most);
    let mut instance = first.map_err(|error| unsupported(error.to_string()))?;
    let (capacity, null) = (instance.capacity, null_forecast(case, &instance));
    let mut parts = Vec::with_capacity(case.shares.len());
    for share in &case.shares {
        let part;
        (part, instance) = serve(instance, share)?;
        parts.push(part);
    }
    let engine_remark = case.stands_for.as_ref();
    let engine_remark =
        engine_remark.map(|printed| format!("the engine {printed} is forecast as {}", engine.name));
    let mut remarks: Vec<String> = engine_remark.into_iter().collect();
    if let Some(bound) = &case.bound {
        let asked = Totals::of(&parts, case.whole_batch).request_rate;
        remarks.push(bounding(asked, bound.rate));
        if asked > bound.rate {
            parts = vec![serve(instance, &bound.open)?.0];
        }
    }
    let totals = Totals::of(&parts, case.whole_batch);
    Ok(ServingForecast {
        engine: engine.name.clone(),
        assumed: remarks.join("; "),
        ttft: totals.mean(&parts, Served::mean_ttft),
        tpot: totals.mean(&parts, Served::mean_tpot),
        latency: match case.whole_batch {
            true => longest(&parts),
            false => totals.mean(&parts, Served::mean_latency),
        },
        output_rate: totals.output_rate,
        total_rate: totals.total_rate,
        request_rate: totals.request_rate,
        gpus: plan.gpus() * case.replicas,
        memory: parts.iter().map(|part| part.memory).fold(Bytes::ZERO, Bytes::max),
        capacity,
        null,
    })
}

/// What becomes of a share, and the instance with the steps that it has timed.
fn serve<'a>(instance: Instance<'a>, share: &Share) -> Result<(Part, Instance<'a>), NoCase> {
    let unsupported = |text: String| NoCase::Unsupported(text);
    let mut instance = instance.for_load(&share.load).map_err(|error| unsupported(error.to_string()))?;
    let served = instance.serve(&share.load).map_err(|error| match error {
        ServingError::TooLong { .. } => unsupported(format!("out of memory: {error}")),
        ServingError::Unknown(error) => unsupported(error.to_string()),
    })?;
    let memory = instance.most_memory(&served);
    Ok((Part { instances: share.instances, served, memory }, instance))
}

/// Which of a row's two statements bounds its requests; its clients alone would send `asked` a second.
fn bounding(asked: f64, rate: f64) -> String {
    let asked_alone = format!("the clients of `concurrency` alone would ask {asked:.3} requests/s");
    match asked > rate {
        true => format!("requests come at `request_rate`: {asked_alone}"),
        false => format!("`concurrency` bounds the load: {asked_alone}, `request_rate` is {rate}"),
    }
}

/// The time of the slowest instance.
fn longest(parts: &[Part]) -> Seconds {
    parts.iter().map(|part| part.served.duration).fold(Seconds::ZERO, Seconds::max)
}

/// Rates of all instances together. Those that clients ask go on, those with a part of a batch wait for the slowest.
///
/// ```text
/// rate = Σ n Q / D          n instances, Q requests or tokens of each, D its duration, of a batch the longest
/// mean = Σ n (Q / D) T / Σ n (Q / D)         T mean time of the requests of an instance
/// ```
struct Totals {
    output_rate: f64,
    total_rate: f64,
    request_rate: f64,
    /// Requests a second of the instances of each part.
    weights: Vec<f64>,
}

impl Totals {
    fn of(parts: &[Part], whole_batch: bool) -> Self {
        let longest = longest(parts);
        let sum = |of: fn(&Served) -> f64| -> Vec<f64> {
            let rate = |part: &Part| {
                let busy = if whole_batch { part.served.duration / longest } else { 1.0 };
                of(&part.served) * busy * part.instances as f64
            };
            parts.iter().map(rate).collect()
        };
        let weights = sum(Served::request_rate);
        Self {
            output_rate: sum(Served::output_rate).iter().sum(),
            total_rate: sum(Served::total_rate).iter().sum(),
            request_rate: weights.iter().sum(),
            weights,
        }
    }

    /// The mean over requests of all instances.
    fn mean(&self, parts: &[Part], of: fn(&Served) -> Seconds) -> Seconds {
        // The mean of one kind is its own, to the last bit.
        if let [part] = parts {
            return of(&part.served);
        }
        let times = parts.iter().zip(&self.weights).map(|(part, weight)| *weight * of(&part.served));
        times.sum::<Seconds>() / self.request_rate
    }
}

#[cfg(test)]
mod tests {
    use crate::serving::{ServingForecast, ServingTable, forecast};

    /// Forecasts of llama-3-8b on H100s with instances of one GPU: GPUs, concurrency, batch, requests a second.
    fn forecasts(rows: &[[&str; 4]]) -> Vec<ServingForecast> {
        let mut text = String::from(
            "model_name,gpu,tp,engine,precision_weights,input_len,output_len,gpus,concurrency,batch,request_rate\n",
        );
        for row in rows {
            text += &format!("llama-3-8b,H100 SXM,1,vllm,bf16,1024,128,{}\n", row.join(","));
        }
        let table = ServingTable::read(text.as_bytes()).unwrap();
        (0..table.len()).map(|row| forecast(&table.case(row).unwrap()).unwrap()).collect()
    }

    /// Clients keep no more requests in flight than there are of them, on however many GPUs.
    #[test]
    fn idle_instances_add_nothing() {
        let found = forecasts(&[["1", "1", "", ""], ["2", "1", "", ""], ["8", "1", "", ""]]);
        for more in &found[1..] {
            assert_eq!(more.output_rate, found[0].output_rate);
            assert_eq!(more.latency, found[0].latency);
        }
        assert_eq!(found.iter().map(|found| found.gpus).collect::<Vec<_>>(), [1, 2, 8]);
        for (row, clients) in [("1", 1.0), ("9", 9.0), ("13", 13.0), ("16", 16.0)] {
            let found = &forecasts(&[["8", row, "", ""]])[0];
            let in_flight = found.request_rate * found.latency.get();
            assert!(in_flight <= clients * 1.001, "{in_flight} of {clients} in flight");
            assert!(in_flight >= clients * 0.9, "{in_flight} of {clients} in flight");
        }
    }

    /// 9 clients on 8 instances: one has two, seven have one.
    #[test]
    fn totals_are_sums_over_instances_and_times_means_over_requests() {
        let [one, two, nine] = &forecasts(&[["1", "1", "", ""], ["1", "2", "", ""], ["8", "9", "", ""]])[..]
        else {
            panic!()
        };
        let near =
            |found: f64, expected: f64| assert!((found / expected - 1.0).abs() < 1e-9, "{found}, {expected}");
        near(nine.output_rate, two.output_rate + 7.0 * one.output_rate);
        near(nine.total_rate, two.total_rate + 7.0 * one.total_rate);
        near(nine.request_rate, two.request_rate + 7.0 * one.request_rate);
        let sum = two.request_rate * two.ttft.get() + 7.0 * one.request_rate * one.ttft.get();
        near(nine.ttft.get(), sum / nine.request_rate);
        assert_eq!(nine.memory, two.memory);
        // A multiple of the instances is one load.
        let sixteen = &forecasts(&[["8", "16", "", ""]])[0];
        assert_eq!((sixteen.output_rate, sixteen.latency), (8.0 * two.output_rate, two.latency));
    }

    /// A batch of 3 on 2 instances is done when the one with 2 is.
    #[test]
    fn a_batch_is_as_long_as_its_slowest_part() {
        let [two, three] = &forecasts(&[["1", "", "2", ""], ["2", "", "3", ""]])[..] else { panic!() };
        assert_eq!(three.latency, two.latency);
        assert!((three.output_rate / two.output_rate - 1.5).abs() < 1e-9);
    }

    #[test]
    fn the_slower_of_rate_and_clients_is_the_load() {
        let rows = [["1", "8", "", ""], ["1", "8", "", "0.5"], ["1", "8", "", "100"], ["1", "", "", "0.5"]];
        let [clients, slow, fast, open] = &forecasts(&rows)[..] else { panic!() };
        assert!(slow.request_rate <= 0.5 && slow.request_rate > 0.45, "{}", slow.request_rate);
        assert_eq!((slow.latency, slow.output_rate), (open.latency, open.output_rate));
        assert!(slow.assumed.starts_with("requests come at `request_rate`: "), "{}", slow.assumed);
        assert_eq!((fast.latency, fast.output_rate), (clients.latency, clients.output_rate));
        assert!(fast.assumed.starts_with("`concurrency` bounds the load: "), "{}", fast.assumed);
        let unbound = &forecasts(&[["1", "8", "", "inf"]])[0];
        assert_eq!(unbound, clients);
    }
}
