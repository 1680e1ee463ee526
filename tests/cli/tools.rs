//! Plans to other tools and from them, measured steps, failures, and the shell.

use super::{Folder, Ran, program, small_plan};
use trainwright_spec::plan::Plan;

fn folder() -> Folder {
    let folder = Folder::new();
    folder.write("plan.toml", &small_plan().to_toml());
    folder
}

#[test]
fn a_plan_goes_to_megatron_and_comes_back() {
    let folder = folder();
    let Ran { code, stdout, stderr } = folder.run("export plan.toml --to megatron-lm");
    assert_eq!(code, 0);
    assert!(stdout.contains("\n--tensor-model-parallel-size 2\n"), "{stdout}");
    let lines: Vec<&str> = stderr.lines().collect();
    assert!(
        lines[0].starts_with("to be said elsewhere: cluster = 1 x 8 a100-80gb-sxm: the launcher"),
        "{stderr}"
    );
    // The first blocks of one stage alone cannot be said: as many of the other one are computed again.
    assert!(lines[1].starts_with("not expressible: stages.recompute"), "{stderr}");
    assert!(lines[1].ends_with("; the first 2 of each stage in full"), "{stderr}");
    let quiet = folder.run("export plan.toml --to megatron-lm --quiet");
    assert_eq!((quiet.code, quiet.stdout == stdout, quiet.stderr.as_str()), (0, true, ""));
    assert_eq!(lines.len(), 2, "{stderr}");
    let back = folder.run_with_input("import - --from megatron-lm --cluster dgx-a100 --out -", &stdout);
    assert_eq!((back.code, back.stderr.as_str()), (0, ""));
    let plan = Plan::from_toml(&back.stdout, "plan").unwrap();
    let stages = vec!["2 full, 10 none".parse().unwrap(), "2 full, 10 none".parse().unwrap()];
    assert_eq!(plan, Plan { stages, ..small_plan() });
}

#[test]
fn further_files_of_a_tool_are_written_to_the_same_folder() {
    let folder = Folder::new();
    let plan = Plan { schedule: "zb-h1".into(), data_sharding: "none".into(), ..small_plan() };
    folder.write("plan.toml", &plan.to_toml());
    // torchtitan has no GPT-2.
    let ran = folder.run("export plan.toml --to torchtitan --lossy --out train.toml");
    assert_eq!((ran.code, ran.stdout.as_str()), (0, ""));
    assert!(ran.stderr.ends_with("also written: schedule.csv\n"), "{}", ran.stderr);
    assert!(folder.read("train.toml").contains("pipeline_parallel_schedule_csv = \"schedule.csv\""));
    assert!(folder.read("schedule.csv").starts_with("0F0,0F1,"));
}

/// What would train something else is one line and no file; `--lossy` writes it, and the file says so.
#[test]
fn exports_run_or_refuse() {
    let folder = folder();
    for (tool, reason) in [
        ("torchtitan", "torchtitan has no flavor of this shape"),
        ("torchtitan-python", "torchtitan has no flavor of this shape"),
        ("accelerate-fsdp", "no pipeline: its ranks divide weights here"),
        ("maxtext", "rotary positions"),
    ] {
        let refused = folder.run(&format!("export plan.toml --to {tool} --out train.txt"));
        assert_eq!((refused.code, refused.stderr.lines().count()), (2, 1), "{}", refused.stderr);
        assert!(
            refused
                .stderr
                .starts_with(&format!("error: `--to` is {tool}; its files would train something else"))
        );
        assert!(refused.stderr.contains(reason), "{}", refused.stderr);
        assert!(!folder.path("train.txt").exists());
        let lossy = folder.run(&format!("export plan.toml --to {tool} --lossy --quiet"));
        assert_eq!((lossy.code, lossy.stderr.as_str()), (0, ""));
        assert!(lossy.stdout.contains("(this changes the training)"), "{}", lossy.stdout);
    }
    let script =
        folder.run("export plan.toml --to slurm --quiet --set partition=gpu --set time=2:00:00").stdout;
    assert!(
        script.contains("#SBATCH --partition=gpu\n") && script.contains("#SBATCH --time=2:00:00\n"),
        "{script}"
    );
    let check = |arguments: &str, expected: &str| {
        let refused = folder.run(&format!("export plan.toml {arguments}"));
        assert_eq!((refused.code, refused.stderr.as_str()), (2, format!("error: {expected}\n").as_str()));
    };
    let known = "KEY=VALUE with a key of partition, account, time, mem, cpus-per-task";
    check("--to slurm --set nodes=4", &format!("`--set` is nodes=4; {known}"));
    check("--to slurm --set partition=", &format!("`--set` is partition=; {known}"));
    check("--to nemo --set a=b", "`--set` is a=b; nemo has no settings");
    check(
        "--to megatron-lm --model gpt2-xl",
        "`--model` is gpt2-xl; the plan has another model, gpt2-medium",
    );
}

