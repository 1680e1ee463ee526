//! The list scheduler against the handmade zero-bubble schedules, its lower bound and its memory limit.

use trainwright_spec::schedule::ideal::{Ideal, PassTimes, Times, run};
use trainwright_spec::schedule::list::Problem;
use trainwright_spec::schedule::{PipelineShape, schedule, validate};
use trainwright_spec::units::Seconds;

fn problem(ranks: usize, microbatches: usize, limit: usize, [f, i, w, transfer]: [f64; 4]) -> Problem {
    let shape = PipelineShape { ranks, virtual_stages: 1, microbatches };
    let [forward, input, weight] = [f, i, w].map(Seconds::new);
    let times = Times {
        transfer: Seconds::new(transfer),
        ..Times::equal(shape, PassTimes { forward, input, weight })
    };
    Problem { times, limits: vec![limit; ranks] }
}

/// F, I, W and transfer: equal, as measured on real models, extreme.
const TIMES: [[f64; 4]; 6] = [
    [1.0, 1.0, 1.0, 0.0],
    [1.0, 1.0, 1.0, 0.1],
    [14.2, 14.4, 10.6, 0.6],
    [18.5, 18.1, 9.3, 0.6],
    [1.0, 2.0, 0.5, 0.2],
    [3.0, 1.0, 2.0, 1.0],
];

fn shape(problem: &Problem) -> PipelineShape {
    PipelineShape {
        ranks: problem.times.stages.len(),
        virtual_stages: 1,
        microbatches: problem.times.microbatches.len(),
    }
}

/// Solves, and holds the answer against what is true of every answer.
fn check(problem: &Problem) -> Ideal {
    let (lists, found) = problem.solve().unwrap();
    let case = format!("{problem:?}");
    assert_eq!(validate(&lists, shape(problem), 1, |stage| stage), Ok(()), "{case}");
    assert_eq!(run(&lists, &problem.times).unwrap(), found, "{case}");
    for (peak, limit) in found.peak.iter().zip(&problem.limits) {
        assert!(*peak <= *limit as f64, "{case}: {:?}", found.peak);
    }
    assert!(found.makespan.get() >= problem.lower_bound().get() - 1e-9, "{case}");
    found
}

fn handmade(name: &str, problem: &Problem) -> Ideal {
    run(&schedule(name).unwrap().lists(shape(problem)), &problem.times).unwrap()
}

#[test]
fn with_1f1bs_memory_it_is_never_worse_than_zb_h1() {
    for times in TIMES {
        for ranks in [2, 3, 4, 8] {
            for microbatches in [ranks, 2 * ranks, 2 * ranks + 1, 4 * ranks] {
                let problem = problem(ranks, microbatches, ranks, times);
                let (found, by_hand) = (check(&problem), handmade("zb-h1", &problem));
                assert!(found.makespan.get() < by_hand.makespan.get() + 1e-9, "{problem:?}");
            }
        }
    }
}

#[test]
fn with_twice_the_memory_it_has_no_bubble() {
    for ranks in [2, 3, 4, 8] {
        for microbatches in [2 * ranks - 1, 2 * ranks, 4 * ranks] {
            let problem = problem(ranks, microbatches, 2 * ranks - 1, TIMES[0]);
            let found = check(&problem);
            assert_eq!(found.makespan, problem.lower_bound());
            assert_eq!(found.idle_within().fold(Seconds::ZERO, Seconds::max), Seconds::ZERO, "{problem:?}");
            assert_eq!(found.makespan, handmade("zb-h2", &problem).makespan);
        }
    }
}

#[test]
fn times_as_measured_leave_little_bubble() {
    // Between 1F1B's memory and twice of it: idle time of the rank that idles most, over the step.
    let bubble = |limit, times| {
        let found = check(&problem(8, 32, limit, times));
        found.idle_within().map(Seconds::get).fold(0.0, f64::max) / found.makespan.get()
    };
    for times in [TIMES[2], TIMES[3]] {
        let one_f_one_b = 7.0 / (32.0 + 7.0);
        let (less, twice) = (bubble(8, times), bubble(16, times));
        assert!(less < 0.75 * one_f_one_b, "{less}");
        assert!(twice < 0.5 * one_f_one_b, "{twice}");
    }
}

