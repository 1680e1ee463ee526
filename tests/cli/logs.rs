//! What a run writes step by step, and `curves`, which draws it: of a run that is killed twice, too.

use crate::run::tiny_plan;
use crate::{Folder, program};
use serde_json::Value;
use std::process::{Child, Command};
use std::time::Duration;
use trainwright_spec::cluster::Cluster;
use trainwright_spec::mesh::Mesh;
use trainwright_spec::toml_text::TomlText;

/// A folder with the smallest plan, the same for data ranks, and a text.
fn prepared() -> Folder {
    let folder = Folder::new();
    let mut plan = tiny_plan();
    folder.write("plan.toml", &plan.to_toml());
    (plan.mesh, plan.stages) = (Mesh::new(1, 1, 2), vec!["2 none".parse().unwrap()]);
    folder.write("other.toml", &plan.to_toml());
    folder.write("text", &"the quick brown fox jumps over the lazy dog; ".repeat(40));
    folder
}

const RUN: &str = "--data text --learning-rate 0.01 --warmup 3 --rate-schedule cosine --decay-until 14 \
                   --validate-every 4 --validation-fraction 0.2";

/// The lines of a file of metrics.
fn lines(folder: &Folder, file: &str) -> Vec<Value> {
    folder.read(file).lines().map(|line| serde_json::from_str(line).unwrap()).collect()
}

/// What a step came to, without its speed: all digits, which tell numbers from each other to the last bit.
fn result(line: &Value) -> String {
    ["step", "loss", "gradient_norm", "learning_rate", "validation_loss"]
        .map(|key| line[key].to_string())
        .join(" ")
}

/// Waits for lines of a file, then kills the process that writes it.
fn kill_after(mut child: Child, folder: &Folder, file: &str, count: usize) {
    let known = || std::fs::read_to_string(folder.path(file)).map_or(0, |text| text.lines().count());
    while known() < count {
        assert!(child.try_wait().unwrap().is_none(), "it hangs until it is killed");
        std::thread::sleep(Duration::from_millis(5));
    }
    child.kill().unwrap();
    child.wait().unwrap();
}

/// The ranks hang in steps 7 and 11 until they are killed, so that the kills are always at the same place.
#[test]
fn a_run_that_is_killed_twice_ends_with_the_bits_of_an_undisturbed_one() {
    let folder = prepared();
    let complete =
        folder.run(&format!("run plan.toml {RUN} --steps 12 --metrics complete.jsonl --save complete"));
    assert_eq!((complete.code, complete.stderr.as_str()), (0, ""));
    let rest = "--metrics killed.jsonl --save killed --save-every 2 --patience 1000";
    let start = |more: &str| {
        program(&folder.path("."), &format!("run plan.toml {RUN} --steps 12 {rest} {more}")).spawn().unwrap()
    };
    kill_after(start("--drill stall:1:7:5"), &folder, "killed.jsonl", 6);
    // Step 10's checkpoint is written before its line.
    kill_after(start("--drill stall:0:11:5 --resume killed"), &folder, "killed.jsonl", 10);
    let ended = start("--resume killed").wait_with_output().unwrap();
    assert!(ended.status.success(), "{ended:?}");
    let results = |file: &str| -> Vec<String> { lines(&folder, file).iter().map(result).collect() };
    assert_eq!(results("killed.jsonl"), results("complete.jsonl"));
    for file in ["model.safetensors", "optimizer.safetensors"] {
        let [one, other] = ["complete", "killed"]
            .map(|run| std::fs::read(folder.path(&format!("{run}/step-00000012/{file}"))).unwrap());
        assert!(one == other, "{file} has other bits");
    }
    // Another plan goes on with the same numbers, but for rounding.
    let other = |run: &str, plan: &str| {
        let ran = folder.run(&format!("run {plan} {RUN} --steps 14 --metrics {run}.jsonl --resume {run}"));
        assert_eq!((ran.code, ran.stderr.as_str()), (0, ""));
        let last = lines(&folder, &format!("{run}.jsonl")).pop().unwrap();
        assert_eq!(last["step"], 14);
        last["loss"].as_f64().unwrap()
    };
    let [same, resharded] = [other("complete", "plan.toml"), other("killed", "other.toml")];
    assert!((same - resharded).abs() < 1e-4, "{same} {resharded}");

    let drawn = folder.run("curves killed.jsonl complete.jsonl --svg loss.svg --png loss.png --title both");
    assert_eq!((drawn.code, drawn.stderr.as_str()), (0, ""));
    let rows: Vec<&str> = drawn.stdout.lines().skip(2).collect();
    assert!(rows.len() == 2 && rows[0].starts_with("killed") && rows[0].contains("1-14"), "{}", drawn.stdout);
    let picture = folder.read("loss.svg");
    let names = ["both", "killed training", "complete validation"];
    assert!(names.iter().all(|name| picture.contains(name)) && picture.len() < 60_000, "{}", picture.len());
    assert_eq!(std::fs::read(folder.path("loss.png")).unwrap()[1..4], *b"PNG");
    let json = folder.run("curves complete.jsonl --json").stdout;
    let json: Value = serde_json::from_str::<Value>(&json).unwrap()["runs"].take();
    assert_eq!((&json[0]["first_step"], &json[0]["last_step"]), (&Value::from(1), &Value::from(14)));
    assert_eq!(json[0]["last_loss"], lines(&folder, "complete.jsonl")[13]["loss"]);
}

