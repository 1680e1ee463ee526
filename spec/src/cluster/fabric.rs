//! The network between the nodes.
//!
//! ```toml
//! fabric = { oversubscription = 7, pod_nodes = 384 }    # a fat tree with one level of pods below its core
//!
//! [[fabric.fat_tree.levels]]                            # the same with any number of levels
//! nodes = 16
//! oversubscription = 1
//!
//! [fabric.rail_optimised]                               # a leaf switch for each NIC of a node, in every pod
//! pod_nodes = 32
//!
//! [fabric.dragonfly]
//! nodes_per_router = 4
//! routers_per_group = 32
//!
//! [fabric.torus]                                        # links of the GPUs lead to neighbours in other nodes
//! dims = [16, 16, 16]
//!
//! [[fabric.links]]                                      # anything else, link by link
//! between = ["node0", "leaf0"]
//! bandwidth = "50 GB/s"
//! latency = "1 us"
//! ```

use crate::sourced::Sourced;
use crate::units::{BytesPerSecond, Seconds};
use serde::{Deserialize, Serialize};

/// The network between the nodes' NICs.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
#[serde(try_from = "Written", into = "Written")]
pub struct Fabric {
    /// In which pattern it is built.
    pub shape: Shape,
    /// Time that each link between two switches adds to what the NICs' latency already holds; left out: none.
    pub hop_latency: Option<Sourced<Seconds>>,
}

/// The pattern of a fabric.
#[derive(Debug, Clone, PartialEq)]
pub enum Shape {
    /// Groups of nodes within groups of nodes.
    FatTree(FatTree),
    /// Fat tree whose leaf switches each join the NICs of one place in their nodes.
    RailOptimised(RailOptimised),
    /// Groups of routers, all groups joined to each other.
    Dragonfly(Dragonfly),
    /// Each GPU joined to its neighbours.
    Torus(Torus),
    /// Switches and links that a person wrote down.
    Links(Vec<Cable>),
}

/// Groups of nodes within groups of nodes; the core joins the largest.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct FatTree {
    /// From the leaves to the core.
    pub levels: Vec<Level>,
}

/// One level of a fat tree.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct Level {
    /// Nodes in each group of this level.
    pub nodes: Sourced<usize>,
    /// How many times more bandwidth all NICs of a group have than the group's uplinks: 1 is non-blocking.
    pub oversubscription: Sourced<f64>,
    /// Equal uplinks of a group, of which each flow takes one by a hash of its ends; left out: they are one pipe, as
    /// where switches spread packets over all of them.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub uplinks: Option<Sourced<usize>>,
}

/// A leaf switch per rail in each pod: rail i joins NIC i of all its nodes. Spines join the leaves.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct RailOptimised {
    /// Nodes whose NICs of one rail share a leaf switch.
    pub pod_nodes: Sourced<usize>,
    /// How many times more bandwidth the NICs at a leaf have than its links to the spines.
    #[serde(default = "one")]
    pub oversubscription: Sourced<f64>,
}

/// Groups of routers: nodes at routers, each router joined to all of its group, each group to all others.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct Dragonfly {
    /// Nodes at each router.
    pub nodes_per_router: Sourced<usize>,
    /// Routers in each group.
    pub routers_per_group: Sourced<usize>,
    /// How many times more bandwidth the NICs at a router have than its links to the others of its group.
    #[serde(default = "one")]
    pub local_oversubscription: Sourced<f64>,
    /// How many times more bandwidth the NICs of a group have than its links to other groups.
    #[serde(default = "one")]
    pub global_oversubscription: Sourced<f64>,
    /// How flows find their way.
    #[serde(default)]
    pub routing: Routing,
}

/// Which ways through a dragonfly flows take.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default, Serialize, Deserialize)]
#[serde(rename_all = "kebab-case")]
pub enum Routing {
    /// All ways, packet by packet, so that the links of a router, and those of a group, act as one. What a way over
    /// a third group costs that group is not counted.
    #[default]
    Adaptive,
    /// The shortest: the one link between two groups, and the one between two routers.
    Minimal,
}

/// Every GPU joined to two neighbours in each dim by direct links; no NICs are needed.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct Torus {
    /// GPUs in each dim; their product is all GPUs of the cluster.
    pub dims: Vec<usize>,
    /// Which dims close to rings; left out: all.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub wrap: Option<Vec<bool>>,
    /// The block of GPUs that one node holds; left out: a run along the first dims.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub node_dims: Option<Vec<usize>>,
    /// Where this is from; empty if nobody said.
    #[serde(default)]
    pub source: String,
}

