//! 1-D: weights cut by column, then by row; the sum of the second product's outputs over all tensor ranks.

use super::{
    Between, Input, LayerStep, Linear, LinearSteps, LookUp, Output, Overlap, Parts, Role, TensorGrid,
};
use super::{TensorScheme, Volume, collective, overlapping};
use crate::collective::CollectiveKind::{AllGather, AllReduce, ReduceScatter, SendReceive};
use crate::mesh::Mesh;
use crate::model::weights::{Split, Weight};
use crate::program::Axis;

/// Megatron's tensor parallelism, with whole activations between layers or with 1/t of each sequence.
///
/// The first product of a pair computes its part of the output from the whole input; the second one's outputs are
/// summands. With whole activations the sum is an all-reduce, forward after the second product and backward before
/// the first. Cut along the sequence, it is an all-gather before the first and a reduce-scatter after the second, the
/// other way round in backward, and the first one's input is gathered once more for the weight's gradient.
///
/// In chunks that overlap the products, a gather becomes t − 1 messages along a ring, each of which travels while the chunk
/// before is multiplied, and a reduce-scatter t − 1 messages of chunks that are summed where they end. In backward the
/// exchange of the first product overlaps the other product anyway.
/// Sources: Shoeybi et al. 2019, arXiv 1909.08053, section 3; Korthikanti et al. 2022, arXiv 2205.05198, section
/// 4.2.2; the ring: Transformer Engine's userbuffers overlap (ring exchange), Wang et al. 2023, ASPLOS,
/// doi 10.1145/3567955.3567959, section 3.
#[derive(Debug, Clone, Copy)]
pub(super) struct OneD;

impl TensorScheme for OneD {
    fn name(&self) -> &'static str {
        "1d"
    }

    fn summary(&self) -> &'static str {
        "weights by column, then by row; one sum over all ranks for each pair (Megatron), or along the sequence"
    }

    fn source(&self) -> &'static str {
        "Shoeybi et al. 2019, arXiv 1909.08053; sequence parallel: Korthikanti et al. 2022, arXiv 2205.05198"
    }

    fn check(&self, mesh: &Mesh) -> Result<(), String> {
        match mesh.tensor_rows {
            1 => Ok(()),
            rows => Err(format!("tensor scheme `1d` has no grid: mesh.tensor_rows must be 1, not {rows}")),
        }
    }

    fn parts(&self, grid: &TensorGrid) -> Parts {
        let sequence = if grid.between == Between::Sequence { grid.ranks } else { 1 };
        Parts { batch: 1, sequence, hidden: 1, width: grid.ranks }
    }

    fn linear(&self, grid: &TensorGrid, layer: &Linear) -> LinearSteps {
        match layer.role {
            Role::Column(input) => column(grid, layer, input),
            Role::Head => column(grid, layer, Input::Region),
            Role::Row(output) => row(grid, layer, output),
        }
    }

    fn look_up(&self, grid: &TensorGrid, tokens: usize, [_, width]: [usize; 2]) -> LookUp {
        let [after, before] = leave(grid, tokens * width);
        LookUp { tokens, width, forward: [Vec::new(), after], backward: [before, Vec::new()] }
    }

    fn hidden_axis(&self) -> Option<Axis> {
        None
    }

    fn vocabulary_axis(&self) -> Axis {
        Axis::Tensor
    }

    fn elements_on_rank(&self, grid: &TensorGrid, weight: &Weight) -> u64 {
        weight.elements_on_rank(grid.ranks)
    }

    /// With 1/t of the sequence, norms and other whole weights saw only a part of the tokens.
    fn summed_over(&self, grid: &TensorGrid, weight: &Weight) -> &'static [Axis] {
        match (grid.between, weight.split) {
            (Between::Sequence, Split::Replicated) => &[Axis::Tensor],
            _ => &[],
        }
    }

    /// Column: 0 and 2 r M K; along the sequence r M K and 2 r M K. Row: 2 r M N and 0; along the sequence r M N and
    /// r M N. r = (t − 1)/t.
    fn volume(&self, grid: &TensorGrid, layer: &Linear) -> Volume {
        let r = (grid.ranks as f64 - 1.0) / grid.ranks as f64;
        let [mk, mn] = [layer.inner, layer.outer].map(|width| r * (layer.tokens * width) as f64);
        let [forward, backward] = match (layer.role, grid.between) {
            (Role::Column(Input::Shared) | Role::Row(Output::Added), _) => [0.0, 0.0],
            (Role::Column(Input::Region) | Role::Head, Between::Whole) => [0.0, 2.0 * mk],
            (Role::Column(Input::Region) | Role::Head, Between::Sequence) => [mk, 2.0 * mk],
            (Role::Row(Output::Leaves), Between::Whole) => [2.0 * mn, 0.0],
            (Role::Row(Output::Leaves), Between::Sequence) => [mn, mn],
        };
        Volume { forward, backward }
    }
}

