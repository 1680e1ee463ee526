//! Attention as a graph of operations, for which libraries have fused kernels.
//!
//! The graphs are data: the driver hands them to cuDNN, and the emulator computes them operation by operation, so that tests check them
//! without a GPU. Tensors are batch × heads × positions × width, as strided views of rows of tokens.

pub(super) mod graph;

use super::attention::{Attention, Pass};
use super::launch::Address;
use graph::{Data, Function, Graph, Layout, Reduction, TensorId};

/// All of an attention but its addresses and its scale: the key of a plan.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
pub(super) struct AttentionShape {
    pub pass: Pass,
    pub batch: i64,
    pub heads: i64,
    pub kv_heads: i64,
    pub queries: i64,
    pub keys: i64,
    pub width: i64,
    pub causal: bool,
    /// Elements from one token to the next: of queries, keys, values, outputs.
    pub rows: [i64; 4],
}

/// A tensor or scalar that a graph reads or writes, by its number in the graph.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum Part {
    Queries = 1,
    Keys,
    Values,
    Outputs,
    Logarithms,
    OutputGradient,
    Dots,
    QueryGradient,
    KeyGradient,
    ValueGradient,
    /// f32, in the workspace: the sums of dQ.
    QuerySums,
    /// The factor of scores. This and the following are scalars of the host.
    Scale,
    /// The score of a masked key.
    Unseen,
    /// 1.
    One,
}

impl Part {
    /// Its address; `NULL` for scalars of the host. The workspace begins with the sums.
    pub fn address(self, of: &Attention, workspace: Address) -> Address {
        match self {
            Part::Queries => of.q,
            Part::Keys => of.k,
            Part::Values => of.v,
            Part::Outputs => of.o,
            Part::Logarithms => of.logarithms,
            Part::OutputGradient => of.o_gradient,
            Part::Dots => of.dots,
            Part::QueryGradient => of.q_gradient,
            Part::KeyGradient => of.k_gradient,
            Part::ValueGradient => of.v_gradient,
            Part::QuerySums => workspace,
            Part::Scale | Part::Unseen | Part::One => Address::NULL,
        }
    }

    /// Its value; `None` unless it is a scalar of the host.
    pub fn value(self, of: &Attention) -> Option<f32> {
        match self {
            Part::Scale => Some(of.scale),
            Part::Unseen => Some(f32::NEG_INFINITY),
            Part::One => Some(1.0),
            _ => None,
        }
    }
}

/// Alignment of an engine's part of a workspace, in bytes.
const WORKSPACE_ALIGNMENT: usize = 256;

impl AttentionShape {
    /// The shape of an attention in bf16.
    ///
    /// # Errors
    /// Why the library is not asked for this attention.
    pub fn of(attention: &Attention, pass: Pass) -> Result<Self, String> {
        let Attention { head_dim, value_head_dim, queries, keys, offset, .. } = *attention;
        let rows = [attention.q_row, attention.k_row, attention.v_row, attention.o_row];
        let causal = attention.causal == 1;
        if attention.drops.threshold > 0 {
            return Err("it drops out probabilities".into());
        }
        if head_dim != value_head_dim || head_dim % 8 != 0 || head_dim > 128 {
            return Err("its heads are not all of one width, a multiple of 8 up to 128".into());
        }
        if causal && (queries != keys || offset != 0) {
            return Err("its queries are at other positions than its keys".into());
        }
        let shape = Self {
            pass,
            batch: attention.batch.into(),
            heads: attention.heads.into(),
            kv_heads: attention.kv_heads.into(),
            queries: queries.into(),
            keys: keys.into(),
            width: head_dim.into(),
            causal,
            rows,
        };
        let Attention { q, k, v, o, logarithms, o_gradient, .. } = *attention;
        let Attention { dots, q_gradient, k_gradient, v_gradient, .. } = *attention;
        let read = [q, k, v, o, logarithms, o_gradient];
        let addresses = read.into_iter().chain([dots, q_gradient, k_gradient, v_gradient]);
        if rows.iter().any(|row| row % 8 != 0) || addresses.into_iter().any(|at| !at.0.is_multiple_of(16)) {
            return Err("its rows are not 16-byte aligned".into());
        }
        Ok(shape)
    }

    /// The graph of operations.
    pub fn graph(&self) -> Graph {
        let mut graph = Graph::default();
        match self.pass {
            Pass::Forward => self.forward(&mut graph),
            Pass::Backward | Pass::DeterministicBackward => self.backward(&mut graph),
        }
        graph
    }

