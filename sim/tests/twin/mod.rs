//! The slow twin of the flow simulation, and the numbers that random cases are drawn with.

use trainwright_sim::flow::{Link, Sharing, Transfer};
use trainwright_spec::units::BytesPerSecond;

/// A flow of the slow twin.
struct Moving {
    flow: usize,
    remaining: f64,
}

/// When each transfer is complete, in seconds: at every start and end all rates are found anew by water-filling.
pub fn slow_completion_times(links: &[Link], transfers: &[Transfer]) -> Vec<f64> {
    let start = |flow: usize| (transfers[flow].start + transfers[flow].latency).get();
    let mut waiting: Vec<usize> = (0..transfers.len()).collect();
    waiting.sort_by(|a, b| start(*b).total_cmp(&start(*a)));
    let mut moving: Vec<Moving> = Vec::new();
    let mut ends = vec![f64::NAN; transfers.len()];
    let mut now = 0.0;
    while !(waiting.is_empty() && moving.is_empty()) {
        let rates = slow_rates(links, transfers, &moving.iter().map(|it| it.flow).collect::<Vec<_>>());
        let times: Vec<f64> = moving.iter().zip(&rates).map(|(it, rate)| it.remaining / rate).collect();
        let first = times.iter().copied().fold(f64::INFINITY, f64::min);
        let step = waiting.last().map_or(first, |flow| first.min(start(*flow) - now));
        now += step;
        let mut still = Vec::new();
        for ((it, rate), time) in moving.into_iter().zip(rates).zip(times) {
            if time <= step * (1.0 + 1e-12) {
                ends[it.flow] = now;
            } else {
                still.push(Moving { remaining: it.remaining - rate * step, ..it });
            }
        }
        moving = still;
        while let Some(flow) = waiting.pop_if(|flow| start(*flow) <= now * (1.0 + 1e-15)) {
            moving.push(Moving { flow, remaining: transfers[flow].amount.get() });
        }
    }
    ends
}

/// Water-filling as in the textbook: raise all rates together; a rate that reaches a limit stays; go on with the others.
fn slow_rates(links: &[Link], transfers: &[Transfer], flows: &[usize]) -> Vec<f64> {
    let mut rates: Vec<Option<f64>> = vec![None; flows.len()];
    let cap = |flow: usize| {
        let per_flow = transfers[flow].path.iter().map(|(link, _)| links[link.0 as usize]);
        let per_flow = per_flow.filter(|link| link.sharing == Sharing::PerFlow).map(|link| link.capacity);
        per_flow.fold(transfers[flow].cap.map_or(f64::INFINITY, BytesPerSecond::get), f64::min)
    };
    while rates.contains(&None) {
        let mut taken = vec![0.0; links.len()];
        let mut weights = vec![0.0; links.len()];
        for (flow, rate) in flows.iter().zip(&rates) {
            for (link, weight) in &transfers[*flow].path {
                match rate {
                    Some(rate) => taken[link.0 as usize] += weight * rate,
                    None => weights[link.0 as usize] += weight,
                }
            }
        }
        let share = |link: usize| match links[link].sharing {
            Sharing::Shared if weights[link] > 0.0 => (links[link].capacity - taken[link]) / weights[link],
            _ => f64::INFINITY,
        };
        let limit = |flow: usize| {
            let shares = transfers[flow].path.iter().map(|(link, _)| share(link.0 as usize));
            shares.fold(cap(flow), f64::min)
        };
        let limits: Vec<f64> = flows.iter().map(|flow| limit(*flow)).collect();
        let open = limits.iter().zip(&rates).filter(|(_, rate)| rate.is_none()).map(|(limit, _)| *limit);
        let lowest = open.fold(f64::INFINITY, f64::min);
        for (limit, rate) in limits.iter().zip(&mut rates) {
            if rate.is_none() && *limit <= lowest * (1.0 + 1e-12) {
                *rate = Some(*limit);
            }
        }
    }
    rates.into_iter().map(Option::unwrap).collect()
}

/// Numbers that look random and are the same each time: SplitMix64.
///
/// Source: Steele, Lea & Flood 2014, Fast Splittable Pseudorandom Number Generators, figure 17.
pub struct Random(pub u64);

impl Random {
    fn next(&mut self) -> u64 {
        self.0 = self.0.wrapping_add(0x9e37_79b9_7f4a_7c15);
        let mut mixed = self.0;
        mixed = (mixed ^ (mixed >> 30)).wrapping_mul(0xbf58_476d_1ce4_e5b9);
        mixed = (mixed ^ (mixed >> 27)).wrapping_mul(0x94d0_49bb_1331_11eb);
        mixed ^ (mixed >> 31)
    }

    /// Less than `bound`.
    pub fn below(&mut self, bound: usize) -> usize {
        (self.next() % bound as u64) as usize
    }

    /// From 0 to 1.
    pub fn unit(&mut self) -> f64 {
        (self.next() >> 11) as f64 / (1u64 << 53) as f64
    }

    /// One of a list.
    pub fn pick<T: Copy>(&mut self, from: &[T]) -> T {
        from[self.below(from.len())]
    }
}