/// What torchtitan compiles is what the plan's stack fuses: its plan comes back with its own time and memory.
#[test]
fn a_plan_goes_to_torchtitan_and_comes_back() {
    let folder = Folder::new();
    let file = "[model]\nname = \"llama3\"\nflavor = \"8B\"\n[training]\nlocal_batch_size = 1\nseq_len = 8192\n\
                [parallelism]\ndata_parallel_shard_degree = 16\n[activation_checkpoint]\nmode = \"full\"\n";
    let mut steps = Vec::new();
    for (compile, stack) in [
        ("", "torchtitan"),
        ("[compile]\nenable = true\ncomponents = [\"model\"]\n", "torchtitan"),
        ("[compile]\nenable = true\ncomponents = [\"model\", \"loss\"]\n", "torchtitan-2025"),
    ] {
        folder.write("tt.toml", &format!("{file}{compile}"));
        let ran = folder.run("import tt.toml --from torchtitan --cluster dgx-h100:2 --out plan.toml");
        let told = match compile {
            "" => "assumed: compile.enable = false, so that attention alone is fused\n",
            _ => "",
        };
        assert_eq!((ran.code, ran.stderr.as_str()), (0, told), "{compile}");
        assert!(folder.read("plan.toml").contains(&format!("\"{stack}\"")), "{}", folder.read("plan.toml"));
        // The file scales rotary positions as LLaMA 3.1 does.
        let sent = folder.run("export plan.toml --to torchtitan-python --out plan.py");
        assert_eq!(sent.code, 0, "{}", sent.stderr);
        let back = folder.run("import plan.py --from torchtitan --cluster dgx-h100:2 --out back.toml");
        assert_eq!((back.code, back.stderr.as_str()), (0, told));
        let simulated = folder.run("simulate plan.toml --json").stdout;
        assert_eq!(folder.run("simulate back.toml --json").stdout, simulated, "{compile}");
        let report: serde_json::Value = serde_json::from_str(&simulated).unwrap();
        steps.push(report["forecast"]["step_time_s"].as_f64().unwrap());
    }
    assert!(steps[0] > steps[1] && steps[1] >= steps[2], "{steps:?}");
}

/// What a stock file leaves open is said by `--set`, and what is taken otherwise is printed.
#[test]
fn imports_say_what_they_assume() {
    let folder = Folder::new();
    let script = "--num-layers 12 --hidden-size 768 --num-attention-heads 12 --seq-length 1024 \\\n --bf16 \
                  --max-position-embeddings 1024 --micro-batch-size 1 --global-batch-size 8 \\\n --merge-file x\n";
    folder.write("train.sh", script);
    let ran = folder.run("import train.sh --from megatron-lm --cluster dgx-a100 --out plan.toml");
    assert_eq!(ran.code, 0, "{}", ran.stderr);
    assert_eq!(ran.stderr, "assumed: --vocab-size 50257 (GPT-2's tokenizer)\n");
    let given = folder.run("import train.sh --from megatron-lm --cluster dgx-a100 --set vocab-size=32000");
    assert_eq!((given.code, given.stderr.as_str()), (0, "not read: --merge-file\n"));
    assert_eq!(Plan::from_toml(&given.stdout, "plan").unwrap().model.vocab, 32_000);
    folder.write("open.sh", &script.replace("--merge-file x", ""));
    let open = folder.run("import open.sh --from megatron-lm --cluster dgx-a100");
    assert_eq!(open.code, 2);
    assert!(open.stderr.ends_with("or --set vocab-size=N\n"), "{}", open.stderr);
    let refused = folder.run("import train.sh --from megatron-lm --cluster dgx-a100 --set vocab-size");
    let allowed = "KEY=VALUE with a key or argument of the file";
    assert_eq!(refused.stderr, format!("error: `--set` is vocab-size; {allowed}\n"));
}

