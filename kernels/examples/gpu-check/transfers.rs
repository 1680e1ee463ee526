//! Launches, copies, and collectives among the GPUs of this machine.

use super::timing::{Amount, Bench, Row};
use trainwright_kernels::cuda::driver::{Communicator, Gpu, Graph, Id, Library};
use trainwright_kernels::cuda::reduce::{ClipFactor, SumBuffers};
use trainwright_kernels::cuda::{Device, DeviceError, Number};

/// Launches in a recorded graph.
const LAUNCHES: usize = 100;

pub fn measure(bench: &mut Bench, rows: &mut Vec<Row>) -> Result<(), DeviceError> {
    let squares = bench.random(Number::F32, 2)?;
    let factor = bench.random(Number::F32, 2)?;
    let small = ClipFactor { squares, factor, count: 1, bound: 1.0 }.launch();
    rows.push(bench.time(["launch of a small kernel", "one by one"], Amount::default(), |gpu, stream| {
        gpu.launch_on(&small, stream)
    })?);
    let recording = bench.gpu.stream()?;
    let graph = Graph::record(bench.gpu, &recording, |gpu| {
        (0..LAUNCHES).try_for_each(|_| gpu.launch_on(&small, &recording))
    })?;
    let name = ["launches of a small kernel", &format!("graph of {LAUNCHES}")];
    rows.push(bench.time(name, Amount::default(), |_, stream| graph.launch(stream))?);

    for bytes in [1usize << 12, 1 << 20, 1 << 28] {
        let (to, from) = (bench.gpu.allocate(bytes)?, bench.random(Number::F32, bytes / 4)?);
        let mut pinned = bench.gpu.pinned(bytes)?;
        pinned.bytes().fill(7);
        let shape = format!("{bytes} bytes");
        let amount = Amount { bytes: bytes as f64, flops: 0.0 };
        let within = Amount { bytes: 2.0 * bytes as f64, flops: 0.0 };
        rows.push(bench.time(["copy device to device", &shape], within, |gpu, stream| {
            gpu.copy_on(to, from, bytes, stream)
        })?);
        rows.push(bench.time(["copy host to device", &shape], amount, |gpu, stream| {
            gpu.copy_in(to, &mut pinned, stream)
        })?);
        rows.push(bench.time(["copy device to host", &shape], amount, |gpu, stream| {
            gpu.copy_out(&mut pinned, from, stream)
        })?);
    }

    // An all-reduce of ranks that share this GPU.
    let count = 1usize << 24;
    for ranks in [2usize, 4, 8] {
        let mut addresses = Vec::new();
        for _ in 0..ranks {
            addresses.push(bench.random(Number::Bf16, count)?);
        }
        let out = bench.gpu.allocate(2 * count)?;
        let launch = SumBuffers::of(&addresses, out, count).launch(Number::Bf16);
        let amount = Amount { bytes: (2 * count * (ranks + 1)) as f64, flops: 0.0 };
        rows.push(bench.time_launches(&[launch], &format!("{ranks} ranks, {count} bf16"), amount)?);
        bench.gpu.clear()?;
    }
    bench.gpu.clear()?;
    match (Gpu::count()?, Library::Nccl.require()) {
        (1, _) => println!("one GPU: no collectives between GPUs were measured"),
        (_, Err(error)) => println!("no collectives between GPUs were measured: {error}"),
        (gpus, Ok(())) => collectives(gpus, rows)?,
    }
    Ok(())
}

/// Each GPU is a rank with a thread of its own; rank 0 has the measurements.
fn collectives(gpus: usize, rows: &mut Vec<Row>) -> Result<(), DeviceError> {
    let id = Id::new()?;
    let one = move |rank: usize| -> Result<Vec<Row>, DeviceError> {
        let mut gpu = Gpu::open(rank)?;
        let communicator = Communicator::join(id, rank, gpus)?;
        let mut bench = Bench::new(&mut gpu);
        let mut rows = Vec::new();
        for count in [1usize << 10, 1 << 16, 1 << 20, 1 << 24, 1 << 27] {
            let x = bench.random(Number::Bf16, count)?;
            let stream = bench.gpu.stream()?;
            // All ranks do the same number of runs, which a time of their own would not give.
            let mut samples = Vec::new();
            for _ in 0..20 {
                let before = bench.gpu.event(&stream)?;
                communicator.all_reduce(x, count, Number::Bf16, &stream)?;
                let after = bench.gpu.event(&stream)?;
                samples.push(f64::from(after.milliseconds_since(&before)?) / 1e3);
            }
            samples.sort_by(f64::total_cmp);
            let (seconds, spread) = (samples[10], (samples[15] - samples[5]) / samples[10]);
            let shape = format!("{gpus} GPUs, {count} bf16");
            // What nccl-tests calls bus bandwidth: 2 (n − 1)/n of the bytes.
            let bytes = 2.0 * count as f64 * 2.0 * (gpus as f64 - 1.0) / gpus as f64;
            rows.push(Row { kernel: "NCCL all-reduce".into(), shape, seconds, spread, flops: 0.0, bytes });
            bench.gpu.clear()?;
        }
        drop(communicator);
        Ok(rows)
    };
    let all: Vec<Result<Vec<Row>, DeviceError>> = std::thread::scope(|scope| {
        let ranks: Vec<_> = (0..gpus).map(|rank| scope.spawn(move || one(rank))).collect();
        ranks.into_iter().map(|rank| rank.join().expect("a rank's thread does not panic")).collect()
    });
    for (rank, own) in all.into_iter().enumerate() {
        let own = own?;
        if rank == 0 {
            rows.extend(own);
        }
    }
    Ok(())
}
