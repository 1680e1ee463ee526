//! cuDNN's backend descriptors, set attribute by attribute.

use super::super::answer::failed;
use crate::cuda::error::DeviceError;
use cudarc::cudnn::sys::{self, cudnnBackendAttributeName_t as Name, cudnnBackendAttributeType_t as Kind};
use std::ffi::{CStr, c_void};
use std::rc::Rc;

/// A descriptor before `finalize`. Dropping this destroys it.
#[derive(Debug)]
pub(super) struct Draft {
    raw: sys::cudnnBackendDescriptor_t,
    /// The descriptors among its attributes, and the one that it came from. cuDNN does not promise to copy them, so they outlive it.
    needs: Vec<Descriptor>,
}

/// A finalised descriptor, destroyed after all that refer to it.
#[derive(Debug, Clone)]
pub(super) struct Descriptor(Rc<Draft>);

/// An element type of attributes.
pub(super) trait Value: Copy {
    /// cuDNN's constant for it.
    const KIND: Kind;
}

macro_rules! values {
    ($($value:ty: $kind:ident),* $(,)?) => { $(impl Value for $value { const KIND: Kind = Kind::$kind; })* };
}

values! {
    u8: CUDNN_TYPE_CHAR,
    bool: CUDNN_TYPE_BOOLEAN,
    i64: CUDNN_TYPE_INT64,
    *mut c_void: CUDNN_TYPE_VOID_PTR,
    sys::cudnnHandle_t: CUDNN_TYPE_HANDLE,
    sys::cudnnDataType_t: CUDNN_TYPE_DATA_TYPE,
    sys::cudnnPointwiseMode_t: CUDNN_TYPE_POINTWISE_MODE,
    sys::cudnnReduceTensorOp_t: CUDNN_TYPE_REDUCTION_OPERATOR_TYPE,
    sys::cudnnBackendHeurMode_t: CUDNN_TYPE_HEUR_MODE,
}

impl Draft {
    /// An empty one.
    pub fn new(kind: sys::cudnnBackendDescriptorType_t) -> Result<Self, DeviceError> {
        let mut raw = std::ptr::null_mut();
        // SAFETY: it writes one pointer.
        let status = unsafe { sys::cudnnBackendCreateDescriptor(kind, &mut raw) };
        done(&format!("cudnnBackendCreateDescriptor of {kind:?}"), status)?;
        Ok(Self { raw, needs: Vec::new() })
    }

    /// Sets an attribute.
    pub fn with<T: Value>(self, name: Name, values: &[T]) -> Result<Self, DeviceError> {
        // SAFETY: `values` has that length and kind.
        unsafe { self.set(name, T::KIND, values) }
    }

    /// Sets an attribute to other descriptors.
    pub fn with_parts(mut self, name: Name, parts: &[&Descriptor]) -> Result<Self, DeviceError> {
        self.needs.extend(parts.iter().copied().cloned());
        let parts: Vec<_> = parts.iter().map(|part| part.raw()).collect();
        // SAFETY: `parts` has that length, and all descriptors are alive.
        unsafe { self.set(name, Kind::CUDNN_TYPE_BACKEND_DESCRIPTOR, &parts) }
    }

    /// SAFETY: T is what an attribute of that kind is an array of.
    unsafe fn set<T>(self, name: Name, kind: Kind, values: &[T]) -> Result<Self, DeviceError> {
        let (count, first) = (values.len() as i64, values.as_ptr().cast());
        // SAFETY: the caller's promise; cuDNN copies the values.
        let status = unsafe { sys::cudnnBackendSetAttribute(self.raw, name, kind, count, first) };
        done(&format!("cudnnBackendSetAttribute of {name:?}"), status).map(|()| self)
    }

    /// Finalises it: cuDNN checks the attributes.
    pub fn finalize(self) -> Result<Descriptor, DeviceError> {
        // SAFETY: it is alive.
        let status = unsafe { sys::cudnnBackendFinalize(self.raw) };
        done("cudnnBackendFinalize", status).map(|()| Descriptor(Rc::new(self)))
    }
}

