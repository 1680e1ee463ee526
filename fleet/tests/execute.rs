//! Fleets that are carried out by workers with a clock of their own: rules, faults, and starts in the middle.

use rand::rngs::ChaCha8Rng;
use rand::{RngExt, SeedableRng};
use trainwright_fleet::execute::{Event, FleetOutcome, JobRun, Workers, carry_out, job_runs, simulate};
use trainwright_fleet::instance::{Choice, FleetJob, Instance, NodeKind};
use trainwright_fleet::objective::Objective;
use trainwright_fleet::schedule::Schedule;
use trainwright_fleet::{Effort, solve};

/// Parts of a job after which it saves.
const SAVES: f64 = 10.0;

/// A machine whose jobs take `factors` of their forecasts.
struct Machine<'a> {
    instance: &'a Instance,
    factors: Vec<f64>,
    now: f64,
    /// The part of each job that is saved, and of those that run cores and since when.
    saved: Vec<f64>,
    runs: Vec<Option<(usize, f64)>>,
    stopping: Vec<usize>,
    /// Faults that are still to come: after which part of a job, and whether it could go well another time.
    faults: Vec<Option<(f64, bool)>>,
    kept: String,
    /// When the program is killed.
    killed: f64,
}

impl Machine<'_> {
    fn done(&self, job: usize) -> f64 {
        let Some((gpus, since)) = self.runs[job] else { return self.saved[job] };
        self.saved[job] + (self.now - since) / self.seconds(job, gpus)
    }

    fn seconds(&self, job: usize, gpus: usize) -> f64 {
        let choice = self.instance.jobs[job].choices.iter().find(|choice| choice.gpus == gpus).unwrap();
        choice.duration as f64 * self.factors[job]
    }

    /// When the run of a job next saves, or ends, and how.
    fn next(&self, job: usize) -> Option<(f64, Event)> {
        let (gpus, since) = self.runs[job]?;
        let at = |part: f64| since + (part - self.saved[job]).max(0.0) * self.seconds(job, gpus);
        if self.stopping.contains(&job) {
            return Some((self.now + 0.5, Event::Stopped));
        }
        let save = ((self.saved[job] * SAVES + 1e-6).floor() + 1.0) / SAVES;
        if save < self.faults[job].map_or(1.0, |(part, _)| part) {
            return Some((at(save), Event::Saved));
        }
        match self.faults[job] {
            Some((part, again)) => Some((at(part), Event::Failed { why: "a fault".into(), again })),
            None => Some((at(1.0), Event::Done)),
        }
    }
}

impl Workers for Machine<'_> {
    type Error = &'static str;

    fn now(&self) -> f64 {
        self.now
    }

    fn start(&mut self, job: usize, gpus: usize) -> Result<(), Self::Error> {
        assert!(self.runs[job].is_none());
        self.runs[job] = Some((gpus, self.now));
        Ok(())
    }

    fn stop(&mut self, job: usize) {
        self.stopping.push(job);
    }

    fn saved(&self, job: usize) -> f64 {
        self.saved[job]
    }

    fn wait(&mut self, until: f64) -> Vec<(usize, Event)> {
        let ends = (0..self.runs.len()).filter_map(|job| Some((job, self.next(job)?)));
        let next = ends.min_by(|one, other| one.1.0.total_cmp(&other.1.0));
        let time = next.as_ref().map_or(until, |(_, (time, _))| time.min(until));
        self.now = time.max(self.now);
        let Some((job, (_, event))) = next.filter(|(_, (time, _))| *time <= until) else { return Vec::new() };
        match event {
            // What is asked to end saves all that it did.
            Event::Saved | Event::Stopped => self.saved[job] = self.done(job).min(1.0),
            Event::Done => self.saved[job] = 1.0,
            Event::Failed { .. } => self.faults[job] = None,
        }
        if event == Event::Saved {
            self.runs[job] = self.runs[job].map(|(gpus, _)| (gpus, self.now));
        } else {
            self.runs[job] = None;
            self.stopping.retain(|other| *other != job);
        }
        vec![(job, event)]
    }

    fn is_interrupted(&self) -> bool {
        false
    }

    fn keep(&mut self, line: &str) -> Result<(), Self::Error> {
        self.kept += &format!("{line}\n");
        if self.now >= self.killed { Err("killed") } else { Ok(()) }
    }
}