#[test]
fn traces_of_chakra_have_a_file_for_each_rank() {
    let folder = folder();
    let ran = folder.run("simulate plan.toml --chakra traces");
    assert_eq!((ran.code, ran.stderr.as_str()), (0, ""));
    for rank in 0..8 {
        let bytes = std::fs::read(folder.path(&format!("traces/trainwright.{rank}.et"))).unwrap();
        let (_, nodes) = trainwright_formats::chakra::read(&bytes, "trace").unwrap();
        assert!(nodes.len() > 1000, "{}", nodes.len());
    }
    assert!(folder.read("traces/groups.json").starts_with("{\n  \"0\": ["));
}

/// Every rank's trace, on the plan's cluster, takes what the simulation took that wrote it.
#[test]
fn traces_of_chakra_are_replayed_as_they_were_simulated() {
    let folder = folder();
    folder.write(
        "zb.toml",
        &Plan { schedule: "zb-h1".into(), data_sharding: "zero1".into(), ..small_plan() }.to_toml(),
    );
    for plan in ["plan.toml", "zb.toml"] {
        let simulated = folder.run(&format!("simulate {plan} --json --chakra traces"));
        let replayed = folder.run(&format!("replay traces --plan {plan} --json"));
        assert_eq!((replayed.code, replayed.stderr.as_str()), (0, ""));
        let read = |ran: &Ran| serde_json::from_str::<serde_json::Value>(&ran.stdout).unwrap();
        let (forecast, report) = (read(&simulated), read(&replayed));
        let step = |of: &serde_json::Value| (of.as_f64().unwrap() * 1e12).round();
        // The replay has all ranks, the simulation one of each class. The progress of ops that slow each other is rounded at
        // every event, so the last picoseconds may differ.
        let [replayed, simulated] = [&report["step_time_s"], &forecast["forecast"]["step_time_s"]].map(step);
        assert!((replayed - simulated).abs() <= 10.0, "{plan}: {replayed} {simulated} ps");
        assert_eq!(report["ranks"].as_array().unwrap().len(), 8);
    }
    let page = folder.run("replay traces --cluster dgx-a100").stdout;
    assert!(page.contains("8 traces on dgx-a100"), "{page}");
    let refused = folder.run("replay traces/trainwright.1.et traces/trainwright.0.et --cluster dgx-1p");
    assert_eq!(refused.code, 2, "{}", refused.stderr);
    std::fs::remove_file(folder.path("traces/groups.json")).unwrap();
    let refused = folder.run("replay traces --cluster dgx-a100");
    assert!(refused.stderr.ends_with("whose ranks nobody says: give --groups\n"), "{}", refused.stderr);
    assert_eq!(refused.code, 2);
}

#[test]
fn schedules_go_to_pytorch_and_come_from_it() {
    let folder = Folder::new();
    let plan = Plan { schedule: "zb-h1".into(), ..small_plan() };
    folder.write("plan.toml", &plan.to_toml());
    let ran = folder.run("export plan.toml --to torch-pipelining --quiet --out schedule.csv");
    assert_eq!((ran.code, ran.stderr.as_str()), (0, ""));
    let simulated = folder.run("simulate plan.toml --json");
    folder.write("other.toml", &Plan { schedule: "gpipe".into(), ..plan }.to_toml());
    let given = folder.run("simulate other.toml --json --schedule-csv schedule.csv");
    let step = |ran: &Ran| {
        let answer: serde_json::Value = serde_json::from_str(&ran.stdout).unwrap();
        answer["forecast"]["step_time_s"].as_f64().unwrap()
    };
    assert_eq!(step(&given), step(&simulated));
    assert_ne!(step(&folder.run("simulate other.toml --json")), step(&simulated));
    folder.write("wrong.csv", "0F0,0B0\n1F0\n");
    let refused = folder.run("simulate other.toml --schedule-csv wrong.csv");
    assert_eq!(refused.code, 2, "{}", refused.stderr);
    assert_eq!(refused.stderr.lines().count(), 1, "{}", refused.stderr);
}

