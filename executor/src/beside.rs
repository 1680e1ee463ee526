//! What does not stay in a rank's memory between its uses: a file stands for a drive. What goes to host memory is where it
//! was if the rank computes on processors; a GPU copies it by itself, on the streams of such copies. Offloaded moments are the host's, where the update takes place.

use crate::device::{Here, Numbers, Slice};
use crate::error::Fault;
use crate::frame::Kept;
use crate::state::LayerState;
use crate::tensor::{Tensor, take_buffer};
use std::collections::BTreeMap;
use std::fs::File;
use std::io::{Read, Seek, SeekFrom, Write};
use trainwright_kernels::cuda::Event;
use trainwright_spec::plan::Offload;
use trainwright_spec::program::Place;

/// What a rank offloads, and its drive.
pub(crate) struct Beside {
    offload: Offload,
    /// A file without a name, which is gone with the rank; none where nothing goes to a drive.
    file: Option<File>,
    end: u64,
    /// Places of that many numbers that nothing is at.
    free: BTreeMap<usize, Vec<u64>>,
}

/// A tensor that is elsewhere.
#[derive(Debug)]
pub(crate) enum Away {
    OnDrive(Stowed),
    /// From that moment on.
    OnHost(Tensor, Option<Event>),
}

/// Numbers on a drive.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) struct Stowed {
    place: u64,
    length: usize,
    width: usize,
}

impl Beside {
    /// With a drive if the plan has use for one.
    pub fn new(offload: Offload) -> Result<Self, Fault> {
        let drives = [offload.optimizer, offload.activations].contains(&Some(Place::Nvme));
        let file = if drives { Some(tempfile::tempfile().map_err(fault)?) } else { None };
        Ok(Self { offload, file, end: 0, free: BTreeMap::new() })
    }

    /// Takes the moments of a layer to the drive, if they belong there.
    pub fn stow_moments(&mut self, layer: &mut LayerState) -> Result<(), Fault> {
        if self.offload.optimizer != Some(Place::Nvme) {
            return Ok(());
        }
        for moment in layer.moments.iter_mut().flatten() {
            let stowed = self.stow(moment.host(), 1)?;
            *moment = Numbers::default();
            layer.stowed.push(stowed);
        }
        Ok(())
    }

    /// Brings them back.
    pub fn bring_moments(&mut self, layer: &mut LayerState) -> Result<(), Fault> {
        let stowed = std::mem::take(&mut layer.stowed);
        for (moment, stowed) in layer.moments.iter_mut().flatten().zip(stowed) {
            *moment = self.bring(stowed)?.into();
        }
        Ok(())
    }

    /// Takes what is kept for a module to where activations belong.
    pub fn stow_kept(&mut self, kept: &mut Kept) -> Result<(), Fault> {
        let mut all = Vec::new();
        for (index, slot) in kept.tensors().into_iter().enumerate() {
            let is_far = slot.as_ref().is_some_and(|tensor| matches!(tensor.slice(), Slice::Far(_)));
            let away = match (self.offload.activations, slot.as_ref()) {
                (Some(Place::Nvme), Some(tensor)) => {
                    let numbers = Here::device();
                    Away::OnDrive(self.stow(&numbers.read(tensor.slice()), tensor.width())?)
                }
                (Some(Place::Host), Some(tensor)) if is_far => {
                    let device = Here::device();
                    Away::OnHost(tensor.copied_to_host(&*device), device.moment())
                }
                _ => continue,
            };
            *slot = None;
            all.push((index, away));
        }
        kept.away = all;
        Ok(())
    }

    /// Brings it back.
    pub fn bring_kept(&mut self, kept: &mut Kept) -> Result<(), Fault> {
        let device = Here::device();
        for (index, away) in std::mem::take(&mut kept.away) {
            *kept.tensors()[index] = Some(match away {
                Away::OnDrive(stowed) => Tensor::take_to(&*device, self.bring(stowed)?, stowed.width),
                Away::OnHost(tensor, there) => {
                    there.iter().for_each(|there| device.wait(there));
                    tensor.copied_back(&*device)
                }
            });
        }
        Ok(())
    }

    fn stow(&mut self, data: &[f32], width: usize) -> Result<Stowed, Fault> {
        let length = data.len();
        let known = self.free.get_mut(&length).and_then(Vec::pop);
        let place = known.unwrap_or(self.end);
        if known.is_none() {
            self.end += 4 * length as u64;
        }
        let bytes: Vec<u8> = data.iter().flat_map(|number| number.to_le_bytes()).collect();
        let file = self.file.as_mut().expect("what is stowed has a drive");
        file.seek(SeekFrom::Start(place)).map_err(fault)?;
        file.write_all(&bytes).map_err(fault)?;
        Ok(Stowed { place, length, width })
    }

    fn bring(&mut self, Stowed { place, length, .. }: Stowed) -> Result<Vec<f32>, Fault> {
        let file = self.file.as_mut().expect("what is stowed has a drive");
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
    fn what_is_stowed_comes_back_and_leaves_room() {
        let mut beside =
            Beside::new(Offload { activations: Some(Place::Nvme), ..Offload::default() }).unwrap();
        let first = beside.stow(&[1.0, -2.5], 2).unwrap();
        let second = beside.stow(&[3.0], 1).unwrap();
        assert_eq!(beside.bring(first).unwrap(), [1.0, -2.5]);
        let third = beside.stow(&[4.0, 5.0], 1).unwrap();
        assert_eq!((third.place, beside.end), (first.place, 12));
        assert_eq!(beside.bring(second).unwrap(), [3.0]);
        assert_eq!(beside.bring(third).unwrap(), [4.0, 5.0]);
    }
}
