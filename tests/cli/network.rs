//! `network`.

use crate::{Folder, Ran, small_plan};
use serde_json::Value;

/// A log of two DGX A100, with times that no forecast gives: 1 KiB in 100 µs, 1 MiB in 1000 µs.
pub fn log() -> String {
    let ranks = (0..16).map(|rank| {
        format!(
            "#  Rank {rank:2} Group  0 Pid {} on node-{} device {} [0x0f] GPU\n",
            100 + rank,
            rank / 8,
            rank % 8
        )
    });
    format!(
        "# Collective test starting: all_reduce_perf\n# Using devices\n{}NCCL version 2.20.5+cuda12.4\n\
         # size count type redop root time algbw busbw #wrong time algbw busbw #wrong\n\
         1024 256 float sum -1 100 0.01 0.02 0 99 0.01 0.02 0\n\
         1048576 262144 float sum -1 1000 1.05 1.97 0 999 1.05 1.97 0\n\
         # Avg bus bandwidth    : 1.0\n",
        ranks.collect::<String>()
    )
}

pub fn json(folder: &Folder, arguments: &str) -> Value {
    let ran = folder.run(&format!("network {arguments} --json"));
    assert_eq!((ran.code, ran.stderr.as_str()), (0, ""), "{arguments}");
    serde_json::from_str(&ran.stdout).unwrap()
}

/// Times of the first sweep in microseconds.
fn times(answer: &Value) -> Vec<f64> {
    let rows = answer["sweeps"][0]["rows"].as_array().unwrap();
    rows.iter().map(|row| (row["time_s"].as_f64().unwrap() * 1e9).round() / 1e3).collect()
}

#[test]
fn the_table_has_the_figures_of_the_json_answer() {
    let folder = Folder::new();
    let arguments = "--cluster dgx-a100:2 --collective all_reduce --bytes 8..8G";
    let page = folder.run(&format!("network {arguments}"));
    assert_eq!((page.code, page.stderr.as_str()), (0, ""));
    assert!(page.stdout.lines().all(|line| line.chars().count() <= 120), "{}", page.stdout);
    assert!(page.stdout.starts_with("all-reduce over 16 GPUs on 2 nodes of dgx-a100:2\n"), "{}", page.stdout);
    assert!(page.stdout.contains("\nmeasured: deepops-dgxa100-2n-ar, "), "{}", page.stdout);

    let answer = json(&folder, arguments);
    let sweep = &answer["sweeps"][0];
    assert_eq!((sweep["nodes"].as_u64(), sweep["ranks"].as_array().unwrap().len()), (Some(2), 16));
    let rows = sweep["rows"].as_array().unwrap();
    assert_eq!(rows.len(), 31, "8 to 8 GiB, doubled each time");
    let of = |row: &Value, key: &str| row[key].as_f64().unwrap();
    for row in rows {
        let algorithm = of(row, "algorithm_bandwidth_bytes_per_s");
        assert!((algorithm * of(row, "time_s") / of(row, "bytes") - 1.0).abs() < 1e-12, "{row}");
        // 2 · 15/16 of it.
        assert!((of(row, "bus_bandwidth_bytes_per_s") / algorithm - 1.875).abs() < 1e-12, "{row}");
    }
    let large = rows.iter().find(|row| row["bytes"] == 1u64 << 30).unwrap();
    assert!((of(large, "error") - (of(large, "time_s") / of(large, "measured_s") - 1.0)).abs() < 1e-12);
    let line = page.stdout.lines().find(|line| line.starts_with("1,073,741,824 ")).unwrap();
    for figure in [
        format!("{:.0}", 1e6 * of(large, "time_s")),
        format!("{:.2}", of(large, "bus_bandwidth_bytes_per_s") / 1e9),
        format!("{:.0}", 1e6 * of(large, "measured_s")),
        format!("{:+.1}", 100.0 * of(large, "error")),
    ] {
        assert!(line.split_whitespace().any(|word| word == figure), "no {figure} in {line}");
    }
}

