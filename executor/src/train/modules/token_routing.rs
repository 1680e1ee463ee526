//! Tokens on their way to the ranks of their experts, and what the experts make on its way back.
//!
//! Dispatch forward notes each exchange as a hop: which rows went to which member. Combine backward repeats the hops;
//! combine forward and dispatch backward go them in the other direction, where rows that come from the same one are added.
//! Outputs are weighed where the experts are, so that they can be added on every way.

use super::operator::Step;
use super::stepwise::{Among, Stepwise};
use crate::comm::collective::{Combine as With, Communicator};
use crate::comm::members::Members;
use crate::device::tensor::Tensor;
use crate::device::{Device, Visits};
use crate::error::Fault;
use crate::train::frame::ModulePlace;
use crate::train::sizes::ExpertSizes;
use std::rc::Rc;
use trainwright_spec::collective::CollectiveKind;
use trainwright_spec::program::{Axis, Does, Module, Pass};

/// Which experts each token visits, and how much they count.
#[derive(Debug, Clone, PartialEq)]
pub(super) struct Choices {
    /// Experts of a token.
    pub per_token: usize,
    /// By token and place among its experts.
    pub experts: Vec<u32>,
    /// The weight of each chosen expert, in the order of `experts`.
    pub gates: Vec<f32>,
}

/// What the choice of experts keeps for backward.
#[derive(Debug, Default)]
pub(super) struct Chosen {
    pub choices: Option<Rc<Choices>>,
    /// The gradients of the gates, which dispatch leaves.
    pub to_gates: Option<Tensor>,
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
    /// Rows there were before, at their places in what is sent to one member after the other.
    visits: Visits,
    /// How many to each member.
    sent: Vec<usize>,
    /// How many from each member.
    received: Vec<usize>,
}

/// Rows on their way between ranks: on the device, and for each row some extra numbers on the host.
#[derive(Debug)]
struct Wave {
    rows: Tensor,
    extras: Vec<f32>,
    /// Extra numbers of each row.
    columns: usize,
}

/// The routes of a microbatch's tokens to their experts and back.
#[derive(Debug)]
pub(super) struct Routing {
    choices: Rc<Choices>,
    experts: ExpertSizes,
    hops: Vec<Hop>,
    /// Which hop is next.
    at: usize,
    /// Claims of the rows that are here, in dispatch forward.
    claims: Vec<Vec<Claim>>,
    wave: Option<Wave>,
    /// Rows at the experts, by expert: for which of a token's choices.
    claims_here: Vec<Claim>,
    /// Where those rows are among the experts' rows.
    here: Visits,
    /// How much they count, by choice.
    gates: Vec<f32>,
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
        let device = step.device;
        if pass == Pass::Backward {
            let gradient = step.frame.take_gradient();
            let routing = routing(step);
            let k = routing.choices.per_token;
            routing.at = routing.hops.len();
            let rows = combined(device, &gradient, &routing.here, None);
            let mut extras = vec![0.0; rows.rows() * k];
            let visits = routing.claims_here.iter().zip(&routing.here.choices);
            for ((claim, choice), to_gate) in visits.zip(&routing.to_gates) {
                extras[*choice as usize / routing.here.slots * k + claim.slot] += to_gate;
            }
            routing.wave = Some(Wave { rows, extras, columns: k });
            return;
        }
        let top_k = (step.place.0, Module::TopK);
        let choices = step
            .frame
            .kept(top_k)
            .module_state::<Chosen>()
            .choices
            .clone()
            .expect("experts are chosen before");
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
            wave: Some(Wave::bare(flow)),
            claims_here: Vec::new(),
            here: Visits::new(0, &[]),
            gates: Vec::new(),
            groups: Vec::new(),
            to_gates: Vec::new(),
            choices,
        };
        *step.kept().module_state() = Some(routing);
    }

    fn run(&self, step: &mut Step, pass: Pass, _: Does, among: Option<Among>) -> Result<(), Fault> {
        let Some(among) = among else { return Ok(()) };
        let device = step.device;
        let routing = routing(step);
        match pass {
            Pass::Backward => routing.back(device, among),
            _ => routing.leave(device, among),
        }
    }

    fn end(&self, step: &mut Step, pass: Pass) {
        let (place, device) = (step.place, step.device);
        let routing = routing(step);
        if pass == Pass::Backward {
            let k = routing.choices.per_token;
            let Wave { rows, extras, .. } = routing.take_wave();
            step.frame.gradient = Some(rows);
            step.frame.kept((place.0, Module::TopK)).module_state::<Chosen>().to_gates =
                Some(Tensor::of(extras, k));
            return;
        }
        routing.arrive();
        let rows = routing.take_wave().rows;
        step.frame.flow = Some(gathered(device, &rows, &routing.here, None));
    }
}

