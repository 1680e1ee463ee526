//! Tokens on their way to the ranks of their experts, and what the experts make on its way back.
//!
//! Dispatch forward notes each exchange as a hop: which rows went to which member. Combine backward repeats the hops;
//! combine forward and dispatch backward go them in the other direction, where rows that come from the same one are added.
//! Outputs are weighed where the experts are, so that they can be added on every way.

use super::Step;
use super::stepwise::{Among, Stepwise};
use crate::collective::Combine as With;
use crate::error::Fault;
use crate::frame::Place;
use crate::sizes::ExpertSizes;
use crate::tensor::Tensor;
use std::rc::Rc;
use trainwright_kernels::elementwise;
use trainwright_spec::collective::CollectiveKind;
use trainwright_spec::program::{Axis, Does, Module, Pass};

/// Which experts each token visits, and how much they count.
#[derive(Debug, Clone, PartialEq)]
pub(crate) struct Choices {
    /// Experts of a token.
    pub per_token: usize,
    /// By token and place among its experts.
    pub experts: Vec<u32>,
    /// The same.
    pub gates: Vec<f32>,
}

/// One visit that a row is sent for.
#[derive(Debug, Clone, Copy, PartialEq)]
struct Claim {
    /// Its place among the token's experts.
    slot: usize,
    expert: usize,
    gate: f32,
}

/// An exchange of rows.
#[derive(Debug)]
struct Hop {
    /// To each member these rows.
    sent: Vec<Vec<usize>>,
    /// From each member so many.
    received: Vec<usize>,
    /// Rows there were before.
    rows: usize,
}

/// A row's visit to an expert of this rank.
#[derive(Debug, Clone, Copy)]
struct Visit {
    row: usize,
    claim: Claim,
}

/// The ways of a microbatch's tokens.
#[derive(Debug)]
pub(crate) struct Routing {
    choices: Rc<Choices>,
    experts: ExpertSizes,
    hops: Vec<Hop>,
    /// Which hop is next.
    at: usize,
    /// Claims of the rows that are here, in dispatch forward.
    claims: Vec<Vec<Claim>>,
    /// What is on its way.
    wave: Vec<f32>,
    width: usize,
    /// Rows at the experts, by expert.
    visits: Vec<Visit>,
    rows: usize,
    groups: Vec<usize>,
    /// By visit.
    to_gates: Vec<f32>,
}

/// The way there in forward, and back in backward.
pub(super) struct Dispatch;

/// The way back in forward, and there in backward.
pub(super) struct Combine;

impl Stepwise for Dispatch {
    fn begin(&self, step: &mut Step, pass: Pass) {
        if pass == Pass::Backward {
            let gradient = step.frame.take_gradient();
            let routing = routing(step);
            let (k, hidden) = (routing.choices.per_token, gradient.width());
            routing.start_back(hidden + k);
            for (index, visit) in routing.visits.iter().enumerate() {
                let row = &mut routing.wave[visit.row * (hidden + k)..][..hidden + k];
                elementwise::add(&mut row[..hidden], &gradient.data()[index * hidden..][..hidden]);
                row[hidden + visit.claim.slot] += routing.to_gates[index];
            }
            return;
        }
        let top_k = (step.place.0, Module::TopK);
        let choices = step.frame.kept(top_k).choices.clone().expect("experts are chosen before");
        let flow = step.frame.take_flow();
        let (k, tokens) = (choices.per_token, flow.rows());
        let claim =
            |at: usize| Claim { slot: at % k, expert: choices.experts[at] as usize, gate: choices.gates[at] };
        let claims = (0..tokens).map(|token| (token * k..(token + 1) * k).map(claim).collect()).collect();
        let routing = Routing {
            experts: step.sizes.experts_of(step.experts().count),
            hops: Vec::new(),
            at: 0,
            claims,
            width: flow.width(),
            wave: flow.into_vec(),
            visits: Vec::new(),
            rows: 0,
            groups: Vec::new(),
            to_gates: Vec::new(),
            choices,
        };
        step.kept().routing = Some(Box::new(routing));
    }

    fn run(&self, step: &mut Step, pass: Pass, _: Does, among: Option<Among>) -> Result<(), Fault> {
        let Some(among) = among else { return Ok(()) };
        let routing = routing(step);
        match pass {
            Pass::Backward => routing.back(among),
            _ => routing.leave(among),
        }
    }

