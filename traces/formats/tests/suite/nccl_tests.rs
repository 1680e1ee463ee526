//! Logs as the versions of nccl-tests and the launchers write them. The numbers are made up, the formats are not.

use trainwright_formats::nccl_tests::{Forecast, LogError, LoggedGroup, LoggedSweep, read, write};
use trainwright_spec::collective::CollectiveKind::{self, *};
use trainwright_spec::units::{Bytes, Seconds};

/// Two nodes with two ranks each, as version 2.17 prints it.
const NEW: &str = "\
# nccl-tests version 2.17.6 nccl-headers=22807 nccl-library=22807
# Collective test starting: all_reduce_perf
# nThread 1 nGpus 1 minBytes 1024 maxBytes 1048576 step: 1024(factor) warmup iters: 1 iters: 20 agg iters: 1 validation: 1 graph: 0
#
# Using devices
#  Rank  0 Group  0 Pid   4711 on     alpha device  0 [0000:0f:00] NVIDIA A100-SXM4-80GB
#  Rank  1 Group  0 Pid   4712 on     alpha device  1 [0000:15:00] NVIDIA A100-SXM4-80GB
#  Rank  2 Group  0 Pid    811 on      beta device  0 [0000:0f:00] NVIDIA A100-SXM4-80GB
#  Rank  3 Group  0 Pid    812 on      beta device  1 [0000:15:00] NVIDIA A100-SXM4-80GB
#
#                                                              out-of-place                       in-place
#       size         count      type   redop    root     time   algbw   busbw  #wrong     time   algbw   busbw  #wrong
#        (B)    (elements)                               (us)  (GB/s)  (GB/s)             (us)  (GB/s)  (GB/s)
alpha:4711:4733 [0] NCCL INFO Connected all trees
        1024           256     float     sum      -1    25.00    0.04    0.06       0    24.00    0.04    0.06       0
     1048576        262144     float     sum      -1    80.00   13.11   19.66       0    81.00   12.95   19.42     N/A
# Out of bounds values : 0 OK
# Avg bus bandwidth    : 9.80
#
# Collective test concluded: all_reduce_perf
";

/// Before 2.12: no root, errors as numbers, no name of the program.
const OLD: &str = "\
# nThread 1 nGpus 4 minBytes 8 maxBytes 1048576 step: 2(factor) warmup iters: 5 iters: 20 validation: 1
#
# Using devices
#   Rank  0 Pid  12979 on     alpha device  0 [0x45] Tesla V100-SXM2-16GB
#   Rank  1 Pid  12979 on     alpha device  1 [0xc4] Tesla V100-SXM2-16GB
#   Rank  2 Pid  12979 on     alpha device  2 [0xc5] Tesla V100-SXM2-16GB
#   Rank  3 Pid  12979 on     alpha device  3 [0xc6] Tesla V100-SXM2-16GB
#
#                                             out-of-place                       in-place
#       size         count    type     time   algbw   busbw  error     time   algbw   busbw  error
#        (B)    (elements)             (us)  (GB/s)  (GB/s)            (us)  (GB/s)  (GB/s)
           0             0   float    34.27    0.00    0.00  0e+00    33.57    0.00    0.00  0e+00
     1048576         65536   float    50.00   20.97   15.73  2e-07    49.00   21.40   16.05  2e-07
";

fn one(text: &str) -> LoggedSweep {
    let mut sweeps = read(text, "a.log").unwrap();
    assert_eq!(sweeps.len(), 1, "{sweeps:?}");
    sweeps.remove(0)
}

fn times(sweep: &LoggedSweep) -> Vec<(f64, f64)> {
    sweep.rows.iter().map(|row| (row.bytes.get(), (row.time.get() * 1e9).round() / 1e3)).collect()
}

const EXPECTED: [(f64, f64); 2] = [(1024.0, 25.0), (1048576.0, 80.0)];

#[test]
fn a_log_has_group_collective_and_times() {
    let sweep = one(NEW);
    assert_eq!(sweep.collective, Some(AllReduce));
    assert_eq!(sweep.group, Some(LoggedGroup { nodes: 2, ranks_per_node: 2, groups: 1 }));
    assert_eq!(sweep.gpu.as_deref(), Some("NVIDIA A100-SXM4-80GB"));
    assert_eq!(sweep.software.as_deref(), Some("NCCL 2.28.7, nccl-tests 2.17.6"));
    assert_eq!(sweep.line, 12);
    assert_eq!(times(&sweep), EXPECTED);
}

