//! Attention shared by the ranks of a context axis: queries, keys and values travel as the plan's scheme lists it, and what
//! the steps make is put together.
//!
//! A rank knows the positions of everything it holds, so a step needs no mask of its own: queries see keys of earlier
//! positions whole, keys of their own positions as the model's mask says, and later ones not at all if it is causal.

use super::Step;
use super::attention::kernel;
use super::stepwise::{Among, Stepwise};
use crate::collective::{Communicator, Members, Neighbour};
use crate::device::{AttentionTile, Device, Met, Numbers, Slice, SliceMut};
use crate::error::Fault;
use crate::sizes::Sizes;
use crate::tensor::Tensor;
use std::collections::VecDeque;
use std::ops::Range;
use trainwright_kernels::attention::{Attention, Mask};
use trainwright_kernels::elementwise;
use trainwright_spec::collective::CollectiveKind;
use trainwright_spec::program::{Does, Pass, Share, Travels};

/// Rows of the tokens at some positions, those of a position next to each other.
#[derive(Debug, Clone)]
pub(crate) struct Part {
    /// Ascending.
    positions: Vec<Range<usize>>,
    rows: Tensor,
}

/// Keys and values of the same positions, or their gradients.
type Pair = [Part; 2];

/// What queries made of the keys that they have met so far.
#[derive(Debug, Default)]
struct Output {
    /// The heads' outputs.
    heads: Numbers,
    /// What backward needs of them beside; nothing where no key was seen.
    left: Numbers,
}

/// A layer's attention between its first and its last step.
#[derive(Debug)]
pub(crate) struct InWork {
    /// Of the rank's own heads.
    alone: Attention,
    /// Of the heads that are here.
    kernel: Attention,
    queries: Part,
    /// Keys and values in the order in which they are used.
    held: VecDeque<Pair>,
    /// The ones that backward begins with.
    kept: Option<Pair>,
    /// By range of the queries' positions, over the keys so far.
    outputs: Vec<Output>,
    /// The same of the last step, if it is still to be added.
    more: Option<Vec<Output>>,
    /// The outputs of all heads that are here.
    output: Option<Part>,
    /// The outputs of all heads of the rank's own tokens, where those are others.
    own_output: Option<Part>,
    back: Option<Back>,
}

/// Backward of it.
#[derive(Debug)]
struct Back {
    gradient: Part,
    /// Gradients of queries, and of the keys and values in use.
    made: Option<(Part, Pair)>,
    /// The same of the last step, if it is still to be added.
    more: Option<(Part, Pair)>,
}

pub(super) struct Shared;

impl Stepwise for Shared {
    fn begin(&self, step: &mut Step, pass: Pass) {
        let own = step.sizes.own_positions().to_vec();
        if pass == Pass::Backward {
            let gradient = Part { positions: own, rows: step.frame.take_gradient() };
            let work = in_work(step);
            work.held = work.kept.iter().cloned().collect();
            work.back = Some(Back { gradient, made: None, more: None });
            return;
        }
        let kernel = kernel(step);
        let flow = step.frame.take_flow();
        let part = |columns| Part { positions: own.clone(), rows: flow.columns(columns) };
        let [q, k, v] = kernel.columns();
        let pair = [part(q..q + k), part(q + k..q + k + v)];
        step.kept().shared = Some(Box::new(InWork {
            alone: kernel,
            kernel,
            queries: part(0..q),
            held: VecDeque::from([pair]),
            kept: None,
            outputs: Vec::new(),
            more: None,
            output: None,
            own_output: None,
            back: None,
        }));
    }

    fn run(&self, step: &mut Step, pass: Pass, does: Does, among: Option<Among>) -> Result<(), Fault> {
        let (sizes, device) = (step.sizes, step.device);
        let work = in_work(step);
        match (does, among) {
            (Does::Share(Share::Exchange(travels)), Some(among)) => {
                let exchange = Exchange { device, sizes, kind: among.kind, members: among.members };
                exchange.perform(travels, pass, work, among.communicator)?;
            }
            (Does::Share(Share::Attend), _) if pass == Pass::Backward => work.attend_back(sizes, device),
            (Does::Share(Share::Attend), _) => work.attend(sizes, device),
            (Does::Share(Share::Add), _) if pass == Pass::Backward => work.add_back(device),
            (Does::Share(Share::Add), _) => work.add(device),
            _ => {}
        }
        Ok(())
    }

