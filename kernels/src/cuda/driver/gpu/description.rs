//! A GPU's properties, and whether its driver loads what NVRTC compiles.

use super::super::answer::OrFailed;
use crate::cuda::error::DeviceError;
use cudarc::driver::{result, sys};
use cudarc::nvrtc;

/// A GPU's properties.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Description {
    /// As the driver names it.
    pub name: String,
    /// Compute capability: 9.0 is (9, 0).
    pub capability: (i32, i32),
    /// Multiprocessors.
    pub multiprocessors: i32,
    /// Bytes of memory.
    pub memory: usize,
    /// Highest clock of its multiprocessors, in kHz.
    pub clock: i32,
    /// The driver's CUDA version: 13000 is 13.0.
    pub driver: i32,
    /// NVRTC's version.
    pub compiler: (i32, i32),
}

fn ask(device: sys::CUdevice, attribute: sys::CUdevice_attribute) -> Result<i32, DeviceError> {
    // SAFETY: the device is one that the driver named.
    unsafe { result::device::get_attribute(device, attribute) }.or_failed("cuDeviceGetAttribute")
}

pub(super) fn capability(device: sys::CUdevice) -> Result<(i32, i32), DeviceError> {
    use sys::CUdevice_attribute::*;
    let [major, minor] =
        [CU_DEVICE_ATTRIBUTE_COMPUTE_CAPABILITY_MAJOR, CU_DEVICE_ATTRIBUTE_COMPUTE_CAPABILITY_MINOR]
            .map(|attribute| ask(device, attribute));
    Ok((major?, minor?))
}

pub(super) fn name(device: sys::CUdevice) -> Result<String, DeviceError> {
    result::device::get_name(device).or_failed("cuDeviceGetName")
}

pub(super) fn describe(device: sys::CUdevice) -> Result<Description, DeviceError> {
    use sys::CUdevice_attribute::*;
    // SAFETY: the device is one that the driver named.
    let memory = unsafe { result::device::total_mem(device) }.or_failed("cuDeviceTotalMem")?;
    Ok(Description {
        name: name(device)?,
        capability: capability(device)?,
        multiprocessors: ask(device, CU_DEVICE_ATTRIBUTE_MULTIPROCESSOR_COUNT)?,
        clock: ask(device, CU_DEVICE_ATTRIBUTE_CLOCK_RATE)?,
        memory,
        driver: driver_version()?,
        compiler: compiler_version()?,
    })
}

pub(super) fn driver_version() -> Result<i32, DeviceError> {
    let mut version = 0;
    // SAFETY: it writes one number.
    let answer = unsafe { sys::cuDriverGetVersion(&mut version) };
    answer.result().or_failed("cuDriverGetVersion")?;
    Ok(version)
}

pub(super) fn compiler_version() -> Result<(i32, i32), DeviceError> {
    let (mut major, mut minor) = (0, 0);
    // SAFETY: it writes two numbers.
    let answer = unsafe { nvrtc::sys::nvrtcVersion(&mut major, &mut minor) };
    answer.result().or_failed("nvrtcVersion")?;
    Ok((major, minor))
}

/// A driver's version as messages show it.
pub(super) fn written(version: i32) -> String {
    format!("{}.{}", version / 1000, version % 1000 / 10)
}

/// A driver loads kernels of newer compilers of its major version.
pub(super) fn agree(driver: i32, (major, minor): (i32, i32)) -> Result<(), DeviceError> {
    match major > driver / 1000 {
        true => Err(DeviceError::NewCompiler {
            compiler: format!("{major}.{minor}"),
            driver: written(driver),
            major: driver / 1000,
        }),
        false => Ok(()),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_compiler_of_a_later_cuda_than_the_driver_is_refused() {
        for known in [(12_080, (12, 8)), (12_080, (12, 9)), (13_000, (12, 8)), (13_000, (13, 2))] {
            agree(known.0, known.1).unwrap();
        }
        let text = agree(12_090, (13, 0)).unwrap_err().to_string();
        assert!(["13.0", "12.9", "CUDA 12"].iter().all(|part| text.contains(part)), "{text}");
        assert!(!text.contains('\n'), "{text}");
    }
}
