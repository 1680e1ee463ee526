//! Launches of activation.cu.

use super::launch::{Address, Launch, Multiprocessors, Number, rows, whole_warps};

const FILE: &str = "activation";

/// Which function.
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

/// Which way.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Direction {
    /// The output from the input.
    Forward,
    /// The input's gradient from the output's.
    Backward,
}

/// A function of rows, after a bias, times the gated half where there is one.
#[derive(Debug, Clone, Copy, Default, PartialEq)]
#[repr(C)]
pub struct Activation {
    /// rows × width, or 2 width with a gate, whose half is first.
    pub x: Address,
    /// A row's, or nothing.
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
    /// All versions that can do it, the fastest last.
    pub fn ladder(
        &self,
        function: Function,
        direction: Direction,
        number: Number,
        gpu: Multiprocessors,
    ) -> Vec<Launch> {
        let way = match direction {
            Direction::Forward => "forward",
            Direction::Backward => "backward",
        };
        let name = |version: &str| format!("{}_{way}_{version}_{}", function.name(), number.suffix());
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
    /// width, or nothing.
    pub bias: Address,
    /// rows × width, or nothing.
    pub residual: Address,
    /// rows × width; may be one of those.
    pub out: Address,
    /// Rows.
    pub rows: i32,
    /// Length of a row.
    pub width: i32,
}

impl Residual {
    /// All versions that can do it, the fastest last.
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
        let threads = whole_warps(width / number.pack(), 256);
        let columns = (width / number.pack() + threads - 1) / threads;
        ladder.push(Launch::new(FILE, name("packed"), [columns, rows(count), 1], threads, arguments));
    }
    ladder
}
