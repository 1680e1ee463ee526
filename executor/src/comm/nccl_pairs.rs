//! Messages between ranks in different processes that have a GPU each: by NCCL, without the host.
//!
//! No schedule deadlocks: 1F1B's activations and gradients that cross, the ring of interleaved stages, the halves of ZB-H1's
//! backward, DualPipeV's two directions. On a GPU everything waits only for what was enqueued before it, with one exception: a
//! send is over when its receive is, which is enqueued later, and by another rank. Three rules make that harmless.
//!
//! 1. Messages from one rank to another have a separate communicator and, on either rank, a separate stream. So a send
//!    waits behind sends to the same rank alone, and one direction never behind the other.
//! 2. A receive is enqueued when a control message says that its send was, and receives in the order of the sends. A message
//!    that arrives before it is wanted is kept.
//! 3. The sender frees the memory when a control message says that the receive was enqueued. So whoever uses the memory next,
//!    and waits for the send to be over, is enqueued behind the receive.
//!
//! Proof: let the end of a send count as enqueued when its receive is. It waits for the op that made the message, for sends
//! before it to the same rank, whose receives were enqueued before by rule 2, and for its receive. A receive waits for those
//! before it of its pair, for its send, and for the last user of the memory. What waits for the end of a send is enqueued
//! behind its receive by rule 3. So everything waits only for what was enqueued before it, and threads wait only until other
//! threads have enqueued, as with messages that go through the host: there is an order in which all gets done.

use crate::comm::local_peers::end_of_loan;
use crate::comm::members::Members;
use crate::comm::transport::{Envelope, Tag, Transport, header_of, tag_of};
use crate::device::tensor::Tensor;
use crate::device::{COMPUTE, Device, PAIRS};
use crate::error::Fault;
use std::collections::{BTreeMap, VecDeque};
use trainwright_kernels::cuda::{Collective, Event};

/// A rank that sends, and the one that receives.
pub(crate) type Endpoints = (usize, usize);

/// The pairs of one rank.
pub(crate) struct NcclPairs<'a> {
    transport: &'a dyn Transport,
    rank: usize,
    pairs: BTreeMap<Endpoints, Pair>,
}

/// Messages from one rank to another.
struct Pair {
    /// The number of its group.
    group: usize,
    /// That of this rank's device.
    stream: usize,
    /// Tensors in flight with the events of their sends, until the receiver has enqueued its receive.
    sent: VecDeque<(Tensor, Option<Event>)>,
    /// Tensors that arrived before they were wanted.
    early: BTreeMap<Tag, Tensor>,
}

impl<'a> NcclPairs<'a> {
    /// Those of `rank` among all, whose groups are numbered from `first` on.
    pub fn new(transport: &'a dyn Transport, all: &[Endpoints], rank: usize, first: usize) -> Self {
        let numbered = all.iter().zip(first..);
        let of_rank = numbered.filter(|((from, to), _)| [*from, *to].contains(&rank));
        let pair = |(stream, (ends, group)): (usize, (&Endpoints, usize))| {
            let (sent, early) = (VecDeque::new(), BTreeMap::new());
            (*ends, Pair { group, stream, sent, early })
        };
        Self { transport, rank, pairs: (PAIRS..).zip(of_rank).map(pair).collect() }
    }

    /// Those of this rank as groups, in the order of their numbers.
    pub fn groups(&self) -> Vec<Members> {
        let members = |(ends, pair): (&Endpoints, &Pair)| {
            let place = usize::from(ends.1 == self.rank);
            Members { group: pair.group, ranks: vec![ends.0, ends.1], place }
        };
        self.pairs.iter().map(members).collect()
    }

    /// The stream for messages between two ranks, if they go this way.
    pub fn stream(&self, ends: Endpoints) -> Option<usize> {
        self.pairs.get(&ends).map(|pair| pair.stream)
    }

    /// Sends a tensor on the selected stream, which must be the pair's.
    pub fn send(&mut self, device: &dyn Device, envelope: Envelope, tensor: Tensor) {
        let pair = self.pairs.get_mut(&(envelope.from, envelope.to)).expect("its ends are a pair");
        let from = tensor.slice().device();
        device.collective(pair.group, Collective::Send { x: from.at, count: from.length }, from.number);
        self.transport.send_bytes(Envelope { tag: Tag::Sent, ..envelope }, note(envelope.tag, tensor.rows()));
        pair.sent.push_back((tensor, device.record_event()));
        while !pair.sent.is_empty()
            && self.transport.try_receive(Envelope { tag: Tag::Taken, ..envelope.back() }).is_some()
        {
            pair.sent.pop_front().into_iter().for_each(|sent| give_back(device, sent));
        }
    }

