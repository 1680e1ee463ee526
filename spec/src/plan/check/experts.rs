//! Which choices about experts are legal.

use super::{Fault, bad};
use crate::experts::{DISPATCHERS, Dispatcher, Load, Routing, dispatcher};
use crate::mesh::{Mesh, RankOrder};
use crate::model::{Experts, GroupLimit, Mlp};
use crate::plan::Plan;

/// The names of the dispatchers that are so.
fn names(are: impl Fn(&dyn Dispatcher) -> bool) -> String {
    let names = DISPATCHERS.iter().filter(|each| are(**each)).map(|each| each.name());
    names.collect::<Vec<_>>().join(", ")
}

impl Plan {
    /// Whether the experts of each block can be spread and routed as the plan says.
    pub(super) fn check_experts(&self) -> Result<(), Fault> {
        let runs = || self.model.blocks.iter();
        let mut mixtures = runs().filter_map(|run| match &run.block.mlp {
            Mlp::Experts(experts) => Some(experts),
            Mlp::Dense(_) => None,
        });
        self.check_routing()?;
        let blocks = runs().flat_map(|run| std::iter::repeat_n(&run.block.mlp, run.count)).enumerate();
        for (layer, mlp) in blocks {
            if let Mlp::Experts(experts) = mlp {
                traced(&self.experts.load, experts, layer)?;
            }
        }
        mixtures.clone().try_for_each(|experts| self.check_spread(experts))?;
        match mixtures.next() {
            Some(_) => Ok(()),
            None => self.check_without_experts(),
        }
    }

    fn check_without_experts(&self) -> Result<(), Fault> {
        let Mesh { expert, expert_tensor, .. } = self.mesh;
        let none = || format!("model {} has no experts", self.model.name);
        if expert > 1 {
            return bad("mesh.expert", expert.to_string(), none());
        }
        if let Some(ranks) = expert_tensor {
            return bad("mesh.expert_tensor", ranks.to_string(), none());
        }
        match self.experts.is_default() {
            true => Ok(()),
            false => bad("experts", "a table".into(), none()),
        }
    }

    fn check_routing(&self) -> Result<(), Fault> {
        let Routing { dispatcher: name, capacity_factor, load, .. } = &self.experts;
        let Ok(dispatcher) = dispatcher(name) else {
            let allowed = format!("known are {}", names(|_| true));
            return bad("experts.dispatcher", format!("`{name}`"), allowed);
        };
        if dispatcher.needs_kernels() && self.stack.dispatch_multiprocessors.is_none() {
            let allowed =
                format!("stack {} has no kernels that send a token to each rank once", self.stack.name);
            return bad("experts.dispatcher", format!("`{name}`"), allowed);
        }
        let positive = |number: f64| number > 0.0 && number.is_finite();
        if let Some(factor) = capacity_factor.filter(|factor| !positive(*factor)) {
            return bad("experts.capacity_factor", factor.to_string(), "it must be above 0".into());
        }
        let (key, number) = match load {
            Load::Zipf { exponent, .. } => ("experts.load.exponent", *exponent),
            Load::LogNormal { sigma, .. } => ("experts.load.sigma", *sigma),
            Load::Balanced | Load::Trace { .. } => return Ok(()),
        };
        match (0.0..=20.0).contains(&number) {
            true => Ok(()),
            false => bad(key, number.to_string(), "it must be from 0 to 20".into()),
        }
    }

