//! Which way ranks communicate: through the host, on a GPU that they share, or by NCCL. It is decided here alone.

use crate::comm::local_ranks::LocalRanks;
use crate::comm::transport::{Envelope, Tag};
use crate::device::{DeviceKind, GpuName, LocalRank};
use crate::error::RunError;
use std::fmt;

/// How some ranks communicate.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub enum Route {
    /// The host reads the numbers, and the transport of the host's ranks carries them.
    Host,
    /// They share a GPU and a process: copies and sums on the GPU, for which the host does not wait.
    Device,
    /// NCCL: each has a separate GPU, or NCCL lets them share one.
    Nccl,
}

impl fmt::Display for Route {
    fn fmt(&self, formatter: &mut fmt::Formatter) -> fmt::Result {
        formatter.write_str(match self {
            Route::Host => "through the host",
            Route::Device => "on the GPU",
            Route::Nccl => "by NCCL",
        })
    }
}

/// Where a rank computes.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
struct Location {
    /// A number of its process.
    process: usize,
    /// Its GPU, if it computes on one.
    gpu: Option<GpuName>,
}

/// Where all ranks compute, and so which route is between them.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(crate) struct Routes {
    /// By rank.
    locations: Vec<Location>,
    /// Whether NCCL lets ranks share a GPU. Those of one process do without: they communicate on the GPU.
    shared_by_nccl: bool,
}

impl Routes {
    /// Those of all ranks of a run. Ranks that are processes exchange where they compute, in a group of that number.
    ///
    /// # Errors
    /// `Rank` if one of them is gone.
    pub fn of(here: &LocalRanks, ranks: usize, group: usize, device: DeviceKind) -> Result<Self, RunError> {
        let Some(local_rank) = here.local_rank else {
            let gpu = |number| (device.gpu)(LocalRank { number, is_process: false });
            let locations = (0..ranks).map(|rank| Location { process: 0, gpu: gpu(rank) }).collect();
            return Ok(Self { locations, shared_by_nccl: false });
        };
        let rank = here.ranks[0];
        let location =
            Location { process: rank, gpu: (device.gpu)(LocalRank { number: local_rank, is_process: true }) };
        let Some(gpu) = location.gpu else {
            let locations = (0..ranks).map(|process| Location { process, gpu: None }).collect();
            return Ok(Self { locations, shared_by_nccl: false });
        };
        let shares = (device.shares_by_nccl)();
        let envelope = |from, to| Envelope { from, to, tag: Tag::Group(group) };
        for to in (0..ranks).filter(|to| *to != rank) {
            let message = gpu.into_iter().chain([u8::from(shares)]).collect();
            here.transport.send_bytes(envelope(rank, to), message);
        }
        let mut shared_by_nccl = shares;
        let mut locations = Vec::new();
        for from in 0..ranks {
            let gone = |fault| RunError::Rank { rank: from, step: 0, op: "start".into(), fault };
            if from == rank {
                locations.push(location);
                continue;
            }
            let mut message = here.transport.receive_bytes(envelope(from, rank)).map_err(gone)?;
            // All ranks or none: otherwise some would wait for NCCL and some for the host.
            shared_by_nccl &= message.pop() == Some(1);
            locations.push(Location { process: from, gpu: GpuName::try_from(message).ok() });
        }
        Ok(Self { locations, shared_by_nccl })
    }

    /// The GPU of a rank, if it computes on one.
    pub fn gpu(&self, rank: usize) -> Option<GpuName> {
        self.locations[rank].gpu
    }

    /// Whether any rank computes on a GPU.
    pub fn has_gpus(&self) -> bool {
        self.locations.iter().any(|location| location.gpu.is_some())
    }

