//! Flows that are alike, simulated once: thousands of equal transfers at the same time become a handful.
//!
//! ```text
//! flows over links ─► colours, refined until no class splits ─► one flow and one link of each class
//! ```
//!
//! Links start with the colour of their capacity, flows with that of their amount and cap. A flow's next colour depends on
//! the colours of its links, a link's next one on those of its flows, and so on until no class splits: the coarsest
//! *equitable partition* (Paige & Tarjan 1987, SIAM J. Comput. 16(6), 973–989). All flows of a class then see the
//! same all the time, so that water-filling gives them the same rate and one of them can stand for all: on a link
//! that n flows of its class cross it weighs n times as much.
//!
//! Colours are 64-bit hashes; two unlike ones among n coincide with a chance of about n² / 2⁶⁵.

use super::{Flow, Link, LinkId, Sharing};
use crate::mix;
use std::collections::BTreeMap;

/// One flow and one link of each class.
#[derive(Debug, Clone, PartialEq)]
pub struct Folded {
    /// A link of each class that some flow crosses.
    pub links: Vec<Link>,
    /// A flow of each class, in the order in which the classes first occur.
    pub flows: Vec<Flow>,
    /// The class of each flow that was folded.
    pub classes: Vec<u32>,
}

/// Folds flows that all start at the same time.
///
/// # Panics
/// If a path names a link that is not there.
pub fn fold(links: &[Link], flows: &[Flow]) -> Folded {
    let mut colours = Colours::new(links, flows);
    while colours.refine(flows) {}
    let (classes, flow_examples) = numbered(&colours.flows);
    let (link_classes, link_examples) = numbered(&colours.links);
    // How much all flows of a class together weigh on the example of each class of links.
    let mut weights: Vec<BTreeMap<u32, f64>> = vec![BTreeMap::new(); flow_examples.len()];
    for (flow, class) in flows.iter().zip(&classes) {
        for (link, weight) in &flow.path {
            let place = colours.place[link.0 as usize];
            let of_link = link_classes[place as usize];
            if link_examples[of_link as usize] != place {
                continue;
            }
            let total = weights[*class as usize].entry(of_link).or_insert(0.0);
            match links[link.0 as usize].sharing {
                Sharing::Shared => *total += weight,
                Sharing::PerFlow => *total = total.max(*weight),
            }
        }
    }
    let folded = |(example, weights): (&u32, BTreeMap<u32, f64>)| {
        let path = weights.into_iter().map(|(link, weight)| (LinkId(link), weight)).collect();
        Flow { path, ..flows[*example as usize] }
    };
    Folded {
        links: link_examples.iter().map(|place| links[colours.used[*place as usize].0 as usize]).collect(),
        flows: flow_examples.iter().zip(weights).map(folded).collect(),
        classes,
    }
}

/// The colours of flows and links so far.
struct Colours {
    /// Links that some flow crosses, in the order in which they first occur.
    used: Vec<LinkId>,
    /// Where each link is among the used ones.
    place: Vec<u32>,
    flows: Vec<u64>,
    /// Of the used links.
    links: Vec<u64>,
    classes: usize,
}

impl Colours {
    fn new(links: &[Link], flows: &[Flow]) -> Self {
        const UNUSED: u32 = u32::MAX;
        let (mut used, mut place) = (Vec::new(), vec![UNUSED; links.len()]);
        for (link, _) in flows.iter().flat_map(|flow| &flow.path) {
            let place = &mut place[link.0 as usize];
            if *place == UNUSED {
                *place = used.len() as u32;
                used.push(*link);
            }
        }
        let of_flow = |flow: &Flow| mixed(flow.amount.to_bits(), flow.cap.map_or(u64::MAX, f64::to_bits));
        let of_link = |link: &LinkId| {
            let link = &links[link.0 as usize];
            mixed(link.capacity.to_bits(), link.sharing as u64)
        };
        let (flows, links) = (flows.iter().map(of_flow).collect(), used.iter().map(of_link).collect());
        Self { used, place, flows, links, classes: 0 }
    }

    /// Colours flows by their links, then links by their flows; returns whether that split a class.
    fn refine(&mut self, flows: &[Flow]) -> bool {
        let mut crossing = vec![0u64; self.links.len()];
        for (flow, colour) in flows.iter().zip(&mut self.flows) {
            let links = flow.path.iter().map(|(link, weight)| {
                mixed(self.links[self.place[link.0 as usize] as usize], weight.to_bits())
            });
            // A sum, so that the order of the links does not matter.
            *colour = mixed(*colour, links.fold(0, u64::wrapping_add));
            for (link, weight) in &flow.path {
                let sum = &mut crossing[self.place[link.0 as usize] as usize];
                *sum = sum.wrapping_add(mixed(*colour, weight.to_bits()));
            }
        }
        for (colour, crossing) in self.links.iter_mut().zip(crossing) {
            *colour = mixed(*colour, crossing);
        }
        let before = std::mem::replace(&mut self.classes, distinct(&self.flows) + distinct(&self.links));
        self.classes > before
    }
}

fn distinct(colours: &[u64]) -> usize {
    let mut sorted = colours.to_vec();
    sorted.sort_unstable();
    sorted.chunk_by(|a, b| a == b).count()
}

/// The class of each colour, numbered as they first occur, and where each class first occurs.
fn numbered(colours: &[u64]) -> (Vec<u32>, Vec<u32>) {
    let mut order: Vec<(u64, u32)> = colours.iter().copied().zip(0..).collect();
    order.sort_unstable();
    let mut first = vec![0u32; colours.len()];
    for class in order.chunk_by(|a, b| a.0 == b.0) {
        class.iter().for_each(|(_, index)| first[*index as usize] = class[0].1);
    }
    let mut examples = Vec::new();
    let mut classes = vec![0u32; colours.len()];
    for index in 0..colours.len() {
        if first[index] as usize == index {
            classes[index] = examples.len() as u32;
            examples.push(index as u32);
        } else {
            classes[index] = classes[first[index] as usize];
        }
    }
    (classes, examples)
}

/// Two words hashed into one.
fn mixed(a: u64, b: u64) -> u64 {
    mix::mixed(a.rotate_left(29) ^ mix::spread(b))
}