    fn end(&self, step: &mut Step, pass: Pass) {
        let place = step.place;
        let routing = routing(step);
        if pass == Pass::Backward {
            let (k, width) = (routing.choices.per_token, routing.width);
            let wave = Tensor::of(std::mem::take(&mut routing.wave), width);
            let (tokens, to_gates) = (wave.columns(0..width - k), wave.columns(width - k..width));
            step.frame.gradient = Some(tokens);
            step.frame.kept((place.0, Module::TopK)).scores = Some(to_gates);
            return;
        }
        routing.arrive();
        let rows = Tensor::of(routing.at_experts(), routing.width);
        step.frame.flow = Some(rows);
    }
}

impl Stepwise for Combine {
    fn begin(&self, step: &mut Step, pass: Pass) {
        if pass == Pass::Backward {
            let gradient = step.frame.take_gradient();
            let routing = routing(step);
            (routing.at, routing.width) = (0, gradient.width());
            routing.wave = gradient.into_vec();
            return;
        }
        let outputs = step.frame.take_flow();
        let width = outputs.width();
        let routing = routing(step);
        routing.start_back(width);
        for (index, visit) in routing.visits.iter().enumerate() {
            let row = &mut routing.wave[visit.row * width..][..width];
            let output = &outputs.data()[index * width..][..width];
            row.iter_mut().zip(output).for_each(|(sum, output)| *sum += visit.claim.gate * output);
        }
        if step.keeps.rest {
            step.kept().output = Some(outputs);
        }
    }

    fn run(&self, step: &mut Step, pass: Pass, _: Does, among: Option<Among>) -> Result<(), Fault> {
        let Some(among) = among else { return Ok(()) };
        let routing = routing(step);
        match pass {
            Pass::Backward => routing.again(among),
            _ => routing.back(among),
        }
    }

    fn end(&self, step: &mut Step, pass: Pass) {
        if pass != Pass::Backward {
            let routing = routing(step);
            let tokens = Tensor::of(std::mem::take(&mut routing.wave), routing.width);
            step.frame.flow = Some(tokens);
            return;
        }
        let outputs =
            step.kept().output.take().expect("forward keeps the experts' outputs or makes them again");
        let routing = routing(step);
        let width = routing.width;
        let mut rows = Tensor::of(routing.at_experts(), width);
        let pairs = rows.data_mut().chunks_exact_mut(width).zip(outputs.data().chunks_exact(width));
        routing.to_gates = pairs
            .zip(&routing.visits)
            .map(|((gradient, output), visit)| {
                let to_gate = gradient.iter().zip(output).map(|(g, o)| g * o).sum();
                gradient.iter_mut().for_each(|g| *g *= visit.claim.gate);
                to_gate
            })
            .collect();
        step.frame.gradient = Some(rows);
    }
}

fn routing<'s>(step: &'s mut Step) -> &'s mut Routing {
    let place: Place = (step.place.0, Module::Dispatch);
    step.frame.kept(place).routing.as_mut().expect("dispatch has begun")
}

impl Routing {
    /// Where each of the rank's experts' rows begin, and where the last one's end.
    pub fn groups(&self) -> &[usize] {
        &self.groups
    }

