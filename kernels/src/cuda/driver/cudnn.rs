//! Attention by cuDNN, if the library is installed and has an engine for the shape.
//!
//! Its engines are asked for a plan once for each shape; no list of supported shapes is kept here.

mod description;
mod descriptor;
mod plan;

use super::answer::failed;
use super::handles::Stream;
use super::library::Library;
use super::places::Places;
use crate::cuda::attention::{Attention, Pass};
use crate::cuda::error::DeviceError;
use crate::cuda::fused::AttentionShape;
use crate::cuda::launch::Address;
use cudarc::cudnn::sys;
use descriptor::done;
use plan::{Plan, Target};
use std::collections::HashMap;

/// The library with its plans so far.
#[derive(Debug)]
pub(super) struct Cudnn {
    handle: sys::cudnnHandle_t,
    version: usize,
    /// The most bytes of workspace that a plan may need.
    most: usize,
    /// By shape; `Err` says why there is none.
    plans: HashMap<AttentionShape, Result<Plan, String>>,
}

/// 9.10, the oldest version whose attributes mean what this module assumes.
const OLDEST: usize = 91_000;

impl Cudnn {
    /// On the GPU of this thread, for plans of at most `most` bytes of workspace.
    pub fn new(most: usize) -> Result<Self, DeviceError> {
        let version = version()?;
        let mut handle = std::ptr::null_mut();
        // SAFETY: it writes one pointer.
        done("cudnnCreate", unsafe { sys::cudnnCreate(&mut handle) })?;
        Ok(Self { handle, version, most, plans: HashMap::new() })
    }

    /// Name and version.
    pub fn name(&self) -> String {
        written(self.version)
    }

    /// Bytes of workspace for an attention in bf16, or why there is no plan for it.
    pub fn plan(&mut self, attention: &Attention, pass: Pass) -> Result<usize, String> {
        let shape = AttentionShape::of(attention, pass)?;
        let make = || {
            let plan = Target::Handle(self.handle).plan(&shape, self.version, self.most);
            plan.map_err(|error| error.to_string())
        };
        let plan = self.plans.entry(shape).or_insert_with(make);
        plan.as_ref().map(|plan| plan.workspace).map_err(String::clone)
    }

    /// Enqueues an attention for which `plan` succeeded.
    pub fn run(
        &self,
        attention: &Attention,
        pass: Pass,
        workspace: Address,
        on: &Stream,
    ) -> Result<(), DeviceError> {
        let plan =
            AttentionShape::of(attention, pass).ok().and_then(|shape| self.plans.get(&shape)?.as_ref().ok());
        let plan = plan.expect("it was asked for before");
        // SAFETY: both are alive.
        done("cudnnSetStream", unsafe { sys::cudnnSetStream(self.handle, on.0.cast()) })?;
        plan.run(self.handle, attention, workspace)
    }
}

impl Drop for Cudnn {
    fn drop(&mut self) {
        self.plans.clear();
        // SAFETY: it is destroyed here alone.
        let _ = unsafe { sys::cudnnDestroy(self.handle) };
    }
}

/// Bytes of workspace of cuDNN's plan for an attention on a GPU that need not be installed. `properties` is cuDNN's
/// description of that GPU, as JSON. The size is not limited.
///
/// # Errors
/// If the library is missing or has no plan.
pub fn plan_without_gpu(properties: &str, attention: &Attention, pass: Pass) -> Result<usize, DeviceError> {
    let version = version()?;
    let shape = AttentionShape::of(attention, pass).map_err(DeviceError::NoAlgorithm)?;
    Ok(Target::properties(properties)?.plan(&shape, version, usize::MAX)?.workspace)
}

/// The library's version, if it is installed and recent enough: 9.10.2 is 91002.
fn version() -> Result<usize, DeviceError> {
    Library::Cudnn.require()?;
    // SAFETY: it gives a constant.
    let version = unsafe { sys::cudnnGetVersion() };
    if version < OLDEST {
        let (found, oldest) = (written(version), written(OLDEST));
        return Err(failed("cudnnGetVersion", format_args!("{found} is older than {oldest}")));
    }
    // cuDNN would end the process without the cublasLt of the same CUDA.
    // SAFETY: it gives a constant.
    let cuda = unsafe { sys::cudnnGetCudartVersion() } / 1000;
    let needed = format!("libcublasLt.so.{cuda}");
    match Places::of_process().open(&[&needed]) {
        Some(loaded) => {
            // cuDNN opens it by name, later.
            std::mem::forget(loaded);
            Ok(version)
        }
        None => Err(failed("cuDNN", format_args!("{needed}, which it needs, is not there"))),
    }
}

/// Name and version as messages show them.
fn written(version: usize) -> String {
    format!("cuDNN {}.{}.{}", version / 10_000, version / 100 % 100, version % 100)
}
