//! The choice of cuDNN's engine for a shape.

use super::description::Description;
use super::descriptor::{Descriptor, Draft, done};
use crate::cuda::attention::{Attention, Pass};
use crate::cuda::error::DeviceError;
use crate::cuda::fused::graph::Storage;
use crate::cuda::fused::{AttentionShape, Part};
use crate::cuda::launch::Address;
use cudarc::cudnn::sys::cudnnBackendAttributeName_t::*;
use cudarc::cudnn::sys::cudnnBackendDescriptorType_t::*;
use cudarc::cudnn::sys::cudnnBackendHeurMode_t::CUDNN_HEUR_MODE_A;
use cudarc::cudnn::sys::cudnnBackendNumericalNote_t::CUDNN_NUMERICAL_NOTE_NONDETERMINISTIC;
use cudarc::cudnn::sys::{self, cudnnBackendAttributeType_t};
use std::ffi::c_void;

/// The GPU that a plan is for.
#[derive(Debug)]
pub(super) enum Target {
    /// On the GPU of a handle.
    Handle(sys::cudnnHandle_t),
    /// On a GPU known by its properties alone: the plan can't run here.
    Properties(Descriptor),
}

/// An engine with its settings, ready to run.
#[derive(Debug)]
pub(super) struct Plan {
    descriptor: Descriptor,
    /// Bytes of workspace.
    pub workspace: usize,
    /// How many of them hold tensors of the graph; they come first.
    named: usize,
    /// The tensors that it reads and writes.
    parts: Vec<Part>,
}

/// How many engines are tried.
const ENGINES: usize = 16;
/// An upper bound of the notes of an engine.
const NOTES: usize = 64;
/// Up to this version, backward is wrong if the keys don't fill tiles of this size and no mask says so.
const LAST_WITHOUT_REST: (usize, i64) = (91_500, 128);

impl Target {
    /// A GPU by its properties, as cuDNN writes them down itself.
    pub fn properties(json: &str) -> Result<Self, DeviceError> {
        let made = Draft::new(CUDNN_BACKEND_DEVICEPROP_DESCRIPTOR)?
            .with(CUDNN_ATTR_DEVICEPROP_JSON_REPRESENTATION, json.as_bytes())?;
        Ok(Target::Properties(made.finalize()?))
    }

    /// The first engine in cuDNN's order that needs at most `most` bytes of workspace.
    pub fn plan(&self, shape: &AttentionShape, version: usize, most: usize) -> Result<Plan, DeviceError> {
        let none = |reason: String| DeviceError::NoAlgorithm(format!("attention by cuDNN: {reason}"));
        let (last, tile) = LAST_WITHOUT_REST;
        if shape.pass.is_backward() && version <= last && shape.keys % tile != 0 {
            return Err(none(format!("version {version} needs a multiple of {tile} keys")));
        }
        let graph = shape.graph();
        let description = Description::new(&graph)?;
        let operations = description.graph()?;
        let operations = match self {
            Target::Handle(handle) => operations.with(CUDNN_ATTR_OPERATIONGRAPH_HANDLE, &[*handle])?,
            Target::Properties(_) => operations,
        };
        let mut refusal = none("it has no engine for this shape".into());
        for engine in self.engines(&operations.finalize()?)? {
            // `Pass::Backward` allows sums of dQ in any order.
            if shape.pass != Pass::Backward && is_random(&engine)? {
                refusal = none("its engines give other bits in every run".into());
                continue;
            }
            let ready = self.ready(&engine).map(|(plan, bytes)| (plan, shape.graph_workspace() + bytes));
            match ready {
                Ok((_, workspace)) if workspace > most => {
                    refusal =
                        none(format!("it wants a workspace of {workspace} bytes, and {most} are granted"));
                }
                Ok((descriptor, workspace)) => {
                    let parts = graph.tensors.iter().filter_map(|tensor| match tensor.storage {
                        Storage::Given(part) | Storage::Scalar(part) => Some(part),
                        Storage::Between => None,
                    });
                    let parts = parts.collect();
                    return Ok(Plan { descriptor, workspace, named: shape.graph_workspace(), parts });
                }
                Err(error) => refusal = error,
            }
        }
        Err(refusal)
    }

