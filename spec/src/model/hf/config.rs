//! The keys of a `config.json`, read with messages that name file, key, value and what is allowed.

use crate::error::SpecError;
use crate::limits::Count;
use crate::model::Activation;
use serde_json::{Map, Value};

/// The keys of one file. A key that is `null` counts as missing, as it does to the files' authors.
pub struct Config<'a> {
    /// The keys and their values.
    pub keys: &'a Map<String, Value>,
    /// The file's name, for messages.
    pub origin: &'a str,
}

impl Config<'_> {
    /// The spelling of a key that the file has; the first if it has none of them.
    pub fn spelling(&self, spellings: &[&'static str]) -> &'static str {
        spellings.iter().copied().find(|key| self.value(key).is_some()).unwrap_or(spellings[0])
    }

    /// A whole number that must be there.
    pub fn count(&self, key: &str, count: Count) -> Result<usize, SpecError> {
        self.optional_count(key, count)?.ok_or_else(|| self.missing(key, &count.expected()))
    }

    /// A whole number with a value that stands for a missing one.
    pub fn count_or(&self, key: &str, default: usize, count: Count) -> Result<usize, SpecError> {
        Ok(self.optional_count(key, count)?.unwrap_or(default))
    }

    /// A whole number that may be missing.
    pub fn optional_count(&self, key: &str, count: Count) -> Result<Option<usize>, SpecError> {
        self.value(key)
            .map(|value| match value.as_u64() {
                Some(number) if count.allows(number) => Ok(number as usize),
                _ => Err(self.bad(key, &count.expected())),
            })
            .transpose()
    }

    /// `true` or `false`, with what stands for a missing one.
    pub fn flag_or(&self, key: &str, default: bool) -> Result<bool, SpecError> {
        match self.value(key) {
            None => Ok(default),
            Some(Value::Bool(flag)) => Ok(*flag),
            Some(_) => Err(self.bad(key, "true or false should stand here")),
        }
    }

    /// Text that must be there; `meaning` goes into the message.
    pub fn text(&self, key: &str, meaning: &str) -> Result<&str, SpecError> {
        self.optional_text(key, meaning)?.ok_or_else(|| self.missing(key, &format!("it holds {meaning}")))
    }

    /// Text that may be missing.
    pub fn optional_text(&self, key: &str, meaning: &str) -> Result<Option<&str>, SpecError> {
        match self.value(key) {
            None => Ok(None),
            Some(Value::String(text)) => Ok(Some(text)),
            Some(_) => Err(self.bad(key, &format!("it holds {meaning}"))),
        }
    }

    /// The items of a list that may be missing.
    pub fn optional_list(&self, key: &str, meaning: &str) -> Result<Option<&[Value]>, SpecError> {
        match self.value(key) {
            None => Ok(None),
            Some(Value::Array(items)) => Ok(Some(items)),
            Some(_) => Err(self.bad(key, &format!("it holds {meaning}"))),
        }
    }

    /// A number under the first of these spellings that there is, if there is one.
    pub fn optional_above_zero(&self, spellings: &[&'static str]) -> Result<Option<f64>, SpecError> {
        let key = self.spelling(spellings);
        let value = self.keys.get(key).filter(|value| !value.is_null());
        let number = |value: &Value| value.as_f64().filter(|number| *number > 0.0 && number.is_finite());
        let allowed = "a number above 0 should stand here";
        value.map(|value| number(value).ok_or_else(|| self.bad(key, allowed))).transpose()
    }

    /// Whether one of several probabilities, each with what stands for a missing one, is above zero.
    pub fn any_above_zero(&self, probabilities: &[(&str, f64)]) -> Result<bool, SpecError> {
        let mut any = false;
        for (key, default) in probabilities {
            any |= self.probability(key, *default)? > 0.0;
        }
        Ok(any)
    }

    /// A probability, with what stands for a missing one.
    pub fn probability(&self, key: &str, default: f64) -> Result<f64, SpecError> {
        let Some(value) = self.value(key) else { return Ok(default) };
        let known = value.as_f64().filter(|p| (0.0..=1.0).contains(p));
        known.ok_or_else(|| self.bad(key, "a probability from 0 to 1 should stand here"))
    }

    /// The nonlinearity that a key names, with what stands for a missing one.
    pub fn activation_or(&self, key: &str, default: Activation) -> Result<Activation, SpecError> {
        match self.optional_text(key, "the name of an activation")? {
            None => Ok(default),
            Some(name) => activation(name).ok_or_else(|| self.bad(key, &known_activations())),
        }
    }

    /// Refuses the value of `key` unless it is a whole multiple of the value of `divisor_key`.
    pub fn check_multiple(&self, key: &str, of: (&str, usize), value: usize) -> Result<(), SpecError> {
        let (divisor_key, divisor) = of;
        if value.is_multiple_of(divisor) {
            return Ok(());
        }
        Err(self.bad(key, &format!("it must be a multiple of `{divisor_key}`, {divisor}")))
    }

    /// The error for a key whose value makes no sense.
    pub fn bad(&self, key: &str, allowed: &str) -> SpecError {
        let value = self.keys.get(key).map_or_else(|| "missing".into(), printed);
        SpecError::BadValue { origin: self.origin.into(), key: key.into(), value, allowed: allowed.into() }
    }

    fn missing(&self, key: &str, expected: &str) -> SpecError {
        SpecError::MissingKey { origin: self.origin.into(), key: key.into(), expected: expected.into() }
    }

    fn value(&self, key: &str) -> Option<&Value> {
        self.keys.get(key).filter(|value| !value.is_null())
    }
}

/// The spellings of activations; the tanh and sigmoid approximations of GELU cost the same as the exact one.
const ACTIVATIONS: &[(&str, Activation)] = &[
    ("gelu", Activation::Gelu),
    ("gelu_10", Activation::Gelu),
    ("gelu_fast", Activation::Gelu),
    ("gelu_new", Activation::Gelu),
    ("gelu_python", Activation::Gelu),
    ("gelu_pytorch_tanh", Activation::Gelu),
    ("quick_gelu", Activation::Gelu),
    ("relu", Activation::Relu),
    ("relu2", Activation::SquaredRelu),
    ("silu", Activation::Silu),
    ("swish", Activation::Silu),
];

/// The nonlinearity with that name.
pub fn activation(name: &str) -> Option<Activation> {
    ACTIVATIONS.iter().find(|(spelling, _)| *spelling == name).map(|(_, activation)| *activation)
}

/// Names of activations, for messages.
pub fn known_activations() -> String {
    let names: Vec<&str> = ACTIVATIONS.iter().map(|(name, _)| *name).collect();
    format!("known are {}", names.join(", "))
}

/// The kind of a JSON value, for messages.
pub fn kind(value: &Value) -> &'static str {
    match value {
        Value::Null => "null",
        Value::Bool(_) => "a boolean",
        Value::Number(_) => "a number",
        Value::String(_) => "a string",
        Value::Array(_) => "a list",
        Value::Object(_) => "an object",
    }
}

/// A value as it stands in the file; lists and objects only by kind, since they can be long.
fn printed(value: &Value) -> String {
    match value {
        Value::Array(items) => format!("a list of {}", items.len()),
        Value::Object(_) => "an object".into(),
        other => other.to_string(),
    }
}
