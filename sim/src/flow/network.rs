//! Links and the flows that are on them now.
//!
//! Flows that one link holds back have one rate, so the link counts what each of them is *served*, from when it
//! was last idle; a flow ends when that reaches its mark. A change of the link's level touches no flow's account.

use super::earliest::{EarliestEnd, NEVER};
use super::rates::{Limit, Rates};
use super::{Error, Flow, FlowId, Link, LinkId, Reason, Sharing};
use std::borrow::Borrow;
use trainwright_spec::units::{Picoseconds, Seconds};

/// Links shared by flows that come and go.
///
/// Rates are computed when they are read, so any number of starts and ends at one instant cost one
/// computation.
#[derive(Debug)]
pub struct Network {
    links: Vec<Link>,
    clock: Picoseconds,
    rates: Rates,
    /// The slot of each flow, by its number; `NO_SLOT` when it has ended.
    slots: Vec<u32>,
    free_slots: Vec<u32>,
    accounts: Vec<Account>,
    served: Vec<Served>,
    link_ends: EarliestEnd,
    cap_ends: EarliestEnd,
    /// Whether flows came or went since the rates were settled.
    is_stale: bool,
    /// Ended, but not yet reported.
    ended: Vec<FlowId>,
    path: Vec<(u32, f64)>,
    due: Vec<u32>,
}

const NO_SLOT: u32 = u32::MAX;

/// The flow in a slot, with the work that is left.
#[derive(Debug, Clone, Copy)]
struct Account {
    id: FlowId,
    /// The limit that holds it back since the rates were settled.
    limit: Limit,
    /// On a link: its mark on the link's count. At its cap: what remained at `since`. New: the amount.
    mark: f64,
    since: Picoseconds,
}

/// The work that a link has served each flow that it holds back.
#[derive(Debug, Clone, Copy)]
struct Served {
    amount: f64,
    since: Picoseconds,
    /// The level since then.
    level: f64,
    /// The lowest mark of the flows that it holds back, infinite if there are none; `UNKNOWN` if that one left.
    first_mark: f64,
}

/// Not above any mark.
const UNKNOWN: f64 = f64::NEG_INFINITY;

impl Network {
    /// Links without flows; `LinkId` is the place in the list.
    pub fn new(links: Vec<Link>) -> Self {
        let capacities = links.iter().map(|link| link.capacity);
        Self {
            clock: Picoseconds::ZERO,
            rates: Rates::new(capacities),
            slots: Vec::new(),
            free_slots: Vec::new(),
            accounts: Vec::new(),
            served: vec![Served::NOTHING; links.len()],
            link_ends: EarliestEnd::new(links.len()),
            cap_ends: EarliestEnd::new(1),
            is_stale: false,
            ended: Vec::new(),
            path: Vec::new(),
            due: Vec::new(),
            links,
        }
    }

    /// Starts a flow. What ends before `now` is ended first, and reported by the next `advance`.
    ///
    /// # Errors
    /// A flow that can never end, one that names a link that is not there, or a `now` before the clock; the network
    /// is as it was.
    pub fn start(&mut self, now: Picoseconds, flow: impl Borrow<Flow>) -> Result<FlowId, Error> {
        let Flow { amount, path, cap } = flow.borrow();
        self.start_on(now, *amount, path, cap.unwrap_or(f64::INFINITY))
    }

    /// `start` with the parts of a flow; no cap is an infinite one.
    pub(super) fn start_on(
        &mut self,
        now: Picoseconds,
        amount: f64,
        path: &[(LinkId, f64)],
        cap: f64,
    ) -> Result<FlowId, Error> {
        let number = self.slots.len();
        let cap = self.check(now, amount, path, cap).map_err(|reason| Error { flow: number, reason })?;
        if now > self.clock {
            self.run_to(now);
        }
        let id = FlowId(number as u32);
        if amount == 0.0 {
            self.slots.push(NO_SLOT);
            self.ended.push(id);
            return Ok(id);
        }
        let account = Account { id, limit: Limit::None, mark: amount, since: now };
        let slot = if let Some(slot) = self.free_slots.pop() {
            self.accounts[slot as usize] = account;
            slot
        } else {
            self.accounts.push(account);
            self.cap_ends.grow(self.accounts.len());
            self.accounts.len() as u32 - 1
        };
        self.slots.push(slot);
        self.rates.add(slot, &self.path, cap);
        self.is_stale = true;
        Ok(id)
    }