impl Descriptor {
    fn raw(&self) -> sys::cudnnBackendDescriptor_t {
        self.0.raw
    }

    /// An integer attribute.
    pub fn number(&self, name: Name) -> Result<i64, DeviceError> {
        let (mut count, mut value) = (0, 0i64);
        let to = (&raw mut value).cast();
        // SAFETY: there is room for one.
        let status = unsafe { sys::cudnnBackendGetAttribute(self.raw(), name, i64::KIND, 1, &mut count, to) };
        done(&format!("cudnnBackendGetAttribute of {name:?}"), status).map(|()| value)
    }

    /// An attribute that is an array of constants of an enum, at most `room` of them, as integers: newer libraries have constants
    /// without a name here.
    pub fn constants(&self, name: Name, kind: Kind, room: usize) -> Result<Vec<i32>, DeviceError> {
        let (mut count, mut values) = (0, vec![0i32; room]);
        let to = values.as_mut_ptr().cast();
        // SAFETY: there is room for `room` values; C's enums are integers.
        let status =
            unsafe { sys::cudnnBackendGetAttribute(self.raw(), name, kind, room as i64, &mut count, to) };
        done(&format!("cudnnBackendGetAttribute of {name:?}"), status)?;
        values.truncate(count as usize);
        Ok(values)
    }

    /// An attribute that is an array of descriptors, at most `room` of them. cuDNN fills in empty descriptors and finalises them.
    pub fn parts(
        &self,
        name: Name,
        kind: sys::cudnnBackendDescriptorType_t,
        room: usize,
    ) -> Result<Vec<Descriptor>, DeviceError> {
        let mut made = (0..room).map(|_| Draft::new(kind)).collect::<Result<Vec<_>, _>>()?;
        let mut pointers: Vec<_> = made.iter().map(|made| made.raw).collect();
        let (to, mut count) = (pointers.as_mut_ptr().cast(), 0);
        let kind = Kind::CUDNN_TYPE_BACKEND_DESCRIPTOR;
        // SAFETY: there is room for `room` values, each an empty descriptor of that kind.
        let status =
            unsafe { sys::cudnnBackendGetAttribute(self.raw(), name, kind, room as i64, &mut count, to) };
        done(&format!("cudnnBackendGetAttribute of {name:?}"), status)?;
        made.truncate(count as usize);
        let of_this = |mut made: Draft| {
            made.needs.push(self.clone());
            Descriptor(Rc::new(made))
        };
        Ok(made.into_iter().map(of_this).collect())
    }

    /// Enqueues an execution plan on the handle's stream.
    ///
    /// SAFETY: the handle is alive, and what the pack points to is as large as the plan takes it to be.
    pub unsafe fn execute(&self, handle: sys::cudnnHandle_t, pack: &Descriptor) -> sys::cudnnStatus_t {
        // SAFETY: the caller's promise.
        unsafe { sys::cudnnBackendExecute(handle, self.raw(), pack.raw()) }
    }
}

impl Drop for Draft {
    fn drop(&mut self) {
        // SAFETY: it is destroyed here alone; what it needs goes after this.
        let _ = unsafe { sys::cudnnBackendDestroyDescriptor(self.raw) };
    }
}

/// The result of a call, with cuDNN's message if it failed.
pub(super) fn done(call: &str, status: sys::cudnnStatus_t) -> Result<(), DeviceError> {
    if status == sys::cudnnStatus_t::CUDNN_STATUS_SUCCESS {
        return Ok(());
    }
    let mut words = [0; 512];
    // SAFETY: it writes at most `words.len()` bytes and ends them with 0.
    let words = unsafe {
        sys::cudnnGetLastErrorString(words.as_mut_ptr(), words.len());
        CStr::from_ptr(words.as_ptr())
    };
    let words = words.to_string_lossy();
    let reason = words.lines().next().unwrap_or_default();
    Err(failed(call, format_args!("{status:?} ({reason})")))
}
