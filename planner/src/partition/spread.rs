//! Layers of one class over the several stages of one rank.
//!
//! Where a rank's stages hold different numbers of microbatches, a layer's activations weigh differently on each. Layers of
//! one class may be dealt out freely, so the least memory of a mix has a closed form.

use super::layers::Class;

/// A rank's stages, by how many microbatches each holds, most first.
pub(super) struct Spread<'a> {
    pub class: &'a Class,
    pub in_flight: &'a [f64],
}

impl Spread<'_> {
    /// The fastest mix of `layers` layers, as counts per choice, that some dealing-out fits into `room` bytes.
    pub fn fastest(&self, layers: usize, room: f64) -> Option<(f64, Vec<u32>)> {
        let mut best = None;
        let mut counts = vec![0; self.class.choices.len()];
        self.extend(0, layers as u32, 0.0, &mut counts, room, &mut best);
        best
    }

    /// Tries every count of choice `choice` and those after it.
    fn extend(
        &self,
        choice: usize,
        left: u32,
        time: f64,
        counts: &mut Vec<u32>,
        room: f64,
        best: &mut Option<(f64, Vec<u32>)>,
    ) {
        // The choices are sorted by time: no mix of the rest is faster than all of it in this one.
        let step = self.class.choices[choice].time;
        if best.as_ref().is_some_and(|(found, _)| time + f64::from(left) * step >= *found) {
            return;
        }
        if choice + 1 == counts.len() {
            counts[choice] = left;
            if self.least_memory(counts) <= room {
                *best = Some((time + f64::from(left) * step, counts.clone()));
            }
            counts[choice] = 0;
            return;
        }
        for taken in (0..=left).rev() {
            counts[choice] = taken;
            self.extend(choice + 1, left - taken, time + f64::from(taken) * step, counts, room, best);
        }
        counts[choice] = 0;
    }

    /// Least in_flight · kept + peak of a mix, in bytes, over all ways to deal it out.
    ///
    /// Each stage but the one with least in flight takes one layer only, those that keep least where most is in flight.
    pub fn least_memory(&self, counts: &[u32]) -> f64 {
        let layers: u32 = counts.iter().sum();
        self.memory(&self.lopsided(layers as usize), counts)
    }

    /// The least memory of `layers` layers in any mix, in bytes.
    pub fn least_memory_of(&self, layers: usize) -> f64 {
        let mut counts = vec![0; self.class.choices.len()];
        let alone = (0..counts.len()).map(|choice| {
            counts.fill(0);
            counts[choice] = layers as u32;
            self.least_memory(&counts)
        });
        alone.fold(f64::INFINITY, f64::min)
    }

    /// Lengths of the stages, in the order of `in_flight`, as even as `room` bytes allow.
    pub fn lengths(&self, counts: &[u32], room: f64) -> Vec<usize> {
        let layers = counts.iter().sum::<u32>() as usize;
        let stages = self.in_flight.len();
        let extra = layers % stages;
        let mut lengths: Vec<usize> =
            (0..stages).map(|stage| layers / stages + usize::from(stage >= stages - extra)).collect();
        while self.memory(&lengths, counts) > room {
            let Some(donor) = lengths[..stages - 1].iter().position(|&length| length > 1) else { break };
            lengths[donor] -= 1;
            lengths[stages - 1] += 1;
        }
        lengths
    }

    fn lopsided(&self, layers: usize) -> Vec<usize> {
        let stages = self.in_flight.len();
        let mut lengths = vec![1; stages];
        lengths[stages - 1] = layers - (stages - 1);
        lengths
    }

    /// in_flight · kept + peak where the layers that keep least go where most is in flight.
    fn memory(&self, lengths: &[usize], counts: &[u32]) -> f64 {
        let dealt = self.deal(lengths, counts);
        let kept = dealt.iter().zip(self.in_flight).map(|(taken, in_flight)| {
            let kept = taken.iter().zip(&self.class.choices).map(|(&n, choice)| f64::from(n) * choice.kept);
            in_flight * kept.sum::<f64>()
        });
        let used = counts.iter().zip(&self.class.choices).filter(|(count, _)| **count > 0);
        kept.sum::<f64>() + used.map(|(_, choice)| choice.peak).fold(0.0, f64::max)
    }

    /// For each stage, how many layers take each choice.
    pub fn deal(&self, lengths: &[usize], counts: &[u32]) -> Vec<Vec<u32>> {
        let mut order: Vec<usize> = (0..counts.len()).collect();
        order.sort_by(|&a, &b| self.class.choices[a].kept.total_cmp(&self.class.choices[b].kept));
        let mut left = counts.to_vec();
        let mut next = order.iter().copied().peekable();
        lengths
            .iter()
            .map(|&length| {
                let mut taken = vec![0; counts.len()];
                let mut open = length as u32;
                while let Some(&choice) = next.peek().filter(|_| open > 0) {
                    let step = open.min(left[choice]);
                    taken[choice] += step;
                    left[choice] -= step;
                    open -= step;
                    if left[choice] == 0 {
                        next.next();
                    }
                }
                taken
            })
            .collect()
    }
}