fn random_instance(random: &mut ChaCha8Rng) -> Instance {
    let cores = random.random_range(2..=4);
    let jobs = random.random_range(2..=6);
    let job = |index: usize, random: &mut ChaCha8Rng| {
        let alone = random.random_range(40..400);
        let choice = |gpus: usize| Choice {
            kind: 0,
            gpus,
            duration: (alone as f64 / libm::pow(gpus as f64, 0.8)) as u64,
            cost: 0.0,
            spread: Vec::new(),
            plan: String::new(),
        };
        FleetJob {
            name: format!("job, \"{index}\""),
            choices: (1..=cores).filter(|gpus: &usize| gpus.is_power_of_two()).map(choice).collect(),
            release: if random.random_range(0..4) == 0 { random.random_range(1..200) } else { 0 },
            deadline: None,
            weight: 1.0,
            after: if index > 0 && random.random_range(0..3) == 0 { vec![index - 1] } else { Vec::new() },
            user: None,
            restart: Some(5),
        }
    };
    let kinds = vec![NodeKind { name: "n".into(), nodes: 1, gpus: cores }];
    Instance {
        kinds,
        jobs: (0..jobs).map(|index| job(index, random)).collect(),
        users: Vec::new(),
        contiguous: true,
    }
}

fn machine(instance: &Instance) -> Machine<'_> {
    let jobs = instance.jobs.len();
    Machine {
        instance,
        factors: vec![1.0; jobs],
        now: 0.0,
        saved: vec![0.0; jobs],
        runs: vec![None; jobs],
        stopping: Vec::new(),
        faults: vec![None; jobs],
        kept: String::new(),
        killed: f64::INFINITY,
    }
}

const RETRIES: usize = 3;

fn carry(
    instance: &Instance,
    first: &Schedule,
    log: &mut String,
    on: &mut Machine,
) -> Result<FleetOutcome, &'static str> {
    carry_out((instance, Objective::Makespan), first, RETRIES, log, on)
}

/// Checks cores, releases and precedence of all runs.
fn check(instance: &Instance, pieces: &[JobRun], now: f64) {
    let end = |piece: &JobRun| piece.end.unwrap_or(now);
    for piece in pieces {
        let held = pieces.iter().filter(|other| other.start <= piece.start && end(other) > piece.start);
        assert!(held.map(|other| other.gpus).sum::<usize>() <= instance.gpus(), "{pieces:?}");
        let job = &instance.jobs[piece.job];
        // The log has milliseconds.
        assert!(piece.start >= job.release as f64 - 1e-3, "{pieces:?}");
        for before in &job.after {
            let ended = pieces.iter().find(|other| other.job == *before && other.is_last);
            assert!(ended.is_some_and(|ended| end(ended) <= piece.start), "{pieces:?}");
        }
    }
}

/// The end of the last run.
fn makespan(pieces: &[JobRun]) -> f64 {
    pieces.iter().filter_map(|piece| piece.end).fold(0.0, f64::max)
}

#[test]
fn without_faults_a_fleet_ends_no_later_than_scheduled() {
    let mut random = ChaCha8Rng::seed_from_u64(3);
    let mut earlier = 0;
    for case in 0..15 {
        let instance = random_instance(&mut random);
        let answer = solve(&instance, Objective::Makespan, Effort::default()).unwrap();
        let scheduled = answer.schedule.makespan() as f64;
        let (mut on, mut log) = (machine(&instance), String::new());
        assert_eq!(carry(&instance, &answer.schedule, &mut log, &mut on), Ok(FleetOutcome::default()));
        assert_eq!(log, on.kept);
        let carried = job_runs(&log, &instance);
        check(&instance, &carried, on.now);
        // Times are rounded to whole seconds at each event.
        let events = 2.0 * instance.jobs.len() as f64;
        assert!(on.now <= scheduled + events, "{case}: {scheduled} {log}");
        // The simulation makes the same decisions; a stop and a restart take other times here.
        let simulated = simulate(&instance, Objective::Makespan, &answer.schedule);
        check(&instance, &simulated, f64::INFINITY);
        assert!(makespan(&simulated) <= scheduled + events, "{case}: {scheduled} {simulated:?}");
        earlier += usize::from(makespan(&simulated) < scheduled - events);
        let moves = simulated.len() - instance.jobs.len();
        if moves == 0 && carried.len() == instance.jobs.len() {
            assert_eq!(simulated, carried, "{case}");
        }
    }
    assert!(earlier > 0, "moves bring something");
}

