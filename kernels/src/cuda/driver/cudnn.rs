//! Attention by cuDNN, where it is there and has an engine for a shape.
//!
//! Nothing here is decided for good at the first sight of the library: whether it does an attention is what its own engines say
//! when they are asked for a plan, once for each shape.

mod description;
mod descriptor;
mod plan;

use super::answer::failed;
use super::handles::Stream;
use super::library::Library;
use super::places::Places;
use crate::cuda::attention::{Attention, Pass};
use crate::cuda::error::DeviceError;
use crate::cuda::fused::Shape;
use crate::cuda::launch::Address;
use cudarc::cudnn::sys;
use descriptor::done;
use plan::{Plan, Target};
use std::collections::HashMap;

/// The library with the plans it has made so far.
#[derive(Debug)]
pub(super) struct Cudnn {
    handle: sys::cudnnHandle_t,
    version: usize,
    /// Bytes of workspace that a plan may want.
    most: usize,
    /// Those there are none of with the reason.
    plans: HashMap<Shape, Result<Plan, String>>,
}

/// 9.10: what is asked for here means the same from there on.
const OLDEST: usize = 91_000;

impl Cudnn {
    /// On the GPU of this thread, for plans that want at most so many bytes of workspace.
    pub fn new(most: usize) -> Result<Self, DeviceError> {
        let version = version()?;
        let mut handle = std::ptr::null_mut();
        // SAFETY: it writes one pointer.
        done("cudnnCreate", unsafe { sys::cudnnCreate(&mut handle) })?;
        Ok(Self { handle, version, most, plans: HashMap::new() })
    }

    /// Its name and version.
    pub fn name(&self) -> String {
        written(self.version)
    }

    /// Bytes of workspace for an attention in bf16, or why there is no plan for it.
    pub fn plan(&mut self, attention: &Attention, pass: Pass) -> Result<usize, String> {
        let shape = Shape::of(attention, pass)?;
        let make = || {
            let plan = Target::Handle(self.handle).plan(&shape, self.version, self.most);
            plan.map_err(|error| error.to_string())
        };
        let plan = self.plans.entry(shape).or_insert_with(make);
        plan.as_ref().map(|plan| plan.workspace).map_err(String::clone)
    }

    /// Puts an attention on a stream for which there is a plan.
    pub fn run(
        &self,
        attention: &Attention,
        pass: Pass,
        workspace: Address,
        on: &Stream,
    ) -> Result<(), DeviceError> {
        let plan = Shape::of(attention, pass).ok().and_then(|shape| self.plans.get(&shape)?.as_ref().ok());
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

/// Bytes of workspace, however many, that cuDNN's plan for an attention has on a GPU that need not be there; `properties` is
/// what cuDNN itself writes down of one, as JSON.
///
/// # Errors
/// Without the library, or if it has no plan.
pub fn plan_without_gpu(properties: &str, attention: &Attention, pass: Pass) -> Result<usize, DeviceError> {
    let version = version()?;
    let shape = Shape::of(attention, pass).map_err(DeviceError::NoAlgorithm)?;
    Ok(Target::properties(properties)?.plan(&shape, version, usize::MAX)?.workspace)
}

/// The library's version, if it is there and can be used: 9.10.2 is 91002.
fn version() -> Result<usize, DeviceError> {
    Library::Cudnn.require()?;
    // SAFETY: it gives a constant.
    let version = unsafe { sys::cudnnGetVersion() };
    if version < OLDEST {
        let (found, oldest) = (written(version), written(OLDEST));
        return Err(failed("cudnnGetVersion", format_args!("{found} is older than {oldest}")));
    }
    // Without the cublasLt of its own CUDA it would end the process.
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

/// As people write a version.
fn written(version: usize) -> String {
    format!("cuDNN {}.{}.{}", version / 10_000, version / 100 % 100, version % 100)
}