/// The error is that of the forecast of just what was measured: by the NCCL that was, with what the method adds.
#[test]
fn measurements_are_held_against_the_forecast_of_how_they_were_made() {
    let folder = Folder::new();
    let row = |arguments: &str, bytes: u64| {
        let answer = json(&folder, &format!("{arguments} --bytes {bytes}"));
        let row = answer["sweeps"][0]["rows"][0].clone();
        let of = |key: &str| row[key].as_f64().unwrap_or_else(|| panic!("no {key} in {row}"));
        let error = of("compared_s") / of("measured_s") - 1.0;
        assert!((of("error") - error).abs() < 1e-12, "{row}");
        [of("time_s"), of("compared_s"), of("measured_s")].map(|time| 1e6 * time)
    };
    let check = |[time, compared]: [f64; 2], added: f64| {
        assert!((compared - time - added).abs() < 1e-6, "{time} and {added} µs are not {compared} µs");
    };
    // 106 µs of the host, NCCL 2.27.
    let blocking = "--cluster aws-p6-b200:4 --collective all_reduce";
    let [newest, compared, _] = row(blocking, 1_048_576);
    let [stated, same, _] = row(&format!("{blocking} --nccl 2.27"), 1_048_576);
    assert!(compared == same && newest != stated, "{newest}, {stated}, {compared}, {same} µs");
    check([stated, compared], 106.0);
    let page = folder.run(&format!("network {blocking} --bytes 1M")).stdout.replace("\n  ", " ");
    let counted = "; held against the forecast as NCCL 2.27 does it, with 106 µs of the host in each call\n";
    assert!(page.contains(counted), "{page}");
    // Eight launches of 10.8 µs, of which an A100 takes the start anyway.
    let gpu = trainwright_spec::cluster::Cluster::from_name("dgx-a100-40gb").unwrap().node.gpu;
    let start = 1e6 * gpu.achieved.collective_start.map_or(0.0, |start| start.value.get());
    let [time, compared, _] = row("--cluster dgx-a100-40gb --collective all_to_all", 1_048_576);
    check([time, compared], 8.0 * 10.8 - start);
    // nccl-tests measures no more than the collective.
    let [time, compared, _] = row("--cluster dgx-a100:2 --collective all_reduce", 1 << 30);
    check([time, compared], 0.0);
    // Measurements of other sizes are listed with their sizes.
    for (node, others) in [("dgx-a100", "1,048,576 to 1,073,741,824"), ("dgx-b200", "40,160,460")] {
        let page = folder.run(&format!("network --cluster {node} --collective all_reduce --bytes 1K")).stdout;
        let others = format!("; of none of these sizes, but of {others} B\n");
        assert!(!page.contains("error") && page.replace("\n  ", " ").contains(&others), "{page}");
    }
}

#[test]
fn groups_are_as_they_are_asked_for() {
    let folder = Folder::new();
    let check = |arguments: &str, nodes: u64, ranks: &[u64]| {
        let answer =
            json(&folder, &format!("--cluster dgx-a100:4 --collective allgather --bytes 1M {arguments}"));
        let sweep = &answer["sweeps"][0];
        let given: Vec<u64> =
            sweep["ranks"].as_array().unwrap().iter().map(|rank| rank.as_u64().unwrap()).collect();
        assert_eq!((sweep["nodes"].as_u64().unwrap(), given.as_slice()), (nodes, ranks), "{arguments}");
    };
    check("", 4, &(0..32).collect::<Vec<_>>());
    check("--gpus 12", 2, &(0..12).collect::<Vec<_>>());
    check("--gpus 4 --nodes 2", 2, &[0, 1, 8, 9]);
    check("--gpus 4 --ranks-per-node 1", 4, &[0, 8, 16, 24]);
    check("--gpus 4 --ranks-per-node 2 --nodes 2", 2, &[0, 1, 8, 9]);
    check("--nodes 1", 1, &(0..8).collect::<Vec<_>>());
    check("--nodes 2 --ranks-per-node 1", 2, &[0, 8]);
    check("--ranks 25,3", 2, &[3, 25]);
}

