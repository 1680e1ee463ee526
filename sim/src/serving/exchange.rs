//! Tokens to their experts and back.
//!
//! Inside a node a library's own kernels do it, as its measurements say; but tables without captured graphs have the host's time in
//! them, so that a latency counts no more than over nodes. Over nodes there are closed forms of DeepEP's two methods,
//! with figures of its published runs on 2 to 8 nodes of H100 and H200 with a NIC of 50 GB/s for each GPU:
//!
//! ```text
//! low latency      T = 26 us + s k H b (1 − 1/n) / β            median error 5 % (26 runs there, 26 back)
//! high throughput  T = 50 us + s H b (n − 1)(1 − (1 − 1/n)^k) / (0.85 β)      18 % there, 10 % back (127 runs; 8 nodes take 2.2 times that)
//! ```
//!
//! s tokens on each GPU, k experts each, H elements of b bytes, n nodes, β bandwidth of a GPU's share of the NICs. By low latency a
//! token goes to each of its experts, by high throughput once to each node, which passes it on.
//! Source: DeepEP, README.md; AIConfigurator's `moe_a2a` tables.

use crate::libraries::{Call, Chip, Exchange, Parts, Unknown, Wanted, kernels, lacking};
use trainwright_spec::cluster::Cluster;
use trainwright_spec::units::{Bytes, BytesPerSecond, Seconds};

/// The latency of both methods over nodes.
const LATENCY: [Seconds; 2] = [Seconds::new(26e-6), Seconds::new(50e-6)];
/// The part of the NICs' bandwidth that they reach.
const EFFICIENCY: [f64; 2] = [1.0, 0.85];

/// How tokens move: the coefficients of each of a library's methods, there and back, once one was asked for.
#[derive(Debug, Default)]
pub(super) struct Exchanges {
    methods: Vec<[Vec<f64>; 2]>,
}

impl Exchanges {
    /// The time there and back; `there` and `back` differ in the format of what is sent. Of the methods the one that is faster for
    /// so many tokens counts.
    ///
    /// # Errors
    /// `Unknown`.
    pub fn time(
        &mut self,
        [there, back]: [Exchange; 2],
        chip: &Chip,
        library: &str,
        cluster: &Cluster,
    ) -> Result<Seconds, Unknown> {
        if there.gpus > cluster.node.gpus.value {
            let without_nics = || Unknown::Links { gpu: cluster.node.gpu.name.clone() };
            return over_nodes([there, back], cluster).ok_or_else(without_nics);
        }
        // Tables of kernels have both ways in 16 bits.
        let call = Call::Exchange(back);
        if self.methods.is_empty() {
            self.methods = methods(&call, chip, library)?;
        }
        let time = |[there, back]: &[Vec<f64>; 2]| {
            let [there, back] = [there, back].map(|coefficients| call.parts(chip, coefficients));
            let within = |parts: Parts| Parts { latency: parts.latency.min(LATENCY[0]), ..parts }.total();
            Some(within(there?) + within(back?))
        };
        self.methods.iter().filter_map(time).reduce(Seconds::min).ok_or_else(|| lacking(&call, chip))
    }
}

/// The time over nodes by the faster method; `None` if the nodes have no NICs.
fn over_nodes(ways: [Exchange; 2], cluster: &Cluster) -> Option<Seconds> {
    let time =
        |method: usize| Some(one_way(method, &ways[0], cluster)? + one_way(method, &ways[1], cluster)?);
    Some(time(0)?.min(time(1)?))
}

/// The time of one way over nodes: method 0 has low latency, 1 high throughput.
fn one_way(method: usize, way: &Exchange, cluster: &Cluster) -> Option<Seconds> {
    let nics = cluster.node.nics.as_ref()?;
    let per_node = cluster.node.gpus.value;
    let share: BytesPerSecond = nics.count.value as f64 * nics.bandwidth.value / per_node as f64;
    let nodes = way.gpus.div_ceil(per_node) as f64;
    let copies = match method {
        0 => way.chosen as f64 * (1.0 - 1.0 / nodes),
        _ => (nodes - 1.0) * (1.0 - (1.0 - 1.0 / nodes).powi(way.chosen as i32)),
    };
    let bytes: Bytes = (way.tokens * way.hidden) as f64 * copies * way.element.activation;
    Some(LATENCY[method] + bytes / (EFFICIENCY[method] * share))
}

/// The coefficients of each method's kernels, there and back. Where a library's kernels are not told apart, both ways are alike.
fn methods(call: &Call, chip: &Chip, library: &str) -> Result<Vec<[Vec<f64>; 2]>, Unknown> {
    let kernels = kernels(call, chip, &Wanted { library: Some(library), ..Wanted::default() })?;
    let of = |name: String| {
        kernels.iter().find(|(kernel, _)| *kernel == name).map(|(_, coefficients)| coefficients.clone())
    };
    let names = kernels.iter().filter_map(|(kernel, _)| kernel.strip_suffix(" dispatch"));
    let both =
        names.filter_map(|name| Some([of(format!("{name} dispatch"))?, of(format!("{name} combine"))?]));
    let both: Vec<[Vec<f64>; 2]> = both.collect();
    match (both.is_empty(), kernels.first()) {
        (true, Some((_, any))) => Ok(vec![[any.clone(), any.clone()]]),
        _ => Ok(both),
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::libraries::Operands;

    #[test]
    fn exchanges_over_nodes_take_what_deepep_prints() {
        // H800, a NIC of 50 GB/s for each GPU, 128 tokens of 7,168 to 8 experts each: DeepEP, docs/legacy.md.
        let cluster = Cluster::from_name("hgx-h800:32").unwrap();
        let way = |gpus: usize, format: &str| Exchange {
            gpus,
            tokens: 128,
            hidden: 7168,
            chosen: 8,
            element: Operands::parse(format).unwrap(),
        };
        for (gpus, format, printed) in
            [(16, "fp8", 118.0), (256, "fp8", 194.0), (64, "bfloat16", 314.0), (128, "bfloat16", 369.0)]
        {
            let time = one_way(0, &way(gpus, format), &cluster).unwrap().get() * 1e6;
            assert!((time / printed - 1.0).abs() < 0.2, "{gpus} {format}: {time}, printed {printed}");
        }
    }
}