#[test]
fn a_trace_is_a_profile_that_a_forecast_uses() {
    let folder = folder();
    let fixtures = concat!(env!("CARGO_MANIFEST_DIR"), "/traces/formats/tests/data");
    let nsight =
        format!("profile {fixtures}/two-steps.sqlite --precision bf16 --gpu a100-80gb-sxm --out rows.csv");
    let ran = folder.run(&nsight);
    assert_eq!((ran.code, ran.stderr.as_str()), (0, "6 calls of 3 shapes\n"));
    assert!(folder.read("rows.csv").contains("\na100-80gb-sxm,gemm,m=4096 n=4096 k=1024,bf16,100,"));
    let ran = folder.run("simulate plan.toml --profile rows.csv --json");
    assert_eq!((ran.code, ran.stderr.as_str()), (0, ""));
    let zipped = std::fs::read(format!("{fixtures}/gpt-2-ranks.json.gz")).unwrap();
    let mut child = program(folder.0.path(), "profile - --gpu cpu").spawn().unwrap();
    std::io::Write::write_all(&mut child.stdin.take().unwrap(), &zipped).unwrap();
    let ran = Ran::from(child.wait_with_output().unwrap());
    assert_eq!(ran.code, 0, "{}", ran.stderr);
    assert!(ran.stdout.contains("\ncpu,gemm,m=128 n=512 k=128,fp32,"), "{}", ran.stdout);
    let refused = folder.run(&format!("profile {fixtures}/two-steps.sqlite --gpu a100-80gb-sxm"));
    assert!(refused.code == 2 && refused.stderr.contains("no kernel has a shape"), "{}", refused.stderr);
    let compared = folder.run(&format!("compare {fixtures}/two-steps.sqlite --plan plan.toml"));
    assert_eq!(compared.code, 0, "{}", compared.stderr);
    assert!(compared.stdout.contains("the mean of 2 steps, kernels on the GPU"), "{}", compared.stdout);
}

#[test]
fn slow_ranks_are_waited_for() {
    let folder = folder();
    let ran = folder.run("stragglers plan.toml --jitter 0.1 --slow-rank 5=1.5 --samples 20 --seed 3 --json");
    assert_eq!((ran.code, ran.stderr.as_str()), (0, ""));
    let answer: serde_json::Value = serde_json::from_str(&ran.stdout).unwrap();
    let of = |name: &str| answer["quantiles"][name].as_f64().unwrap();
    let undisturbed = answer["stragglers"]["undisturbed_s"].as_f64().unwrap();
    assert!(undisturbed < of("p50_s") && of("p50_s") < of("p95_s") && of("p95_s") <= of("p99_s"), "{answer}");
    // Rank 5 is in the tensor group of rank 4.
    assert_eq!(answer["stragglers"]["ranks"][0]["rank"], 4);
    let page = folder.run("stragglers plan.toml --gpu-jitter 0.03 --slow 0.1x1.2 --samples 5").stdout;
    assert!(page.contains("\nP95 ") && page.contains("Who waits longer for whom"), "{page}");
    let check = |arguments: &str, expected: &str| {
        let refused = folder.run(&format!("stragglers plan.toml {arguments}"));
        assert_eq!(refused.code, 2, "{arguments}");
        assert!(refused.stderr.contains(expected), "{}", refused.stderr);
    };
    check("", "nothing makes a difference: give --jitter");
    check("--slow-rank 8=2", "rank 8 is slow, but the plan has ranks 0 to 7");
    check("--slow 2x2", "it must be a share from 0 to 1 and a factor");
    check("--slow 0.1x0.5", "a factor of 1 or more");
    check("--slow-rank 3=0.5", "a factor of 1 or more");
    check("--slow-rank 3=1.2 --slow-rank 3=1.5", "`--slow-rank` is 3; each rank is given once");
    check("--jitter -1", "error: ");
}