#[test]
fn any_memory_will_do_and_none_will_not() {
    for limit in 1..6 {
        check(&problem(4, 6, limit, TIMES[2]));
    }
    assert!(problem(4, 6, 0, TIMES[0]).solve().is_none());
}

#[test]
fn uneven_stages_and_microbatches_are_handled() {
    let mut problem = problem(3, 5, 3, TIMES[0]);
    problem.times.stages[1].forward = Seconds::new(2.0);
    problem.times.stages[2].input = Seconds::new(0.5);
    problem.times.microbatches = vec![1.0, 0.5, 2.0, 1.0, 1.5];
    problem.limits = vec![3, 2, 1];
    let found = check(&problem);
    // Rank 1 has (2 + 1 + 1) · 6 units of work and starts after a forward of microbatch 0 on rank 0.
    assert!(found.makespan.get() >= 25.0);
}

/// The shortest makespan of all orders, by trying every pass that could start next on the rank that is free first.
fn exhaustive(problem: &Problem) -> f64 {
    let ranks = problem.times.stages.len();
    let mut search =
        Search { problem, best: f64::INFINITY, ends: vec![[Vec::new(), Vec::new(), Vec::new()]; ranks] };
    search.extend(&mut vec![0.0; ranks]);
    search.best
}

struct Search<'a> {
    problem: &'a Problem,
    best: f64,
    /// By rank: ends of F, I, W.
    ends: Vec<[Vec<f64>; 3]>,
}

impl Search<'_> {
    fn extend(&mut self, free: &mut Vec<f64>) {
        let ranks = free.len();
        let m = self.problem.times.microbatches.len();
        if free.iter().enumerate().any(|(rank, free)| *free + self.left(rank) >= self.best - 1e-9) {
            return;
        }
        if (0..ranks).all(|rank| self.ends[rank][2].len() == m) {
            self.best = free.iter().copied().fold(0.0, f64::max);
            return;
        }
        let transfer = self.problem.times.transfer.get();
        for rank in 0..ranks {
            for pass in 0..3 {
                let turn = self.ends[rank][pass].len();
                let held = self.ends[rank][0].len() - self.ends[rank][2].len();
                if turn == m || pass == 0 && held == self.problem.limits[rank] {
                    continue;
                }
                let earlier = |pass: usize| self.ends[rank][pass].get(turn).copied();
                let other = |rank: usize, pass: usize| Some(self.ends[rank][pass].get(turn)? + transfer);
                let ready = match pass {
                    0 if rank == 0 => Some(0.0),
                    0 => other(rank - 1, 0),
                    1 if rank + 1 == ranks => earlier(0),
                    1 => earlier(0).zip(other(rank + 1, 1)).map(|(one, two)| one.max(two)),
                    _ => earlier(1),
                };
                let Some(ready) = ready else { continue };
                let stage = &self.problem.times.stages[rank];
                let time = [stage.forward, stage.input, stage.weight][pass].get();
                let (before, end) = (free[rank], ready.max(free[rank]) + time);
                self.ends[rank][pass].push(end);
                free[rank] = end;
                self.extend(free);
                free[rank] = before;
                self.ends[rank][pass].pop();
            }
        }
    }

    /// Work that a rank has still to do.
    fn left(&self, rank: usize) -> f64 {
        let (stage, m) = (&self.problem.times.stages[rank], self.problem.times.microbatches.len());
        let times = [stage.forward, stage.input, stage.weight];
        times.into_iter().zip(&self.ends[rank]).map(|(time, done)| time.get() * (m - done.len()) as f64).sum()
    }
}

#[test]
fn small_cases_are_near_the_best_of_all_orders() {
    for times in TIMES {
        for limit in [1, 2, 3] {
            let problem = problem(2, 3, limit, times);
            let (found, best) = (check(&problem).makespan.get(), exhaustive(&problem));
            assert!(best >= problem.lower_bound().get() - 1e-9, "{problem:?}");
            assert!(found < best * 1.05 + 1e-9, "{problem:?}: {found}, best {best}");
        }
    }
}
