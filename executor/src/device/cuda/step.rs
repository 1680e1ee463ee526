//! The step's inputs and results of launches, in one block of memory at a fixed address:
//!
//! ```text
//! losses (f64 each) | factor of the gradients, their norm | rate and corrections of the optimizer
//! └─────────── read once behind a step ──────────────────┘└──────── written once before it ──────┘
//! ```

use super::super::{
    HostWords, Numbers, Rule, Slice, SliceMut, SortedOnDevice, StepBegin, StepNumbers, StepOps, SummedLoss,
    Words,
};
use super::structs::int;
use super::{Cuda, Number};
use trainwright_kernels::cross_entropy::LossTerms;
use trainwright_kernels::cuda::cross_entropy::{JoinMaxima, LossSum};
use trainwright_kernels::cuda::optimizer::StepScalars;
use trainwright_kernels::cuda::reduce::{ClipFactor, PartSums, SquareSums};
use trainwright_kernels::cuda::{Address, DeviceError, Graph, Recorded, Recording};
use trainwright_kernels::optimizer::{AdamW, Lamb};

/// Where that block is.
#[derive(Debug, Clone, Copy)]
pub(super) struct StepMemory {
    at: Address,
    losses: usize,
}

impl StepMemory {
    /// What gradients are multiplied by, and their norm.
    pub fn factor(self) -> Address {
        self.at.after(8 * self.losses)
    }

    /// A `StepScalars`.
    pub fn now(self) -> Address {
        self.factor().after(8)
    }
}

/// The recording of the last step, and the graph that replays it.
#[derive(Default)]
pub(super) struct CapturedStep {
    graph: Option<Graph>,
    recorded: Vec<Recorded>,
}

/// β₁ and β₂, of optimizers that have them.
fn betas(rule: &Rule) -> [f32; 2] {
    match *rule {
        Rule::AdamW(AdamW { beta1, beta2, .. })
        | Rule::Adam(AdamW { beta1, beta2, .. })
        | Rule::Lamb(Lamb { beta1, beta2, .. }) => [beta1, beta2],
        Rule::Lars(_) | Rule::Momentum(_) | Rule::Sgd => [0.0; 2],
    }
}

impl Cuda {
    /// That of the step that has begun.
    pub(super) fn step_memory(&self) -> StepMemory {
        self.step.get().expect("a step begins before its ops")
    }
}

impl Cuda {
    /// Σ x² of each piece of some tensors and of others, times its tensor's scale, by one launch: f64, those of the first ones
    /// before those of the others. The memory that holds them, where they are in it, and how many each has.
    pub(super) fn square_parts(&self, all: [&[(Slice, f32)]; 2]) -> (Numbers, Address, [usize; 2]) {
        let squared = |(gradient, scale): &(Slice, f32)| {
            let on_device = gradient.device();
            assert_eq!(on_device.number, Number::F32, "gradients of weights are f32");
            (on_device.at, on_device.length, *scale)
        };
        let listed = all.map(|all| all.iter().map(squared).collect());
        let (pieces, counts) = self.tables.borrow_mut().squared(self, listed);
        let count = counts[0] + counts[1];
        let (parts, partial) = self.scratch(2 * count);
        if count > 0 {
            self.launch(&SquareSums { chunks: pieces, partial }.launch(count));
        }
        (parts, partial, counts)
    }
}

impl StepOps for Cuda {
    fn keeps(&self) -> bool {
        true
    }

    fn sums_by_entry(&self) -> bool {
        true
    }

    fn upload(&self, all: Vec<HostWords>) -> Vec<Words> {
        // Each part begins where 16 bytes do.
        let mut together: Vec<u32> = Vec::new();
        let mut put = |words: &[u32]| {
            let first = together.len();
            together.extend(words);
            together.resize(together.len().next_multiple_of(4), 0);
            first
        };
        let places: Vec<(usize, Option<[usize; 2]>)> = all
            .iter()
            .map(|HostWords { numbers, sorted }| {
                let first = put(numbers);
                (first, sorted.as_ref().map(|sorted| [put(&sorted.order), put(&sorted.starts)]))
            })
            .collect();
        let count = together.len();
        let known = self.tokens.get().filter(|(_, known)| *known >= count).map(|(at, _)| at);
        let at = known.unwrap_or_else(|| self.allocate(count, Number::F32).at);
        if known.is_none() {
            self.tokens.set(Some((at, count)));
        }
        if count > 0 {
            self.run(|memory| memory.device.write(at, bytemuck::cast_slice(&together)));
        }
        let there = |first: usize| at.after(4 * first);
        let brought =
            all.into_iter().zip(places).map(|(HostWords { numbers, sorted }, (first, of_sorted))| {
                let sorted = sorted.zip(of_sorted).map(|(sorted, [order, starts])| SortedOnDevice {
                    order: there(order),
                    starts: there(starts),
                    rows: sorted.starts.len() - 1,
                });
                Words::there(numbers, there(first), sorted)
            });
        brought.collect()
    }