#[test]
fn files_of_metrics_that_are_none_are_refused_in_one_line() {
    let folder = Folder::new();
    folder.write("none.jsonl", "");
    folder.write("bad.jsonl", "{\"step\": 1, \"loss\": 5.5}\n{\"step\": 2}\n");
    let check = |arguments: &str, code, expected: &str| {
        let ran = folder.run(arguments);
        assert_eq!((ran.code, ran.stderr.lines().count()), (code, 1), "{}", ran.stderr);
        assert!(ran.stderr.contains(expected), "{}", ran.stderr);
    };
    check("curves missing.jsonl", 2, "cannot read missing.jsonl");
    check("curves none.jsonl", 2, "it has no step yet");
    check("curves bad.jsonl", 2, "`bad.jsonl:2` is not a step (missing field `loss`");
    folder.write("plan.toml", &tiny_plan().to_toml());
    check("run plan.toml --profile none", 2, "cannot read none/threads-");
    check(
        "run plan.toml --profile none --device emulated",
        2,
        "`--profile` is none; it forecasts ranks that are",
    );
    check(
        "run plan.toml --tensorboard plan.toml",
        1,
        "--tensorboard: cannot write plan.toml/events.out.tfevents.",
    );
    check("run plan.toml --openmetrics none/values.prom", 1, "--openmetrics: cannot write none/values.prom");
}

/// The catalog's GPUs stand for a machine that these cores are far slower than, with microbatches that fill it.
#[test]
fn a_run_that_is_slower_than_its_profile_says_so_once() {
    let folder = Folder::new();
    let mut plan = tiny_plan();
    (plan.micro_batch, plan.job.global_batch) = (512, 1024);
    folder.write("plan.toml", &plan.to_toml());
    folder.write("text", &"the quick brown fox jumps over the lazy dog; ".repeat(400));
    std::fs::create_dir(folder.path("machine")).unwrap();
    let cores = std::thread::available_parallelism().unwrap().get();
    let cluster = Cluster::from_name("h100-pcie-pair").unwrap().write();
    folder.write(&format!("machine/threads-{}.toml", (cores / 2).max(1)), &cluster);
    let kernels = "gpu,kernel,shape,precision,time_us,source,date,versions\nh100-80gb-pcie,gemm,m=8 n=8 k=8,fp32,1,,,\n";
    folder.write("machine/kernels.csv", kernels);
    let ran = folder.run("run plan.toml --data text --steps 16 --profile machine");
    assert_eq!((ran.code, ran.stderr.lines().count()), (0, 1), "{}", ran.stderr);
    assert!(ran.stderr.starts_with("slower than forecast: steps 4 to 13 take "), "{}", ran.stderr);
    let forecast = ran.stdout.lines().nth(1).unwrap();
    assert!(forecast.starts_with("forecast by machine: "), "{forecast}");
    assert!(ran.stdout.lines().last().unwrap().contains(" of model FLOPs; forecast "), "{}", ran.stdout);
    let quiet = folder.run("run plan.toml --data text --steps 16 --profile machine --quiet");
    assert_eq!((quiet.code, quiet.stderr.as_str()), (0, ""));
}

