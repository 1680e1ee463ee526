//! A plan on a device that is no CPU gives the losses and weights of one rank on the CPU.
//!
//! The device for NVIDIA GPUs runs here on the emulator: what is launched, on which buffers, in which order and with which
//! arguments is as on a GPU. Its kernels are tested in their crate.

use crate::drafts::{BATCH, Draft, settings, tokens};
use crate::parity::{EIGHT_BITS, MODELS, check, check_apart, check_within};
use std::num::NonZeroUsize;
use trainwright_executor::{
    AttentionBy, DeviceKind, Drill, DrillKind, Fault, GraphUse, LearningRate, Outcome, RunError, Saving,
    Settings, Start, measure_ops, train,
};
use trainwright_spec::plan::{Offload, Recompute};
use trainwright_spec::precision::Precision;
use trainwright_spec::program::Place;

fn emulated(model: &'static str) -> Draft {
    Draft { device: "emulated", optimizer: "adamw", micro_batch: 2, steps: 2, ..Draft::of(model) }
}

/// Whether the emulator can be had.
fn is_there() -> bool {
    match (Draft { steps: 1, ..emulated("gpt") }).train() {
        Err(RunError::Device { reason, .. }) if reason.contains("no C++ compiler") => {
            println!("skipped: {reason}");
            false
        }
        trained => {
            trained.unwrap();
            true
        }
    }
}

#[test]
fn one_rank_trains_as_on_the_cpu() {
    if !is_there() {
        return;
    }
    let recompute = |model, recompute: Recompute| Draft { recompute, micro_batch: 8, ..emulated(model) };
    check(&[recompute("gpt", Recompute::None), recompute("llama", Recompute::Selective)]);
    check(&[recompute("gpt", Recompute::Full)]);
}

#[test]
fn the_same_elements_are_dropped_out() {
    if !is_there() {
        return;
    }
    let gpt = || Draft { micro_batch: 8, ..emulated("gpt-dropping") };
    check(&[
        Draft { recompute: Recompute::Full, ..gpt() },
        Draft { mesh: [2, 1, 1], sequence_parallel: true, ..gpt() },
        // Queries and keys of other parts of the sequence.
        Draft { context: [2, 1], context_scheme: "ring", ..gpt() },
        Draft { mesh: [1, 1, 2], micro_batch: 4, ..emulated("llama-dropping") },
    ]);
}

#[test]
fn ranks_that_share_a_gpu_train_as_one() {
    if !is_there() {
        return;
    }
    let mut drafts = Vec::new();
    for (model, mesh, data_sharding, sequence_parallel) in [
        ("gpt", [2, 1, 1], "none", false),
        ("llama", [2, 1, 1], "none", true),
        ("gpt", [1, 2, 1], "none", false),
        ("gpt", [1, 1, 2], "zero1", false),
        ("llama", [1, 1, 2], "zero2", false),
        ("llama", [1, 1, 2], "zero3", false),
        ("gpt", [2, 2, 2], "zero1", true),
    ] {
        drafts.push(Draft { mesh, data_sharding, sequence_parallel, ..emulated(model) });
    }
    check(&drafts);
}

/// Whoever waits for a rank's numbers hears of its end, and the run's error is that rank's.
#[test]
fn a_rank_that_dies_ends_the_others() {
    if !is_there() {
        return;
    }
    for (mesh, op) in [([1, 2, 1], 30), ([2, 1, 1], 9)] {
        let draft = Draft { mesh, ..emulated("gpt") };
        let fault = Some(Drill { rank: 1, step: 1, op, kind: DrillKind::Death });
        let device = DeviceKind::from_name(draft.device).unwrap();
        let settings = Settings { device, fault, ..settings(1) };
        match train(&draft.plan(), &tokens(), &settings, &mut |_| {}) {
            Err(RunError::Rank { rank: 1, fault: Fault::Panic(_), .. }) => {}
            other => panic!("{other:?}"),
        }
    }
}

