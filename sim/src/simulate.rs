//! Runs a program on the engine and records its timeline.

use crate::costs::Costs;
use crate::engine::{Deadlock, Halt, Outcome, Stop};
use crate::flat::{Flat, Templates, all_templates, calls_of, has_all, tracks};
use crate::rounds::{FewRounds, repeats_exactly};
use crate::template::Detail;
use std::sync::Arc;
use trainwright_spec::program::{Program, RankProgram, Work};
use trainwright_spec::units::{Flops, Picoseconds};
use trainwright_timeline::report::{TimeShares, mean_shares, mean_shares_with_rounds};
use trainwright_timeline::timeline::Timeline;

/// Simulates a program.
///
/// # Errors
/// `Deadlock` if its ops wait for each other.
pub fn simulate(program: &Program, costs: &impl Costs, detail: Detail) -> Result<Timeline, Deadlock> {
    let flat = Flat::new(program, costs, detail).jittered(costs, detail);
    let outcome = flat.graph.run()?;
    Ok(flat.timeline(program, &outcome, detail))
}

/// The same, unless it is stopped before its end.
///
/// # Errors
/// `Deadlock` if the program's ops wait for each other, `Stopped` if `stop` said so.
pub fn simulate_until(
    program: &Program,
    costs: &impl Costs,
    detail: Detail,
    stop: Stop,
) -> Result<Timeline, Halt> {
    let templates = Arc::new(all_templates(program, costs, detail, stop)?);
    let few = match repeats_exactly(costs, detail) {
        true => FewRounds::of(program, &templates, costs, stop)?,
        false => None,
    };
    let flat = Flat::of_templates(program, &calls_of(program), templates, costs, stop)?;
    let flat = flat.jittered(costs, detail);
    let outcome = match few {
        Some(few) => few.outcome_of_all(),
        None => flat.graph.run_until(stop)?,
    };
    if stop() {
        return Err(Halt::Stopped);
    }
    Ok(flat.timeline(program, &outcome, detail))
}

/// How long a step of `program` takes, call by call, without recording what happens in it.
///
/// # Errors
/// As `simulate`.
pub fn step_time(program: &Program, costs: &impl Costs) -> Result<Picoseconds, Deadlock> {
    Ok(end_of(Flat::new(program, costs, Detail::Calls).graph.run()?))
}

/// Simulates programs that differ in their calls alone: how long each takes, and where the time goes if that is asked for.
pub(crate) struct Stopwatch<'a, C> {
    costs: &'a C,
    detail: Detail,
    stop: Stop<'a>,
    /// Those of the program before.
    templates: Option<Arc<Templates>>,
}

impl<'a, C: Costs> Stopwatch<'a, C> {
    pub fn new(costs: &'a C, detail: Detail, stop: Stop<'a>) -> Self {
        Self { costs, detail, stop, templates: None }
    }

    fn templates(&mut self, program: &Program) -> Result<Arc<Templates>, Halt> {
        let templates = match self.templates.take() {
            Some(known) if has_all(&known, program) => known,
            _ => Arc::new(all_templates(program, self.costs, self.detail, self.stop)?),
        };
        self.templates = Some(templates.clone());
        Ok(templates)
    }

    fn run(&mut self, program: &Program) -> Result<(Flat, Outcome), Halt> {
        let templates = self.templates(program)?;
        let flat = Flat::of_templates(program, &calls_of(program), templates, self.costs, self.stop)?;
        let flat = flat.jittered(self.costs, self.detail);
        let outcome = flat.graph.run_until(self.stop)?;
        Ok((flat, outcome))
    }

    fn few_rounds(&mut self, program: &Program) -> Result<Option<FewRounds>, Halt> {
        match repeats_exactly(self.costs, self.detail) {
            true => FewRounds::of(program, &self.templates(program)?, self.costs, self.stop),
            false => Ok(None),
        }
    }

    /// How long a program takes.
    pub fn time(&mut self, program: &Program) -> Result<Picoseconds, Halt> {
        match self.time_of_few(program)? {
            Some(time) => Ok(time),
            None => Ok(end_of(self.run(program)?.1)),
        }
    }

    /// The same, if a few rounds of it tell.
    pub fn time_of_few(&mut self, program: &Program) -> Result<Option<Picoseconds>, Halt> {
        Ok(self.few_rounds(program)?.map(|few| few.left_out_time() + end_of(few.outcome)))
    }

    /// The same, and when each rank has run each microbatch forward through its first stage.
    pub fn time_and_progress(
        &mut self,
        program: &Program,
    ) -> Result<(Picoseconds, Vec<Vec<Picoseconds>>), Halt> {
        let (flat, outcome) = self.run(program)?;
        let progress = flat.progress(program, &outcome);
        Ok((end_of(outcome), progress))
    }

    /// The same, and where the time goes in the mean over ranks.
    pub fn shares(
        &mut self,
        program: &Program,
    ) -> Result<(Picoseconds, Vec<Vec<Picoseconds>>, TimeShares), Halt> {
        let (flat, outcome) = self.run(program)?;
        let spans = flat.spans(program, &outcome, self.detail);
        let ranks = tracks(program);
        let progress = flat.progress(program, &outcome);
        let duration = end_of(outcome);
        Ok((duration, progress, mean_shares(&Timeline { ranks, spans, duration, ..Timeline::default() })))
    }

    /// How long a program takes and where the time goes in the mean over ranks, if a few rounds of it tell.
    pub fn shares_of_few(&mut self, program: &Program) -> Result<Option<(Picoseconds, TimeShares)>, Halt> {
        let Some(few) = self.few_rounds(program)? else { return Ok(None) };
        let more = few.left_out_time();
        let FewRounds { flat, outcome, steady, left_out } = few;
        let spans = flat.spans(program, &outcome, self.detail);
        let (ranks, duration) = (tracks(program), end_of(outcome));
        let timeline = Timeline { ranks, spans, duration, ..Timeline::default() };
        let round = steady.from..steady.from + steady.period;
        Ok(Some((duration + more, mean_shares_with_rounds(&timeline, round, left_out))))
    }
}

fn end_of(outcome: Outcome) -> Picoseconds {
    outcome.ended.into_iter().max().unwrap_or(Picoseconds::ZERO)
}

/// Floating-point operations of all ranks in a step: what the hardware really does, recomputation included.
pub fn hardware_flops(program: &Program) -> Flops {
    let flops = |work: &Work| if let Work::Compute(kernel) = work { kernel.flops() } else { Flops::ZERO };
    let of_segment: Vec<Flops> =
        program.segments.iter().map(|segment| segment.ops.iter().map(|op| flops(&op.work)).sum()).collect();
    let of_rank = |rank: &RankProgram| {
        let calls: Flops = rank.calls.iter().map(|call| of_segment[call.segment]).sum();
        rank.stands_for as f64 * calls
    };
    program.ranks.iter().map(of_rank).sum()
}
