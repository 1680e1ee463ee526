//! Which fields of a plan the files of an exporter express, and what becomes of the others.

use super::fields::{Effect, FIELDS, Omission, effect};
use std::collections::BTreeSet;
use trainwright_spec::plan::Plan;

/// Fields that the files express, and reasons why they omit others.
#[derive(Debug, Default)]
pub struct Coverage {
    expressed: BTreeSet<&'static str>,
    omitted: Vec<Omitted>,
    altered: BTreeSet<&'static str>,
    remarks: Vec<String>,
}

#[derive(Debug)]
struct Omitted {
    key: &'static str,
    why: String,
    /// `None` if it is that of the field.
    effect: Option<Effect>,
}

impl Coverage {
    /// The files express these fields, or all of a group such as `model`.
    pub fn express(&mut self, fields: &[&'static str]) {
        self.expressed.extend(fields);
    }

    /// The files omit this field, even if it is marked as expressed, or the unmarked fields of this group.
    pub fn omit(&mut self, field: &'static str, why: impl Into<String>) {
        self.omitted.push(Omitted { key: field, why: why.into(), effect: None });
    }

    /// Something else than these files says this field, or the unmarked fields of this group.
    pub fn elsewhere(&mut self, field: &'static str, why: impl Into<String>) {
        self.omitted.push(Omitted { key: field, why: why.into(), effect: Some(Effect::Elsewhere) });
    }

    /// The files run without this field, more slowly, faster, or in other memory.
    pub fn slow(&mut self, field: &'static str, why: impl Into<String>) {
        self.altered.insert(field);
        self.omitted.push(Omitted { key: field, why: why.into(), effect: Some(Effect::Speed) });
    }

    /// The files would not run, or train something else, whatever the plan's value of this field is.
    pub fn refuse(&mut self, field: &'static str, why: impl Into<String>) {
        self.altered.insert(field);
        self.omitted.push(Omitted { key: field, why: why.into(), effect: Some(Effect::Training) });
    }

    /// The files give this field another value, even if the plan has its default.
    pub fn alter(&mut self, field: &'static str, why: impl Into<String>) {
        self.altered.insert(field);
        self.omit(field, why);
    }

    /// Something that no field of a plan says.
    pub fn remark(&mut self, text: impl Into<String>) {
        self.remarks.push(text.into());
    }

    /// What no field of a plan says.
    pub fn remarks(&self) -> Vec<String> {
        self.remarks.clone()
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
            let expressed = self.expressed.contains(field.key) || self.expressed.contains(group(field.key));
            let (why, effect) = match self.reason(field.key, field.key) {
                Some(reason) => reason,
                None if expressed => continue,
                None => {
                    let of_group = self.reason(group(field.key), field.key);
                    of_group.unwrap_or(("no such option".into(), effect(field.key)))
                }
            };
            match omissions.last_mut() {
                Some(last)
                    if group(field.key) == group(last.fields[0].0)
                        && (&last.why, last.effect) == (&why, effect) =>
                {
                    last.fields.push((field.key, value));
                }
                _ => omissions.push(Omission { fields: vec![(field.key, value)], why, effect }),
            }
        }
        omissions
    }

    /// Whether this field is omitted, even if the plan has no value of it.
    pub fn omits(&self, field: &str) -> bool {
        let expressed = self.expressed.contains(field) || self.expressed.contains(group(field));
        self.reason(field, field).is_some() || !expressed
    }

    /// The gravest of the reasons under `name` for omitting `field`; all of them, if several are as grave.
    fn reason(&self, name: &str, field: &str) -> Option<(String, Effect)> {
        let named = || self.omitted.iter().filter(|omitted| omitted.key == name);
        let effect = |omitted: &Omitted| omitted.effect.unwrap_or(effect(field));
        let gravest = named().map(effect).max()?;
        let mut whys: Vec<&str> = Vec::new();
        for omitted in named().filter(|omitted| effect(omitted) == gravest) {
            if !whys.contains(&omitted.why.as_str()) {
                whys.push(&omitted.why);
            }
        }
        Some((whys.join("; "), gravest))
    }
}

/// `stack` of `stack.attention`; `stages` is a field and no group.
fn group(key: &str) -> &str {
    key.split('.').next().filter(|group| *group != "stages").unwrap_or(key)
}