#[test]
fn a_log_is_compared_and_becomes_a_profile_that_everything_uses() {
    let folder = Folder::new();
    folder.write("run.log", &log());
    let ran = folder.run("network --cluster dgx-a100:2 --log run.log --write-profile measured.toml");
    assert_eq!((ran.code, ran.stderr.as_str()), (0, ""));
    assert!(ran.stdout.contains("\nmeasured: run.log, GPU, NCCL 2.20.5+cuda12.4\n"), "{}", ran.stdout);
    assert!(ran.stdout.ends_with(
        "\nThe times are in measured.toml; `plan`, `simulate` and `network` use them with `--profile measured.toml`.\n"
    ));
    let compared = json(&folder, "--cluster dgx-a100:2 --log run.log");
    let measured: Vec<f64> =
        (0..2).map(|row| compared["sweeps"][0]["rows"][row]["measured_s"].as_f64().unwrap()).collect();
    assert_eq!(measured, [100.0 * 1e-6, 1000.0 * 1e-6]);

    // On a larger cluster of these nodes, the group of two nodes is the measured one.
    let of = |group: &str| {
        format!("--cluster dgx-a100:4 --collective allreduce --bytes 1K..1M --factor 32 {group}")
    };
    let with = json(&folder, &of("--nodes 2 --profile measured.toml"));
    // 32 KiB is half of the way from 1 KiB to 1 MiB, √(100 · 1000).
    assert_eq!(times(&with), [100.0, 316.228, 1000.0]);
    assert_eq!(with["sweeps"][0]["rows"][0]["algorithm"], Value::Null);
    let other = times(&json(&folder, &of("--profile measured.toml")));
    assert_eq!(other, times(&json(&folder, &of(""))), "a group that was not measured");
    for (group, said) in [
        ("--nodes 2", "the times of run.log, measured on dgx-a100:2"),
        ("", "as NCCL 2.30 does it; no time of the profile counts here"),
    ] {
        let page = folder.run(&format!("network {}", of(&format!("{group} --profile measured.toml")))).stdout;
        assert!(page.contains(&format!("\nforecast: {said}\n")), "{page}");
    }
    let forced = folder.run(&format!("network {}", of("--profile measured.toml --algorithm ring")));
    assert!(
        forced.stderr.contains("'--profile <FILE>' cannot be used with '--algorithm <NAME>'"),
        "{}",
        forced.stderr
    );
}

/// The tensor ranks of this plan are pairs in a node: where their collectives take a second each, so does the step.
#[test]
fn plans_are_simulated_with_the_profile() {
    let folder = Folder::new();
    let sweep = |kind: &str| {
        format!("[[sweeps]]\ncollective = \"{kind}\"\nnodes = 1\nranks_per_node = 2\nbytes_and_us = [[1024, 1e6], [1e9, 1e6]]\n")
            .replace("1e9", "1000000000")
            .replace("1e6", "1000000")
    };
    let text =
        "kind = \"network\"\ncluster = \"slow\"\ngpus_per_node = 8\nsource = \"made up\"\n".to_string();
    folder.write("slow.toml", &(text + &sweep("all-gather") + &sweep("reduce-scatter")));
    folder.write("plan.toml", &small_plan().to_toml());
    let step = |arguments: &str| -> f64 {
        let ran = folder.run(&format!("simulate --json {arguments}"));
        assert_eq!((ran.code, ran.stderr.as_str()), (0, ""));
        serde_json::from_str::<Value>(&ran.stdout).unwrap()["forecast"]["step_time_s"].as_f64().unwrap()
    };
    let (plain, slow) = (step("plan.toml"), step("plan.toml --profile slow.toml"));
    assert!(plain < 1.0 && slow > 100.0, "{plain} s and {slow} s");
    let page = folder.run("simulate plan.toml --profile slow.toml").stdout;
    assert!(page.contains(" on dgx-a100 with the network times of made up (8 GPUs), "), "{page}");

    let arguments = "plan --model gpt2-medium --cluster dgx-a100 --seq 1024 --global-batch 16 --tensor 2 --pipeline 2 \
                     --data 2 --micro-batch 1 --sequence-parallel true --schedule 1f1b --quiet --out -";
    let planned = folder.run(&format!("{arguments} --profile slow.toml"));
    assert_eq!(planned.stderr, "");
    folder.write("planned.toml", &planned.stdout);
    assert!(planned.stdout.contains("[cluster.profile]"), "{}", planned.stdout);
    assert!(step("planned.toml") > 100.0, "a plan carries the profile that it was made with");
}

