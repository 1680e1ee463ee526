//! How ops that run on the same device at the same time slow each other.
//!
//! Kernels take what communication leaves; communication shares the links with other communication. Nothing here
//! knows what an op is for.

use std::ops::AddAssign;

/// The parts of a device, 0 to 1, that communication takes while it runs at full speed.
#[derive(Debug, Clone, Copy, PartialEq, Default)]
pub struct Traffic {
    /// Of its multiprocessors: held from start to end.
    pub multiprocessors: f64,
    /// Of its memory bandwidth.
    pub memory: f64,
    /// Of its link to the others of its node, outwards.
    pub inside: f64,
    /// Of its share of the node's network cards, outwards.
    pub between: f64,
}

/// The needs of an op on a device. A joined op has several, each for a part of its time.
#[derive(Debug, Clone, Copy, PartialEq, Default)]
pub struct Load {
    /// The part of its time in which a kernel runs that needs all multiprocessors, 0 to 1.
    pub multiprocessor_bound: f64,
    /// The part of its time in which a kernel runs that needs all memory bandwidth, 0 to 1.
    pub memory_bound: f64,
    /// The part of its time in which it communicates, 0 to 1.
    pub communicating: f64,
    /// The traffic while it communicates.
    pub traffic: Traffic,
    /// The part of a pool of cores that several ranks compute on, in the mean over its time: 1 is the full pool.
    pub cores: f64,
    /// How much longer it takes, as a part of its time, for every pool of cores that is wanted beyond the one there is:
    /// threads that take turns find the data of others in the caches.
    pub crowding: f64,
}

/// The part that communication always leaves to kernels, so that they end.
///
/// Assumed: the work distributor gives every kernel some multiprocessors in the end. One collective takes 0.55 at most
/// of those measured.
const LEAST_LEFT: f64 = 0.05;

impl Load {
    /// Of a communication.
    pub fn communication(traffic: Traffic) -> Self {
        Self { communicating: 1.0, traffic, ..Self::default() }
    }

    /// Whether it neither slows nor is slowed.
    pub fn is_none(&self) -> bool {
        let traffic = if self.communicating > 0.0 { self.traffic } else { Traffic::default() };
        let kernels = self.multiprocessor_bound + self.memory_bound + self.cores;
        kernels == 0.0 && traffic == Traffic::default()
    }

    /// Whether it makes another load on the same device take longer where there is not enough for both.
    #[inline]
    pub fn slows(&self, other: &Load) -> bool {
        let (ours, theirs) = (&self.traffic, &other.traffic);
        let kernels =
            other.multiprocessor_bound + other.memory_bound > 0.0 && ours.multiprocessors + ours.memory > 0.0;
        let links = ours.inside.min(theirs.inside) > 0.0 || ours.between.min(theirs.between) > 0.0;
        (self.communicating > 0.0 && (kernels || links)) || self.cores.min(other.cores) > 0.0
    }

