//! The matrices that an optimizer updates as such: those of a layer, and what one rank computes with them in an update.
//!
//! Divided state is laid out matrix after matrix and cut into equal parts. A rank computes with every matrix that its part touches,
//! with all of it where the optimizer needs whole matrices (arXiv 2502.16982, section 2.3):
//!
//! ```text
//! matrices  │   q   │  kv │   o   │     fc1     │     fc2     │
//! parts     ├────── 0 ──────┼────── 1 ──────┼────── 2 ──────┤     rank 1: o, fc1
//! ```

use crate::shape::Shape;
use std::collections::BTreeMap;
use trainwright_spec::model::weights::Weight;
use trainwright_spec::optimizer::MatrixRule;
use trainwright_spec::plan::Plan;
use trainwright_spec::program::{Axis, Kernel};

/// Matrices of one weight.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) struct Matrices {
    /// Rows and columns of each, on all ranks together; zeros where they are not known.
    pub shape: [u64; 2],
    /// How many of which the rank holds some.
    pub count: u64,
    /// Elements of all of them on the rank.
    pub elements: u64,
    /// Whether they belong to routed experts.
    pub routed: bool,
}

/// Calls of one kernel.
#[derive(Debug, Clone, Copy, PartialEq)]
pub struct MatrixCall {
    /// How many.
    pub calls: u64,
    /// The products of one.
    pub kernel: Kernel,
}

/// What a rank computes with matrices of one weight.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
struct Share {
    /// How many its part touches.
    count: u64,
    /// Elements in its part.
    elements: u64,
}

impl Matrices {
    /// Those of a weight that takes part in products.
    pub fn of(shape: &Shape, weight: &Weight) -> Option<Self> {
        let [rows, columns] = weight.multiplied()?;
        let (expert, expert_tensor) = (shape.mesh.expert, shape.mesh.expert_tensor());
        let (copies, elements) = match weight.routed {
            true => {
                (weight.copies.div_ceil(expert.max(1) as u64), weight.routed_on_rank(expert, expert_tensor))
            }
            false => (weight.copies, shape.scheme.elements_on_rank(&shape.grid, weight)),
        };
        let in_a_copy = weight.elements / (rows * columns).max(1);
        Some(Self { shape: [rows, columns], count: copies * in_a_copy, elements, routed: weight.routed })
    }

    /// Dense and routed matrices of which the number of elements is all that is known.
    pub fn without_sizes([dense, routed]: [u64; 2]) -> Vec<Self> {
        let all = [(dense, false), (routed, true)].into_iter().filter(|(elements, _)| *elements > 0);
        all.map(|(elements, routed)| Self { shape: [0; 2], count: 0, elements, routed }).collect()
    }

    fn whole(&self) -> u64 {
        self.shape[0] * self.shape[1]
    }

    fn share(&self, count: u64, elements: u64) -> Share {
        Share { count, elements: elements.min(count * (self.elements / self.count.max(1))) }
    }
}

/// Elements of dense and of routed matrices.
pub(crate) fn elements_of_matrices(matrices: &[Matrices]) -> [u64; 2] {
    let of = |routed| matrices.iter().filter(|of| of.routed == routed).map(|of| of.elements).sum();
    [of(false), of(true)]
}

/// What the rank with the most to do computes with matrices in an update.
#[derive(Default)]
pub(crate) struct MatrixWork {
    /// Elements of whole matrices that it pieces together over an axis of tensor ranks.
    pub gathered: BTreeMap<Axis, u64>,
    /// The products, one after the other.
    pub products: Vec<Kernel>,
}

impl MatrixWork {
    /// That of a rank with these matrices; `divisor` is the number of ranks of an axis that divide the optimizer's state.
    pub fn of(
        plan: &Plan,
        rule: &dyn MatrixRule,
        matrices: &[Matrices],
        divisor: impl Fn(Axis) -> usize,
    ) -> Self {
        let apart = plan.mesh.experts_apart();
        let mut work = Self::default();
        for axis in [Axis::Data, Axis::ExpertData] {
            let on_axis = |of: &&Matrices| (axis == Axis::ExpertData) == (of.routed && apart);
            let here: Vec<&Matrices> =
                matrices.iter().filter(on_axis).filter(|of| of.count > 0 && of.elements > 0).collect();
            if here.is_empty() {
                continue;
            }
            let ranks = if plan.shards_optimizer() { divisor(axis) as u64 } else { 1 };
            let tensor = if axis == Axis::Data { Axis::Tensor } else { Axis::ExpertTensor };
            work.add(rule, &here, ranks, tensor);
        }
        work
    }