/// One GPU of each of two nodes: alone with all NICs, or together with groups of the other GPUs.
#[test]
fn a_group_that_had_its_nodes_for_itself_is_none_of_training() {
    let folder = Folder::new();
    let rank = |rank: usize, group: usize, node: usize| {
        format!("#  Rank {rank} Group {group} Pid 1 on node-{node} device 0 [0x0f] GPU\n")
    };
    let header = "# all_gather_perf\n# Using devices\n";
    let rows = "# size count type time algbw busbw error\n1048576 131072 float 77 13.6 6.8 N/A\n";
    let note = "The measured group had the NICs of its nodes for itself.";
    let check = |name: &str, ranks: Vec<String>, alone: bool| {
        folder.write("run.log", &format!("{header}{}{rows}", ranks.concat()));
        let page =
            folder.run(&format!("network --cluster dgx-a100:2 --log run.log --write-profile {name}")).stdout;
        assert_eq!(page.contains(note), alone, "{page}");
        let of =
            format!("--cluster dgx-a100:2 --collective all_gather --bytes 1M --ranks 3,11 --profile {name}");
        assert_eq!(
            times(&json(&folder, &of)) == [77.0],
            !alone,
            "the simulator takes those of siblings only"
        );
    };
    check("alone.toml", vec![rank(0, 0, 0), rank(1, 0, 1)], true);
    check("siblings.toml", (0..16).map(|index| rank(index, index % 8, index / 8)).collect(), false);
}

#[test]
fn several_runs_in_a_log_are_several_tables() {
    let folder = Folder::new();
    folder.write("run.log", &format!("{}{}", log(), log().replace("all_reduce", "all_gather")));
    let answer = json(&folder, "--cluster dgx-a100:2 --log run.log");
    let kinds: Vec<&str> = answer["sweeps"]
        .as_array()
        .unwrap()
        .iter()
        .map(|sweep| sweep["collective"].as_str().unwrap())
        .collect();
    assert_eq!(kinds, ["all-reduce", "all-gather"]);
    let one = json(&folder, "--cluster dgx-a100:2 --log run.log --collective all_gather");
    assert_eq!(one["sweeps"].as_array().unwrap().len(), 1);
    let ran = folder.run("network --cluster dgx-a100:2 --log run.log --write-profile both.toml --json");
    assert_eq!(ran.code, 0);
    assert_eq!(folder.read("both.toml").matches("[[sweeps]]").count(), 2);
}

#[test]
fn plots_and_logs_are_written() {
    let folder = Folder::new();
    let run = |suffix: &str| {
        let files = format!("--svg {suffix}.svg --png {suffix}.png --write-log {suffix}.log");
        let ran =
            folder.run(&format!("network --cluster dgx-a100:2 --collective bcast --bytes 8..1G {files}"));
        assert_eq!((ran.code, ran.stderr.as_str()), (0, ""));
        let png = std::fs::read(folder.path(&format!("{suffix}.png"))).unwrap();
        (ran.stdout, folder.read(&format!("{suffix}.svg")), png, folder.read(&format!("{suffix}.log")))
    };
    let first = run("a");
    assert!(first.1.contains("broadcast over 16 GPUs on 2 nodes of dgx-a100:2"));
    assert!(first.2.starts_with(b"\x89PNG"));
    assert!(first == run("b"), "two runs differ");
    // Its log is read back: the forecast is as it was written.
    let again = json(&folder, "--cluster dgx-a100:2 --log a.log");
    let errors =
        again["sweeps"][0]["rows"].as_array().unwrap().iter().map(|row| row["error"].as_f64().unwrap());
    assert!(errors.clone().count() == 28 && errors.clone().all(|error| error.abs() < 1e-3), "{again}");
    let piped = folder.run("network --cluster dgx-a100:2 --collective bcast --bytes 8..1G --write-log -");
    assert_eq!(piped.stdout, first.3);
    assert_eq!(folder.run_with_input("network --cluster dgx-a100:2 --log - --json", &first.3).code, 0);
}