/// The host reads losses and norm once a step: what is no number ends the run all the same before it is saved, and is said of
/// the op that made it.
#[test]
fn a_number_that_is_none_names_the_op_and_is_not_saved() {
    if !is_there() {
        return;
    }
    for gradient_clipping in [true, false] {
        let draft = Draft { micro_batch: 4, gradient_clipping, ..emulated("gpt") };
        let folder = tempfile::tempdir().unwrap();
        let saving =
            Saving { folder: folder.path().into(), every: Some(NonZeroUsize::MIN), keep: NonZeroUsize::MIN };
        let fault = Some(Drill { rank: 0, step: 2, op: 0, kind: DrillKind::NotANumber });
        let device = DeviceKind::from_name(draft.device).unwrap();
        let settings = Settings { device, fault, saving: Some(saving), ..settings(3) };
        match train(&draft.plan(), &tokens(), &settings, &mut |_| {}) {
            Err(RunError::Rank { rank: 0, step: 2, op, fault: Fault::NotFinite { what: "the loss" } }) => {
                assert!(op.contains("forward"), "{op}");
            }
            other => panic!("{other:?}"),
        }
        let names = std::fs::read_dir(folder.path()).unwrap().map(|entry| entry.unwrap().file_name());
        assert_eq!(names.collect::<Vec<_>>(), ["step-00000001"]);
    }
}

/// What NCCL does between GPUs is done by the emulators for each other.
#[test]
fn ranks_on_separate_gpus_train_as_one() {
    if !is_there() {
        return;
    }
    let of = |model, mesh, data_sharding, sequence_parallel| {
        let device = "emulated-gpus";
        Draft { mesh, data_sharding, sequence_parallel, device, ..emulated(model) }
    };
    check(&[of("llama", [1, 1, 2], "zero3", false), of("gpt", [2, 2, 2], "zero1", true)]);
}

/// A step that a graph replays has the tokens, the rate and the corrections of its step number: its bits are those of ops
/// enqueued one by one.
#[test]
fn a_graph_replays_what_ops_do() {
    if !is_there() {
        return;
    }
    let run = |draft: &Draft, graph, steps| {
        let device = DeviceKind::from_name(draft.device).unwrap();
        // The rate rises all the time.
        let learning_rate = LearningRate { warmup: 2 * steps, ..LearningRate::constant(0.02) };
        let settings = Settings { device, graph, learning_rate, ..settings(steps) };
        train(&draft.plan(), &tokens(), &settings, &mut |_| {}).unwrap()
    };
    let one = Draft { micro_batch: 4, ..emulated("gpt") };
    let two =
        Draft { mesh: [2, 1, 1], sequence_parallel: true, device: "emulated-gpus", ..emulated("llama") };
    let fp8 = Draft { precision: Precision::Fp8, ..one.clone() };
    for draft in [one, fp8] {
        // The first ones are enqueued op by op until one equals the one before it, and so is the last one.
        let [with, without] = [true, false].map(|graph| run(&draft, graph, 7));
        assert!(matches!(with.graph, Some(GraphUse::From(4 | 5))), "{draft:?}: {:?}", with.graph);
        assert_eq!(without.graph, Some(GraphUse::No("it was turned off".into())));
        let numbers = |of: &Outcome| -> Vec<_> {
            of.steps.iter().map(|step| (step.loss.to_bits(), step.gradient_norm.map(f64::to_bits))).collect()
        };
        assert_eq!(numbers(&with), numbers(&without), "{draft:?}");
        assert_eq!(with.weights, without.weights, "{draft:?}");
        // Of every rank; no driver counts here.
        let memory = &with.device_memory;
        assert_eq!(memory.len(), draft.mesh.iter().product::<usize>());
        assert!(memory.iter().all(|memory| memory.peak > 0 && memory.in_use.is_none()), "{memory:?}");
    }
    let refused =
        |device| run(&Draft { micro_batch: 8, device, ..two.clone() }, true, 1).graph.unwrap().to_string();
    assert_eq!(refused("emulated"), "no, because ranks share a GPU and wait for each other there");
    // Those of processes are tested in the library, with ranks connected as processes are.
    let expected = "no, because several GPUs of one process communicate by NCCL: start a process for each GPU (`--transport tcp`)";
    assert_eq!(refused("emulated-gpus"), expected);
}

