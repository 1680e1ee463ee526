//! Products of numbers of 8 bits by cublasLt.

use super::failed;
use super::handles::Stream;
use super::product::{Chosen, Products, WORKSPACE, layout_of, set};
use crate::cuda::eight::{Eight, EightOperands, EightProduct};
use crate::cuda::launch::{Address, DeviceError, Number};
use cudarc::cublaslt::{result, sys};
use std::ffi::c_void;

impl Products {
    /// Puts a product on a stream, as `multiply` does.
    pub fn multiply_eight(
        &mut self,
        product: EightProduct,
        at: EightOperands,
        on: &Stream,
    ) -> Result<(), DeviceError> {
        if !self.chosen_eight.contains_key(&product) {
            let chosen = self.choose_eight(product)?;
            self.chosen_eight.insert(product, chosen);
        }
        let Chosen { description, layouts: [right, left, out], algorithm } = &self.chosen_eight[&product];
        let (one, beta) = (1.0f32, if product.accumulate { 1.0f32 } else { 0.0 });
        let scalar = |scalar: &f32| std::ptr::from_ref(scalar).cast::<c_void>();
        let pointer = |address: Address| address.0 as *mut c_void;
        // SAFETY: the descriptors live in `chosen_eight`, and the caller's addresses have the sizes that they name.
        unsafe {
            use sys::cublasLtMatmulDescAttributes_t::*;
            set(*description, CUBLASLT_MATMUL_DESC_A_SCALE_POINTER, &at.right_scale.0)?;
            set(*description, CUBLASLT_MATMUL_DESC_B_SCALE_POINTER, &at.left_scale.0)?;
            result::matmul(
                self.handle,
                *description,
                scalar(&one),
                scalar(&beta),
                pointer(at.right),
                *right,
                pointer(at.left),
                *left,
                pointer(at.out),
                *out,
                pointer(at.out),
                *out,
                algorithm,
                pointer(self.workspace),
                WORKSPACE,
                on.0.cast(),
            )
        }
        .map_err(|error| failed("cublasLtMatmul", error))
    }

    /// As `choose`: outᵀ = right leftᵀ of matrices that lie column after column, where the first one is transposed and the
    /// second one not, the only way in which tensor cores take numbers of 8 bits.
    fn choose_eight(&self, product: EightProduct) -> Result<Chosen, DeviceError> {
        use sys::cublasLtMatmulDescAttributes_t::*;
        let EightProduct { rows, columns, inner, left, right, output, .. } = product;
        let kind = |of: Eight| match of {
            Eight::E4m3 => sys::cudaDataType::CUDA_R_8F_E4M3,
            Eight::E5m2 => sys::cudaDataType::CUDA_R_8F_E5M2,
        };
        let out = match output {
            Number::F32 => sys::cudaDataType::CUDA_R_32F,
            Number::Bf16 => sys::cudaDataType::CUDA_R_16BF,
        };
        let compute = sys::cublasComputeType_t::CUBLAS_COMPUTE_32F;
        let description = result::create_matmul_desc(compute, sys::cudaDataType::CUDA_R_32F)
            .map_err(|error| failed("cublasLtMatmulDescCreate", error))?;
        let layouts = [
            layout_of(columns, inner, kind(right))?,
            layout_of(rows, inner, kind(left))?,
            layout_of(rows, columns, out)?,
        ];
        // SAFETY: the descriptor is alive.
        unsafe {
            set(description, CUBLASLT_MATMUL_DESC_TRANSA, &1i32)?;
            set(description, CUBLASLT_MATMUL_DESC_TRANSB, &0i32)?;
        }
        // Whole packs of 16 bytes.
        match self.algorithm(description, layouts, 16)? {
            Some(algorithm) => Ok(Chosen { description, layouts, algorithm }),
            None => Err(DeviceError::NoAlgorithm(format!("{product:?}"))),
        }
    }
}
