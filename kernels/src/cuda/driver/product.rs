//! Matrix products by cublasLt, with its epilogues.

use super::answer::OrFailed;
use super::handles::Stream;
use super::library::Library;
use crate::cuda::device::Device;
use crate::cuda::error::DeviceError;
use crate::cuda::fp8::Fp8Product;
use crate::cuda::launch::{Address, Number};
use crate::cuda::product::{Compute, Epilogue, Operands, Product};
use cudarc::cublaslt::{result, sys};
use std::collections::HashMap;
use std::ffi::c_void;

/// cublasLt with the algorithms chosen so far.
#[derive(Debug)]
pub struct Products {
    handle: sys::cublasLtHandle_t,
    workspace: Address,
    /// By product and alignment of the operands in bytes.
    chosen: HashMap<(Product, u32), Chosen>,
    pub(super) chosen_fp8: HashMap<(Fp8Product, u32), Chosen>,
}

/// Descriptors and algorithm of a product.
#[derive(Debug)]
pub(super) struct Chosen {
    pub description: sys::cublasLtMatmulDesc_t,
    /// Right, left, result.
    pub layouts: [sys::cublasLtMatrixLayout_t; 3],
    pub algorithm: sys::cublasLtMatmulAlgo_t,
}

/// Addresses among a descriptor's attributes: bias, auxiliary matrix, scales. `NULL` ones are left out.
pub(super) type Pointers = Vec<(sys::cublasLtMatmulDescAttributes_t, Address)>;

/// A call of a product with its chosen algorithm.
pub(super) struct Call<'a> {
    pub chosen: &'a Chosen,
    pub pointers: Pointers,
    /// Left, right, result.
    pub at: [Address; 3],
    /// Whether the result is added to what is there.
    pub accumulate: bool,
    pub on: &'a Stream,
}

/// Bytes; NVIDIA's recommendation for Hopper.
const WORKSPACE: usize = 32 << 20;

impl Products {
    /// Loads the library and allocates its workspace on the device.
    pub fn new(device: &mut dyn Device) -> Result<Self, DeviceError> {
        Library::CublasLt.require()?;
        let handle = result::create_handle().or_failed("cublasLtCreate")?;
        let (chosen, chosen_fp8) = (HashMap::new(), HashMap::new());
        Ok(Self { handle, workspace: device.allocate(WORKSPACE)?, chosen, chosen_fp8 })
    }

    /// Enqueues a product. All products share one workspace, so the caller uses one stream or orders its streams.
    pub fn multiply(&mut self, product: Product, at: Operands, on: &Stream) -> Result<(), DeviceError> {
        use sys::cublasLtMatmulDescAttributes_t::*;
        let at = product.epilogue.used(at);
        let alignment = alignment(&[at.left, at.right, at.out, at.aux, at.bias]);
        let pointers = |[bias, aux]: [Address; 2]| {
            vec![(CUBLASLT_MATMUL_DESC_BIAS_POINTER, bias), (CUBLASLT_MATMUL_DESC_EPILOGUE_AUX_POINTER, aux)]
        };
        if !self.chosen.contains_key(&(product, alignment)) {
            let worst = pointers([at.bias, at.aux].map(|address| worst(address, alignment)));
            let chosen = self.choose(product, &worst, alignment)?;
            self.chosen.insert((product, alignment), chosen);
        }
        self.call(Call {
            chosen: &self.chosen[&(product, alignment)],
            pointers: pointers([at.bias, at.aux]),
            at: [at.left, at.right, at.out],
            accumulate: product.accumulate,
            on,
        })
    }

    /// Enqueues a product with its chosen algorithm.
    pub(super) fn call(&self, call: Call) -> Result<(), DeviceError> {
        let Chosen { description, layouts: [right_layout, left_layout, out_layout], algorithm } = call.chosen;
        let (one, beta) = (1.0f32, if call.accumulate { 1.0f32 } else { 0.0 });
        let scalar = |scalar: &f32| std::ptr::from_ref(scalar).cast::<c_void>();
        let pointer = |address: Address| address.0 as *mut c_void;
        let [left, right, out] = call.at.map(pointer);
        // SAFETY: the descriptors live as long as this does, and the caller's addresses have the sizes that they name.
        unsafe {
            point(*description, &call.pointers)?;
            result::matmul(
                self.handle,
                *description,
                scalar(&one),
                scalar(&beta),
                right,
                *right_layout,
                left,
                *left_layout,
                out,
                *out_layout,
                out,
                *out_layout,
                algorithm,
                pointer(self.workspace),
                WORKSPACE,
                call.on.0.cast(),
            )
        }
        .or_failed("cublasLtMatmul")
    }

