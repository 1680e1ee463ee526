//! Copies between the host's memory and a GPU go through pinned buffers, which the GPU copies by itself: other streams go on meanwhile,
//! and the host may change its bytes as soon as a call returns.

use super::super::answer::OrFailed;
use super::super::events::PooledEvent;
use super::super::handles::Pinned;
use super::Gpu;
use crate::cuda::error::DeviceError;
use crate::cuda::launch::Address;
use cudarc::driver::result;

/// Bytes that are copied at a time.
const STAGED: usize = 4 << 20;

/// Two pinned buffers: the host fills one while the GPU copies the other.
#[derive(Debug)]
pub(super) struct Staging {
    buffers: [Buffer; 2],
    /// Index of the buffer to use next.
    next: usize,
}

#[derive(Debug)]
struct Buffer {
    memory: Pinned,
    /// Recorded behind its last copy; `None` before the first one.
    copied: Option<PooledEvent>,
}

impl Staging {
    /// Allocates both buffers.
    pub fn new(gpu: &Gpu) -> Result<Self, DeviceError> {
        let buffer = || Ok(Buffer { memory: gpu.pinned(STAGED)?, copied: None });
        Ok(Self { buffers: [buffer()?, buffer()?], next: 0 })
    }

    /// Enqueues a copy of the host's bytes on the GPU's selected stream. They have been read when it returns.
    pub fn write(&mut self, gpu: &Gpu, to: Address, bytes: &[u8]) -> Result<(), DeviceError> {
        for (part, from) in bytes.chunks(STAGED).enumerate() {
            let Buffer { memory, copied } = self.take(gpu)?;
            let staged = &mut memory.bytes()[..from.len()];
            staged.copy_from_slice(from);
            // SAFETY: the caller's address has that many bytes, and these are not written again before they are copied.
            unsafe { result::memcpy_htod_async(to.after(part * STAGED).0, staged, gpu.selected().0) }
                .or_failed("cuMemcpyHtoDAsync")?;
            *copied = Some(gpu.events.record(gpu.selected())?);
        }
        Ok(())
    }

    /// Enqueues a copy to the host on the GPU's selected stream, and waits for it.
    pub fn read(&mut self, gpu: &Gpu, from: Address, bytes: &mut [u8]) -> Result<(), DeviceError> {
        for (part, to) in bytes.chunks_mut(STAGED).enumerate() {
            let Buffer { memory, copied } = self.take(gpu)?;
            let staged = &mut memory.bytes()[..to.len()];
            // SAFETY: the caller's address has that many bytes, and the copy is waited for before anyone looks.
            unsafe { result::memcpy_dtoh_async(staged, from.after(part * STAGED).0, gpu.selected().0) }
                .or_failed("cuMemcpyDtoHAsync")?;
            let done = copied.insert(gpu.events.record(gpu.selected())?);
            gpu.wait_until(|| done.is_over())?;
            to.copy_from_slice(staged);
        }
        Ok(())
    }

    /// Waits until the next buffer is free.
    fn take(&mut self, gpu: &Gpu) -> Result<&mut Buffer, DeviceError> {
        let buffer = &mut self.buffers[self.next];
        self.next = 1 - self.next;
        if let Some(copied) = &buffer.copied {
            gpu.wait_until(|| copied.is_over())?;
        }
        Ok(buffer)
    }
}
