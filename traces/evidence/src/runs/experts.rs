//! How a row's experts are spread over ranks, and how tokens come to them.

use super::{NoPlan, Run};
use trainwright_spec::experts::{AllGather, AllToAll, Dispatcher, Routing, flexible};
use trainwright_spec::mesh::Mesh;
use trainwright_spec::stack::Stack;

/// Dispatchers by the names that software gives them.
const DISPATCHERS: [(&str, Option<&dyn Dispatcher>); 4] = [
    ("alltoall", Some(&AllToAll)),
    ("allgather", Some(&AllGather)),
    ("deepep", FLEXIBLE),
    ("hybridep", FLEXIBLE),
];

/// As the software has kernels for it and the experts are on several nodes or on one.
const FLEXIBLE: Option<&dyn Dispatcher> = None;

impl Run {
    /// Whether `dispatcher` is blank or a known name.
    pub(super) fn dispatcher_is_known(&self) -> bool {
        self.dispatcher.is_empty() || DISPATCHERS.iter().any(|(name, _)| *name == self.dispatcher)
    }

    /// Gives the stack the kernels that the row's dispatcher names, where it has other ones by that name.
    pub(super) fn dispatch_by_kernels(&self, stack: &mut Stack) {
        if let Some(hybrid) = stack.hybrid_dispatch.take().filter(|_| self.dispatcher == "hybridep") {
            stack.dispatch_multiprocessors = Some(hybrid.multiprocessors);
            stack.dispatch_rate = Some(hybrid.rate);
        }
    }

    /// Places the experts on a mesh whose nodes have `gpus_per_node` GPUs; returns how tokens come to them, in software
    /// that has kernels for tokens or not.
    ///
    /// # Errors
    /// `Unsupported` for an unknown dispatcher.
    pub(super) fn place_experts(
        &self,
        mesh: &mut Mesh,
        gpus_per_node: usize,
        has_kernels: bool,
    ) -> Result<Routing, NoPlan> {
        let expert = self.ep.unwrap_or(1);
        mesh.expert = expert;
        mesh.expert_tensor = self.etp.or_else(|| {
            let divides = mesh.stage_ranks().is_multiple_of(expert.saturating_mul(mesh.tensor));
            (expert > 1 && !divides).then_some(1)
        });
        if self.dispatcher.is_empty() {
            return Ok(Routing::default());
        }
        let known = DISPATCHERS.iter().find(|(name, _)| *name == self.dispatcher);
        let Some((_, dispatcher)) = known else {
            return Err(NoPlan::Unsupported(format!("`dispatcher` is `{}`", self.dispatcher)));
        };
        // Neighbouring expert ranks that share a node: the most that divide both.
        let share_a_node = |inner: &usize| {
            expert.is_multiple_of(*inner) && gpus_per_node.is_multiple_of(inner * mesh.expert_tensor())
        };
        let inner = (1..=expert.min(gpus_per_node)).rev().find(share_a_node).unwrap_or(1);
        let dispatcher = dispatcher.unwrap_or_else(|| flexible(has_kernels, inner < expert));
        if dispatcher.tells_nodes() {
            mesh.expert_inner = inner;
        }
        Ok(Routing { dispatcher: dispatcher.name().into(), ..Routing::default() })
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    /// Ranks of an expert, neighbouring expert ranks of a node, and the dispatcher, of a row with 2 tensor ranks and 64
    /// data ranks on nodes of 8 GPUs, with software that has kernels for tokens.
    fn placed(ep: usize, etp: Option<usize>, dispatcher: &str) -> (usize, usize, String) {
        let run = Run { ep: Some(ep), etp, dispatcher: dispatcher.into(), ..Run::default() };
        let mut mesh = Mesh::new(2, 1, 64);
        let routing = run.place_experts(&mut mesh, 8, true).unwrap();
        (mesh.expert_tensor(), mesh.expert_inner, routing.dispatcher)
    }

    #[test]
    fn an_expert_is_on_the_tensor_ranks_unless_the_row_says_otherwise() {
        assert_eq!(placed(64, None, ""), (2, 1, "all-to-all".into()));
        assert_eq!(placed(64, Some(1), ""), (1, 1, "all-to-all".into()));
        // 128 x 2 ranks of experts do not divide the 128 ranks of a stage.
        assert_eq!(placed(128, None, ""), (1, 1, "all-to-all".into()));
    }

    #[test]
    fn deepep_forwards_where_experts_are_on_several_nodes() {
        // 8 GPUs of a node: 8 experts of one rank each, or 4 of two.
        assert_eq!(placed(64, Some(1), "deepep"), (1, 8, "forwarded".into()));
        assert_eq!(placed(64, None, "hybridep"), (2, 4, "forwarded".into()));
        assert_eq!(placed(8, Some(1), "hybridep"), (1, 1, "by-rank".into()));
        assert_eq!(placed(64, Some(1), "alltoall"), (1, 1, "all-to-all".into()));
        let run = Run { ep: Some(64), etp: Some(1), dispatcher: "deepep".into(), ..Run::default() };
        let without = run.place_experts(&mut Mesh::new(2, 1, 64), 8, false).unwrap();
        assert_eq!(without.dispatcher, "by-node", "without kernels");
    }

    #[test]
    fn an_unknown_dispatcher_is_refused() {
        let run = Run { ep: Some(8), dispatcher: "pigeon".into(), ..Run::default() };
        let refused = run.place_experts(&mut Mesh::new(1, 1, 8), 8, true).unwrap_err();
        assert_eq!(refused.to_string(), "`dispatcher` is `pigeon`");
    }

    /// HybridEP moves twice what DeepEP does on as many multiprocessors, so its kernels take fewer.
    #[test]
    fn hybrid_dispatch_has_kernels_of_its_own() {
        let kernels = |dispatcher: &str| {
            let run = Run { dispatcher: dispatcher.into(), ..Run::default() };
            let mut stack = Stack::from_name("megatron-core-2025").unwrap();
            run.dispatch_by_kernels(&mut stack);
            assert!(stack.hybrid_dispatch.is_none());
            (stack.dispatch_multiprocessors.unwrap().value, stack.dispatch_rate.map(|rate| rate.value.get()))
        };
        assert_eq!(kernels("deepep"), (20, None));
        assert_eq!(kernels("hybridep"), (16, Some(29.5e9)));
    }
}
