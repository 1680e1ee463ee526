//! How ranks reach each other: here alone it is decided who meets on a GPU, who by NCCL and who on the host.

use crate::comm::transport::{Route, Tag};
use crate::device::{DeviceKind, GpuName, Place};
use crate::error::RunError;
use crate::train::modules::is_stepwise;
use crate::train::run::Ranks;
use std::collections::{BTreeMap, BTreeSet};
use std::fmt;
use trainwright_spec::program::{Axis, Op, Program, RankProgram, Task, UpdateStep, Work};

/// How some ranks communicate.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub enum Way {
    /// Numbers are read by the host, and the transport of the host's ranks carries them.
    Host,
    /// They share a GPU and a process: copies and sums on the GPU, for which the host does not wait.
    Device,
    /// NCCL: each has a GPU of its own, or NCCL lets them share one.
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
pub(crate) struct Reach {
    seats: Vec<Seat>,
    /// Whether NCCL lets ranks share a GPU. Those of a process need it not: they meet on the GPU.
    shared_by_nccl: bool,
}

impl Reach {
    /// The GPU of a rank, if it computes on one.
    pub fn gpu(&self, rank: usize) -> Option<GpuName> {
        self.seats[rank].gpu
    }

    /// Where the ranks of a run compute. Those of other processes say it.
    ///
    /// # Errors
    /// `Rank` if one of them is gone.
    pub fn of(here: &Ranks, program: &Program, device: DeviceKind) -> Result<Self, RunError> {
        let ranks = program.ranks.len();
        let own: Vec<Seat> = match here.local {
            None => {
                let gpu = |local| (device.gpu)(Place { local, is_process: false });
                (0..ranks).map(|rank| Seat { process: 0, gpu: gpu(rank) }).collect()
            }
            Some(local) => {
                vec![Seat { process: here.own[0], gpu: (device.gpu)(Place { local, is_process: true }) }]
            }
        };
        let (Some(_), Some(rank), Some(gpu)) = (here.local, here.own.first().copied(), own[0].gpu) else {
            let of = |rank| own.get(rank).copied().unwrap_or(Seat { process: rank, gpu: None });
            return Ok(Self { seats: (0..ranks).map(of).collect(), shared_by_nccl: false });
        };
        let shares = (device.shares_by_nccl)();
        // Behind the groups of the program and that of checkpoints.
        let route = |from, to| Route { from, to, tag: Tag::Group(program.groups.len() + 1) };
        for to in (0..ranks).filter(|to| *to != rank) {
            let said = gpu.into_iter().chain([u8::from(shares)]).map(f32::from);
            here.transport.send(route(rank, to), said.collect());
        }
        let mut shared_by_nccl = shares;
        let mut seats = Vec::new();
        for from in 0..ranks {
            let gone = |fault| RunError::Rank { rank: from, step: 0, op: "start".into(), fault };
            if from == rank {
                seats.push(own[0]);
                continue;
            }
            let said = here.transport.receive(route(from, rank)).map_err(gone)?;
            let mut bytes: Vec<u8> = said.iter().map(|byte| *byte as u8).collect();
            // All of them, or none: they would wait for each other in different places.
            shared_by_nccl &= bytes.pop() == Some(1);
            seats.push(Seat { process: from, gpu: GpuName::try_from(bytes).ok() });
        }
        Ok(Self { seats, shared_by_nccl })
    }

    /// The groups of a rank whose members communicate by NCCL and have collectives over what is there, in the order of their
    /// numbers.
    pub fn nccl_groups(&self, program: &Program, rank: usize) -> Vec<usize> {
        if self.seats[rank].gpu.is_none() {
            return Vec::new();
        }
        let own = &program.ranks[rank];
        let groups = ops_of(program, own).filter_map(|op| match op.work {
            Work::Collective { axis, .. } if carries(op) == Carries::Numbers => {
                group_of(own, axis).filter(|group| self.group(&program.groups[*group].ranks) == Way::Nccl)
            }
            _ => None,
        });
        groups.collect::<BTreeSet<usize>>().into_iter().collect()
    }

    /// The ranks between which NCCL carries messages, sender first, in an order that is the same everywhere.
    pub fn nccl_pairs(&self, program: &Program) -> Vec<(usize, usize)> {
        let mut pairs = BTreeSet::new();
        for own in &program.ranks {
            for op in ops_of(program, own) {
                if let Work::Send { to, .. } = op.work {
                    let to = program.ranks[own.pipeline[to]].rank;
                    pairs.extend((self.message(own.rank, to) == Way::Nccl).then_some((own.rank, to)));
                }
            }
        }
        pairs.into_iter().collect()
    }

