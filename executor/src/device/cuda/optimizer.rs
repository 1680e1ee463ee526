//! Updates of weights: one launch for all tensors of a rank, three for LAMB and LARS. The ratios of these are made between
//! them where the tensors are complete on this rank; where other ranks have parts of them, the host puts the norms together.

use super::super::{Cpu, OptimizerOps, OptimizerStep, Rule, Updated};
use super::by_host::{Back, is_of_host};
use super::tables::Together;
use super::{Cuda, DeviceSlice, Numbers};
use trainwright_kernels::Threads;
use trainwright_kernels::cuda::optimizer::{Chunk, Method, Optimizer, TrustRatios};
use trainwright_kernels::cuda::{Address, Number};
use trainwright_kernels::optimizer::{AdamW, Lamb, Squares};

/// What steps where moments are offloaded.
const HOST: Cpu = Cpu { threads: Threads::ONE };

/// A tensor as the kernels see it.
fn piece_of(tensor: &Updated) -> Chunk {
    let moment =
        |index: usize| tensor.moments.get(index).map_or(Address::NULL, |moment| moment.slice().device().at);
    let rounded = tensor.rounded.as_ref().map(|rounded| rounded.as_slice().device().at);
    Chunk {
        weight: tensor.weights.as_slice().device().at,
        gradient: tensor.gradients.as_slice().device().at,
        first: moment(0),
        second: moment(1),
        copy: rounded.unwrap_or(Address::NULL),
        decay: tensor.decay,
        ..Chunk::default()
    }
}

/// The ratio of a complete tensor that is scaled.
fn ratio(step: &OptimizerStep, tensor: &Updated, squares: Squares) -> f32 {
    match step.rule {
        Rule::Lamb(_) => Lamb::ratio(squares),
        Rule::Lars(lars) => lars.ratio(squares, tensor.decay),
        other => unreachable!("a step of {other:?} has no ratios"),
    }
}

impl Cuda {
    /// The kernels' arguments over tensors that lie together in a table.
    fn step_of(&self, step: &OptimizerStep, together: &Together) -> (Method, Optimizer) {
        let (method, beta1, [beta2, epsilon]) = match step.rule {
            Rule::AdamW(AdamW { beta1, beta2, epsilon }) => (Method::AdamW, beta1, [beta2, epsilon]),
            Rule::Adam(AdamW { beta1, beta2, epsilon }) => (Method::Adam, beta1, [beta2, epsilon]),
            Rule::Lamb(Lamb { beta1, beta2, epsilon }) => (Method::Lamb, beta1, [beta2, epsilon]),
            Rule::Lars(lars) => (Method::Lars, lars.momentum, [0.0; 2]),
            Rule::Momentum(momentum) => (Method::Momentum, momentum.momentum, [0.0; 2]),
            Rule::Sgd => (Method::Momentum, 0.0, [0.0; 2]),
        };
        let optimizer = Optimizer {
            chunks: together.pieces,
            factor: self.step_memory().factor(),
            scalars: self.step_memory().now(),
            ratios: together.ratios,
            beta1,
            beta2,
            epsilon,
            ..Optimizer::default()
        };
        (method, optimizer)
    }

    fn together(&self, tensors: &[Updated]) -> Together {
        let listed = tensors.iter().map(|tensor| (piece_of(tensor), tensor.weights.len(), tensor.is_scaled));
        self.tables.borrow_mut().together(self, listed.collect())
    }

    /// Room for the squares of each piece.
    fn partial(&self, together: &Together) -> (Numbers, Address) {
        let partial: DeviceSlice = self.allocate(4 * together.count, Number::F32);
        (Numbers::on_device(partial), partial.at)
    }
}

impl OptimizerOps for Cuda {
    /// The host waits for the squares, to put them together with those of other ranks.
    fn prepare(&self, step: &OptimizerStep, tensors: &mut [Updated]) -> Vec<Squares> {
        if tensors.iter().any(is_of_host) {
            return self.by_host(tensors, Back::Gradients, |_, tensor| HOST.prepare_one(step, tensor));
        }
        let together = self.together(tensors);
        let (method, optimizer) = self.step_of(step, &together);
        let (_partial, partial) = self.partial(&together);
        let norms = Optimizer { partial, ..optimizer }.norms(method, together.count);
        self.launch(&norms.expect("a step of LAMB or LARS begins with norms"));
        let parts = self.read_doubles(partial, 2 * together.count);
        let sum = |sums: &[f64], which: usize| sums.iter().skip(which).step_by(2).sum();
        let squares = |sums: &[f64]| Squares { weights: sum(sums, 0), update: sum(sums, 1) };
        together.parts.iter().map(|part| squares(&parts[2 * part.start..2 * part.end])).collect()
    }

