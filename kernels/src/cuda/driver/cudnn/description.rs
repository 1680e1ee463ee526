//! A graph as descriptors of cuDNN.

use super::descriptor::{Descriptor, Draft};
use crate::cuda::error::DeviceError;
use crate::cuda::fused::graph::{Data, Function, Graph, Operation, Reduction, Storage, Tensor, TensorId};
use cudarc::cudnn::sys::cudnnBackendAttributeName_t::*;
use cudarc::cudnn::sys::cudnnBackendDescriptorType_t::*;
use cudarc::cudnn::sys::cudnnDataType_t::{self, *};
use cudarc::cudnn::sys::cudnnPointwiseMode_t::{self, *};
use cudarc::cudnn::sys::cudnnReduceTensorOp_t::*;

/// cuDNN's descriptors of tensors and operations.
#[derive(Debug)]
pub(super) struct Description {
    tensors: Vec<Descriptor>,
    operations: Vec<Descriptor>,
}

/// Numbers of virtual tensors begin here, above those of all parts.
const FIRST_BETWEEN: i64 = 1000;
/// Alignment of addresses, in bytes.
const ALIGNMENT: i64 = 16;

impl Description {
    pub fn new(graph: &Graph) -> Result<Self, DeviceError> {
        let tensors = graph.tensors.iter().enumerate().map(|(index, one)| tensor(index, one));
        let mut description = Self { tensors: tensors.collect::<Result<_, _>>()?, operations: Vec::new() };
        for one in &graph.operations {
            description.operations.push(description.operation(one)?.finalize()?);
        }
        Ok(description)
    }

    /// As an operation graph that is still open.
    pub fn graph(&self) -> Result<Draft, DeviceError> {
        let operations: Vec<&Descriptor> = self.operations.iter().collect();
        Draft::new(CUDNN_BACKEND_OPERATIONGRAPH_DESCRIPTOR)?
            .with_parts(CUDNN_ATTR_OPERATIONGRAPH_OPS, &operations)
    }

    fn of(&self, tensor: TensorId) -> [&Descriptor; 1] {
        [&self.tensors[tensor.0]]
    }

    fn operation(&self, operation: &Operation) -> Result<Draft, DeviceError> {
        match operation {
            Operation::Product { left, right, out } => {
                let how = Draft::new(CUDNN_BACKEND_MATMUL_DESCRIPTOR)?
                    .with(CUDNN_ATTR_MATMUL_COMP_TYPE, &[CUDNN_DATA_FLOAT])?
                    .finalize()?;
                Draft::new(CUDNN_BACKEND_OPERATION_MATMUL_DESCRIPTOR)?
                    .with_parts(CUDNN_ATTR_OPERATION_MATMUL_ADESC, &self.of(*left))?
                    .with_parts(CUDNN_ATTR_OPERATION_MATMUL_BDESC, &self.of(*right))?
                    .with_parts(CUDNN_ATTR_OPERATION_MATMUL_CDESC, &self.of(*out))?
                    .with_parts(CUDNN_ATTR_OPERATION_MATMUL_DESC, &[&how])
            }
            Operation::Pointwise { function, read, out } => self.pointwise(*function, read, *out),
            Operation::Reduce { how, x, out } => {
                let how = match how {
                    Reduction::Sum => CUDNN_REDUCE_TENSOR_ADD,
                    Reduction::Largest => CUDNN_REDUCE_TENSOR_MAX,
                };
                let how = Draft::new(CUDNN_BACKEND_REDUCTION_DESCRIPTOR)?
                    .with(CUDNN_ATTR_REDUCTION_OPERATOR, &[how])?
                    .with(CUDNN_ATTR_REDUCTION_COMP_TYPE, &[CUDNN_DATA_FLOAT])?
                    .finalize()?;
                Draft::new(CUDNN_BACKEND_OPERATION_REDUCTION_DESCRIPTOR)?
                    .with_parts(CUDNN_ATTR_OPERATION_REDUCTION_XDESC, &self.of(*x))?
                    .with_parts(CUDNN_ATTR_OPERATION_REDUCTION_YDESC, &self.of(*out))?
                    .with_parts(CUDNN_ATTR_OPERATION_REDUCTION_DESC, &[&how])
            }
            Operation::Transpose { x, out } => Draft::new(CUDNN_BACKEND_OPERATION_RESHAPE_DESCRIPTOR)?
                .with_parts(CUDNN_ATTR_OPERATION_RESHAPE_XDESC, &self.of(*x))?
                .with_parts(CUDNN_ATTR_OPERATION_RESHAPE_YDESC, &self.of(*out)),
        }
    }