    /// Bytes of the workspace that hold tensors of the graph. The engine's part follows.
    pub fn graph_workspace(&self) -> usize {
        let sums = self.batch * self.heads * self.queries * self.width * size_of::<f32>() as i64;
        if self.pass == Pass::Backward { (sums as usize).next_multiple_of(WORKSPACE_ALIGNMENT) } else { 0 }
    }

    /// Heads in rows of tokens: row = position · batch + sequence.
    fn heads(&self, heads: i64, positions: i64, row: i64) -> Layout {
        let sizes = [self.batch, heads, positions, self.width];
        Layout { sizes, strides: [row, self.width, self.batch * row, 1] }
    }

    fn rows_of(&self, part: Part) -> Layout {
        let [q_row, k_row, v_row, o_row] = self.rows;
        match part {
            Part::Queries | Part::QueryGradient => self.heads(self.heads, self.queries, q_row),
            Part::Keys | Part::KeyGradient => self.heads(self.kv_heads, self.keys, k_row),
            Part::Values | Part::ValueGradient => self.heads(self.kv_heads, self.keys, v_row),
            _ => self.heads(self.heads, self.queries, o_row),
        }
    }

    fn rows_in(&self, graph: &mut Graph, part: Part) -> TensorId {
        graph.given(part, Data::Bf16, self.rows_of(part))
    }

    /// The same tensor with each head transposed.
    fn transposed_in(&self, graph: &mut Graph, part: Part) -> TensorId {
        graph.given(part, Data::Bf16, self.rows_of(part).transposed())
    }

    fn each_query(&self, graph: &mut Graph, part: Part) -> TensorId {
        graph.given(part, Data::F32, Layout::packed([self.batch, self.heads, self.queries, 1]))
    }

    /// Masks the scores of keys behind the query.
    fn seen(&self, graph: &mut Graph, scores: TensorId) -> TensorId {
        if !self.causal {
            return scores;
        }
        let query = graph.pointwise_as(Data::I32, Function::Index(2), &[scores]);
        let key = graph.pointwise_as(Data::I32, Function::Index(3), &[scores]);
        let is_seen = graph.pointwise_as(Data::Boolean, Function::AtLeast, &[query, key]);
        let unseen = graph.scalar(Part::Unseen);
        graph.pointwise(Function::Select, &[scores, unseen, is_seen])
    }

    /// S = scale · Q Kᵀ, L = max S + ln Σ exp(S − max S), P = exp(S − max S) / Σ exp(S − max S), O = P V.
    fn forward(&self, graph: &mut Graph) {
        let q = self.rows_in(graph, Part::Queries);
        let k = self.transposed_in(graph, Part::Keys);
        let v = self.rows_in(graph, Part::Values);
        let scale = graph.scalar(Part::Scale);
        let scores = graph.product(q, k);
        let scores = graph.pointwise(Function::Multiply, &[scores, scale]);
        let scores = self.seen(graph, scores);
        let largest = graph.reduce(Reduction::Largest, scores);
        let below = graph.pointwise(Function::Subtract, &[scores, largest]);
        let exponentials = graph.pointwise(Function::Exponential, &[below]);
        let sums = graph.reduce(Reduction::Sum, exponentials);
        let logarithms = graph.pointwise(Function::Logarithm, &[sums]);
        let kept = self.each_query(graph, Part::Logarithms);
        graph.pointwise_to(Function::Add, &[largest, logarithms], kept);
        let probabilities = graph.pointwise_as(Data::Bf16, Function::Divide, &[exponentials, sums]);
        let o = self.rows_in(graph, Part::Outputs);
        graph.product_to(probabilities, v, o);
    }