    fn end(&self, step: &mut Step, pass: Pass) {
        let (keeps, device) = (step.keeps.rest, step.device);
        let work = in_work(step);
        if pass == Pass::Backward {
            let back = work.back.take().expect("backward has begun");
            let (queries, [keys, values]) = back.made.expect("every query has met its keys");
            step.frame.gradient = Some(Tensor::beside(&[&queries.rows, &keys.rows, &values.rows]));
            return;
        }
        work.finish(device);
        let own = work.own_output.take();
        let flow = own.or_else(|| work.output.clone()).expect("the outputs are finished").rows;
        let kept = step.kept();
        match keeps {
            // Backward reads the parts.
            true => kept.input = None,
            false => kept.shared = None,
        }
        step.frame.flow = Some(flow);
    }
}

fn in_work<'s>(step: &'s mut Step) -> &'s mut InWork {
    step.kept().shared.as_mut().expect("shared attention has begun")
}

impl InWork {
    /// Queries meet the next keys.
    fn attend(&mut self, sizes: &Sizes, device: &dyn Device) {
        let pair = self.held.pop_front().expect("keys and values come before they are used");
        let mut made: Vec<Output> = Vec::new();
        for queries in &self.queries.positions {
            let mut own: Option<Output> = None;
            for (kernel, keys) in pair[0].positions.iter().flat_map(|keys| seen(&self.kernel, queries, keys))
            {
                let [heads, left] = device.attend(&kernel, self.tile(sizes, queries, &pair, &keys));
                let output = Output { heads, left };
                match &mut own {
                    Some(own) => own.join(&output, &kernel, device),
                    None => own = Some(output),
                }
            }
            made.push(own.unwrap_or_default());
        }
        match self.outputs.is_empty() {
            true => self.outputs = made,
            false => self.more = Some(made),
        }
        if self.held.is_empty() && self.kept.is_none() {
            self.kept = Some(pair);
        }
    }

    /// Adds what the last step made.
    fn add(&mut self, device: &dyn Device) {
        let Some(more) = self.more.take() else { return };
        for (own, more) in self.outputs.iter_mut().zip(more) {
            if own.left.is_empty() {
                *own = more;
            } else if !more.left.is_empty() {
                own.join(&more, &self.kernel, device);
            }
        }
    }

    /// The outputs of all ranges in one.
    fn finish(&mut self, device: &dyn Device) {
        if self.output.is_some() {
            return;
        }
        let width = self.kernel.output_row();
        let all: usize = self.outputs.iter().map(|output| output.heads.len()).sum();
        let mut rows = Tensor::any_on(device, all / width, width);
        let mut at = 0;
        for output in &mut self.outputs {
            let heads = std::mem::take(&mut output.heads);
            device.copy(rows.slice_mut().part(at..at + heads.len()), heads.slice());
            at += heads.len();
        }
        self.output = Some(Part { positions: self.queries.positions.clone(), rows });
    }

    fn tile<'a>(
        &'a self,
        sizes: &Sizes,
        queries: &Range<usize>,
        [keys, values]: &'a Pair,
        seen: &Range<usize>,
    ) -> AttentionTile<'a> {
        AttentionTile {
            queries: self.queries.at(sizes, queries),
            keys: keys.at(sizes, seen),
            values: values.at(sizes, seen),
        }
    }

    /// Backward of `attend`.
    fn attend_back(&mut self, sizes: &Sizes, device: &dyn Device) {
        let pair = self.held.pop_front().expect("keys and values come before they are used");
        let back = self.back.as_ref().expect("backward has begun");
        let output = self.output.as_ref().expect("forward kept the outputs");
        let mut to_queries = self.queries.zeros(device);
        let mut to_pair = [pair[0].zeros(device), pair[1].zeros(device)];
        for (index, queries) in self.queries.positions.iter().enumerate() {
            for (kernel, keys) in pair[0].positions.iter().flat_map(|keys| seen(&self.kernel, queries, keys))
            {
                let met = Met {
                    heads: output.at(sizes, queries),
                    left: self.outputs[index].left.slice(),
                    gradient: back.gradient.at(sizes, queries),
                };
                let tile = self.tile(sizes, queries, &pair, &keys);
                let [own_queries, own_keys, own_values] = device.attend_gradient(&kernel, tile, met);
                device.add(to_queries.at_mut(sizes, queries), own_queries.slice());
                device.add(to_pair[0].at_mut(sizes, &keys), own_keys.slice());
                device.add(to_pair[1].at_mut(sizes, &keys), own_values.slice());
            }
        }
        let made = (to_queries, to_pair);
        let back = self.back.as_mut().expect("it was there before");
        match back.made {
            None => back.made = Some(made),
            Some(_) => back.more = Some(made),
        }
    }

    fn add_back(&mut self, device: &dyn Device) {
        let back = self.back.as_mut().expect("backward has begun");
        if let (Some((queries, pair)), Some((more_queries, more))) = (&mut back.made, back.more.take()) {
            device.add(queries.rows.slice_mut(), more_queries.rows.slice());
            for (own, more) in pair.iter_mut().zip(&more) {
                device.add(own.rows.slice_mut(), more.rows.slice());
            }
        }
    }
}

