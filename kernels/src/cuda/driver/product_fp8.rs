//! fp8 products by cublasLt.

use super::answer::OrFailed;
use super::handles::Stream;
use super::product::{Call, Chosen, Pointers, Products, alignment, kind_of, layout_of, set, worst};
use crate::cuda::error::DeviceError;
use crate::cuda::fp8::{Fp8Operands, Fp8Product};
use crate::fp8::Fp8;
use cudarc::cublaslt::{result, sys};

impl Products {
    /// Enqueues a product, as `multiply` does.
    pub fn multiply_fp8(
        &mut self,
        product: Fp8Product,
        at: Fp8Operands,
        on: &Stream,
    ) -> Result<(), DeviceError> {
        use sys::cublasLtMatmulDescAttributes_t::*;
        let alignment = alignment(&[at.left, at.right, at.out, at.bias]);
        let pointers = |bias| {
            vec![
                (CUBLASLT_MATMUL_DESC_A_SCALE_POINTER, at.right_scale),
                (CUBLASLT_MATMUL_DESC_B_SCALE_POINTER, at.left_scale),
                (CUBLASLT_MATMUL_DESC_BIAS_POINTER, bias),
            ]
        };
        if !self.chosen_fp8.contains_key(&(product, alignment)) {
            let chosen = self.choose_fp8(product, &pointers(worst(at.bias, alignment)), alignment)?;
            self.chosen_fp8.insert((product, alignment), chosen);
        }
        self.call(Call {
            chosen: &self.chosen_fp8[&(product, alignment)],
            pointers: pointers(at.bias),
            at: [at.left, at.right, at.out],
            accumulate: product.accumulate,
            on,
        })
    }

    /// As `choose`: outᵀ = right leftᵀ of column-major matrices. The first one is transposed and the second one is not, the only
    /// layout in which tensor cores take fp8.
    fn choose_fp8(
        &self,
        product: Fp8Product,
        pointers: &Pointers,
        alignment: u32,
    ) -> Result<Chosen, DeviceError> {
        use sys::cublasLtMatmulDescAttributes_t::*;
        let Fp8Product { rows, columns, inner, left, right, output, .. } = product;
        let kind = |of: Fp8| match of {
            Fp8::E4m3 => sys::cudaDataType::CUDA_R_8F_E4M3,
            Fp8::E5m2 => sys::cudaDataType::CUDA_R_8F_E5M2,
        };
        let compute = sys::cublasComputeType_t::CUBLAS_COMPUTE_32F;
        let description = result::create_matmul_desc(compute, sys::cudaDataType::CUDA_R_32F)
            .or_failed("cublasLtMatmulDescCreate")?;
        let layouts = [
            layout_of(columns, inner, kind(right))?,
            layout_of(rows, inner, kind(left))?,
            layout_of(rows, columns, kind_of(output))?,
        ];
        // SAFETY: the descriptor is alive.
        unsafe {
            set(description, CUBLASLT_MATMUL_DESC_TRANSA, &1i32)?;
            set(description, CUBLASLT_MATMUL_DESC_TRANSB, &0i32)?;
            if product.bias {
                set(
                    description,
                    CUBLASLT_MATMUL_DESC_EPILOGUE,
                    &sys::cublasLtEpilogue_t::CUBLASLT_EPILOGUE_BIAS,
                )?;
                set(description, CUBLASLT_MATMUL_DESC_BIAS_DATA_TYPE, &kind_of(output))?;
            }
        }
        match self.algorithm(description, layouts, pointers, alignment)? {
            Some(algorithm) => Ok(Chosen { description, layouts, algorithm }),
            None => Err(DeviceError::NoAlgorithm(format!("{product:?}"))),
        }
    }
}