/// Each of the other optimizers, also on a part of every tensor.
#[test]
fn optimizers() {
    if !is_there() {
        return;
    }
    let parts = Draft { mesh: [1, 1, 2], data_sharding: "zero3", micro_batch: 4, ..emulated("gpt") };
    let full = Draft { micro_batch: 8, ..emulated("gpt") };
    let of = |optimizer| Draft { optimizer, ..full.clone() };
    // Ratios of full tensors are made on the device, those of parts by the host.
    check(&[Draft { optimizer: "lars", ..parts }, of("adam"), of("lamb")]);
}

/// Sequences that ranks share, by each scheme.
#[test]
fn ranks_share_sequences() {
    if !is_there() {
        return;
    }
    let mut drafts = Vec::new();
    for (model, context_scheme, context, recompute, optimizer) in [
        ("gpt", "ring", [2, 1], "none", "momentum"),
        ("llama", "all-gather", [2, 1], "none", "adamw"),
        ("gpt", "ulysses", [2, 1], "full", "sgd"),
        ("llama", "hybrid", [4, 2], "selective(core+norm)", "adamw"),
    ] {
        let recompute = recompute.parse().unwrap();
        let draft = Draft { context, context_scheme, recompute, optimizer, ..emulated(model) };
        drafts.push(Draft { micro_batch: 8, ..draft });
    }
    check(&drafts);
}

/// Tensor ranks in a grid of 2 x 2.
#[test]
fn ranks_form_grids() {
    if !is_there() {
        return;
    }
    let grid = |model| Draft { mesh: [4, 1, 1], tensor_rows: 2, micro_batch: 8, ..emulated(model) };
    let again = Draft { mesh: [4, 1, 2], micro_batch: 4, recompute: Recompute::Full, ..grid("gpt") };
    check(&[Draft { optimizer: "lamb", ..grid("llama") }, Draft { data_sharding: "zero1", ..again }]);
}

/// Experts on one rank, and on several by each dispatcher.
#[test]
fn experts() {
    if !is_there() {
        return;
    }
    let mut drafts = Vec::new();
    for (mesh, expert, dispatcher, recompute) in [
        ([1, 1, 1], [1, 1, 0], "all-to-all", "none"),
        ([2, 1, 2], [2, 1, 0], "all-gather", "none"),
        ([1, 1, 4], [4, 2, 0], "by-node", "full"),
    ] {
        let (recompute, micro_batch) = (recompute.parse().unwrap(), BATCH / mesh[2]);
        drafts.push(Draft { mesh, expert, dispatcher, recompute, micro_batch, ..emulated("mixtral") });
    }
    check(&drafts);
}

/// What goes to the host or to a drive comes back as it was; moments stay there, where the update takes place.
#[test]
fn state_is_offloaded() {
    if !is_there() {
        return;
    }
    let mut drafts = Vec::new();
    for (optimizer, offloaded, mesh) in [
        ("lamb", [Some(Place::Host), None], [1, 1, 1]),
        ("adamw", [Some(Place::Nvme), Some(Place::Host)], [1, 1, 2]),
        ("adamw", [None, Some(Place::Nvme)], [2, 1, 1]),
    ] {
        let [state, activations] = offloaded;
        let offload = Offload { optimizer: state, activations, ..Offload::default() };
        let (data_sharding, micro_batch) = (if mesh[2] > 1 { "zero1" } else { "none" }, BATCH / mesh[2]);
        drafts.push(Draft { offload, mesh, data_sharding, micro_batch, optimizer, ..emulated("llama") });
    }
    check(&drafts);
}