    /// D = Σ dO · O, P = exp(scale · Q Kᵀ − L), dV = Pᵀ dO, dS = scale · P · (dO Vᵀ − D), dK = dSᵀ Q, dQ = dS K.
    ///
    /// dQ is summed atomically over tiles of keys: four bytes of workspace for each element of dQ, which cuDNN zeroes itself from
    /// 9.6 on. `DeterministicBackward` computes dQ as a separate product instead, as NVIDIA's frontend does: two bytes of
    /// workspace for each score, written and read again.
    fn backward(&self, graph: &mut Graph) {
        let q = self.rows_in(graph, Part::Queries);
        let k = self.transposed_in(graph, Part::Keys);
        let v = self.transposed_in(graph, Part::Values);
        let o = self.rows_in(graph, Part::Outputs);
        let o_gradient = self.rows_in(graph, Part::OutputGradient);
        let kept = self.each_query(graph, Part::Logarithms);
        let scale = graph.scalar(Part::Scale);

        let products = graph.pointwise(Function::Multiply, &[o_gradient, o]);
        let sums = graph.reduce(Reduction::Sum, products);
        let dots = self.each_query(graph, Part::Dots);
        // Engines expect this operation; with dropout its factor would be divided out here.
        let one = graph.scalar(Part::One);
        graph.pointwise_to(Function::Multiply, &[sums, one], dots);

        let scores = graph.product(q, k);
        let scores = graph.pointwise(Function::Multiply, &[scores, scale]);
        let below = graph.pointwise(Function::Subtract, &[scores, kept]);
        let below = self.seen(graph, below);
        let probabilities = graph.pointwise(Function::Exponential, &[below]);
        let turned = graph.transpose(probabilities);
        self.product_of_heads(graph, [turned, o_gradient], Part::ValueGradient);

        let towards = graph.product(o_gradient, v);
        let towards = graph.pointwise(Function::Subtract, &[towards, dots]);
        let towards = graph.pointwise(Function::Multiply, &[towards, probabilities]);
        let to_scores = graph.pointwise(Function::Multiply, &[towards, scale]);
        let turned = graph.transpose(to_scores);
        self.product_of_heads(graph, [turned, q], Part::KeyGradient);

        let k = graph.transpose(k);
        let q_gradient = self.rows_in(graph, Part::QueryGradient);
        if self.pass == Pass::DeterministicBackward {
            return graph.product_to(to_scores, k, q_gradient);
        }
        let sums = Layout::packed([self.batch, self.heads, self.queries, self.width]);
        let sums = graph.given(Part::QuerySums, Data::F32, sums);
        graph.product_to(to_scores, k, sums);
        graph.pointwise_to(Function::Identity, &[sums], q_gradient);
    }

    /// A product for each query head, summed over those that share a key head.
    fn product_of_heads(&self, graph: &mut Graph, [left, right]: [TensorId; 2], part: Part) {
        let out = self.rows_in(graph, part);
        if self.heads == self.kv_heads {
            return graph.product_to(left, right, out);
        }
        let each = graph.between(Data::Bf16, Layout::packed([self.batch, self.heads, self.keys, self.width]));
        graph.product_to(left, right, each);
        graph.reduce_to(Reduction::Sum, each, out);
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    /// 3 sequences of 5 tokens; 4 heads of 16, and 2 of keys and of values, side by side: rows of 128 elements.
    fn packed() -> Attention {
        Attention {
            q: Address(1 << 20),
            k: Address((1 << 20) + 2 * 64),
            v: Address((1 << 20) + 2 * 96),
            q_row: 128,
            k_row: 128,
            v_row: 128,
            o_row: 64,
            batch: 3,
            heads: 4,
            kv_heads: 2,
            queries: 5,
            keys: 5,
            head_dim: 16,
            value_head_dim: 16,
            causal: 1,
            ..Attention::default()
        }
    }

    #[test]
    fn unsupported_attention_is_refused_with_the_reason() {
        let attention = packed();
        let shape = AttentionShape::of(&attention, Pass::Forward).unwrap();
        // The second sequence's tokens are one row further on, the second position's three.
        let keys = shape.rows_of(Part::Keys);
        assert_eq!((keys.sizes, keys.strides), ([3, 2, 5, 16], [128, 16, 384, 1]));
        let check = |attention: Attention, expected: &str| {
            let reason = AttentionShape::of(&attention, Pass::Backward).unwrap_err();
            assert!(reason.contains(expected), "{reason}");
        };
        check(Attention { head_dim: 136, value_head_dim: 136, ..attention }, "width");
        check(Attention { value_head_dim: 8, ..attention }, "width");
        check(Attention { keys: 6, ..attention }, "positions");
        check(Attention { offset: 1, ..attention }, "positions");
        check(Attention { o_row: 66, ..attention }, "16-byte");
        check(Attention { v: Address(8), ..attention }, "16-byte");
        assert!(AttentionShape::of(&Attention { keys: 6, causal: 0, ..attention }, Pass::Backward).is_ok());
    }

    #[test]
    fn only_sums_in_any_order_are_in_the_workspace() {
        let attention = packed();
        let workspace = Pass::ALL.map(|pass| AttentionShape::of(&attention, pass).unwrap().graph_workspace());
        // 3 · 4 · 5 · 16 sums of 4 bytes, up to a multiple of 256.
        assert_eq!(workspace, [0, 3840, 0]);
        let names = |pass| {
            let graph = AttentionShape::of(&attention, pass).unwrap().graph();
            graph.tensors.iter().any(|tensor| tensor.storage == graph::Storage::Given(Part::QuerySums))
        };
        assert_eq!(Pass::ALL.map(names), [false, true, false]);
    }
}
