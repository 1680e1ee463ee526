//! Damaged files into the program: it answers, or refuses in one line, within limits of memory and processor time.

use super::{Content, files, fixture, seeds};
use std::path::Path;
use std::process::{Command, Output};
use std::sync::Mutex;
use std::sync::atomic::{AtomicUsize, Ordering};

/// Mutations of each file.
const COUNT: u64 = 24;

/// Limits of a command: KiB of addresses, and seconds of a processor. The largest answer to these small files needs a
/// hundredth of either.
#[cfg(unix)]
const LIMITS: [(&str, u64); 2] = [("-v", 8 << 20), ("-t", 60)];

/// A command, its damaged file, and the other files of the folder.
struct Case {
    /// With the damaged file's name.
    command: String,
    damaged: (&'static str, Content),
}

/// Pins that leave the planner one candidate or two.
const PINS: &str = "--seq 64 --global-batch 8 --tensor 1 --pipeline 1 --micro-batch 1 --recompute none --data-sharding zero1";

fn cases() -> Vec<Case> {
    let case = |command: &str, name: &'static str, content: Content| Case {
        command: command.replace("FILE", name),
        damaged: (name, content),
    };
    let text = |content: &str| Content::Text(content.into());
    let import = "import FILE --out out.toml --cluster dgx-a100 --from";
    let plan = files::plan().to_toml();
    vec![
        case(&format!("{import} megatron-lm"), "exported.sh", Content::Text(files::exported("megatron-lm"))),
        case(&format!("{import} megatron-lm"), "experts.sh", text(files::MEGATRON)),
        case(&format!("{import} megatron-lm"), "stages.sh", text(files::MEGATRON_STAGES)),
        case(
            &format!("{import} torchtitan --model config.json"),
            "titan.toml",
            Content::Text(files::exported("torchtitan")),
        ),
        case(
            &format!("{import} deepspeed --model config.json --seq 64"),
            "deepspeed.json",
            Content::Text(files::exported("deepspeed")),
        ),
        case(
            "replay FILE --groups groups.json --cluster dgx-a100",
            "own.0.et",
            Content::Bytes(files::chakra().0),
        ),
        case(
            "replay trace.0.et --groups FILE --cluster dgx-a100",
            "own-groups.json",
            Content::Text(groups()),
        ),
        case("profile FILE --gpu a100-80gb-sxm --out out.csv", "kineto.json", text(files::KINETO)),
        case("compare FILE --plan plan.toml", "compared.json", text(files::KINETO)),
        case("profile FILE --gpu cpu --out out.csv", "trace.json.gz", fixture("gpt-2-ranks.json.gz")),
        case(
            "profile FILE --gpu a100-80gb-sxm --precision bf16 --out out.csv",
            "nsight.sqlite",
            fixture("two-steps.sqlite"),
        ),
        case(
            "network --cluster dgx-a100:2 --log FILE --write-profile out.toml",
            "nccl.log",
            text(files::NCCL),
        ),
        case("predict FILE --out out.csv", "cases.csv", text(files::RUNS)),
        case("fit FILE --quality A,B --out out.toml", "fit.csv", text(files::RUNS)),
        case(&format!("plan --model FILE --cluster dgx-a100 {PINS}"), "own.json", text(files::CONFIG)),
        case(
            &format!("plan --model config.json --cluster FILE {PINS}"),
            "cluster.toml",
            Content::Text(files::cluster()),
        ),
        case(
            &format!("plan --model config.json --cluster dgx-a100 --profile FILE {PINS}"),
            "network.toml",
            text(files::NETWORK),
        ),
        case(
            &format!("plan --model config.json --cluster dgx-a100 --calibration FILE {PINS}"),
            "calibration.toml",
            text(files::CALIBRATION),
        ),
        case(
            "plan --model config.json --cluster dgx-a100 --seq 64 --global-batch 8 --tensor 1 --choices FILE",
            "choices.toml",
            text(files::CHOICES),
        ),
        case("simulate FILE", "own.toml", Content::Text(plan.clone())),
        case("simulate plan.toml --profile FILE", "kernels.csv", text(files::KERNELS)),
        case("simulate mixture.toml --expert-load FILE", "load.csv", text(files::LOAD)),
        case("simulate plan.toml --schedule-csv FILE", "schedule.csv", text(files::SCHEDULE)),
        case("what-if --plan FILE --vary micro_batch=1,2 --tokens 1B", "varied.toml", Content::Text(plan)),
        case("goodput FILE --tokens 1e9", "lost.toml", Content::Text(files::plan().to_toml())),
        case(
            "export FILE --to megatron-lm --out out.sh",
            "exported.toml",
            Content::Text(files::plan().to_toml()),
        ),
    ]
}

