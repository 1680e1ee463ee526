//! The kinds of devices there are.

use super::{Cpu, Device, cuda};
use crate::error::{Fault, RunError};
use serde::{Serialize, Serializer};
use std::fmt;
use std::rc::Rc;
use trainwright_kernels::Threads;
use trainwright_kernels::cuda::{DeviceError, Number};

/// A kind of device that ranks compute on.
#[derive(Clone, Copy)]
pub struct DeviceKind {
    /// Its name.
    pub name: &'static str,
    /// What it is, for a list.
    pub summary: &'static str,
    /// Alignment of parameters and their shards, in elements.
    pub(crate) alignment: usize,
    /// Whether it runs the kernels for CUDA, on streams: messages and collectives overlap with what is computed.
    pub(crate) runs_cuda_kernels: bool,
    /// Says what is missing on this machine before anything runs.
    pub(crate) require: fn() -> Result<(), RunError>,
    /// Says what is missing if the rank of that number on its machine multiplies in fp8.
    pub(crate) require_fp8: fn(usize) -> Result<(), RunError>,
    /// The GPU that a rank takes; `None` if it computes on the host.
    pub(crate) gpu: fn(LocalRank) -> Option<GpuName>,
    /// Says what is missing for collectives of ranks on separate GPUs.
    pub(crate) require_nccl: fn() -> Result<(), RunError>,
    /// Whether NCCL's settings let ranks share a GPU, and it can.
    pub(crate) shares_by_nccl: fn() -> bool,
    /// Opens one for a rank, in the rank's thread.
    pub(crate) open: fn(Opening) -> Result<Rc<dyn Device>, Fault>,
    /// Devices without ranks, to measure kernels; `None` if they are measured otherwise.
    pub(crate) bare: Option<BareDevices>,
}

/// GPUs of this machine as they are, by their numbers.
#[derive(Clone, Copy)]
pub(crate) struct BareDevices {
    /// How many there are.
    pub count: fn() -> usize,
    /// Opens one, for this thread.
    pub open: fn(usize) -> Result<Box<dyn trainwright_kernels::cuda::Device>, DeviceError>,
    /// By what other tools know it, if they do.
    pub name: fn(usize) -> Option<GpuName>,
    /// Whether this machine's cores emulate them: then only small shapes are measured.
    pub are_emulated: bool,
}

/// Whose kernels do attention on GPUs.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize)]
pub enum AttentionBy {
    /// Ours: `--attention own`.
    Ours,
    /// cuDNN's fused ones for what they can do in a plan in bf16, and ours for the rest.
    Cudnn,
}

/// A rank on its machine.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) struct LocalRank {
    /// Its number there.
    pub number: usize,
    /// Whether it is a separate process.
    pub is_process: bool,
}

/// Identifies a GPU among those of all machines.
pub(crate) type GpuName = [u8; 16];

/// Whom a device is opened for.
#[derive(Debug, Clone, Copy)]
pub(crate) struct Opening {
    /// The rank's number on its machine.
    #[cfg_attr(not(feature = "cuda"), allow(dead_code, reason = "only GPUs are given out by number"))]
    pub local: usize,
    /// Threads of its CPU.
    pub threads: Threads,
    /// What the plan's weights and activations are.
    pub number: Number,
    /// Whose kernels are to do attention, where that was said.
    pub attention: Option<AttentionBy>,
    /// Whether its gradients are to have the same bits in every run.
    pub deterministic: bool,
}

impl Opening {
    /// The device of that number, for one thread in f32.
    pub fn plain(local: usize) -> Self {
        Self { local, threads: Threads::ONE, number: Number::F32, attention: None, deterministic: false }
    }
}

/// Elements in 16 bytes, which kernels read and write at a time: 16 bytes are whole elements of every number type.
const PACKS: usize = 8;

/// All kinds; the first one is used where nothing is said.
pub const DEVICES: [DeviceKind; 4] = [
    DeviceKind {
        name: "cpu",
        summary: "the cores of this machine",
        alignment: 1,
        runs_cuda_kernels: false,
        require: || Ok(()),
        require_fp8: |_| Ok(()),
        gpu: |_| None,
        require_nccl: || Ok(()),
        shares_by_nccl: || false,
        open: |opening| Ok(Rc::new(Cpu { threads: opening.threads })),
        bare: None,
    },
    DeviceKind {
        name: "cuda",
        summary: "NVIDIA GPUs",
        alignment: PACKS,
        runs_cuda_kernels: true,
        require: cuda::require_gpu,
        require_fp8: cuda::require_fp8,
        gpu: |rank| cuda::gpu_of(rank.number),
        require_nccl: cuda::require_nccl,
        shares_by_nccl: cuda::shares_by_nccl,
        open: cuda::open_gpu,
        bare: Some(BareDevices {
            count: cuda::count_gpus,
            open: cuda::open_bare_gpu,
            name: cuda::gpu_of,
            are_emulated: false,
        }),
    },
    DeviceKind {
        name: "emulated",
        summary: "the kernels for NVIDIA GPUs as C++ on the cores of this machine, to check a plan: very slow",
        alignment: PACKS,
        runs_cuda_kernels: true,
        require: cuda::require_emulator,
        require_fp8: |_| Ok(()),
        // Processes share no emulated memory.
        gpu: |rank| (!rank.is_process).then_some([0; 16]),
        require_nccl: || Ok(()),
        shares_by_nccl: || false,
        open: cuda::open_emulator,
        bare: Some(BareDevices {
            count: || 1,
            open: cuda::open_bare_emulator,
            name: |_| None,
            are_emulated: true,
        }),
    },
    DeviceKind {
        name: "emulated-gpus",
        summary: "the same with a GPU for each rank, between which NCCL is emulated too",
        alignment: PACKS,
        runs_cuda_kernels: true,
        require: cuda::require_emulator,
        require_fp8: |_| Ok(()),
        gpu: |rank| (!rank.is_process).then_some((rank.number as u128 + 1).to_le_bytes()),
        require_nccl: || Ok(()),
        shares_by_nccl: || false,
        open: cuda::open_emulator,
        bare: Some(BareDevices {
            count: || 2,
            open: cuda::open_bare_emulator,
            name: |_| None,
            are_emulated: true,
        }),
    },
];

impl DeviceKind {
    /// The one of that name.
    pub fn from_name(name: &str) -> Option<DeviceKind> {
        DEVICES.into_iter().find(|kind| kind.name == name)
    }
}

impl PartialEq for DeviceKind {
    fn eq(&self, other: &Self) -> bool {
        self.name == other.name
    }
}

impl Serialize for DeviceKind {
    /// As its name.
    fn serialize<S: Serializer>(&self, serializer: S) -> Result<S::Ok, S::Error> {
        serializer.serialize_str(self.name)
    }
}

impl fmt::Debug for DeviceKind {
    fn fmt(&self, f: &mut fmt::Formatter) -> fmt::Result {
        f.write_str(self.name)
    }
}