impl Stepwise for Combine {
    fn begin(&self, step: &mut Step, pass: Pass) {
        let device = step.device;
        if pass == Pass::Backward {
            let rows = step.frame.take_gradient();
            let routing = routing(step);
            routing.at = 0;
            routing.wave = Some(Wave::bare(rows));
            return;
        }
        let outputs = step.frame.take_flow();
        let routing = routing(step);
        routing.at = routing.hops.len();
        let rows = combined(device, &outputs, &routing.here, Some(&routing.gates));
        routing.wave = Some(Wave::bare(rows));
        if step.keeps {
            step.kept().output = Some(outputs);
        }
    }

    fn run(&self, step: &mut Step, pass: Pass, _: Does, among: Option<Among>) -> Result<(), Fault> {
        let Some(among) = among else { return Ok(()) };
        let device = step.device;
        let routing = routing(step);
        match pass {
            Pass::Backward => routing.again(device, among),
            _ => routing.back(device, among),
        }
    }

    fn end(&self, step: &mut Step, pass: Pass) {
        let device = step.device;
        if pass != Pass::Backward {
            step.frame.flow = Some(routing(step).take_wave().rows);
            return;
        }
        let outputs =
            step.kept().output.take().expect("forward keeps the experts' outputs or makes them again");
        let routing = routing(step);
        let rows = routing.take_wave().rows;
        let products = device.products_with_places(rows.slice(), outputs.slice(), &routing.here);
        routing.to_gates = routing.here.choices.iter().map(|choice| products[*choice as usize]).collect();
        let gradient = gathered(device, &rows, &routing.here, Some(&routing.gates));
        step.frame.gradient = Some(gradient);
    }
}

fn routing<'s>(step: &'s mut Step) -> &'s mut Routing {
    let place: ModulePlace = (step.place.0, Module::Dispatch);
    step.frame.kept(place).module_state::<Option<Routing>>().as_mut().expect("dispatch has begun")
}

impl Routing {
    /// Where each of the rank's experts' rows begin, and where the last one's end.
    pub fn groups(&self) -> &[usize] {
        &self.groups
    }

    /// The next hop of dispatch: decides who gets which rows, and takes what comes.
    fn leave(&mut self, device: &dyn Device, among: Among) -> Result<(), Fault> {
        let members = among.members.ranks.len();
        let mut sent: Vec<Vec<(usize, Vec<Claim>)>> = vec![Vec::new(); members];
        for (row, claims) in self.claims.iter().enumerate() {
            match among.kind {
                CollectiveKind::AllToAll => {
                    let to = |claim: &Claim| self.experts.member(claim.expert, among.axis);
                    match among.axis {
                        // A token goes to each node once.
                        Axis::ExpertOuter => (0..members).for_each(|member| {
                            let of_node: Vec<Claim> =
                                claims.iter().filter(|claim| to(claim) == member).copied().collect();
                            if !of_node.is_empty() {
                                sent[member].push((row, of_node));
                            }
                        }),
                        _ => claims.iter().for_each(|claim| sent[to(claim)].push((row, vec![*claim]))),
                    }
                }
                _ => sent.iter_mut().for_each(|sent| sent.push((row, claims.clone()))),
            }
        }
        let k = self.choices.per_token;
        let columns = |claims: &Vec<Claim>| {
            let mut columns = vec![-1.0; 2 * k];
            for claim in claims {
                columns[2 * claim.slot] = claim.expert as f32;
                columns[2 * claim.slot + 1] = claim.gate;
            }
            columns
        };
        let by_place: Vec<usize> = sent.iter().flatten().map(|(row, _)| *row).collect();
        let visits = Visits::new(self.claims.len(), &by_place);
        let extras = sent.iter().flatten().flat_map(|(_, claims)| columns(claims)).collect();
        let rows = gathered(device, &self.take_wave().rows, &visits, None);
        let leaving = Wave { rows, extras, columns: 2 * k };
        let sent: Vec<usize> = sent.iter().map(Vec::len).collect();
        let (wave, received) = leaving.exchange(device, among.communicator, among.members, &sent)?;
        self.claims.clear();
        for columns in wave.extras.chunks_exact(2 * k) {
            let claims = columns.chunks_exact(2).enumerate().filter(|(_, pair)| pair[0] >= 0.0);
            let claim =
                |(slot, pair): (usize, &[f32])| Claim { slot, expert: pair[0] as usize, gate: pair[1] };
            self.claims.push(claims.map(claim).collect());
        }
        self.hops.push(Hop { visits, sent, received });
        self.wave = Some(Wave::bare(wave.rows));
        Ok(())
    }

    /// The end of dispatch: the visits to the rank's experts, by expert.
    fn arrive(&mut self) {
        let (claims, local) = (std::mem::take(&mut self.claims), self.experts.local());
        let rows = claims.len();
        let visits = claims.into_iter().enumerate();
        let visits = visits.flat_map(|(row, claims)| claims.into_iter().map(move |claim| (row, claim)));
        let mut visits: Vec<(usize, Claim)> =
            visits.filter(|(_, claim)| local.contains(&claim.expert)).collect();
        visits.sort_by_key(|(_, claim)| claim.expert);
        let before = |expert: usize| visits.partition_point(|(_, claim)| claim.expert < expert);
        self.groups = (local.start..=local.end).map(before).collect();
        let by_place: Vec<usize> = visits.iter().map(|(row, _)| *row).collect();
        self.claims_here = visits.into_iter().map(|(_, claim)| claim).collect();
        self.here = Visits::new(rows, &by_place);
        self.gates = vec![0.0; self.here.places.len()];
        for (claim, choice) in self.claims_here.iter().zip(&self.here.choices) {
            self.gates[*choice as usize] = claim.gate;
        }
    }

