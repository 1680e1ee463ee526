//! The ops of a segment with what an interpreter wants to know before it runs them: where a module begins and ends, and what
//! forward must keep for it.

use crate::device::{COMPUTE, stream_of};
use crate::train::frame::{Keeps, ModulePlace};
use crate::train::modules::{is_stepwise, operator};
use crate::train::parameters::Layer;
use std::collections::BTreeMap;
use trainwright_spec::program::{Does, MemoryKind, Module, Op, Pass, Program, RankProgram, Task, Work};
use trainwright_spec::schedule::ActionKind;

/// An op of a segment.
#[derive(Debug, Clone)]
pub(crate) struct Instruction<'a> {
    pub op: &'a Op,
    /// The module it is a step of, if it is of one.
    pub step: Option<ModuleStep>,
    /// The ops of the segment on other streams of a device that it comes behind.
    pub waits: Vec<usize>,
    /// Whether an op on another stream comes behind it.
    pub is_awaited: bool,
}

/// A step of a module.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) struct ModuleStep {
    pub place: ModulePlace,
    pub does: Does,
    /// Whether it is the first of the module's steps in this pass.
    pub begins: bool,
    /// Whether it is the last.
    pub ends: bool,
    /// Whether nothing of the module is needed after that.
    pub gives_up: bool,
    /// What forward keeps of it.
    pub keeps: Keeps,
    /// Whether the program lists the module's steps.
    pub in_steps: bool,
    /// The module behind it, if its input is not kept in forward but made again with this one's output.
    pub refills: Option<ModulePlace>,
    /// Whether it is the addition at the end of a sublayer and the next op the norm of the sum.
    pub adds_in_norm: bool,
}

/// The layer that an op is part of.
fn layer_of(op: &Op, module: Module) -> Layer {
    match (op.layer, module) {
        (Some(index), _) => Layer::Block(index),
        (None, Module::LookUp | Module::Positions) => Layer::Embedding,
        (None, _) => Layer::Head,
    }
}

fn place_of(op: &Op) -> Option<(ModulePlace, Does)> {
    match op.task {
        Task::Module(module, does) => Some(((layer_of(op, module), module), does)),
        _ => None,
    }
}

/// The modules of a stage.
#[derive(Debug, Default)]
struct StageFacts {
    /// In the order of forward.
    order: Vec<ModulePlace>,
    /// What runs again, with the position of its last op in backward.
    again: BTreeMap<ModulePlace, usize>,
    /// The position of each module's first op in backward proper.
    backward: BTreeMap<ModulePlace, usize>,
    /// The segment that these positions are in: whole backward or its first half, whichever comes first.
    backward_segment: Option<usize>,
}

/// The instructions of every segment that a rank calls.
pub(crate) fn instructions<'a>(
    program: &'a Program,
    rank: &RankProgram,
) -> BTreeMap<usize, Vec<Instruction<'a>>> {
    let mut stages: BTreeMap<usize, StageFacts> = BTreeMap::new();
    let mut segments: BTreeMap<usize, Option<(usize, ActionKind)>> = BTreeMap::new();
    for call in &rank.calls {
        let known = call.action.map(|action| (action.stage, action.kind));
        if segments.insert(call.segment, known).is_some() {
            continue;
        }
        let Some((stage, _)) = known else { continue };
        let facts = stages.entry(stage).or_default();
        if known.is_some_and(|(_, kind)| kind.is_input_gradient()) {
            facts.backward_segment.get_or_insert(call.segment);
        }
        let counts = facts.backward_segment == Some(call.segment);
        for (index, op) in program.segments[call.segment].ops.iter().enumerate() {
            let Some((place, _)) = place_of(op) else { continue };
            match op.pass {
                Pass::Forward if !facts.order.contains(&place) => facts.order.push(place),
                Pass::Recompute if counts => drop(facts.again.insert(place, index)),
                Pass::Backward if counts => {
                    facts.backward.entry(place).or_insert(index);
                }
                _ => {}
            }
        }
    }
    let none = StageFacts::default();
    segments
        .into_iter()
        .map(|(segment, of)| {
            let facts = of.map_or(&none, |(stage, _)| &stages[&stage]);
            (segment, compile(&program.segments[segment].ops, of.map(|(_, kind)| kind), facts))
        })
        .collect()
}

fn compile<'a>(ops: &'a [Op], kind: Option<ActionKind>, facts: &StageFacts) -> Vec<Instruction<'a>> {
    let steps: Vec<Option<(ModulePlace, Does, Pass)>> =
        ops.iter().map(|op| place_of(op).map(|(place, does)| (place, does, op.pass))).collect();
    let same = |one: usize, other: usize| match (steps[one], steps[other]) {
        (Some((a, _, pass)), Some((b, _, other_pass))) => a == b && pass == other_pass,
        _ => false,
    };
    let instruction = |(index, op): (usize, &'a Op)| {
        let step = steps[index].map(|(place, does, pass)| {
            let begins = !(0..index).any(|earlier| same(earlier, index));
            let ends = !(index + 1..steps.len()).any(|later| same(later, index));
            let weight_later = kind == Some(ActionKind::Input) && has_product(place.1);
            let gives_up = pass == Pass::Backward && ends && !weight_later;
            let (keeps, refills) = facts.around(place);
            let of_module = (0..steps.len()).filter(|other| same(*other, index)).map(|other| steps[other]);
            let in_steps = of_module.flatten().any(|(place, does, _)| is_stepwise(place.1, does));
            let adds_in_norm = adds_in_norm(&ops[index..], refills);
            ModuleStep { place, does, begins, ends, gives_up, keeps, in_steps, refills, adds_in_norm }
        });
        let crosses = |before: &usize, op: &Op| stream_of(ops[*before].stream) != stream_of(op.stream);
        let waits = op.after.iter().copied().filter(|before| crosses(before, op)).collect();
        let is_awaited = ops.iter().any(|later| later.after.contains(&index) && crosses(&index, later));
        Instruction { op, step, waits, is_awaited }
    };
    ops.iter().enumerate().map(instruction).collect()
}