/// The keys of a range that queries see, and the kernel for them. A range of keys has all of the queries' positions or none.
fn seen(kernel: &Attention, queries: &Range<usize>, keys: &Range<usize>) -> Vec<(Attention, Range<usize>)> {
    if kernel.mask == Mask::Full {
        return vec![(*kernel, keys.clone())];
    }
    let before = keys.start..keys.end.min(queries.start);
    let within = keys.start.max(queries.start)..keys.end.min(queries.end);
    let full = Attention { mask: Mask::Full, ..*kernel };
    [(full, before), (*kernel, within)].into_iter().filter(|(_, keys)| !keys.is_empty()).collect()
}

impl Output {
    /// Puts what the same queries made of other keys to it.
    fn join(&mut self, other: &Output, kernel: &Attention, device: &dyn Device) {
        let own = [self.heads.slice_mut(), self.left.slice_mut()];
        device.join(kernel, own, [other.heads.slice(), other.left.slice()]);
    }
}

impl Part {
    fn zeros(&self, device: &dyn Device) -> Self {
        let rows = Tensor::zeros_on(device, self.rows.rows(), self.rows.width());
        Self { positions: self.positions.clone(), rows }
    }

    /// The same in the host's memory, from where numbers travel.
    fn on_host(&self) -> Self {
        Self { positions: self.positions.clone(), rows: self.rows.on_host() }
    }

    /// The same on a device.
    fn onto(self, device: &dyn Device) -> Self {
        Self { positions: self.positions, rows: self.rows.onto(device) }
    }

    /// Where the rows of neighbouring positions are.
    fn place(&self, sizes: &Sizes, wanted: &Range<usize>) -> Range<usize> {
        let row = sizes.batch * self.rows.width();
        let mut before = 0;
        for own in &self.positions {
            if own.start <= wanted.start && wanted.end <= own.end {
                let first = before + wanted.start - own.start;
                return first * row..(first + wanted.len()) * row;
            }
            before += own.len();
        }
        unreachable!("{wanted:?} is not among {:?}", self.positions)
    }

    fn at(&self, sizes: &Sizes, positions: &Range<usize>) -> Slice<'_> {
        self.rows.slice().part(self.place(sizes, positions))
    }

    fn at_mut(&mut self, sizes: &Sizes, positions: &Range<usize>) -> SliceMut<'_> {
        let place = self.place(sizes, positions);
        self.rows.slice_mut().part(place)
    }

    /// The host's numbers at several ranges of its positions.
    fn at_all(&self, sizes: &Sizes, positions: &[Range<usize>]) -> Vec<f32> {
        positions.iter().flat_map(|range| self.at(sizes, range).host().iter().copied()).collect()
    }

    /// Parts of other positions as one, in the order of the positions.
    fn together(sizes: &Sizes, parts: Vec<(Vec<Range<usize>>, Vec<f32>)>, width: usize) -> Self {
        let row = sizes.batch * width;
        let mut pieces: Vec<(Range<usize>, &[f32])> = Vec::new();
        for (positions, data) in &parts {
            let mut rest: &[f32] = data;
            for range in positions {
                let (own, behind) = rest.split_at(range.len() * row);
                pieces.push((range.clone(), own));
                rest = behind;
            }
        }
        pieces.sort_by_key(|(range, _)| range.start);
        let mut positions: Vec<Range<usize>> = Vec::new();
        let mut data = Vec::new();
        for (range, own) in pieces {
            data.extend_from_slice(own);
            match positions.last_mut().filter(|last| last.end == range.start) {
                Some(last) => last.end = range.end,
                None => positions.push(range),
            }
        }
        Part { positions, rows: Tensor::of(data, width) }
    }
}

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
        let own = self.count.div_ceil(self.members);
        let first = member * self.count / self.members;
        first * self.width..(first + own) * self.width
    }
}

