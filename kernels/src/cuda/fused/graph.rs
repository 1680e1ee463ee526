//! Graphs of operations on tensors of four dimensions.

use super::Part;

/// The element type of a tensor.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Data {
    Bf16,
    F32,
    I32,
    Boolean,
}

/// A tensor's sizes and strides, in elements.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Layout {
    pub sizes: [i64; 4],
    pub strides: [i64; 4],
}

impl Layout {
    /// Without gaps, the last dimension innermost.
    pub fn packed(sizes: [i64; 4]) -> Self {
        let [_, b, c, d] = sizes;
        Self { sizes, strides: [b * c * d, c * d, d, 1] }
    }

    /// The layout with the last two dimensions exchanged.
    pub fn transposed(self) -> Self {
        let exchanged = |[a, b, c, d]: [i64; 4]| [a, b, d, c];
        Self { sizes: exchanged(self.sizes), strides: exchanged(self.strides) }
    }
}

/// Where a tensor is stored.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Storage {
    /// In the device's memory.
    Given(Part),
    /// A scalar of the host.
    Scalar(Part),
    /// Nowhere: a virtual tensor between operations.
    Between,
}

/// A tensor.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Tensor {
    pub storage: Storage,
    pub data: Data,
    pub layout: Layout,
}

/// Index of a tensor in its graph.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct TensorId(pub usize);

/// An elementwise function. Dimensions of size 1 are broadcast.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Function {
    Add,
    Subtract,
    Multiply,
    Divide,
    Exponential,
    Logarithm,
    /// The index in that dimension.
    Index(i64),
    /// Whether the first is at least the second.
    AtLeast,
    /// The first where the third is true, else the second.
    Select,
    /// The value itself.
    Identity,
}

/// A reduction of many elements to one.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Reduction {
    Sum,
    Largest,
}

/// An operation. All compute in f32.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum Operation {
    /// Of matrices in the last two dimensions; several heads of the left may share one of the right.
    Product {
        left: TensorId,
        right: TensorId,
        out: TensorId,
    },
    Pointwise {
        function: Function,
        read: Vec<TensorId>,
        out: TensorId,
    },
    /// Reduces neighbours in each dimension in which `out` has fewer elements.
    Reduce {
        how: Reduction,
        x: TensorId,
        out: TensorId,
    },
    /// The layout with the last two dimensions exchanged.
    Transpose {
        x: TensorId,
        out: TensorId,
    },
}

/// Tensors, and operations in a topological order.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub struct Graph {
    pub tensors: Vec<Tensor>,
    pub operations: Vec<Operation>,
}

impl Graph {
    /// Adds a tensor in the device's memory.
    pub fn given(&mut self, part: Part, data: Data, layout: Layout) -> TensorId {
        self.tensor(Tensor { storage: Storage::Given(part), data, layout })
    }

    /// Adds a scalar of the host.
    pub fn scalar(&mut self, part: Part) -> TensorId {
        self.tensor(Tensor {
            storage: Storage::Scalar(part),
            data: Data::F32,
            layout: Layout::packed([1; 4]),
        })
    }

    /// Adds a virtual tensor.
    pub fn between(&mut self, data: Data, layout: Layout) -> TensorId {
        self.tensor(Tensor { storage: Storage::Between, data, layout })
    }

    fn tensor(&mut self, tensor: Tensor) -> TensorId {
        self.tensors.push(tensor);
        TensorId(self.tensors.len() - 1)
    }

    fn layout(&self, tensor: TensorId) -> Layout {
        self.tensors[tensor.0].layout
    }

    pub fn product_to(&mut self, left: TensorId, right: TensorId, out: TensorId) {
        self.operations.push(Operation::Product { left, right, out });
    }

    pub fn product(&mut self, left: TensorId, right: TensorId) -> TensorId {
        let [a, b, rows, _] = self.layout(left).sizes;
        let columns = self.layout(right).sizes[3];
        let out = self.between(Data::F32, Layout::packed([a, b, rows, columns]));
        self.product_to(left, right, out);
        out
    }

    pub fn pointwise_to(&mut self, function: Function, read: &[TensorId], out: TensorId) {
        self.operations.push(Operation::Pointwise { function, read: read.to_vec(), out });
    }

    pub fn pointwise_as(&mut self, data: Data, function: Function, read: &[TensorId]) -> TensorId {
        let out = self.between(data, Layout::packed(self.layout(read[0]).sizes));
        self.pointwise_to(function, read, out);
        out
    }

    pub fn pointwise(&mut self, function: Function, read: &[TensorId]) -> TensorId {
        self.pointwise_as(Data::F32, function, read)
    }

    pub fn reduce_to(&mut self, how: Reduction, x: TensorId, out: TensorId) {
        self.operations.push(Operation::Reduce { how, x, out });
    }

    /// Reduces the last dimension.
    pub fn reduce(&mut self, how: Reduction, x: TensorId) -> TensorId {
        let [a, b, rows, _] = self.layout(x).sizes;
        let out = self.between(Data::F32, Layout::packed([a, b, rows, 1]));
        self.reduce_to(how, x, out);
        out
    }

    /// The transposed tensor in bf16, as products read it.
    pub fn transpose(&mut self, x: TensorId) -> TensorId {
        let out = self.between(Data::Bf16, self.layout(x).transposed());
        self.operations.push(Operation::Transpose { x, out });
        out
    }
}