/// Whether the first of some ops is a sublayer's addition and the second one the norm of the sum, on the same rank, in the same
/// pass. A second run of the norm has to be one that reads the sum that was just made.
fn adds_in_norm(ops: &[Op], refills: Option<ModulePlace>) -> bool {
    let [own, behind, ..] = ops else { return false };
    let (Some(((_, Module::Residual(_)), Does::Run)), Some((norm, Does::Run))) =
        (place_of(own), place_of(behind))
    else {
        return false;
    };
    let computes = |op: &Op| matches!(op.work, Work::Compute(_)) && stream_of(op.stream) == COMPUTE;
    // The bias of the sublayer is read by the norm.
    let keeps_weights = own.frees.iter().all(|freed| freed.kind != MemoryKind::Weights);
    matches!(norm.1, Module::Norm(_) | Module::FinalNorm)
        && own.pass == behind.pass
        && (own.pass == Pass::Forward || (own.pass == Pass::Recompute && refills == Some(norm)))
        && [own, behind].into_iter().all(computes)
        && keeps_weights
}

fn reads_input(place: ModulePlace) -> bool {
    operator(place.1).is_some_and(|operator| operator.reads_input())
}

/// Whether a module is a product with a weight, whose gradient may be made in a later call.
pub(crate) fn has_product(module: Module) -> bool {
    use Module::{ExpertFc1, ExpertFc2, Fc1, Fc2, Logits, Projection, Qkv, Router};
    matches!(module, Qkv | Projection | Fc1 | Fc2 | Logits | Router | ExpertFc1 | ExpertFc2)
}

impl StageFacts {
    /// What forward keeps of a module, and which module's input is made again with it.
    fn around(&self, place: ModulePlace) -> (Keeps, Option<ModulePlace>) {
        let at = self.order.iter().position(|own| *own == place);
        let neighbour = |at: Option<usize>| {
            at.and_then(|at| self.order.get(at)).filter(|other| other.0 == place.0).copied()
        };
        let before = neighbour(at.and_then(|at| at.checked_sub(1)));
        let behind = neighbour(at.map(|at| at + 1));
        let keeps = Keeps {
            input: reads_input(place) && !before.is_some_and(|before| self.refills(before, place)),
            rest: !self.again.contains_key(&place),
        };
        (keeps, behind.filter(|behind| reads_input(*behind) && self.refills(place, *behind)))
    }

    /// Whether a module runs again before backward of the one behind it.
    fn refills(&self, before: ModulePlace, behind: ModulePlace) -> bool {
        match (self.again.get(&before), self.backward.get(&behind)) {
            (Some(made), Some(needed)) => made < needed,
            _ => false,
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use trainwright_lower::lower_every_rank;
    use trainwright_spec::plan::Plan;

    /// Additions that norms do, forward and where forward runs again, in GPT-2 on two data ranks: of 12 blocks with two additions
    /// each.
    fn check(data_sharding: &str, recompute: &str, expected: [usize; 2]) {
        let text = format!(
            r#"
            model = "gpt2"
            cluster = "h100-pcie-pair"
            stack = "trainwright"
            job = {{ sequence = 16, global_batch = 4, precision = "fp32", optimizer = "adamw", gradient_clipping = true }}
            mesh = {{ tensor = 1, pipeline = 1, data = 2 }}
            micro_batch = 2
            schedule = "1f1b"
            virtual_stages = 1
            sequence_parallel = false
            data_sharding = "{data_sharding}"
            stages = ["12 {recompute}"]
            "#
        );
        let program = lower_every_rank(&Plan::from_toml(&text, "plan.toml").unwrap());
        let compiled = instructions(&program, &program.ranks[0]);
        let added = |pass: Pass| {
            let own = compiled.values().flatten().filter(|own| own.op.pass == pass);
            own.filter(|own| own.step.is_some_and(|step| step.adds_in_norm)).count()
        };
        assert_eq!([Pass::Forward, Pass::Recompute].map(added), expected, "{data_sharding} {recompute}");
    }

    #[test]
    fn norms_do_the_additions_that_stand_before_them() {
        // Every addition has a norm behind it, the last one the final norm.
        check("zero1", "none", [24, 0]);
        // Again runs the one in the middle of each block: a block's end is the next one's beginning, which is kept.
        check("zero1", "full", [24, 12]);
        // A block's weights are given up with its last addition, and the next one's are gathered before its norm.
        check("zero3", "none", [12, 0]);
    }
}