#[test]
fn launchers_put_prefixes_before_the_lines() {
    let check = |prefix: &dyn Fn(usize) -> String| {
        let lines = NEW.lines().enumerate().map(|(index, line)| format!("{}{line}\n", prefix(index)));
        let text: String = lines.collect();
        let (sweep, plain) = (one(&text), one(NEW));
        assert_eq!(sweep, plain, "{text}");
    };
    check(&|_| "    ".into());
    check(&|_| "[1,0]<stdout>:".into());
    check(&|_| "[1,0]<stdout>: ".into());
    check(&|_| " 0: ".into());
    check(&|_| "(head, rank=0, pid=3808) [1,0]<stdout>:".into());
    check(&|_| "[pod/launcher-x7/mpi] ".into());
    check(&|line| format!("2026-03-05T10:11:{line:02}.123456789Z "));
    check(&|line| format!("2026-03-05T10:11:{line:02}Z [1,0]<stdout>: "));
}

#[test]
fn versions_differ_in_their_columns() {
    let sweep = one(OLD);
    assert_eq!(sweep.collective, None, "an all-gather and an all-to-all look alike");
    assert_eq!(sweep.group, Some(LoggedGroup { nodes: 1, ranks_per_node: 4, groups: 1 }));
    assert_eq!((sweep.software.clone(), times(&sweep)), (None, vec![(1048576.0, 50.0)]));
    let named = one(&format!("$ mpirun -np 1 ./build/all_gather_perf -b 8 -g 4\n{OLD}"));
    assert_eq!(named.collective, Some(AllGather));

    let check = |header: &str, rows: &str, expected: &[(f64, f64)]| {
        assert_eq!(times(&one(&format!("{header}\n{rows}\n"))), expected, "{header}");
    };
    let both = "time algbw busbw #wrong time algbw busbw #wrong";
    // In place only: the first half is left empty.
    let header = format!("# size count type redop root {both}");
    check(&header, "1024 256 float sum -1                      24.00 0.04 0.06 N/A", &[(1024.0, 24.0)]);
    check(
        &header.replace("time", "cputime"),
        "1024 256 float sum -1 25 0.04 0.06 0 24 0.04 0.06 0",
        &EXPECTED[..1],
    );
    // Statistics of the iterations behind each half.
    let header = "# size count type redop root time algbw busbw #wrong i_min i_max i_p99 i_cv% time algbw busbw #wrong \
                  i_min i_max i_p99 i_cv%";
    check(
        header,
        "1024 256 float sum -1 25 0.04 0.06 0 20 30 29 1.5 24 0.04 0.06 0 20 30 29 1.5",
        &EXPECTED[..1],
    );
    // One half, and large times as powers of ten.
    check(
        "size count type time algbw busbw error",
        "8589934592 1 float 1.5e+08 0.06 0.1 N/A",
        &[(8589934592.0, 1.5e8)],
    );
}

#[test]
fn the_time_of_day_gives_the_date() {
    let header =
        "# size count type redop root time algbw busbw #wrong time algbw busbw #wrong           timestamp";
    let sweep =
        one(&format!("{header}\n1024 256 float sum -1 25 0.04 0.06 0 24 0.04 0.06 0  2026-03-05 10:11:12\n"));
    assert_eq!((sweep.date.as_deref(), times(&sweep)), (Some("2026-03-05"), EXPECTED[..1].to_vec()));
}

#[test]
fn amd_prints_other_names() {
    let text =
        NEW.replace("# nccl-tests version 2.17.6 nccl-headers=22807 nccl-library=22807\n", "").replace(
            "# Using devices",
            "rccl-tests: Version develop:3f7f785\nRCCL version : 2.26.6-heads/x:c3b8de4\n# Using devices",
        );
    let text = text.replace("NVIDIA A100-SXM4-80GB", "AMD Instinct MI300X").replace(" Group  0", "");
    let sweep = one(&text);
    assert_eq!(sweep.software.as_deref(), Some("RCCL 2.26.6-heads/x:c3b8de4, rccl-tests develop:3f7f785"));
    assert_eq!((sweep.gpu.as_deref(), times(&sweep)), (Some("AMD Instinct MI300X"), EXPECTED.to_vec()));
}

/// `NCCL_TESTS_SPLIT_MASK=0x1` on two nodes: rank 0 and 2 are one group, 1 and 3 another, at the same time.
#[test]
fn groups_side_by_side_are_counted() {
    let text =
        NEW.replace("Rank  1 Group  0", "Rank  1 Group  1").replace("Rank  3 Group  0", "Rank  3 Group  1");
    assert_eq!(one(&text).group, Some(LoggedGroup { nodes: 2, ranks_per_node: 1, groups: 2 }));
    // Each node a separate group: no two on the same node.
    let text =
        NEW.replace("Rank  2 Group  0", "Rank  2 Group  1").replace("Rank  3 Group  0", "Rank  3 Group  1");
    assert_eq!(one(&text).group, Some(LoggedGroup { nodes: 1, ranks_per_node: 2, groups: 1 }));
}

#[test]
fn several_runs_in_one_log_are_several_sweeps() {
    let sweeps = read(&format!("{NEW}===begin all_gather_perf test===\n{OLD}"), "a.log").unwrap();
    let of = |index: usize| (sweeps[index].collective, sweeps[index].group.unwrap().nodes);
    assert_eq!((sweeps.len(), of(0), of(1)), (2, (Some(AllReduce), 2), (Some(AllGather), 1)));
}

