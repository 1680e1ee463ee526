//! Tensor against sequence parallelism as Colossal-AI measured them (`traces/published/sequence_parallel.csv`; its
//! README says what is known of model and machine).

use serde::Deserialize;
use trainwright_lower::memory::plan_memory;
use trainwright_sim::costs::ClusterCosts;
use trainwright_sim::forecast;
use trainwright_spec::cluster::Cluster;
use trainwright_spec::job::Job;
use trainwright_spec::mesh::Mesh;
use trainwright_spec::model::Position;
use trainwright_spec::model::preset::preset;
use trainwright_spec::plan::{Plan, Recompute, StageBlocks};
use trainwright_spec::precision::Precision;
use trainwright_spec::stack::Stack;
use trainwright_spec::units::Bytes;

#[derive(Debug, Deserialize)]
struct Row {
    parallel_size: usize,
    global_batch: usize,
    seq_len: usize,
    scheme: String,
    max_allocated_memory_mb: Option<f64>,
    tokens_per_s: Option<f64>,
    outcome: String,
}

/// A row with what we forecast.
struct Cell {
    row: Row,
    tokens_per_second: f64,
    /// The peak of PyTorch's allocator: no libraries, no fragmentation.
    allocated_mib: f64,
    fits: bool,
}

const STAGES: usize = 8;

/// Microbatches in a step: the number that the first stage can have in flight.
const MICROBATCHES: usize = 8;

fn plan(row: &Row) -> Plan {
    let shared = row.scheme == "sequence";
    let tensor = if shared { 1 } else { row.parallel_size };
    let context = if shared { row.parallel_size } else { 1 };
    let mut model = preset("bert-large").unwrap();
    // BERT has positions for 512 tokens; the longer rows must have had more.
    model.embedding.position = Position::Learned(row.seq_len.max(512));
    let plan = Plan {
        micro_batch: row.global_batch / MICROBATCHES,
        context_scheme: if shared { "ring-self-attention" } else { "ring" }.into(),
        stages: vec![StageBlocks(vec![Recompute::None; model.layers() / STAGES]); STAGES],
        mesh: Mesh { context, ..Mesh::new(tensor, STAGES, 1) },
        // Colossal-AI's engine hands the gradients to its handlers after the last backward pass.
        ..Plan::plain(
            model,
            Stack { overlap_gradient_reduction: false, ..Stack::from_name("pytorch-eager").unwrap() },
            Cluster::from_name(&format!("piz-daint:{}", STAGES * row.parallel_size)).unwrap(),
            Job { optimizer: "adam".into(), ..Job::new(row.seq_len, row.global_batch, Precision::Fp16) },
        )
    };
    plan.check("row").unwrap();
    plan
}

fn cells() -> Vec<Cell> {
    let path = concat!(env!("CARGO_MANIFEST_DIR"), "/../traces/published/sequence_parallel.csv");
    let rows = csv::Reader::from_path(path).unwrap().into_deserialize().map(Result::unwrap);
    let cell = |row: Row| {
        let plan = plan(&row);
        let memory = plan_memory(&plan);
        let most = |of: &dyn Fn(&trainwright_lower::memory::RankMemory) -> Bytes| {
            memory.iter().map(of).fold(Bytes::ZERO, Bytes::max)
        };
        let (forecast, _) = forecast(&plan, &ClusterCosts::new(&plan.cluster)).unwrap();
        Cell {
            tokens_per_second: (row.global_batch * row.seq_len) as f64 / forecast.step_time.get(),
            allocated_mib: most(&|rank| rank.total() - rank.overhead).get() / 1_048_576.0,
            fits: most(&|rank| rank.total()) <= plan.cluster.node.gpu.memory.value,
            row,
        }
    };
    rows.map(cell).collect()
}

