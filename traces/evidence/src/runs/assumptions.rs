//! What a forecast has that its row does not state, and how much wider that makes its range.

use super::Run;
use trainwright_spec::calibration::ranges::Range;
use trainwright_spec::calibration::residuals::Quantity;
use trainwright_spec::model::{Experts, Mlp, Model};
use trainwright_spec::plan::Plan;

/// A row whose blanks are filled.
#[derive(Debug, Clone, PartialEq)]
pub struct Completed {
    /// The row with values in the cells that a plan needs.
    pub run: Run,
    /// What it has that the row does not state, beyond the defaults of the columns.
    pub assumptions: Vec<Assumption>,
    /// Cells that count as blank because nothing is known of what they say, for people. A range is as wide with them as without.
    pub as_blank: Vec<String>,
}

/// A value of which the row says nothing, or that replaces one.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Assumption {
    /// What it is about.
    pub kind: Kind,
    /// Column, value and reason, for people.
    pub text: String,
}

/// What an assumption is about.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord)]
pub enum Kind {
    /// Another software's stack.
    Software,
    /// Another GPU.
    Gpu,
    /// The model's sizes.
    Sizes,
    /// Tokens in a sequence.
    Sequence,
    /// How GPUs are divided into axes.
    Layout,
    /// Sequences in a step or in a microbatch.
    Batch,
    /// What is recomputed or offloaded, or how state is divided.
    Memory,
    /// Number format or kernels.
    Kernels,
}

impl Kind {
    /// What the assumption adds to a range: half of the 80 % range of ln(forecast with it / forecast without it), of
    /// the time for a token and of memory.
    ///
    /// Source: 260 rows of 28 sources of traces/published/training.csv of which the cells in question were made blank, or
    /// unknown, on 2026-11-23; the two numbers of a GPU are assumed.
    fn spread(self, quantity: Quantity) -> f64 {
        let [time, memory] = match self {
            Kind::Software => [0.16, 0.47],
            Kind::Gpu => [0.1, 0.05],
            Kind::Sizes => [0.09, 0.14],
            Kind::Sequence => [0.15, 0.76],
            Kind::Layout => [0.34, 0.54],
            Kind::Batch => [0.2, 0.65],
            Kind::Memory => [0.15, 0.75],
            Kind::Kernels => [0.17, 0.04],
        };
        match quantity {
            Quantity::Time => time,
            Quantity::Memory => memory,
        }
    }
}

impl Run {
    /// Of samples that are padded, the mean length, and that to which those of a microbatch are padded: the longest of b lengths
    /// that are spread evenly from 0 to twice the mean, b / (b + 1) of that, at most `seq_len`.
    pub fn padded_lengths(&self) -> Option<[usize; 2]> {
        let most = self.seq_len.filter(|_| self.packed == Some(false))?;
        let mean = self.mean_seq_len.unwrap_or(most / 2).clamp(1, most);
        let samples = self.micro_batch.unwrap_or(1) as f64;
        let padded = 2.0 * mean as f64 * samples / (samples + 1.0);
        Some([mean, (padded.round() as usize).clamp(mean, most)])
    }
}

impl Completed {
    /// Adds an assumption.
    pub(super) fn assume(&mut self, kind: Kind, text: String) {
        self.assumptions.push(Assumption { kind, text });
    }

    /// Says that a cell counts as blank.
    pub(super) fn as_if_blank(&mut self, column: &str, cell: &str) {
        self.as_blank.push(format!("`{column}` as if blank for `{cell}`"));
    }

    /// The range of a quantity with what the assumptions add to it, as if they were independent of each
    /// other and of the residuals: the squares of the distances from the median are added.
    pub fn widened(&self, range: Range, quantity: Quantity) -> Range {
        let mut kinds: Vec<Kind> = self.assumptions.iter().map(|assumption| assumption.kind).collect();
        kinds.sort_unstable();
        kinds.dedup();
        let added: f64 = kinds.iter().map(|kind| kind.spread(quantity).powi(2)).sum();
        let far = |end: f64| (libm::log(end / range.median).powi(2) + added).sqrt();
        Range {
            low: range.median * libm::exp(-far(range.low)),
            high: range.median * libm::exp(far(range.high)),
            ..range
        }
    }

