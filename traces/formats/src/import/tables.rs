//! Nested tables of a JSON or TOML file.

use super::arguments::quoted;
use super::keys::{FileKey, Keys, shortened};
use super::unique::Unique;
use super::{Imported, Request};
use serde_json::Value;
use std::cell::RefCell;
use std::collections::BTreeSet;
use trainwright_spec::error::SpecError;
use trainwright_spec::limits::Count;
use trainwright_spec::plan::Plan;

/// A file's tables; keys are named by their path, `zero_optimization.stage`.
pub struct Tables<'a> {
    request: &'a Request<'a>,
    root: Value,
    read: RefCell<BTreeSet<String>>,
    assumed: RefCell<Vec<String>>,
}

impl<'a> Tables<'a> {
    /// Reads JSON in which no key stands twice in a table.
    ///
    /// # Errors
    /// `Syntax` with line and column.
    pub fn from_json(request: &'a Request<'a>) -> Result<Self, SpecError> {
        let root: Result<Unique, serde_json::Error> = serde_json::from_str(request.text);
        Self::new(request, root.map(|Unique(root)| root).map_err(|error| error.to_string()))
    }

    /// Reads YAML, of which the last key counts where one stands twice.
    ///
    /// # Errors
    /// `Syntax` with the parser's message.
    pub fn from_yaml(request: &'a Request<'a>) -> Result<Self, SpecError> {
        let root: Result<Value, String> = serde_saphyr::from_str(request.text)
            .map_err(|error| error.to_string().lines().next().unwrap_or_default().to_string());
        Self::new(request, root)
    }

    /// Reads tables that were made by other means.
    ///
    /// # Errors
    /// `Syntax` if it is no table.
    pub fn from_value(request: &'a Request<'a>, root: Value) -> Result<Self, SpecError> {
        Self::new(request, Ok(root))
    }

    /// Reads TOML.
    ///
    /// # Errors
    /// `Syntax` with the parser's message.
    pub fn from_toml(request: &'a Request<'a>) -> Result<Self, SpecError> {
        let root: Result<Value, String> =
            toml::from_str(request.text).map_err(|error: toml::de::Error| error.message().replace('\n', " "));
        Self::new(request, root)
    }

    fn new(request: &'a Request<'a>, root: Result<Value, String>) -> Result<Self, SpecError> {
        let syntax = |message: String| SpecError::Syntax { origin: request.origin.into(), message };
        match root.map_err(syntax)? {
            mut root @ Value::Object(_) => {
                request.settings.iter().for_each(|(path, text)| set(&mut root, path, scalar(text)));
                Ok(Tables { request, root, read: RefCell::default(), assumed: RefCell::default() })
            }
            _ => Err(syntax("a table should stand here".into())),
        }
    }

    /// The value at a path; `None` if there is none, `null`, or an `auto` that another program fills in.
    pub fn get(&self, path: &str) -> Option<&Value> {
        self.read.borrow_mut().insert(path.into());
        self.at(path).filter(|found| !found.is_null() && *found != "auto")
    }

    fn at(&self, path: &str) -> Option<&Value> {
        path.split('.').try_fold(&self.root, |table, key| table.get(key))
    }

    /// With `${path}` and `${.key}` replaced by what stands there, as OmegaConf does; others stay.
    pub fn interpolated(mut self) -> Self {
        let before = self.root.clone();
        interpolate(&mut self.root, &before, "");
        self
    }

    /// Whether another program fills the value in.
    pub fn is_auto(&self, path: &str) -> bool {
        self.at(path).is_some_and(|value| value == "auto")
    }

    /// A number of things, between the limits of `count`.
    ///
    /// # Errors
    /// `BadValue` if it is no integer, or beyond the limits.
    pub fn count(&self, path: &str, count: Count) -> Result<Option<usize>, SpecError> {
        let integer = |value: &Value| {
            // 1e6 and 8.0 are integers too.
            let integer =
                value.as_u64().or(value.as_f64().filter(|n| *n >= 0.0 && n.fract() == 0.0).map(|n| n as u64));
            integer.filter(|number| count.allows(*number)).map(|number| number as usize)
        };
        self.read(path, &count.expected(), integer)
    }

    /// A number.
    ///
    /// # Errors
    /// `BadValue` if it is none.
    pub fn number(&self, path: &str) -> Result<Option<f64>, SpecError> {
        self.read(path, "a number should stand here", Value::as_f64)
    }

    /// A boolean, false if it is not given.
    ///
    /// # Errors
    /// `BadValue` if it is neither.
    pub fn flag(&self, path: &str) -> Result<bool, SpecError> {
        Ok(self.read(path, "true or false should stand here", Value::as_bool)?.unwrap_or(false))
    }

