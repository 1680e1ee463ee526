//! `fleet-run`: jobs of this machine end as scheduled, and whatever is killed, each has the weights of an undisturbed run.

use crate::interrupts::names;
use crate::kills::{Random, kill};
use crate::long::cases;
use crate::machine::write_profile;
use crate::processes::signal;
use crate::run::ended;
use crate::{Folder, Ran, program};
use serde_json::Value;
use std::process::Child;
use std::time::{Duration, Instant, SystemTime};

const MODEL: &str =
    r#"{"model_type": "gpt2", "n_embd": 32, "n_head": 2, "n_layer": 2, "n_positions": 16, "vocab_size": 64}"#;

/// A folder with a machine, a model and these jobs of it.
fn prepared(jobs: &str) -> Folder {
    let folder = Folder::new();
    write_profile(&folder);
    folder.write("config.json", MODEL);
    let defaults = "[defaults]\nmodel = \"./config.json\"\nseq = 16\nglobal_batch = 4\n";
    folder.write("jobs.toml", &format!("{defaults}{jobs}"));
    folder
}

const COMMAND: &str = "fleet-run jobs.toml --out out --profile machine --save-interval 1 --restart 1";

fn carried_out(folder: &Folder) -> Value {
    let ran = folder.run(&format!("{COMMAND} --json --quiet"));
    assert_eq!((ran.code, ran.stderr.as_str()), (0, ""), "{ran:?}");
    let mut answer: Value = serde_json::from_str(&ran.stdout).unwrap();
    // Of this call alone.
    answer.as_object_mut().unwrap().remove("other_programs").expect("it is there");
    answer
}

/// The tensors of the last checkpoint of a job.
fn weights(folder: &Folder, checkpoints: &str, step: usize) -> Vec<u8> {
    std::fs::read(folder.path(&format!("{checkpoints}/step-{step:08}/model.safetensors"))).unwrap()
}

fn state<'a>(answer: &'a Value, job: &str) -> &'a Value {
    answer["jobs"].as_array().unwrap().iter().find(|entry| entry["job"] == job).unwrap()
}

#[test]
fn jobs_end_in_their_order_and_a_second_call_starts_nothing() {
    let folder = prepared(
        "[[job]]\nname = \"sweep\"\ncopies = 2\nmax_gpus = 1\nsteps = 60\nrun = [\"--seed\", \"7\"]\n\
         [[job]]\nname = \"last\"\nsteps = 40\nafter = [\"sweep-1\"]\n",
    );
    let answer = carried_out(&folder);
    for job in ["sweep-1", "sweep-2", "last"] {
        let of = state(&answer, job);
        assert_eq!(of["state"], "done", "{answer}");
        assert!(!of["forecast"].as_array().unwrap().is_empty(), "{answer}");
    }
    let end = |job: &str| {
        let runs = state(&answer, job)["measured"].as_array().unwrap();
        runs.last().unwrap()["end_s"].as_f64().unwrap()
    };
    let start = state(&answer, "last")["measured"][0]["start_s"].as_f64().unwrap();
    assert!(start >= end("sweep-1"), "{answer}");
    let makespan = answer["makespan_s"]["measured"].as_f64().unwrap();
    assert_eq!(makespan, end("sweep-1").max(end("sweep-2")).max(end("last")));
    // As one `run` with the same plan and seed.
    let alone = folder.run("run out/plans/sweep-1-1.toml --steps 60 --seed 7 --threads 1 --save alone");
    assert_eq!(alone.code, 0, "{alone:?}");
    assert_eq!(weights(&folder, "out/sweep-2/checkpoints", 60), weights(&folder, "alone", 60));
    let log = folder.read("out/log.csv");
    assert_eq!(carried_out(&folder), answer);
    assert_eq!(folder.read("out/log.csv"), log);
    // More steps go on from the last checkpoint, also without the log; fewer, and other arguments, are another job.
    let jobs = folder.read("jobs.toml");
    folder.write("jobs.toml", &jobs.replace("steps = 60", "steps = 70"));
    std::fs::remove_file(folder.path("out/log.csv")).unwrap();
    assert_eq!(state(&carried_out(&folder), "sweep-2")["steps"], 70);
    let longer =
        folder.run("run out/plans/sweep-1-1.toml --steps 70 --threads 1 --save longer --resume alone");
    assert_eq!(longer.code, 0, "{longer:?}");
    assert_eq!(weights(&folder, "out/sweep-1/checkpoints", 70), weights(&folder, "longer", 70));
    for (was, becomes, expected) in [
        ("steps = 60", "steps = 50", "`steps`: 50; 70 are done and saved"),
        ("\"7\"", "\"8\"", "it was begun with [\"--seed\",\"7\"]"),
        ("seq = 16", "seq = 8", "was made for another model or batch"),
    ] {
        folder.write(
            "jobs.toml",
            &jobs
                .replace("steps = 60", if was == "steps = 60" { becomes } else { "steps = 70" })
                .replace(was, becomes),
        );
        let ran = folder.run(COMMAND);
        assert_eq!((ran.code, ran.stderr.lines().count()), (2, 1), "{becomes}: {ran:?}");
        assert!(ran.stderr.contains(expected), "{becomes}: {ran:?}");
    }
    folder.write("jobs.toml", &jobs.replace("steps = 60", "steps = 70"));
    let pictured = folder.run(&format!("{COMMAND} --svg both.svg"));
    assert!(
        pictured.stdout.contains("\nforecast   ") && pictured.stdout.contains("\nmeasured   "),
        "{pictured:?}"
    );
    assert!(folder.read("both.svg").contains("sweep-1"));
}

