//! What each dispatcher sends: T tokens of a rank, k experts of each, h hidden width, e = 2 bytes, E expert ranks,
//! F expert-tensor ranks.

use super::*;

#[test]
fn an_all_to_all_carries_each_copy_of_a_token_there_and_back() {
    // Dispatch and combine are an all-to-all of T k h e bytes each, of which (E − 1)/E leaves the rank; backward does
    // both again. Ranks of an expert join their rows: F T k h e gathered, and scattered on the way back.
    let check = |mesh, spread: [usize; 2]| {
        let plan = mixtral(mesh, spread);
        let tokens = 1024 / mesh[0] as u64;
        let copies = tokens * 2 * 4096 * 2;
        let mut list = Vec::new();
        if spread[0] > 1 {
            list.push((Axis::Expert, AllToAll, copies, 2));
        }
        if spread[1] > 1 {
            let rows = copies * spread[1] as u64;
            list.push((Axis::ExpertTensor, AllGather, rows, 1));
            list.push((Axis::ExpertTensor, ReduceScatter, rows, 1));
        }
        for pass in [Pass::Forward, Pass::Backward] {
            assert_eq!(sent(&plan, pass), expected(&list), "{mesh:?} {spread:?} {pass:?}");
        }
        assert_eq!(AllToAll.bus_factor(spread[0]), (spread[0] as f64 - 1.0) / spread[0] as f64);
    };
    check([1, 1, 8], [8, 1]);
    check([1, 1, 16], [4, 1]);
    check([1, 1, 8], [4, 2]);
    check([2, 1, 4], [4, 2]);
    check([2, 1, 4], [8, 1]);
    check([2, 1, 4], [2, 4]);
    check([2, 1, 4], [1, 1]);
}

#[test]
fn an_all_gather_carries_every_token_to_every_rank() {
    // E T h e over the expert axis, then F E T h e among the ranks of an expert; reduce-scatters of the same back.
    let check = |mesh, spread: [usize; 2]| {
        let plan = dispatched(&mixtral(mesh, spread), "all-gather");
        let of_axis = 1024 / mesh[0] as u64 * 4096 * 2 * spread[0] as u64;
        let mut list = vec![(Axis::Expert, AllGather, of_axis, 1), (Axis::Expert, ReduceScatter, of_axis, 1)];
        if spread[1] > 1 {
            let all = of_axis * spread[1] as u64;
            list.push((Axis::ExpertTensor, AllGather, all, 1));
            list.push((Axis::ExpertTensor, ReduceScatter, all, 1));
        }
        for pass in [Pass::Forward, Pass::Backward] {
            assert_eq!(sent(&plan, pass), expected(&list), "{mesh:?} {spread:?} {pass:?}");
        }
    };
    check([1, 1, 8], [8, 1]);
    check([1, 1, 8], [2, 2]);
    check([2, 1, 4], [2, 2]);
    check([2, 1, 4], [4, 2]);
}

#[test]
fn by_rank_a_token_goes_to_each_rank_once() {
    // T D h e there and back, then F T D h e among the ranks of an expert. Of 8 experts a token visits 2: on 8 ranks D =
    // 2; on 4 ranks D = 4 (1 - 6/8 · 5/7) = 13/7, rounded up to bytes.
    let check = |spread: [usize; 2], once: u64| {
        let stack = Stack::from_name("megatron-core-2025").unwrap();
        let plan = dispatched(&Plan { stack, ..mixtral([1, 1, 8], spread) }, "by-rank");
        let mut list = vec![(Axis::Expert, AllToAll, once, 2)];
        if spread[1] > 1 {
            let joined = once * spread[1] as u64;
            list.push((Axis::ExpertTensor, AllGather, joined, 1));
            list.push((Axis::ExpertTensor, ReduceScatter, joined, 1));
        }
        for pass in [Pass::Forward, Pass::Backward] {
            assert_eq!(sent(&plan, pass), expected(&list), "{spread:?} {pass:?}");
        }
        let by_kernel = block_ops(&plan, |op| matches!(op.work, Work::Collective { axis: Axis::Expert, .. }));
        for op in by_kernel {
            let Work::Collective { call, .. } = op.work else { unreachable!() };
            let (multiprocessors, over_nodes, rate) = (20, None, None);
            assert_eq!(call, CollectiveCall::TokenKernel { multiprocessors, over_nodes, rate });
        }
    };
    check([8, 1], 1024 * 2 * 4096 * 2);
    check([4, 1], 1024 * 4096 * 2 * 13 / 7 + 1);
    check([4, 2], 1024 * 4096 * 2 * 13 / 7 + 1);
    let mut plan = mixtral([1, 1, 8], [8, 1]);
    plan.experts.dispatcher = "by-rank".into();
    let error = plan.check("test").unwrap_err().to_string();
    assert!(error.contains("stack megatron-lm-2022 has no kernels"), "{error}");
}

#[test]
fn a_stack_may_send_tokens_to_experts_in_fewer_bits() {
    // In 8 bits, with a scale of 4 bytes for 128 elements, there; in 16 back: forward's dispatch and backward's combine.
    let plan = mixtral([1, 1, 8], [8, 1]);
    let stack = Stack::from_name("hai-llm").unwrap();
    let plan = checked(Plan { stack, ..plan });
    let elements = 1024 * 2 * 4096;
    let there = elements + elements / 128 * 4;
    for pass in [Pass::Forward, Pass::Backward] {
        let list = [(Axis::Expert, AllToAll, there, 1), (Axis::Expert, AllToAll, 2 * elements, 1)];
        assert_eq!(sent(&plan, pass), expected(&list), "{pass:?}");
    }
}

