//! `run` with a process for each rank: how launchers are understood, and what becomes of the others when one is killed or
//! hangs.

use crate::long::cases;
use crate::run::{ended, launched, losses, tiny_plan};
use crate::{Folder, Ran, program};
use std::io::Write;
use std::process::{Child, Command};
use std::time::{Duration, Instant};
use trainwright_spec::mesh::Mesh;

/// A folder with a plan of four ranks.
pub fn four_ranks() -> Folder {
    let folder = Folder::new();
    let mut plan = tiny_plan();
    plan.mesh = Mesh::new(1, 2, 2);
    plan.cluster.node.gpus.value = 4;
    folder.write("plan.toml", &plan.to_toml());
    folder
}

/// Until rank 0 has begun with what has that name.
pub fn wait_for(folder: &Folder, name: &str) {
    let began = Instant::now();
    while !folder.path(name).exists() {
        assert!(began.elapsed() < Duration::from_secs(60), "there is no {name}");
        std::thread::sleep(Duration::from_millis(5));
    }
}

#[test]
fn mpi_processes_are_ranks_by_default() {
    let folder = four_ranks();
    let expected = losses(&folder.run("run plan.toml --steps 2").stdout);
    assert_eq!(expected.len(), 2);
    let check = |names: [&str; 3], rest: &str| {
        let listener = std::net::TcpListener::bind(("127.0.0.1", 0)).unwrap();
        let port = listener.local_addr().unwrap().port().to_string();
        drop(listener);
        let start = |rank: usize| {
            let mut command = program(&folder.path(""), &format!("run plan.toml --steps 2 {rest}"));
            let [rank_variable, world, local] = names;
            let numbers = [(rank_variable, rank.to_string()), (world, "4".into()), (local, "4".into())];
            command.envs(numbers).env("MASTER_PORT", &port).spawn().unwrap()
        };
        let ran: Vec<Ran> = (0..4).map(start).collect::<Vec<_>>().into_iter().map(ended).collect();
        assert!(ran.iter().all(|ran| ran.code == 0 && ran.stderr.is_empty()), "{ran:?}");
        assert_eq!(losses(&ran[0].stdout), expected);
        assert!(ran[1..].iter().all(|ran| ran.stdout.is_empty()), "rank 0 alone prints");
    };
    // Without `--transport` a program with the feature `mpi` would ask MPI.
    let rest = if cfg!(feature = "mpi") { "--transport tcp" } else { "" };
    check(["OMPI_COMM_WORLD_RANK", "OMPI_COMM_WORLD_SIZE", "OMPI_COMM_WORLD_LOCAL_SIZE"], rest);
    check(["PMI_RANK", "PMI_SIZE", "MPI_LOCALNRANKS"], rest);
    check(["SLURM_PROCID", "SLURM_NTASKS", "SLURM_STEP_TASKS_PER_NODE"], "--transport tcp");
}