    /// Whether a process has ranks on several GPUs.
    pub fn has_several_gpus_in_a_process(&self) -> bool {
        let pairs = self
            .locations
            .iter()
            .enumerate()
            .flat_map(|(index, one)| self.locations[..index].iter().map(move |other| (one, other)));
        let mut on_gpus = pairs.filter(|(one, other)| one.gpu.is_some() && other.gpu.is_some());
        on_gpus.any(|(one, other)| one.process == other.process && one.gpu != other.gpu)
    }

    /// How the members of a group communicate.
    pub fn group(&self, ranks: &[usize]) -> Route {
        let locations = || ranks.iter().map(|rank| &self.locations[*rank]);
        let Some(first) = locations().next() else { return Route::Host };
        let is_other = |(index, location): (usize, &Location)| {
            locations().take(index).all(|other| other.gpu != location.gpu)
        };
        if locations().any(|location| location.gpu.is_none()) {
            Route::Host
        } else if locations().all(|location| location == first) {
            Route::Device
        } else if self.shared_by_nccl || locations().enumerate().all(is_other) {
            Route::Nccl
        } else {
            Route::Host
        }
    }

    /// How a message goes from one rank to another. The GPUs of a process copy from each other; processes that share a GPU do
    /// not reach each other's memory there, and NCCL wants a GPU for each unless its settings say otherwise.
    pub fn message(&self, from: usize, to: usize) -> Route {
        let [from, to] = [from, to].map(|rank| &self.locations[rank]);
        match (from.gpu, to.gpu) {
            (None, _) | (_, None) => Route::Host,
            _ if from.process == to.process => Route::Device,
            (from, to) if from == to && !self.shared_by_nccl => Route::Host,
            _ => Route::Nccl,
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn ranks_of_one_gpu_and_process_communicate_there() {
        let location = |process, gpu: Option<u8>| Location { process, gpu: gpu.map(|gpu| [gpu; 16]) };
        // Two ranks of a process on one GPU, one of it on another GPU, another process on a third one and on the first one,
        // and one on no GPU.
        let mut routes = Routes {
            shared_by_nccl: false,
            locations: vec![
                location(0, Some(1)),
                location(0, Some(1)),
                location(0, Some(2)),
                location(1, Some(3)),
                location(1, Some(1)),
                location(2, None),
            ],
        };
        let groups: [(&[usize], Route); 6] = [
            (&[0, 1], Route::Device),
            (&[0, 2, 3], Route::Nccl),
            (&[0, 1, 2], Route::Host),
            (&[0, 4], Route::Host),
            (&[0, 5], Route::Host),
            (&[5], Route::Host),
        ];
        for (ranks, way) in groups {
            assert_eq!(routes.group(ranks), way, "{ranks:?}");
        }
        let messages = [(0, 1), (0, 2), (0, 3), (0, 4), (5, 0)].map(|(from, to)| routes.message(from, to));
        assert_eq!(messages, [Route::Device, Route::Device, Route::Nccl, Route::Host, Route::Host]);
        assert!(routes.has_several_gpus_in_a_process());
        let of = |locations: &[Location]| Routes { locations: locations.to_vec(), shared_by_nccl: false };
        // Two ranks on one GPU, a process for each GPU, no GPU at all.
        for locations in
            [[(0, Some(1)), (0, Some(1))], [(0, Some(1)), (1, Some(2))], [(0, None), (0, Some(1))]]
        {
            assert!(
                !of(&locations.map(|(process, gpu)| location(process, gpu))).has_several_gpus_in_a_process()
            );
        }
        // If NCCL lets ranks share a GPU, it joins those that do not communicate there anyway.
        routes.shared_by_nccl = true;
        for (ranks, way) in groups {
            let by_nccl = ranks == [0, 1, 2] || ranks == [0, 4];
            assert_eq!(routes.group(ranks), if by_nccl { Route::Nccl } else { way }, "{ranks:?}");
        }
        let messages = [(0, 1), (0, 4), (5, 0)].map(|(from, to)| routes.message(from, to));
        assert_eq!(messages, [Route::Device, Route::Nccl, Route::Host]);
    }
}
