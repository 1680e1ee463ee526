//! Layers of one class over the several stages of one rank.
//!
//! Where a rank's stages hold different numbers of microbatches, a layer's activations weigh differently on each. Layers of
//! one class may be dealt out freely, so the least memory of a mix has a closed form.

use super::layers::Class;

/// The stages of a rank that take layers of one run.
pub(super) struct Spread<'a> {
    pub class: &'a Class,
    /// Those with most microbatches in flight first.
    pub shares: &'a [Share],
}

/// One stage's part of the layers.
#[derive(Clone, Copy, Debug, PartialEq)]
pub(super) struct Share {
    pub stage: usize,
    /// Microbatches that the stage holds.
    pub in_flight: f64,
    /// How many layers it takes, if that is given; else one or more.
    pub fixed: Option<usize>,
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
    pub fn least_memory(&self, counts: &[u32]) -> f64 {
        self.least_kept(counts) + self.peak(counts)
    }

    /// The same without the peak.
    pub fn least_kept(&self, counts: &[u32]) -> f64 {
        // Each free stage but the one with least in flight takes one layer only.
        let last = self.shares.iter().rposition(|share| share.fixed.is_none());
        let free = self.shares.iter().filter(|share| share.fixed.is_none()).count();
        let open = self.open(counts);
        let length = |stage: usize| match self.shares[stage].fixed {
            Some(fixed) => fixed,
            None if Some(stage) == last => open - (free - 1),
            None => 1,
        };
        self.kept_at(length, counts)
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

    /// Every mix of `layers` layers with peaks up to `cap` that none beats in time and kept bytes; fastest first.
    pub fn front(&self, layers: usize, cap: f64) -> Vec<SpreadMix> {
        let mut mixes = Vec::new();
        self.every_mix(0, layers as u32, cap, &mut vec![0; self.class.choices.len()], &mut mixes);
        mixes.sort_by(|a, b| a.time.total_cmp(&b.time).then(a.kept.total_cmp(&b.kept)));
        let mut least = f64::INFINITY;
        mixes.retain(|mix| {
            let better = mix.kept < least;
            least = least.min(mix.kept);
            better
        });
        mixes
    }

    fn every_mix(
        &self,
        choice: usize,
        left: u32,
        cap: f64,
        counts: &mut Vec<u32>,
        mixes: &mut Vec<SpreadMix>,
    ) {
        if choice == counts.len() {
            if left == 0 {
                let times = counts.iter().zip(&self.class.choices);
                let time = times.map(|(&count, choice)| f64::from(count) * choice.time).sum();
                let kept = self.least_kept(counts);
                mixes.push(SpreadMix { time, kept, counts: counts.clone() });
            }
            return;
        }
        let most = if self.class.choices[choice].peak <= cap { left } else { 0 };
        for taken in if choice + 1 == counts.len() { most..=most } else { 0..=most } {
            counts[choice] = taken;
            self.every_mix(choice + 1, left - taken, cap, counts, mixes);
        }
        counts[choice] = 0;
    }

    /// Lengths of the stages, as even as `room` bytes for the kept activations allow.
    pub fn lengths(&self, counts: &[u32], room: f64) -> Vec<usize> {
        let mut lengths: Vec<usize> = self.shares.iter().map(|share| share.fixed.unwrap_or(1)).collect();
        let open = self.open(counts);
        let free: Vec<usize> =
            (0..lengths.len()).filter(|&stage| self.shares[stage].fixed.is_none()).collect();
        for (index, &stage) in free.iter().enumerate() {
            lengths[stage] = open / free.len() + usize::from(index >= free.len() - open % free.len());
        }
        if let Some((&last, donors)) = free.split_last() {
            while self.kept(&lengths, counts) > room {
                let Some(&donor) = donors.iter().find(|&&stage| lengths[stage] > 1) else { break };
                lengths[donor] -= 1;
                lengths[last] += 1;
            }
        }
        lengths
    }

    /// Layers for the free stages.
    fn open(&self, counts: &[u32]) -> usize {
        let fixed: usize = self.shares.iter().filter_map(|share| share.fixed).sum();
        counts.iter().sum::<u32>() as usize - fixed
    }

    /// The greatest peak of the choices taken, in bytes.
    pub fn peak(&self, counts: &[u32]) -> f64 {
        let used = counts.iter().zip(&self.class.choices).filter(|(count, _)| **count > 0);
        used.map(|(_, choice)| choice.peak).fold(0.0, f64::max)
    }

    /// Σ in_flight · kept, in bytes, where the layers that keep least go where most is in flight.
    pub fn kept(&self, lengths: &[usize], counts: &[u32]) -> f64 {
        self.kept_at(|stage| lengths[stage], counts)
    }

    fn kept_at(&self, length: impl Fn(usize) -> usize, counts: &[u32]) -> f64 {
        let mut total = 0.0;
        let mut order = self.class.by_kept.iter().map(|&choice| (choice, counts[choice]));
        let mut next = order.next();
        for (stage, share) in self.shares.iter().enumerate() {
            let mut open = length(stage) as u32;
            while let Some((choice, left)) = next.filter(|_| open > 0) {
                let step = open.min(left);
                total += share.in_flight * f64::from(step) * self.class.choices[choice].kept;
                open -= step;
                next = if left > step { Some((choice, left - step)) } else { order.next() };
            }
        }
        total
    }

    /// For each stage, how many layers take each choice.
    pub fn deal(&self, lengths: &[usize], counts: &[u32]) -> Vec<Vec<u32>> {
        let mut left = counts.to_vec();
        let mut next = self.class.by_kept.iter().copied().peekable();
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

/// A mix of one run's layers on one rank.
#[derive(Clone, Debug)]
pub(super) struct SpreadMix {
    /// Seconds.
    pub time: f64,
    /// Least Σ in_flight · kept, in bytes.
    pub kept: f64,
    /// Layers per choice.
    pub counts: Vec<u32>,
}
