//! The exchange of parts of the sequence for heads, which Ulysses and the hybrids share.

use super::{Exchange, Refusal, SharedAttention, Step};
use crate::collective::CollectiveKind;
use crate::program::{Axis, Travels};

/// `degree` neighbouring ranks on `axis` exchange parts of the sequence for heads.
///
/// Before, each has all heads of 1/u of their tokens, after, 1/u of the heads of all of them. Where there are fewer key-value
/// heads than ranks, each is sent to several ranks.
#[derive(Debug, Clone, Copy)]
pub(super) struct Heads {
    /// Whose ranks exchange.
    pub axis: Axis,
    /// How many they are, u.
    pub degree: usize,
}

impl Heads {
    /// Whether the heads can be dealt to the ranks.
    pub fn check(&self, layer: &SharedAttention, key: &'static str) -> Result<(), Refusal> {
        let degree = self.degree;
        let refuse = |allowed: String| Err(Refusal { key, allowed });
        if !layer.heads.is_multiple_of(degree) {
            return refuse(format!("{degree} must divide the {} query heads of a tensor rank", layer.heads));
        }
        let kv_heads = layer.kv_heads;
        if !kv_heads.is_multiple_of(degree) && !degree.is_multiple_of(kv_heads) {
            return refuse(format!(
                "{degree} must divide or be a multiple of the {kv_heads} key-value heads of a tensor rank"
            ));
        }
        Ok(())
    }

    /// The layer after the exchange.
    pub fn share(&self, layer: &SharedAttention) -> SharedAttention {
        SharedAttention {
            heads: layer.heads / self.degree,
            kv_heads: self.sent_kv_heads(layer) / self.degree,
            ranks: layer.ranks / self.degree,
            inner: 1,
            ..*layer
        }
    }

    /// Queries, keys and values on their way to where their heads are, `core`, outputs on their way back.
    pub fn forward(&self, layer: &SharedAttention, core: Vec<Step>) -> Vec<Step> {
        let shared = self.share(layer);
        let mut steps = Vec::new();
        for (what, travels, elements) in [
            ("exchange queries", Travels::Queries, shared.query()),
            ("exchange keys", Travels::Keys, shared.key()),
            ("exchange values", Travels::Values, shared.value()),
        ] {
            steps.extend(self.exchange(what, travels, elements));
        }
        steps.extend(core);
        steps.extend(self.exchange("exchange outputs", Travels::Outputs, shared.output()));
        steps
    }

    /// The same ways back, for gradients. Those of a head that was sent to several ranks are added.
    pub fn backward(&self, layer: &SharedAttention, core: Vec<Step>) -> Vec<Step> {
        let shared = self.share(layer);
        let exchange = self.exchange("exchange output gradients", Travels::OutputGradients, shared.output());
        let mut steps: Vec<Step> = exchange.collect();
        steps.extend(core);
        for (what, travels, elements) in [
            ("exchange query gradients", Travels::QueryGradients, shared.query()),
            ("exchange key gradients", Travels::KeyGradients, shared.key()),
            ("exchange value gradients", Travels::ValueGradients, shared.value()),
        ] {
            steps.extend(self.exchange(what, travels, elements));
        }
        if self.sent_kv_heads(layer) > layer.kv_heads {
            steps.push(Step::Add { elements: shared.key() + shared.value() });
        }
        steps
    }

    /// (u − 1)/u of the queries, keys, values and outputs that a rank has.
    pub fn sent(&self, layer: &SharedAttention) -> usize {
        let shared = self.share(layer);
        (shared.inputs() + shared.output()) / self.degree * (self.degree - 1)
    }

    /// Queries, keys and values as they are used, and the outputs before they travel: those of the rank, after that,
    /// are kept as the projection's input.
    pub fn kept(&self, layer: &SharedAttention) -> usize {
        let shared = self.share(layer);
        shared.inputs() + if self.degree == 1 { 0 } else { shared.output() }
    }

    fn sent_kv_heads(&self, layer: &SharedAttention) -> usize {
        layer.kv_heads.max(self.degree)
    }

    fn exchange(&self, what: &'static str, travels: Travels, elements: usize) -> impl Iterator<Item = Step> {
        let kind = CollectiveKind::AllToAll;
        let axis = self.axis;
        let travel = Step::Exchange(Exchange { what, travels, kind, axis, elements, beside_next: false });
        let steps = (self.degree > 1).then_some([Step::Reorder { elements }, travel]);
        steps.into_iter().flatten()
    }
}