/// Weights and activations are stored in bf16 there, on the CPU in f32 that are numbers of bf16.
#[test]
fn sixteen_bits() {
    if !is_there() {
        return;
    }
    let precision = Precision::Bf16;
    let of = |model| Draft { precision, micro_batch: 8, ..emulated(model) };
    let [gpt, llama] = MODELS.map(of);
    let ring = Draft { context: [2, 1], ..llama.clone() };
    let grid = Draft { mesh: [4, 1, 1], tensor_rows: 2, ..gpt.clone() };
    let optimizer = Some(Place::Host);
    let offloaded = Draft { offload: Offload { optimizer, ..Offload::default() }, ..of("mixtral") };
    let experts =
        Draft { mesh: [1, 1, 2], expert: [2, 1, 0], precision, micro_batch: 4, ..emulated("mixtral") };
    check_within(&[gpt, llama, ring, grid, offloaded, experts], 0.02);
}

/// Products of numbers of 8 bits; on the CPU of numbers in 32 bits that are rounded to the same. What rounds up on one and down
/// on the other is small beside what fp8 does to the first step.
#[test]
fn fp8() {
    if !is_there() {
        return;
    }
    let precision = Precision::Fp8;
    let of = |model| Draft { precision, optimizer: "momentum", micro_batch: 8, ..emulated(model) };
    let [gpt, llama] = MODELS.map(of);
    for draft in [&gpt, &llama] {
        let first = |device, precision| {
            let outcome = Draft { device, precision, steps: 1, ..draft.clone() }.train().unwrap();
            [outcome.steps[0].loss, outcome.steps[0].gradient_norm.unwrap()]
        };
        let [emulated, cpu] = ["emulated", "cpu"].map(|device| first(device, precision));
        let wide = first("cpu", Precision::Bf16);
        let is_closer = |at: usize| 10.0 * (emulated[at] - cpu[at]).abs() < (wide[at] - cpu[at]).abs();
        assert!(is_closer(0) && is_closer(1), "{emulated:?} {cpu:?} {wide:?}");
    }
    let tensor = Draft { mesh: [2, 1, 1], sequence_parallel: true, ..gpt.clone() };
    let stages = Draft { mesh: [1, 2, 2], data_sharding: "zero1", micro_batch: 2, ..llama.clone() };
    check_apart(&[gpt, llama, tensor, stages], EIGHT_BITS);
}

/// Where a library has fused kernels for it, attention is left to it, also among the work that a graph replays; the rest is ours.
#[test]
fn attention_by_a_library() {
    if !is_there() {
        return;
    }
    let (precision, attention) = (Precision::Bf16, Some(AttentionBy::Cudnn));
    let of = |model| Draft { precision, attention, micro_batch: 8, ..emulated(model) };
    let [gpt, llama] = MODELS.map(of);
    let ring = Draft { context: [2, 1], ..llama.clone() };
    // Probabilities and their gradients are rounded too, before they are multiplied.
    check_within(&[gpt.clone(), ring, Draft { recompute: Recompute::Full, ..llama.clone() }], 0.03);
    let in_order = Draft { deterministic: true, ..llama.clone() };
    check_within(std::slice::from_ref(&in_order), 0.03);

    // Only gradients that a library adds up in any order may have other bits in another run.
    let is_deterministic = |draft: &Draft| Draft { steps: 1, ..draft.clone() }.train().unwrap().deterministic;
    assert_eq!([&gpt, &in_order].map(is_deterministic), [Some(false), Some(true)]);
    assert_eq!(is_deterministic(&Draft { attention: None, ..gpt.clone() }), Some(true));
    assert_eq!(is_deterministic(&Draft { device: "cpu", ..gpt.clone() }), None);

    let used = |draft: Draft| Draft { steps: 1, ..draft }.train().unwrap().attention.unwrap();
    assert_eq!(used(Draft { attention: None, ..gpt.clone() }), "own");
    assert_eq!(used(Draft { precision: Precision::Fp32, ..gpt }), "own, because the plan is in fp32");
    let many = Draft { steps: 6, ..llama }.train().unwrap();
    assert!(matches!(many.graph, Some(GraphUse::From(4 | 5))), "{:?}", many.graph);
    assert_eq!(many.attention.as_deref(), Some("cuDNN, emulated"));
}

