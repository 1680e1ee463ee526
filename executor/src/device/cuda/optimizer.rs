//! Updates of weights: a launch for each tensor, which LAMB's and LARS' ratio of the whole tensor reaches beside the rate.

use super::super::{Cpu, OptimizerOps, Rule, Slice, Updated, updated_on_host};
use super::{Cuda, Far, Numbers};
use trainwright_kernels::Threads;
use trainwright_kernels::cuda::optimizer::{Method, Optimizer, Piece};
use trainwright_kernels::cuda::{Address, Number};
use trainwright_kernels::optimizer::{AdamW, Lamb, Squares, StepSize};

/// A step of one tensor's pieces.
struct Step {
    method: Method,
    optimizer: Optimizer,
    pieces: usize,
}

/// What steps where moments are offloaded.
const HOST: Cpu = Cpu { threads: Threads::ONE };

/// Whether the host keeps the moments of a tensor, or its weights.
fn on_host(tensor: &Updated) -> bool {
    let moments = tensor.moments.iter().map(Numbers::slice);
    moments.chain([tensor.weights.as_slice()]).any(|own| matches!(own, Slice::Host(_)))
}

impl Cuda {
    fn step_of(&self, rule: &Rule, tensor: Updated, size: StepSize) -> Step {
        let weights = tensor.weights.device();
        let moment =
            |index: usize| tensor.moments.get(index).map_or(Address::NULL, |own| own.slice().device().at);
        let whole = Piece {
            weight: weights.at,
            gradient: tensor.gradients.device().at,
            first: moment(0),
            second: moment(1),
            copy: tensor.rounded.map_or(Address::NULL, |rounded| rounded.device().at),
            decay: size.decay,
            ..Piece::default()
        };
        let mut tables = self.tables.borrow_mut();
        let (at, pieces) = tables.pieces(self, whole, weights.length);
        let (method, beta1, [beta2, epsilon]) = match *rule {
            Rule::AdamW(AdamW { beta1, beta2, epsilon }) => (Method::AdamW, beta1, [beta2, epsilon]),
            Rule::Adam(AdamW { beta1, beta2, epsilon }) => (Method::Adam, beta1, [beta2, epsilon]),
            Rule::Lamb(Lamb { beta1, beta2, epsilon }) => (Method::Lamb, beta1, [beta2, epsilon]),
            Rule::Lars(lars) => (Method::Lars, lars.momentum, [0.0; 2]),
            Rule::Momentum(momentum) => (Method::Momentum, momentum.momentum, [0.0; 2]),
            Rule::Sgd => (Method::Momentum, 0.0, [0.0; 2]),
        };
        let optimizer = Optimizer {
            pieces: at,
            factor: self.step_memory().factor(),
            now: self.step_memory().now(),
            beta1,
            beta2,
            epsilon,
            ..Optimizer::default()
        };
        Step { method, optimizer, pieces }
    }
}

impl OptimizerOps for Cuda {
    /// The host waits for the squares: it may have to put them together with those of other ranks.
    fn prepare(&self, rule: &Rule, tensor: Updated, size: StepSize) -> Squares {
        if on_host(&tensor) {
            return updated_on_host(self, tensor, |tensor| HOST.prepare(rule, tensor, size));
        }
        let Step { method, optimizer, pieces } = self.step_of(rule, tensor, size);
        let partial: Far = self.far(4 * pieces, Number::F32);
        let _partial = Numbers::far(partial);
        let norms = Optimizer { partial: partial.at, ..optimizer }.norms(method, pieces);
        self.launch(&norms.expect("a step of LAMB or LARS begins with norms"));
        let parts = self.read_doubles(partial.at, 2 * pieces);
        let sum = |which: usize| parts.iter().skip(which).step_by(2).sum();
        Squares { weights: sum(0), update: sum(1) }
    }

    fn optimize(&self, rule: &Rule, tensor: Updated, size: StepSize, whole: Squares) {
        if on_host(&tensor) {
            return updated_on_host(self, tensor, |tensor| HOST.optimize(rule, tensor, size, whole));
        }
        let ratio = match rule {
            Rule::Lamb(_) => Some(Lamb::ratio(whole)),
            Rule::Lars(lars) => Some(lars.ratio(whole, size.decay)),
            _ => None,
        };
        let Step { method, optimizer, pieces } = self.step_of(rule, tensor, size);
        let ratio = ratio.map(|ratio| self.words(&[ratio.to_bits()]));
        let ratios = ratio.as_ref().map_or(Address::NULL, |(_, at)| *at);
        self.launch(&Optimizer { ratios, ..optimizer }.step(method, pieces));
    }
}