    /// When the next flow ends if no other starts before; `None` if nothing moves.
    pub fn next_end(&mut self) -> Option<Picoseconds> {
        if !self.ended.is_empty() {
            return Some(self.clock);
        }
        self.settle();
        Some(self.first_end()).filter(|end| *end != NEVER)
    }

    /// Ends what is due up to `now`: flows by the time of their end, equals by number.
    ///
    /// A flow that is so short that it is due at `now` only since others ended at `now` comes with the next call.
    pub fn advance(&mut self, now: Picoseconds) -> Vec<FlowId> {
        self.run_to(now);
        while self.first_end() <= now {
            self.end_due();
        }
        std::mem::take(&mut self.ended)
    }

    /// The rate of a flow now, in work per second; zero when it has ended.
    pub fn rate(&mut self, flow: FlowId) -> f64 {
        self.settle();
        match self.slots[flow.0 as usize] {
            NO_SLOT => 0.0,
            slot => self.rates.rate(slot),
        }
    }

    /// Leaves the path over shared links in `self.path` and returns the cap that all else makes.
    fn check(
        &mut self,
        now: Picoseconds,
        amount: f64,
        path: &[(LinkId, f64)],
        mut cap: f64,
    ) -> Result<f64, Reason> {
        if now < self.clock {
            return Err(Reason::InThePast { start: now, clock: self.clock });
        }
        if !(amount >= 0.0 && amount.is_finite()) {
            return Err(Reason::Amount(amount));
        }
        if cap.is_nan() || cap <= 0.0 {
            return Err(Reason::Cap(cap));
        }
        self.path.clear();
        for (link, weight) in path {
            let (link, weight) = (link.0, *weight);
            let Some(Link { capacity, sharing }) = self.links.get(link as usize).copied() else {
                return Err(Reason::UnknownLink { link, links: self.links.len() });
            };
            if capacity.is_nan() || capacity <= 0.0 {
                return Err(Reason::Capacity { link, capacity });
            }
            if !(weight > 0.0 && weight.is_finite()) {
                return Err(Reason::Weight { link, weight });
            }
            if sharing == Sharing::PerFlow {
                cap = cap.min(capacity);
            } else if let Some((_, sum)) = self.path.iter_mut().find(|(other, _)| *other == link) {
                *sum += weight;
            } else if capacity.is_finite() {
                self.path.push((link, weight));
            }
        }
        if self.path.is_empty() && cap == f64::INFINITY {
            return Err(Reason::Unlimited);
        }
        Ok(cap)
    }

    /// Sets the clock to `now`, having ended all that ends before.
    fn run_to(&mut self, now: Picoseconds) {
        while self.clock < now {
            if self.first_end() > self.clock {
                self.settle();
            }
            self.clock = self.clock.max(self.first_end().min(now));
            while self.clock < now && self.first_end() <= self.clock {
                self.end_due();
            }
        }
    }

    fn first_end(&self) -> Picoseconds {
        self.link_ends.time().min(self.cap_ends.time())
    }