    fn begin_step(&self, begin: StepBegin) {
        let StepBegin { rule, rate, step, losses } = begin;
        let memory = self.step.get().unwrap_or_else(|| {
            let words = (8 * losses + 8 + size_of::<StepScalars>()) / 4;
            StepMemory { at: self.allocate(words, Number::F32).at, losses }
        });
        self.step.set(Some(memory));
        let [factor, norm] = [1f32, 0.0].map(f32::to_le_bytes);
        let now = StepScalars::of(rate, betas(&rule), step as u32).bytes();
        let bytes: Vec<u8> = factor.into_iter().chain(norm).chain(now).collect();
        self.run(|streams| streams.device.write(memory.factor(), &bytes));
    }

    fn join_maxima(&self, three: SliceMut, maxima: Slice) {
        let (three, maxima) = (three.device(), maxima.device());
        let tokens = three.length / 3;
        let kernel = JoinMaxima {
            maxima: maxima.at,
            maximum: three.at,
            sum: three.at.after(4 * tokens),
            ranks: int(maxima.length / tokens),
            tokens: int(tokens),
        };
        self.launch(&kernel.launch());
    }

    fn sum_losses(&self, number: usize, three: Slice, _: &Words, _: &LossTerms) -> Option<SummedLoss> {
        let three = three.device();
        let tokens = three.length / 3;
        let [maximum, sum, target] = [0, 1, 2].map(|place| three.at.after(4 * place * tokens));
        let out = self.step_memory().at.after(8 * number);
        self.launch(&LossSum { maximum, sum, target, out, tokens: int(tokens) }.launch());
        None
    }

    fn square_sums(&self, all: [&[(Slice, f32)]; 2]) -> Numbers {
        let (_parts, partial, counts) = self.square_parts(all);
        let (sums, at) = self.scratch(2);
        let [first, all] = [counts[0], counts[0] + counts[1]].map(int);
        self.launch(&PartSums { partial, sums: at, starts: [0, first, all] }.launch());
        sums
    }

    fn clip(&self, sums: Slice, bound: f32) {
        let (squares, factor) = (sums.device(), self.step_memory().factor());
        self.launch(&ClipFactor { squares: squares.at, factor, count: int(squares.length), bound }.launch());
    }

    fn scale_gradients(&self, scale: f32) {
        let factor = self.step_memory().factor();
        self.run(|memory| memory.device.write(factor, &scale.to_le_bytes()));
    }

    fn end_step(&self) -> StepNumbers {
        let StepMemory { at, losses } = self.step_memory();
        let mut bytes = vec![0; 8 * losses + 8];
        self.run(|memory| memory.device.read(at, &mut bytes));
        let (of_losses, of_norm) = bytes.split_at(8 * losses);
        let norm = of_norm[4..].try_into().expect("four bytes");
        StepNumbers {
            losses: of_losses.as_chunks().0.iter().map(|bytes| f64::from_le_bytes(*bytes)).collect(),
            norm: f64::from(f32::from_le_bytes(norm)),
        }
    }

    fn record(&self) {
        self.memory.borrow().record();
    }

    fn repeats(&self) -> Result<bool, String> {
        let Recording { calls, obstacle, .. } = self.memory.borrow().recorded();
        let before = std::mem::replace(&mut self.captured.borrow_mut().recorded, calls);
        match obstacle {
            Some(obstacle) => Err(obstacle.into()),
            None => Ok(before == self.captured.borrow().recorded),
        }
    }

    fn make_ready(&self) -> Result<(), DeviceError> {
        let CapturedStep { graph, recorded } = &mut *self.captured.borrow_mut();
        // The recording stays: another rank may not be ready yet, and then the next step is compared with it.
        *graph = Some(self.memory.borrow_mut().device.capture(recorded)?);
        Ok(())
    }

    fn replay(&self) {
        let captured = self.captured.borrow();
        let graph = captured.graph.as_ref().expect("a graph is made ready first");
        self.run(|memory| memory.device.replay(graph));
    }
}

#[cfg(test)]
mod tests {
    use crate::device::{CurrentDevice, DeviceKind, Opening};
    use std::rc::Rc;
    use trainwright_kernels::cuda::Number;

    #[test]
    fn a_rank_that_was_ready_before_others_is_ready_again() {
        let kind = DeviceKind::from_name("emulated").unwrap();
        if let Err(error) = (kind.require)() {
            println!("skipped: {error}");
            return;
        }
        let device = (kind.open)(Opening::plain(0)).unwrap();
        let _here = CurrentDevice::set(Rc::clone(&device));
        let [from, mut to] = [1.0, 2.0].map(|value| device.take(vec![value; 8], Number::F32));
        let mut step = |copies: usize| {
            device.record();
            (0..copies).for_each(|_| device.copy(to.slice_mut(), from.slice()));
            device.repeats().unwrap()
        };
        assert_eq!([step(1), step(2), step(2)], [false, false, true]);
        device.make_ready().unwrap();
        // The others were not: the next step is enqueued op by op, too.
        assert_eq!([step(2), step(1)], [true, false]);
    }
}
