//! Which fields of a plan an exporter has written down.

use super::fields::{FIELDS, Unsaid};
use std::collections::BTreeSet;
use trainwright_spec::plan::Plan;

/// What is said and what is not.
#[derive(Debug, Default)]
pub struct Sheet {
    said: BTreeSet<&'static str>,
    left: Vec<(&'static str, String)>,
}

impl Sheet {
    /// The files say these fields, or all that begin with a name that ends with a dot.
    pub fn say(&mut self, fields: &[&'static str]) {
        self.said.extend(fields);
    }

    /// The files do not say this field, or all that begin with it and a dot, and why; even if it is on the sheet as
    /// said.
    pub fn leave(&mut self, field: &'static str, why: impl Into<String>) {
        self.left.push((field, why.into()));
    }

    /// Says the field if that is so, else leaves it.
    pub fn say_if(&mut self, holds: bool, field: &'static str, why: &str) {
        if holds { self.say(&[field]) } else { self.leave(field, why) }
    }

    /// The fields of this plan that the files do not say, in the order of `FIELDS`.
    pub fn unsaid(&self, plan: &Plan) -> Vec<Unsaid> {
        let mut unsaid: Vec<Unsaid> = Vec::new();
        for field in FIELDS {
            let Some(value) = (field.value)(plan) else { continue };
            let left = self.left.iter().find(|(name, _)| within(field.key, name));
            let said = self.said.iter().any(|name| within(field.key, name));
            let why = match left {
                // A reason for a whole group is of account for what is not said one by one.
                Some((name, why)) if *name == field.key || !said => why.clone(),
                None if !said => "no such option".into(),
                _ => continue,
            };
            match unsaid.last_mut() {
                Some(last) if left.is_some_and(|(name, _)| *name != field.key) && last.why == why => {
                    last.fields.push((field.key, value));
                }
                _ => unsaid.push(Unsaid { fields: vec![(field.key, value)], why }),
            }
        }
        unsaid
    }
}

fn within(key: &str, name: &str) -> bool {
    key == name || key.strip_prefix(name).is_some_and(|rest| name.ends_with('.') || rest.starts_with('.'))
}
