//! `fleet`: its schedules keep to the file of jobs; plans and scripts that it writes; bad input; jobs that never fit.

use crate::Folder;
use serde_json::Value;

/// Jobs that the planner plans, small ones.
pub const JOBS: &str = include_str!("../same_bytes/jobs.toml");

/// Jobs with measured speeds.
pub const MEASURED: &str = r#"
throughputs = "speeds.csv"

[[job]]
name = "a"
profile = "net"
steps = 3600
deadline_h = 1

[[job]]
name = "b"
profile = "net"
steps = 7200
earliest_h = 0.5
weight = 3
"#;

/// These speeds.
pub const SPEEDS: &str = "profile,gpus,steps_per_s\nnet,1,1\nnet,2,1.8\nnet,8,4\nnet,16,6\n";

/// `a` runs on 8 GPUs of the first node, and is half as fast as it was measured.
pub const LOG: &str = "time_s,event,name,value\n0,start,a,8@0\n900,progress,a,0.5\n";

fn json(folder: &Folder, arguments: &str) -> Value {
    let ran = folder.run(arguments);
    assert_eq!((ran.code, ran.stderr.as_str()), (0, ""), "{arguments}");
    serde_json::from_str(&ran.stdout).unwrap()
}

fn prepared() -> Folder {
    let folder = Folder::new();
    folder.write("jobs.toml", JOBS);
    folder.write("measured.toml", MEASURED);
    folder.write("speeds.csv", SPEEDS);
    folder
}

#[test]
fn schedules_keep_to_the_file_and_the_picture_and_scripts_are_written() {
    let folder = prepared();
    let line = "fleet jobs.toml --cluster dgx-a100 --out plans --svg gantt.svg";
    let answer = json(&folder, &format!("{line} --json"));
    let jobs = answer["jobs"].as_array().unwrap();
    let names: Vec<&str> = jobs.iter().map(|job| job["job"].as_str().unwrap()).collect();
    assert_eq!(names, ["sweep-1", "sweep-2", "sweep-3", "last"]);
    let of = |job: &Value, key: &str| job[key].as_u64().unwrap();
    assert!(jobs.iter().all(|job| of(job, "gpus") <= 4));
    assert!(jobs[..3].iter().all(|job| of(job, "end_s") <= of(&jobs[3], "start_s")));
    // Three equal jobs on eight GPUs with at most four each: two at a time on four would take two rounds; 4 + 2 + 2 takes one.
    assert_eq!(answer["proved"], true);
    for rival in answer["heuristics"].as_array().unwrap() {
        assert!(of(&answer["schedule"], "makespan_s") <= of(&rival["schedule"], "makespan_s"), "{rival}");
    }
    let submit = folder.read("plans/submit.sh");
    assert!(submit.contains("--dependency=afterok:$job_0:$job_1:$job_2"), "{submit}");
    let planned = folder.run("simulate plans/last.toml --json");
    assert_eq!(planned.code, 0, "{}", planned.stderr);
    let script = folder.read("plans/last.sbatch");
    assert!(!script.contains("--exclusive") && !script.contains(":29500"), "{script}");
    assert!(folder.read("gantt.svg").contains(">sweep-1<"));
    let page = folder.run("fleet jobs.toml --cluster dgx-a100 --report - --quiet").stdout;
    assert!(page.starts_with("<!DOCTYPE html>") && page.contains("\"name\":\"sweep-1\""), "{page}");
    assert!(page.contains("<p>makespan: ") && page.contains("<h2>Beside it</h2>"), "{page}");
    let again = folder.run(&format!("{line} --json"));
    assert_eq!(serde_json::from_str::<Value>(&again.stdout).unwrap(), answer);
}

#[test]
fn measured_speeds_stand_in_for_forecasts() {
    let folder = prepared();
    // a: 3600 steps at 6/s on 16 GPUs are 600 s. b begins at 1800 s, when a has ended, and takes 7200 / 6 = 1200 s.
    let answer = json(&folder, "fleet measured.toml --cluster dgx-a100:2 --json");
    assert_eq!(answer["schedule"]["makespan_s"], 3000);
    assert_eq!(answer["proved"], true);
    // On one GPU each: 3600 s and 1800 + 7200 s; nothing is cheaper than 3 GPU-hours.
    let answer = json(&folder, "fleet measured.toml --cluster dgx-a100:2 --objective cost --price 2 --json");
    assert_eq!(answer["schedule"]["cost_usd"], 6.0);
}