fn column(grid: &TensorGrid, layer: &Linear, input: Input) -> LinearSteps {
    let Linear { tokens, inner, outer, .. } = *layer;
    let (columns, full) = (outer / grid.ranks, tokens * inner);
    let enters = input == Input::Region && grid.ranks > 1;
    let gathers = enters && grid.between == Between::Sequence;
    let held = if gathers { full } else { 0 };
    let (mut forward, mut input_gradient) = (Vec::new(), Vec::new());
    if gathers {
        forward.extend(gathered_product(grid, "gather sequence", [tokens, columns, inner], held));
        input_gradient.push(overlapping("gather sequence", AllGather, Axis::Tensor, full));
    } else {
        forward.push(LayerStep::Product { size: [tokens, columns, inner], held });
    }
    input_gradient.push(LayerStep::Product { size: [tokens, inner, columns], held });
    if enters {
        let kind = if gathers { ReduceScatter } else { AllReduce };
        input_gradient.push(overlapping("reduce gradient", kind, Axis::Tensor, full));
    }
    LinearSteps {
        forward,
        input_gradient,
        weight_gradient: vec![LayerStep::Product { size: [inner, columns, tokens], held }],
        weight: inner * columns,
        kept: match (input, gathers) {
            (Input::Shared, _) => 0,
            (Input::Region, true) => tokens.div_ceil(grid.ranks) * inner,
            (Input::Region, false) => full,
        },
    }
}

fn row(grid: &TensorGrid, layer: &Linear, output: Output) -> LinearSteps {
    let Linear { tokens, inner, outer, .. } = *layer;
    let (rows, full) = (inner / grid.ranks, tokens * outer);
    let product = |size| LayerStep::Product { size, held: 0 };
    let (out, back) = ([tokens, outer, rows], [tokens, rows, outer]);
    let (forward, input_gradient) = match output {
        Output::Leaves if in_chunks(grid) => {
            (scattered_product(grid, out), gathered_product(grid, "gather gradient", back, 0))
        }
        Output::Leaves => {
            let [after, before] = leave(grid, full);
            ([vec![product(out)], after].concat(), [before, vec![product(back)]].concat())
        }
        Output::Added => (vec![product(out)], vec![product(back)]),
    };
    LinearSteps {
        forward,
        input_gradient,
        weight_gradient: vec![product([rows, outer, tokens])],
        weight: rows * outer,
        kept: tokens * rows,
    }
}

/// The steps at the end of a tensor-parallel region, after the products in forward and before them in backward: the sum
/// of the ranks' outputs, whole or scattered along the sequence.
fn leave(grid: &TensorGrid, full: usize) -> [Vec<LayerStep>; 2] {
    let step = |name, kind| collective(name, kind, Axis::Tensor, full);
    match (grid.ranks, grid.between) {
        (1, _) => [Vec::new(), Vec::new()],
        (_, Between::Whole) => [vec![step("reduce output", AllReduce)], Vec::new()],
        (_, Between::Sequence) => {
            [vec![step("reduce output", ReduceScatter)], vec![step("gather gradient", AllGather)]]
        }
    }
}

fn in_chunks(grid: &TensorGrid) -> bool {
    grid.ranks > 1 && grid.between == Between::Sequence && grid.overlap == Overlap::Overlapped
}

/// The product of a gathered tensor, m × k in all, of which `held` elements live as long as the product.
fn gathered_product(
    grid: &TensorGrid,
    name: &'static str,
    [m, n, k]: [usize; 3],
    held: usize,
) -> Vec<LayerStep> {
    if !in_chunks(grid) {
        let gather = collective(name, AllGather, Axis::Tensor, m * k);
        return vec![gather, LayerStep::Product { size: [m, n, k], held }];
    }
    let chunk = m.div_ceil(grid.ranks);
    let product = LayerStep::Product { size: [chunk, n, k], held };
    let message = overlapping(name, SendReceive, Axis::Tensor, chunk * k);
    [vec![[message, product]; grid.ranks - 1].concat(), vec![product]].concat()
}

/// The product whose outputs are summed and scattered in chunks.
fn scattered_product(grid: &TensorGrid, [m, n, k]: [usize; 3]) -> Vec<LayerStep> {
    let chunk = m.div_ceil(grid.ranks);
    let product = LayerStep::Product { size: [chunk, n, k], held: (grid.ranks - 1) * chunk * n };
    let message = overlapping("reduce output", SendReceive, Axis::Tensor, chunk * n);
    let sum = LayerStep::Sum { parts: grid.ranks, elements: chunk * n };
    [vec![[product, message]; grid.ranks - 1].concat(), vec![product, sum]].concat()
}