/// Whoever interrupts the program finds the old file or none, and nothing else.
#[cfg(unix)]
#[test]
fn an_interrupted_program_leaves_no_partial_file() {
    let folder = Folder::new();
    let mut plan = small_plan();
    plan.job.global_batch = 2000;
    folder.write("plan.toml", &plan.to_toml());
    folder.write("trace.json", "old");
    let names = || -> Vec<String> {
        let entries = std::fs::read_dir(folder.0.path()).unwrap();
        let mut names: Vec<String> =
            entries.map(|entry| entry.unwrap().file_name().into_string().unwrap()).collect();
        names.sort();
        names
    };
    let mut child = program(folder.0.path(), "simulate plan.toml --trace trace.json").spawn().unwrap();
    let writing = || names().iter().any(|name| name.starts_with(".trainwright-"));
    while !writing() {
        assert_eq!(child.try_wait().unwrap(), None, "it ended before it could be interrupted");
        std::thread::sleep(std::time::Duration::from_millis(1));
    }
    let killed = std::process::Command::new("kill").args(["-INT", &child.id().to_string()]).status().unwrap();
    assert!(killed.success());
    assert_eq!(child.wait().unwrap().code(), Some(130));
    assert_eq!(names(), ["plan.toml", "trace.json"]);
    assert_eq!(folder.read("trace.json"), "old");
}

#[test]
fn standard_input_has_one_reader() {
    let folder = folder();
    let refused = folder.run_with_input("replay x.et --plan - --profile -", &small_plan().to_toml());
    assert_eq!(refused.code, 2);
    assert_eq!(refused.stderr, "error: `--profile` is -; standard input is read already: name a file\n");
    let cluster = toml::to_string(&small_plan().cluster).unwrap();
    let ran = folder.run_with_input(
        "plan --model gpt2 --cluster - --seq 1024 --global-batch 16 --tensor 1 --pipeline 1 --json",
        &cluster,
    );
    assert_eq!((ran.code, ran.stderr.as_str()), (0, ""));
}

#[test]
fn a_measured_step_is_compared_with_its_forecast() {
    let folder = folder();
    folder.write(
        "trace.json",
        r#"{"traceEvents":[
            {"ph":"X","cat":"kernel","name":"nvjet_hsh","ts":0,"dur":50000},
            {"ph":"X","cat":"kernel","name":"flash_fwd_kernel","ts":50000,"dur":4000},
            {"ph":"X","cat":"kernel","name":"ncclDevKernel_AllGather_RING_LL","ts":60000,"dur":2500}]}"#,
    );
    let ran = folder.run("compare trace.json --plan plan.toml --rank 5");
    assert_eq!((ran.code, ran.stderr.as_str()), (0, ""));
    let row = |kind: &str| {
        let line = ran.stdout.lines().find(|line| line.starts_with(kind));
        line.unwrap_or_else(|| panic!("{}", ran.stdout)).split_whitespace().collect::<Vec<&str>>()
    };
    assert_eq!(row("gemm")[1..3], ["1", "50.000"]);
    assert_eq!(row("attention")[1..3], ["1", "4.000"]);
    assert_eq!(row("all-gather")[1..3], ["1", "2.500"]);
    assert_eq!(row("step")[1], "62.500");
    let refused = folder.run("compare trace.json --plan plan.toml --rank 8");
    assert_eq!(
        (refused.code, refused.stderr.as_str()),
        (2, "error: `--rank` is 8; the plan has ranks 0 to 7\n")
    );
}

