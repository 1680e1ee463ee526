//! Choices of experts, which the host waits for, and rows on their way. A rank may have no row at all.

use super::super::{Device, ExpertOps, Numbers, Slice, SliceMut, Visits};
use super::Cuda;
use super::structs::int;
use trainwright_kernels::cuda::Address;
use trainwright_kernels::cuda::experts::{Permutation, Routing};

impl Cuda {
    /// Whole numbers that a kernel left.
    fn read_words(&self, at: Address, count: usize) -> Vec<u32> {
        let mut bytes = vec![0; 4 * count];
        self.run(|memory| memory.device.read(at, &mut bytes));
        bytes.as_chunks().0.iter().map(|four| u32::from_le_bytes(*four)).collect()
    }

    /// Weights of choices, if there are such.
    fn weights(&self, weights: Option<&[f32]>) -> Option<(Numbers, Address)> {
        let weights = weights?;
        let (mut numbers, at) = self.scratch(weights.len());
        self.write(numbers.slice_mut(), weights);
        Some((numbers, at))
    }
}

impl ExpertOps for Cuda {
    fn choose(&self, scores: Slice, count: usize, per_token: usize) -> (Vec<u32>, Vec<f32>) {
        let scores = scores.device();
        let tokens = scores.length / count;
        let (_experts, experts) = self.scratch(tokens * per_token);
        let (gates, weights) = self.scratch(tokens * per_token);
        let own = Routing {
            logits: scores.at,
            experts,
            weights,
            probabilities: Address::NULL,
            tokens: int(tokens),
            count: int(count),
            chosen: int(per_token),
            among_chosen: 1,
        };
        self.launch(&own.launch());
        (self.read_words(experts, tokens * per_token), self.read(gates.slice()).into_owned())
    }

    fn gather_rows(&self, x: Slice, visits: &Visits, weights: Option<&[f32]>, out: SliceMut) {
        if visits.choices.is_empty() {
            return;
        }
        let (x, out) = (x.device(), out.device());
        let (_choices, order) = self.words(&visits.choices);
        let weights = self.weights(weights);
        let own = Permutation {
            x: x.at,
            order,
            weights: weights.as_ref().map_or(Address::NULL, |(_, at)| *at),
            out: out.at,
            rows: int(visits.choices.len()),
            chosen: int(visits.slots),
            width: int(x.length / visits.rows),
            ..Permutation::default()
        };
        self.launch(&own.gather(x.number));
    }

    fn combine_rows(&self, x: Slice, visits: &Visits, weights: Option<&[f32]>, out: SliceMut) {
        if visits.rows == 0 {
            return;
        }
        let (x, out) = (x.device(), out.device());
        let (_places, places) = self.words(&visits.places);
        let weights = self.weights(weights);
        let own = Permutation {
            x: x.at,
            places,
            weights: weights.as_ref().map_or(Address::NULL, |(_, at)| *at),
            out: out.at,
            rows: int(visits.rows),
            chosen: int(visits.slots),
            width: int(out.length / visits.rows),
            ..Permutation::default()
        };
        self.launch(&own.combine(out.number));
    }

    fn products_with_places(&self, rows: Slice, at_places: Slice, visits: &Visits) -> Vec<f32> {
        if visits.rows == 0 {
            return Vec::new();
        }
        let rows = rows.device();
        let (_places, places) = self.words(&visits.places);
        let (products, weight_gradients) = self.scratch(visits.places.len());
        let own = Permutation {
            x: rows.at,
            places,
            other: at_places.device().at,
            weight_gradients,
            rows: int(visits.rows),
            chosen: int(visits.slots),
            width: int(rows.length / visits.rows),
            ..Permutation::default()
        };
        self.launch(&own.weight_gradients(rows.number));
        self.read(products.slice()).into_owned()
    }
}
