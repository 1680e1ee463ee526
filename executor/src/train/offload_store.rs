//! The offload store: holds state and activations outside a rank's memory between their uses. A file stands in for NVMe.
//!
//! Activations in host memory stay where they are if the rank computes on processors; a GPU copies them, on the streams of
//! such copies. Offloaded moments are in host memory, where the update runs.

use crate::device::host_buffers::take_buffer;
use crate::device::tensor::Tensor;
use crate::device::{CurrentDevice, Numbers, Slice};
use crate::error::Fault;
use std::collections::BTreeMap;
use std::fs::File;
use std::io::{Read, Seek, SeekFrom, Write};
use trainwright_kernels::cuda::Event;
use trainwright_spec::plan::Offload;
use trainwright_spec::program::Place;

/// The offload settings of a rank, and its drive.
pub(crate) struct OffloadStore {
    offload: Offload,
    /// A file without a name, which is gone with the rank; `None` if nothing goes to a drive.
    file: Option<File>,
    end: u64,
    /// By length: positions in the file that are free.
    free: BTreeMap<usize, Vec<u64>>,
}

/// An offloaded tensor.
#[derive(Debug)]
pub(crate) enum Offloaded {
    OnDrive(Stored),
    /// In host memory once that event has happened.
    OnHost(Tensor, Option<Event>),
}

/// Numbers on a drive.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) struct Stored {
    place: u64,
    length: usize,
    width: usize,
}

impl OffloadStore {
    /// With a drive if the plan offloads to one.
    pub fn new(offload: Offload) -> Result<Self, Fault> {
        let drives = [offload.optimizer, offload.activations].contains(&Some(Place::Nvme));
        let file = if drives { Some(tempfile::tempfile().map_err(fault)?) } else { None };
        Ok(Self { offload, file, end: 0, free: BTreeMap::new() })
    }

    /// Moves moments to the drive, if they belong there. Returns where they are.
    pub fn store_moments<'n>(
        &mut self,
        moments: impl Iterator<Item = &'n mut Numbers>,
    ) -> Result<Vec<Stored>, Fault> {
        if self.offload.optimizer != Some(Place::Nvme) {
            return Ok(Vec::new());
        }
        let move_out = |moment: &mut Numbers| self.store(std::mem::take(moment).host(), 1);
        moments.map(move_out).collect()
    }

    /// Moves moments back from where they are.
    pub fn load_moments<'n>(
        &mut self,
        moments: impl Iterator<Item = &'n mut Numbers>,
        stored: Vec<Stored>,
    ) -> Result<(), Fault> {
        for (moment, stored) in moments.zip(stored) {
            *moment = self.load(stored)?.into();
        }
        Ok(())
    }

    /// Moves those of some tensors that are there to where activations belong, each by its index.
    pub fn store_tensors<const N: usize>(
        &mut self,
        tensors: [&mut Option<Tensor>; N],
    ) -> Result<Vec<(usize, Offloaded)>, Fault> {
        let mut all = Vec::new();
        for (index, slot) in tensors.into_iter().enumerate() {
            let Some(tensor) = slot else { continue };
            let device = CurrentDevice::get();
            let is_on_device = matches!(tensor.slice(), Slice::Device(_));
            let offloaded = match self.offload.activations {
                Some(Place::Nvme) => {
                    Offloaded::OnDrive(self.store(&device.read(tensor.slice()), tensor.width())?)
                }
                Some(Place::Host) if is_on_device => {
                    Offloaded::OnHost(tensor.copied_to_host(&*device), device.record_event())
                }
                _ => continue,
            };
            *slot = None;
            all.push((index, offloaded));
        }
        Ok(all)
    }

    /// Moves them back.
    pub fn load_tensors<const N: usize>(
        &mut self,
        tensors: [&mut Option<Tensor>; N],
        offloaded: Vec<(usize, Offloaded)>,
    ) -> Result<(), Fault> {
        let device = CurrentDevice::get();
        for (index, offloaded) in offloaded {
            *tensors[index] = Some(match offloaded {
                Offloaded::OnDrive(stored) => Tensor::take_to(&*device, self.load(stored)?, stored.width),
                Offloaded::OnHost(tensor, there) => {
                    there.iter().for_each(|there| device.wait(there));
                    tensor.copied_back(&*device)
                }
            });
        }
        Ok(())
    }

    fn store(&mut self, data: &[f32], width: usize) -> Result<Stored, Fault> {
        let length = data.len();
        let known = self.free.get_mut(&length).and_then(Vec::pop);
        let place = known.unwrap_or(self.end);
        if known.is_none() {
            self.end += 4 * length as u64;
        }
        let bytes: Vec<u8> = data.iter().flat_map(|number| number.to_le_bytes()).collect();
        let file = self.file.as_mut().expect("what is stored has a drive");
        file.seek(SeekFrom::Start(place)).map_err(fault)?;
        file.write_all(&bytes).map_err(fault)?;
        Ok(Stored { place, length, width })
    }

    fn load(&mut self, Stored { place, length, .. }: Stored) -> Result<Vec<f32>, Fault> {
        let file = self.file.as_mut().expect("what is stored has a drive");
        let mut bytes = vec![0; 4 * length];
        file.seek(SeekFrom::Start(place)).map_err(fault)?;
        file.read_exact(&mut bytes).map_err(fault)?;
        self.free.entry(length).or_default().push(place);
        let mut data = take_buffer(length);
        for (number, bytes) in data.iter_mut().zip(bytes.chunks_exact(4)) {
            *number = f32::from_le_bytes(bytes.try_into().expect("a chunk has four bytes"));
        }
        Ok(data)
    }
}

fn fault(error: std::io::Error) -> Fault {
    Fault::Drive(error.to_string())
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn what_is_stored_comes_back_and_leaves_room() {
        let mut store =
            OffloadStore::new(Offload { activations: Some(Place::Nvme), ..Offload::default() }).unwrap();
        let first = store.store(&[1.0, -2.5], 2).unwrap();
        let second = store.store(&[3.0], 1).unwrap();
        assert_eq!(store.load(first).unwrap(), [1.0, -2.5]);
        let third = store.store(&[4.0, 5.0], 1).unwrap();
        assert_eq!((third.place, store.end), (first.place, 12));
        assert_eq!(store.load(second).unwrap(), [3.0]);
        assert_eq!(store.load(third).unwrap(), [4.0, 5.0]);
    }
}