    /// cublasLt's matrices are column-major, so it gets the transposed product outᵀ = rightᵀ leftᵀ of our row-major ones.
    fn choose(&self, product: Product, pointers: &Pointers, alignment: u32) -> Result<Chosen, DeviceError> {
        use sys::cublasLtMatmulDescAttributes_t::*;
        let compute = match product.compute {
            Compute::Tf32 if product.inputs == Number::F32 => {
                sys::cublasComputeType_t::CUBLAS_COMPUTE_32F_FAST_TF32
            }
            _ => sys::cublasComputeType_t::CUBLAS_COMPUTE_32F,
        };
        let description = result::create_matmul_desc(compute, sys::cudaDataType::CUDA_R_32F)
            .or_failed("cublasLtMatmulDescCreate")?;
        let layout = |rows: usize, columns: usize, number: Number| layout_of(rows, columns, kind_of(number));
        let lies = |rows, columns, transposed| if transposed { (columns, rows) } else { (rows, columns) };
        let right = lies(product.inner, product.columns, product.right_transposed);
        let left = lies(product.rows, product.inner, product.left_transposed);
        let right = layout(right.0, right.1, product.inputs)?;
        let left = layout(left.0, left.1, product.inputs)?;
        let out = layout(product.rows, product.columns, product.output)?;
        let epilogue = match product.epilogue {
            Epilogue::None => sys::cublasLtEpilogue_t::CUBLASLT_EPILOGUE_DEFAULT,
            Epilogue::Bias => sys::cublasLtEpilogue_t::CUBLASLT_EPILOGUE_BIAS,
            Epilogue::GeluBias => sys::cublasLtEpilogue_t::CUBLASLT_EPILOGUE_GELU_AUX_BIAS,
            Epilogue::GeluGradient => sys::cublasLtEpilogue_t::CUBLASLT_EPILOGUE_DGELU,
            Epilogue::GeluBiasGradient => sys::cublasLtEpilogue_t::CUBLASLT_EPILOGUE_DGELU_BGRAD,
            // Its second matrix is our left one.
            Epilogue::BiasGradient => sys::cublasLtEpilogue_t::CUBLASLT_EPILOGUE_BGRADB,
        };
        let transposed = |yes: bool| i32::from(yes);
        // SAFETY: the descriptor is alive.
        unsafe {
            set(description, CUBLASLT_MATMUL_DESC_TRANSA, &transposed(product.right_transposed))?;
            set(description, CUBLASLT_MATMUL_DESC_TRANSB, &transposed(product.left_transposed))?;
            set(description, CUBLASLT_MATMUL_DESC_EPILOGUE, &epilogue)?;
            if matches!(
                product.epilogue,
                Epilogue::GeluBias | Epilogue::GeluGradient | Epilogue::GeluBiasGradient
            ) {
                set(description, CUBLASLT_MATMUL_DESC_EPILOGUE_AUX_LD, &(product.columns as i64))?;
            }
        }
        let layouts = [right, left, out];
        match self.algorithm(description, layouts, pointers, alignment)? {
            Some(algorithm) => Ok(Chosen { description, layouts, algorithm }),
            None => Err(DeviceError::NoAlgorithm(format!("{product:?}"))),
        }
    }

    /// The library's choice for matrices aligned to `alignment` bytes. It takes the alignment of a bias and the like from their
    /// pointers, which it does not dereference.
    pub(super) fn algorithm(
        &self,
        description: sys::cublasLtMatmulDesc_t,
        [right, left, out]: [sys::cublasLtMatrixLayout_t; 3],
        pointers: &Pointers,
        alignment: u32,
    ) -> Result<Option<sys::cublasLtMatmulAlgo_t>, DeviceError> {
        use sys::cublasLtMatmulPreferenceAttributes_t::*;
        // SAFETY: the descriptor is alive.
        unsafe { point(description, pointers)? };
        let preference = result::create_matmul_pref().or_failed("cublasLtMatmulPreferenceCreate")?;
        let prefer = |attribute, value: *const c_void, size| {
            // SAFETY: the preference is alive, and `value` points to that many bytes.
            unsafe { result::set_matmul_pref_attribute(preference, attribute, value, size) }
                .or_failed("cublasLtMatmulPreferenceSetAttribute")
        };
        let workspace = WORKSPACE as u64;
        prefer(CUBLASLT_MATMUL_PREF_MAX_WORKSPACE_BYTES, (&raw const workspace).cast(), 8)?;
        for attribute in [
            CUBLASLT_MATMUL_PREF_MIN_ALIGNMENT_A_BYTES,
            CUBLASLT_MATMUL_PREF_MIN_ALIGNMENT_B_BYTES,
            CUBLASLT_MATMUL_PREF_MIN_ALIGNMENT_C_BYTES,
            CUBLASLT_MATMUL_PREF_MIN_ALIGNMENT_D_BYTES,
        ] {
            prefer(attribute, (&raw const alignment).cast(), 4)?;
        }
        // SAFETY: all descriptors are alive, and the preference is not used again.
        let found = unsafe {
            let found = result::get_matmul_algo_heuristic(
                self.handle,
                description,
                right,
                left,
                out,
                out,
                preference,
            );
            let _ = result::destroy_matmul_pref(preference);
            found
        };
        Ok(found.ok().map(|found| found.algo))
    }
}

