//! Which fields of a plan an exporter has written down.

use super::fields::{FIELDS, Unsaid};
use std::collections::BTreeSet;
use trainwright_spec::plan::Plan;

/// What is said and what is not.
#[derive(Debug, Default)]
pub struct Sheet {
    said: BTreeSet<&'static str>,
    left: Vec<(&'static str, String)>,
    altered: BTreeSet<&'static str>,
}

impl Sheet {
    /// The files say these fields, or all of a group such as `model`.
    pub fn say(&mut self, fields: &[&'static str]) {
        self.said.extend(fields);
    }

    /// The files do not say this field, even if it is on the sheet as said, or what of a group is not on it; and why.
    pub fn leave(&mut self, field: &'static str, why: impl Into<String>) {
        self.left.push((field, why.into()));
    }

    /// The files say something else of this field, even if the plan leaves it as everybody does.
    pub fn alter(&mut self, field: &'static str, why: impl Into<String>) {
        self.altered.insert(field);
        self.leave(field, why);
    }

    /// Says the field if that is so, else leaves it.
    pub fn say_if(&mut self, holds: bool, field: &'static str, why: &str) {
        if holds { self.say(&[field]) } else { self.leave(field, why) }
    }

    /// The fields of this plan that the files do not say, in the order of `FIELDS`.
    pub fn unsaid(&self, plan: &Plan) -> Vec<Unsaid> {
        let mut unsaid: Vec<Unsaid> = Vec::new();
        for field in FIELDS {
            let usual = || self.altered.contains(field.key).then(|| "as usual".to_string());
            let Some(value) = (field.value)(plan).or_else(usual) else { continue };
            let left =
                |name: &str| self.left.iter().find(|(left, _)| *left == name).map(|(_, why)| why.clone());
            let said = self.said.contains(field.key) || self.said.contains(group(field.key));
            let why = match left(field.key) {
                Some(why) => why,
                None if said => continue,
                None => left(group(field.key)).unwrap_or("no such option".into()),
            };
            match unsaid.last_mut() {
                Some(last) if group(field.key) == group(last.fields[0].0) && last.why == why => {
                    last.fields.push((field.key, value));
                }
                _ => unsaid.push(Unsaid { fields: vec![(field.key, value)], why }),
            }
        }
        unsaid
    }
}

/// `stack` of `stack.attention`; `stages` is a field of its own and no group.
fn group(key: &str) -> &str {
    key.split('.').next().filter(|group| *group != "stages").unwrap_or(key)
}
