//! What all processes of a run must have in common, by name.

use serde::Serialize;
use serde_json::Value;
use std::collections::BTreeMap;

/// Names with values that must be equal in every process of a run: settings, plan, data.
#[derive(Debug, Clone, PartialEq, Eq, Default)]
pub(crate) struct Identity(BTreeMap<String, String>);

/// How many differences a message lists.
const LISTED: usize = 3;

/// Values up to this length are listed in full, in characters.
const SHORT: usize = 48;

impl Identity {
    /// Adds a value of any serialisable type: each number and text in it gets the name of its path, such as
    /// `plan.mesh.tensor`. So a new field of `value` is compared without further work.
    pub fn with(mut self, name: &str, value: &impl Serialize) -> Self {
        let value = serde_json::to_value(value).unwrap_or_else(|error| Value::String(error.to_string()));
        self.add(name.into(), value);
        self
    }

    fn add(&mut self, name: String, value: Value) {
        match value {
            Value::Object(fields) => {
                fields.into_iter().for_each(|(field, value)| self.add(format!("{name}.{field}"), value));
            }
            Value::String(text) => drop(self.0.insert(name, text)),
            other => drop(self.0.insert(name, other.to_string())),
        }
    }

    /// The bytes that go to other processes.
    pub fn to_bytes(&self) -> Vec<u8> {
        serde_json::to_vec(&self.0).expect("texts are JSON")
    }

    /// The inverse of `to_bytes`; `None` if the bytes are none.
    pub fn from_bytes(bytes: &[u8]) -> Option<Self> {
        serde_json::from_slice(bytes).ok().map(Self)
    }

    /// How the identity of `rank` differs from this one, which is rank 0's; `None` if it does not.
    pub fn difference(&self, rank: usize, other: &Self) -> Option<String> {
        let mut names: Vec<&String> = self.0.keys().chain(other.0.keys()).collect();
        names.sort();
        names.dedup();
        names.retain(|name| self.0.get(*name) != other.0.get(*name));
        let listed = names.iter().take(LISTED).map(|name| {
            let [theirs, ours] = [other, self].map(|identity| shown(identity.0.get(*name)));
            format!("`{name}` is {theirs} on rank {rank} and {ours} on rank 0")
        });
        let mut text = listed.collect::<Vec<_>>().join("; ");
        if names.len() > LISTED {
            text += &format!("; and {} more differences", names.len() - LISTED);
        }
        (!names.is_empty()).then_some(text)
    }
}

fn shown(value: Option<&String>) -> String {
    let Some(value) = value else { return "absent".into() };
    match value.char_indices().nth(SHORT) {
        None => value.clone(),
        Some((end, _)) => format!("{}… ({} characters)", &value[..end], value.chars().count()),
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use serde_json::json;

    #[test]
    fn differences_are_named_by_their_path_and_survive_the_way_between_processes() {
        let settings = |rate: f64, more: Value| {
            Identity::default()
                .with("settings", &json!({"learning_rate": {"peak": rate}, "graph": true, "more": more}))
        };
        let ours = settings(0.5, Value::Null);
        assert_eq!(ours.difference(1, &Identity::from_bytes(&ours.to_bytes()).unwrap()), None);
        let theirs = Identity::from_bytes(&settings(0.25, json!({"new": 1})).to_bytes()).unwrap();
        assert_eq!(
            ours.difference(3, &theirs).unwrap(),
            "`settings.learning_rate.peak` is 0.25 on rank 3 and 0.5 on rank 0; `settings.more` is absent on \
             rank 3 and null on rank 0; `settings.more.new` is 1 on rank 3 and absent on rank 0"
        );
        let many = Identity::default().with("x", &json!({"a": 1, "b": 2, "c": 3, "d": "é".repeat(60)}));
        let text = Identity::default().difference(1, &many).unwrap();
        assert!(text.ends_with("; and 1 more differences"), "{text}");
        assert_eq!(shown(Some(&"é".repeat(60))), format!("{}… (60 characters)", "é".repeat(48)));
        assert_eq!(Identity::from_bytes(b"[1]"), None);
    }
}
