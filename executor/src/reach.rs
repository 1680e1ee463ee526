//! How ranks reach each other: here alone it is decided who meets on a GPU, who by NCCL and who on the host.

use crate::device::{DeviceKind, GpuName};
use crate::error::RunError;
use crate::train::Ranks;
use crate::transport::{Route, Tag};
use std::collections::BTreeMap;
use std::fmt;
use trainwright_spec::program::{Axis, Program};

/// How some ranks communicate.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub enum Way {
    /// Numbers are read by the host, and the transport of the host's ranks carries them.
    Host,
    /// They share a GPU and a process: copies and sums on the GPU, for which the host does not wait.
    Device,
    /// Each has a GPU of its own: NCCL.
    Nccl,
}

impl fmt::Display for Way {
    fn fmt(&self, formatter: &mut fmt::Formatter) -> fmt::Result {
        formatter.write_str(match self {
            Way::Host => "through the host",
            Way::Device => "on the GPU",
            Way::Nccl => "by NCCL",
        })
    }
}

/// Where a rank computes.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) struct Seat {
    /// A number of its process.
    pub process: usize,
    /// Its GPU, if it computes on one.
    pub gpu: Option<GpuName>,
}

/// Where all ranks compute.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(crate) struct Reach(pub Vec<Seat>);

impl Reach {
    /// Where the ranks of a run compute. Those of other processes say it.
    ///
    /// # Errors
    /// `Rank` if one of them is gone.
    pub fn of(here: &Ranks, program: &Program, device: DeviceKind) -> Result<Self, RunError> {
        let ranks = program.ranks.len();
        let own: Vec<Seat> = match here.local {
            None => (0..ranks).map(|rank| Seat { process: 0, gpu: (device.gpu)(rank) }).collect(),
            Some(local) => vec![Seat { process: here.own[0], gpu: (device.gpu)(local) }],
        };
        let (Some(_), Some(rank), Some(gpu)) = (here.local, here.own.first().copied(), own[0].gpu) else {
            let of = |rank| own.get(rank).copied().unwrap_or(Seat { process: rank, gpu: None });
            return Ok(Self((0..ranks).map(of).collect()));
        };
        // Behind the groups of the program and that of checkpoints.
        let route = |from, to| Route { from, to, tag: Tag::Group(program.groups.len() + 1) };
        for to in (0..ranks).filter(|to| *to != rank) {
            here.transport.send(route(rank, to), gpu.map(f32::from).to_vec());
        }
        let seat = |from| {
            let gpu =
                match from == rank {
                    true => Some(gpu),
                    false => {
                        let said = here.transport.receive(route(from, rank)).map_err(|fault| {
                            RunError::Rank { rank: from, step: 0, op: "start".into(), fault }
                        })?;
                        GpuName::try_from(said.iter().map(|byte| *byte as u8).collect::<Vec<_>>()).ok()
                    }
                };
            Ok(Seat { process: from, gpu })
        };
        (0..ranks).map(seat).collect::<Result<_, _>>().map(Self)
    }

    /// How ranks on GPUs communicate along each axis of a program: where its groups differ, as the slowest of them.
    pub fn ways(&self, program: &Program) -> BTreeMap<Axis, Way> {
        let mut ways = BTreeMap::new();
        if self.0.iter().all(|seat| seat.gpu.is_none()) {
            return ways;
        }
        for group in program.groups.iter().filter(|group| group.ranks.len() > 1) {
            let way = match group.axis {
                Axis::Pipeline => {
                    let pairs = group.ranks.iter().zip(group.ranks.iter().skip(1));
                    pairs.map(|(from, to)| self.message(*from, *to)).min().expect("there are several ranks")
                }
                _ => self.group(&group.ranks),
            };
            let known = ways.entry(group.axis).or_insert(way);
            *known = way.min(*known);
        }
        ways
    }

    /// How the members of a group communicate.
    pub fn group(&self, ranks: &[usize]) -> Way {
        let seats = || ranks.iter().map(|rank| &self.0[*rank]);
        let Some(first) = seats().next() else { return Way::Host };
        let is_other = |(index, own): (usize, &Seat)| seats().take(index).all(|other| other.gpu != own.gpu);
        match () {
            () if seats().any(|seat| seat.gpu.is_none()) => Way::Host,
            () if seats().all(|seat| seat == first) => Way::Device,
            () if seats().enumerate().all(is_other) => Way::Nccl,
            () => Way::Host,
        }
    }

    /// How a message goes from one rank to another. The GPUs of a process copy from each other.
    pub fn message(&self, from: usize, to: usize) -> Way {
        let [from, to] = [from, to].map(|rank| &self.0[rank]);
        let near = from.process == to.process && from.gpu.is_some() && to.gpu.is_some();
        if near { Way::Device } else { Way::Host }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn who_shares_a_gpu_and_a_process_meets_there() {
        let seat = |process, gpu: Option<u8>| Seat { process, gpu: gpu.map(|gpu| [gpu; 16]) };
        // Two ranks of a process on one GPU, one of it on another GPU, another process on a third one and on the first one,
        // and one on no GPU.
        let reach = Reach(vec![
            seat(0, Some(1)),
            seat(0, Some(1)),
            seat(0, Some(2)),
            seat(1, Some(3)),
            seat(1, Some(1)),
            seat(2, None),
        ]);
        let groups: [(&[usize], Way); 6] = [
            (&[0, 1], Way::Device),
            (&[0, 2, 3], Way::Nccl),
            (&[0, 1, 2], Way::Host),
            (&[0, 4], Way::Host),
            (&[0, 5], Way::Host),
            (&[5], Way::Host),
        ];
        for (ranks, way) in groups {
            assert_eq!(reach.group(ranks), way, "{ranks:?}");
        }
        let messages = [(0, 1), (0, 2), (0, 3), (5, 0)].map(|(from, to)| reach.message(from, to));
        assert_eq!(messages, [Way::Device, Way::Device, Way::Host, Way::Host]);
    }
}
