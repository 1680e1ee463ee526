//! EASY backfill: as first in, first out, but a job behind the first one without room may start if, by the forecasts, it does
//! not delay that one.
//!
//! The first job without room has a reservation: the earliest time at which a kind of nodes has GPUs enough for it as running
//! jobs end. A job behind it starts if it takes GPUs of another kind, ends before that time, or takes only GPUs that the
//! reservation leaves.
//! Source: Lifka 1995, JSSPP, LNCS 949, 295–303; Mu'alem & Feitelson 2001, IEEE TPDS 12(6), 529–543.

use super::{Decide, Policy, in_order, kept, room};
use crate::online::{Active, Grant, View};

/// EASY backfill.
pub struct Backfill;

impl Policy for Backfill {
    fn name(&self) -> &'static str {
        "backfill"
    }

    fn summary(&self) -> &'static str {
        "first in, first out; later jobs start early if that does not delay the first that waits"
    }

    fn begin(&self) -> Box<dyn Decide> {
        Box::new(Self)
    }
}

/// The GPUs that are kept for the first job that waits.
struct Reservation {
    kind: usize,
    from: f64,
    /// GPUs of the kind that are free then beside those of the job.
    spare: usize,
}

impl Decide for Backfill {
    fn decide(&mut self, view: &View) -> Vec<Grant> {
        let (mut grants, mut free) = kept(view);
        let mut ends: Vec<(f64, Grant)> = Vec::new();
        for job in view.jobs {
            ends.extend(job.held.map(|held| (end(view, job, &held, true), held)));
        }
        let mut reservation: Option<Reservation> = None;
        for job in in_order(view).into_iter().filter(|job| job.held.is_none()) {
            let Some(first) = &mut reservation else {
                match room(view, job, &free) {
                    Some(grant) => start(view, job, grant, &mut (&mut free, &mut grants, &mut ends)),
                    None => reservation = reserve(view, job, &free, &ends),
                }
                continue;
            };
            let fits = view.kinds_of(job).into_iter().find_map(|(kind, _)| {
                let grant = Grant { job: job.job, kind, gpus: job.of.gpus };
                let beside = kind != first.kind || grant.gpus <= first.spare;
                let allowed = beside || end(view, job, &grant, false) <= first.from;
                (free[kind] >= grant.gpus && allowed).then_some(grant)
            });
            if let Some(grant) = fits {
                if grant.kind == first.kind && end(view, job, &grant, false) > first.from {
                    first.spare -= grant.gpus;
                }
                start(view, job, grant, &mut (&mut free, &mut grants, &mut ends));
            }
        }
        grants
    }
}

type State<'a> = (&'a mut Vec<usize>, &'a mut Vec<Grant>, &'a mut Vec<(f64, Grant)>);

fn start(view: &View, job: &Active, grant: Grant, (free, grants, ends): &mut State) {
    free[grant.kind] -= grant.gpus;
    ends.push((end(view, job, &grant, false), grant));
    grants.push(grant);
}

/// The start of the round in which the GPUs of a job are free again, if it runs on without a change.
fn end(view: &View, job: &Active, grant: &Grant, is_running: bool) -> f64 {
    let executed = if is_running { job.executed.get() } else { 0.0 };
    let restart = (job.restart.get() - executed).max(0.0);
    let left = restart + job.remaining / view.speed(job, grant.kind, grant.gpus);
    let round = view.round.get();
    // A job that ends within rounding of a round's end does not need the next one.
    view.now.get() + round * (left / round - 1e-6).ceil().max(1.0)
}

/// The earliest time at which some kind has room for a job.
fn reserve(view: &View, job: &Active, free: &[usize], ends: &[(f64, Grant)]) -> Option<Reservation> {
    let of_kind = |(kind, _): (usize, f64)| {
        let mut here: Vec<(f64, usize)> = ends
            .iter()
            .filter(|(_, grant)| grant.kind == kind)
            .map(|(end, grant)| (*end, grant.gpus))
            .collect();
        here.sort_by(|one, other| one.0.total_cmp(&other.0));
        let mut room = free[kind];
        let from = here.iter().find_map(|(end, gpus)| {
            room += gpus;
            (room >= job.of.gpus).then_some(*end)
        })?;
        let all: usize = here.iter().filter(|(end, _)| *end <= from).map(|(_, gpus)| gpus).sum();
        Some(Reservation { kind, from, spare: free[kind] + all - job.of.gpus })
    };
    let all = view.kinds_of(job).into_iter().filter_map(of_kind);
    all.min_by(|one, other| one.from.total_cmp(&other.from))
}
