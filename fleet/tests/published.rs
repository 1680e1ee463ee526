//! Mean completion times that others published, and ours with the same jobs. `traces/published/multi_job/README.md` says where
//! jobs, speeds and times are from.

use std::collections::BTreeMap;
use std::path::Path;
use trainwright_fleet::instance::NodeKind;
use trainwright_fleet::online::audit::audit;
use trainwright_fleet::online::speeds::Speeds;
use trainwright_fleet::online::stats::stats;
use trainwright_fleet::online::{Question, simulate_all, trace};
use trainwright_fleet::policies::{POLICIES, policy};
use trainwright_fleet::throughputs;
use trainwright_spec::units::Seconds;

fn file(name: &str) -> String {
    let folder = Path::new(env!("CARGO_MANIFEST_DIR")).join("../traces/published/multi_job");
    std::fs::read_to_string(folder.join(name)).unwrap()
}

/// Published mean completion times in seconds by run and workload.
fn published() -> BTreeMap<(String, String), f64> {
    let mut times: BTreeMap<(String, String), Vec<f64>> = BTreeMap::new();
    for line in file("pollux_completion_times.csv").lines().skip(1) {
        let cells: Vec<&str> = line.split(',').collect();
        times.entry((cells[0].into(), cells[1].into())).or_default().push(cells[3].parse().unwrap());
    }
    assert!(times.values().all(|list| list.len() == 160));
    times.into_iter().map(|(key, list)| (key, list.iter().sum::<f64>() / 160.0)).collect()
}

/// The workload, what Tiresias, Optimus and our policy make of it, in seconds of mean completion time.
const TODAY: [(u32, f64, f64, f64); 5] = [
    (3, 3500.0, 3519.0, 2621.0),
    (4, 3274.0, 5964.0, 2633.0),
    (5, 3451.0, 5634.0, 2705.0),
    (6, 3357.0, 5206.0, 2454.0),
    (7, 5041.0, 7166.0, 3641.0),
];

/// The largest error of a mean completion time; the median one.
const ERRORS: (f64, f64) = (0.11, 0.02);

#[test]
fn tiresias_and_optimus_take_as_long_as_published_and_ours_less() {
    let kinds = [NodeKind { name: "aws-g4dn".into(), nodes: 16, gpus: 4 }];
    let speeds = Speeds::new(&throughputs::read(&file("pollux_throughputs.csv")).unwrap(), &kinds);
    let published = published();
    let mut errors = Vec::new();
    for (workload, tiresias, optimus, ours) in TODAY {
        let jobs = trace::read(&file(&format!("pollux_workload_{workload}.csv"))).unwrap();
        let (round, restart) = (Seconds::new(60.0), Seconds::new(30.0));
        let question = Question { kinds: &kinds, jobs: &jobs, users: &[], speeds: &speeds, round, restart };
        let outcomes = simulate_all(&question, &POLICIES).unwrap();
        let mean = |name: &str| {
            let place = POLICIES.iter().position(|policy| policy.name() == name).unwrap();
            stats(&question, &outcomes[place]).mean.get()
        };
        let makespan = |place: usize| stats(&question, &outcomes[place]).makespan.get();
        let for_makespan =
            POLICIES.iter().position(|policy| policy.name() == "trainwright-makespan").unwrap();
        let others = (0..POLICIES.len()).filter(|place| *place != for_makespan).map(makespan);
        let least = others.fold(f64::INFINITY, f64::min);
        let part = makespan(for_makespan) / least - 1.0;
        println!("workload {workload}: makespan {:+.1} % over the least other one", 100.0 * part);
        // On the third, jobs that nothing but an early start makes faster end last.
        assert!(part < if workload == 3 { 0.2 } else { -0.02 }, "workload {workload}: {part}");
        for (place, outcome) in outcomes.iter().enumerate() {
            let name = POLICIES[place].name();
            assert_eq!(audit(&question, outcome), Ok(()), "{name}, workload {workload}");
            if name != "trainwright" {
                assert!(mean("trainwright") < mean(name), "{name}, workload {workload}");
            }
        }
        for (name, today) in [("tiresias", tiresias), ("optimus", optimus), ("trainwright", ours)] {
            let found = mean(name);
            assert!(
                (found - today).abs() < 1.0,
                "{name}, workload {workload}: {found} s, {today} s until now"
            );
            if let Some(theirs) = published.get(&(format!("{name}-1.0"), format!("workload-{workload}"))) {
                println!(
                    "workload {workload} {name:9} {found:6.0} s, published {theirs:6.0} s: {:+.1} %",
                    100.0 * (found / theirs - 1.0)
                );
                errors.push((found / theirs - 1.0).abs());
            }
        }
    }
    errors.sort_by(f64::total_cmp);
    assert_eq!(errors.len(), 10);
    assert!(errors[9] <= ERRORS.0 && errors[5] <= ERRORS.1, "{errors:?}");
}

#[test]
fn policies_that_know_kinds_of_nodes_are_faster_on_the_jobs_of_gavels_cluster() {
    let kind = |name: &str, nodes: usize| NodeKind { name: name.into(), nodes, gpus: 4 };
    let kinds = [kind("v100", 2), kind("p100", 4), kind("k80", 6)];
    let speeds = Speeds::new(&throughputs::read(&file("gavel_throughputs.csv")).unwrap(), &kinds);
    let jobs = trace::read(&file("gavel_physical.csv")).unwrap();
    let (round, restart) = (Seconds::new(360.0), Seconds::new(30.0));
    let question = Question { kinds: &kinds, jobs: &jobs, users: &[], speeds: &speeds, round, restart };
    let outcomes = simulate_all(&question, &POLICIES).unwrap();
    let mean = |name: &str| {
        let place = POLICIES.iter().position(|of| of.name() == policy(name).unwrap().name()).unwrap();
        stats(&question, &outcomes[place]).mean.get()
    };
    for (policy, outcome) in POLICIES.iter().zip(&outcomes) {
        assert_eq!(audit(&question, outcome), Ok(()), "{}", policy.name());
        let stats = stats(&question, outcome);
        println!(
            "{:18} mean {:8.0} makespan {:8.0} restarts {}",
            policy.name(),
            stats.mean.get(),
            stats.makespan.get(),
            stats.restarts
        );
    }
    assert!(mean("trainwright") < mean("fifo"));
}
