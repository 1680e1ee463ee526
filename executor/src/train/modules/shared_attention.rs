//! Attention shared by the ranks of a context axis: queries, keys and values travel as the plan's scheme lists it, and what
//! the steps make is put together.
//!
//! A rank knows the positions of everything it holds, so a step needs no separate mask: queries see keys of earlier
//! positions in full, keys of the same positions as the model's mask says, and later ones not at all if it is causal. Packed
//! documents hide more keys by their positions.

mod exchange;

use super::attention::kernel;
use super::dropout::of_probabilities;
use super::operator::Step;
use super::stepwise::{Among, Stepwise};
use crate::device::tensor::Tensor;
use crate::device::{AttentionOutput, AttentionTile, Device, Numbers, Slice, SliceMut};
use crate::error::Fault;
use crate::train::data::documents::PackedDocuments;
use crate::train::sizes::Sizes;
use exchange::Exchange;
use std::collections::VecDeque;
use std::ops::Range;
use std::sync::Arc;
use trainwright_kernels::attention::{Attention, Documents, Mask, ScoreDropout, ScoreRules};
use trainwright_spec::program::{Does, Pass, Share};

/// Rows of the tokens at some positions, those of a position next to each other.
#[derive(Debug, Clone)]
struct Part {
    /// Ascending.
    positions: Vec<Range<usize>>,
    rows: Tensor,
}

/// Keys and values of the same positions, or their gradients.
type Pair = [Part; 2];

/// The attention of queries to the keys that they have seen so far.
#[derive(Debug, Default)]
struct Output {
    /// The heads' outputs.
    heads: Numbers,
    /// What the kernel leaves for backward; empty if no key was seen.
    left: Numbers,
}

/// A layer's attention between its first and its last step.
#[derive(Debug)]
struct InWork {
    /// Of the rank's heads before any exchange.
    alone: Attention,
    /// Of the heads that are here.
    kernel: Attention,
    /// What is dropped of their probabilities, from the first position on.
    drops: Option<ScoreDropout>,
    /// The documents of its sequences, if they are kept apart.
    documents: Option<Arc<PackedDocuments>>,
    queries: Part,
    /// Keys and values in the order in which they are used.
    held: VecDeque<Pair>,
    /// The ones that backward begins with.
    kept: Option<Pair>,
    /// By range of the queries' positions, over the keys so far.
    outputs: Vec<Output>,
    /// The outputs of the last step, until they are joined to `outputs`.
    more: Option<Vec<Output>>,
    /// The outputs of all heads that are here.
    output: Option<Part>,
    /// The outputs of all heads of the rank's tokens, where those are others.
    token_output: Option<Part>,
    back: Option<Back>,
}

/// Backward of it.
#[derive(Debug)]
struct Back {
    gradient: Part,
    /// Gradients of queries, and of the keys and values in use.
    made: Option<(Part, Pair)>,
    /// The gradients of the last step, until they are added to `made`.
    more: Option<(Part, Pair)>,
}

pub(super) struct Shared;

impl Stepwise for Shared {
    fn begin(&self, step: &mut Step, pass: Pass) {
        let positions = step.sizes.local_positions().to_vec();
        if pass == Pass::Backward {
            let gradient = Part { positions, rows: step.frame.take_gradient() };
            let work = in_work(step);
            work.held = work.kept.iter().cloned().collect();
            work.back = Some(Back { gradient, made: None, more: None });
            return;
        }
        let kernel = kernel(step);
        let drops = of_probabilities(step, &kernel);
        let documents = step.frame.documents.clone();
        let flow = step.frame.take_flow();
        let part = |columns| Part { positions: positions.clone(), rows: flow.columns(columns) };
        let [q, k, v] = kernel.columns();
        let pair = [part(q..q + k), part(q + k..q + k + v)];
        *step.kept().module_state() = Some(InWork {
            alone: kernel,
            kernel,
            drops,
            documents,
            queries: part(0..q),
            held: VecDeque::from([pair]),
            kept: None,
            outputs: Vec::new(),
            more: None,
            output: None,
            token_output: None,
            back: None,
        });
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
        let (keeps, device) = (step.keeps, step.device);
        let work = in_work(step);
        if pass == Pass::Backward {
            let back = work.back.take().expect("backward has begun");
            let (queries, [keys, values]) = back.made.expect("every query has seen its keys");
            step.frame.gradient = Some(Tensor::side_by_side(&[&queries.rows, &keys.rows, &values.rows]));
            return;
        }
        work.finish(device);
        let of_tokens = work.token_output.take();
        let flow = of_tokens.or_else(|| work.output.clone()).expect("the outputs are finished").rows;
        let kept = step.kept();
        match keeps {
            // Backward reads the parts.
            true => kept.input = None,
            false => *kept.module_state::<Option<InWork>>() = None,
        }
        step.frame.flow = Some(flow);
    }
}

