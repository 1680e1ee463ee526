//! Whether cuDNN has plans for the graphs of attention that are asked of it, on GPUs that need not be there.
//!
//! `cudnn-plans` prints a line for each GPU, shape and pass: the bytes of workspace, or why there is no plan, and exits with 1 if
//! there is one without. tests/cudnn_plans.sh brings what cuDNN needs for that.

use std::process::ExitCode;
use trainwright_kernels::cuda::attention::{Attention, Pass};
use trainwright_kernels::cuda::driver::plan_without_gpu;

/// What cuDNN knows of a GPU, where it differs between these.
struct Chip {
    name: &'static str,
    /// Compute capability: 90 is 9.0.
    capability: u32,
    multiprocessors: u32,
    /// Bytes of shared memory that a block may ask for.
    shared: u32,
    /// Bytes of the second-level cache.
    cache: u32,
}

/// Source: NVIDIA's CUDA C++ programming guide, compute capabilities; data sheets of A100 and H100 SXM.
const CHIPS: [Chip; 2] = [
    Chip { name: "A100-SXM4-80GB", capability: 80, multiprocessors: 108, shared: 166_912, cache: 41_943_040 },
    Chip { name: "H100 80GB HBM3", capability: 90, multiprocessors: 132, shared: 232_448, cache: 52_428_800 },
];

/// Query heads, key heads, width of a head, positions, whether it is causal.
const SHAPES: [(i32, i32, i32, i32, bool); 6] = [
    (12, 12, 64, 1024, true),
    (25, 25, 64, 1024, true),
    (32, 8, 128, 2048, true),
    (32, 4, 64, 3072, true),
    (4, 2, 40, 256, true),
    (4, 4, 128, 384, false),
];

impl Chip {
    /// As cuDNN writes it down.
    fn properties(&self) -> String {
        let Self { name, capability, multiprocessors, shared, cache } = self;
        format!(
            r#"{{"deviceName": "NVIDIA {name}", "deviceVer": {capability}0, "driverVer": 12090, "cudaDeviceId": 0,
                "pciDeviceId": 0, "isTccDriver": 0, "supportCoopLaunch": 1, "warpSize": 32,
                "maxGridSize": [2147483647, 65535, 65535], "maxBlockSize": [1024, 1024, 64], "maxThreadsPerBlock": 1024,
                "maxThreadsPerSM": 2048, "maxCtasPerSM": 32, "regsPerBlock": 65536, "maxRegistersPerSM": 65536,
                "multiProcessorCount": {multiprocessors}, "maxSharedMemoryPerBlock": 49152,
                "maxSharedMemoryPerBlockOptin": {shared}, "reservedSharedMemoryPerBlock": 1024,
                "oversizedSharedMemoryPerBlock": 0, "totalGlobalMem": 85899345920, "l2CacheSize": {cache},
                "smClockRateKHz": 1410000, "memClockRateKHz": 1593000, "memoryBusWidth": 5120}}"#
        )
    }
}

fn main() -> ExitCode {
    let mut missing = 0;
    for chip in &CHIPS {
        for (heads, kv_heads, width, positions, causal) in SHAPES {
            let row = i64::from((heads + 2 * kv_heads) * width);
            let attention = Attention {
                q_row: row,
                k_row: row,
                v_row: row,
                o_row: i64::from(heads * width),
                batch: 2,
                heads,
                kv_heads,
                queries: positions,
                keys: positions,
                head_dim: width,
                value_head_dim: width,
                causal: i32::from(causal),
                ..Attention::default()
            };
            for pass in Pass::ALL {
                let mask = if causal { ", causal" } else { "" };
                print!(
                    "{}: {heads}/{kv_heads} heads of {width}, {positions} positions{mask}, {pass:?}: ",
                    chip.name
                );
                match plan_without_gpu(&chip.properties(), &attention, pass) {
                    Ok(workspace) => println!("{workspace} bytes of workspace"),
                    Err(error) => {
                        missing += 1;
                        println!("{error}");
                    }
                }
            }
        }
    }
    if missing == 0 { ExitCode::SUCCESS } else { ExitCode::FAILURE }
}
