//! Traces of requests.

use crate::error::{CliError, refuse};
use crate::inputs;
use csv::{ReaderBuilder, Trim};
use serde::Deserialize;
use trainwright_sim::libraries::Operands;
use trainwright_sim::serving::{Request, ServedRequest, mean_rate};
use trainwright_spec::limits;
use trainwright_spec::model::{Mask, Model, Position};
use trainwright_spec::units::Seconds;

/// A row of a trace.
#[derive(Debug, Deserialize)]
struct Row {
    arrival_s: f64,
    input_tokens: usize,
    output_tokens: usize,
    #[serde(default)]
    cached_tokens: usize,
    first_token_s: Option<f64>,
    last_token_s: Option<f64>,
}

/// Requests, and what became of them where the file says so.
pub struct Trace {
    /// In the order of their arrival.
    pub requests: Vec<Request>,
    /// The same as a real service served them; `None` if the file does not say it of every one.
    pub measured: Option<Vec<ServedRequest>>,
}

/// Refuses more cached tokens than a prompt has beside its last one.
///
/// # Errors
/// `--cached` with its value.
pub fn cached_are_fewer(cached: usize, input: usize) -> Result<(), CliError> {
    match cached < input {
        true => Ok(()),
        false => Err(refuse("--cached", cached, format!("it should be less than the {input} of --input"))),
    }
}

/// Refuses requests that are longer than a model's learned positions.
///
/// # Errors
/// `--model` with its value.
pub fn have_positions(reference: &str, model: &Model, longest: usize) -> Result<(), CliError> {
    match model.embedding.position {
        Position::Learned(positions) if positions < longest => {
            let allowed = format!(
                "it has learned positions for {positions} tokens, and prompt and answer are {longest}"
            );
            Err(refuse("--model", reference, allowed))
        }
        _ => Ok(()),
    }
}

/// Refuses models that give no tokens one after the other.
///
/// # Errors
/// `--model` with its value.
pub fn is_decoder(reference: &str, model: &Model) -> Result<(), CliError> {
    let kind = match () {
        () if model.decodes() => "an encoder-decoder is not served yet",
        () if model.attentions().any(|attention| attention.mask == Mask::Full) => {
            "an encoder sees all tokens at once and gives none after them"
        }
        () => return Ok(()),
    };
    Err(refuse("--model", reference, format!("{kind}: give a decoder")))
}

/// Refuses ranks of experts for a model that has none.
///
/// # Errors
/// `--expert` with its value.
pub fn shares_experts(ranks: usize, model: &Model) -> Result<(), CliError> {
    match model.fewest_experts() {
        None if ranks > 1 => Err(refuse("--expert", ranks, format!("{} has no experts", model.name))),
        _ => Ok(()),
    }
}

/// Refuses a format of experts for a model that has none.
///
/// # Errors
/// `--expert-weights` with its value.
pub fn has_experts(weights: Option<Operands>, model: &Model) -> Result<(), CliError> {
    match weights {
        Some(weights) if model.fewest_experts().is_none() => {
            let allowed = format!("{} has no experts: give --weights alone", model.name);
            Err(refuse("--expert-weights", weights.name, allowed))
        }
        _ => Ok(()),
    }
}

/// The requests of a file.
///
/// # Errors
/// A file that cannot be read, a row that makes no sense.
pub fn trace(path: &str) -> Result<Trace, CliError> {
    let text = inputs::text(Some("--trace"), path)?;
    let mut reader = ReaderBuilder::new().trim(Trim::All).from_reader(text.as_bytes());
    let mut rows = Vec::new();
    for (index, row) in reader.deserialize::<Row>().enumerate() {
        let fault = |what: String| refuse("--trace", path, format!("line {}: {what}", index + 2));
        let row = row.map_err(|error| {
            let what = error.to_string();
            fault(format!("arrival_s, input_tokens and output_tokens should be numbers ({what})"))
        })?;
        if !(0.0..=1e9).contains(&row.arrival_s) {
            return Err(fault(format!("`arrival_s` is {}, it should be from 0 to 1e9", row.arrival_s)));
        }
        if row.input_tokens == 0
            || row.output_tokens == 0
            || row.input_tokens.max(row.output_tokens) > limits::TOKENS.most as usize
        {
            let most = limits::TOKENS.most;
            return Err(fault(format!("`input_tokens` and `output_tokens` should be from 1 to {most}")));
        }
        if row.cached_tokens >= row.input_tokens {
            return Err(fault("`cached_tokens` should be less than `input_tokens`".into()));
        }
        let arrival = Seconds::new(row.arrival_s);
        let request = Request::new(arrival, row.input_tokens, row.output_tokens);
        let measured = match (row.first_token_s, row.last_token_s) {
            (Some(first), Some(last)) if row.arrival_s <= first && first <= last && last <= 1e9 => {
                let [first, last] = [first, last].map(Seconds::new);
                Some(ServedRequest { input: request.input, output: request.output, arrival, first, last })
            }
            (Some(_), Some(_)) => {
                return Err(fault("`first_token_s` and `last_token_s` should follow `arrival_s`".into()));
            }
            _ => None,
        };
        rows.push((Request { cached: row.cached_tokens, ..request }, measured));
    }
    if rows.is_empty() {
        return Err(refuse("--trace", path, "it has no request"));
    }
    rows.sort_by(|(a, _), (b, _)| a.arrival.get().total_cmp(&b.arrival.get()));
    let (requests, measured): (Vec<_>, Vec<_>) = rows.into_iter().unzip();
    Ok(Trace { requests, measured: measured.into_iter().collect() })
}

/// Refuses requests that all arrive at once: they have no rate that another could be made of.
///
/// # Errors
/// Such requests.
pub fn has_gaps(path: &str, requests: &[Request]) -> Result<(), CliError> {
    let all_at_once =
        || refuse("--trace", path, "with `--rate` its requests should arrive at different times");
    mean_rate(requests).map(|_| ()).ok_or_else(all_at_once)
}
