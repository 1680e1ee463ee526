//! A quick mix for a rank with several stages: the fastest choices, then whatever switch saves memory at the least time.
//!
//! Not always the fastest mix, but always one that fits if there is one.

use super::layers::Layers;

/// Layers of one class on one stage.
pub(super) struct Group {
    pub stage: usize,
    pub class: usize,
    pub count: u32,
    pub in_flight: f64,
}

/// How the groups' layers run.
pub(super) struct GreedyMix {
    /// Seconds of the layers.
    pub time: f64,
    /// Bytes beyond the room; 0 if the mix fits.
    pub excess: f64,
    /// Per group and choice, how many layers.
    pub taken: Vec<Vec<u32>>,
}

/// A mix of the groups within `room` bytes for in_flight · kept + peak; if none fits, one that lacks least.
pub(super) fn greedy_mix(layers: &Layers, groups: &[Group], room: f64) -> GreedyMix {
    let mixes = layers.peaks.iter().rev().filter_map(|&cap| below_peak(layers, groups, room, cap));
    let better = |a: GreedyMix, b: GreedyMix| {
        if (b.excess, b.time) < (a.excess, a.time) { b } else { a }
    };
    mixes.reduce(better).expect("the greatest peak allows every choice")
}

/// The same with no peak above `cap`; none if a group has no such choice.
fn below_peak(layers: &Layers, groups: &[Group], room: f64, cap: f64) -> Option<GreedyMix> {
    let mut taken = Vec::with_capacity(groups.len());
    let mut held = 0.0;
    let mut peak = 0.0f64;
    for group in groups {
        let choices = &layers.classes[group.class].choices;
        let fastest = choices.iter().position(|choice| choice.peak <= cap)?;
        let mut counts = vec![0; choices.len()];
        counts[fastest] = group.count;
        held += group.in_flight * f64::from(group.count) * choices[fastest].kept;
        peak = peak.max(choices[fastest].peak);
        taken.push(counts);
    }
    if held + peak > room {
        peak = cap;
    }
    while held + peak > room {
        let Some(switch) = cheapest_switch(layers, groups, &taken, cap) else { break };
        let needed = ((held + peak - room) / switch.saves).ceil().max(1.0);
        let available = taken[switch.group][switch.from];
        let moved = if needed < f64::from(available) { needed as u32 } else { available };
        taken[switch.group][switch.from] -= moved;
        taken[switch.group][switch.to] += moved;
        held -= f64::from(moved) * switch.saves;
    }
    // Summed anew, as the differences above round.
    let (mut time, mut held) = (0.0, 0.0);
    for (group, counts) in groups.iter().zip(&taken) {
        for (choice, &count) in layers.classes[group.class].choices.iter().zip(counts) {
            time += f64::from(count) * choice.time;
            held += group.in_flight * f64::from(count) * choice.kept;
        }
    }
    Some(GreedyMix { time, excess: (held + peak - room).max(0.0), taken })
}

struct Switch {
    group: usize,
    from: usize,
    to: usize,
    /// Bytes per layer.
    saves: f64,
}

/// The switch of a layer to another choice that costs the least time per byte.
fn cheapest_switch(layers: &Layers, groups: &[Group], taken: &[Vec<u32>], cap: f64) -> Option<Switch> {
    let mut best: Option<(f64, Switch)> = None;
    for (index, group) in groups.iter().enumerate() {
        let choices = &layers.classes[group.class].choices;
        for (from, source) in choices.iter().enumerate().filter(|(from, _)| taken[index][*from] > 0) {
            for (to, target) in choices.iter().enumerate().filter(|(_, target)| target.peak <= cap) {
                let saves = group.in_flight * (source.kept - target.kept);
                let price = (target.time - source.time) / saves;
                if saves > 0.0 && best.as_ref().is_none_or(|(least, _)| price < *least) {
                    best = Some((price, Switch { group: index, from, to, saves }));
                }
            }
        }
    }
    best.map(|(_, switch)| switch)
}