fn in_work<'s>(step: &'s mut Step) -> &'s mut InWork {
    step.kept().module_state::<Option<InWork>>().as_mut().expect("shared attention has begun")
}

impl InWork {
    /// Queries attend to the next keys.
    fn attend(&mut self, sizes: &Sizes, device: &dyn Device) {
        let pair = self.held.pop_front().expect("keys and values come before they are used");
        let mut made: Vec<Output> = Vec::new();
        for queries in &self.queries.positions {
            let mut joined: Option<Output> = None;
            for (kernel, keys) in pair[0].positions.iter().flat_map(|keys| seen(&self.kernel, queries, keys))
            {
                let tile = self.tile(sizes, queries, &pair, &keys);
                let [heads, left] = device.attend(&kernel, self.rules_of(queries, &keys), tile);
                let output = Output { heads, left };
                match &mut joined {
                    Some(joined) => joined.join(&output, &kernel, device),
                    None => joined = Some(output),
                }
            }
            made.push(joined.unwrap_or_default());
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
        for (output, more) in self.outputs.iter_mut().zip(more) {
            if output.left.is_empty() {
                *output = more;
            } else if !more.left.is_empty() {
                output.join(&more, &self.kernel, device);
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

    /// The rules of the scores of queries with keys.
    fn rules_of(&self, queries: &Range<usize>, keys: &Range<usize>) -> ScoreRules<'_> {
        let first = [queries.start, keys.start];
        let dropout = self.drops.map(|drops| {
            let [sequence, head, ..] = drops.first;
            ScoreDropout { first: [sequence, head, first[0], first[1]], ..drops }
        });
        let documents = self.documents.as_deref().map(PackedDocuments::view);
        ScoreRules { dropout, documents: documents.map(|documents| Documents { first, ..documents }) }
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
                let output = AttentionOutput {
                    heads: output.at(sizes, queries),
                    left: self.outputs[index].left.slice(),
                    gradient: back.gradient.at(sizes, queries),
                };
                let tile = self.tile(sizes, queries, &pair, &keys);
                let [query_gradient, key_gradient, value_gradient] =
                    device.attend_gradient(&kernel, self.rules_of(queries, &keys), tile, output);
                device.add(to_queries.at_mut(sizes, queries), query_gradient.slice());
                device.add(to_pair[0].at_mut(sizes, &keys), key_gradient.slice());
                device.add(to_pair[1].at_mut(sizes, &keys), value_gradient.slice());
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
            for (part, more) in pair.iter_mut().zip(&more) {
                device.add(part.rows.slice_mut(), more.rows.slice());
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
        let joined = [self.heads.slice_mut(), self.left.slice_mut()];
        device.join(kernel, joined, [other.heads.slice(), other.left.slice()]);
    }
}

impl Part {
    fn zeros(&self, device: &dyn Device) -> Self {
        let rows = Tensor::zeros_on(device, self.rows.rows(), self.rows.width());
        Self { positions: self.positions.clone(), rows }
    }

    /// A copy in the host's memory, from where numbers travel.
    fn on_host(&self) -> Self {
        Self { positions: self.positions.clone(), rows: self.rows.on_host() }
    }

    /// Moves the rows to a device.
    fn onto(self, device: &dyn Device) -> Self {
        Self { positions: self.positions, rows: self.rows.onto(device) }
    }

    /// Where the rows of neighbouring positions are.
    fn place(&self, sizes: &Sizes, wanted: &Range<usize>) -> Range<usize> {
        let row = sizes.batch * self.rows.width();
        let mut before = 0;
        for range in &self.positions {
            if range.start <= wanted.start && wanted.end <= range.end {
                let first = before + wanted.start - range.start;
                return first * row..(first + wanted.len()) * row;
            }
            before += range.len();
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
        let mut slices: Vec<(Range<usize>, &[f32])> = Vec::new();
        for (positions, data) in &parts {
            let mut rest: &[f32] = data;
            for range in positions {
                let (rows, behind) = rest.split_at(range.len() * row);
                slices.push((range.clone(), rows));
                rest = behind;
            }
        }
        slices.sort_by_key(|(range, _)| range.start);
        let mut positions: Vec<Range<usize>> = Vec::new();
        let mut data = Vec::new();
        for (range, rows) in slices {
            data.extend_from_slice(rows);
            match positions.last_mut().filter(|last| last.end == range.start) {
                Some(last) => last.end = range.end,
                None => positions.push(range),
            }
        }
        Part { positions, rows: Tensor::of(data, width) }
    }
}