/// PyTorch trained on two cores what the plan says, `tests/tools/make_kineto_trace.py`; the cores are the plan's cluster.
#[test]
fn a_trace_of_pytorch_is_compared_with_the_forecast_of_the_same_training() {
    let folder = Folder::new();
    let root = env!("CARGO_MANIFEST_DIR");
    let ran = folder.run(&format!(
        "compare {root}/traces/formats/tests/data/gpt-2-ranks.json.gz --plan {root}/examples/measured/gpt-2-ranks.toml \
         --report page.html"
    ));
    assert_eq!((ran.code, ran.stderr.as_str()), (0, ""));
    let row = |kind: &str| {
        let line = ran.stdout.lines().find(|line| line.starts_with(kind));
        line.unwrap_or_else(|| panic!("{}", ran.stdout)).split_whitespace().collect::<Vec<&str>>()
    };
    // The program has the products that PyTorch ran: 2 blocks of 4 layers and the head, each forward and twice backward.
    let gemm = row("gemm");
    assert_eq!((gemm[1], gemm[3]), ("27", "27"));
    let [measured, forecast] = [gemm[2], gemm[4]].map(|cell| cell.parse::<f64>().unwrap());
    assert!(
        forecast > measured / 3.0 && forecast < 1.5 * measured,
        "{measured} and {forecast} ms of products"
    );
    let reduced = row("all-reduce");
    assert!(reduced[1..5].iter().all(|cell| cell.parse::<f64>().unwrap() > 0.0), "{reduced:?}");
    let page = folder.read("page.html");
    for part in ["Measurement and forecast: gpt-128 on two-cores", "<canvas id=\"spans\"", "all-reduce: "] {
        assert!(page.contains(part), "{part}");
    }
    let alone = folder.run(&format!(
        "compare {root}/traces/formats/tests/data/gpt-2-ranks.json.gz --plan {root}/examples/measured/gpt-2-ranks.toml \
         --report -"
    ));
    assert_eq!(alone.stdout, page);
}

#[test]
fn failures_take_their_part() {
    let folder = folder();
    let ran = folder.run("goodput plan.toml --tokens 1e9 --json");
    assert_eq!((ran.code, ran.stderr.as_str()), (0, ""));
    let answer: serde_json::Value = serde_json::from_str(&ran.stdout).unwrap();
    // 8 GPUs and a node: 1 / (8/3597 + 1/639) days = 264 days.
    let failures = answer["goodput"]["between_failures_s"].as_f64().unwrap() / 86_400.0;
    assert!((failures - 263.9).abs() < 0.1, "{failures}");
    // 354.8 M parameters of 14 bytes at 0.98 GB/s: 5.07 s.
    let checkpoint = answer["goodput"]["checkpoint_s"].as_f64().unwrap();
    assert!((checkpoint - 5.07).abs() < 0.01, "{checkpoint}");
    let part = answer["goodput"]["goodput"].as_f64().unwrap();
    assert!(part > 0.999 && part < 1.0, "{part}");
    let page = folder.run("goodput plan.toml --reliability meta-rsc-2").stdout;
    assert!(page.contains(" GiB in ") && page.contains(" % is lost"), "{page}");
    assert!(page.contains("one every 427.4 days, as on meta-rsc-2"), "{page}");
}

#[test]
fn shells_get_completions_and_manuals() {
    let folder = Folder::new();
    for (shell, mark) in
        [("bash", "_trainwright()"), ("zsh", "#compdef trainwright"), ("fish", "complete -c trainwright")]
    {
        let ran = folder.run(&format!("completions {shell}"));
        assert_eq!(ran.code, 0);
        assert!(ran.stdout.contains(mark) && ran.stdout.contains("megatron-lm"), "{shell}");
    }
    assert!(folder.run("man").stdout.contains(".TH trainwright 1"));
    let page = folder.run("man export").stdout;
    assert!(page.contains("trainwright\\-export") && page.contains("\\-\\-to"), "{page}");
    let refused = folder.run("man plam");
    assert_eq!(refused.code, 2);
    assert!(
        refused.stderr.starts_with("error: `COMMAND` is plam; known are plan, simulate"),
        "{}",
        refused.stderr
    );
}

/// Neither pipes nor NO_COLOR get escape sequences, and a reader that goes away is no fault.
#[test]
fn pipes_get_plain_text() {
    let folder = folder();
    for arguments in ["--help", "show exporters", "simulate plan.toml", "plan --tensor x"] {
        let ran = Ran::from(program(folder.0.path(), arguments).env("NO_COLOR", "1").output().unwrap());
        assert!(!ran.stdout.contains('\u{1b}') && !ran.stderr.contains('\u{1b}'), "{arguments}");
    }
    for arguments in ["completions bash", "man", "export plan.toml --to deepspeed"] {
        let mut child = program(folder.0.path(), arguments).spawn().unwrap();
        drop(child.stdout.take());
        let ran = Ran::from(child.wait_with_output().unwrap());
        assert_eq!(ran.code, 0, "{arguments}: {}", ran.stderr);
        assert!(!ran.stderr.contains("panicked"), "{arguments}: {}", ran.stderr);
    }
}