    /// Ends all that is due at the first end.
    fn end_due(&mut self) {
        let now = self.first_end();
        let reported = self.ended.len();
        while self.link_ends.time() == now {
            let link = self.link_ends.queue();
            let served = &self.served[link as usize];
            let due = |slot: &u32| {
                let account = &self.accounts[*slot as usize];
                let has_mark = account.limit == Limit::Link(link);
                has_mark && served.reaches(account.mark - served.amount) <= now
            };
            self.due.extend(self.rates.held_back(link).filter(due));
            self.served[link as usize].first_mark = UNKNOWN;
            self.link_ends.set(link, NEVER);
        }
        while self.cap_ends.time() == now {
            let slot = self.cap_ends.queue();
            self.cap_ends.set(slot, NEVER);
            self.due.push(slot);
        }
        for slot in self.due.drain(..) {
            let id = self.accounts[slot as usize].id;
            self.ended.push(id);
            self.slots[id.0 as usize] = NO_SLOT;
            self.rates.remove(slot);
            self.free_slots.push(slot);
        }
        self.ended[reported..].sort_unstable();
        self.is_stale = true;
    }

    /// Brings rates, accounts and ends up to the clock.
    fn settle(&mut self) {
        if !std::mem::take(&mut self.is_stale) {
            return;
        }
        self.rates.settle();
        let now = self.clock;
        for slot in self.rates.moved_flows() {
            let account = &mut self.accounts[*slot as usize];
            match account.limit {
                Limit::None => continue,
                Limit::Cap => {
                    account.mark -= self.rates.cap(*slot) * elapsed(account.since, now);
                    self.cap_ends.set(*slot, NEVER);
                }
                Limit::Link(link) => {
                    let served = &mut self.served[link as usize];
                    if account.mark <= served.first_mark {
                        served.first_mark = UNKNOWN;
                    }
                    account.mark -= served.by(now);
                }
            }
            account.limit = Limit::None;
        }
        for link in self.rates.changed_links() {
            let served = &mut self.served[*link as usize];
            (served.amount, served.since, served.level) = (served.by(now), now, self.rates.level(*link));
        }
        for slot in self.rates.moved_flows() {
            let account = &mut self.accounts[*slot as usize];
            let limit = self.rates.limit(*slot);
            if account.limit == limit {
                continue;
            }
            account.limit = limit;
            account.since = now;
            match limit {
                Limit::None => unreachable!("every flow has a limit: `check` refuses those without"),
                Limit::Cap => {
                    let end = now + time(account.mark / self.rates.cap(*slot));
                    self.cap_ends.set(*slot, end);
                }
                Limit::Link(link) => {
                    let served = &mut self.served[link as usize];
                    account.mark += served.amount;
                    served.first_mark = served.first_mark.min(account.mark);
                }
            }
        }
        for link in self.rates.changed_links() {
            let served = &mut self.served[*link as usize];
            if served.first_mark == UNKNOWN {
                let marks = self.rates.held_back(*link).map(|slot| self.accounts[slot as usize].mark);
                served.first_mark = marks.fold(f64::INFINITY, f64::min);
            }
            let end = if served.first_mark == f64::INFINITY {
                *served = Served { since: now, ..Served::NOTHING };
                NEVER
            } else {
                served.reaches(served.first_mark - served.amount)
            };
            self.link_ends.set(*link, end);
        }
        self.rates.forget_changes();
    }
}

impl Served {
    const NOTHING: Self =
        Self { amount: 0.0, since: Picoseconds::ZERO, level: 0.0, first_mark: f64::INFINITY };

    /// The work that each flow has been served by an instant.
    fn by(&self, now: Picoseconds) -> f64 {
        self.amount + self.level * elapsed(self.since, now)
    }

    /// When each flow has been served so much more than it had been at `since`.
    fn reaches(&self, more: f64) -> Picoseconds {
        self.since + time(more / self.level)
    }
}

fn elapsed(since: Picoseconds, now: Picoseconds) -> f64 {
    Seconds::from(now - since).get()
}

/// Times that are equal but for rounding are often half a picosecond and more; they are rounded the same way.
fn time(seconds: f64) -> Picoseconds {
    const BEYOND_HALF: f64 = 1e-14;
    Picoseconds::from(Seconds::new(seconds + BEYOND_HALF))
}