/// The common alignment of addresses in bytes, at most 256, above which algorithms don't differ. `NULL` has any alignment.
pub(super) fn alignment(addresses: &[Address]) -> u32 {
    let together = addresses.iter().fold(256, |together, address| together | address.0);
    1 << together.trailing_zeros()
}

/// An address with exactly that alignment, in bytes, close to the given one: an algorithm chosen for it suits all addresses with that
/// alignment. `NULL` stays `NULL`.
pub(super) fn worst(address: Address, alignment: u32) -> Address {
    let alignment = u64::from(alignment);
    match address {
        Address::NULL => Address::NULL,
        Address(at) => Address((at & !(2 * alignment - 1)) | alignment),
    }
}

/// SAFETY: the description is alive.
unsafe fn point(description: sys::cublasLtMatmulDesc_t, pointers: &Pointers) -> Result<(), DeviceError> {
    let mut given = pointers.iter().filter(|(_, address)| *address != Address::NULL);
    // SAFETY: the caller's promise, and all of these are addresses.
    given.try_for_each(|(attribute, address)| unsafe { set(description, *attribute, &address.0) })
}

/// cublasLt's data type.
pub(super) fn kind_of(number: Number) -> sys::cudaDataType {
    match number {
        Number::F32 => sys::cudaDataType::CUDA_R_32F,
        Number::Bf16 => sys::cudaDataType::CUDA_R_16BF,
    }
}

/// The layout of a row-major matrix of rows × columns, which cublasLt sees as columns × rows.
pub(super) fn layout_of(
    rows: usize,
    columns: usize,
    kind: sys::cudaDataType,
) -> Result<sys::cublasLtMatrixLayout_t, DeviceError> {
    result::create_matrix_layout(kind, columns as u64, rows as u64, columns as i64)
        .or_failed("cublasLtMatrixLayoutCreate")
}

/// SAFETY: the description is alive, and T is what the attribute is.
pub(super) unsafe fn set<T>(
    description: sys::cublasLtMatmulDesc_t,
    attribute: sys::cublasLtMatmulDescAttributes_t,
    value: &T,
) -> Result<(), DeviceError> {
    let pointer = std::ptr::from_ref(value).cast::<c_void>();
    // SAFETY: the caller's promise.
    unsafe { result::set_matmul_desc_attribute(description, attribute, pointer, size_of::<T>()) }
        .or_failed("cublasLtMatmulDescSetAttribute")
}

impl Drop for Products {
    fn drop(&mut self) {
        // SAFETY: each is destroyed here alone.
        unsafe {
            for chosen in self.chosen.values().chain(self.chosen_fp8.values()) {
                let _ = result::destroy_matmul_desc(chosen.description);
                for layout in chosen.layouts {
                    let _ = result::destroy_matrix_layout(layout);
                }
            }
            let _ = result::destroy_handle(self.handle);
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn an_algorithm_is_for_the_alignment_of_all_that_is_given() {
        let of = |addresses: [u64; 5]| alignment(&addresses.map(Address));
        assert_eq!(of([512, 1024, 256, 0, 0]), 256);
        assert_eq!(of([512, 1024, 256, 0, 16]), 16, "a bias in the middle of a tensor");
        assert_eq!(of([512, 1024, 258, 64, 16]), 2);
        assert_eq!(of([1 << 40; 5]), 256);
        let asked = |at| worst(Address(at), 16).0;
        assert_eq!([asked(1024), asked(1040), asked(1032), asked(0)], [1040, 1040, 1040, 0]);
    }
}