/// What one device has written another one goes on with, and the other way round; the same one with the same bits.
#[test]
fn a_checkpoint_goes_from_device_to_device() {
    if !is_there() {
        return;
    }
    let sharded = Draft { mesh: [1, 1, 2], data_sharding: "zero1", optimizer: "adamw", ..emulated("gpt") };
    let bf16 = |draft: Draft| Draft { precision: Precision::Bf16, ..draft };
    let experts = Draft { mesh: [1, 1, 2], expert: [2, 1, 0], optimizer: "adamw", ..emulated("mixtral") };
    for (draft, tolerance) in
        [(sharded.clone(), 1e-4), (bf16(sharded), 1e-3), (experts.clone(), 1e-4), (bf16(experts), 1e-3)]
    {
        let run = |device: &str, settings: Settings| {
            let device = DeviceKind::from_name(device).unwrap();
            let outcome = train(&draft.plan(), &tokens(), &Settings { device, ..settings }, &mut |_| {});
            outcome.unwrap_or_else(|error| panic!("{draft:?}: {error}"))
        };
        for devices in [["cpu", "emulated"], ["emulated", "cpu"], ["emulated", "emulated"]] {
            let expected = run(devices[1], settings(3));
            let folder = tempfile::tempdir().unwrap();
            let saving = Some(Saving { folder: folder.path().into(), every: None, keep: NonZeroUsize::MIN });
            run(devices[0], Settings { saving, ..settings(2) });
            let start = Start::Resume(folder.path().into());
            let resumed = run(devices[1], Settings { start, ..settings(3) });
            let [found, wanted] = [resumed.steps[0].loss, expected.steps[2].loss];
            assert!(
                (found / wanted - 1.0).abs() < tolerance,
                "{devices:?}: {found} is not {wanted}: {draft:?}"
            );
            if devices[0] == devices[1] {
                assert_eq!((found, resumed.weights), (wanted, expected.weights), "{draft:?}");
            }
        }
    }
}

/// Every op of a plan has a time, and the table of them is one that forecasts read.
#[test]
fn ops_are_timed() {
    if !is_there() {
        return;
    }
    let plan = Draft { micro_batch: 8, gradient_clipping: false, ..emulated("gpt") }.plan();
    let measured =
        measure_ops(std::slice::from_ref(&plan), DeviceKind::from_name("emulated").unwrap(), false).unwrap();
    let gpu = &plan.cluster.node.gpu.name;
    let table = measured.profile.to_csv(gpu, [&measured.date, &measured.versions]);
    let read = plan.cluster.clone().with_device_profile(&table, "table").unwrap();
    let ops = read.node.gpu.profile.unwrap().ops;
    for part in ["attention", "norm", "loss", "optimizer"] {
        assert!(ops.iter().any(|row| row.op.contains(part)), "{part} is not in {table}");
    }
}

#[test]
fn what_a_gpu_cannot_do_yet_is_refused_by_name() {
    let refused = |draft: Draft| match draft.train() {
        Err(RunError::Refused { key, .. }) => key,
        other => panic!("{other:?}"),
    };
    let place = Some(Place::Host);
    let offload = Offload { optimizer: place, gradients: place, ..Offload::default() };
    assert_eq!(refused(Draft { offload, ..emulated("gpt") }), "offload");
    // Half of a feed-forward layer that is 48 wide.
    let fp8 = Draft { precision: Precision::Fp8, mesh: [2, 1, 1], ..emulated("llama") };
    assert_eq!(refused(fp8), "model.blocks.mlp.width");
}