/// A kill, fifty in long tests; `TRAINWRIGHT_DRILLS` asks for another number.
#[test]
fn after_a_kill_the_others_end_soon_and_the_run_can_be_resumed() {
    let drills = cases("TRAINWRIGHT_DRILLS", 1, 50) as u64;
    let folder = four_ranks();
    for number in 0..drills {
        let resume = if number == 0 { "" } else { "--resume ck" };
        let run = format!("run plan.toml --save ck --save-every 1 {resume}");
        let mut processes = launched(&folder, &format!("{run} --transport tcp --steps 1000000"), 4);
        wait_for(&folder, "ck");
        // Any number that spreads well over ranks and times will do.
        let random = u64::wrapping_mul(number + 1, 0x9E37_79B9_7F4A_7C15) >> 20;
        std::thread::sleep(Duration::from_millis(300 + random / 4 % 400));
        let mut killed = processes.remove((random % 4) as usize);
        killed.kill().unwrap();
        killed.wait().unwrap();
        let others: Vec<Ran> = processes.into_iter().map(ended).collect();
        for other in &others {
            let said = ["is gone", "another rank stopped"].iter().any(|why| other.stderr.contains(why));
            assert!(other.code == 1 && said, "{number}: {other:?}");
        }
        let last = || {
            let entries = std::fs::read_dir(folder.path("ck")).unwrap();
            let names = entries.map(|entry| entry.unwrap().file_name().into_string().unwrap());
            let mut names: Vec<String> = names.collect();
            names.sort();
            names
        };
        let complete = |name: &&String| name.starts_with("step-");
        let Some(done) =
            last().iter().rfind(complete).map(|name| name["step-".len()..].parse::<usize>().unwrap())
        else {
            // Killed before the first checkpoint was complete: the next drill begins anew.
            std::fs::remove_dir_all(folder.path("ck")).unwrap();
            continue;
        };
        let rest =
            folder.run(&format!("run plan.toml --save ck --save-every 1 --resume ck --steps {}", done + 1));
        assert_eq!((rest.code, rest.stderr.as_str()), (0, ""));
        assert!(rest.stdout.contains(&format!("step {:5}", done + 1)), "{}", rest.stdout);
        assert!(last().iter().all(|name| complete(&name)), "{:?}", last());
    }
}

/// Two processes of a run, each with arguments and variables of its own.
fn two(folder: &Folder, of_rank: [&str; 2], variables: [&[(&str, &str)]; 2]) -> [Child; 2] {
    let listener = std::net::TcpListener::bind(("127.0.0.1", 0)).unwrap();
    let port = listener.local_addr().unwrap().port().to_string();
    drop(listener);
    [0, 1].map(|rank| {
        let run = format!("run plan.toml --transport tcp --steps 2 {}", of_rank[rank]);
        let place = [("WORLD_SIZE", "2"), ("MASTER_PORT", &port), ("RANK", ["0", "1"][rank])];
        let mut command = program(&folder.path(""), &run);
        command.envs(place).envs(variables[rank].iter().copied()).spawn().unwrap()
    })
}

/// A folder with a plan of two ranks.
pub fn of_two() -> Folder {
    let folder = Folder::new();
    folder.write("plan.toml", &tiny_plan().to_toml());
    folder
}

/// Everything that must agree is compared, and both processes say what differs.
#[test]
fn processes_that_differ_do_not_train_together() {
    let folder = of_two();
    // As many bytes, of which one differs; and checkpoints of as many steps with different weights.
    folder.write("one", &"the quick brown fox ".repeat(20));
    folder.write("two", &"the quick brown fix ".repeat(20));
    for seed in [1, 2] {
        assert_eq!(folder.run(&format!("run plan.toml --steps 1 --seed {seed} --save ck{seed}")).code, 0);
    }
    let check = |of_rank: [&str; 2], expected: &str| {
        let ran = two(&folder, of_rank, [&[], &[]]).map(ended);
        for ran in &ran {
            assert_eq!((ran.code, ran.stderr.lines().count()), (2, 1), "{ran:?}");
            let all = ["error: rank 1 cannot train with rank 0", expected];
            assert!(all.iter().all(|text| ran.stderr.contains(text)), "{ran:?}");
        }
    };
    check(["--data one", "--data two"], "`data.fingerprint` is ");
    check(["--learning-rate 0.5", ""], "`settings.learning_rate.peak` is 0.0006");
    check(
        ["--weight-decay 0.5", "--warmup 3"],
        "`settings.learning_rate.warmup` is 3 on rank 1 and 0 on rank 0",
    );
    check(["--seed 1", "--seed 2"], "`settings.seed` is 2 on rank 1 and 1 on rank 0");
    check(["", "--save ck"], "`settings.saving.folder` is ck on rank 1 and absent on rank 0");
    check(["", "--graph off"], "`settings.graph` is false on rank 1 and true on rank 0");
    check(["--deterministic", ""], "`settings.deterministic` is false on rank 1 and true on rank 0");
    check(["--from ck1/step-00000001", "--from ck2/step-00000001"], "`start` is the weights with checksum ");
    check(["--resume ck1", "--resume ck2"], "`start` is step 1 with checksum ");
    let again = two(&folder, ["--resume ck1"; 2], [&[], &[]]).map(ended);
    assert!(again.iter().all(|ran| ran.code == 0 && ran.stderr.is_empty()), "{again:?}");
}

