//! What travels between the ranks that share attention: heads for tokens, keys and values around a ring or to all. Numbers
//! travel through the host.

use super::{InWork, Part};
use crate::comm::collective::{Communicator, Neighbour};
use crate::comm::members::Members;
use crate::device::Device;
use crate::device::tensor::Tensor;
use crate::error::Fault;
use crate::train::sizes::Sizes;
use std::ops::Range;
use trainwright_kernels::elementwise;
use trainwright_spec::collective::CollectiveKind;
use trainwright_spec::program::{Pass, Travels};

/// The heads of a tensor as members of an exchange get them.
#[derive(Clone, Copy)]
struct Heads {
    count: usize,
    width: usize,
    members: usize,
}

impl Heads {
    /// The columns of a member's. Where there are fewer heads than members several have the same.
    fn of(self, member: usize) -> Range<usize> {
        let share = self.count.div_ceil(self.members);
        let first = member * self.count / self.members;
        first * self.width..(first + share) * self.width
    }
}

/// Something travels.
pub(super) struct Exchange<'a> {
    pub device: &'a dyn Device,
    pub sizes: &'a Sizes,
    pub kind: CollectiveKind,
    pub members: &'a Members,
}

impl Exchange<'_> {
    /// It does.
    pub fn perform(
        &self,
        travels: Travels,
        pass: Pass,
        work: &mut InWork,
        communicator: &mut Communicator,
    ) -> Result<(), Fault> {
        match self.kind {
            CollectiveKind::AllToAll => self.all_to_all(travels, work, communicator),
            CollectiveKind::SendReceive => self.pass_on(travels, pass, work, communicator),
            _ => self.gather(travels, work, communicator),
        }
    }

    /// Heads for tokens and back.
    fn all_to_all(
        &self,
        travels: Travels,
        work: &mut InWork,
        communicator: &mut Communicator,
    ) -> Result<(), Fault> {
        let members = self.members.ranks.len();
        let kernel = work.kernel;
        let heads = |count, width| Heads { count, width, members };
        let queries = heads(kernel.heads, kernel.head_dim);
        let keys = heads(kernel.kv_heads, kernel.head_dim);
        let values = heads(kernel.kv_heads, kernel.value_head_dim);
        // The kernel is that of the heads here once all three have come.
        let all = |heads: Heads| Heads { count: heads.count * members, ..heads };
        let of_keys = |heads: Heads| Heads { count: work.alone.kv_heads, ..heads };
        let outputs = heads(kernel.heads, kernel.value_head_dim);
        match travels {
            Travels::Queries => work.queries = self.to_heads(queries, &work.queries, communicator)?,
            Travels::Keys | Travels::Values => {
                let heads = if travels == Travels::Keys { keys } else { values };
                let pair = work.held.back_mut().expect("the rank's keys and values are there");
                let which = &mut pair[usize::from(travels == Travels::Values)];
                *which = self.to_heads(heads, which, communicator)?;
                if travels == Travels::Values {
                    work.kernel.heads /= members;
                    work.kernel.kv_heads = kernel.kv_heads.div_ceil(members);
                    if let Some(drops) = &mut work.drops {
                        drops.first[1] += self.members.place * work.kernel.heads;
                    }
                }
            }
            Travels::Outputs => {
                work.finish(self.device);
                let output = work.output.as_ref().expect("it was just finished");
                work.token_output = Some(self.to_tokens(all(outputs), output, communicator)?);
            }
            Travels::OutputGradients => {
                let back = work.back.as_mut().expect("backward has begun");
                back.gradient = self.to_heads(all(outputs), &back.gradient, communicator)?;
            }
            Travels::QueryGradients | Travels::KeyGradients | Travels::ValueGradients => {
                let back = work.back.as_mut().expect("backward has begun");
                let (to_queries, [to_keys, to_values]) =
                    back.made.as_mut().expect("gradients are made before they travel");
                let (heads, part) = match travels {
                    Travels::QueryGradients => (all(queries), to_queries),
                    Travels::KeyGradients => (of_keys(keys), to_keys),
                    _ => (of_keys(values), to_values),
                };
                *part = self.to_tokens(heads, part, communicator)?;
            }
            other => unreachable!("{other:?} by an all-to-all is refused before a run"),
        }
        Ok(())
    }

    /// From all heads of this rank's tokens to this rank's heads of all members' tokens.
    fn to_heads(&self, heads: Heads, part: &Part, communicator: &mut Communicator) -> Result<Part, Fault> {
        let rows = part.rows.on_host();
        let messages = (0..heads.members).map(|member| rows.columns(heads.of(member)).into_vec()).collect();
        let received = communicator.all_to_all(self.members, messages)?;
        let positions = |member: usize| self.sizes.positions_of(self.members.ranks[member]).to_vec();
        let parts = received.into_iter().enumerate().map(|(member, data)| (positions(member), data));
        let width = heads.of(self.members.place).len();
        Ok(Part::together(self.sizes, parts.collect(), width).onto(self.device))
    }

    /// The way back; a head that several members had is their sum.
    fn to_tokens(&self, heads: Heads, part: &Part, communicator: &mut Communicator) -> Result<Part, Fault> {
        let positions = |member: usize| self.sizes.positions_of(self.members.ranks[member]);
        let part = part.on_host();
        let messages = (0..heads.members).map(|member| part.at_all(self.sizes, positions(member))).collect();
        let received = communicator.all_to_all(self.members, messages)?;
        let here = positions(self.members.place).to_vec();
        let tokens: usize = here.iter().map(ExactSizeIterator::len).sum();
        let mut rows = Tensor::zeros(tokens * self.sizes.batch, heads.count * heads.width);
        for (member, data) in received.into_iter().enumerate() {
            let columns = heads.of(member);
            let width = rows.width();
            for (row, data) in rows.data_mut().chunks_exact_mut(width).zip(data.chunks_exact(columns.len())) {
                elementwise::add(&mut row[columns.clone()], data);
            }
        }
        Ok(Part { positions: here, rows: rows.onto(self.device) })
    }

    /// Keys and values, or their gradients, go to a neighbour: in backward the other way.
    fn pass_on(
        &self,
        travels: Travels,
        pass: Pass,
        work: &mut InWork,
        communicator: &mut Communicator,
    ) -> Result<(), Fault> {
        let to = if pass == Pass::Backward { Neighbour::Previous } else { Neighbour::Next };
        let gradients = matches!(travels, Travels::KeysValuesAndGradients | Travels::KeyAndValueGradients);
        let mut message = Vec::new();
        if travels != Travels::KeyAndValueGradients {
            message.push(work.held.back().expect("what came before is there").clone());
        }
        let back = work.back.as_mut().and_then(|back| back.made.as_mut());
        if let (true, Some((_, made))) = (gradients, &back) {
            message.push(made.clone());
        }
        // The tokens of what comes are those of what went, moved on by a rank.
        let data = message.iter().flatten().flat_map(|part| self.device.read(part.rows.slice()).into_owned());
        let data = data.collect();
        let received = communicator.pass_on(self.members, to, data)?;
        let mut rest = &received[..];
        let mut take = |like: &Part, positions: &[Range<usize>]| {
            let (numbers, behind) = rest.split_at(like.rows.slice().len());
            rest = behind;
            let rows = Tensor::take_to(self.device, numbers.to_vec(), like.rows.width());
            Part { positions: positions.to_vec(), rows }
        };
        let mut pairs = message.iter().map(|[keys, values]| {
            let positions = self.moved_on(&keys.positions, to);
            [take(keys, &positions), take(values, &positions)]
        });
        if travels != Travels::KeyAndValueGradients {
            work.held.extend(pairs.next());
        }
        if let (Some((_, made)), Some(came)) = (back, pairs.next()) {
            *made = came;
        }
        Ok(())
    }

    /// The positions that a neighbour holds, whose what comes is, if what goes was of these.
    fn moved_on(&self, positions: &[Range<usize>], to: Neighbour) -> Vec<Range<usize>> {
        let members = self.members.ranks.len();
        let of = |member: usize| self.sizes.positions_around(self.members.ranks[member], positions);
        let holder = (0..members).find(|member| of(*member) == positions);
        let holder = holder.expect("what goes round is some member's");
        match to {
            Neighbour::Next => of((holder + members - 1) % members),
            Neighbour::Previous => of((holder + 1) % members),
        }
    }

    /// Keys or values of all members, or the sums of their gradients.
    fn gather(
        &self,
        travels: Travels,
        work: &mut InWork,
        communicator: &mut Communicator,
    ) -> Result<(), Fault> {
        let which = usize::from(matches!(travels, Travels::Values | Travels::ValueGradients));
        let members = &self.members.ranks;
        if matches!(travels, Travels::Keys | Travels::Values) {
            let pair = work.held.back_mut().expect("the rank's keys and values are there");
            work.kept.get_or_insert_with(|| pair.clone());
            let part = &pair[which];
            let sent = vec![self.device.read(part.rows.slice()).into_owned(); members.len()];
            let received = communicator.all_to_all(self.members, sent)?;
            let positions = |member: usize| self.sizes.positions_around(members[member], &part.positions);
            let parts = received.into_iter().enumerate().map(|(member, data)| (positions(member), data));
            let width = part.rows.width();
            pair[which] = Part::together(self.sizes, parts.collect(), width).onto(self.device);
            return Ok(());
        }
        let back = work.back.as_mut().expect("backward has begun");
        let (to_queries, to_pair) = back.made.as_mut().expect("gradients are made before they travel");
        let part = &mut to_pair[which];
        let like = &to_queries.positions;
        let positions = |member: usize| self.sizes.positions_around(members[member], like);
        let gradients = part.on_host();
        let messages =
            (0..members.len()).map(|member| gradients.at_all(self.sizes, &positions(member))).collect();
        let received = communicator.all_to_all(self.members, messages)?;
        let here = positions(self.members.place);
        let width = part.rows.width();
        let mut sum: Option<Vec<f32>> = None;
        for data in received {
            match &mut sum {
                Some(sum) => elementwise::add(sum, &data),
                None => sum = Some(data),
            }
        }
        let rows = Tensor::take_to(self.device, sum.expect("a group has members"), width);
        *part = Part { positions: here, rows };
        Ok(())
    }
}