/// Without a name, the ratio of both bandwidths, the operation and the root identify most collectives.
#[test]
fn the_table_tells_most_collectives() {
    let check = |ratio: f64, operation: &str, root: &str, expected: Option<CollectiveKind>| {
        let head = NEW.replace("# Collective test starting: all_reduce_perf\n", "");
        let row = "float     sum      -1    80.00   13.11   19.66";
        let text = head.replace(row, &format!("float {operation} {root} 80.00 13.11 {:.2}", 13.11 * ratio));
        assert_eq!(one(&text).collective, expected, "{ratio} {operation} {root}");
    };
    // Of 4 ranks: 2 · 3/4, 3/4 and 1.
    check(1.5, "sum", "-1", Some(AllReduce));
    check(0.75, "sum", "-1", Some(ReduceScatter));
    check(0.75, "none", "-1", None);
    check(1.0, "none", "-1", Some(SendReceive));
    check(1.0, "none", "0", Some(Broadcast));
    check(1.0, "sum", "0", Some(Reduce));
    check(0.9, "sum", "-1", None);
}

#[test]
fn a_list_of_some_ranks_is_no_group() {
    let text = NEW.replace("#  Rank  2 Group", "# ... Group");
    assert_eq!(one(&text).group, None);
}

#[test]
fn faults_are_refused_with_their_line() {
    let check = |text: &str, message: &str| {
        let error: LogError = read(text, "a.log").unwrap_err();
        assert_eq!(error.to_string(), message);
    };
    let none = "a.log: no table of nccl-tests in it: no line has the column names `size`, `count`, `time`, `algbw` and \
                `busbw`";
    check("", none);
    check("training started\nloss 3.2\n", none);
    let cut = NEW.lines().take(14).fold(String::new(), |text, line| text + line + "\n");
    check(&cut, "a.log:12: no rows follow these column names; was the run cut off?");
    let cut = NEW.lines().take(15).fold(String::new(), |text, line| text + line + "\n")
        + "     1048576        262144  flo";
    check(&cut, "a.log:16: `1048576        262144  flo` is no row of the table; expected 13 columns, not 3");
    check(
        &NEW.replace(" 25.00", " xx.xx"),
        "a.log:15: `1024           256     float     sum      -1    xx.xx    0.04    0.06       0    24.00    0.04    \
         0.06       0` is no row of the table; expected a time above 0 in column 6",
    );
    check(
        &NEW.replace("0.06       0    24", "0.06      12    24"),
        "a.log:15: 12 values are wrong after the collective: times of a faulty run are no measurement",
    );
    check(
        &NEW.replace("Rank  3", "Rank  0"),
        "a.log:9: rank 0 is listed twice; nccl-tests that is built without MPI=1 runs each process by itself",
    );
    check(
        &NEW.replace("812 on      beta", "812 on     alpha"),
        "a.log: the group has 3 ranks on one node and 1 on another; expected as many on each",
    );
}

#[test]
fn a_forecast_is_written_as_nccl_tests_would_and_read_back() {
    let group = LoggedGroup { nodes: 2, ranks_per_node: 8, groups: 1 };
    let ranks: Vec<(usize, usize)> = (0..16).map(|rank| (rank / 8, rank % 8)).collect();
    let times = [(8.0, 21.37), (1048576.0, 123.4), (8589934592.0, 1234567.0)];
    let times = times.map(|(bytes, time)| (Bytes::new(bytes), Seconds::new(time * 1e-6)));
    for kind in CollectiveKind::ALL.into_iter().filter(|kind| *kind != Barrier) {
        let text = write(&Forecast { collective: kind, ranks: &ranks, gpu: "a100-80gb-sxm", times: &times });
        let sweep = one(&text);
        assert_eq!((sweep.collective, sweep.group), (Some(kind), Some(group)), "{text}");
        let expected = [(8.0, 21.37), (1048576.0, 123.4), (8589934592.0, 1234567.0)];
        assert_eq!(self::times(&sweep), expected, "{text}");
    }
    let text = write(&Forecast { collective: AllReduce, ranks: &ranks, gpu: "a100-80gb-sxm", times: &times });
    // 1 MiB in 123.4 µs are 8.497 GB/s, times 2 · 15/16 = 15.932.
    let row = "     1048576        262144     float     sum      -1   123.40    8.50   15.93     N/A   123.40    8.50   \
               15.93     N/A";
    assert!(text.lines().any(|line| line == row), "{text}");
}

/// The row has cells for one half, and the second half alone has a bus bandwidth: there is none to read.
#[test]
fn a_bandwidth_that_a_row_does_not_have_is_none() {
    let text = NEW.replacen("busbw", "other", 1);
    let (head, _) = text.split_once("       0    24.00").unwrap();
    let sweep = one(&format!("{head}       0\n"));
    assert_eq!(times(&sweep), [(1024.0, 25.0)]);
}
