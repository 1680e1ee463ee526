//! Costs that remember every collective: many layouts have the same groups send the same.

use std::collections::HashMap;
use std::sync::{Arc, RwLock};
use trainwright_sim::costs::{ClusterCosts, Costs};
use trainwright_sim::engine::{Load, Traffic};
use trainwright_spec::cluster::Cluster;
use trainwright_spec::collective::CollectiveKind;
use trainwright_spec::precision::Precision;
use trainwright_spec::program::{CopyDirection, Group, HostUpdate, Kernel, Op, Place};
use trainwright_spec::units::{Bytes, Seconds};

/// What is known by the ranks that take part and what they do.
type Known<V> = Arc<RwLock<HashMap<Vec<usize>, HashMap<Call, V>>>>;

/// A collective of so many bytes, or a message; and the time that it takes where that is given. Numbers as their bits.
type Call = (Option<CollectiveKind>, u64, u64);

/// A cluster's costs, for many plans. Those of collectives depend on their groups' ranks alone.
#[derive(Debug, Clone)]
pub(crate) struct KnownCosts<'a> {
    costs: ClusterCosts<'a>,
    times: Known<Seconds>,
    traffic: Known<Traffic>,
    /// Matrix products by kind of node and shape.
    products: Arc<RwLock<HashMap<(usize, Product), Seconds>>>,
    /// The kind of node whose kernels are meant.
    kind: usize,
}

/// `Kernel::Gemm`: count, m, n, k.
type Product = ([usize; 4], Precision);

impl<'a> KnownCosts<'a> {
    pub fn new(cluster: &'a Cluster) -> Self {
        Self {
            costs: ClusterCosts::new(cluster),
            times: Arc::default(),
            traffic: Arc::default(),
            products: Arc::default(),
            kind: 0,
        }
    }
}

/// What is known, or what `find` finds.
fn known<V: Copy>(known: &Known<V>, ranks: &[usize], call: Call, find: impl FnOnce() -> V) -> V {
    let all = known.read().expect("no holder of the lock panics");
    if let Some(found) = all.get(ranks).and_then(|of_ranks| of_ranks.get(&call)) {
        return *found;
    }
    drop(all);
    let found = find();
    let mut all = known.write().expect("no holder of the lock panics");
    all.entry(ranks.to_vec()).or_default().insert(call, found);
    found
}

impl Costs for KnownCosts<'_> {
    fn collective(&self, kind: CollectiveKind, bytes: Bytes, group: &Group) -> Seconds {
        let call = (Some(kind), bytes.get().to_bits(), 0);
        known(&self.times, &group.ranks, call, || self.costs.collective(kind, bytes, group))
    }

    fn collective_traffic(
        &self,
        kind: CollectiveKind,
        bytes: Bytes,
        group: &Group,
        time: Seconds,
    ) -> Traffic {
        let call = (Some(kind), bytes.get().to_bits(), time.get().to_bits());
        let find = || self.costs.collective_traffic(kind, bytes, group, time);
        known(&self.traffic, &group.ranks, call, find)
    }

    fn message(&self, bytes: Bytes, from: usize, to: usize) -> Seconds {
        let call = (None, bytes.get().to_bits(), 0);
        known(&self.times, &[from, to], call, || self.costs.message(bytes, from, to))
    }

    fn handed_over(&self, bytes: Bytes, from: usize, to: usize) -> Option<(Seconds, f64)> {
        self.costs.handed_over(bytes, from, to)
    }

    fn message_traffic(&self, bytes: Bytes, from: usize, to: usize, time: Seconds) -> Traffic {
        let call = (None, bytes.get().to_bits(), time.get().to_bits());
        let find = || self.costs.message_traffic(bytes, from, to, time);
        known(&self.traffic, &[from, to], call, find)
    }

    fn device(&self, rank: usize) -> usize {
        self.costs.device(rank)
    }

    fn on(&self, device: usize) -> Option<Self> {
        Some(Self { costs: self.costs.on(device)?, kind: device, ..self.clone() })
    }

    fn kernel(&self, kernel: &Kernel) -> Seconds {
        let Kernel::Gemm { count, m, n, k, precision } = *kernel else { return self.costs.kernel(kernel) };
        let product = (self.kind, ([count, m, n, k], precision));
        let known = self.products.read().expect("no holder of the lock panics");
        if let Some(time) = known.get(&product) {
            return *time;
        }
        drop(known);
        let time = self.costs.kernel(kernel);
        self.products.write().expect("no holder of the lock panics").insert(product, time);
        time
    }

    fn op(&self, op: &Op, kernel: &Kernel) -> Seconds {
        if self.tells_ops_apart() { self.costs.op(op, kernel) } else { self.kernel(kernel) }
    }

    fn tells_ops_apart(&self) -> bool {
        self.costs.tells_ops_apart()
    }

    fn machine(&self, rank: usize) -> Option<usize> {
        self.costs.machine(rank)
    }

    fn jitter(&self) -> &[f64] {
        self.costs.jitter()
    }

    fn collective_cores(&self, kind: CollectiveKind, bytes: Bytes, group: &Group, time: Seconds) -> f64 {
        self.costs.collective_cores(kind, bytes, group, time)
    }

    fn message_cores(&self, bytes: Bytes, from: usize, to: usize, time: Seconds) -> [f64; 2] {
        self.costs.message_cores(bytes, from, to, time)
    }

    fn collective_op(&self, op: &Op, kind: CollectiveKind, bytes: Bytes, group: &Group) -> Seconds {
        match self.costs.cluster.node.cores {
            Some(_) => self.costs.collective_op(op, kind, bytes, group),
            None => self.collective(kind, bytes, group),
        }
    }

    fn copy(&self, direction: CopyDirection, place: Place, bytes: Bytes) -> Seconds {
        self.costs.copy(direction, place, bytes)
    }

    fn host_update(&self, update: &HostUpdate) -> Seconds {
        self.costs.host_update(update)
    }

    fn kernel_load(&self, kernel: &Kernel, time: Seconds) -> Load {
        self.costs.kernel_load(kernel, time)
    }

    fn copy_traffic(&self, bytes: Bytes, time: Seconds) -> Traffic {
        self.costs.copy_traffic(bytes, time)
    }
}