    /// The next hop of dispatch: decides who gets which rows, and takes what comes.
    fn leave(&mut self, among: Among) -> Result<(), Fault> {
        let members = among.members.ranks.len();
        let mut sent: Vec<Vec<(usize, Vec<Claim>)>> = vec![Vec::new(); members];
        for (row, claims) in self.claims.iter().enumerate() {
            match among.kind {
                CollectiveKind::AllToAll => {
                    let to = |claim: &Claim| self.experts.member(claim.expert, among.axis);
                    match among.axis {
                        // A token goes to each node once.
                        Axis::ExpertOuter => (0..members).for_each(|member| {
                            let own: Vec<Claim> =
                                claims.iter().filter(|claim| to(claim) == member).copied().collect();
                            if !own.is_empty() {
                                sent[member].push((row, own));
                            }
                        }),
                        _ => claims.iter().for_each(|claim| sent[to(claim)].push((row, vec![*claim]))),
                    }
                }
                _ => sent.iter_mut().for_each(|sent| sent.push((row, claims.clone()))),
            }
        }
        let (width, k) = (self.width, self.choices.per_token);
        let message = |rows: &Vec<(usize, Vec<Claim>)>| -> Vec<f32> {
            let mut message = Vec::with_capacity(rows.len() * (width + 2 * k));
            for (row, claims) in rows {
                message.extend_from_slice(&self.wave[row * width..(row + 1) * width]);
                let mut columns = vec![-1.0; 2 * k];
                for claim in claims {
                    columns[2 * claim.slot] = claim.expert as f32;
                    columns[2 * claim.slot + 1] = claim.gate;
                }
                message.extend(columns);
            }
            message
        };
        let messages = sent.iter().map(message).collect();
        let received = among.communicator.all_to_all(among.members, messages)?;
        self.hops.push(Hop {
            sent: sent.iter().map(|rows| rows.iter().map(|(row, _)| *row).collect()).collect(),
            received: received.iter().map(|data| data.len() / (width + 2 * k)).collect(),
            rows: self.claims.len(),
        });
        self.claims.clear();
        self.wave.clear();
        for row in received.iter().flat_map(|data| data.chunks_exact(width + 2 * k)) {
            self.wave.extend_from_slice(&row[..width]);
            let claims = row[width..].chunks_exact(2).enumerate().filter(|(_, pair)| pair[0] >= 0.0);
            let claim =
                |(slot, pair): (usize, &[f32])| Claim { slot, expert: pair[0] as usize, gate: pair[1] };
            self.claims.push(claims.map(claim).collect());
        }
        Ok(())
    }

    /// The end of dispatch: the visits to the rank's own experts, by expert.
    fn arrive(&mut self) {
        self.rows = self.claims.len();
        let claims = std::mem::take(&mut self.claims);
        let own = self.experts.own();
        let rows = claims.into_iter().enumerate();
        let visits = rows.flat_map(|(row, claims)| claims.into_iter().map(move |claim| Visit { row, claim }));
        self.visits = visits.filter(|visit| own.contains(&visit.claim.expert)).collect();
        self.visits.sort_by_key(|visit| visit.claim.expert);
        let before = |expert: usize| self.visits.partition_point(|visit| visit.claim.expert < expert);
        self.groups = (own.start..=own.end).map(before).collect();
    }

    /// The rows on their way, one for each visit.
    fn at_experts(&mut self) -> Vec<f32> {
        let wave = std::mem::take(&mut self.wave);
        let rows = self.visits.iter().map(|visit| &wave[visit.row * self.width..][..self.width]);
        rows.flatten().copied().collect()
    }

    fn start_back(&mut self, width: usize) {
        (self.at, self.width) = (self.hops.len(), width);
        self.wave = vec![0.0; self.rows * width];
    }

    /// Repeats a hop of dispatch.
    fn again(&mut self, among: Among) -> Result<(), Fault> {
        let hop = &self.hops[self.at];
        let width = self.width;
        let row = |row: &usize| self.wave[row * width..(row + 1) * width].iter().copied();
        let messages = hop.sent.iter().map(|rows| rows.iter().flat_map(row).collect()).collect();
        self.wave = among.communicator.all_to_all(among.members, messages)?.concat();
        self.at += 1;
        Ok(())
    }

    /// Goes a hop in the other direction; or sums over ranks that have the same tokens.
    fn back(&mut self, among: Among) -> Result<(), Fault> {
        if among.kind == CollectiveKind::AllReduce {
            return among.communicator.all_reduce(among.members, &mut self.wave, With::Sum);
        }
        self.at -= 1;
        let width = self.width;
        let hop = &self.hops[self.at];
        let mut rest = &self.wave[..];
        let mut messages = Vec::new();
        for rows in &hop.received {
            let (own, behind) = rest.split_at(rows * width);
            messages.push(own.to_vec());
            rest = behind;
        }
        let received = among.communicator.all_to_all(among.members, messages)?;
        let mut wave = vec![0.0; hop.rows * width];
        for (rows, data) in hop.sent.iter().zip(&received) {
            for (row, data) in rows.iter().zip(data.chunks_exact(width)) {
                elementwise::add(&mut wave[row * width..(row + 1) * width], data);
            }
        }
        self.wave = wave;
        Ok(())
    }
}