/// Waits until something is so while a fleet runs: before its first job it times steps of all plans, minutes on a busy machine.
fn wait_until(fleet: &mut Child, what: &str, is: impl Fn() -> bool) {
    let began = Instant::now();
    while !is() {
        assert!(fleet.try_wait().unwrap().is_none(), "{what}: the fleet has ended");
        assert!(began.elapsed() < Duration::from_secs(1200), "{what}");
        std::thread::sleep(Duration::from_millis(5));
    }
}

/// The processes that the folder of a fleet names, of its jobs and of the fleet itself.
fn processes(folder: &Folder) -> Vec<u32> {
    let of = |name: &str| std::fs::read_to_string(folder.path(name)).ok()?.parse().ok();
    let jobs = names(folder, "out").into_iter().map(|name| format!("out/{name}/process"));
    jobs.chain(["out/process".to_string()]).filter_map(|name| of(&name)).collect()
}

fn is_there(process: u32) -> bool {
    std::fs::read(format!("/proc/{process}/cmdline")).is_ok_and(|words| !words.is_empty())
}

fn begun(folder: &Folder) -> Child {
    program(&folder.path("."), &format!("{COMMAND} --json --quiet --retries 1000")).spawn().unwrap()
}

/// Kills jobs and the fleet itself at random moments. `TRAINWRIGHT_FLEET_KILLS=20` is the long one.
#[test]
#[cfg(target_os = "linux")]
fn whatever_is_killed_all_jobs_end_with_the_weights_of_undisturbed_runs() {
    let kills = cases("TRAINWRIGHT_FLEET_KILLS", 4, 20);
    let steps = 300 * (kills + 4);
    let folder = prepared(&format!(
        "max_gpus = 1\nsteps = {steps}\nrun = [\"--seed\", \"5\"]\n[[job]]\nname = \"a\"\ncopies = 2\n[[job]]\nname = \"b\"\ncopies = 2\n"
    ));
    let mut random = Random(11);
    let mut fleet = begun(&folder);
    wait_until(&mut fleet, "no job began", || {
        std::fs::read_to_string(folder.path("out/log.csv")).is_ok_and(|log| log.contains("start"))
    });
    let mut done = 0;
    while done < kills {
        std::thread::sleep(Duration::from_millis(300 + random.below(700)));
        if fleet.try_wait().unwrap().is_some() {
            // A fast machine.
            break;
        }
        let all: Vec<u32> = processes(&folder).into_iter().filter(|process| is_there(*process)).collect();
        let Some(victim) = all.get(random.below(all.len().max(1) as u64) as usize) else { continue };
        kill(*victim);
        done += 1;
        if *victim == fleet.id() {
            fleet.wait().unwrap();
            // As if the wall clock had been moved between the last line of the log and the last step: by days, back or forward.
            let days = Duration::from_secs(86_400 * (1 + random.below(1000)));
            let now = SystemTime::now();
            let logged = if random.below(2) == 0 { now - days } else { now + days };
            let log = std::fs::File::options().append(true).open(folder.path("out/log.csv")).unwrap();
            log.set_modified(logged).unwrap();
            fleet = begun(&folder);
        }
    }
    assert!(done > 0, "the fleet ended before the first kill");
    let ran: Ran = ended(fleet);
    assert_eq!(ran.code, 0, "{ran:?}");
    let answer: Value = serde_json::from_str(&ran.stdout).unwrap();
    let runs: usize =
        answer["jobs"].as_array().unwrap().iter().map(|job| job["measured"].as_array().unwrap().len()).sum();
    assert!(runs > 4, "a kill begins a run: {answer}");
    let alone = folder.run(&format!(
        "run out/plans/a-1-1.toml --steps {steps} --seed 5 --threads 1 --save alone --log-interval 1000"
    ));
    assert_eq!(alone.code, 0, "{alone:?}");
    for job in ["a-1", "a-2", "b-1", "b-2"] {
        assert_eq!(state(&answer, job)["state"], "done", "{answer}");
        let checkpoints = format!("out/{job}/checkpoints");
        assert!(weights(&folder, &checkpoints, steps) == weights(&folder, "alone", steps), "{job}");
        assert!(names(&folder, &checkpoints).iter().all(|name| name.starts_with("step-")));
    }
    assert!(processes(&folder).is_empty());
    // Times of the log never go back, and no jump of the clock adds more than an hour.
    let log = folder.read("out/log.csv");
    let times: Vec<f64> =
        log.lines().skip(1).map(|line| line.split(',').next().unwrap().parse().unwrap()).collect();
    assert!(times.is_sorted() && *times.last().unwrap() < 3600.0 * (done + 1) as f64, "{log}");
}