    /// Adds the part of the fullest of `ranks` ranks.
    fn add(&mut self, rule: &dyn MatrixRule, matrices: &[&Matrices], ranks: u64, tensor: Axis) {
        let all: u64 = matrices.iter().map(|of| of.elements).sum();
        let part = all.div_ceil(ranks);
        let flops = |shares: &Vec<(&Matrices, Share)>| -> f64 {
            shares.iter().map(|(of, share)| flops_of(rule, of, *share)).sum()
        };
        let shares = (0..ranks).map(|rank| touched(matrices, rank * part, (rank + 1) * part));
        let fullest = shares
            .map(|shares| (flops(&shares), shares))
            .reduce(|most, next| if next.0 > most.0 { next } else { most });
        for (of, share) in fullest.into_iter().flat_map(|(_, shares)| shares) {
            if rule.needs_whole() && of.elements < of.count * of.whole() {
                *self.gathered.entry(tensor).or_default() += share.count * of.whole();
            }
            let calls = calls(rule, of, share);
            let repeated = calls.first().map_or(0, |call| call.calls);
            let once = calls.iter().map(|call| call.kernel);
            self.products.extend(std::iter::repeat_n(once, repeated as usize).flatten());
        }
    }
}

/// The matrices that the elements from `low` to before `high` touch.
fn touched<'a>(matrices: &[&'a Matrices], low: u64, high: u64) -> Vec<(&'a Matrices, Share)> {
    let mut begin = 0;
    let mut shares = Vec::new();
    for of in matrices {
        let (from, to) = (low.max(begin) - begin, high.min(begin + of.elements).saturating_sub(begin));
        if from < to {
            let each = (of.elements / of.count).max(1);
            let count = to.div_ceil(each) - from / each;
            shares.push((*of, of.share(count.min(of.count), to - from)));
        }
        begin += of.elements;
    }
    shares
}

fn flops_of(rule: &dyn MatrixRule, of: &Matrices, share: Share) -> f64 {
    match rule.needs_whole() {
        true => rule.products(of.shape, of.whole()).flops() * share.count as f64,
        false => rule.products(of.shape, share.elements).flops(),
    }
}

/// The products of a rank with its share of matrices. Those of experts are one tensor, so that one call multiplies all of them, and
/// so are blocks of a matrix.
fn calls(rule: &dyn MatrixRule, of: &Matrices, share: Share) -> Vec<MatrixCall> {
    let whole = rule.needs_whole();
    let products = rule.products(of.shape, if whole { of.whole() } else { share.elements });
    let precision = products.precision;
    let call = |(steps, [m, n, k]): &(u64, [u64; 3])| {
        let (calls, count) = match (whole, of.routed) {
            (false, _) => (1, *steps),
            (true, true) => (*steps, share.count),
            (true, false) => (steps * share.count, 1),
        };
        let [count, m, n, k] = [count, *m, *n, *k].map(|size| size as usize);
        MatrixCall { calls, kernel: Kernel::Gemm { count, m, n, k, precision, adds_to: None } }
    };
    products.products.iter().map(call).collect()
}

/// The products with all matrices of a layer, once, of dense weights and of routed experts.
pub(crate) fn products_of_layer(rule: &dyn MatrixRule, matrices: &[Matrices]) -> [Vec<MatrixCall>; 2] {
    let all = |of: &Matrices| calls(rule, of, Share { count: of.count, elements: of.elements });
    [false, true].map(|routed| matrices.iter().filter(|of| of.routed == routed).flat_map(all).collect())
}

#[cfg(test)]
mod tests {
    use super::*;

    /// The slow twin: looks at each element of a part and finds its matrix.
    fn touched_by_elements(matrices: &[&Matrices], low: u64, high: u64) -> Vec<(u64, u64)> {
        let owners: Vec<(usize, u64)> = matrices
            .iter()
            .enumerate()
            .flat_map(|(run, of)| {
                (0..of.elements).map(move |element| (run, element / (of.elements / of.count)))
            })
            .collect();
        let part = owners.get(low as usize..(high as usize).min(owners.len())).unwrap_or_default();
        let of_run = |run: usize| part.iter().filter(move |(owner, _)| *owner == run);
        let share = |run: usize| {
            let distinct: std::collections::BTreeSet<u64> = of_run(run).map(|(_, matrix)| *matrix).collect();
            (distinct.len() as u64, of_run(run).count() as u64)
        };
        (0..matrices.len()).map(share).filter(|(count, _)| *count > 0).collect()
    }

    #[test]
    fn a_part_touches_the_matrices_of_its_elements() {
        let of = |count: u64, each: u64| Matrices {
            shape: [1, each],
            count,
            elements: count * each,
            routed: false,
        };
        for runs in [vec![(1, 7)], vec![(3, 4), (1, 1), (5, 2)], vec![(2, 6), (4, 3), (1, 9), (7, 1)]] {
            let matrices: Vec<Matrices> = runs.iter().map(|(count, each)| of(*count, *each)).collect();
            let matrices: Vec<&Matrices> = matrices.iter().collect();
            let all: u64 = matrices.iter().map(|of| of.elements).sum();
            for low in 0..all {
                for high in low + 1..=all + 2 {
                    let found: Vec<(u64, u64)> = touched(&matrices, low, high)
                        .iter()
                        .map(|(_, share)| (share.count, share.elements))
                        .collect();
                    assert_eq!(found, touched_by_elements(&matrices, low, high), "{runs:?} {low}..{high}");
                }
            }
        }
    }
}