/// A link in both directions of a fabric that a person wrote down.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct Cable {
    /// Its ends: `node3` is the fourth node with all its NICs, `node3.nic1` its second NIC alone (the second run of
    /// GPUs that shares one, or has some); any other name is a switch.
    pub between: [String; 2],
    /// Bandwidth of large messages on it, in each direction.
    pub bandwidth: Sourced<BytesPerSecond>,
    /// Time that it adds to what the NICs' latency holds.
    pub latency: Sourced<Seconds>,
}

/// A group of nodes and how much narrower its way out is than its NICs.
#[derive(Debug, Clone, PartialEq)]
pub struct Taper {
    /// Nodes in each group.
    pub nodes: usize,
    /// How many times more bandwidth the NICs of a group have than its links to the rest.
    pub oversubscription: Sourced<f64>,
}

impl Fabric {
    /// Every pattern: the word for it, and what it is.
    pub const KINDS: [(&'static str, &'static str); 5] = [
        (
            "fat-tree",
            "groups of nodes within groups of nodes, each with a way out that may be narrower than its NICs",
        ),
        (
            "rail-optimised",
            "a leaf switch for each NIC of the nodes of a pod, and spines that join the leaves",
        ),
        ("dragonfly", "groups of routers, all groups joined to each other"),
        ("torus", "each GPU joined to two neighbours in each dim by direct links, without NICs"),
        ("links", "switches and links that a person wrote down one by one"),
    ];

    /// A fabric that carries all that the NICs can send.
    pub fn non_blocking() -> Self {
        let source = "assumed non-blocking: nothing else was said";
        Self::pods(1, Sourced::new(1.0, source))
    }

    /// A fat tree with one level: pods of `nodes` nodes below the core.
    fn pods(nodes: usize, oversubscription: Sourced<f64>) -> Self {
        let nodes = Sourced::new(nodes, "assumed: without pods, every node is one");
        let levels = vec![Level { nodes, oversubscription, uplinks: None }];
        Self { shape: Shape::FatTree(FatTree { levels }), hop_latency: None }
    }

    /// The word for its pattern.
    pub fn kind(&self) -> &'static str {
        match self.shape {
            Shape::FatTree(_) => "fat-tree",
            Shape::RailOptimised(_) => "rail-optimised",
            Shape::Dragonfly(_) => "dragonfly",
            Shape::Torus(_) => "torus",
            Shape::Links(_) => "links",
        }
    }

    /// Groups of nodes with a narrower way out, the smallest first; none for a torus or a fabric of single links,
    /// where the width of a group's way out depends on which nodes it has.
    pub fn tapers(&self) -> Vec<Taper> {
        let taper = |nodes: usize, oversubscription: &Sourced<f64>| Taper {
            nodes,
            oversubscription: oversubscription.clone(),
        };
        match &self.shape {
            Shape::FatTree(tree) => {
                tree.levels.iter().map(|level| taper(level.nodes.value, &level.oversubscription)).collect()
            }
            Shape::RailOptimised(rails) => vec![taper(rails.pod_nodes.value, &rails.oversubscription)],
            Shape::Dragonfly(dragonfly) => {
                let router = dragonfly.nodes_per_router.value;
                vec![
                    taper(router, &dragonfly.local_oversubscription),
                    taper(router * dragonfly.routers_per_group.value, &dragonfly.global_oversubscription),
                ]
            }
            Shape::Torus(_) | Shape::Links(_) => Vec::new(),
        }
    }
}

/// An end of a cable.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum End<'a> {
    /// All NICs of a node.
    Node(usize),
    /// One NIC of a node.
    Nic {
        /// Which node.
        node: usize,
        /// Which of its NICs, in the order of the GPUs that they serve.
        nic: usize,
    },
    /// A switch.
    Switch(&'a str),
}

impl Cable {
    /// The kind of vertices at its ends.
    pub fn ends(&self) -> [End<'_>; 2] {
        [End::parse(&self.between[0]), End::parse(&self.between[1])]
    }
}

impl<'a> End<'a> {
    fn parse(name: &'a str) -> Self {
        let (node, nic) = match name.split_once('.') {
            Some((node, nic)) => (node, nic.strip_prefix("nic").and_then(number)),
            None => (name, None),
        };
        match (node.strip_prefix("node").and_then(number), nic, name.contains('.')) {
            (Some(node), None, false) => End::Node(node),
            (Some(node), Some(nic), _) => End::Nic { node, nic },
            _ => End::Switch(name),
        }
    }
}

