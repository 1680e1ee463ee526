//! Tables of measured runs, kernels, collectives and requests.

use super::{CSV, TOML, Target, fate, of_text, reader, rows};
use crate::files;
use trainwright_evidence::forecasts::forecasts;
use trainwright_evidence::kernels::KernelTable;
use trainwright_evidence::peers;
use trainwright_evidence::runs::Table;
use trainwright_evidence::serving::ServingTable;
use trainwright_fleet::instance::{Choice, FleetJob, Instance, NodeKind, User};
use trainwright_fleet::objective::Objective;
use trainwright_fleet::online::audit::audit;
use trainwright_fleet::online::speeds::Speeds;
use trainwright_fleet::online::{Question, simulate_all, trace};
use trainwright_fleet::policies::POLICIES;
use trainwright_fleet::{jobs, observed, reschedule::reschedule, throughputs};
use trainwright_spec::calibration::Calibration;
use trainwright_spec::library::Library;
use trainwright_spec::units::Seconds;

/// The tables of kernels in the repository.
const KERNELS: [&str; 10] = [
    "custom_allreduce",
    "decode_attention",
    "gemm",
    "linear_attention",
    "mla",
    "moe",
    "moe_all_to_all",
    "prefill_attention",
    "sparse_attention",
    "gemm",
];

pub fn targets() -> Vec<Target> {
    vec![
        Target { inputs: 150, ..reader("runs", runs, CSV, &["zero2", "interleaved"], forecast_runs) },
        Target { inputs: 500, ..reader("kernels", kernels, CSV, &[], forecast_kernels) },
        Target { inputs: 120, ..reader("serving", serving, CSV, &[], forecast_serving) },
        reader(
            "peers",
            || vec![rows("traces/published/peers.csv", 900)],
            CSV,
            &[],
            |bytes| fate(peers::read(bytes)),
        ),
        Target {
            inputs: 500,
            ..of_text("fleet-arrivals", arrivals, CSV, &["weight", "restart_s"], run_jobs)
        },
        of_text("fleet-throughputs", || vec![speeds()], CSV, &["node"], |text| fate(throughputs::read(text))),
        of_text(
            "fleet-jobs",
            job_files,
            TOML,
            &["user", "max_gpus", "weight", "preempt", "plan", "rl", "serve", "hours"],
            |text| fate(jobs::read(text, "jobs")),
        ),
        Target { inputs: 500, ..of_text("fleet-observed", logs, CSV, &["stop", "up", "now"], go_on) },
    ]
}

fn job_files() -> Vec<String> {
    vec![
        "[defaults]\nmodel = \"gpt2\"\nseq = 512\nglobal_batch = 8\nuser = \"u\"\n[[user]]\nname = \"u\"\nmax_gpus = 8\n\
         weight = 2.0\n[[user]]\nname = \"v\"\n[[job]]\nname = \"a\"\ncopies = 2\nsteps = 9\n[[job]]\nname = \"b\"\n\
         user = \"v\"\ntokens = 1e6\nweight = 3\nafter = [\"a\"]\ndeadline_h = 4.5\n"
            .into(),
    ]
}

fn speeds() -> String {
    "profile,gpus,nodes,steps_per_s\np,1,1,1\np,2,1,1.9\np,2,2,1.7\np,4,2,3\n".into()
}

fn arrivals() -> Vec<String> {
    vec!["job,arrival_s,profile,gpus,steps,min_gpus,max_gpus,user\na,0,p,2,100,1,4,u\nb,5.5,p,4,300,4,4,u\nc,70,p,1,40,1,2,\n".into()]
}

/// Steps of all jobs at most, and the latest arrival, that are simulated here: more are allowed, and take long.
const MOST_STEPS: f64 = 1e5;

fn run_jobs(text: &str) -> Result<(), String> {
    let jobs = trace::read(text)?;
    let kinds = [NodeKind { name: "n".into(), nodes: 2, gpus: 2 }];
    let speeds = Speeds::new(&throughputs::read(&speeds()).unwrap(), &kinds);
    let (round, restart) = (Seconds::new(60.0), Seconds::new(30.0));
    let users = [User { name: "u".into(), max_gpus: Some(4) }];
    let question = Question { kinds: &kinds, jobs: &jobs, users: &users, speeds: &speeds, round, restart };
    let restarts = |job: &trace::Arrival| job.restart.map_or(0.0, Seconds::get);
    if jobs.iter().map(|job| job.steps + restarts(job)).sum::<f64>() > MOST_STEPS {
        return Ok(());
    }
    let outcomes = simulate_all(&question, &POLICIES).map_err(|error| error.to_string())?;
    outcomes.iter().for_each(|outcome| assert_eq!(audit(&question, outcome), Ok(())));
    Ok(())
}

