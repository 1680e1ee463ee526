//! A plan as a short file: what the catalog has is written by its name.

use super::Plan;
use super::named::BASE;
use crate::calibration::{DEFAULT, restore};
use crate::cluster::Cluster;
use crate::model::preset::preset;
use crate::stack::Stack;

impl Plan {
    /// Writes a plan as TOML in which model, cluster and software are names where the catalog's entry of that name is the same,
    /// and tables where it is not. With this version's catalog it reads back equal, except that the default calibration, which
    /// every forecast applies to a plan without one, is left out; `to_toml` writes a file that needs no catalog.
    pub fn to_short_toml(&self) -> String {
        let (mut cluster, mut stack) = (self.cluster.clone(), self.stack.clone());
        let calibration = self.cluster.calibration.as_deref();
        if calibration == Some(DEFAULT) {
            // What a name stands for has no calibration, and forecasts then use this one.
            restore(&mut cluster, &mut stack);
        }
        let quoted = |name: &str| toml::Value::from(name).to_string();
        let mut named: Vec<(&str, String)> = Vec::new();
        if preset(&self.model.name).is_ok_and(|entry| entry == self.model) {
            named.push(("model", quoted(&self.model.name)));
        }
        let is_entry =
            |cluster: &Cluster| Cluster::from_name(&cluster.name).is_ok_and(|entry| entry == *cluster);
        let base = Cluster { calibration: None, ..cluster.clone() };
        let name = quoted(&cluster.name);
        match calibration {
            None | Some(DEFAULT) if is_entry(&cluster) => named.push(("cluster", name)),
            Some("none") if is_entry(&base) => {
                named.push(("cluster", format!("{{ {BASE} = {name}, calibration = \"none\" }}")));
            }
            _ => {}
        }
        if Stack::from_name(&stack.name).is_ok_and(|entry| entry == stack) {
            named.push(("stack", quoted(&stack.name)));
        }
        // Numbers of both have the calibration, or those of neither.
        if calibration == Some(DEFAULT) && named.iter().filter(|(key, _)| *key != "model").count() < 2 {
            named.retain(|(key, _)| *key == "model");
        }
        let mut short: String = named.iter().map(|(key, value)| format!("{key} = {value}\n")).collect();
        // The plan's own keys come first, then a table for each group: those of a named entry are left out.
        let mut is_named = false;
        for line in self.to_toml().lines() {
            if let Some(header) = line.strip_prefix('[') {
                let table = header.trim_start_matches('[').split(['.', ']']).next().unwrap_or_default();
                is_named = named.iter().any(|(key, _)| *key == table);
            }
            if !is_named {
                short.push_str(line);
                short.push('\n');
            }
        }
        short
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::calibration::Calibration;
    use crate::job::Job;
    use crate::precision::Precision;

    fn plan() -> Plan {
        let (model, stack) = (preset("gpt2").unwrap(), Stack::from_name("megatron-core").unwrap());
        let job = Job {
            sequence: 1024,
            global_batch: 8,
            precision: Precision::Bf16,
            ..Plan::from_toml(include_str!("../../../examples/plans/data.toml"), "data.toml").unwrap().job
        };
        Plan::plain(model, stack, Cluster::from_name("dgx-a100:2").unwrap(), job)
    }

    #[test]
    fn what_the_catalog_has_is_a_name_and_what_it_has_not_a_table() {
        let plan = plan();
        let short = plan.to_short_toml();
        assert!(
            short.starts_with("model = \"gpt2\"\ncluster = \"dgx-a100:2\"\nstack = \"megatron-core\"\n"),
            "{short}"
        );
        assert!(short.lines().count() < 30, "{short}");
        let back: Plan = toml::from_str(&short).unwrap();
        assert_eq!(back, plan);

        let mut calibrated = plan.clone();
        Calibration::from_name(DEFAULT).unwrap().apply(&mut calibrated.cluster, &mut calibrated.stack);
        assert_ne!(calibrated, plan);
        assert_eq!(calibrated.to_short_toml(), plan.to_short_toml());
        let mut faster = calibrated.clone();
        faster.stack.name = "other".into();
        assert!(
            !faster.to_short_toml().contains("cluster ="),
            "its numbers are calibrated, those of the stack too"
        );

        let mut calibrated = plan.clone();
        calibrated.cluster.calibration = Some("none".into());
        let short = calibrated.to_short_toml();
        assert!(short.contains("cluster = { base = \"dgx-a100:2\", calibration = \"none\" }\n"), "{short}");
        assert_eq!(toml::from_str::<Plan>(&short).unwrap(), calibrated);

        let mut other = plan.clone();
        other.cluster.node.gpu.memory.value = other.cluster.node.gpu.memory.value * 0.5;
        let short = other.to_short_toml();
        assert!(short.contains("[cluster.node.gpu.memory]") && !short.contains("[stack"), "{short}");
        let back: Plan = toml::from_str(&short).unwrap();
        assert_eq!(back, other);
    }
}