    /// A stage of ZeRO, 0 to 3.
    ///
    /// # Errors
    /// `BadValue` if it is none.
    pub fn zero_stage(&self, path: &str) -> Result<Option<usize>, SpecError> {
        let Some(value) = self.get(path) else { return Ok(None) };
        let stage = value.as_f64().filter(|stage| [0.0, 1.0, 2.0, 3.0].contains(stage));
        let shown = || if value.is_string() { quoted(&value.to_string()) } else { value.to_string() };
        let bad = || self.request.bad(path, shown(), "0, 1, 2 or 3");
        stage.map(|stage| Some(stage as usize)).ok_or_else(bad)
    }

    /// A text.
    ///
    /// # Errors
    /// `BadValue` if it is none.
    pub fn text(&self, path: &str) -> Result<Option<String>, SpecError> {
        self.read(path, "a text should stand here", |value| value.as_str().map(str::to_string))
    }

    fn read<T>(
        &self,
        path: &str,
        allowed: &str,
        as_type: impl Fn(&Value) -> Option<T>,
    ) -> Result<Option<T>, SpecError> {
        let Some(value) = self.get(path) else { return Ok(None) };
        let bad = || self.request.bad(path, quoted(&value.to_string()), allowed);
        as_type(value).map(Some).ok_or_else(bad)
    }

    /// Every value that is no table, with its path.
    pub fn leaves(&self, report: &mut impl FnMut(&str, &Value)) {
        values(&self.root, "", report);
    }

    /// Notes that `path` is left open and `value` was taken.
    pub fn assume(&self, path: &str, value: impl ToString) {
        self.assumed.borrow_mut().push(format!("{path} = {}", value.to_string()));
    }

    /// The plan of the tables, with what was read and taken, and the paths of `keys`.
    pub fn imported(&self, plan: Plan, keys: Keys) -> Imported {
        let key = |(choice, key): &(&'static str, &'static str)| FileKey {
            choice,
            key,
            value: self.at(key).and_then(shown),
        };
        let keys = keys.iter().map(key).collect();
        Imported { plan, unread: self.unread(), assumed: self.assumed.borrow().clone(), keys }
    }

    /// Paths that were not read.
    fn unread(&self) -> Vec<String> {
        let mut unread = Vec::new();
        self.leaves(&mut |path, _| {
            let read = self.read.borrow();
            let known = read.iter().any(|key| path == key || path.starts_with(&format!("{key}.")));
            if !known {
                unread.push(path.to_string());
            }
        });
        unread
    }
}

/// A value as messages show it; `None` if it says nothing.
fn shown(value: &Value) -> Option<String> {
    match value {
        Value::Null => None,
        Value::String(text) => (!text.is_empty()).then(|| quoted(&shortened(text))),
        other => Some(shortened(&other.to_string())),
    }
}

fn values(value: &Value, path: &str, report: &mut impl FnMut(&str, &Value)) {
    match value {
        Value::Object(table) => {
            for (key, inner) in table {
                let inner_path = if path.is_empty() { key.clone() } else { format!("{path}.{key}") };
                values(inner, &inner_path, report);
            }
        }
        _ => report(path, value),
    }
}

fn interpolate(value: &mut Value, root: &Value, parent: &str) {
    match value {
        Value::Object(table) => {
            for (key, inner) in table {
                let path = if parent.is_empty() { key.clone() } else { format!("{parent}.{key}") };
                let parent_of = path.rsplit_once('.').map_or("", |(parent, _)| parent).to_string();
                match inner {
                    Value::String(_) => interpolate(inner, root, &parent_of),
                    _ => interpolate(inner, root, &path),
                }
            }
        }
        Value::String(text) => {
            let Some(path) = text.strip_prefix("${").and_then(|rest| rest.strip_suffix('}')) else { return };
            let path = match path.strip_prefix('.') {
                Some(key) if !parent.is_empty() => format!("{parent}.{key}"),
                Some(key) => key.to_string(),
                None => path.to_string(),
            };
            let found = path.split('.').try_fold(root, |table, key| table.get(key));
            if let Some(found) = found.filter(|found| !found.is_object()) {
                *value = found.clone();
            }
        }
        _ => {}
    }
}

/// Sets the value at a path.
pub fn set(root: &mut Value, path: &str, value: Value) {
    let Value::Object(table) = root else { return };
    match path.split_once('.') {
        None => {
            table.insert(path.into(), value);
        }
        Some((first, rest)) => {
            let inner = table.entry(first).or_insert_with(|| Value::Object(Default::default()));
            if !inner.is_object() {
                *inner = Value::Object(Default::default());
            }
            set(inner, rest, value);
        }
    }
}

/// A number, a boolean or a text.
pub fn scalar(text: &str) -> Value {
    match serde_json::from_str(text) {
        Ok(value @ (Value::Number(_) | Value::Bool(_) | Value::Array(_))) => value,
        _ => Value::String(text.into()),
    }
}