fn number(digits: &str) -> Option<usize> {
    if digits.bytes().all(|digit| digit.is_ascii_digit()) { digits.parse().ok() } else { None }
}

impl Torus {
    /// Whether each dim closes to a ring.
    pub fn wraps(&self, dim: usize) -> bool {
        self.wrap.as_ref().is_none_or(|wrap| wrap[dim])
    }

    /// The block of `gpus` GPUs that one node holds; `None` if no run along the first dims fills it.
    pub fn node_block(&self, gpus: usize) -> Option<Vec<usize>> {
        if let Some(dims) = &self.node_dims {
            return Some(dims.clone());
        }
        let mut left = gpus;
        let mut block = Vec::new();
        for dim in &self.dims {
            let part = left.min(*dim).max(1);
            if !left.is_multiple_of(part) {
                return None;
            }
            left /= part;
            block.push(part);
        }
        (left == 1).then_some(block)
    }
}

fn one() -> Sourced<f64> {
    Sourced::new(1.0, "assumed non-blocking: nothing else was said")
}

/// The table as a person writes it.
#[derive(Default, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
struct Written {
    #[serde(default, skip_serializing_if = "Option::is_none")]
    oversubscription: Option<Sourced<f64>>,
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pod_nodes: Option<Sourced<usize>>,
    #[serde(default, skip_serializing_if = "Option::is_none")]
    hop_latency: Option<Sourced<Seconds>>,
    #[serde(default, skip_serializing_if = "Option::is_none")]
    fat_tree: Option<FatTree>,
    #[serde(default, skip_serializing_if = "Option::is_none")]
    rail_optimised: Option<RailOptimised>,
    #[serde(default, skip_serializing_if = "Option::is_none")]
    dragonfly: Option<Dragonfly>,
    #[serde(default, skip_serializing_if = "Option::is_none")]
    torus: Option<Torus>,
    #[serde(default, skip_serializing_if = "Option::is_none")]
    links: Option<Vec<Cable>>,
}

impl TryFrom<Written> for Fabric {
    type Error = String;

    fn try_from(written: Written) -> Result<Self, String> {
        let mut shapes: Vec<(&str, Shape)> = Vec::new();
        shapes.extend(written.fat_tree.map(|tree| ("fat_tree", Shape::FatTree(tree))));
        shapes.extend(written.rail_optimised.map(|rails| ("rail_optimised", Shape::RailOptimised(rails))));
        shapes.extend(written.dragonfly.map(|dragonfly| ("dragonfly", Shape::Dragonfly(dragonfly))));
        shapes.extend(written.torus.map(|torus| ("torus", Shape::Torus(torus))));
        shapes.extend(written.links.map(|cables| ("links", Shape::Links(cables))));
        let short = match (written.oversubscription, written.pod_nodes) {
            (None, None) => None,
            (None, Some(_)) => return Err("`pod_nodes` needs `oversubscription` beside it".into()),
            (Some(oversubscription), None) => Some(Self::pods(1, oversubscription)),
            (Some(oversubscription), Some(nodes)) => {
                let levels = vec![Level { nodes, oversubscription, uplinks: None }];
                Some(Self { shape: Shape::FatTree(FatTree { levels }), hop_latency: None })
            }
        };
        shapes.extend(short.map(|fabric| ("oversubscription", fabric.shape)));
        match shapes.len() {
            0 => Ok(Self { hop_latency: written.hop_latency, ..Self::non_blocking() }),
            1 => Ok(Self { shape: shapes.remove(0).1, hop_latency: written.hop_latency }),
            _ => {
                let names: Vec<String> = shapes.iter().map(|(name, _)| format!("`{name}`")).collect();
                Err(format!("a fabric has one shape, here are {}", names.join(" and ")))
            }
        }
    }
}

impl From<Fabric> for Written {
    fn from(fabric: Fabric) -> Self {
        let mut written = Self { hop_latency: fabric.hop_latency, ..Self::default() };
        match fabric.shape {
            Shape::FatTree(tree) => written.fat_tree = Some(tree),
            Shape::RailOptimised(rails) => written.rail_optimised = Some(rails),
            Shape::Dragonfly(dragonfly) => written.dragonfly = Some(dragonfly),
            Shape::Torus(torus) => written.torus = Some(torus),
            Shape::Links(cables) => written.links = Some(cables),
        }
        written
    }
}
