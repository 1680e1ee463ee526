//! Measures the GPUs of a machine without any plan: kernels over a grid of shapes, what it takes to launch and to copy, and
//! collectives among them. What comes out is what forecasts read: a table of kernels, the network's sweeps, and the machine
//! as a cluster.
//!
//! ```text
//! kernels.rs  products, attention, what memory binds ─► DeviceProfile ─┬─► node.rs: Cluster
//! links.rs    launches, copies ─► Link ────────────────────────────────┘
//!             collectives among the GPUs ─► NetworkProfile
//! shared.rs   a GPU that several ranks share ─► Cores
//! ```

mod clocks;
mod kernels;
mod links;
mod node;
mod shared;

pub use links::{Link, LinkKind};
pub use shared::shared_gpus;

use crate::device::DeviceKind;
use crate::error::{Fault, RunError};
use crate::measure::calibrate::today;
use kernels::Shapes;
use trainwright_kernels::cuda::About;
use trainwright_kernels::cuda::measure::Bench;
use trainwright_spec::catalog;
use trainwright_spec::cluster::{Cluster, DeviceProfile, NetworkProfile};

/// What was measured of a machine's GPUs.
#[derive(Debug, Clone, PartialEq)]
pub struct MeasuredGpus {
    /// Times of kernels on the first of them.
    pub kernels: DeviceProfile,
    /// Launches and copies, on the first one and to the second one.
    pub links: Vec<Link>,
    /// Collectives among the first two, four, … and all; `None` if there is one GPU.
    pub network: Option<NetworkProfile>,
    /// The machine as a cluster by itself, without these tables. Its GPU has the catalog's name where the catalog knows it.
    pub cluster: Cluster,
    /// The day, in UTC.
    pub date: String,
    /// Versions of what drives them, and clocks seen.
    pub versions: String,
}

/// Measures the machine; `progress` gets how many parts of how many are done. `deterministic` is that of `Settings`.
///
/// # Errors
/// `Device` if the machine has no device of the kind, or if it fails.
pub fn measure_gpus(
    device: DeviceKind,
    deterministic: bool,
    progress: &mut dyn FnMut(usize, usize),
) -> Result<MeasuredGpus, RunError> {
    (device.require)()?;
    let failed = |reason: String| RunError::Device { name: device.name, reason };
    let Some(bare) = device.bare else {
        return Err(failed("it has no kernels that are measured by themselves".into()));
    };
    let fault = |error| failed(Fault::Device(error).to_string());
    const PARTS: usize = 3;
    progress(0, PARTS);
    let gpus = (bare.count)();
    let mut first = (bare.open)(0).map_err(fault)?;
    let about = first.about();
    let shapes = Shapes::of(&bare);
    let mut bench = Bench::new(&mut *first, shapes.effort);
    let measured = kernels::measure(&mut bench, shapes, deterministic).map_err(fault)?;
    let seen = clocks::under_load(&mut bench, shapes, (bare.name)(0)).map_err(fault)?;
    progress(1, PARTS);
    let mut measure_links = |peer| links::measure(&mut bench, peer, shapes);
    let links = match gpus {
        0 | 1 => measure_links(None),
        _ => links::with_peer(&bare, links::largest(shapes), |peer| measure_links(Some(peer))),
    };
    let links = links.map_err(fault)?;
    drop(first);
    progress(2, PARTS);
    let name = known_name(&about);
    let source = source(&about, &seen);
    let network = match (gpus, (device.require_nccl)()) {
        (2.., Ok(())) => Some(links::network(&bare, gpus, &name, &about, &source).map_err(fault)?),
        _ => None,
    };
    progress(PARTS, PARTS);
    let kernels = DeviceProfile { source: source.clone(), kernels: measured, ops: Vec::new() };
    let cluster = node::cluster(&name, gpus, &about, &kernels, &links, &source);
    let versions = format!("{}{seen}", about.versions);
    Ok(MeasuredGpus { kernels, links, network, cluster, date: today(), versions })
}

/// The catalog's name of a GPU, or the driver's as names are in the catalog.
fn known_name(about: &About) -> String {
    catalog::gpu_of_driver(&about.name).map_or_else(
        || {
            let word =
                |letter: char| if letter.is_ascii_alphanumeric() { letter.to_ascii_lowercase() } else { ' ' };
            let words: String = about.name.chars().map(word).collect();
            words.split_whitespace().collect::<Vec<_>>().join("-")
        },
        str::to_string,
    )
}

fn source(about: &About, clocks: &str) -> String {
    format!("trainwright {} on {}{clocks}, {}", env!("CARGO_PKG_VERSION"), about.summary, today())
}