    fn engines(&self, operations: &Descriptor) -> Result<Vec<Descriptor>, DeviceError> {
        let asked = Draft::new(CUDNN_BACKEND_ENGINEHEUR_DESCRIPTOR)?
            .with_parts(CUDNN_ATTR_ENGINEHEUR_OPERATION_GRAPH, &[operations])?
            .with(CUDNN_ATTR_ENGINEHEUR_MODE, &[CUDNN_HEUR_MODE_A])?;
        let asked = match self {
            Target::Handle(_) => asked,
            Target::Properties(properties) => {
                asked.with_parts(CUDNN_ATTR_ENGINEHEUR_DEVICEPROP, &[properties])?
            }
        };
        asked.finalize()?.parts(CUDNN_ATTR_ENGINEHEUR_RESULTS, CUDNN_BACKEND_ENGINECFG_DESCRIPTOR, ENGINES)
    }

    fn ready(&self, engine: &Descriptor) -> Result<(Descriptor, usize), DeviceError> {
        let made = Draft::new(CUDNN_BACKEND_EXECUTION_PLAN_DESCRIPTOR)?;
        let made = match self {
            Target::Handle(handle) => made.with(CUDNN_ATTR_EXECUTION_PLAN_HANDLE, &[*handle])?,
            Target::Properties(properties) => {
                made.with_parts(CUDNN_ATTR_EXECUTION_PLAN_DEVICEPROP, &[properties])?
            }
        };
        let made = made.with_parts(CUDNN_ATTR_EXECUTION_PLAN_ENGINE_CONFIG, &[engine])?.finalize()?;
        let workspace = made.number(CUDNN_ATTR_EXECUTION_PLAN_WORKSPACE_SIZE)?;
        Ok((made, workspace as usize))
    }
}

/// Whether cuDNN's notes on an engine say that its results differ from run to run. A missing note proves nothing: engines that add
/// atomically have none.
fn is_random(settings: &Descriptor) -> Result<bool, DeviceError> {
    let kind = cudnnBackendAttributeType_t::CUDNN_TYPE_NUMERICAL_NOTE;
    let differs = CUDNN_NUMERICAL_NOTE_NONDETERMINISTIC as i32;
    let engines = settings.parts(CUDNN_ATTR_ENGINECFG_ENGINE, CUDNN_BACKEND_ENGINE_DESCRIPTOR, 1)?;
    let notes = engines.iter().map(|engine| engine.constants(CUDNN_ATTR_ENGINE_NUMERICAL_NOTE, kind, NOTES));
    Ok(notes.collect::<Result<Vec<_>, _>>()?.concat().contains(&differs))
}

impl Plan {
    /// Enqueues it on the handle's stream.
    pub fn run(
        &self,
        handle: sys::cudnnHandle_t,
        attention: &Attention,
        workspace: Address,
    ) -> Result<(), DeviceError> {
        let mut values: Vec<Option<f32>> = self.parts.iter().map(|part| part.value(attention)).collect();
        let pointers = self.parts.iter().zip(&mut values).map(|(part, value)| match value {
            Some(value) => std::ptr::from_mut(value).cast::<c_void>(),
            None => part.address(attention, workspace).0 as *mut c_void,
        });
        let pointers: Vec<*mut c_void> = pointers.collect();
        let numbers: Vec<i64> = self.parts.iter().map(|part| *part as i64).collect();
        let pack = Draft::new(CUDNN_BACKEND_VARIANT_PACK_DESCRIPTOR)?
            .with(CUDNN_ATTR_VARIANT_PACK_UNIQUE_IDS, &numbers)?
            .with(CUDNN_ATTR_VARIANT_PACK_DATA_POINTERS, &pointers)?
            .with(CUDNN_ATTR_VARIANT_PACK_WORKSPACE, &[workspace.after(self.named).0 as *mut c_void])?
            .finalize()?;
        // SAFETY: the caller's addresses have the sizes of its attention, as for any kernel, and the workspace that of this plan;
        // the host's numbers are read before the call returns.
        done("cudnnBackendExecute", unsafe { self.descriptor.execute(handle, &pack) })
    }
}