/// Four equal jobs, three of one user with 8 GPUs at most: 3600 steps at 4/s on 8 GPUs, or 3600 s on one each.
pub const OF_USERS: &str = r#"
throughputs = "speeds.csv"

[defaults]
profile = "net"
steps = 3600

[[user]]
name = "ann"
max_gpus = 8
weight = 4

[[job]]
name = "of-ann"
copies = 3
user = "ann"

[[job]]
name = "other"
weight = 2
"#;

#[test]
fn jobs_of_a_user_keep_to_its_quota() {
    let folder = prepared();
    folder.write("users.toml", OF_USERS);
    let answer = json(&folder, "fleet users.toml --cluster dgx-a100:3 --json");
    // Three jobs on two GPUs each take 3600 / 1.8 = 2000 s; one after the other on all eight they take 3 · 900 s.
    assert_eq!((&answer["schedule"]["makespan_s"], &answer["proved"]), (&2000.into(), &true.into()));
    let user = &answer["users"][0];
    assert_eq!((&user["user"], &user["max_gpus"], &user["jobs"]), (&"ann".into(), &8.into(), &3.into()));
    assert_eq!(user["most_gpus_at_a_time"], 6);
    assert_eq!(answer["jobs"][0]["weight"], 4.0);
    assert_eq!((&answer["jobs"][3]["weight"], &answer["jobs"][3]["user"]), (&2.0.into(), &Value::Null));
    let text = folder.run("fleet users.toml --cluster dgx-a100:3").stdout;
    assert!(text.contains("user         ann: 3 jobs, 6 of 8 GPUs at most, 33.3 min the mean end"), "{text}");
    // One by one on two GPUs: the fourth row of the log would be the fourth GPU of ann.
    folder.write("users.toml", &OF_USERS.replace("max_gpus = 8", "max_gpus = 2"));
    let line = "fleet users.toml --cluster dgx-a100:3";
    assert_eq!(json(&folder, &format!("{line} --json"))["schedule"]["makespan_s"], 5600);
    folder.write("log.csv", "time_s,event,name,value\n0,start,of-ann-1,1@0\n0,start,of-ann-2,2@1\n");
    let ran = folder.run(&format!("{line} --observed log.csv"));
    let expected = "`value` is \"2@1\"; other jobs of user `ann` hold 1 GPUs, and `max_gpus` is 2";
    assert!(ran.code == 2 && ran.stderr.contains(expected), "{}", ran.stderr);
    // One has half of its hour on one GPU behind it; another begins now. Both end before the third: 1800 s, then 2000 s on two.
    folder.write("log.csv", "time_s,event,name,value\n0,start,of-ann-1,1@0\n1800,progress,of-ann-1,0.5\n");
    let answer = json(&folder, &format!("{line} --observed log.csv --restart 3600 --json"));
    assert_eq!(answer["users"][0]["most_gpus_at_a_time"], 2);
}

/// A training whose plan is pinned, a loop of reinforcement learning, and a deployment.
pub const OF_ALL_SORTS: &str = r#"
[defaults]
model = "gpt2"
seq = 1024
global_batch = 16
max_gpus = 4

[[job]]
name = "pinned"
steps = 100
plan = ["--tensor", "2", "--recompute=full"]

[[job]]
name = "loop"
steps = 10
min_gpus = 8
max_gpus = 8
rl = ["--prompts=16", "--rollouts=4", "--prompt=128", "--response=512", "--mode=colocated"]

[[job]]
name = "chat"
copies = 2
hours = 0.5
serve = ["--rate=2", "--input=256", "--output=64"]
"#;

