//! What it takes to launch, to copy, and to do collectives among the GPUs of a machine.

use super::kernels::Shapes;
use crate::device::BareDevices;
use std::sync::mpsc;
use trainwright_kernels::cuda::measure::{Bench, Timed};
use trainwright_kernels::cuda::reduce::ClipFactor;
use trainwright_kernels::cuda::{
    About, Address, Collective, Device, DeviceError, GroupName, Membership, Number, Recorded,
};
use trainwright_spec::cluster::{MeasuredSweep, MeasuredTime, NetworkProfile, ProfileKind};
use trainwright_spec::collective::CollectiveKind;
use trainwright_spec::units::{Bytes, Seconds};

/// What was timed between one place and another.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum LinkKind {
    /// A launch of a kernel that does next to nothing, enqueued by the host one after the other.
    Launch,
    /// A launch of that kernel in a graph of many launches.
    LaunchInGraph,
    /// A copy out of the GPU into pinned memory.
    ToHost,
    /// A copy into the GPU out of it.
    FromHost,
    /// A copy within the GPU's memory, which reads and writes as many bytes.
    Within,
    /// A copy into another GPU.
    ToPeer,
}

impl LinkKind {
    /// Every kind, in the order of tables.
    pub const ALL: [LinkKind; 6] = [
        LinkKind::Launch,
        LinkKind::LaunchInGraph,
        LinkKind::ToHost,
        LinkKind::FromHost,
        LinkKind::Within,
        LinkKind::ToPeer,
    ];

    /// The name in tables.
    pub fn name(self) -> &'static str {
        match self {
            LinkKind::Launch => "launch",
            LinkKind::LaunchInGraph => "launch in a graph",
            LinkKind::ToHost => "copy to the host",
            LinkKind::FromHost => "copy from the host",
            LinkKind::Within => "copy within the GPU",
            LinkKind::ToPeer => "copy to the next GPU",
        }
    }
}

/// A measurement.
#[derive(Debug, Clone, Copy, PartialEq)]
pub struct Link {
    /// Of what.
    pub kind: LinkKind,
    /// How much was copied; nothing in a launch.
    pub bytes: usize,
    /// What one took.
    pub timed: Timed,
}

/// Launches of a graph.
const LAUNCHES: usize = 100;

/// Launches and copies of a device, and copies to a `peer`.
///
/// # Errors
/// Of the device.
pub(super) fn measure(
    bench: &mut Bench,
    peer: Option<Address>,
    shapes: &Shapes,
) -> Result<Vec<Link>, DeviceError> {
    let (squares, factor) = (bench.random(Number::F32, 2)?, bench.random(Number::F32, 2)?);
    let small = ClipFactor { squares, factor, count: 1, bound: 1.0 }.launch();
    let launched = bench.time(|device| device.launch(&small))?;
    let graph = bench.device.capture(&vec![Recorded::Launch(small); LAUNCHES])?;
    let all = bench.time(|device| device.replay(&graph))?;
    let in_graph = Timed { seconds: all.seconds / LAUNCHES as f64, ..all };
    drop(graph);
    let launches = [(LinkKind::Launch, launched), (LinkKind::LaunchInGraph, in_graph)];
    let mut links: Vec<Link> = launches.map(|(kind, timed)| Link { kind, bytes: 0, timed }).into();
    let most = largest(shapes);
    let here = [bench.random(Number::Bf16, most / 2)?, bench.device.allocate(most)?];
    let host = bench.device.allocate_on_host(most)?;
    bench.device.on_host(host, most, &mut |bytes| bytes.fill(7))?;
    let routes = [
        Some((LinkKind::ToHost, host, here[0])),
        Some((LinkKind::FromHost, here[0], host)),
        Some((LinkKind::Within, here[1], here[0])),
        peer.map(|peer| (LinkKind::ToPeer, peer, here[0])),
    ];
    for (kind, to, from) in routes.into_iter().flatten() {
        for bytes in shapes.bytes {
            let timed = bench.time(|device| device.copy(to, from, *bytes))?;
            links.push(Link { kind, bytes: *bytes, timed });
        }
    }
    bench.device.clear()?;
    Ok(links)
}

/// Bytes of the largest copy.
pub(super) fn largest(shapes: &Shapes) -> usize {
    shapes.bytes.iter().max().copied().unwrap_or(0)
}

