//! What launches read of a step and what they leave of it, in one piece of memory that stays where it is:
//!
//! ```text
//! losses (f64 each) | factor of the gradients, their norm | rate and corrections of the optimizer
//! └─────────── read once behind a step ──────────────────┘└──────── written once before it ──────┘
//! ```

use super::super::{Numbers, Rule, Slice, SliceMut, StepBegin, StepNumbers, StepOps, Words};
use super::structs::int;
use super::{Cuda, Number};
use trainwright_kernels::cuda::cross_entropy::{JoinMaxima, LossSum};
use trainwright_kernels::cuda::optimizer::Now;
use trainwright_kernels::cuda::reduce::{ClipFactor, PartSum, SquareSum};
use trainwright_kernels::cuda::{Address, DeviceError, Graph, Recording, Told};
use trainwright_kernels::optimizer::{AdamW, Lamb};

/// Where that piece is.
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

    /// A `Now`.
    pub fn now(self) -> Address {
        self.factor().after(8)
    }
}

/// What a step was told last, or the graph that tells it.
#[derive(Default)]
pub(super) struct Steady {
    graph: Option<Graph>,
    told: Vec<Told>,
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

impl StepOps for Cuda {
    fn keeps(&self) -> bool {
        true
    }

    fn bring(&self, all: Vec<Vec<u32>>) -> Vec<Words> {
        // Each begins where 16 bytes do.
        let room = |words: &Vec<u32>| words.len().next_multiple_of(4);
        let count: usize = all.iter().map(room).sum();
        let known = self.tokens.get().filter(|(_, known)| *known >= count).map(|(at, _)| at);
        let at = known.unwrap_or_else(|| self.far(count, Number::F32).at);
        if known.is_none() {
            self.tokens.set(Some((at, count)));
        }
        let mut together = vec![0u32; count];
        let mut first = 0;
        let brought = all.into_iter().map(|words| {
            together[first..first + words.len()].copy_from_slice(&words);
            let at = at.after(4 * first);
            first += room(&words);
            Words::there(words, at)
        });
        let brought = brought.collect();
        if count > 0 {
            self.run(|memory| memory.device.write(at, bytemuck::cast_slice(&together)));
        }
        brought
    }

    fn begin_step(&self, begin: StepBegin) {
        let StepBegin { rule, rate, step, losses } = begin;
        let memory = self.step.get().unwrap_or_else(|| {
            let words = (8 * losses + 8 + size_of::<Now>()) / 4;
            StepMemory { at: self.far(words, Number::F32).at, losses }
        });
        self.step.set(Some(memory));
        let [factor, norm] = [1f32, 0.0].map(f32::to_le_bytes);
        let now = Now::of(rate, betas(&rule), step as u32).bytes();
        let bytes: Vec<u8> = factor.into_iter().chain(norm).chain(now).collect();
        self.run(|own| own.device.write(memory.factor(), &bytes));
    }

    fn join_maxima(&self, three: SliceMut, maxima: Slice) {
        let (three, maxima) = (three.device(), maxima.device());
        let tokens = three.length / 3;
        let own = JoinMaxima {
            maxima: maxima.at,
            maximum: three.at,
            sum: three.at.after(4 * tokens),
            ranks: int(maxima.length / tokens),
            tokens: int(tokens),
        };
        self.launch(&own.launch());
    }

    fn sum_losses(&self, number: usize, three: Slice) -> Option<f64> {
        let three = three.device();
        let tokens = three.length / 3;
        let [maximum, sum, target] = [0, 1, 2].map(|place| three.at.after(4 * place * tokens));
        let out = self.step_memory().at.after(8 * number);
        self.launch(&LossSum { maximum, sum, target, out, tokens: int(tokens) }.launch());
        None
    }

    fn square_sums(&self, all: [&[(Slice, f32)]; 2]) -> Numbers {
        let own = all.map(|all| {
            let each = all.iter().map(|(own, scale)| {
                let far = own.device();
                let sum =
                    SquareSum { x: far.at, count: far.length as i64, scale: *scale, ..SquareSum::default() };
                (sum, far.number, sum.blocks(far.number))
            });
            each.collect::<Vec<_>>()
        });
        let counts = own.each_ref().map(|own| own.iter().map(|(.., blocks)| blocks).sum::<i32>());
        let (_partial, partial) = self.scratch(2 * (counts[0] + counts[1]) as usize);
        let (sums, at) = self.scratch(2);
        let mut first = 0;
        for (sum, number, blocks) in own.into_iter().flatten() {
            let sum = SquareSum { partial: partial.after(8 * first), ..sum };
            self.launch(&sum.launch(number));
            first += blocks as usize;
        }
        let parts = [partial, partial.after(8 * counts[0] as usize)];
        for (which, (partial, count)) in parts.into_iter().zip(counts).enumerate() {
            self.launch(&PartSum { partial, sum: at.after(4 * which), count }.launch());
        }
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
            losses: of_losses.as_chunks().0.iter().map(|eight| f64::from_le_bytes(*eight)).collect(),
            norm: f64::from(f32::from_le_bytes(norm)),
        }
    }

    fn record(&self) {
        self.memory.borrow().record();
    }

    fn repeats(&self) -> Result<bool, String> {
        let Recording { told, obstacle, .. } = self.memory.borrow().recorded();
        let before = std::mem::replace(&mut self.steady.borrow_mut().told, told);
        match obstacle {
            Some(obstacle) => Err(obstacle.into()),
            None => Ok(before == self.steady.borrow().told),
        }
    }

    fn make_ready(&self) -> Result<(), DeviceError> {
        let Steady { graph, told } = &mut *self.steady.borrow_mut();
        // What was told stays: another rank may not be ready yet, and then the next step is held against it.
        *graph = Some(self.memory.borrow_mut().device.make_ready(told)?);
        Ok(())
    }

    fn replay(&self) {
        let steady = self.steady.borrow();
        let graph = steady.graph.as_ref().expect("a graph is made ready first");
        self.run(|memory| memory.device.replay(graph));
    }
}

#[cfg(test)]
mod tests {
    use crate::device::{DeviceKind, Here, Opening};
    use std::rc::Rc;
    use trainwright_kernels::Threads;
    use trainwright_kernels::cuda::Number;

    #[test]
    fn a_rank_that_was_ready_before_others_is_ready_again() {
        let kind = DeviceKind::from_name("emulated").unwrap();
        if let Err(error) = (kind.require)() {
            println!("skipped: {error}");
            return;
        }
        let opening = Opening { local: 0, threads: Threads::ONE, number: Number::F32, attention: None };
        let device = (kind.open)(opening).unwrap();
        let _here = Here::is(Rc::clone(&device));
        let [from, mut to] = [1.0, 2.0].map(|value| device.take(vec![value; 8], Number::F32));
        let mut step = |copies: usize| {
            device.record();
            (0..copies).for_each(|_| device.copy(to.slice_mut(), from.slice()));
            device.repeats().unwrap()
        };
        assert_eq!([step(1), step(2), step(2)], [false, false, true]);
        device.make_ready().unwrap();
        // The others were not: the next step is told op by op, too.
        assert_eq!([step(2), step(1)], [true, false]);
    }
}
