//! Which data-parallel choices are legal.

use super::bad;
use crate::cluster::Fault;
use crate::data::{DATA_SCHEMES, DataChoices, Divided, Reshard, data_scheme};
use crate::limits::MOST;
use crate::plan::Plan;
use crate::schedule::{ActionKind, peak_in_flight};

impl Plan {
    pub(super) fn check_data(&self) -> Result<(), Fault> {
        let name = &self.data_sharding;
        let refuse = |allowed: String| bad("data_sharding", format!("`{name}`"), allowed);
        let Ok(scheme) = data_scheme(name) else {
            let known: Vec<&str> = DATA_SCHEMES.iter().map(|scheme| scheme.name()).collect();
            return refuse(format!("known are {}", known.join(", ")));
        };
        if !self.stack.has_data_scheme(name) {
            let what = if name == "zero1" { "sharded optimizer" } else { "such data-parallel scheme" };
            return refuse(format!("stack {} has no {what}", self.stack.name));
        }
        if let Some(prefetch) = self.data.prefetch
            && prefetch > MOST
        {
            return bad("data.prefetch", prefetch.to_string(), format!("it must be at most {MOST}"));
        }
        let copies = self.mesh.weight_copies();
        if let Some(servers) = self.data.servers
            && !(1..=copies).contains(&servers)
        {
            let allowed = format!("it must be from 1 to mesh.context x mesh.data = {copies}");
            return bad("data.servers", servers.to_string(), allowed);
        }
        let choices = DataChoices { options: self.data, shard: self.mesh.shard };
        if let Err((key, allowed)) = scheme.check(&choices) {
            return bad(key, format!("not what `{name}` allows"), allowed);
        }
        self.check_passes(scheme.divides())?;
        self.check_reshard(scheme.divides())
    }

    /// Whether its schedule runs backward in halves.
    pub(super) fn runs_halves(&self) -> bool {
        let lists = self.schedule().lists(self.pipeline_shape()).ranks;
        lists.iter().flatten().any(|action| action.kind == ActionKind::Input)
    }

    /// Gradients that are reduced when a backward pass ends need that it is not in halves, and weights that are put
    /// together that there is one version of them.
    fn check_passes(&self, divided: Divided) -> Result<(), Fault> {
        let schedule = self.schedule();
        let reduced_by_pass = divided >= Divided::Gradients && self.mesh.shard() > 1;
        match reduced_by_pass && (!schedule.flushes() || self.runs_halves()) {
            false => Ok(()),
            true => bad(
                "data_sharding",
                format!("`{}`", self.data_sharding),
                format!(
                    "schedule {} runs backward in halves or without flush, with which gradients are not divided",
                    self.schedule
                ),
            ),
        }
    }

    /// Weights that are kept until a microbatch's backward need that no other microbatch is in flight: with several of
    /// them, its end is not the last use.
    fn check_reshard(&self, divided: Divided) -> Result<(), Fault> {
        let shape = self.pipeline_shape();
        let one_at_a_time =
            || shape.stages() == 1 && peak_in_flight(&self.schedule().lists(shape), |_| 1.0) == [1];
        let keeps = divided == Divided::Weights && self.reshard() == Reshard::AfterBackward;
        match keeps && !one_at_a_time() {
            false => Ok(()),
            true => bad(
                "data.reshard",
                "`after-backward`".into(),
                "with several microbatches in flight it must be after-forward or after-step".into(),
            ),
        }
    }
}
