//! Times between a GPU and its node's processors: copies, and the optimizer's step on the processors.
//!
//! It knows the node and sizes. It does not know what is copied, or why.

use trainwright_spec::cluster::{Node, Processors};
use trainwright_spec::program::{CopyDirection, HostUpdate, Place};
use trainwright_spec::units::{Bytes, BytesPerSecond, Seconds};

/// Time of a copy of `bytes` between one GPU and the host, while all GPUs of the node copy in that direction.
///
/// T = α + n / min(β, Β / g), for the drives min(β, Β / g, Δ / g)
///
/// α time of a copy of nothing, n bytes, β what one GPU's copies reach, Β what all g GPUs of the node reach together, Δ
/// bandwidth of the node's drives, which what is copied from or to passes on its way. The two directions do not slow
/// each other. Zero without processors, which `Plan::check` refuses.
/// Source: published single and simultaneous pinned copies (V100, A100, L4, H100; see the catalog's processors).
pub fn copy_time(direction: CopyDirection, place: Place, bytes: Bytes, node: &Node) -> Seconds {
    let Some(processors) = &node.processors else { return Seconds::ZERO };
    if bytes == Bytes::ZERO {
        return Seconds::ZERO;
    }
    let gpus = node.gpus.value as f64;
    let (alone, drives) = match direction {
        CopyDirection::ToHost => (&processors.to_host, drives(processors).map(|(_, write)| write)),
        CopyDirection::FromHost => (&processors.from_host, drives(processors).map(|(read, _)| read)),
    };
    let link = alone.value.min(processors.together.value / gpus);
    let reached = match (place, drives) {
        (Place::Nvme, Some(drives)) => link.min(drives / gpus),
        _ => link,
    };
    processors.copy_latency.value + bytes / reached
}

/// Time of the processors' work for one rank, while they do as much for each of the node's others.
///
/// T = max(n g / (φ β), r g / Δ_r + w g / Δ_w)
///
/// n bytes moved in host memory, β its published bandwidth, φ the part of it that an optimizer step reaches, g GPUs of the
/// node, r bytes read from and w written to drives of bandwidths Δ_r and Δ_w. Reads, updates and writes of successive
/// pieces overlap; reads and writes share the drives.
/// Source: ZeRO-Offload (arXiv 2101.06840, section 5) for the update bound by memory; ZeRO-Infinity (arXiv 2104.07857,
/// section 6) for its overlap with the drives.
pub fn update_time(update: &HostUpdate, node: &Node) -> Seconds {
    let Some(processors) = &node.processors else { return Seconds::ZERO };
    let gpus = node.gpus.value as f64;
    let reached = processors.memory_bandwidth.value * processors.update_efficiency.value;
    let memory = gpus * update.memory / reached;
    let on_drives = drives(processors).map_or(Seconds::ZERO, |(read, write)| {
        gpus * update.nvme_read / read + gpus * update.nvme_written / write
    });
    memory.max(on_drives)
}

/// Bandwidths of the drives: reading, writing.
fn drives(processors: &Processors) -> Option<(BytesPerSecond, BytesPerSecond)> {
    processors.drives.as_ref().map(|drives| (drives.read.value, drives.write.value))
}

#[cfg(test)]
mod tests {
    use super::*;

    /// A DGX-2: 16 GPUs of 13.2 GB/s out and 12.4 GB/s in alone, 48 GB/s together; 0.43 of 256 GB/s; drives of 25 GB/s.
    fn node(gpus: usize) -> Node {
        let mut node = Node::from_name("dgx-2").unwrap();
        node.gpus.value = gpus;
        node
    }

    fn check(found: Seconds, expected: f64) {
        assert!((found.get() / expected - 1.0).abs() < 1e-12, "{found}, not {expected}");
    }

    #[test]
    fn a_copy_gets_its_gpus_share() {
        let copy = |gpus, direction, place| copy_time(direction, place, Bytes::new(1e9), &node(gpus));
        use CopyDirection::{FromHost, ToHost};
        check(copy(1, ToHost, Place::Host), 2.5e-6 + 1.0 / 13.2);
        check(copy(1, FromHost, Place::Host), 2.5e-6 + 1.0 / 12.4);
        check(copy(16, ToHost, Place::Host), 2.5e-6 + 1.0 / 3.0);
        check(copy(16, FromHost, Place::Nvme), 2.5e-6 + 16.0 / 25.0);
        assert_eq!(copy_time(ToHost, Place::Host, Bytes::ZERO, &node(1)), Seconds::ZERO);
    }

    #[test]
    fn an_update_is_bound_by_memory_or_drives() {
        let bytes = |giga: f64| Bytes::new(giga * 1e9);
        let memory = HostUpdate { memory: bytes(28.0), ..HostUpdate::default() };
        check(update_time(&memory, &node(1)), 28.0 / (256.0 * 0.43));
        check(update_time(&memory, &node(16)), 16.0 * 28.0 / (256.0 * 0.43));
        let drives = HostUpdate { nvme_read: bytes(12.0), nvme_written: bytes(12.0), ..memory };
        check(update_time(&drives, &node(1)), 24.0 / 25.0);
    }
}
