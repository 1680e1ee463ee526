//! Kills and stalls at random moments, under plans of every axis and every schedule, with threads and with processes. The run
//! ends and names the rank, or starts again; no process and so no port, and no temporary file is left, and the last whole
//! checkpoint goes on with the bits of an undisturbed run. `executor/tests/suite/drills.rs` has faults of threads that are ranks.

use crate::interrupts::names;
use crate::kills::{Random, each_step, is_used, last, restarted, wait_for_moment, wait_until};
use crate::long::cases;
use crate::processes::signal;
use crate::run::{ended, launched_by, tiny_plan};
use crate::{Folder, Ran, program};
use std::process::{Child, Command, Stdio};
use trainwright_spec::mesh::Mesh;
use trainwright_spec::model::hf::from_hugging_face;
use trainwright_spec::plan::{Plan, Recompute, StageBlocks};
use trainwright_spec::schedule::SCHEDULES;
use trainwright_spec::stack::Stack;

const DENSE: &str = r#"{"model_type": "llama", "hidden_size": 32, "num_attention_heads": 4, "num_key_value_heads": 2,
    "num_hidden_layers": 4, "intermediate_size": 48, "vocab_size": 256, "hidden_act": "silu",
    "tie_word_embeddings": false, "max_position_embeddings": 64}"#;
const EXPERTS: &str = r#"{"model_type": "mixtral", "hidden_size": 32, "num_attention_heads": 4,
    "num_key_value_heads": 2, "num_hidden_layers": 4, "intermediate_size": 24, "vocab_size": 256, "hidden_act": "silu",
    "tie_word_embeddings": false, "max_position_embeddings": 64, "num_local_experts": 4, "num_experts_per_tok": 2,
    "sliding_window": null}"#;

/// A plan of four blocks for a mesh of tensor, pipeline and data ranks, and what else is changed.
fn plan(model: &str, mesh: [usize; 3], stages: usize, change: impl Fn(&mut Plan)) -> Plan {
    let mut plan = tiny_plan();
    plan.model = from_hugging_face(model, "tiny").unwrap();
    plan.stack = Stack::from_name("trainwright").unwrap();
    plan.job.optimizer = "adamw".into();
    (plan.job.sequence, plan.job.global_batch, plan.micro_batch) = (16, 8, 1);
    plan.mesh = Mesh::new(mesh[0], mesh[1], mesh[2]);
    plan.virtual_stages = stages / mesh[1];
    plan.stages = vec![StageBlocks(vec![Recompute::None; 4 / stages]); stages];
    change(&mut plan);
    plan.cluster.node.gpus.value = plan.mesh.ranks();
    plan
}

/// Every schedule that flushes, every way to divide state and sequences, experts, and mixes of them.
fn plans() -> Vec<(String, Plan)> {
    let of = |name: &str, mesh, stages, change: &dyn Fn(&mut Plan)| {
        (name.to_string(), plan(DENSE, mesh, stages, change))
    };
    let mut plans = vec![
        of("tensor", [2, 1, 1], 1, &|_| {}),
        of("tensor, sequence parallel", [2, 1, 1], 1, &|plan| plan.sequence_parallel = true),
        of("tensor, pipeline", [2, 2, 1], 2, &|_| {}),
        of("tensor, data, zero1", [2, 1, 2], 1, &|plan| plan.data_sharding = "zero1".into()),
        of("pipeline, data, zero2", [1, 2, 2], 2, &|plan| plan.data_sharding = "zero2".into()),
        of("recomputation", [1, 2, 1], 2, &|plan| {
            plan.stages = vec![StageBlocks(vec![Recompute::Full; 2]); 2];
        }),
        of("tensor, context", [2, 1, 1], 1, &|plan| {
            (plan.mesh.context, plan.context_scheme) = (2, "ring".into())
        }),
        of("hsdp", [1, 1, 4], 1, &|plan| (plan.data_sharding, plan.mesh.shard) = ("hsdp".into(), Some(2))),
    ];
    for scheme in ["none", "zero1", "zero2", "zero3", "fsdp"] {
        plans.push(of(scheme, [1, 1, 2], 1, &|plan| plan.data_sharding = scheme.into()));
    }
    for scheme in ["ring", "all-gather", "ulysses"] {
        let change = |plan: &mut Plan| (plan.mesh.context, plan.context_scheme) = (2, scheme.into());
        plans.push(of(&format!("context, {scheme}"), [1, 1, 1], 1, &change));
    }
    for (name, mesh) in [("experts", [1, 1, 2]), ("experts, pipeline", [1, 2, 2])] {
        plans.push((name.into(), plan(EXPERTS, mesh, mesh[1], |plan| plan.mesh.expert = 2)));
    }
    for schedule in SCHEDULES.iter().filter(|schedule| schedule.flushes()) {
        // Some have one stage on a rank, others two.
        let with =
            |stages| of(schedule.name(), [1, 2, 1], stages, &|plan| plan.schedule = schedule.name().into());
        let legal = [2, 4].map(with).into_iter().find(|(_, plan)| plan.check("plan").is_ok());
        plans.push(legal.unwrap_or_else(|| panic!("{}: no plan of two ranks", schedule.name())));
    }
    for (name, plan) in &plans {
        plan.check(name).unwrap();
    }
    plans
}

