//! Collectives, performed step by step as the lists of `spec::collective` say: the same lists that a simulator times.

mod on_device;

use crate::comm::local_peers::LocalPeers;
use crate::comm::members::Members;
use crate::comm::nccl_pairs::NcclPairs;
use crate::comm::routes::Routes;
use crate::comm::transport::{Envelope, Tag, Transport};
use crate::device::host_buffers::{return_buffer, take_buffer};
use crate::error::Fault;
use std::collections::BTreeMap;
use trainwright_kernels::elementwise;
use trainwright_spec::collective::{Algorithm, Chunks, CollectiveKind, Effect, Layout, Ring};

/// How numbers of several members are combined.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum Combine {
    Sum,
    Maximum,
}

/// The two neighbours of a member in a ring.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum Neighbour {
    Next,
    Previous,
}

/// The sends and receives of one member in a step.
#[derive(Debug, Default)]
struct MemberStep {
    sends: Vec<(usize, Chunks)>,
    receives: Vec<(usize, Chunks, Effect)>,
}

/// The steps of one member.
#[derive(Debug)]
struct MemberSteps {
    chunks: usize,
    steps: Vec<MemberStep>,
}

/// Performs collectives for one rank.
pub(crate) struct Communicator<'a> {
    transport: &'a dyn Transport,
    /// `None` if the rank computes on the host.
    on_gpu: Option<OnGpu<'a>>,
    known: BTreeMap<(CollectiveKind, usize, usize), MemberSteps>,
}

/// How a rank reaches others from its GPU.
pub(crate) struct OnGpu<'a> {
    pub routes: &'a Routes,
    /// The ranks of its process.
    pub local_peers: LocalPeers<'a>,
    /// The ranks to which NCCL carries messages.
    pub pairs: NcclPairs<'a>,
}

impl<'a> Communicator<'a> {
    /// Over that transport, through the host.
    pub fn new(transport: &'a dyn Transport) -> Self {
        Self { transport, on_gpu: None, known: BTreeMap::new() }
    }

    /// Also over the GPU of this rank, where others reach it.
    pub fn on_gpu(self, on_gpu: OnGpu<'a>) -> Self {
        Self { on_gpu: Some(on_gpu), ..self }
    }

    /// All-reduces `data`: on return every member has all members' numbers combined.
    pub fn all_reduce(&mut self, members: &Members, data: &mut [f32], combine: Combine) -> Result<(), Fault> {
        self.perform(CollectiveKind::AllReduce, members, data, combine)
    }

    /// All-gathers: the `shard` of every member, all of equal length, concatenated.
    pub fn all_gather(&mut self, members: &Members, shard: &[f32]) -> Result<Vec<f32>, Fault> {
        let mut all = take_buffer(shard.len() * members.ranks.len());
        all[shard.len() * members.place..][..shard.len()].copy_from_slice(shard);
        self.perform(CollectiveKind::AllGather, members, &mut all, Combine::Sum)?;
        Ok(all)
    }

    /// Reduce-scatters: this member's part of the sum of every member's `data`, whose length the members divide.
    pub fn reduce_scatter(&mut self, members: &Members, mut data: Vec<f32>) -> Result<Vec<f32>, Fault> {
        self.perform(CollectiveKind::ReduceScatter, members, &mut data, Combine::Sum)?;
        let length = data.len() / members.ranks.len();
        let mut shard = take_buffer(length);
        shard.copy_from_slice(&data[length * members.place..][..length]);
        return_buffer(data);
        Ok(shard)
    }

    /// Sends each member its message. Returns what each of them sent, in their order. The messages may differ in length.
    pub fn all_to_all(
        &mut self,
        members: &Members,
        mut messages: Vec<Vec<f32>>,
    ) -> Result<Vec<Vec<f32>>, Fault> {
        let (rank, tag) = (members.rank(), Tag::Group(members.group));
        let mut received: Vec<Vec<f32>> = members.ranks.iter().map(|_| Vec::new()).collect();
        received[members.place] = std::mem::take(&mut messages[members.place]);
        for (member, message) in messages.into_iter().enumerate().filter(|(to, _)| *to != members.place) {
            self.transport.send(Envelope { from: rank, to: members.ranks[member], tag }, message);
        }
        for (member, message) in received.iter_mut().enumerate().filter(|(from, _)| *from != members.place) {
            *message = self.transport.receive(Envelope { from: members.ranks[member], to: rank, tag })?;
        }
        Ok(received)
    }

