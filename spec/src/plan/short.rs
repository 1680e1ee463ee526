//! A plan as a short file: what the catalog has is written by its name.

use super::Plan;
use crate::cluster::Cluster;
use crate::model::preset::preset;
use crate::stack::Stack;

impl Plan {
    /// Writes a plan as TOML in which model, cluster and software are names where the catalog's entry of that name is the same,
    /// and tables where it is not. It reads back equal with this version's catalog; `to_toml` writes a file that needs none.
    pub fn to_short_toml(&self) -> String {
        let named = [
            ("model", &self.model.name, preset(&self.model.name).is_ok_and(|entry| entry == self.model)),
            (
                "cluster",
                &self.cluster.name,
                Cluster::from_name(&self.cluster.name).is_ok_and(|entry| entry == self.cluster),
            ),
            (
                "stack",
                &self.stack.name,
                Stack::from_name(&self.stack.name).is_ok_and(|entry| entry == self.stack),
            ),
        ];
        let named: Vec<(&str, &str)> =
            named.into_iter().filter(|(.., same)| *same).map(|(key, name, _)| (key, name.as_str())).collect();
        let mut short = String::new();
        for (key, name) in &named {
            short.push_str(&format!("{key} = {}\n", toml::Value::from(*name)));
        }
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

        let mut other = plan.clone();
        other.cluster.node.gpu.memory.value = other.cluster.node.gpu.memory.value * 0.5;
        let short = other.to_short_toml();
        assert!(short.contains("[cluster.node.gpu.memory]") && !short.contains("[stack"), "{short}");
        let back: Plan = toml::from_str(&short).unwrap();
        assert_eq!(back, other);
    }
}