#[test]
fn jobs_are_what_plan_and_rl_and_serve_plan_answer() {
    let folder = prepared();
    folder.write("sorts.toml", OF_ALL_SORTS);
    let answer = json(&folder, "fleet sorts.toml --cluster dgx-a100 --out plans --quiet --json");
    let jobs = answer["jobs"].as_array().unwrap();
    let took = |job: usize| jobs[job]["end_s"].as_u64().unwrap() - jobs[job]["start_s"].as_u64().unwrap();
    assert!(jobs[0]["plan"].as_str().unwrap().starts_with("TP 2"), "{}", jobs[0]);
    let planned = json(&folder, "simulate plans/pinned.toml --json");
    assert_eq!(planned["plan"]["stages"][0], "12 full");
    let step = planned["confidence"]["expected_step_time_s"].as_f64().unwrap();
    assert_eq!(took(0), (100.0 * step).ceil() as u64);
    assert!(jobs[1]["plan"].as_str().unwrap().starts_with("colocated, training "), "{}", jobs[1]);
    let line =
        "rl --model gpt2 --cluster dgx-a100 --prompts 16 --rollouts 4 --prompt 128 --response 512 --json";
    let loop_of = json(&folder, &format!("{line} --mode colocated"));
    let step = loop_of["plans"][0]["step_time_s"].as_f64().unwrap();
    assert_eq!((jobs[1]["gpus"].as_u64(), took(1)), (Some(8), (10.0 * step).ceil() as u64));
    assert!(!folder.path("plans/submit.sh").exists());
    assert_eq!([2, 3].map(|job: usize| (jobs[job]["gpus"].as_u64(), took(job))), [(Some(1), 1800); 2]);
}

/// A job of four hours on the only GPU, and one that comes after an hour, takes half of one, and counts more.
pub const PREEMPTED: &str = r#"
throughputs = "one.csv"

[[job]]
name = "long"
profile = "net"
steps = 14400

[[job]]
name = "urgent"
profile = "net"
steps = 1800
earliest_h = 1
weight = 9
"#;

/// The speed of these jobs.
pub const ONE: &str = "profile,gpus,steps_per_s\nnet,1,1\n";

#[test]
fn jobs_stop_for_others_where_that_is_better_and_go_on() {
    let folder = prepared();
    folder.write("preempted.toml", PREEMPTED);
    folder.write("one.csv", ONE);
    let line = "fleet preempted.toml --cluster rtx-4090 --objective completion";
    // In the order of the file the long one ends after 4 h, the urgent one after 4.5: 4 + 9 · 4.5; without moves the best is
    // to wait an hour for the urgent one: 5.5 + 9 · 1.5. With moves, the long one has 120 s of restart: 4.5 + 9 · 1.5 h + 120 s.
    assert_eq!(json(&folder, &format!("{line} --json"))["value"], 3600.0 * (5.5 + 9.0 * 1.5));
    let answer = json(&folder, &format!("{line} --preempt --json"));
    assert_eq!(answer["value"], 3600.0 * (4.5 + 9.0 * 1.5) + 120.0);
    let runs: Vec<(&str, u64, u64, bool)> = answer["jobs"]
        .as_array()
        .unwrap()
        .iter()
        .map(|run| {
            let second = |key: &str| run[key].as_u64().unwrap();
            (
                run["job"].as_str().unwrap(),
                second("start_s"),
                second("end_s"),
                run["is_last"].as_bool().unwrap(),
            )
        })
        .collect();
    assert_eq!(runs, [("long", 0, 3600, false), ("long", 5400, 16320, true), ("urgent", 3600, 5400, true)]);
    assert_eq!((&answer["may_move"], &answer["makespan_p50_s"]), (&true.into(), &16320.into()));
    let text = folder.run(&format!("{line} --preempt --restart 60")).stdout;
    assert!(text.contains("goes on later") && text.contains("moves        1; each costs 60 s"), "{text}");
    folder.write("preempted.toml", &PREEMPTED.replacen("steps", "preempt = false\nsteps", 1));
    assert_eq!(json(&folder, &format!("{line} --preempt --json"))["value"], 3600.0 * (5.5 + 9.0 * 1.5));
    let ran = folder.run(&format!("{line} --restart 60"));
    assert!(ran.code == 2 && ran.stderr.lines().count() == 1, "{}", ran.stderr);
}

