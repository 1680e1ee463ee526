//! A mixture of experts on any ranks gives what one rank gives.

use crate::drafts::Draft;
use crate::parity::check;
use trainwright_spec::plan::Recompute;

fn draft(mesh: [usize; 3], expert: [usize; 3], dispatcher: &'static str) -> Draft {
    Draft { mesh, expert, dispatcher, ..Draft::of("mixtral") }
}

#[test]
fn one_rank_with_recomputation() {
    let mut drafts = Vec::new();
    for recompute in ["none", "full", "selective(experts)", "selective(activation+norm)"] {
        let micro_batch = 2;
        drafts.push(Draft { recompute: recompute.parse().unwrap(), micro_batch, ..Draft::of("mixtral") });
    }
    check(&drafts);
}

#[test]
fn experts_on_ranks() {
    let mut drafts = Vec::new();
    for dispatcher in ["all-to-all", "all-gather"] {
        for (mesh, expert) in [
            ([1, 1, 2], [2, 1, 0]),
            ([1, 1, 4], [4, 1, 0]),
            ([1, 1, 4], [2, 1, 0]),
            ([2, 1, 1], [1, 1, 0]),
            ([2, 1, 2], [2, 1, 0]),
            ([2, 1, 1], [2, 1, 1]),
            ([2, 1, 2], [4, 1, 1]),
            ([1, 2, 2], [2, 1, 0]),
        ] {
            for sequence_parallel in [false, true] {
                let apart = expert[2] > 0 && expert[2] != mesh[0];
                if sequence_parallel && mesh[0] == 1 || apart && !sequence_parallel {
                    continue;
                }
                drafts.push(Draft { sequence_parallel, ..draft(mesh, expert, dispatcher) });
            }
        }
    }
    drafts.push(draft([1, 1, 4], [4, 2, 0], "by-node"));
    check(&drafts);
}

#[test]
fn with_other_axes() {
    let mut drafts = Vec::new();
    for data_sharding in ["none", "zero1", "zero2", "zero3"] {
        for (mesh, expert) in [([1, 1, 4], [2, 1, 0]), ([1, 1, 2], [2, 1, 0]), ([2, 1, 2], [2, 1, 0])] {
            let draft = Draft { data_sharding, optimizer: "adamw", ..draft(mesh, expert, "all-to-all") };
            drafts.push(Draft { recompute: Recompute::Full, ..draft });
        }
    }
    for schedule in ["1f1b", "zb-h1"] {
        drafts.push(Draft { schedule, ..draft([1, 2, 2], [2, 1, 0], "all-to-all") });
    }
    let shared = draft([1, 1, 2], [2, 1, 0], "all-to-all");
    drafts.push(Draft { context: [2, 1], ..shared.clone() });
    drafts.push(Draft { context: [2, 1], expert: [4, 1, 0], ..shared });
    check(&drafts);
}

/// Sets of ranks that divide the state, and the same in each set.
#[test]
fn state_divided_over_sets_of_ranks() {
    let mut drafts = Vec::new();
    for model in ["gpt", "llama"] {
        for data_sharding in ["zero1", "zero2", "zero3", "hsdp"] {
            let draft = Draft { mesh: [1, 1, 4], shard: 2, data_sharding, ..Draft::of(model) };
            drafts.push(Draft { optimizer: "adamw", ..draft });
        }
    }
    check(&drafts);
}