/// Does some work with the address of `bytes` bytes on a machine's second GPU, which a separate thread has open.
///
/// # Errors
/// Of that device, or of the work.
pub(super) fn with_peer<T>(
    devices: &BareDevices,
    bytes: usize,
    work: impl FnOnce(Address) -> Result<T, DeviceError>,
) -> Result<T, DeviceError> {
    std::thread::scope(|scope| {
        let (sender, receiver) = mpsc::channel();
        let (done, is_done) = mpsc::channel::<()>();
        let open = devices.open;
        scope.spawn(move || {
            let made = open(1).and_then(|mut device| Ok((device.allocate(bytes)?, device)));
            let (at, device) = match made {
                Ok((at, device)) => (Ok(at), Some(device)),
                Err(error) => (Err(error), None),
            };
            // Whoever waits for it is there.
            let _ = sender.send(at);
            // The device stays open until nobody copies to it any more.
            let _ = is_done.recv();
            drop(device);
        });
        let at = receiver.recv().expect("the thread sends before it ends")?;
        let result = work(at);
        drop(done);
        result
    })
}

/// Collectives that NCCL is asked for, of all that a plan's axes have between GPUs.
const COLLECTIVES: [CollectiveKind; 3] =
    [CollectiveKind::AllReduce, CollectiveKind::AllGather, CollectiveKind::ReduceScatter];

/// Runs of each size in a sample, the same on all ranks.
const RUNS: usize = 5;

/// Collectives among the first two, four, … and all GPUs, each a rank in a separate thread.
///
/// # Errors
/// Of any of them.
pub(super) fn network(
    devices: &BareDevices,
    gpus: usize,
    cluster: &str,
    about: &About,
    source: &str,
) -> Result<NetworkProfile, DeviceError> {
    let mut groups = Vec::new();
    let mut leader = (devices.open)(0)?;
    let doubled = std::iter::successors(Some(2), |size| Some(2 * size)).take_while(|size| *size < gpus);
    for size in doubled.chain([gpus]) {
        groups.push((size, leader.new_group()?));
    }
    drop(leader);
    let rank = |rank: usize| sweeps(devices, rank, &groups);
    let all: Vec<Result<Vec<MeasuredSweep>, DeviceError>> = std::thread::scope(|scope| {
        let rank = &rank;
        let ranks: Vec<_> = (0..gpus).map(|number| scope.spawn(move || rank(number))).collect();
        ranks.into_iter().map(|rank| rank.join().expect("a rank's thread does not panic")).collect()
    });
    // Those of rank 0, if all went well.
    let mut all = all.into_iter().collect::<Result<Vec<_>, _>>()?;
    Ok(NetworkProfile {
        kind: ProfileKind::Network,
        cluster: cluster.into(),
        gpus_per_node: gpus,
        gpu: Some(about.name.clone()),
        date: Some(crate::measure::calibrate::today()),
        versions: Some(about.versions.clone()),
        source: source.into(),
        sweeps: all.swap_remove(0),
    })
}

/// What one rank measures.
fn sweeps(
    devices: &BareDevices,
    place: usize,
    groups: &[(usize, GroupName)],
) -> Result<Vec<MeasuredSweep>, DeviceError> {
    let mut device = (devices.open)(place)?;
    let joined = || groups.iter().enumerate().filter(|(_, (size, _))| place < *size);
    for (group, (size, name)) in joined() {
        device.enter(group, Membership { name: *name, place, size: *size })?;
    }
    let shapes = Shapes::of(devices);
    let most = largest(shapes);
    let mut bench = Bench::new(&mut *device, shapes.effort);
    let [from, to] = [bench.random(Number::Bf16, most / 2)?, bench.random(Number::Bf16, most / 2)?];
    let mut sweeps = Vec::new();
    for (group, (size, _)) in joined() {
        for collective in COLLECTIVES {
            let mut rows = Vec::new();
            for bytes in shapes.bytes {
                // Every rank's share is as long.
                let share = bytes / Number::Bf16.size() / size;
                let count = share * size;
                let work = match collective {
                    CollectiveKind::AllGather => Collective::AllGather { from, to, count: share },
                    CollectiveKind::ReduceScatter => Collective::ReduceScatter { from, to, count: share },
                    _ => Collective::AllReduce { x: from, count },
                };
                let meet = |device: &mut dyn Device| device.collective(group, work, Number::Bf16);
                meet(bench.device)?;
                let timed = bench.time_runs(RUNS, meet)?;
                let bytes = Bytes::new((count * Number::Bf16.size()) as f64);
                rows.push(MeasuredTime { bytes, time: Seconds::new(timed.seconds) });
            }
            sweeps.push(MeasuredSweep { collective, nodes: 1, ranks_per_node: *size, groups: 1, rows });
        }
    }
    Ok(sweeps)
}
