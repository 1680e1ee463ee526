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
    exchanges: Arc<RwLock<HashMap<SomeRanks, Vec<OfRanks>>>>,
    /// Matrix products by device.
    products: Arc<RwLock<HashMap<(usize, Product), Cost>>>,
}

/// Number, first, second and last of some ranks: groups may have thousands, too many to read at every look-up.
type SomeRanks = (usize, [usize; 3]);

/// The exchanges of ranks that are known.
#[derive(Debug, Clone)]
struct OfRanks {
    ranks: Vec<usize>,
    costs: HashMap<Exchange, Cost>,
}

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

fn some_of(ranks: &[usize]) -> SomeRanks {
    let at = |index: usize| ranks.get(index).copied().unwrap_or_default();
    (ranks.len(), [at(0), at(1), at(ranks.len().saturating_sub(1))])
}

impl CachedCosts<'_> {
    /// The cost of an exchange that is known, or that `find` finds.
    fn exchange(&self, ranks: &[usize], exchange: Exchange, find: impl FnOnce() -> Cost) -> Cost {
        let some = some_of(ranks);
        let is_of = |of: &OfRanks| of.ranks == ranks;
        let known = self.exchanges.read().expect("no holder of the lock panics");
        let found = known.get(&some).and_then(|all| all.iter().find(|of| is_of(of))?.costs.get(&exchange));
        if let Some(cost) = found {
            return *cost;
        }
        drop(known);
        let cost = find();
        let mut known = self.exchanges.write().expect("no holder of the lock panics");
        let all = known.entry(some).or_default();
        let at = all.iter().position(is_of).unwrap_or_else(|| {
            all.push(OfRanks { ranks: ranks.to_vec(), costs: HashMap::new() });
            all.len() - 1
        });
        all[at].costs.insert(exchange, cost);
        cost
    }

    /// The same of a product.
    fn product(&self, device: usize, product: Product, find: impl FnOnce() -> Cost) -> Cost {
        let key = (device, product);
        if let Some(cost) = self.products.read().expect("no holder of the lock panics").get(&key) {
            return *cost;
        }
        let cost = find();
        self.products.write().expect("no holder of the lock panics").insert(key, cost);
        cost
    }
}

impl Costs for CachedCosts<'_> {
    fn cost(&self, query: &Query) -> Cost {
        let find = || self.costs.cost(query);
        match query.work {
            QueryWork::Collective { kind, bytes, call, group } => {
                let exchange = (self.name(query), Ok((kind, call)), bytes.get().to_bits());
                self.exchange(&group.ranks, exchange, find)
            }
            QueryWork::Message { bytes, to, blocking } => {
                let exchange = (self.name(query), Err(blocking), bytes.get().to_bits());
                self.exchange(&[query.rank, to], exchange, find)
            }
            QueryWork::Kernel(&Kernel::Gemm { count, m, n, k, precision, adds_to }) => {
                let added = adds_to.map(|bytes| bytes.get().to_bits());
                let product = (self.name(query), [count, m, n, k], (precision, added));
                self.product(self.costs.device(query.rank), product, find)
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
