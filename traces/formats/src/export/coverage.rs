//! Which fields of a plan the files of an exporter express.

use super::fields::{FIELDS, Omission};
use std::collections::BTreeSet;
use trainwright_spec::plan::Plan;

/// Fields that the files express, and reasons why they omit others.
#[derive(Debug, Default)]
pub struct Coverage {
    expressed: BTreeSet<&'static str>,
    omitted: Vec<(&'static str, String)>,
    altered: BTreeSet<&'static str>,
}

impl Coverage {
    /// The files express these fields, or all of a group such as `model`.
    pub fn express(&mut self, fields: &[&'static str]) {
        self.expressed.extend(fields);
    }

    /// The files omit this field, even if it is marked as expressed, or the unmarked fields of this group.
    pub fn omit(&mut self, field: &'static str, why: impl Into<String>) {
        self.omitted.push((field, why.into()));
    }

    /// The files give this field another value, even if the plan has its default.
    pub fn alter(&mut self, field: &'static str, why: impl Into<String>) {
        self.altered.insert(field);
        self.omit(field, why);
    }

    /// Expresses the field if `holds`, omits it otherwise.
    pub fn express_if(&mut self, holds: bool, field: &'static str, why: &str) {
        if holds { self.express(&[field]) } else { self.omit(field, why) }
    }

    /// The fields of this plan that the files omit, in the order of `FIELDS`.
    pub fn omissions(&self, plan: &Plan) -> Vec<Omission> {
        let mut omissions: Vec<Omission> = Vec::new();
        for field in FIELDS {
            let usual = || self.altered.contains(field.key).then(|| "as usual".to_string());
            let Some(value) = (field.value)(plan).or_else(usual) else { continue };
            let reason =
                |name: &str| self.omitted.iter().find(|(key, _)| *key == name).map(|(_, why)| why.clone());
            let expressed = self.expressed.contains(field.key) || self.expressed.contains(group(field.key));
            let why = match reason(field.key) {
                Some(why) => why,
                None if expressed => continue,
                None => reason(group(field.key)).unwrap_or("no such option".into()),
            };
            match omissions.last_mut() {
                Some(last) if group(field.key) == group(last.fields[0].0) && last.why == why => {
                    last.fields.push((field.key, value));
                }
                _ => omissions.push(Omission { fields: vec![(field.key, value)], why }),
            }
        }
        omissions
    }
}

/// `stack` of `stack.attention`; `stages` is a field and no group.
fn group(key: &str) -> &str {
    key.split('.').next().filter(|group| *group != "stages").unwrap_or(key)
}