/// Something travels, through the host.
struct Exchange<'a> {
    device: &'a dyn Device,
    sizes: &'a Sizes,
    kind: CollectiveKind,
    members: &'a Members,
}

impl Exchange<'_> {
    fn perform(
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
        let all = |own: Heads| Heads { count: own.count * members, ..own };
        let of_keys = |own: Heads| Heads { count: work.alone.kv_heads, ..own };
        let outputs = heads(kernel.heads, kernel.value_head_dim);
        match travels {
            Travels::Queries => work.queries = self.to_heads(queries, &work.queries, communicator)?,
            Travels::Keys | Travels::Values => {
                let own = if travels == Travels::Keys { keys } else { values };
                let pair = work.held.back_mut().expect("the rank's own are there");
                let which = &mut pair[usize::from(travels == Travels::Values)];
                *which = self.to_heads(own, which, communicator)?;
                if travels == Travels::Values {
                    work.kernel.heads /= members;
                    work.kernel.kv_heads = kernel.kv_heads.div_ceil(members);
                }
            }
            Travels::Outputs => {
                work.finish(self.device);
                let output = work.output.as_ref().expect("it was just finished");
                work.own_output = Some(self.to_tokens(all(outputs), output, communicator)?);
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

    /// From all heads of own tokens to own heads of all members' tokens.
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
        let own = positions(self.members.place).to_vec();
        let tokens: usize = own.iter().map(ExactSizeIterator::len).sum();
        let mut rows = Tensor::zeros(tokens * self.sizes.batch, heads.count * heads.width);
        for (member, data) in received.into_iter().enumerate() {
            let columns = heads.of(member);
            let width = rows.width();
            for (row, data) in rows.data_mut().chunks_exact_mut(width).zip(data.chunks_exact(columns.len())) {
                elementwise::add(&mut row[columns.clone()], data);
            }
        }
        Ok(Part { positions: own, rows: rows.onto(self.device) })
    }

    /// Keys and values, or their gradients, go to a neighbour: in backward the other way.
    fn pass_on(
        &self,
        travels: Travels,
        pass: Pass,
        work: &mut InWork,
        communicator: &mut Communicator,
    ) -> Result<(), Fault> {
        let to = if pass == Pass::Backward { Neighbour::Before } else { Neighbour::Next };
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
            let (own, behind) = rest.split_at(like.rows.slice().len());
            rest = behind;
            let rows = Tensor::take_to(self.device, own.to_vec(), like.rows.width());
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
            Neighbour::Before => of((holder + 1) % members),
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
            let pair = work.held.back_mut().expect("the rank's own are there");
            work.kept.get_or_insert_with(|| pair.clone());
            let own = &pair[which];
            let sent = vec![self.device.read(own.rows.slice()).into_owned(); members.len()];
            let received = communicator.all_to_all(self.members, sent)?;
            let positions = |member: usize| self.sizes.positions_around(members[member], &own.positions);
            let parts = received.into_iter().enumerate().map(|(member, data)| (positions(member), data));
            let width = own.rows.width();
            pair[which] = Part::together(self.sizes, parts.collect(), width).onto(self.device);
            return Ok(());
        }
        let back = work.back.as_mut().expect("backward has begun");
        let (to_queries, to_pair) = back.made.as_mut().expect("gradients are made before they travel");
        let part = &mut to_pair[which];
        let like = &to_queries.positions;
        let positions = |member: usize| self.sizes.positions_around(members[member], like);
        let whole = part.on_host();
        let messages =
            (0..members.len()).map(|member| whole.at_all(self.sizes, &positions(member))).collect();
        let received = communicator.all_to_all(self.members, messages)?;
        let own = positions(self.members.place);
        let width = part.rows.width();
        let mut sum: Option<Vec<f32>> = None;
        for data in received {
            match &mut sum {
                Some(sum) => elementwise::add(sum, &data),
                None => sum = Some(data),
            }
        }
        let rows = Tensor::take_to(self.device, sum.expect("a group has members"), width);
        *part = Part { positions: own, rows };
        Ok(())
    }
}
