//! What the host writes to a GPU or reads there passes through pinned memory, which the GPU copies by itself: other streams go on
//! meanwhile, and what the host has may change as soon as a call returns.

use super::super::failed;
use super::super::handles::{Event, Pinned, Stream};
use super::Gpu;
use crate::cuda::launch::{Address, DeviceError};
use cudarc::driver::result;
use cudarc::driver::sys::CUevent_flags::CU_EVENT_DISABLE_TIMING;

/// Bytes that are copied at a time.
const STAGED: usize = 4 << 20;

/// Two pieces of pinned memory: the host fills one while the GPU copies out of the other.
#[derive(Debug)]
pub(super) struct Staging {
    pieces: [Piece; 2],
    /// Which is used next.
    next: usize,
}

#[derive(Debug)]
struct Piece {
    memory: Pinned,
    /// When the GPU has read it.
    copied: Event,
}

impl Staging {
    /// For that GPU.
    pub fn new(gpu: &Gpu) -> Result<Self, DeviceError> {
        let piece =
            || Ok(Piece { memory: gpu.pinned(STAGED)?, copied: Event::new(CU_EVENT_DISABLE_TIMING)? });
        Ok(Self { pieces: [piece()?, piece()?], next: 0 })
    }

    /// Copies the host's bytes to the GPU behind what is on a stream. They have been read when it returns.
    pub fn write(&mut self, to: Address, bytes: &[u8], on: &Stream) -> Result<(), DeviceError> {
        for (part, from) in bytes.chunks(STAGED).enumerate() {
            let Piece { memory, copied } = self.take()?;
            let staged = &mut memory.bytes()[..from.len()];
            staged.copy_from_slice(from);
            // SAFETY: the caller's address has that many bytes, and these are not written again before they are copied.
            unsafe { result::memcpy_htod_async(to.after(part * STAGED).0, staged, on.0) }
                .map_err(|error| failed("cuMemcpyHtoDAsync", error))?;
            copied.record(on)?;
        }
        Ok(())
    }

    /// Copies what is on the GPU behind what is on a stream, and waits for that.
    pub fn read(&mut self, from: Address, bytes: &mut [u8], on: &Stream) -> Result<(), DeviceError> {
        for (part, to) in bytes.chunks_mut(STAGED).enumerate() {
            let Piece { memory, copied } = self.take()?;
            let staged = &mut memory.bytes()[..to.len()];
            // SAFETY: the caller's address has that many bytes, and the copy is waited for before anyone looks.
            unsafe { result::memcpy_dtoh_async(staged, from.after(part * STAGED).0, on.0) }
                .map_err(|error| failed("cuMemcpyDtoHAsync", error))?;
            copied.record(on)?;
            copied.wait()?;
            to.copy_from_slice(staged);
        }
        Ok(())
    }

    /// The next piece, once nobody copies there any more.
    fn take(&mut self) -> Result<&mut Piece, DeviceError> {
        let piece = &mut self.pieces[self.next];
        self.next = 1 - self.next;
        piece.copied.wait()?;
        Ok(piece)
    }
}