/// With one node less, the choices of 16 GPUs are none.
#[test]
fn nodes_more_and_less_are_asked_about_where_a_choice_needs_all() {
    let folder = prepared();
    let answer = json(&folder, "fleet measured.toml --cluster dgx-a100:2 --what-if --json");
    let makespan = |change: &str| {
        let others = answer["other_nodes"].as_array().unwrap();
        let other = others.iter().find(|other| other["change"] == change).unwrap();
        other["value"].as_f64().unwrap()
    };
    // a: 3600 steps at 4/s; b from 1800 s on: 7200 at 4/s.
    assert_eq!(makespan("one less"), 3600.0);
    assert!(makespan("one more") <= 3000.0);
    // a may end after half an hour, which costs 10 USD on all GPUs of a node; without that it takes its time on one.
    let tight = MEASURED.replace("deadline_h = 1", "deadline_h = 0.5");
    folder.write("measured.toml", &tight);
    let line = "fleet measured.toml --cluster dgx-a100:2 --objective cost --price 5 --what-if";
    let answer = json(&folder, &format!("{line} --json"));
    let without = answer["without_deadlines"].as_array().unwrap();
    assert_eq!((without.len(), &without[0]["job"]), (1, &"a".into()));
    let paid = |value: &Value| value.as_f64().unwrap();
    assert!(paid(&without[0]["value"]) == 15.0 && paid(&answer["value"]) > 15.0, "{answer}");
    assert!(folder.run(line).stdout.contains("no deadline for a: 15 USD (proved: not below 15 USD)"));
}

#[test]
fn a_log_gives_a_new_schedule_from_its_last_time_on() {
    let folder = prepared();
    folder.write("log.csv", LOG);
    // Half of a's 900 s took 900 s, so that another 900 s are left where it runs. On 16 GPUs half of 2 · 600 s is left, and a
    // restart of 120 s: 720 s. b may begin 900 s from now.
    let line = "fleet measured.toml --cluster dgx-a100:2 --observed log.csv --json";
    let answer = json(&folder, &format!("{line} --objective completion"));
    assert_eq!((&answer["now_s"], &answer["schedule"]["makespan_s"]), (&900.into(), &2100.into()));
    let ends: Vec<u64> =
        answer["jobs"].as_array().unwrap().iter().map(|job| job["end_s"].as_u64().unwrap()).collect();
    assert_eq!(ends, [720, 2100]);
    assert!(answer["jobs"][0]["plan"].as_str().unwrap().ends_with("(moves)"));
    // Moving costs more than it brings, or brings nothing to the makespan, which is that of b.
    for other in [format!("{line} --objective completion --restart 400"), line.into()] {
        let answer = json(&folder, &other);
        assert_eq!(answer["jobs"][0]["end_s"], 900, "{other}");
        assert!(answer["jobs"][0]["plan"].as_str().unwrap().ends_with("(runs on)"));
    }
    for (text, expected) in [
        (
            "time_s,event,name,value\n0,start,a,3@0\n",
            "--observed: log.csv: line 2: `value` is \"3@0\"; the job has plans for ",
        ),
        (
            "time_s,event\n0,begin\n",
            "`event` is \"begin\"; it should be start, progress, stop, end, down, up or now",
        ),
    ] {
        folder.write("log.csv", text);
        let ran = folder.run("fleet measured.toml --cluster dgx-a100:2 --observed log.csv");
        assert_eq!((ran.code, ran.stdout.as_str()), (2, ""));
        assert!(ran.stderr.contains(expected) && ran.stderr.lines().count() == 1, "{}", ran.stderr);
    }
}