#[test]
fn a_stranger_is_dropped_with_a_line_and_the_run_goes_on() {
    let folder = of_two();
    let expected = losses(&folder.run("run plan.toml --steps 2").stdout);
    let listener = std::net::TcpListener::bind(("127.0.0.1", 0)).unwrap();
    let port = listener.local_addr().unwrap().port();
    drop(listener);
    let start = |rank: &str, token: &str| {
        let place = [("WORLD_SIZE", "2"), ("MASTER_PORT", &port.to_string()), ("RANK", rank)];
        let mut command = program(&folder.path(""), "run plan.toml --transport tcp --steps 2");
        command.envs(place).env("TRAINWRIGHT_TOKEN", token).spawn().unwrap()
    };
    let first = start("0", "secret");
    let mut scanner = loop {
        if let Ok(scanner) = std::net::TcpStream::connect(("127.0.0.1", port)) {
            break scanner;
        }
    };
    scanner.write_all(b"GET / HTTP/1.1\r\nHost: somebody\r\n\r\n").unwrap();
    let guess = ended(start("1", "guess"));
    assert!(guess.code == 1 && guess.stderr.contains("is TRAINWRIGHT_TOKEN the same?"), "{guess:?}");
    let second = ended(start("1", "secret"));
    let first = ended(first);
    assert_eq!((first.code, second.code, second.stderr.as_str()), (0, 0, ""), "{first:?}");
    assert_eq!(losses(&first.stdout), expected);
    for said in ["is not what a rank of this version says", "its TRAINWRIGHT_TOKEN is another one"] {
        assert!(first.stderr.contains(said), "{first:?}");
    }
    assert_eq!(first.stderr.lines().count(), 2, "{first:?}");
    let empty = ended(start("0", " "));
    assert!(empty.code == 2 && empty.stderr.contains("TRAINWRIGHT_TOKEN is a secret"), "{empty:?}");
}

/// Sends a signal as a shell does.
pub fn signal(child: &Child, name: &str) {
    signal_process(child.id(), name);
}

pub fn signal_process(number: u32, name: &str) {
    assert!(Command::new("kill").args([name, &number.to_string()]).status().unwrap().success());
}

#[test]
fn a_process_that_hangs_ends_the_others_with_its_rank_and_op() {
    let folder = four_ranks();
    let run = "run plan.toml --transport tcp --patience 3 --steps 1000000";
    let check = |processes: Vec<Child>, others: &[usize], expected: &str| {
        let ran: Vec<Ran> = processes.into_iter().map(ended).collect();
        assert!(others.iter().all(|other| ran[*other].code == 1), "{ran:?}");
        assert!(ran[others[0]].stderr.contains(expected), "{ran:?}");
    };
    // The process goes on and says so, its rank does not.
    let drill = launched(&folder, &format!("{run} --drill stall:1:2:20"), 4);
    check(drill, &[0, 1, 2, 3], "rank 1 stopped in step 2 at `");
    // The process does not run any more, though its connections stand.
    let mut processes = launched(&folder, &format!("{run} --save ck --save-every 1"), 4);
    wait_for(&folder, "ck");
    // All have said something by then.
    std::thread::sleep(Duration::from_secs(2));
    signal(&processes[2], "-STOP");
    let mut stopped = processes.remove(2);
    check(processes, &[0, 1, 2], "nothing has come from its process for 3 s");
    stopped.kill().unwrap();
    stopped.wait().unwrap();
}