#[test]
fn colossal_ai_sequence_parallelism_has_the_shape_that_was_measured() {
    let cells = cells();
    assert_eq!(cells.len(), 16);
    let printed = |value: Option<f64>| value.map_or("-".into(), |value| format!("{value:.0}"));
    for Cell { row, tokens_per_second, allocated_mib, fits } in &cells {
        println!(
            "{} x {:3} sequences of {:4}, {:8}: {:>6} tokens/s, forecast {tokens_per_second:6.0}; {:>6} MB, forecast \
             {allocated_mib:6.0}; {:3}, forecast {}",
            row.parallel_size,
            row.global_batch,
            row.seq_len,
            row.scheme,
            printed(row.tokens_per_s),
            printed(row.max_allocated_memory_mb),
            row.outcome,
            if *fits { "ok" } else { "oom" },
        );
    }
    for cell in &cells {
        let Row { parallel_size, global_batch, seq_len, scheme, outcome, .. } = &cell.row;
        let case = format!("{parallel_size} x {global_batch} x {seq_len} {scheme}");
        assert_eq!(cell.fits, outcome == "ok", "{case}: which of them runs out of memory");
        // The errors of today, with some room.
        if let (Some(tokens), Some(memory)) = (cell.row.tokens_per_s, cell.row.max_allocated_memory_mb) {
            let error = cell.allocated_mib / memory - 1.0;
            assert!(error.abs() < 0.15, "{case}: memory off by {:.1} %", 100.0 * error);
            let error = cell.tokens_per_second / tokens - 1.0;
            assert!(error.abs() < 0.36, "{case}: throughput off by {:.1} %", 100.0 * error);
        }
    }
    // With r times the sequences on r ranks, a rank of sequence parallelism holds the same.
    let more_sequences: Vec<&Cell> = cells
        .iter()
        .filter(|cell| cell.row.scheme == "sequence" && cell.row.global_batch == 64 * cell.row.parallel_size)
        .filter(|cell| cell.row.seq_len == 512)
        .collect();
    assert_eq!(more_sequences.len(), 4);
    for cell in &more_sequences {
        let growth = cell.allocated_mib / more_sequences[0].allocated_mib;
        assert!((growth - 1.0).abs() < 0.01, "{} ranks hold {growth} times as much", cell.row.parallel_size);
    }
    let (mut right, mut tried) = (0, 0);
    for pair in cells.chunks(2) {
        let [tensor, sequence] = pair else { panic!("rows come in pairs") };
        let case =
            format!("{} x {} x {}", tensor.row.parallel_size, tensor.row.global_batch, tensor.row.seq_len);
        let (Some(memory), Some(rate)) = (tensor.row.max_allocated_memory_mb, tensor.row.tokens_per_s) else {
            continue;
        };
        // Which holds more, where it was measured to be more than 2 %; else it is one rank.
        let more = memory / sequence.row.max_allocated_memory_mb.unwrap();
        let forecast = tensor.allocated_mib / sequence.allocated_mib;
        match more > 1.02 {
            true => assert!(forecast > 1.0, "{case}: tensor parallelism holds {forecast} times as much"),
            false => assert!((forecast - 1.0).abs() < 0.01, "{case}: {forecast}"),
        }
        // Which is faster: nowhere by more than 12 %, and our errors are as large.
        let faster = rate / sequence.row.tokens_per_s.unwrap();
        let forecast = tensor.tokens_per_second / sequence.tokens_per_second;
        println!("{case}: tensor parallelism {faster:.3} times as fast, forecast {forecast:.3}");
        assert!((forecast - faster).abs() < 0.14, "{case}: {forecast} for {faster}");
        right += usize::from((forecast > 1.0) == (faster > 1.0));
        tried += 1;
    }
    println!("which is faster: {right} of {tried} right");
    assert!(right >= 4 && tried == 7, "{right} of {tried}");
    // More ranks, more tokens a second, under each scheme and whatever grows with them.
    for scheme in ["tensor", "sequence"] {
        for grows in [512, 256] {
            let rates: Vec<f64> = cells
                .iter()
                .filter(|cell| cell.row.scheme == scheme && cell.fits)
                .filter(|cell| match grows {
                    512 => cell.row.seq_len == 512 && cell.row.global_batch == 64 * cell.row.parallel_size,
                    _ => cell.row.global_batch == 64 && cell.row.seq_len == 256 * cell.row.parallel_size,
                })
                .map(|cell| cell.tokens_per_second)
                .collect();
            assert!(rates.len() >= 3 && rates.is_sorted(), "{scheme}: {rates:?}");
        }
    }
}