#[test]
fn slow_jobs_faults_and_a_killed_program_break_no_rule() {
    let mut random = ChaCha8Rng::seed_from_u64(4);
    let (mut moves, mut faults) = (0, 0);
    for case in 0..20 {
        let instance = random_instance(&mut random);
        let answer = solve(&instance, Objective::Makespan, Effort::default()).unwrap();
        let mut on = machine(&instance);
        for job in 0..instance.jobs.len() {
            on.factors[job] = random.random_range(0.4..2.5);
            let fault = (random.random_range(0.0..1.0), true);
            on.faults[job] = (random.random_range(0..3) == 0).then_some(fault);
        }
        on.killed = random.random_range(0.0..1.5) * answer.schedule.makespan() as f64;
        let mut log = String::new();
        let ended = match carry(&instance, &answer.schedule, &mut log, &mut on) {
            Ok(ended) => ended,
            Err(_) => {
                // Jobs that ran saved what they did, and ended. The last line may be half.
                (on.killed, on.runs) = (f64::INFINITY, vec![None; instance.jobs.len()]);
                carry(&instance, &answer.schedule, &mut log, &mut on).unwrap()
            }
        };
        assert_eq!(ended, FleetOutcome::default(), "{case}");
        let pieces = job_runs(&log, &instance);
        check(&instance, &pieces, on.now);
        for job in 0..instance.jobs.len() {
            assert_eq!(on.saved[job], 1.0, "{case}: {log}");
            assert_eq!(pieces.iter().filter(|piece| piece.job == job && piece.is_last).count(), 1);
        }
        let widths = |job: usize| {
            let mut widths: Vec<usize> =
                pieces.iter().filter(|piece| piece.job == job).map(|piece| piece.gpus).collect();
            widths.dedup();
            widths.len()
        };
        moves += (0..instance.jobs.len()).filter(|job| widths(*job) > 1).count();
        faults += pieces.len() - instance.jobs.len();
    }
    assert!(moves > 1 && faults > 15, "the cases have both: {moves}, {faults}");
}

#[test]
fn a_job_that_fails_for_good_takes_those_with_it_that_wait() {
    let choice =
        Choice { kind: 0, gpus: 1, duration: 10, cost: 0.0, spread: Vec::new(), plan: String::new() };
    let job = |name: &str, after: &[usize]| FleetJob {
        name: name.into(),
        choices: vec![choice.clone()],
        release: 0,
        deadline: None,
        weight: 1.0,
        after: after.to_vec(),
        user: None,
        restart: Some(5),
    };
    let jobs = vec![job("a", &[]), job("b", &[0]), job("c", &[1]), job("d", &[])];
    let instance = Instance {
        kinds: vec![NodeKind { name: "n".into(), nodes: 1, gpus: 1 }],
        jobs,
        users: Vec::new(),
        contiguous: true,
    };
    let answer = solve(&instance, Objective::Makespan, Effort::default()).unwrap();
    let (mut on, mut log) = (machine(&instance), String::new());
    on.faults[0] = Some((0.5, false));
    let carried = carry(&instance, &answer.schedule, &mut log, &mut on).unwrap();
    assert_eq!((carried.failed, carried.skipped), (vec![(0, "a fault".into())], vec![1, 2]));
    let pieces = job_runs(&log, &instance);
    assert_eq!(pieces.iter().filter(|piece| piece.is_last).map(|piece| piece.job).collect::<Vec<_>>(), [3]);
}