#[test]
fn invalid_input_is_one_line() {
    let folder = Folder::new();
    folder.write("run.log", &log());
    folder.write("noise.log", "nothing\n");
    folder.write("cut.log", &log().replace(" 262144 float sum -1 1000", " 26"));
    folder.write("unknown.log", &log().replace("all_reduce_perf", "my_perf").replace("1.97", "1.20"));
    folder.write(
        "other.toml",
        "kind = \"network\"\ncluster = \"c\"\ngpus_per_node = 4\nsource = \"s\"\nsweeps = []\n",
    );
    folder.write("bad.toml", "kind = \"network\"\n");
    let check = |arguments: &str, message: &str| {
        let Ran { code, stdout, stderr } = folder.run(&format!("network {arguments}"));
        assert_eq!((stderr, code, stdout), (format!("error: {message}\n"), 2, String::new()), "{arguments}");
    };
    let two = "--cluster dgx-a100:2 --collective all_reduce";
    let check_two = |arguments: &str, message: &str| check(&format!("{two} {arguments}"), message);
    check(
        "--cluster dgx-a100:2 --collective all_reduc",
        "invalid value 'all_reduc' for '--collective <NAME>': it is none of all-reduce, all-gather, reduce-scatter, \
         broadcast, reduce, all-to-all, send-receive, barrier (nearest: all-reduce)",
    );
    check(
        "--cluster dgx-a10 --collective all_reduce",
        "--cluster: unknown cluster `dgx-a10` (nearest: dgx-a100, dgx-h100, dgx-1v); `trainwright show clusters` lists \
         all",
    );
    check(
        "--cluster dgx-a100",
        "`--collective` is missing; without `--log` it has to be named, for example all_reduce",
    );
    check(
        "--cluster dgx-a100 --collective barrier",
        "`--collective` is barrier; it moves no data, so that there are no sizes to go through",
    );
    check_two(
        "--bytes 8G..8",
        "invalid value '8G..8' for '--bytes <SIZES>': the first size of a range is the smaller one",
    );
    check_two(
        "--bytes 1KB",
        "invalid value '1KB' for '--bytes <SIZES>': `1KB` is no size: a whole number of bytes from 1 to 1024T, where \
         64K is 64 times 1024",
    );
    check_two(
        "--factor 1",
        "invalid value '1' for '--factor <N>': it must be a whole number from 2 to 1048576",
    );

    check_two("--gpus 17", "`--gpus` is 17; dgx-a100:2 has 16 GPUs");
    check_two("--gpus 1", "`--gpus` is 1; at least 2: a group of one rank has nothing to communicate");
    check_two("--nodes 3", "`--nodes` is 3; dgx-a100:2 has 2 nodes");
    check_two("--ranks-per-node 9", "`--ranks-per-node` is 9; a node of dgx-a100:2 has 8 GPUs");
    check_two(
        "--nodes 1 --ranks-per-node 1",
        "`--ranks-per-node` is 1; a group of one rank has nothing to communicate",
    );
    check_two(
        "--gpus 3 --nodes 2",
        "`--gpus` is 3; with `--nodes` 2 it must be a multiple of that, at most 16",
    );
    check_two(
        "--gpus 8 --nodes 2 --ranks-per-node 2",
        "`--gpus` is 8; `--nodes` 2 times `--ranks-per-node` 2 are 4",
    );
    check_two(
        "--ranks 0-7",
        "invalid value '0-7' for '--ranks <N,N>': it must be a whole number from 0 to 10000000; more of them with commas \
         between",
    );
    check_two(
        "--bytes -5",
        "invalid value '-5' for '--bytes <SIZES>': `-5` is no size: a whole number of bytes from 1 to 1024T, where 64K \
         is 64 times 1024",
    );
    check_two("--ranks 3", "`--ranks` is 3; a group of one rank has nothing to communicate");
    check_two("--ranks 3,3", "`--ranks` is 3,3; rank 3 is there twice");
    check_two("--ranks 3,16", "`--ranks` is 3,16; dgx-a100:2 has ranks 0 to 15, not 16");
    check(
        "--cluster rtx-4090 --collective all_reduce",
        "`--cluster` is rtx-4090; a group of one rank has nothing to communicate",
    );

    let log = |arguments: &str, message: &str| check(&format!("--cluster dgx-a100:2 {arguments}"), message);
    log("--log nowhere.log", "--log: cannot read nowhere.log: no such file or directory");
    log(
        "--log noise.log",
        "--log: noise.log: no table of nccl-tests in it: no line has the column names `size`, `count`, `time`, `algbw` \
         and `busbw`",
    );
    log(
        "--log cut.log",
        "--log: cut.log:22: `1048576 26 1.05 1.97 0 999 1.05 1.97 0` is no row of the table; expected the name of a type \
         in column 3",
    );
    log(
        "--log unknown.log --bytes 1M",
        "`--collective` is missing; unknown.log:20 does not say which collective it is of: name it",
    );
    log(
        "--log run.log --collective all_gather",
        "`--log` is run.log; it has all-reduce over 2 x 8 ranks, which is not what the other arguments ask for",
    );
    check(
        "--cluster dgx-a100 --log run.log",
        "`--log` is run.log; it is of 2 nodes with 8 ranks each, dgx-a100 has 1 with 8",
    );
    check(
        "--cluster rtx-4090 --log run.log",
        "`--log` is run.log; it is of 2 nodes with 8 ranks each, rtx-4090 has 1 with 1",
    );
    check_two(
        "--profile other.toml",
        "--profile: other.toml: `gpus_per_node` is 4; the profile is of c, and a node of dgx-a100:2 has 8 GPUs",
    );
    check_two("--profile bad.toml", "--profile: bad.toml:1: `kind`: missing field `cluster`");
    check_two("--svg - --json", "`--svg` is -; with `--json` standard output is taken: name a file");
    check_two("--svg - --png -", "`--svg` is -; with `--png` standard output is taken: name a file");
    check_two("--svg a --png a", "`--png` is a; `--svg` writes that file too: name another");
    assert!(!folder.path("a").exists(), "nothing is written before all is known");
}