    /// Broadcasts `message` from the member at `root`; the others pass `None`.
    pub fn broadcast(
        &mut self,
        members: &Members,
        root: usize,
        message: Option<Vec<f32>>,
    ) -> Result<Vec<f32>, Fault> {
        let (rank, tag) = (members.rank(), Tag::Group(members.group));
        let Some(message) = message else {
            return self.transport.receive(Envelope { from: members.ranks[root], to: rank, tag });
        };
        for to in members.others() {
            self.transport.send(Envelope { from: rank, to, tag }, message.clone());
        }
        Ok(message)
    }

    /// The sum of every member's `data`, at `root`.
    pub fn reduce(
        &mut self,
        members: &Members,
        root: usize,
        data: Vec<f32>,
    ) -> Result<Option<Vec<f32>>, Fault> {
        let (rank, tag) = (members.rank(), Tag::Group(members.group));
        if members.place != root {
            self.transport.send(Envelope { from: rank, to: members.ranks[root], tag }, data);
            return Ok(None);
        }
        let mut local = Some(data);
        let mut sum: Option<Vec<f32>> = None;
        for from in &members.ranks {
            let summand = match *from == rank {
                true => local.take().expect("a member is once in its group"),
                false => self.transport.receive(Envelope { from: *from, to: rank, tag })?,
            };
            match &mut sum {
                Some(sum) => elementwise::add(sum, &summand),
                None => sum = Some(summand),
            }
        }
        Ok(sum)
    }

    /// Whether `vote` is true on every member: the first one collects the answers and sends the result.
    pub fn all_agree(&self, members: &Members, vote: bool) -> Result<bool, Fault> {
        let (rank, first, tag) = (members.rank(), members.ranks[0], Tag::Group(members.group));
        if members.place != 0 {
            self.transport.send_bytes(Envelope { from: rank, to: first, tag }, vec![vote.into()]);
            return Ok(self.transport.receive_bytes(Envelope { from: first, to: rank, tag })? == [1]);
        }
        let mut all = vote;
        for from in members.others() {
            all &= self.transport.receive_bytes(Envelope { from, to: rank, tag })? == [1];
        }
        for to in members.others() {
            self.transport.send_bytes(Envelope { from: rank, to, tag }, vec![all.into()]);
        }
        Ok(all)
    }

    /// Sends to a neighbour in the ring of the members. Returns what the other neighbour sent.
    pub fn pass_on(
        &mut self,
        members: &Members,
        to: Neighbour,
        message: Vec<f32>,
    ) -> Result<Vec<f32>, Fault> {
        let count = members.ranks.len();
        let [next, before] = [1, count - 1].map(|step| members.ranks[(members.place + step) % count]);
        let (to, from) = if to == Neighbour::Next { (next, before) } else { (before, next) };
        let (rank, tag) = (members.rank(), Tag::Group(members.group));
        self.transport.send(Envelope { from: rank, to, tag }, message);
        self.transport.receive(Envelope { from, to: rank, tag })
    }