    /// How many times longer it takes with others on the device.
    ///
    /// s = (1 + f_p (1 / ((1 − C) (1 − M)) − 1) + f_m (1 / (1 − M) − 1) + f_c (1 / r − 1)) (1 + k max(w − 1, 0)) / q
    ///
    /// f_p, f_m, f_c the parts of its time bound by multiprocessors, bound by memory, communicating; C and M the parts
    /// of multiprocessors and memory bandwidth that the others' communication takes; r what it gets of the links it
    /// uses, of what it would use; q what it gets of the cores that it would use, which ranks share as links are shared
    /// (a processor's scheduler gives every thread that wants to run the same time); w the cores that it and all others
    /// want, as a part of those that there are, and k its crowding. A kernel on the multiprocessors that are left finds its operands later by what is
    /// taken of the memory's bandwidth, hence the product: chosen because of the all-gathers of 1 to 4 GiB inside a node of
    /// A100s, beside which matrix products take what it says to 0.1 % in the median (sim/tests/interference.rs).
    /// Kernels do not slow communication (its streams have priority, nothing else runs on its multiprocessors until it ends),
    /// and a communication that is slowed still counts with all it takes at full speed.
    pub fn slowness<'a>(&self, others: impl Iterator<Item = &'a Load> + Clone) -> f64 {
        let taken = |part: fn(&Traffic) -> f64| -> f64 {
            others.clone().map(|other| other.communicating * part(&other.traffic)).sum()
        };
        let left = |part| (1.0 - taken(part)).max(LEAST_LEFT);
        let (multiprocessors, memory) = (left(|taken| taken.multiprocessors), left(|taken| taken.memory));
        let mut slowness = 1.0;
        slowness += self.multiprocessor_bound * (1.0 / (multiprocessors * memory) - 1.0);
        slowness += self.memory_bound * (1.0 / memory - 1.0);
        if self.communicating > 0.0 {
            let links: [fn(&Traffic) -> f64; 2] = [|taken| taken.inside, |taken| taken.between];
            let got = links.map(|link| {
                let claims = others.clone().map(|other| other.communicating * link(&other.traffic));
                got_of_link(link(&self.traffic), claims)
            });
            slowness += self.communicating * (1.0 / got[0].min(got[1]) - 1.0);
        }
        if self.cores > 0.0 {
            let wanted: f64 = self.cores + others.clone().map(|other| other.cores).sum::<f64>();
            slowness *= self.crowding_slowness(wanted);
            slowness /= got_of_link(self.cores, others.map(|other| other.cores));
        }
        slowness
    }
}

impl Load {
    /// How many times longer it takes if `wanted` pools of cores are wanted in all.
    pub fn crowding_slowness(&self, wanted: f64) -> f64 {
        1.0 + self.crowding * (wanted - 1.0).max(0.0)
    }
}

/// The part of its claim on a link that an op gets, max-min fair with the `others`: no op gets more than it claims, and
/// an op that gets less than that gets no less than any other.
pub(super) fn got_of_link(claim: f64, others: impl Iterator<Item = f64> + Clone) -> f64 {
    let total: f64 = claim + others.clone().sum::<f64>();
    if total <= 1.0 {
        return 1.0;
    }
    // The level of those that get less than they claim rises as the smaller claims are set aside.
    let mut level = 0.0;
    loop {
        let small: f64 = others.clone().filter(|other| *other <= level).sum();
        let large = others.clone().filter(|other| *other > level).count();
        let next = (1.0 - small) / (large + 1) as f64;
        if next <= level {
            return (level / claim).min(1.0);
        }
        level = next;
    }
}

/// Sums of loads over time: what several ops in one do with the device.
#[derive(Debug, Clone, Copy, Default)]
pub struct Mixture {
    multiprocessor_bound: f64,
    memory_bound: f64,
    communicating: f64,
    /// Of each part, times the time it is taken.
    traffic: Traffic,
    cores: f64,
    crowding: f64,
}

impl Mixture {
    /// Adds a load that lasts for `time`, in any unit.
    pub fn add(&mut self, load: &Load, time: f64) {
        self.multiprocessor_bound += load.multiprocessor_bound * time;
        self.memory_bound += load.memory_bound * time;
        let communicating = load.communicating * time;
        self.communicating += communicating;
        self.traffic += load.traffic.times(communicating);
        self.cores += load.cores * time;
        self.crowding += load.crowding * time;
    }

    /// The load of one op that does all of it in `time`, in the same unit.
    pub fn over(&self, time: f64) -> Load {
        if time <= 0.0 {
            return Load::default();
        }
        let communicating = if self.communicating > 0.0 { self.communicating } else { 1.0 };
        Load {
            multiprocessor_bound: self.multiprocessor_bound / time,
            memory_bound: self.memory_bound / time,
            communicating: self.communicating / time,
            traffic: self.traffic.times(1.0 / communicating),
            cores: self.cores / time,
            crowding: self.crowding / time,
        }
    }
}

