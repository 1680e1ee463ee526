//! What each instance of a row is asked: requests and clients are divided as evenly as they can be.
//!
//! ```text
//! c clients, r instances:  c mod r instances have ⌈c / r⌉ clients, the others ⌊c / r⌋
//! ```

use crate::kernels::{Cells, NoCase};
use trainwright_sim::serving::Load;

/// How often each client asks, if a row does not say how many requests there were.
const ROUNDS: usize = 10;

/// Requests that are simulated at most.
const MOST_REQUESTS: usize = 4096;

/// Requests where a row says how they come but not how many.
const OPEN_REQUESTS: usize = 1000;

/// Instances that are asked the same.
#[derive(Debug, Clone, PartialEq)]
pub struct Share {
    /// How many.
    pub instances: usize,
    /// What each is asked.
    pub load: Load,
}

/// Requests a second that bound what clients ask.
#[derive(Debug, Clone, PartialEq)]
pub struct Bound {
    /// Of all instances together.
    pub rate: f64,
    /// The load where clients alone would ask more often: requests come at this rate.
    pub open: Share,
}

/// What the instances of a row are asked.
#[derive(Debug, Clone, PartialEq)]
pub(super) struct Asked {
    /// At most two kinds, that with more requests first; instances to which nothing is left are in none.
    pub shares: Vec<Share>,
    /// Most sequences of a step, where the row says so.
    pub most: Option<usize>,
    /// Where the row states both a rate and how many requests are in flight.
    pub bound: Option<Bound>,
}

impl Asked {
    /// What a row asks of its instances, each with this number of attention-data groups.
    ///
    /// # Errors
    /// `Unsupported` if the row does not say how requests come, `Invalid` for cells that make no sense.
    pub fn of(cells: &Cells, replicas: usize, attention_data: usize) -> Result<Self, NoCase> {
        let Some(output) = length(cells, "output_len")? else {
            return Err(NoCase::Unsupported("`output_len` is blank".into()));
        };
        // A prompt that a table leaves out is a short one.
        let lengths = [length(cells, "input_len")?.unwrap_or(16).max(1), output.max(1)];
        let [input, output] = lengths;
        let batch = cells.maybe("batch", 1.0)?;
        if let Some(clients) = cells.maybe("concurrency", 1.0)? {
            let each = clients.div_ceil(replicas);
            let of_step = batch.map(|batch| batch.div_ceil(replicas).saturating_mul(attention_data));
            let load = |clients: usize| {
                let rounds = (MOST_REQUESTS / clients).clamp(3, ROUNDS);
                Load::closed(clients, rounds, input, output)
            };
            let finite = rate(cells)?.filter(|rate| rate.is_finite());
            let bound = finite.map(|rate| Bound { rate, open: open(lengths, rate, replicas) });
            let most = of_step.filter(|batch| *batch < each);
            return Ok(Self { shares: divided(clients, replicas, load), most, bound });
        }
        let shares = match batch {
            Some(batch) => divided(batch, replicas, |sequences| Load::batch(sequences, input, output)),
            None => {
                let unknown = "neither `batch` nor `concurrency` nor `request_rate` is given";
                let rate = rate(cells)?.ok_or_else(|| NoCase::Unsupported(unknown.into()))?;
                vec![open(lengths, rate, replicas)]
            }
        };
        Ok(Self { shares, most: None, bound: None })
    }
}

/// Instances that are each asked the same part of `rate` requests a second.
fn open([input, output]: [usize; 2], rate: f64, replicas: usize) -> Share {
    let load = match rate.is_finite() {
        true => Load::at_rate(rate / replicas as f64, OPEN_REQUESTS, input, output),
        false => Load::batch(MOST_REQUESTS, input, output),
    };
    Share { instances: replicas, load }
}

/// `count` clients or sequences on `replicas` instances; `load` is that of an instance with a number of them.
fn divided(count: usize, replicas: usize, load: impl Fn(usize) -> Load) -> Vec<Share> {
    let (fewest, more) = (count / replicas, count % replicas);
    let kinds = [(more, fewest + 1), (replicas - more, fewest)];
    let asked = kinds.into_iter().filter(|(instances, count)| instances.min(count) > &0);
    asked.map(|(instances, count)| Share { instances, load: load(count) }).collect()
}

/// A length in tokens, which may be a mean; `None` if it is blank.
fn length(cells: &Cells, column: &str) -> Result<Option<usize>, NoCase> {
    match cells.text(column) {
        "" => Ok(None),
        text => match text.parse::<f64>() {
            Ok(tokens) if (0.0..=1e8).contains(&tokens) => Ok(Some(tokens.round() as usize)),
            _ => Err(NoCase::Invalid(format!("`{column}` is {text}, no number of tokens from 0 to 1e8"))),
        },
    }
}

/// Requests a second, infinite if all are there at once, `None` if the cell is blank.
fn rate(cells: &Cells) -> Result<Option<f64>, NoCase> {
    match cells.text("request_rate") {
        "" => Ok(None),
        text => match text.parse::<f64>() {
            Ok(rate) if rate > 0.0 => Ok(Some(rate)),
            _ => Err(NoCase::Invalid(format!("`request_rate` is {text}, no number above 0"))),
        },
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn clients_are_on_as_many_instances_as_there_are_and_at_most_one_apart() {
        for (count, replicas, expected) in [
            (16, 8, &[(8, 2)][..]),
            (9, 8, &[(1, 2), (7, 1)]),
            // The other instances are idle.
            (1, 8, &[(1, 1)]),
            (7, 8, &[(7, 1)]),
            (11, 3, &[(2, 4), (1, 3)]),
            (5, 1, &[(1, 5)]),
        ] {
            let shares = divided(count, replicas, |count| Load::batch(count, 10, 10));
            let found: Vec<(usize, usize)> =
                shares.iter().map(|share| (share.instances, share.load.requests().len())).collect();
            assert_eq!(found, expected, "{count} on {replicas}");
            assert_eq!(found.iter().map(|(instances, each)| instances * each).sum::<usize>(), count);
        }
    }
}
