//! Adapters: which a model and a plan allow.

use super::bad;
use crate::adapters::{Adapter, Adapters, RANK, Target};
use crate::cluster::Fault;
use crate::model::{Attention, Mlp, Model};
use crate::plan::Plan;

impl Plan {
    /// Whether the job's adapters, if it has any, suit the model and the plan's other choices.
    pub(super) fn check_adapters(&self) -> Result<(), Fault> {
        let Some(adapters) = &self.job.adapters else { return Ok(()) };
        adapters_allowed(adapters, &self.model)
            .or_else(|allowed| bad("job.adapters", adapters.to_string(), allowed))?;
        if self.tensor_scheme != "1d" {
            let allowed = "beside adapters it must be `1d`".into();
            return bad("tensor_scheme", format!("`{}`", self.tensor_scheme), allowed);
        }
        match self.offload.is_none() {
            true => Ok(()),
            false => bad("offload", "set".into(), "beside adapters nothing is offloaded".into()),
        }
    }
}

/// Whether a model has the matrices that adapters stand beside.
///
/// # Errors
/// What is allowed.
pub fn adapters_allowed(adapters: &Adapters, model: &Model) -> Result<(), String> {
    if !RANK.allows(adapters.rank as u64) {
        return Err(format!("rank: {}", RANK.expected()));
    }
    if adapters.targets.is_empty() {
        return Err("targets: it names at least one matrix".into());
    }
    let found = of_model(adapters, model);
    let lacking = |target: &&Target| !found.iter().any(|adapter| adapter.target == **target);
    if let Some(target) = adapters.targets.iter().find(lacking) {
        let experts = model.blocks.iter().any(|run| matches!(run.block.mlp, Mlp::Experts(_)));
        let special = |attention: &Attention| attention.latent.is_some() || attention.recurrence.is_some();
        let reason = match (model.attentions().any(special), experts) {
            (true, _) => "; latent attention, mixers with a state and experts have no adapters",
            (false, true) => "; experts have no adapters",
            (false, false) => "",
        };
        return Err(format!("targets: no layer of the model has `{}` by itself{reason}", target.name()));
    }
    let joint = [
        (Target::Qkv, [Target::Query, Target::Key, Target::Value].as_slice()),
        (Target::Fc1, &[Target::Gate, Target::Up]),
    ];
    for (joint, parts) in joint.into_iter().filter(|(joint, _)| adapters.targets.contains(joint)) {
        if let Some(part) = parts.iter().find(|part| adapters.targets.contains(part)) {
            return Err(format!("targets: `{}` contains `{}`", joint.name(), part.name()));
        }
    }
    Ok(())
}

fn of_model(adapters: &Adapters, model: &Model) -> Vec<Adapter> {
    let blocks = model.blocks.iter().flat_map(|run| adapters.of_block(&run.block, model.hidden));
    blocks.chain(adapters.of_head(model, model.vocab)).collect()
}