    fn pointwise(&self, function: Function, read: &[TensorId], out: TensorId) -> Result<Draft, DeviceError> {
        let computes = if function == Function::AtLeast { CUDNN_DATA_BOOLEAN } else { CUDNN_DATA_FLOAT };
        let mut how = Draft::new(CUDNN_BACKEND_POINTWISE_DESCRIPTOR)?
            .with(CUDNN_ATTR_POINTWISE_MODE, &[mode(function)])?
            .with(CUDNN_ATTR_POINTWISE_MATH_PREC, &[computes])?;
        if let Function::Index(direction) = function {
            how = how.with(CUDNN_ATTR_POINTWISE_AXIS, &[direction])?;
        }
        let mut made = Draft::new(CUDNN_BACKEND_OPERATION_POINTWISE_DESCRIPTOR)?
            .with_parts(CUDNN_ATTR_OPERATION_POINTWISE_PW_DESCRIPTOR, &[&how.finalize()?])?;
        let names = [
            CUDNN_ATTR_OPERATION_POINTWISE_XDESC,
            CUDNN_ATTR_OPERATION_POINTWISE_BDESC,
            CUDNN_ATTR_OPERATION_POINTWISE_TDESC,
        ];
        for (name, read) in names.into_iter().zip(read) {
            made = made.with_parts(name, &self.of(*read))?;
        }
        made.with_parts(CUDNN_ATTR_OPERATION_POINTWISE_YDESC, &self.of(out))
    }
}

fn tensor(index: usize, tensor: &Tensor) -> Result<Descriptor, DeviceError> {
    let number = match tensor.storage {
        Storage::Given(part) | Storage::Scalar(part) => part as i64,
        Storage::Between => FIRST_BETWEEN + index as i64,
    };
    Draft::new(CUDNN_BACKEND_TENSOR_DESCRIPTOR)?
        .with(CUDNN_ATTR_TENSOR_UNIQUE_ID, &[number])?
        .with(CUDNN_ATTR_TENSOR_DATA_TYPE, &[data(tensor.data)])?
        .with(CUDNN_ATTR_TENSOR_DIMENSIONS, &tensor.layout.sizes)?
        .with(CUDNN_ATTR_TENSOR_STRIDES, &tensor.layout.strides)?
        .with(CUDNN_ATTR_TENSOR_BYTE_ALIGNMENT, &[ALIGNMENT])?
        .with(CUDNN_ATTR_TENSOR_IS_VIRTUAL, &[tensor.storage == Storage::Between])?
        .with(CUDNN_ATTR_TENSOR_IS_BY_VALUE, &[matches!(tensor.storage, Storage::Scalar(_))])?
        .finalize()
}

fn data(data: Data) -> cudnnDataType_t {
    match data {
        Data::Bf16 => CUDNN_DATA_BFLOAT16,
        Data::F32 => CUDNN_DATA_FLOAT,
        Data::I32 => CUDNN_DATA_INT32,
        Data::Boolean => CUDNN_DATA_BOOLEAN,
    }
}

fn mode(function: Function) -> cudnnPointwiseMode_t {
    match function {
        Function::Add => CUDNN_POINTWISE_ADD,
        Function::Subtract => CUDNN_POINTWISE_SUB,
        Function::Multiply => CUDNN_POINTWISE_MUL,
        Function::Divide => CUDNN_POINTWISE_DIV,
        Function::Exponential => CUDNN_POINTWISE_EXP,
        Function::Logarithm => CUDNN_POINTWISE_LOG,
        Function::Index(_) => CUDNN_POINTWISE_GEN_INDEX,
        Function::AtLeast => CUDNN_POINTWISE_CMP_GE,
        Function::Select => CUDNN_POINTWISE_BINARY_SELECT,
        Function::Identity => CUDNN_POINTWISE_IDENTITY,
    }
}