fn logs() -> Vec<String> {
    vec![
        "time_s,event,name,value\n0,start,a,2@0\n5,progress,a,0.25\n9,down,0,\n9,start,b,1@1\n20,end,b,\n"
            .into(),
    ]
}

fn go_on(text: &str) -> Result<(), String> {
    let choice =
        |gpus, duration| Choice { kind: 0, gpus, duration, cost: 1.0, spread: vec![], plan: "p".into() };
    let job = |name: &str| FleetJob {
        name: name.into(),
        choices: vec![choice(1, 50), choice(2, 30)],
        release: 0,
        deadline: Some(100),
        weight: 1.0,
        after: vec![],
        user: Some(0),
        restart: Some(10),
    };
    let kinds = vec![NodeKind { name: "n".into(), nodes: 2, gpus: 2 }];
    let users = vec![User { name: "u".into(), max_gpus: Some(3) }];
    let fleet = Instance { kinds, jobs: vec![job("a"), job("b"), job("c")], users, contiguous: true };
    let seen = observed::read(text, &fleet)?;
    fate(reschedule(&fleet, Objective::Makespan, &seen, &[]))
}

fn runs() -> Vec<Vec<u8>> {
    let published = rows("traces/published/training.csv", 400);
    let tuned = rows("traces/published/post_training/training.csv", 30);
    vec![files::RUNS.into(), published, tuned]
}

/// Rows of a damaged table at most that are simulated.
const SIMULATED: usize = 4;

fn forecast_runs(bytes: &[u8]) -> Result<(), String> {
    let table = Table::read(bytes).map_err(|error| error.to_string())?;
    let runs: Vec<_> = table.runs().collect();
    let mut plans = Vec::new();
    for run in &runs {
        let planned = run.as_ref().map_err(ToString::to_string);
        let plan =
            planned.and_then(|run| run.completed().and_then(|run| run.run.plan()).map_err(|e| e.to_string()));
        plans.push(plan);
    }
    let small = |plan: &Result<trainwright_spec::plan::Plan, String>| {
        plan.as_ref()
            .is_ok_and(|plan| plan.microbatches() * plan.model.layers() < 2000 && plan.mesh.ranks() < 4096)
    };
    let some: Vec<_> =
        runs.iter().zip(&plans).filter(|(_, plan)| small(plan)).map(|(run, _)| run.clone()).collect();
    let calibration = Calibration::from_name("published").unwrap();
    forecasts(&some[..some.len().min(SIMULATED)], &calibration);
    fate(plans.into_iter().collect::<Result<Vec<_>, _>>()).or_else(|fault| match fault.lines().count() {
        1 => Ok(()),
        _ => Err(fault),
    })
}

fn kernels() -> Vec<Vec<u8>> {
    KERNELS.iter().map(|name| rows(&format!("traces/published/inference/{name}.csv"), 100)).collect()
}

fn forecast_kernels(bytes: &[u8]) -> Result<(), String> {
    let table = KernelTable::read(bytes).map_err(|error| error.to_string())?;
    for forecast in table.forecasts(Library::all()).into_iter().flatten() {
        assert!(forecast.time.get().is_finite(), "{forecast:?}");
    }
    Ok(())
}

fn serving() -> Vec<Vec<u8>> {
    vec![rows("traces/published/inference/serving.csv", 150)]
}

/// A case with more tokens than this is not simulated here: it is allowed, and takes long.
const MOST_TOKENS: usize = 1 << 20;

fn forecast_serving(bytes: &[u8]) -> Result<(), String> {
    let table = ServingTable::read(bytes).map_err(|error| error.to_string())?;
    for row in 0..table.len().min(2) {
        let size = |column: &str| table.text(row, column).trim().parse::<f64>().unwrap_or(1.0).max(1.0);
        let tokens = ["input_len", "output_len"].map(size).into_iter().sum::<f64>()
            * size("concurrency").max(size("batch")).max(size("request_rate"));
        if let Ok(case) = table.case(row)
            && tokens < MOST_TOKENS as f64
        {
            let _ = trainwright_evidence::serving::forecast(&case);
        }
    }
    Ok(())
}