    /// How ranks on GPUs communicate along each axis of a program: where that differs, as those that the host holds up most.
    pub fn ways(&self, program: &Program) -> BTreeMap<Axis, Way> {
        let mut ways = BTreeMap::new();
        if self.seats.iter().all(|seat| seat.gpu.is_none()) {
            return ways;
        }
        let mut goes = |axis, way| {
            let known = ways.entry(axis).or_insert(way);
            *known = way.min(*known);
        };
        for own in &program.ranks {
            let rank_of = |place: usize| program.ranks[own.pipeline[place]].rank;
            for op in ops_of(program, own) {
                match op.work {
                    Work::Send { to, .. } => goes(Axis::Pipeline, self.message(own.rank, rank_of(to))),
                    Work::Collective { axis, .. } => match (group_of(own, axis), carries(op)) {
                        (Some(group), Carries::Numbers) => {
                            goes(axis, self.group(&program.groups[group].ranks));
                        }
                        (Some(_), Carries::Parts) => goes(axis, Way::Host),
                        _ => {}
                    },
                    _ => {}
                }
            }
        }
        ways
    }

    /// Whether a process has ranks on several GPUs.
    pub fn has_several_gpus_in_a_process(&self) -> bool {
        let pairs = self
            .seats
            .iter()
            .enumerate()
            .flat_map(|(index, own)| self.seats[..index].iter().map(move |other| (own, other)));
        let mut on_gpus = pairs.filter(|(own, other)| own.gpu.is_some() && other.gpu.is_some());
        on_gpus.any(|(own, other)| own.process == other.process && own.gpu != other.gpu)
    }

    /// How the members of a group communicate.
    pub fn group(&self, ranks: &[usize]) -> Way {
        let seats = || ranks.iter().map(|rank| &self.seats[*rank]);
        let Some(first) = seats().next() else { return Way::Host };
        let is_other = |(index, own): (usize, &Seat)| seats().take(index).all(|other| other.gpu != own.gpu);
        if seats().any(|seat| seat.gpu.is_none()) {
            Way::Host
        } else if seats().all(|seat| seat == first) {
            Way::Device
        } else if self.shared_by_nccl || seats().enumerate().all(is_other) {
            Way::Nccl
        } else {
            Way::Host
        }
    }

    /// How a message goes from one rank to another. The GPUs of a process copy from each other; processes that share a GPU do
    /// not reach each other's memory there, and NCCL wants a GPU for each unless it is told otherwise.
    pub fn message(&self, from: usize, to: usize) -> Way {
        let [from, to] = [from, to].map(|rank| &self.seats[rank]);
        match (from.gpu, to.gpu) {
            (None, _) | (_, None) => Way::Host,
            _ if from.process == to.process => Way::Device,
            (from, to) if from == to && !self.shared_by_nccl => Way::Host,
            _ => Way::Nccl,
        }
    }
}

/// The ops of a rank, each once.
fn ops_of<'a>(program: &'a Program, own: &RankProgram) -> impl Iterator<Item = &'a Op> + use<'a> {
    let segments: BTreeSet<usize> = own.calls.iter().map(|call| call.segment).collect();
    segments.into_iter().flat_map(|segment| &program.segments[segment].ops)
}

fn group_of(own: &RankProgram, axis: Axis) -> Option<usize> {
    let at = Axis::ALL.iter().position(|other| *other == axis)?;
    own.groups[at]
}

/// What a collective is over.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum Carries {
    /// Numbers that are on the ranks' devices.
    Numbers,
    /// Parts of what is there, which the hosts put together.
    Parts,
    /// A few numbers that the hosts have read: of all tensors.
    Few,
}

fn carries(op: &Op) -> Carries {
    match op.task {
        Task::Update(UpdateStep::SumRatios) => Carries::Few,
        Task::Module(module, does) if is_stepwise(module, does) => Carries::Parts,
        _ => Carries::Numbers,
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
        let mut reach = Reach {
            shared_by_nccl: false,
            seats: vec![
                seat(0, Some(1)),
                seat(0, Some(1)),
                seat(0, Some(2)),
                seat(1, Some(3)),
                seat(1, Some(1)),
                seat(2, None),
            ],
        };
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
        let messages = [(0, 1), (0, 2), (0, 3), (0, 4), (5, 0)].map(|(from, to)| reach.message(from, to));
        assert_eq!(messages, [Way::Device, Way::Device, Way::Nccl, Way::Host, Way::Host]);
        assert!(reach.has_several_gpus_in_a_process());
        let of = |seats: &[Seat]| Reach { seats: seats.to_vec(), shared_by_nccl: false };
        // Two ranks on one GPU, a process for each GPU, no GPU at all.
        for seats in [[(0, Some(1)), (0, Some(1))], [(0, Some(1)), (1, Some(2))], [(0, None), (0, Some(1))]] {
            assert!(!of(&seats.map(|(process, gpu)| seat(process, gpu))).has_several_gpus_in_a_process());
        }
        // Where NCCL lets ranks share a GPU, it joins whoever has one and does not meet there anyway.
        reach.shared_by_nccl = true;
        for (ranks, way) in groups {
            let by_nccl = ranks == [0, 1, 2] || ranks == [0, 4];
            assert_eq!(reach.group(ranks), if by_nccl { Way::Nccl } else { way }, "{ranks:?}");
        }
        let messages = [(0, 1), (0, 4), (5, 0)].map(|(from, to)| reach.message(from, to));
        assert_eq!(messages, [Way::Device, Way::Nccl, Way::Host]);
    }
}