fn groups() -> String {
    serde_json::to_string(&files::chakra().1).unwrap()
}

#[test]
fn no_file_makes_a_command_panic_or_ask_for_more_than_there_is() {
    let folder = tempfile::tempdir().unwrap();
    for (name, content) in [
        ("plan.toml", files::plan().to_toml().into_bytes()),
        ("mixture.toml", files::mixture().to_toml().into_bytes()),
        ("config.json", files::CONFIG.into()),
        ("groups.json", groups().into()),
        ("trace.0.et", files::chakra().0),
    ] {
        std::fs::write(folder.path().join(name), content).unwrap();
    }
    let cases = cases();
    let (next, wrong) = (AtomicUsize::new(0), Mutex::new(Vec::new()));
    let workers = std::thread::available_parallelism().map_or(1, usize::from);
    std::thread::scope(|scope| {
        for _ in 0..workers {
            scope.spawn(|| {
                while let Some(case) = cases.get(next.fetch_add(1, Ordering::Relaxed)) {
                    wrong.lock().unwrap().extend(check(folder.path(), case));
                }
            });
        }
    });
    let wrong = wrong.into_inner().unwrap();
    assert!(wrong.is_empty(), "{} wrong:\n{}", wrong.len(), wrong.join("\n\n"));
}

/// The fault in how the command reads the file, intact and damaged.
fn check(folder: &Path, Case { command, damaged: (name, content) }: &Case) -> Vec<String> {
    let mut wrong = Vec::new();
    let path = folder.join(name);
    let mut take = |seed: Option<u64>, content: &[u8]| {
        std::fs::write(&path, content).unwrap();
        let ran = run(folder, command);
        let said = String::from_utf8_lossy(&ran.stderr).into_owned();
        let refused = said.lines().filter(|line| line.starts_with("error: ")).count();
        let right = match ran.status.code() {
            Some(0) => true,
            Some(2 | 3) => seed.is_some() && refused <= 1 && !said.contains("panicked"),
            _ => false,
        };
        // A refusal is one line, behind remarks.
        let right = right && (ran.status.code() != Some(2) || (refused == 1 && said.ends_with('\n')));
        if !right {
            let kept =
                std::env::temp_dir().join(format!("trainwright-mutation-{}-{name}", seed.unwrap_or(0)));
            std::fs::write(&kept, content).unwrap();
            let start: String = said.chars().take(600).collect();
            wrong.push(format!("{command}: {}: {start}\n{} is the file", ran.status, kept.display()));
        }
    };
    take(None, &content.bytes());
    for seed in seeds(command, COUNT) {
        take(Some(seed), &content.damaged(seed));
    }
    wrong
}

#[cfg(unix)]
fn run(folder: &Path, command: &str) -> Output {
    let limits: String = LIMITS.iter().map(|(flag, most)| format!("ulimit {flag} {most}; ")).collect();
    let line = format!("{limits}exec \"$0\" \"$@\"");
    let mut shell = Command::new("sh");
    shell.args(["-c", &line, env!("CARGO_BIN_EXE_trainwright")]).args(command.split(' '));
    shell.current_dir(folder).output().unwrap()
}

#[cfg(not(unix))]
fn run(folder: &Path, command: &str) -> Output {
    Command::new(env!("CARGO_BIN_EXE_trainwright"))
        .args(command.split(' '))
        .current_dir(folder)
        .output()
        .unwrap()
}
