use super::*;
use serde_json::json;
use std::sync::atomic::{AtomicBool, AtomicUsize, Ordering};

/// Counts progress, and is stopped or not.
#[derive(Default)]
struct Waiting {
    calls: AtomicUsize,
    stopped: AtomicBool,
}

impl Watch for Waiting {
    fn progress(&self, _: &str, _: usize, _: usize) {
        self.calls.fetch_add(1, Ordering::Relaxed);
    }

    fn is_stopped(&self) -> bool {
        self.stopped.load(Ordering::Relaxed)
    }
}

fn request(command: &str, options: Value) -> Request {
    let Value::Object(options) = options else { panic!("options are an object") };
    Request { command: command.into(), options, ..Request::default() }
}

fn small() -> Request {
    request(
        "plan",
        json!({ "model": "gpt2", "cluster": "dgx-a100", "seq": 512, "global_batch": 16, "space": "core" }),
    )
}

fn ask(request: Request) -> Result<Answer, Failure> {
    answer(request, Arc::new(Waiting::default()))
}

#[test]
fn options_become_the_arguments_of_the_command_line() {
    let check = |command: &str, options: Value, expected: &str| {
        let Value::Object(options) = options else { panic!("options are an object") };
        let made = keywords::arguments(command, &options).unwrap();
        assert_eq!(made[1..].join(" "), format!("{command}{expected}"));
    };
    check("plan", json!({ "model": "gpt2", "global_batch": 8 }), " --json --model=gpt2 --global-batch=8");
    check("plan", json!({ "all_nodes": true, "sensitivity": false, "top": null }), " --json --all-nodes");
    check("plan", json!({ "sequence_parallel": true }), " --json --sequence-parallel=true");
    check("plan", json!({ "pin": { "tensor": [4, 8] } }), " --json --pin=tensor=4 --pin=tensor=8");
    check(
        "what-if",
        json!({ "vary": { "nodes": [1, 2] }, "asked": "rent" }),
        " --json --vary=nodes=1,2 -- rent",
    );
    check("kernel", json!({ "gemm": [1, 2, 3] }), " --json --gemm=1,2,3");
    check("network", json!({ "ranks": [0, 8] }), " --json --ranks=0 --ranks=8");
    check("simulate", json!({ "plan": "plan.toml" }), " --json -- plan.toml");
    check("import", json!({ "file": "a", "from": "deepspeed" }), " --from=deepspeed -- a");
}

#[test]
fn bad_input_is_one_line_that_names_the_option() {
    let check = |command: &str, options: Value, expected: &str| match ask(request(command, options)) {
        Err(Failure::BadInput(line)) => {
            assert!(line.contains(expected) && !line.contains('\n'), "{line}");
        }
        other => panic!("{other:?}"),
    };
    let question =
        json!({ "model": "gpt2", "cluster": "dgx-a100", "seq": 512, "global_batch": 8, "globl_batch": 8 });
    check("plan", question, "'--global-batch'");
    check(
        "plan",
        json!({ "model": "gpt9", "cluster": "dgx-a100", "seq": 512, "global_batch": 8 }),
        "--model: unknown model",
    );
    check(
        "plan",
        json!({ "model": "gpt2", "all_nodes": "yes" }),
        "`--all-nodes` is \"yes\"; give true or false",
    );
    check("plan", json!({ "seq": [[1]] }), "give a number, a text, or a list of them");
    check("simulate", json!({ "plan": "-" }), "name a file");
    check("run", json!({ "plan": "plan.toml" }), "there is no command `run`; known are plan, simulate");
}

#[test]
fn a_call_reads_and_writes_in_memory_and_prints_nothing_else() {
    let mut planning = small();
    planning.options.extend([("out".into(), json!("best.toml"))]);
    planning.kept = vec!["best.toml".into()];
    let planned = ask(planning).unwrap();
    let answer: Value = serde_json::from_str(&planned.printed).unwrap();
    assert_eq!((planned.code, &answer["version"]), (0, &json!(1)));
    assert!(!std::path::Path::new("best.toml").exists());
    // The plan in the answer and the plan in the file are one.
    let of_answer = toml_of(&answer["plans"][0]["plan"]).unwrap().into_bytes();
    let step = |plan: Vec<u8>| {
        let mut simulating = request("simulate", json!({ "plan": "in memory" }));
        simulating.inputs.insert("in memory".into(), plan);
        ask(simulating).unwrap().printed
    };
    let [of_answer, of_file] = [of_answer, planned.files["best.toml"].clone()].map(step);
    assert!(of_answer == of_file, "the plan of the file is another one");
    let simulated: Value = serde_json::from_str(&of_file).unwrap();
    assert_eq!(simulated["forecast"]["step_time_s"], answer["plans"][0]["forecast"]["step_time_s"]);
}

#[test]
fn answers_do_not_depend_on_threads_nor_on_other_calls() {
    let with = |threads| ask(Request { threads, ..small() }).unwrap();
    let alone = with(Some(1));
    let together: Vec<Answer> = std::thread::scope(|scope| {
        let calls: Vec<_> = (0..3).map(|index| scope.spawn(move || with(Some(1 + index)))).collect();
        calls.into_iter().map(|call| call.join().unwrap()).collect()
    });
    together.iter().for_each(|answer| assert!(*answer == alone));
}

#[test]
fn who_waits_hears_of_progress_and_can_stop() {
    let watch = Arc::new(Waiting::default());
    answer(small(), watch.clone()).unwrap();
    assert!(watch.calls.load(Ordering::Relaxed) > 1);
    let question = json!({ "model": "gpt2", "cluster": "dgx-a100", "seq": 512, "global_batch": 16, "vary": { "seq": [256, 512] } });
    for stopped in [small(), request("what-if", question)] {
        watch.stopped.store(true, Ordering::Relaxed);
        assert_eq!(answer(stopped, watch.clone()), Err(Failure::Stopped));
    }
}

#[test]
fn what_does_not_fit_is_an_answer() {
    let check = |options: Value, verdict: &str| {
        let answer = ask(request("plan", options)).unwrap();
        let data: Value = serde_json::from_str(&answer.printed).unwrap();
        assert_eq!((answer.code, data["verdict"].as_str()), (3, Some(verdict)));
    };
    let question = json!({ "model": "llama-3-70b", "cluster": "dgx-1v", "seq": 512, "global_batch": 8 });
    check(question, "infeasible");
    // Nothing remains of the choices.
    let pinned = json!({ "model": "gpt2", "cluster": "dgx-a100", "seq": 512, "global_batch": 8,
        "pin": { "data": 8, "micro-batch": 8 } });
    check(pinned, "no candidate");
}
