//! The same question over one thread, two and eight gives the same bytes.

use crate::{Folder, program, small_plan};
use std::fs;

#[test]
fn answers_do_not_depend_on_the_number_of_threads() {
    let folder = Folder::new();
    folder.write("plan.toml", &small_plan().to_toml());
    let runs = include_str!("../../traces/published/training.csv");
    let mut lines = runs.lines();
    let header = lines.next().unwrap();
    let some: Vec<&str> = lines.step_by(300).take(12).collect();
    folder.write("runs.csv", &format!("{header}\n{}\n", some.join("\n")));
    for command in [
        "simulate plan.toml --json --trace OUT",
        "plan --model gpt2 --cluster dgx-a100:1 --seq 256 --global-batch 16 --json --out OUT",
        "predict runs.csv --json --out OUT",
        "serve-plan --model llama-3-8b --cluster dgx-a100:2 --rate 5 --json --svg OUT",
        "serve --model llama-3-8b --cluster dgx-a100 --clients 4 --requests 8 --json --out OUT",
        "what-if --plan plan.toml --vary micro_batch=1,2 --json --csv OUT",
        "stragglers plan.toml --jitter 0.1 --samples 5 --json --csv OUT",
    ] {
        let answer = |threads: &str| {
            let file = format!("out-{threads}");
            let mut asked = program(&folder.path("."), &command.replace("OUT", &file));
            let ran = asked.env("RAYON_NUM_THREADS", threads).output().unwrap();
            assert_eq!(ran.status.code(), Some(0), "{command}: {}", String::from_utf8_lossy(&ran.stderr));
            (ran.stdout, fs::read(folder.path(&file)).unwrap())
        };
        let one = answer("1");
        for threads in ["2", "8"] {
            assert!(answer(threads) == one, "{command}: {threads} threads give other bytes than one");
        }
    }
}