#[test]
fn without_sequence_parallelism_tensor_ranks_dispatch_the_same_tokens() {
    // All of b s tokens are dispatched over the expert axis, and the tensor ranks' outputs summed once: 2 all-reduces
    // of b s h e in forward and in backward, one for attention and one for the experts.
    let mut plan = mixtral([2, 1, 4], [4, 2]);
    plan.sequence_parallel = false;
    let plan = checked(plan);
    let copies = 1024 * 2 * 4096 * 2;
    for pass in [Pass::Forward, Pass::Backward] {
        assert_eq!(sent(&plan, pass), expected(&[(Axis::Expert, AllToAll, copies, 2)]), "{pass:?}");
        let reduces =
            |op: &Op| matches!(op.work, Work::Collective { axis: Axis::Tensor, .. }) && op.pass == pass;
        let all = block_ops(&plan, reduces);
        assert_eq!(all.len(), 2, "{pass:?}");
        for op in all {
            let Work::Collective { kind, bytes, .. } = op.work else { unreachable!() };
            assert_eq!((kind, bytes.get()), (CollectiveKind::AllReduce, f64::from(1024 * 4096 * 2)));
        }
    }
}

#[test]
fn forwarded_a_token_goes_to_each_node_once_and_to_each_rank_once() {
    // 256 experts on 8 nodes of 8 ranks, at most 4 nodes for a token: by-node's bytes between nodes, by-rank's in all.
    let mut node = deepseek("by-node");
    node.model.blocks.remove(0);
    node.model.blocks[0].count = 61;
    let node = checked(node);
    let mut plan = node.clone();
    plan.experts.dispatcher = "forwarded".into();
    let stack = Stack::from_name("megatron-core-2025").unwrap();
    plan.stack.dispatch_multiprocessors = stack.dispatch_multiprocessors;
    let plan = checked(plan);
    let kernels = block_ops(&plan, |op| matches!(op.work, Work::Collective { axis: Axis::Expert, .. }));
    assert!(!kernels.is_empty());
    let of_nodes = block_ops(&node, |op| matches!(op.work, Work::Collective { axis: Axis::ExpertOuter, .. }));
    for (kernel, outer) in kernels.iter().zip(&of_nodes) {
        let Work::Collective { call: CollectiveCall::TokenKernel { over_nodes, .. }, bytes, .. } =
            kernel.work
        else {
            panic!("{kernel:?}")
        };
        let Work::Collective { bytes: away, .. } = outer.work else { unreachable!() };
        assert_eq!(over_nodes, Some(away.get().ceil() as u64));
        assert!(bytes > away, "a node's tokens visit several of its ranks");
    }
    assert_eq!(kernels.len(), of_nodes.len());
}

#[test]
fn a_token_goes_to_each_node_once() {
    // 256 experts on 8 nodes of 32, k = 8. All as likely: 8 (1 − C(224, 8)/C(256, 8)). At most 4 nodes: those hold 128,
    // and each of the 4 is missed with C(96, 8)/C(128, 8).
    let missed = |others: f64, all: f64| {
        (0..8).map(|i| (others - f64::from(i)) / (all - f64::from(i))).product::<f64>()
    };
    let plan = deepseek("by-node");
    let limited = mixture(&plan);
    assert_eq!(limited.group_limit, Some(GroupLimit { groups: 8, per_token: 4 }));
    let free = Experts { group_limit: None, ..limited.clone() };
    let four = 4.0 * (1.0 - missed(96.0, 128.0));
    let check = |experts: &Experts, nodes, expected: f64| {
        let found = nodes_of_a_token(experts, nodes);
        assert!((found - expected).abs() < 1e-12, "{nodes} nodes: {found} for {expected}");
    };
    check(&free, 8, 8.0 * (1.0 - missed(224.0, 256.0)));
    check(limited, 8, four);
    check(limited, 1, 1.0);
    // Two groups to a node: 4 of 8 groups miss a node of theirs with C(6, 4)/C(8, 4) = 15/70, have one with 40/70 and
    // both with 15/70.
    let both = 40.0 / 70.0 * (1.0 - missed(96.0, 128.0)) + 15.0 / 70.0 * (1.0 - missed(64.0, 128.0));
    check(limited, 4, 4.0 * both);
    // Between nodes T D h e bytes, of which 7/8 leave; inside T k h e. Without nodes 56/64 of T k h e leaves.
    let token = 7168 * 2;
    let away = (4096.0 * four * f64::from(token)).ceil() as u64;
    let inside = 4096 * 8 * token as u64;
    let list = [(Axis::ExpertOuter, AllToAll, away, 2), (Axis::ExpertInner, AllToAll, inside, 2)];
    // Block 1 of the first stage is dense: the limit is looked at on a plan whose first stage has experts.
    let mut short = plan.clone();
    short.model.blocks.remove(0);
    short.model.blocks[0].count = 61;
    let short = checked(short);
    for pass in [Pass::Forward, Pass::Backward] {
        assert_eq!(sent(&short, pass), expected(&list), "{pass:?}");
    }
    let nics = |bytes: u64, away: f64| bytes as f64 * away;
    let ratio = nics(away, 7.0 / 8.0) / nics(inside, 56.0 / 64.0);
    assert!((ratio - four / 8.0).abs() < 1e-6 && ratio < 0.5, "{ratio}");
}
