//! What mixes the tokens of a sequence in a step: attention, latent, sparse or plain, and states.

use super::{Batch, Formats, Part, SPARSE_KERNELS, StepModel, StepTime};
use crate::libraries::{
    Call, Convolution, Decode, Latent, Prefill, SparseAttention, StateDecode, StatePrefill, Unknown,
};
use trainwright_spec::model::{Attention, Mask, Recurrence};
use trainwright_spec::precision::Precision;

impl StepModel<'_> {
    /// From the residual stream back to it, by attention or through a state.
    pub(super) fn attention(
        &mut self,
        attention: &Attention,
        batch: &Batch,
        step: &mut StepTime,
    ) -> Result<(), Unknown> {
        if let Some(recurrence) = &attention.recurrence {
            return self.states(attention, recurrence, batch, step);
        }
        let tensor = self.plan.tensor;
        let (hidden, tokens) = (self.model.hidden, batch.tokens());
        let heads = attention.heads.div_ceil(tensor);
        let kv_heads = attention.kv_heads.div_ceil(tensor);
        let window = match attention.mask {
            Mask::Window(window) => Some(window),
            Mask::Causal | Mask::Full => None,
        };
        let Formats { weights, cache, .. } = self.formats;
        if let Some(sparse) = SparseAttention::of(attention, hidden, heads, weights, cache) {
            return self.sparse(&sparse, batch, step);
        }
        let mut prefill = Prefill {
            batch: batch.chunks,
            heads,
            kv_heads,
            head_dim: attention.head_dim,
            value_head_dim: attention.value_head_dim,
            queries: batch.queries.div_ceil(batch.chunks.max(1)),
            history: batch.before,
            window,
            math: Precision::Bf16,
            cache: self.formats.cache,
        };
        match &attention.latent {
            None => {
                let gated = if attention.output_gate { 2 } else { 1 };
                let width = gated * heads * attention.head_dim
                    + kv_heads * (attention.head_dim + attention.value_head_dim);
                self.linear(tokens, width, hidden, step)?;
                if batch.decodes > 0 {
                    let decode = Decode {
                        batch: batch.decodes,
                        heads,
                        kv_heads,
                        head_dim: attention.head_dim,
                        history: batch.history,
                        window,
                        cache: self.formats.cache,
                    };
                    let time = self.kernel(&Call::Decode(decode))?;
                    step.add(Part::DecodeAttention, time.total(), 1);
                }
            }
            Some(latent) => {
                let rotary = latent.rotary_head_dim;
                let down = latent.query_rank.unwrap_or(0) + latent.kv_rank + rotary;
                self.linear(tokens, down, hidden, step)?;
                let from = latent.query_rank.unwrap_or(hidden);
                self.linear(tokens, heads * attention.head_dim, from, step)?;
                let plain = attention.head_dim - rotary;
                if batch.chunks > 0 {
                    let keys = batch.queries + batch.chunks * batch.before;
                    self.linear(keys, heads * (plain + attention.value_head_dim), latent.kv_rank, step)?;
                    prefill.kv_heads = heads;
                }
                if batch.decodes > 0 {
                    // Keys and values stay in the latent space: queries and results are multiplied instead.
                    self.linear(batch.decodes, latent.kv_rank, heads * plain, step)?;
                    let cache = self.formats.cache;
                    let call = Latent { batch: batch.decodes, heads, history: batch.history, cache };
                    let time = self.kernel(&Call::Latent(call))?;
                    step.add(Part::DecodeAttention, time.total(), 1);
                    self.linear(batch.decodes, attention.value_head_dim * heads, latent.kv_rank, step)?;
                }
            }
        }
        if batch.chunks > 0 {
            let time = self.kernel(&Call::Prefill(prefill))?;
            step.add(Part::PrefillAttention, time.total(), 1);
        }
        self.linear(tokens, hidden, heads * attention.value_head_dim, step)
    }

    /// A mixer with a state: its projections, the convolution and the states, of prompts and of single tokens.
    fn states(
        &mut self,
        mixer: &Attention,
        recurrence: &Recurrence,
        batch: &Batch,
        step: &mut StepTime,
    ) -> Result<(), Unknown> {
        let tensor = self.plan.tensor;
        let heads = mixer.heads.div_ceil(tensor);
        let key_heads = mixer.kv_heads.div_ceil(tensor);
        let (key_dim, value_dim) = (mixer.head_dim, mixer.value_head_dim);
        let values = heads * value_dim;
        let channels = 2 * key_heads * key_dim + values;
        let (hidden, tokens) = (self.model.hidden, batch.tokens());
        let width = channels + values + recurrence.rule.gates() * heads;
        self.linear(tokens, width, hidden, step)?;
        let convolution = |tokens, sequences, is_step| {
            let width = recurrence.convolution;
            Call::Convolution(Convolution { tokens, sequences, channels, width, step: is_step })
        };
        if batch.chunks > 0 {
            let queries = batch.queries.div_ceil(batch.chunks);
            let (chunk, rule) = (recurrence.chunk, recurrence.rule);
            let batch_of = batch.chunks;
            let call =
                StatePrefill { batch: batch_of, heads, key_heads, key_dim, value_dim, queries, chunk, rule };
            for call in [convolution(batch.queries, batch.chunks, false), Call::StatePrefill(call)] {
                let time = self.kernel(&call)?;
                step.add(Part::States, time.total(), 1);
            }
        }
        if batch.decodes > 0 {
            let call = StateDecode { batch: batch.decodes, heads, key_heads, key_dim, value_dim };
            for call in [convolution(batch.decodes, batch.decodes, true), Call::StateDecode(call)] {
                let time = self.kernel(&call)?;
                step.add(Part::States, time.total(), 1);
            }
        }
        self.linear(tokens, hidden, values, step)
    }

    /// Sparse latent attention, measured as a module with its projections: of prompts and of single tokens. Its
    /// time counts once, its kernels as many as they are.
    fn sparse(&mut self, call: &SparseAttention, batch: &Batch, step: &mut StepTime) -> Result<(), Unknown> {
        let queries = batch.queries.div_ceil(batch.chunks.max(1));
        let prompts =
            SparseAttention { batch: batch.chunks, queries, history: batch.before, prompt: true, ..*call };
        let tokens = SparseAttention { batch: batch.decodes, queries: 1, history: batch.history, ..*call };
        for (call, part) in [(prompts, Part::PrefillAttention), (tokens, Part::DecodeAttention)] {
            if call.batch > 0 {
                let time = self.kernel(&Call::Sparse(call))?;
                step.add(part, time.total(), 1);
                step.kernels += SPARSE_KERNELS - 1;
            }
        }
        Ok(())
    }
}
