//! Launches of activation.cu.

use super::launch::{Address, Launch, Multiprocessors, Number, round_to_warps, rows};

const FILE: &str = "activation";

/// The activation function.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Function {
    /// GELU by tanh.
    Gelu,
    /// x σ(x).
    Silu,
    /// max(0, x).
    Relu,
    /// max(0, x)².
    SquaredRelu,
}

impl Function {
    /// All of them.
    pub const ALL: [Function; 4] = [Function::Gelu, Function::Silu, Function::Relu, Function::SquaredRelu];

    fn name(self) -> &'static str {
        match self {
            Function::Gelu => "gelu",
            Function::Silu => "silu",
            Function::Relu => "relu",
            Function::SquaredRelu => "squared_relu",
        }
    }
}

/// Forward or backward.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Direction {
    /// The output from the input.
    Forward,
    /// The input's gradient from the output's.
    Backward,
}

/// f(x + bias), times the other half of the row if it is gated.
#[derive(Debug, Clone, Copy, Default, PartialEq)]
#[repr(C)]
pub struct Activation {
    /// rows × width, or rows × 2 width with a gate, which is the first half.
    pub x: Address,
    /// One row, or `NULL`.
    pub bias: Address,
    /// rows × width; backward only.
    pub out_gradient: Address,
    /// The output, or the gradient of `x`.
    pub out: Address,
    /// Rows.
    pub rows: i32,
    /// Length of an output row.
    pub width: i32,
    /// 1 with a gate.
    pub gated: i32,
}

impl Activation {
    /// All versions for its shape, the fastest last.
    pub fn ladder(
        &self,
        function: Function,
        direction: Direction,
        number: Number,
        gpu: Multiprocessors,
    ) -> Vec<Launch> {
        let direction = match direction {
            Direction::Forward => "forward",
            Direction::Backward => "backward",
        };
        let name = |version: &str| format!("{}_{direction}_{version}_{}", function.name(), number.suffix());
        ladder(name, [self.rows, self.width], (number, gpu), self)
    }

    /// The fastest version.
    pub fn launch(
        &self,
        function: Function,
        direction: Direction,
        number: Number,
        gpu: Multiprocessors,
    ) -> Launch {
        self.ladder(function, direction, number, gpu).pop().expect("the simple version does all")
    }
}

/// x + bias + residual.
#[derive(Debug, Clone, Copy, Default, PartialEq)]
#[repr(C)]
pub struct Residual {
    /// rows × width.
    pub x: Address,
    /// width, or `NULL`.
    pub bias: Address,
    /// rows × width, or `NULL`.
    pub residual: Address,
    /// rows × width; may be one of those.
    pub out: Address,
    /// Rows.
    pub rows: i32,
    /// Length of a row.
    pub width: i32,
}

impl Residual {
    /// All versions for its shape, the fastest last.
    pub fn ladder(&self, number: Number, gpu: Multiprocessors) -> Vec<Launch> {
        let name = |version: &str| format!("residual_{version}_{}", number.suffix());
        ladder(name, [self.rows, self.width], (number, gpu), self)
    }

    /// The fastest version.
    pub fn launch(&self, number: Number, gpu: Multiprocessors) -> Launch {
        self.ladder(number, gpu).pop().expect("the simple version does all")
    }
}

fn ladder<A: Copy + PartialEq + 'static>(
    name: impl Fn(&str) -> String,
    [count, width]: [i32; 2],
    (number, gpu): (Number, Multiprocessors),
    arguments: &A,
) -> Vec<Launch> {
    let blocks = gpu.strided(i64::from(count) * i64::from(width), 256);
    let mut ladder = vec![Launch::new(FILE, name("simple"), [blocks, 1, 1], 256, arguments)];
    if width % number.pack() == 0 {
        let threads = round_to_warps(width / number.pack(), 256);
        let columns = (width / number.pack() + threads - 1) / threads;
        ladder.push(Launch::new(FILE, name("packed"), [columns, rows(count), 1], threads, arguments));
    }
    ladder
}