    fn check_spread(&self, experts: &Experts) -> Result<(), Fault> {
        let Mesh { tensor, expert, expert_inner, .. } = self.mesh;
        let expert_tensor = self.mesh.expert_tensor();
        let must = |holds: bool, key: &str, value: usize, allowed: String| match holds {
            true => Ok(()),
            false => bad(key, value.to_string(), allowed),
        };
        let count = experts.count;
        must(
            experts.per_token <= count,
            "model.blocks.block.mlp.experts.per_token",
            experts.per_token,
            format!("there are {count} experts"),
        )?;
        if let Some(GroupLimit { groups, per_token }) = experts.group_limit {
            let key = "model.blocks.block.mlp.experts.group_limit";
            let divides = groups > 0 && count.is_multiple_of(groups);
            let enough = divides && per_token <= groups && per_token * (count / groups) >= experts.per_token;
            let allowed = format!(
                "groups must divide the {count} experts, and those that a token visits hold {} of them",
                experts.per_token
            );
            must(enough, key, groups, allowed)?;
        }
        let allowed = format!("it must divide the {count} experts of a block");
        must(count.is_multiple_of(expert), "mesh.expert", expert, allowed)?;
        let width = experts.expert.width;
        let allowed = format!("it must divide the {width} columns of an expert");
        must(width.is_multiple_of(expert_tensor), "mesh.expert_tensor", expert_tensor, allowed)?;
        let alike = tensor == 1 || self.sequence_parallel || expert_tensor == tensor;
        let allowed = format!(
            "without sequence_parallel it must be mesh.tensor = {tensor}: those ranks have the same tokens"
        );
        must(alike, "mesh.expert_tensor", expert_tensor, allowed)?;
        self.check_nodes(experts, expert_inner)
    }

    /// Whether the ranks that a dispatcher takes for those of a node are in one.
    fn check_nodes(&self, experts: &Experts, inner: usize) -> Result<(), Fault> {
        let key = "mesh.expert_inner";
        if !dispatcher(&self.experts.dispatcher).is_ok_and(|dispatcher| dispatcher.tells_nodes()) {
            let allowed =
                format!("only these dispatchers tell nodes apart: {}", names(|each| each.tells_nodes()));
            return if inner == 1 { Ok(()) } else { bad(key, inner.to_string(), allowed) };
        }
        let (gpus, expert_tensor) = (self.cluster.node.gpus.value, self.mesh.expert_tensor());
        if !gpus.is_multiple_of(inner * expert_tensor) {
            let allowed =
                format!("times {expert_tensor} ranks of an expert it must divide the {gpus} GPUs of a node");
            return bad(key, inner.to_string(), allowed);
        }
        let neighbours = self.mesh.tensor * self.mesh.context;
        if self.mesh.order == RankOrder::DataLast && !neighbours.is_multiple_of(inner * expert_tensor) {
            let allowed = format!(
                "times {expert_tensor} ranks of an expert it must divide the {neighbours} neighbouring ranks of a stage"
            );
            return bad(key, inner.to_string(), allowed);
        }
        let nodes = self.mesh.expert / inner;
        if let Some(limit) = experts.group_limit
            && !(limit.groups.is_multiple_of(nodes) || nodes.is_multiple_of(limit.groups))
        {
            let allowed = format!(
                "{nodes} nodes must divide or be a multiple of the {} groups of experts",
                limit.groups
            );
            return bad(key, inner.to_string(), allowed);
        }
        Ok(())
    }
}

/// Whether a trace, if that is the load, has tokens for each expert of a block, and for none more than there can be.
fn traced(load: &Load, experts: &Experts, layer: usize) -> Result<(), Fault> {
    let Load::Trace { layers } = load else { return Ok(()) };
    let key = format!("experts.load.layers, block {layer}");
    let Some(seen) = layers.iter().find(|seen| seen.layer == layer) else {
        return bad(&key, "missing".into(), "a trace has each block of experts".into());
    };
    if seen.tokens.len() != experts.count {
        let allowed = format!("the block has {}", experts.count);
        return bad(&key, format!("of {} experts", seen.tokens.len()), allowed);
    }
    let all: u128 = seen.tokens.iter().map(|tokens| u128::from(*tokens)).sum();
    let most = seen.tokens.iter().max().map_or(0, |most| u128::from(*most));
    if all == 0 || most * experts.per_token as u128 > all {
        let allowed = format!(
            "each token visits {} experts, so that none has more than 1/{} of all visits, {all}",
            experts.per_token, experts.per_token
        );
        return bad(&key, format!("{most} tokens of an expert"), allowed);
    }
    Ok(())
}
