//! Choices of experts, which the host waits for, rows on their way, and products of experts. A rank may have no row at all.
//!
//! Products of all experts are one launch where numbers are bf16 and no expert keeps a GPU busy by itself. Larger ones are faster
//! as cublasLt's, one by one, which has instructions that the launch has not; so are those in f32.

use super::super::{Device, ExpertOps, ExpertPass, ExpertProducts, Numbers, Slice, SliceMut, Visits};
use super::structs::int;
use super::{Cuda, Multiprocessors};
use trainwright_kernels::cuda::Address;
use trainwright_kernels::cuda::experts::{Permutation, Routing};
use trainwright_kernels::cuda::grouped::{GroupedProduct, TILE};

/// Whether one expert's product is enough for a GPU, if all have as many rows: it has a tile, a block each, for every
/// multiprocessor.
fn fills_a_gpu(products: &ExpertProducts, gpu: Multiprocessors) -> bool {
    let ExpertProducts { pass, starts, inputs, outputs, .. } = *products;
    let rows = starts[starts.len() - 1] / (starts.len() - 1);
    let [rows, columns] = match pass {
        ExpertPass::Forward => [rows, outputs],
        ExpertPass::Backward => [rows, inputs],
        ExpertPass::Weights => [outputs, inputs],
    };
    let tiles = |lines: usize| lines.div_ceil(TILE as usize);
    tiles(rows) * tiles(columns) >= gpu.0 as usize
}

impl Cuda {
    /// Whole numbers that a kernel left.
    fn read_words(&self, at: Address, count: usize) -> Vec<u32> {
        let mut bytes = vec![0; 4 * count];
        self.run(|memory| memory.device.read(at, &mut bytes));
        bytes.as_chunks().0.iter().map(|four| u32::from_le_bytes(*four)).collect()
    }