#[test]
fn what_makes_no_sense_is_one_line_and_what_never_fits_has_a_reason() {
    let folder = prepared();
    let job = |lines: &str| {
        format!("throughputs = \"speeds.csv\"\n[[job]]\nname = \"a\"\nprofile = \"net\"\n{lines}\n")
    };
    let gpt2 = |lines: &str| {
        let keys = "model = \"gpt2\"\nseq = 512\nglobal_batch = 8\nsteps = 1";
        format!("[[job]]\nname = \"a\"\n{keys}\n{lines}\n")
    };
    for (code, text, expected) in [
        (2, job("steps = 1\nstep = 2"), "line 6: unknown field `step`"),
        (2, "".into(), "there is no [[job]]"),
        (2, job("steps = -1"), "job `a`: `steps` is -1; it should be above 0"),
        (2, job("weight = 1"), "`steps` is missing; it should be said once"),
        (2, job("steps = 1\nafter = [\"b\"]"), "`after` is \"b\"; no job has this name"),
        (2, job("steps = 1\nafter = [\"a\"]"), "jobs wait for each other: a after a; take one `after` away"),
        (2, job("steps = 1\ndeadline_h = -3"), "`deadline_h` is -3; it should be hours"),
        (2, job("steps = 1\nmin_gpus = 9\nmax_gpus = 8"), "`min_gpus` is 9"),
        (2, "[[job]]\nname = \"a\"\nsteps = 1\nmodel = \"gpt2\"".into(), "job `a`: `seq`: it is missing"),
        (2, gpt2("").replace("gpt2", "gpt-none"), "job `a`: `model`: unknown model `gpt-none`"),
        (
            2,
            "[[job]]\nname = \"a\"\nsteps = 1\nmodel = \"gpt2\"\nseq = 512\nglobal_batch = 8\nbase_format = \"int8\"".into(),
            "job `a`: `base_format`: it is of adapters: give their rank, lora",
        ),
        (2, gpt2("precision = \"bf17\""), "job `a`: `precision`: invalid value 'bf17'"),
        (2, gpt2("plan = [\"--seq\", \"99999\"]"), "job `a`: `seq`: 99999; the model has learned positions for 1024"),
        (2, gpt2("plan = [\"--tensor=8\"]"), "job `a`: `plan`: `--tensor` is 8; it must divide the 12 attention heads"),
        (2, gpt2("plan = [\"--json\"]"), "job `a`: `plan`: `--json`; a fleet says this itself: leave it out"),
        (2, gpt2("rl = [\"--prompts\", \"x\"]"), "job `a`: `rl`: invalid value 'x' for '--prompts <N>'"),
        (2, gpt2("rl = []\nserve = []"), "job `a`: `serve` is said; a job with `rl` does not serve"),
        (2, gpt2("serve = [\"--rate\", \"3\"]"), "job `a`: `hours` is missing; a job serves for some hours"),
        (2, gpt2("hours = 3"), "job `a`: `hours` is said; a job without `serve` has tokens, steps or epochs"),
        (2, gpt2("hours = 3\nserve = []"), "job `a`: `serve`: `--rate` is missing: requests a second"),
        (2, job("steps = 1\nrl = []"), "job `a`: `rl`: with `throughputs` jobs have a profile and steps"),
        (2, job("steps = 1\nuser = \"c\""), "job `a`: `user` is \"c\"; no [[user]] has this name"),
        (2, job("steps = 1\n[[user]]\nname = \"c\"\nmax_gpus = 0"), "user `c`: `max_gpus` is 0; it should be 1 or more"),
        (2, job("steps = 1\n[[user]]\nname = \"c\"\nweight = -1"), "user `c`: `weight` is -1; it should be from 0 to 1e9"),
        (2, job("steps = 1\n[[user]]\nname = \"c\"\n[[user]]\nname = \"c\""), "user `c`: `name` is \"c\"; another user has"),
        (
            3,
            job("steps = 1\nuser = \"c\"\nmin_gpus = 2\n[[user]]\nname = \"c\"\nmax_gpus = 1"),
            "job `a` never fits: it needs 2 GPUs or more, its user `c` may have 1 (`max_gpus`)",
        ),
        (3, job("steps = 1\nmin_gpus = 17"), "job `a` never fits"),
        (3, job("steps = 1e6\ndeadline_h = 0.1"), "job `a` cannot keep its deadline of 360 s: it ends after 250000 s"),
        (
            3,
            "[[job]]\nname = \"a\"\nsteps = 1\nmodel = \"llama-3-70b\"\nseq = 512\nglobal_batch = 8\nmax_gpus = 1".into(),
            "job `a` never fits: on 1 GPU: ",
        ),
    ] {
        folder.write("bad.toml", &text);
        let ran = folder.run("fleet bad.toml --cluster dgx-a100");
        assert_eq!(ran.code, code, "{text}: {}", ran.stderr);
        assert!(ran.stderr.contains(expected) && ran.stderr.lines().count() == 1, "{text}: {}", ran.stderr);
        assert_eq!(ran.stdout, "");
    }
    folder.write("speeds.csv", "profile,gpus,steps_per_s\nnet,0,1\n");
    let ran = folder.run("fleet measured.toml --cluster dgx-a100");
    assert_eq!(ran.code, 2);
    assert!(ran.stderr.contains("speeds.csv: line 2: gpus should be 1 or more"), "{}", ran.stderr);
}