    fn take_wave(&mut self) -> Wave {
        self.wave.take().expect("something is on its way")
    }

    /// Repeats a hop of dispatch.
    fn again(&mut self, device: &dyn Device, among: Among) -> Result<(), Fault> {
        let rows = self.take_wave().rows;
        let hop = &self.hops[self.at];
        let leaving = Wave::bare(gathered(device, &rows, &hop.visits, None));
        let (wave, _) = leaving.exchange(device, among.communicator, among.members, &hop.sent)?;
        self.wave = Some(wave);
        self.at += 1;
        Ok(())
    }

    /// Goes a hop in the other direction; or sums over ranks that have the same tokens.
    fn back(&mut self, device: &dyn Device, among: Among) -> Result<(), Fault> {
        let wave = self.take_wave();
        if among.kind == CollectiveKind::AllReduce {
            let (width, columns) = (wave.rows.width(), wave.columns);
            let mut message = wave.message(device);
            among.communicator.all_reduce(among.members, &mut message, With::Sum)?;
            self.wave = Some(Wave::of(device, message, [width, columns]));
            return Ok(());
        }
        self.at -= 1;
        let hop = &self.hops[self.at];
        let columns = wave.columns;
        let (arrived, _) = wave.exchange(device, among.communicator, among.members, &hop.received)?;
        let mut extras = vec![0.0; hop.visits.rows * columns];
        for (choice, extra) in hop.visits.choices.iter().zip(arrived.extras.chunks_exact(columns.max(1))) {
            let row = *choice as usize / hop.visits.slots;
            let sums = &mut extras[row * columns..(row + 1) * columns];
            sums.iter_mut().zip(extra).for_each(|(sum, extra)| *sum += extra);
        }
        let rows = combined(device, &arrived.rows, &hop.visits, None);
        self.wave = Some(Wave { rows, extras, columns });
        Ok(())
    }
}

/// The row of each place.
fn gathered(device: &dyn Device, rows: &Tensor, visits: &Visits, weights: Option<&[f32]>) -> Tensor {
    let mut at_places = Tensor::any_on(device, visits.choices.len(), rows.width());
    device.gather_rows(rows.slice(), visits, weights, at_places.slice_mut());
    at_places
}

/// Of each row the sum of what is at its places: so the way back begins, and goes on where a row was sent to several.
fn combined(device: &dyn Device, at_places: &Tensor, visits: &Visits, weights: Option<&[f32]>) -> Tensor {
    let mut rows = Tensor::any_on(device, visits.rows, at_places.width());
    device.combine_rows(at_places.slice(), visits, weights, rows.slice_mut());
    rows
}

impl Wave {
    /// Rows with nothing extras them.
    fn bare(rows: Tensor) -> Self {
        Self { rows, extras: Vec::new(), columns: 0 }
    }

    /// Each row with its extra numbers behind it.
    fn message(self, device: &dyn Device) -> Vec<f32> {
        if self.columns == 0 {
            return self.rows.into_vec();
        }
        let rows = device.read(self.rows.slice());
        let rows = rows.chunks_exact(self.rows.width()).zip(self.extras.chunks_exact(self.columns));
        rows.flat_map(|(row, extras)| row.iter().chain(extras).copied()).collect()
    }

    /// The wave of a message: rows of `width`, each followed by `columns` extra numbers.
    fn of(device: &dyn Device, message: Vec<f32>, [width, columns]: [usize; 2]) -> Self {
        if columns == 0 {
            return Self::bare(Tensor::take_to(device, message, width));
        }
        let tokens = || message.chunks_exact(width + columns);
        let rows = tokens().flat_map(|row| &row[..width]).copied().collect();
        let extras = tokens().flat_map(|row| &row[width..]).copied().collect();
        Self { rows: Tensor::take_to(device, rows, width), extras, columns }
    }

    /// Sends `counts` rows to each member. Returns what they sent, and how many rows each of them sent.
    fn exchange(
        self,
        device: &dyn Device,
        communicator: &mut Communicator,
        members: &Members,
        counts: &[usize],
    ) -> Result<(Self, Vec<usize>), Fault> {
        let (width, columns) = (self.rows.width(), self.columns);
        let row = width + columns;
        let message = self.message(device);
        let mut rest = &message[..];
        let mut messages = Vec::new();
        for rows in counts {
            let (of_member, behind) = rest.split_at(rows * row);
            messages.push(of_member.to_vec());
            rest = behind;
        }
        let received = communicator.all_to_all(members, messages)?;
        let counts = received.iter().map(|data| data.len() / row).collect();
        Ok((Self::of(device, received.concat(), [width, columns]), counts))
    }
}