    /// The weights of choices on the device; `None` without weights.
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
        let kernel = Routing {
            logits: scores.at,
            experts,
            weights,
            probabilities: Address::NULL,
            tokens: int(tokens),
            count: int(count),
            chosen: int(per_token),
            among_chosen: 1,
        };
        self.launch(&kernel.launch());
        (self.read_words(experts, tokens * per_token), self.read(gates.slice()).into_owned())
    }

    fn gather_rows(&self, x: Slice, visits: &Visits, weights: Option<&[f32]>, out: SliceMut) {
        if visits.choices.is_empty() {
            return;
        }
        let (x, out) = (x.device(), out.device());
        let (_choices, order) = self.words(&visits.choices);
        let weights = self.weights(weights);
        let kernel = Permutation {
            x: x.at,
            order,
            weights: weights.as_ref().map_or(Address::NULL, |(_, at)| *at),
            out: out.at,
            rows: int(visits.choices.len()),
            chosen: int(visits.slots),
            width: int(x.length / visits.rows),
            ..Permutation::default()
        };
        self.launch(&kernel.gather(x.number));
    }

    fn combine_rows(&self, x: Slice, visits: &Visits, weights: Option<&[f32]>, out: SliceMut) {
        if visits.rows == 0 {
            return;
        }
        let (x, out) = (x.device(), out.device());
        let (_places, places) = self.words(&visits.places);
        let weights = self.weights(weights);
        let kernel = Permutation {
            x: x.at,
            places,
            weights: weights.as_ref().map_or(Address::NULL, |(_, at)| *at),
            out: out.at,
            rows: int(visits.rows),
            chosen: int(visits.slots),
            width: int(out.length / visits.rows),
            ..Permutation::default()
        };
        self.launch(&kernel.combine(out.number));
    }

    fn multiply_experts(&self, mut out: SliceMut, products: ExpertProducts) {
        let ExpertProducts { pass, left, right, starts, inputs, outputs } = products;
        let rows = starts[starts.len() - 1];
        if rows == 0 {
            return;
        }
        let (left, right, out_at) = (left.device(), right.device(), out.again().device().at);
        let kernel = GroupedProduct {
            left: left.at,
            right: right.at,
            out: out_at,
            gradients: out_at,
            starts: Address::NULL,
            experts: int(starts.len() - 1),
            inputs: int(inputs),
            outputs: int(outputs),
        };
        if !kernel.fits(left.number) || fills_a_gpu(&products, self.gpu) {
            return products.one_by_one(self, out);
        }
        let starts: Vec<u32> = starts.iter().map(|row| *row as u32).collect();
        let (_starts, starts) = self.words(&starts);
        let kernel = GroupedProduct { starts, ..kernel };
        let mut ladder = match pass {
            ExpertPass::Forward => kernel.forward(int(rows), left.number),
            ExpertPass::Backward => kernel.backward(int(rows), left.number),
            ExpertPass::Weights => kernel.weights(left.number),
        };
        self.launch(&ladder.pop().expect("the simple version does all"));
    }

    fn products_with_places(&self, rows: Slice, at_places: Slice, visits: &Visits) -> Vec<f32> {
        if visits.rows == 0 {
            return Vec::new();
        }
        let rows = rows.device();
        let (_places, places) = self.words(&visits.places);
        let (products, weight_gradients) = self.scratch(visits.places.len());
        let kernel = Permutation {
            x: rows.at,
            places,
            other: at_places.device().at,
            weight_gradients,
            rows: int(visits.rows),
            chosen: int(visits.slots),
            width: int(rows.length / visits.rows),
            ..Permutation::default()
        };
        self.launch(&kernel.weight_gradients(rows.number));
        self.read(products.slice()).into_owned()
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::device::{CurrentDevice, DeviceKind, Opening};
    use std::rc::Rc;
    use trainwright_kernels::cuda::Number;

    #[test]
    fn one_launch_does_what_products_one_by_one_do() {
        let kind = DeviceKind::from_name("emulated").unwrap();
        if let Err(error) = (kind.require)() {
            println!("skipped: {error}");
            return;
        }
        let opening = Opening { number: Number::Bf16, ..Opening::plain(0) };
        let device = (kind.open)(opening).unwrap();
        let _here = CurrentDevice::set(Rc::clone(&device));
        // None, one, more than a tile of rows.
        let (starts, inputs, outputs) = ([0, 0, 1, 150, 160], 24, 40);
        let numbers = |count: usize, number| {
            let of = |at: usize| ((at * 7919 + 13) % 257) as f32 / 128.0 - 1.0;
            device.take((0..count).map(of).collect(), number)
        };
        let bf16 = |count| numbers(count, Number::Bf16);
        let (x, y, weights) = (bf16(160 * inputs), bf16(160 * outputs), bf16(4 * outputs * inputs));
        for (pass, left, right, count, number) in [
            (ExpertPass::Forward, &x, &weights, 160 * outputs, Number::Bf16),
            (ExpertPass::Backward, &y, &weights, 160 * inputs, Number::Bf16),
            (ExpertPass::Weights, &y, &x, 4 * outputs * inputs, Number::F32),
        ] {
            let (left, right) = (left.slice(), right.slice());
            let products = ExpertProducts { pass, left, right, starts: &starts, inputs, outputs };
            let [mut together, mut single] = [(); 2].map(|()| numbers(count, number));
            device.multiply_experts(together.slice_mut(), products);
            products.one_by_one(&*device, single.slice_mut());
            let [together, single] =
                [together, single].map(|numbers| device.read(numbers.slice()).into_owned());
            // They add in other orders, and round the last bit of a bf16.
            let near = |(one, other): (&f32, &f32)| (one - other).abs() <= 1e-2 * other.abs().max(0.1);
            assert!(together.iter().zip(&single).all(near), "{pass:?}");
            device.check().unwrap();
        }
    }

    #[test]
    fn large_experts_are_multiplied_one_by_one() {
        let of = |pass, rows| {
            let (left, right) = (Slice::Host(&[]), Slice::Host(&[]));
            let starts = [0, rows / 2, rows];
            let products = ExpertProducts { pass, left, right, starts: &starts, inputs: 1024, outputs: 4096 };
            fills_a_gpu(&products, Multiprocessors(132))
        };
        // 4 tiles of rows by 32 of columns are 128 blocks, 5 are 160; the matrix alone has 8 x 32.
        assert_eq!([1024, 1280].map(|rows| of(ExpertPass::Forward, rows)), [false, true]);
        assert!(!of(ExpertPass::Backward, 1280) && of(ExpertPass::Weights, 2));
    }
}