/// The bytes of event files, by name.
fn event_files(folder: &Folder, of: &str) -> Vec<Vec<u8>> {
    let entries = std::fs::read_dir(folder.path(of)).unwrap().map(|entry| entry.unwrap().path());
    let mut paths: Vec<_> = entries.collect();
    paths.sort();
    paths.iter().map(|path| std::fs::read(path).unwrap()).collect()
}

fn count(bytes: &[u8], of: &str) -> usize {
    bytes.windows(of.len()).filter(|window| *window == of.as_bytes()).count()
}

#[test]
fn a_run_writes_event_files_and_the_last_values() {
    let folder = prepared();
    let run = |rest: &str| {
        let logs = "--tensorboard events --openmetrics values.prom --log-interval 3";
        let ran = folder.run(&format!("run plan.toml {RUN} {logs} {rest}"));
        assert_eq!((ran.code, ran.stderr.as_str()), (0, ""));
    };
    run("--steps 4 --save ck");
    let [events] = &event_files(&folder, "events")[..] else { panic!("one file") };
    let tags = ["loss/training", "optimizer/learning_rate", "speed/tokens_per_second"];
    assert_eq!(tags.map(|tag| count(events, tag)), [4; 3]);
    assert_eq!([count(events, "loss/validation"), count(events, "brain.Event:2")], [1, 1]);
    let value = |name: &str| {
        let text = folder.read("values.prom");
        assert!(text.ends_with("\n# EOF\n"), "{text}");
        let start = format!("trainwright_{name}{{model=\"tiny\"}} ");
        let line = text.lines().find_map(|line| line.strip_prefix(&start));
        line.unwrap_or_else(|| panic!("{name}: {text}")).parse::<f64>().unwrap()
    };
    assert_eq!(value("step"), 4.0);
    assert!(
        value("loss") > 0.0 && value("peak_resident_bytes") > 1e6 && value("step_timestamp_seconds") > 1e9
    );
    let validation = value("validation_loss");
    // The sixth step has no validation but the fourth's stays the last one; the seventh, the last step, has one.
    run("--steps 7 --resume ck");
    assert_eq!(event_files(&folder, "events").len(), 2);
    assert_eq!(value("step"), 7.0);
    assert_ne!(value("validation_loss"), validation);
}

/// TensorBoard's own reader, where it is installed: `pip install tensorboard`.
#[test]
fn tensorboard_reads_the_event_files() {
    let folder = prepared();
    let run = format!("run plan.toml {RUN} --tensorboard events --metrics run.jsonl --steps");
    assert_eq!(folder.run(&format!("{run} 4 --save ck")).code, 0);
    assert_eq!(folder.run(&format!("{run} 8 --resume ck")).code, 0);
    let script = "
import sys
from tensorboard.backend.event_processing.event_accumulator import EventAccumulator
events = EventAccumulator(sys.argv[1])
events.Reload()
for event in events.Scalars('loss/training'):
    print(event.step, event.value)
";
    let python =
        Command::new("python3").args(["-c", script, "events"]).current_dir(folder.path(".")).output();
    let Some(read) = python.ok().filter(|read| read.status.success()) else {
        return println!("skipped: python3 has no tensorboard");
    };
    let read = String::from_utf8(read.stdout).unwrap();
    let read: Vec<(u64, f64)> = read
        .lines()
        .map(|line| line.split_once(' ').unwrap())
        .map(|(step, loss)| (step.parse().unwrap(), loss.parse().unwrap()))
        .collect();
    let written = lines(&folder, "run.jsonl");
    assert_eq!((read.len(), written.len()), (8, 8));
    for ((step, loss), line) in read.iter().zip(&written) {
        assert_eq!(*step, line["step"].as_u64().unwrap());
        // Event files have 32 bits.
        assert!((loss - line["loss"].as_f64().unwrap()).abs() < 1e-6, "{loss} {line}");
    }
}