#[test]
fn nccls_choice_can_be_forced() {
    let folder = Folder::new();
    let arguments =
        |kind: &str, forced: &str| format!("--cluster dgx-a100:2 --collective {kind} --bytes 1M {forced}");
    let check = |forced: &str, expected: (&str, &str, Option<u64>)| {
        let answer = json(&folder, &arguments("all_reduce", forced));
        let row = &answer["sweeps"][0]["rows"][0];
        let of = |key: &str| row[key].as_str().unwrap();
        assert_eq!((of("algorithm"), of("protocol")), (expected.0, expected.1), "{forced}");
        assert!(expected.2.is_none_or(|channels| row["channels"] == channels), "{forced}: {row}");
    };
    check("--algorithm tree --protocol LL", ("tree", "LL", None));
    check("--algorithm ring --protocol Simple --channels 3", ("ring", "Simple", Some(3)));
    let free = json(&folder, &arguments("all_reduce", ""));
    assert_eq!(json(&folder, &arguments("all_reduce", "--nccl 2.12"))["sweeps"][0]["nccl"], "2.12");
    assert_ne!(free["sweeps"][0]["nccl"], "2.12");

    // A device with another library is named as that.
    let of = |node: &str| {
        folder.run(&format!("network --cluster {node} --collective all_reduce --bytes 1M --nccl 2.30")).stdout
    };
    assert!(of("dgx-a100").contains("forecast: as NCCL 2.30 does it\n"));
    assert!(of("mi300x-8").contains("forecast: as NCCL 2.30 would do it; mi300x has rccl instead\n"));

    let refuse = |forced: &str, message: &str| {
        let ran = folder.run(&format!("network {}", arguments("all_gather", forced)));
        assert!(ran.stderr.starts_with(&format!("error: {message}")), "{}", ran.stderr);
        assert_eq!((ran.code, ran.stdout.as_str(), ran.stderr.lines().count()), (2, "", 1));
    };
    refuse(
        "--algorithm tree",
        "`--algorithm` is tree; all-gather over 16 GPUs on 2 nodes can be done by ring (",
    );
    refuse(
        "--algorithm tree --protocol LL",
        "`--algorithm` with `--protocol` is tree with LL; all-gather over 16 GPUs on 2 nodes can be done by ring (",
    );
    refuse(
        "--algorithm nvls-tree --nccl 2.12",
        "`--algorithm` is nvls-tree; NCCL 2.12 does not have it, 2.18 is the first of the catalog's versions that does; ",
    );
    refuse("--channels 1000", "`--channels` is 1000; NCCL 2.30 has at most ");
    refuse("--nccl 2.1", "invalid value '2.1' for '--nccl <VERSION>' [possible values: 2.12, ");
    refuse(
        "--algorithm trea",
        "invalid value 'trea' for '--algorithm <NAME>' [possible values: ring, tree, ",
    );
}