impl Traffic {
    fn times(self, factor: f64) -> Self {
        Self {
            multiprocessors: self.multiprocessors * factor,
            memory: self.memory * factor,
            inside: self.inside * factor,
            between: self.between * factor,
        }
    }
}

impl AddAssign for Traffic {
    fn add_assign(&mut self, other: Self) {
        self.multiprocessors += other.multiprocessors;
        self.memory += other.memory;
        self.inside += other.inside;
        self.between += other.between;
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn on_link(share: f64) -> Load {
        Load::communication(Traffic { inside: share, ..Traffic::default() })
    }

    fn check(load: Load, others: &[Load], slowness: f64) {
        let found = load.slowness(others.iter());
        assert!((found - slowness).abs() < 1e-12, "{load:?} with {others:?}: {found}, not {slowness}");
    }

    #[test]
    fn kernels_get_what_communication_leaves() {
        let gather = Load::communication(Traffic { multiprocessors: 0.2, memory: 0.5, ..Traffic::default() });
        let product = Load { multiprocessor_bound: 1.0, ..Load::default() };
        let copy = Load { memory_bound: 1.0, ..Load::default() };
        check(product, &[], 1.0);
        check(product, &[product, copy], 1.0);
        check(product, &[gather], 1.0 / (0.8 * 0.5));
        check(copy, &[gather], 2.0);
        // Half of its time waits for the launch: only the other half takes twice as long.
        check(Load { memory_bound: 0.5, ..Load::default() }, &[gather], 1.5);
        check(gather, &[product, copy], 1.0);
    }

    #[test]
    fn communication_shares_a_link_max_min_fairly() {
        check(on_link(0.5), &[on_link(0.5)], 1.0);
        check(on_link(1.0), &[on_link(1.0)], 2.0);
        // 0.2 is less than a third: it gets all, the other two 0.4 each.
        let three = [on_link(0.2), on_link(0.8), on_link(0.5)];
        check(three[0], &three[1..], 1.0);
        check(three[1], &[three[0], three[2]], 2.0);
        check(three[2], &three[..2], 1.25);
        // Different links are nobody's business.
        let other = Load::communication(Traffic { between: 1.0, ..Traffic::default() });
        check(other, &[on_link(1.0)], 1.0);
    }

    #[test]
    fn ranks_share_cores_max_min_fairly() {
        let threads = |share: f64| Load { cores: share, ..Load::default() };
        // Two threads of two cores run at once, three get two thirds each, one of all cores with one of half of them
        // a half.
        check(threads(0.5), &[threads(0.5)], 1.0);
        check(threads(0.5), &[threads(0.5); 2], 1.5);
        check(threads(1.0), &[threads(0.5)], 2.0);
        check(threads(0.5), &[threads(1.0)], 1.0);
        // Two threads a core, each of which takes a tenth longer for that; a quarter more than there is, a fortieth.
        let thread = Load { crowding: 0.1, ..threads(0.5) };
        check(thread, &[thread; 3], 2.2);
        check(thread, &[thread], 1.0);
        check(Load { cores: 1.0, ..thread }, &[threads(0.25)], 1.025 / 0.75);
    }

    #[test]
    fn several_in_one_are_slowed_as_one_after_the_other() {
        // 3 units of a product, then 1 of a gather that wants the whole link.
        let mut mixture = Mixture::default();
        mixture.add(&Load { multiprocessor_bound: 1.0, ..Load::default() }, 3.0);
        mixture.add(&on_link(1.0), 1.0);
        let both = mixture.over(4.0);
        let taking = Traffic { multiprocessors: 0.5, inside: 1.0, ..Traffic::default() };
        check(both, &[Load::communication(taking)], (3.0 * 2.0 + 2.0) / 4.0);
        // Seen from outside it wants a quarter of the link.
        check(on_link(0.75), &[both], 1.0);
        check(on_link(1.0), &[both], 1.0 / 0.75);
    }
}
