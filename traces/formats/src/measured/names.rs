//! The kind of an op by the name that its library gives it.
//!
//! Unknown names count as elementwise, as most kernels of frameworks are.

use trainwright_spec::collective::CollectiveKind;
use trainwright_timeline::kinds::OpKind;

/// The kind of an op by its name; `None` if no rule knows it.
pub(super) fn kind(name: &str) -> Option<OpKind> {
    let name = name.to_lowercase();
    let has = |parts: &[&str]| parts.iter().any(|part| name.contains(part));
    if has(&["nccl", "gloo:", "rccl"]) {
        return collective(&name);
    }
    if has(&["flash", "fmha", "scaled_dot_product", "attention", "mha_"]) {
        return Some(OpKind::Attention);
    }
    let products = [
        "gemm",
        "nvjet",
        "cutlass",
        "wgmma",
        "xmma",
        "cijk_",
        "aten::mm",
        "aten::addmm",
        "aten::bmm",
        "aten::baddbmm",
    ];
    if has(&products) {
        return Some(OpKind::Gemm);
    }
    if has(&["memcpy htod", "memcpy dtoh"]) {
        return Some(OpKind::Offload);
    }
    let streaming = [
        "elementwise",
        "norm",
        "softmax",
        "reduce",
        "dropout",
        "gelu",
        "silu",
        "swiglu",
        "adam",
        "multi_tensor",
        "memset",
        "memcpy",
        "copy",
        "cat",
        "embedding",
        "index",
        "cross_entropy",
        "triton",
        "fill",
        "rope",
        "rotary",
        "transpose",
        "aten::add",
        "aten::mul",
        "aten::div",
        "aten::sum",
        "aten::lerp",
        "aten::sqrt",
        "aten::mean",
        "aten::pow",
    ];
    has(&streaming).then_some(OpKind::Elementwise)
}

/// `ncclDevKernel_AllReduce_Sum_bf16_RING_LL`, `nccl:all_gather`, `gloo:reduce_scatter`.
fn collective(name: &str) -> Option<OpKind> {
    let name = name.replace('_', "");
    let kinds = [
        ("allreduce", CollectiveKind::AllReduce),
        ("allgather", CollectiveKind::AllGather),
        ("reducescatter", CollectiveKind::ReduceScatter),
        ("alltoall", CollectiveKind::AllToAll),
        ("broadcast", CollectiveKind::Broadcast),
        ("barrier", CollectiveKind::Barrier),
        ("reduce", CollectiveKind::Reduce),
    ];
    let found = kinds.iter().find(|(part, _)| name.contains(part)).map(|(_, kind)| OpKind::Collective(*kind));
    found.or_else(|| ["send", "recv"].iter().any(|part| name.contains(part)).then_some(OpKind::Message))
}