    /// The tensor with this envelope, received on the selected stream, which must be the pair's.
    pub fn receive(
        &mut self,
        device: &dyn Device,
        envelope: Envelope,
        width: usize,
    ) -> Result<Tensor, Fault> {
        let pair = self.pairs.get_mut(&(envelope.from, envelope.to)).expect("its ends are a pair");
        loop {
            if let Some(tensor) = pair.early.remove(&envelope.tag) {
                return Ok(tensor);
            }
            let sent = self.transport.receive_bytes(Envelope { tag: Tag::Sent, ..envelope })?;
            let lost = || Fault::Lost { rank: envelope.from, how: "what it sends cannot be read".into() };
            let (tag, rows) = read_note(&sent).ok_or_else(lost)?;
            let mut tensor = Tensor::any_on(device, rows, width);
            let to = tensor.slice_mut().device();
            device.collective(pair.group, Collective::Receive { x: to.at, count: to.length }, to.number);
            self.transport.send_bytes(Envelope { tag: Tag::Taken, ..envelope.back() }, Vec::new());
            pair.early.insert(tag, tensor);
        }
    }

    /// Waits until every receive is enqueued: at the end of a step, in which all are.
    pub fn take_all_back(&mut self, device: &dyn Device) -> Result<(), Fault> {
        for ((from, to), pair) in &mut self.pairs {
            while let Some(sent) = pair.sent.pop_front() {
                self.transport.receive_bytes(Envelope { from: *to, to: *from, tag: Tag::Taken })?;
                give_back(device, sent);
            }
        }
        Ok(())
    }
}

/// Frees a tensor as soon as its send is over. Later sends on that stream are not waited for.
fn give_back(device: &dyn Device, (tensor, over): (Tensor, Option<Event>)) {
    let selected = device.select(COMPUTE);
    end_of_loan(device, &tensor, over.as_ref());
    drop(tensor);
    device.select(selected);
}

/// A message for `Tag::Sent`: which tensor was sent, and its rows.
fn note(tag: Tag, rows: usize) -> Vec<u8> {
    header_of(tag).into_iter().chain([rows as u32]).flat_map(u32::to_le_bytes).collect()
}

fn read_note(note: &[u8]) -> Option<(Tag, usize)> {
    let words: Vec<u32> = note.as_chunks().0.iter().map(|word| u32::from_le_bytes(*word)).collect();
    let [kind, first, second, rows] = words[..] else { return None };
    Some((tag_of([kind, first, second])?, rows as usize))
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::comm::collective::Communicator;
    use crate::comm::transport::Mailboxes;
    use crate::device::{CurrentDevice, DeviceKind, Opening};
    use std::rc::Rc;
    use trainwright_spec::program::Channel;

    fn gpus() -> DeviceKind {
        DeviceKind::from_name("emulated-gpus").unwrap()
    }

    /// Whether the emulator can be had.
    fn is_there() -> bool {
        (gpus().require)().inspect_err(|error| println!("skipped: {error}")).is_ok()
    }

    /// Runs `work` on two ranks that are a pair, each on a separate emulated GPU.
    fn both<R: Send>(work: impl Fn(usize, &dyn Device, &mut NcclPairs) -> R + Sync) -> [R; 2] {
        let mailboxes = Mailboxes::new(2);
        let rank = |rank: usize| {
            let device = (gpus().open)(Opening::plain(rank)).unwrap();
            let _here = CurrentDevice::set(Rc::clone(&device));
            let mut pairs = NcclPairs::new(&mailboxes, &[(0, 1)], rank, 5);
            let mut communicator = Communicator::new(&mailboxes);
            pairs.groups().iter().for_each(|members| communicator.enter(&*device, members).unwrap());
            device.select(pairs.stream((0, 1)).unwrap());
            work(rank, &*device, &mut pairs)
        };
        let rank = &rank;
        std::thread::scope(|scope| {
            [0, 1].map(|number| scope.spawn(move || rank(number))).map(|thread| thread.join().unwrap())
        })
    }

    fn envelope(microbatch: usize) -> Envelope {
        Envelope { from: 0, to: 1, tag: Tag::Stage(Channel::Activation(0), microbatch) }
    }

    #[test]
    fn what_comes_before_it_is_wanted_is_kept() {
        if !is_there() {
            return;
        }
        let seen = both(|rank, device, pairs| {
            if rank == 0 {
                for microbatch in [0, 1, 2] {
                    let rows = vec![microbatch as f32; 8 * (microbatch + 1)];
                    pairs.send(device, envelope(microbatch), Tensor::take_to(device, rows, 8));
                }
                pairs.take_all_back(device).unwrap();
                return Vec::new();
            }
            [2, 0, 1].map(|number| pairs.receive(device, envelope(number), 8).unwrap().into_vec()).to_vec()
        });
        assert_eq!(seen[1], [vec![2.0; 24], vec![0.0; 8], vec![1.0; 16]]);
    }

    /// The emulator sees who breaks the third rule.
    #[test]
    fn nobody_waits_for_a_message_that_nobody_receives() {
        if !is_there() {
            return;
        }
        let seen = both(|rank, device, pairs| {
            if rank == 1 {
                return String::new();
            }
            pairs.send(device, envelope(0), Tensor::take_to(device, vec![1.0; 8], 8));
            let over = device.record_event().unwrap();
            device.select(COMPUTE);
            let waits = std::panic::AssertUnwindSafe(|| device.wait(&over));
            let panic = std::panic::catch_unwind(waits).unwrap_err();
            panic.downcast_ref::<String>().cloned().unwrap()
        });
        assert!(seen[0].contains("sends what nobody receives yet, and is waited for"), "{}", seen[0]);
    }
}