#[test]
#[cfg(target_os = "linux")]
fn a_signal_stops_all_jobs_with_checkpoints_and_the_same_command_goes_on() {
    let jobs = |steps: usize| format!("steps = {steps}\nmax_gpus = 1\n[[job]]\nname = \"a\"\ncopies = 2\n");
    // More than they do before the signal.
    let folder = prepared(&jobs(1_000_000));
    let mut fleet = begun(&folder);
    wait_until(&mut fleet, "no job began", || {
        processes(&folder).len() > 1 && folder.read("out/log.csv").contains("start")
    });
    let other = folder.run(COMMAND);
    assert_eq!(other.code, 2);
    assert!(
        other.stderr.starts_with("error: --out: out: process ") && other.stderr.lines().count() == 1,
        "{other:?}"
    );
    wait_until(&mut fleet, "no job saved", || !names(&folder, "out/a-1/checkpoints").is_empty());
    signal(&fleet, "-INT");
    let ran = ended(fleet);
    assert_eq!(ran.code, 130, "{ran:?}");
    let answer: Value = serde_json::from_str(&ran.stdout).unwrap();
    assert_eq!(answer["interrupted"], true);
    assert!(processes(&folder).is_empty());
    let last = |job: &str| {
        let names = names(&folder, &format!("out/{job}/checkpoints"));
        names.last().map_or(0, |name| name["step-".len()..].parse::<usize>().unwrap())
    };
    let begun = last("a-1").max(last("a-2"));
    let text = folder.read("jobs.toml").replace("steps = 1000000", &format!("steps = {}", begun + 20));
    folder.write("jobs.toml", &text);
    let answer = carried_out(&folder);
    assert_eq!([last("a-1"), last("a-2")], [begun + 20; 2]);
    assert!(answer["jobs"].as_array().unwrap().iter().all(|job| job["state"] == "done"), "{answer}");
}

