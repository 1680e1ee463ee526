//! `fleet-online`: policies over a trace by hand, and bad input.

use crate::Folder;
use serde_json::Value;

/// Two jobs for the speeds of `crate::fleet::SPEEDS`.
pub const ARRIVALS: &str = "job,arrival_s,profile,gpus,steps\na,0,net,8,400\nb,30,net,16,600\n";
/// Two equal jobs of one user, and one of nobody.
pub const OF_USERS: &str =
    "job,arrival_s,profile,gpus,steps,user\na,0,net,8,400,ann\nb,0,net,8,400,ann\nc,0,net,8,400,\n";

fn prepared() -> Folder {
    let folder = Folder::new();
    folder.write("trace.csv", ARRIVALS);
    folder.write("speeds.csv", crate::fleet::SPEEDS);
    folder
}

#[test]
fn every_policy_has_a_row_and_the_times_are_those_by_hand() {
    let folder = prepared();
    let line = "fleet-online trace.csv --throughputs speeds.csv --nodes n:2x8 --round 10 --restart 5";
    let ran = folder.run(&format!("{line} --json"));
    assert_eq!((ran.code, ran.stderr.as_str()), (0, ""));
    let answer: Value = serde_json::from_str(&ran.stdout).unwrap();
    let policies = answer["policies"].as_array().unwrap();
    let names: Vec<&str> = policies.iter().map(|policy| policy["policy"].as_str().unwrap()).collect();
    assert_eq!(names.len(), trainwright_fleet::policies::POLICIES.len());
    // a: 5 s, then 400 steps at 4/s. b needs both nodes, and has them in the round after 105 s: 110 + 5 + 100.
    let fifo = &policies[0];
    assert_eq!((&fifo["policy"], &fifo["mean_jct_s"]), (&"fifo".into(), &((105.0 + 185.0) / 2.0).into()));
    assert_eq!((&fifo["jobs"][1]["start_s"], &fifo["makespan_s"]), (&110.0.into(), &215.0.into()));
    let text = folder.run(line).stdout;
    assert!(names.iter().all(|name| text.contains(name)), "{text}");
    assert_eq!(folder.run(&format!("{line} --json")).stdout, ran.stdout);
}

/// Two jobs of a user who may have 8 of 16 GPUs run one after the other, 5 s of restart and 100 of steps each; a job of nobody
/// does not wait for them.
#[test]
fn jobs_of_a_user_keep_to_its_quota() {
    let folder = prepared();
    folder.write("trace.csv", OF_USERS);
    let line = "fleet-online trace.csv --throughputs speeds.csv --nodes n:2x8 --round 10 --restart 5";
    let ran = folder.run(&format!("{line} --quota ann:8 --json"));
    let answer: Value = serde_json::from_str(&ran.stdout).unwrap();
    assert_eq!((&answer["quotas"][0]["user"], &answer["quotas"][0]["max_gpus"]), (&"ann".into(), &8.into()));
    for policy in answer["policies"].as_array().unwrap() {
        let ends: Vec<f64> = (0..3).map(|job| policy["jobs"][job]["end_s"].as_f64().unwrap()).collect();
        assert_eq!(ends, [105.0, 215.0, 105.0], "{}", policy["policy"]);
    }
    assert_eq!(answer["policies"][0]["jobs"][0]["user"], "ann");
    let text = folder.run(&format!("{line} --quota ann:8")).stdout;
    assert!(text.contains("jobs of ann hold 8 GPUs at most\n"), "{text}");
    for (code, quota, expected) in [
        (3, "ann:7", "job `a` never fits: it asks for 8 GPUs, its user `ann` may have 7 (--quota)"),
        (2, "bob:8", "`--quota` is bob; no job of the trace has this `user`"),
        (2, "ann:8,ann:9", "`--quota` is ann; each user should stand there once"),
        (2, "ann:0", "it must be a user and GPUs from 1 to 100000, as ann:16"),
        (2, ":8", "it must be a user and GPUs from 1 to 100000, as ann:16"),
    ] {
        let ran = folder.run(&format!("{line} --quota {quota}"));
        assert_eq!((ran.code, ran.stdout.as_str()), (code, ""), "{quota}: {}", ran.stderr);
        assert!(ran.stderr.contains(expected) && ran.stderr.lines().count() == 1, "{}", ran.stderr);
    }
}

#[test]
fn what_makes_no_sense_is_one_line() {
    let folder = prepared();
    let nodes = "--nodes n:2x8";
    for (code, trace, arguments, expected) in [
        (2, "", nodes, "trace.csv: there is no row"),
        (2, "a,x,net,8,4\n", nodes, "trace.csv: line 2: "),
        (2, "a,0,net,8,-4\n", nodes, "trace.csv: line 2: `steps` is -4; it should be from 1 to 1e18"),
        (2, "a,0,not,8,4\n", nodes, "job `a`: `profile` is \"not\"; the table of speeds does not have it"),
        (3, "a,0,net,4,4\n", nodes, "job `a` never fits"),
        (2, "a,0,net,8,4\n", "--nodes n:2", "it must be a name, a count and GPUs, as v100:9x4"),
        (
            2,
            "a,0,net,8,4\n",
            "--nodes n:2x8,n:1x8",
            "`--nodes` is n; each kind of nodes should stand there once",
        ),
        (2, "a,0,net,8,4\n", "--nodes n:2x8 --round 0", "it must be a number from 1 to 86400"),
        (2, "a,0,net,8,4\n", "--nodes n:2x8 --policy none", "possible values: all, fifo, backfill"),
        (2, "a,0,net,8,4\n", "", "required arguments were not provided"),
    ] {
        folder.write("trace.csv", &format!("job,arrival_s,profile,gpus,steps\n{trace}"));
        let ran = folder.run(&format!("fleet-online trace.csv --throughputs speeds.csv {arguments}"));
        assert_eq!((ran.code, ran.stdout.as_str()), (code, ""), "{trace}{arguments}: {}", ran.stderr);
        assert!(ran.stderr.contains(expected) && ran.stderr.lines().count() == 1, "{}", ran.stderr);
    }
}