/// What happens, and to whom.
#[derive(Debug, Clone, Copy)]
enum Accident {
    /// A process of the launched ones is killed; the others end.
    Kill,
    /// The process of a rank that a supervisor starts again is killed.
    KillUnderSupervisor,
    /// A process of the launched ones is stopped: it keeps its connections and says nothing.
    Stop,
    /// The process whose threads are the ranks is killed, and a supervisor starts it again.
    KillThreads,
    /// The process of a rank that a supervisor starts again is stopped.
    StopUnderSupervisor,
}

const ACCIDENTS: [Accident; 5] = [
    Accident::Kill,
    Accident::KillUnderSupervisor,
    Accident::Stop,
    Accident::KillThreads,
    Accident::StopUnderSupervisor,
];

/// Runs until the accident and its consequences are over. Ranks are from 0 to `ranks` - 1.
fn happen(folder: &Folder, accident: Accident, ranks: usize, random: &mut Random, what: &str) {
    let is_stop = matches!(accident, Accident::Stop | Accident::StopUnderSupervisor);
    // Short where it is waited for; elsewhere a machine that is busy with other things must not look like a stall.
    let patience = if is_stop { 5 } else { 60 };
    let run = format!(
        "run plan.toml --save ck --save-every 1 --metrics metrics --log-interval 1000000 --patience {patience} --steps 1000000"
    );
    let rank = random.below(ranks as u64) as usize;
    let what = format!("{what}, rank {rank}");
    let command = |more: &str| -> Command {
        let mut command = program(&folder.path(""), &format!("{run} {more}"));
        command.env("TMPDIR", folder.path("tmp")).stdout(Stdio::null());
        command
    };
    let name = if is_stop { "-STOP" } else { "-KILL" };
    match accident {
        Accident::Kill | Accident::Stop => {
            let mut processes = launched_by(|| command("--transport tcp"), ranks);
            wait_for_moment(folder, random);
            let mut culprit = processes.remove(rank);
            signal(&culprit, name);
            let gone = |child: &mut Child| child.try_wait().unwrap().is_some();
            wait_until(&format!("{what}: the others do not end"), || processes.iter_mut().all(gone));
            let others: Vec<Ran> = processes.into_iter().map(ended).collect();
            // A process that is stopped does not end by itself.
            let _ = culprit.kill();
            culprit.wait().unwrap();
            let says_why = |other: &Ran| other.code == 1 && other.stderr.lines().count() == 1;
            assert!(others.iter().all(says_why), "{what}: {others:?}");
            let is_named = |other: &Ran| other.stderr.contains(&format!("rank {rank} "));
            assert!(others.iter().any(is_named), "{what}: {others:?}");
        }
        Accident::KillThreads => {
            let supervisor = command("--restarts 1").spawn().unwrap();
            restarted(folder, supervisor, None, name, random, &what);
        }
        Accident::KillUnderSupervisor | Accident::StopUnderSupervisor => {
            let supervisor = command("--restarts 1 --launch").spawn().unwrap();
            let ran = restarted(folder, supervisor, Some(rank), name, random, &what);
            assert!(ran.stderr.contains(&format!("rank {rank}")), "{what}: {ran:?}");
        }
    }
}

/// An accident under each of a few plans, 200 in long tests; `TRAINWRIGHT_PLAN_KILLS` asks for another number.
#[test]
fn whichever_plan_runs_a_kill_or_a_stall_loses_nothing() {
    let plans = plans();
    let count = cases("TRAINWRIGHT_PLAN_KILLS", 3, 200);
    for number in 0..count {
        // Plans are spread by a step that their number does not divide; each meets each accident in turn.
        let ((name, plan), accident) =
            (&plans[7 * number % plans.len()], ACCIDENTS[number % ACCIDENTS.len()]);
        let what = format!("accident {number}, {accident:?}, {name}");
        println!("{what}");
        let folder = Folder::new();
        folder.write("plan.toml", &plan.to_toml());
        std::fs::create_dir(folder.path("tmp")).unwrap();
        happen(&folder, accident, plan.mesh.ranks(), &mut Random(number as u64), &what);
        wait_until(&format!("{what}: a process is left"), || !is_used(&folder));
        assert!(names(&folder, "tmp").is_empty(), "{what}: {:?}", names(&folder, "tmp"));
        let done = last(&folder);
        let rest = folder.run(&format!(
            "run plan.toml --resume ck --save ck --save-every 1 --metrics rest --log-interval 1000000 --steps {}",
            done + 1
        ));
        // A checkpoint whose checksum is wrong would be a line on standard error.
        assert_eq!((rest.code, rest.stderr.as_str()), (0, ""), "{what}");
        assert!(
            names(&folder, "ck").iter().all(|name| name.starts_with("step-")),
            "{what}: {:?}",
            names(&folder, "ck")
        );
        let resumed = each_step(&folder.path("rest"));
        assert_eq!(resumed.iter().map(|(step, _)| *step).collect::<Vec<_>>(), [done + 1], "{what}");
        let undisturbed = folder
            .run(&format!("run plan.toml --metrics undisturbed --log-interval 1000000 --steps {}", done + 1));
        assert_eq!(undisturbed.code, 0, "{what}: {undisturbed:?}");
        let undisturbed = each_step(&folder.path("undisturbed"));
        for (step, numbers) in each_step(&folder.path("metrics")).into_iter().chain(resumed) {
            // What was done behind the last checkpoint is done again.
            let expected = undisturbed.iter().find(|(other, _)| *other == step);
            assert!(
                expected.is_none_or(|(_, expected)| *expected == numbers),
                "{what}, step {step}: {numbers:?}"
            );
        }
    }
}
