//! Costs that remember collectives, messages and matrix products: many layouts have groups of the same ranks send as much.

use std::collections::HashMap;
use std::sync::{Arc, RwLock};
use trainwright_sim::costs::{ClusterCosts, Conditions, Cost, Costs, Query, QueryWork};
use trainwright_spec::cluster::Cluster;
use trainwright_spec::collective::CollectiveKind;
use trainwright_spec::precision::Precision;
use trainwright_spec::program::{CollectiveCall, Kernel, Pass};

/// A cluster's costs, for many plans. Those of collectives depend on their groups' ranks alone.
#[derive(Debug, Clone)]
pub(crate) struct CachedCosts<'a> {
    costs: ClusterCosts<'a>,
    by_op: bool,
    /// By the ranks that take part, and what they do.
    exchanges: Known<Vec<usize>, Exchange>,
    /// Matrix products by device.
    products: Known<usize, Product>,
}

/// Costs by two keys: the outer one can be looked up without being owned.
type Known<Outer, Inner> = Arc<RwLock<HashMap<Outer, HashMap<Inner, Cost>>>>;

/// Module and pass of an op; `None` where costs do not depend on them.
type OpName = Option<(String, Pass)>;

/// Op and bytes (as bits) of a collective, or of a message that its sender waits for or not.
type Exchange = (OpName, Result<(CollectiveKind, CollectiveCall), bool>, u64);

/// Op and shape of a `Kernel::Gemm`: count, m, n, k.
type Product = (OpName, [usize; 4], (Precision, Option<u64>));

impl<'a> CachedCosts<'a> {
    pub fn new(cluster: &'a Cluster) -> Self {
        let costs = ClusterCosts::new(cluster);
        let by_op = costs.conditions().by_op;
        Self { costs, by_op, exchanges: Arc::default(), products: Arc::default() }
    }

    fn name(&self, query: &Query) -> OpName {
        query.op.filter(|_| self.by_op).map(|(module, pass)| (module.to_string(), pass))
    }
}

/// The cost that is known, or that `find` finds.
fn known<Outer, Borrowed, Inner>(
    known: &Known<Outer, Inner>,
    outer: &Borrowed,
    inner: Inner,
    find: impl FnOnce() -> Cost,
) -> Cost
where
    Outer: std::borrow::Borrow<Borrowed> + std::hash::Hash + Eq,
    Borrowed: ToOwned<Owned = Outer> + std::hash::Hash + Eq + ?Sized,
    Inner: std::hash::Hash + Eq,
{
    let all = known.read().expect("no holder of the lock panics");
    if let Some(found) = all.get(outer).and_then(|of_outer| of_outer.get(&inner)) {
        return *found;
    }
    drop(all);
    let found = find();
    let mut all = known.write().expect("no holder of the lock panics");
    all.entry(outer.to_owned()).or_default().insert(inner, found);
    found
}

impl Costs for CachedCosts<'_> {
    fn cost(&self, query: &Query) -> Cost {
        let find = || self.costs.cost(query);
        match query.work {
            QueryWork::Collective { kind, bytes, call, group } => {
                let exchange = (self.name(query), Ok((kind, call)), bytes.get().to_bits());
                known(&self.exchanges, group.ranks.as_slice(), exchange, find)
            }
            QueryWork::Message { bytes, to, blocking } => {
                let exchange = (self.name(query), Err(blocking), bytes.get().to_bits());
                known(&self.exchanges, [query.rank, to].as_slice(), exchange, find)
            }
            QueryWork::Kernel(&Kernel::Gemm { count, m, n, k, precision, adds_to }) => {
                let added = adds_to.map(|bytes| bytes.get().to_bits());
                let product = (self.name(query), [count, m, n, k], (precision, added));
                known(&self.products, &self.costs.device(query.rank), product, find)
            }
            _ => find(),
        }
    }

    fn device(&self, rank: usize) -> usize {
        self.costs.device(rank)
    }

    fn machine(&self, rank: usize) -> Option<usize> {
        self.costs.machine(rank)
    }

    fn conditions(&self) -> Conditions<'_> {
        self.costs.conditions()
    }
}