    fn perform(
        &mut self,
        kind: CollectiveKind,
        members: &Members,
        data: &mut [f32],
        combine: Combine,
    ) -> Result<(), Fault> {
        let key = (kind, members.ranks.len(), members.place);
        let ring = self.known.entry(key).or_insert_with(|| MemberSteps::of(kind, members));
        let length = data.len().div_ceil(ring.chunks);
        let total = data.len();
        let range = |chunk: usize| (chunk * length).min(total)..((chunk + 1) * length).min(total);
        let rank = members.rank();
        let tag = Tag::Group(members.group);
        for step in &ring.steps {
            for (to, chunks) in &step.sends {
                let mut message = take_buffer(chunks.iter().map(|chunk| range(chunk).len()).sum());
                let mut at = 0;
                for range in chunks.iter().map(range) {
                    message[at..at + range.len()].copy_from_slice(&data[range.clone()]);
                    at += range.len();
                }
                self.transport.send(Envelope { from: rank, to: members.ranks[*to], tag }, message);
            }
            for (from, chunks, effect) in &step.receives {
                let message =
                    self.transport.receive(Envelope { from: members.ranks[*from], to: rank, tag })?;
                let mut at = 0;
                for range in chunks.iter().map(range) {
                    let arrived = &message[at..at + range.len()];
                    at += range.len();
                    match (effect, combine) {
                        (Effect::Copy, _) => data[range].copy_from_slice(arrived),
                        (Effect::Add, Combine::Sum) => elementwise::add(&mut data[range], arrived),
                        (Effect::Add, Combine::Maximum) => elementwise::maximum(&mut data[range], arrived),
                    }
                }
                return_buffer(message);
            }
        }
        Ok(())
    }
}

impl MemberSteps {
    /// Those of a ring.
    fn of(kind: CollectiveKind, members: &Members) -> Self {
        let layout = Layout::flat(members.ranks.len()).expect("a group has ranks");
        let steps = Ring.steps(kind, layout).expect("a ring reduces and gathers");
        let of_member = |transfers: Vec<trainwright_spec::collective::Transfer>| {
            let place = members.place as u32;
            let mut step = MemberStep::default();
            for transfer in transfers {
                if transfer.from == place {
                    step.sends.push((transfer.to as usize, transfer.chunks));
                }
                if transfer.to == place {
                    step.receives.push((transfer.from as usize, transfer.chunks, transfer.effect));
                }
            }
            step
        };
        Self { chunks: steps.chunks(), steps: steps.iter().map(of_member).collect() }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::comm::transport::Mailboxes;

    /// The results of `work` on each of `ranks` members.
    fn each<R: Send>(ranks: usize, work: impl Fn(&mut Communicator, &Members) -> R + Sync) -> Vec<R> {
        let mailboxes = Mailboxes::new(ranks);
        let work = |place| {
            let members = Members { group: 0, ranks: (0..ranks).collect(), place };
            work(&mut Communicator::new(&mailboxes), &members)
        };
        std::thread::scope(|scope| {
            let threads: Vec<_> = (0..ranks).map(|place| scope.spawn(move || work(place))).collect();
            threads.into_iter().map(|thread| thread.join().unwrap()).collect()
        })
    }

    #[test]
    fn sums_and_parts_are_those_of_all_members() {
        for ranks in 2..6 {
            // Member r has r, r + 1, …, so the sums are n (n − 1)/2 + n i; the largest is n − 1 + i.
            let numbers =
                |place: usize, count: usize| -> Vec<f32> { (0..count).map(|i| (place + i) as f32).collect() };
            let sum = |i: usize| (ranks * (ranks - 1) / 2 + ranks * i) as f32;
            for count in [1, 7, 3 * ranks] {
                let expected: Vec<f32> = (0..count).map(sum).collect();
                let reduce = |combine| {
                    each(ranks, |communicator, members| {
                        let mut data = numbers(members.place, count);
                        communicator.all_reduce(members, &mut data, combine).unwrap();
                        data
                    })
                };
                assert_eq!(reduce(Combine::Sum), vec![expected; ranks]);
                assert_eq!(reduce(Combine::Maximum), vec![numbers(ranks - 1, count); ranks]);
            }
            let gathered = each(ranks, |communicator, members| {
                communicator.all_gather(members, &numbers(members.place, 2)).unwrap()
            });
            let all: Vec<f32> = (0..ranks).flat_map(|place| numbers(place, 2)).collect();
            assert_eq!(gathered, vec![all; ranks]);
            let scattered = each(ranks, |communicator, members| {
                communicator.reduce_scatter(members, numbers(members.place, 2 * ranks)).unwrap()
            });
            let part = |place: usize| vec![sum(2 * place), sum(2 * place + 1)];
            assert_eq!(scattered, (0..ranks).map(part).collect::<Vec<_>>());
        }
    }
}