#[test]
fn a_network_that_cannot_be_is_refused_with_its_line() {
    let folder = Folder::new();
    let check = |text: &str, message: &str| {
        folder.write("cluster.toml", text);
        let ran = folder.run("network --cluster cluster.toml --collective all_reduce");
        let expected = (format!("error: --cluster: cluster.toml:{message}\n"), 2, String::new());
        assert_eq!((ran.stderr, ran.code, ran.stdout), expected);
    };
    let cable = |node: usize, bandwidth: &str, latency: &str| {
        format!(
            "[[fabric.links]]\nbetween = [\"node{node}\", \"leaf\"]\nbandwidth = {bandwidth}\nlatency = {latency}\n"
        )
    };
    let with_cables = |cables: [String; 2]| format!("nodes = 3\nnode = \"dgx-a100\"\n{}", cables.concat());
    let good = || cable(0, "\"50 GB/s\"", "\"1 us\"");
    check(
        &with_cables([good(), cable(1, "\"50 GB/s\"", "\"1 us\"")]),
        "3: `fabric.links` is not joining node2.nic0 to node0.nic0; every NIC must be joined to every other",
    );
    check(
        &with_cables([good(), cable(1, "\"0 GB/s\"", "\"1 us\"")]),
        "9: `fabric.links.1.bandwidth` is 0 GB/s; at least 0.001 GB/s",
    );
    check(
        &with_cables([good(), cable(1, "\"50 GB/s\"", "\"-1 us\"")]),
        "10: `fabric.links.1.latency`: `-1 us` is out of range: neither negative nor endless is allowed",
    );
    let node = |interconnect: &str, nics: &str| {
        format!(
            "nodes = 2\n[node]\ngpu = \"a100-80gb-sxm\"\ngpus = 4\ninterconnect = {interconnect}\nnics = {{ kind = \"infiniband-hdr\", count = 4{nics} }}\n"
        )
    };
    check(
        &node("{ kind = \"nvlink3-direct\", wiring = { pairs = { links = [[0, 1, 4], [2, 3, 4]] } } }", ""),
        "5: `node.interconnect.wiring.pairs.links` is not joining GPU 2 to GPU 0; every GPU must be joined to every \
         other; a `node.host` (PCIe) can join what links do not",
    );
    check(
        &node("\"nvlink3-direct\"", ", bandwidth = 0"),
        "6: `node.nics.bandwidth` is 0 GB/s; at least 0.001 GB/s",
    );
    check(
        &node("\"nvlink3-direct\"", ", latency = -0.001"),
        "6: `node.nics.latency`: -0.001 is out of range",
    );
    check(
        &node("{ kind = \"nvlink3-direct\", bandwidth = \"0 B/s\" }", ""),
        "5: `node.interconnect.bandwidth` is 0 GB/s; at least 0.001 GB/s",
    );
}

#[test]
fn a_file_that_cannot_be_written_costs_neither_the_answer_nor_an_old_file() {
    let folder = Folder::new();
    let arguments = "network --cluster dgx-a100 --collective all_reduce --bytes 1M";
    let answer = folder.run(arguments).stdout;
    for argument in ["--svg", "--png", "--write-log"] {
        let ran = folder.run(&format!("{arguments} {argument} nowhere/file"));
        let message = format!("error: {argument}: cannot write nowhere/file: no such file or directory\n");
        assert_eq!((ran.stderr, ran.code, ran.stdout), (message, 1, answer.clone()));
    }
}
