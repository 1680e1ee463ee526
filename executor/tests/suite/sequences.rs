//! Ranks that share sequences give what one rank gives, by every scheme and with every other axis.

use crate::drafts::Draft;
use crate::parity::{MODELS, check};
use trainwright_spec::plan::Recompute;

const SCHEMES: [(&str, [usize; 2]); 8] = [
    ("ring", [2, 1]),
    ("ring", [4, 1]),
    ("all-gather", [2, 1]),
    ("all-gather", [4, 1]),
    ("ulysses", [2, 1]),
    ("ulysses", [4, 1]),
    ("hybrid", [4, 2]),
    ("hybrid-all-gather", [4, 2]),
];

#[test]
fn every_scheme_alone() {
    let mut drafts = Vec::new();
    for model in MODELS {
        for (context_scheme, context) in SCHEMES {
            let (micro_batch, recompute) =
                if context[0] == 2 { (2, Recompute::None) } else { (1, Recompute::Full) };
            drafts.push(Draft { context_scheme, context, micro_batch, recompute, ..Draft::of(model) });
        }
        let core = "selective(core+norm)".parse().unwrap();
        drafts.push(Draft { context: [2, 1], recompute: core, micro_batch: 4, ..Draft::of(model) });
    }
    check(&drafts);
}

#[test]
fn with_other_axes() {
    let mut drafts = Vec::new();
    for (index, (context_scheme, context)) in SCHEMES.into_iter().enumerate() {
        let model = MODELS[index % 2];
        for (mesh, data_sharding, schedule) in [
            ([2, 1, 1], "none", "1f1b"),
            ([1, 2, 1], "none", "zb-h1"),
            ([1, 1, 2], "zero1", "1f1b"),
            ([2, 2, 1], "none", "1f1b"),
        ] {
            let [tensor, pipeline, data] = mesh;
            if tensor * pipeline * data * context[0] > 8 {
                continue;
            }
            let sequence_parallel = tensor > 1 && index % 3 == 0;
            let draft = Draft { mesh, context, context_scheme, schedule, ..Draft::of(model) };
            drafts.push(Draft { data_sharding, sequence_parallel, ..draft });
        }
    }
    for data_sharding in ["zero2", "zero3"] {
        let draft = Draft { context: [2, 1], mesh: [1, 1, 2], data_sharding, ..Draft::of("llama") };
        drafts.push(Draft { optimizer: "adamw", ..draft });
    }
    // Heads of a tensor rank that some schemes cannot deal out make no plan.
    drafts.retain(|draft| draft.try_plan().is_ok());
    check(&drafts);
}