    fn optimize(&self, step: &OptimizerStep, tensors: &mut [Updated], squares: Option<&[Squares]>) {
        if tensors.iter().any(is_of_host) {
            self.by_host(tensors, Back::Weights, |index, tensor| {
                HOST.optimize_one(step, tensor, squares.map(|squares| squares[index]));
            });
            return;
        }
        if tensors.is_empty() {
            return;
        }
        let together = self.together(tensors);
        let (method, optimizer) = self.step_of(step, &together);
        if let Some(squares) = squares {
            let scaled = tensors.iter().zip(squares).filter(|(tensor, _)| tensor.is_scaled);
            let ratios: Vec<f32> =
                scaled.map(|(tensor, squares)| ratio(step, tensor, *squares)).chain([1.0]).collect();
            self.run(|memory| memory.device.write(together.ratios, bytemuck::cast_slice(&ratios)));
            return self.launch(&optimizer.step(method, together.count));
        }
        let (_partial, partial) = self.partial(&together);
        let trust = if let Rule::Lars(lars) = step.rule { lars.trust } else { 0.0 };
        let ratios = TrustRatios { partial, trust, ..together.trust_ratios() };
        let all = Optimizer { partial, ..optimizer }.launches(method, together.count, &ratios);
        all.iter().for_each(|launch| self.launch(launch));
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::device::{CurrentDevice, Device, Opening, StepBegin};
    use crate::random::Stream;
    use std::rc::Rc;
    use trainwright_kernels::cuda::optimizer::CHUNK;
    use trainwright_kernels::optimizer::{Lars, Momentum};

    /// How tensors are given to a device.
    #[derive(Debug, Clone, Copy, PartialEq)]
    enum Given {
        Together,
        /// As one rank that shares its tensors does it.
        TogetherByTheHost,
        EachAlone,
    }

    const GIVEN: [Given; 3] = [Given::Together, Given::TogetherByTheHost, Given::EachAlone];

    /// Less than a pack, a vector among matrices, and one of several pieces; whether it is a matrix.
    const TENSORS: [(usize, bool); 4] = [(6, true), (40, false), (96, true), (CHUNK + 24, true)];

    /// All numbers of the tensors after two steps.
    fn stepped(device: &Rc<dyn Device>, rule: Rule, given: Given) -> Vec<u32> {
        let make = |name: u64, length: usize, number| {
            let stream = Stream::new(5, name);
            let normal = |place: usize| 0.1 * stream.normal(place as u64) as f32;
            // Squares are positive.
            let data = (0..length).map(normal).map(|x| if name % 4 == 3 { x * x } else { x }).collect();
            device.take(data, number)
        };
        let mut numbers: Vec<(Vec<Numbers>, Numbers)> = TENSORS
            .iter()
            .zip(0..)
            .map(|((length, _), tensor)| {
                let all = (0..4).map(|which| make(4 * tensor + which, *length, Number::F32)).collect();
                (all, make(4 * tensor, *length, Number::Bf16))
            })
            .collect();
        for number in [1, 2] {
            let step = OptimizerStep { rule, rate: 0.01, gradient_scale: 0.5, number };
            device.begin_step(StepBegin { rule, rate: step.rate, step: number as usize, losses: 0 });
            device.scale_gradients(step.gradient_scale);
            let mut tensors: Vec<Updated> = numbers
                .iter_mut()
                .zip(TENSORS)
                .map(|((all, rounded), (_, is_scaled))| {
                    let [weights, gradients, moments @ ..] = &mut all[..] else {
                        unreachable!("there are 4")
                    };
                    let (weights, gradients) = (weights.slice_mut(), gradients.slice_mut());
                    let (rounded, decay) = (Some(rounded.slice_mut()), if is_scaled { 0.1 } else { 0.0 });
                    Updated { weights, gradients, moments, rounded, decay, is_scaled }
                })
                .collect();
            let by_host = given == Given::TogetherByTheHost && rule.is_layer_wise();
            let squares = by_host.then(|| device.prepare(&step, &mut tensors));
            match given {
                Given::EachAlone => {
                    tensors
                        .iter_mut()
                        .for_each(|tensor| device.optimize(&step, std::slice::from_mut(tensor), None));
                }
                _ => device.optimize(&step, &mut tensors, squares.as_deref()),
            }
        }
        device.check().unwrap();
        let all = numbers.iter().flat_map(|(all, rounded)| all.iter().chain([rounded]));
        all.flat_map(|numbers| device.read(numbers.slice()).into_owned()).map(f32::to_bits).collect()
    }

    #[test]
    fn all_tensors_at_once_step_as_each_alone() {
        let opening = Opening { number: Number::Bf16, ..Opening::plain(0) };
        let Ok(device) = super::super::open_emulator(opening) else {
            println!("skipped: no emulator");
            return;
        };
        let _here = CurrentDevice::set(Rc::clone(&device));
        let adam = AdamW { beta1: 0.9, beta2: 0.95, epsilon: 1e-6 };
        for rule in [
            Rule::AdamW(adam),
            Rule::Adam(adam),
            Rule::Lamb(Lamb { beta1: 0.9, beta2: 0.95, epsilon: 1e-6 }),
            Rule::Lars(Lars { momentum: 0.9, trust: 0.02 }),
            Rule::Momentum(Momentum { momentum: 0.9 }),
            Rule::Sgd,
        ] {
            let [together, by_host, alone] = GIVEN.map(|given| stepped(&device, rule, given));
            assert!(together == alone, "{rule:?}: all tensors at once are other numbers than each alone");
            assert!(together == by_host, "{rule:?}: ratios of the device are other numbers than the host's");
        }
    }
}
