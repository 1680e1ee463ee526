//! A profile of a machine, for plans: forecasts measure for themselves.

use crate::Folder;

/// A machine with round numbers.
const MACHINE: &str = r#"
name = "this-machine"
nodes = 1
calibration = "none"
[node]
name = "a processor"
gpus = { value = 2, source = "assumed" }
[node.interconnect]
kind = "threads"
bandwidth = { value = "20 GB/s", source = "assumed" }
efficiency = { value = 1.0, source = "assumed" }
latency = { value = "1 us", source = "assumed" }
[node.cores]
count = { value = 2, source = "assumed" }
threads = { value = 1, source = "assumed" }
[node.cores.steps]
source = "assumed"
copies = [[256, 20], [1048576, 200]]
adds = [[256, 20], [1048576, 200]]
[node.gpu]
name = "cpu-1-threads"
generation = "volta"
library = "trainwright"
memory = { value = "4 GiB", source = "assumed" }
memory_bandwidth = { value = "20 GB/s", source = "assumed" }
multiprocessors = { value = 1, source = "assumed" }
[node.gpu.peak]
fp32 = { value = "50 GFLOP/s", source = "assumed" }
[node.gpu.achieved]
attention_forward = { value = 0.2, source = "assumed" }
attention_backward = { value = 0.2, source = "assumed" }
memory = { value = 1.0, source = "assumed" }
reduction = { value = 1.0, source = "assumed" }
kernel_overhead = { value = "0.1 us", source = "assumed" }
[node.gpu.achieved.matrix]
fp32 = { value = 1.0, source = "assumed" }
"#;

/// One op: a profile has some.
const OPS: &str = "gpu,kernel,shape,precision,time_us,op,source,date,versions\n\
                   cpu-1-threads,elementwise,bytes=1024,bf16,1.0,activation forward,assumed,,\n";

/// Writes the profile into the folder `machine`.
pub fn write_profile(folder: &Folder) {
    std::fs::create_dir(folder.path("machine")).unwrap();
    folder.write("machine/threads-1.toml", MACHINE);
    folder.write("machine/kernels.csv", OPS);
}