#[test]
fn a_job_that_fails_for_good_is_named_with_what_waits_for_it() {
    let folder = prepared(
        "steps = 20\n[[job]]\nname = \"bad\"\nrun = [\"--data\", \"none.txt\"]\n[[job]]\nname = \"next\"\nafter = [\"bad\"]\n\
         [[job]]\nname = \"other\"\n",
    );
    let ran = folder.run(&format!("{COMMAND} --json --quiet"));
    assert_eq!(ran.code, 1, "{ran:?}");
    let answer: Value = serde_json::from_str(&ran.stdout).unwrap();
    let states =
        ["bad", "next", "other"].map(|job| state(&answer, job)["state"].as_str().unwrap().to_string());
    assert_eq!(states, ["failed", "skipped", "done"]);
    assert!(state(&answer, "bad")["reason"].as_str().unwrap().contains("none.txt"), "{answer}");
}

#[test]
fn bad_input_is_one_line_before_anything_is_measured() {
    let check = |jobs: &str, more: &str, code: i32, expected: &str| {
        let folder = prepared(jobs);
        let ran = folder.run(&format!("{COMMAND} {more}"));
        assert_eq!((ran.code, ran.stderr.lines().count()), (code, 1), "{jobs}: {ran:?}");
        assert!(ran.stderr.contains(expected) && ran.stdout.is_empty(), "{jobs}: {}", ran.stderr);
        assert!(!folder.path("out").exists(), "{jobs}");
    };
    let one = "[[job]]\nname = \"a\"\nsteps = 5\n";
    check(&format!("{one}run = [\"--save\", \"x\"]"), "", 2, "`run`: `--save`; a fleet says this itself");
    check(&format!("{one}run = [\"--save=x\"]"), "", 2, "a fleet says this itself");
    check(&format!("{one}run = [\"--data\", \"-\"]"), "", 2, "`-`; a job has no standard input: name a file");
    check(&format!("{one}run = [\"--learning-rat\", \"1\"]"), "", 2, "job `a`: `run`: ");
    check("[[job]]\nname = \"plans\"\nsteps = 5\n", "", 2, "the folder `plans` belongs to something else");
    check(
        "steps = 5\n[[job]]\nname = \"a b\"\n[[job]]\nname = \"a-b\"\n",
        "",
        2,
        "job `a-b`: `name`: \"a-b\"; the folder `a-b` belongs to something else",
    );
    check("steps = 5\n[[job]]\nname = \" a\"\n", "", 2, "it should have no space at its ends");
    check(&format!("steps = 5\n[[job]]\nname = \"{}\"\n", "a".repeat(101)), "", 2, "at most 100 bytes");
    check("[[job]]\nname = \"a\"\ntokens = 1e18\n", "", 2, "a job has at most 100000000 steps here");
    check(&format!("{one}run = [\"--help\"]"), "", 2, "`--help`; it is no argument of a training");
    check(one, "--svg jobs.toml", 2, "`--svg` is jobs.toml; this file is the fleet's own: name another");
    check(one, "--cores 100000", 2, "`--cores` is 100000; this machine has ");
    check(one, "--cores 0", 2, "--cores");
    check(
        &format!("{one}min_gpus = 5000"),
        "",
        3,
        "job `a` never fits: min_gpus and max_gpus leave none of the numbers of cores that are tried: 1",
    );
    check(&format!("{one}after = [\"a\"]"), "", 2, "wait for each other");
    check(&format!("{one}model = \"none\"\n"), "", 2, "job `a`: `model`");
    check(&format!("{one}model = \"gpt2-xl\"\n"), "", 3, "job `a` never fits: ");
    let folder = prepared(one);
    folder.write("out", "");
    let ran = folder.run(COMMAND);
    assert_eq!((ran.code, ran.stderr.lines().count()), (1, 1), "{ran:?}");
}