    /// What the forecast does not have from the row: stand-ins and derived values, then the columns' defaults.
    pub fn remark(&self, row: &Run, plan: &Plan) -> Option<String> {
        let mut texts: Vec<String> =
            self.assumptions.iter().map(|assumption| assumption.text.clone()).collect();
        texts.extend(self.as_blank.iter().cloned());
        let names_model = self.assumptions.iter().any(|assumption| assumption.kind == Kind::Sizes);
        if let Some(model) = self.run.known_mixture().filter(|_| !names_model) {
            texts.push(format!("what the row does not say of the model: as {}", model.name));
        }
        texts.extend(self.run.head_width_remark());
        let defaults = defaults(row, &self.run, plan);
        if !defaults.is_empty() {
            texts.push(format!("blank: {}", defaults.join(", ")));
        }
        (!texts.is_empty()).then(|| texts.join("; "))
    }
}

/// The defaults that columns left blank have, as far as they change a forecast.
fn defaults(row: &Run, completed: &Run, plan: &Plan) -> Vec<String> {
    let experts = experts(&plan.model);
    let visited = experts.map(|experts| experts.per_token).unwrap_or_default();
    let width = experts.map(|experts| experts.expert.width).unwrap_or_default();
    let network = plan.cluster.node.nics.as_ref().filter(|_| plan.cluster.nodes > 1);
    let network = network.map(|nics| nics.kind.as_str()).unwrap_or_default();
    let recompute = plan.stack.usual_recompute.as_deref().unwrap_or("none");
    let sequence_parallel = if plan.sequence_parallel { "yes" } else { "no" };
    [
        (completed.precision.is_empty(), format!("precision {}", plan.job.precision)),
        (completed.micro_batch.is_none(), format!("micro_batch {}", plan.micro_batch)),
        (completed.recompute.is_empty(), format!("recompute {recompute}")),
        (completed.data_sharding.is_empty(), format!("data_sharding {}", plan.data_sharding)),
        (
            row.sequence_parallel.is_none() && plan.mesh.tensor > 1,
            format!("sequence_parallel {sequence_parallel}"),
        ),
        (completed.top_k.is_none() && visited > 0, format!("top_k {visited}")),
        (completed.moe_ffn_hidden.is_none() && width > 0, format!("moe_ffn_hidden {width}")),
        (completed.inter_node.is_empty() && !network.is_empty(), format!("inter_node {network}")),
    ]
    .into_iter()
    .filter_map(|(blank, text)| blank.then_some(text))
    .collect()
}

/// The experts of a model's last block.
fn experts(model: &Model) -> Option<&Experts> {
    match &model.blocks.last()?.block.mlp {
        Mlp::Experts(experts) => Some(experts),
        Mlp::Dense(_) => None,
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    /// The distances of the ends from the median and of the assumptions add in squares.
    #[test]
    fn assumptions_widen_a_range() {
        let range = Range { low: 0.8, median: 1.0, high: 1.25, runs: 3, sources: 1 };
        let assumption = |kind| Assumption { kind, text: String::new() };
        let widened = |kinds: &[Kind]| {
            let assumptions = kinds.iter().copied().map(assumption).collect();
            Completed { run: Run::default(), assumptions, as_blank: Vec::new() }
                .widened(range, Quantity::Time)
        };
        assert_eq!(widened(&[]).runs, 3);
        let near = |one: f64, other: f64| (one / other - 1.0).abs() < 1e-12;
        assert!(near(widened(&[]).low, 0.8) && near(widened(&[]).high, 1.25));
        let batch = Kind::Batch.spread(Quantity::Time);
        let high = libm::exp((libm::log(1.25).powi(2) + batch.powi(2)).sqrt());
        assert!(near(widened(&[Kind::Batch]).high, high) && near(widened(&[Kind::Batch]).low, 1.0 / high));
        // Two values of one kind are one assumption.
        assert_eq!(widened(&[Kind::Batch, Kind::Batch]), widened(&[Kind::Batch]));
        assert!(widened(&[Kind::Batch, Kind::Layout]).high > high);
    }
}
