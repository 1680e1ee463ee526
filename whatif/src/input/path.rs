//! Sets a key of the question or the plan by its path, as it stands in a plan's TOML file.

use crate::scenario::{Base, Scenario};
use toml::Value;
use trainwright_spec::cluster::Cluster;
use trainwright_spec::error::SpecError;
use trainwright_spec::toml_text::TomlText;

/// How a value changes.
#[derive(Debug, Clone, PartialEq)]
pub(super) enum Change {
    /// It is multiplied: `x2`.
    Times(f64),
    /// It is replaced.
    To(String),
}

impl Change {
    pub fn parse(text: &str) -> Result<Change, String> {
        let factor = text.strip_prefix('x').and_then(|factor| factor.parse::<f64>().ok());
        match factor {
            Some(factor) if factor.is_finite() && factor > 0.0 => Ok(Change::Times(factor)),
            Some(_) => Err(format!("`{text}` is not a factor above zero")),
            None if text.is_empty() => Err("a value is missing".into()),
            None => Ok(Change::To(text.into())),
        }
    }
}

/// Changes the value at `path` and reads back what it is in.
pub(super) fn set(scenario: &mut Scenario, path: &str, change: &Change) -> Result<(), String> {
    match &mut scenario.base {
        Base::Plan(plan) => {
            let mut table = table(&**plan);
            change_at(&mut table, path, path, change)?;
            // Checked when it is simulated: other keys may still change with this one.
            **plan = read(table, path)?;
        }
        Base::Question(question) => {
            let (part, rest) = path.split_once('.').unwrap_or((path, ""));
            match part {
                "cluster" => question.cluster = changed_cluster(&question.cluster, rest, path, change)?,
                "job" => question.job = changed(&question.job, rest, path, change)?,
                "model" => question.model = changed(&question.model, rest, path, change)?,
                "stack" => question.stack = changed(&question.stack, rest, path, change)?,
                _ => {
                    return Err(format!(
                        "`{path}` is not below cluster, job, model or stack; other keys are a plan's: give --plan"
                    ));
                }
            }
        }
    }
    Ok(())
}

/// Checks a cluster that was changed directly; a plan is checked when it is simulated.
pub(super) fn check_cluster(scenario: &Scenario) -> Result<(), String> {
    match &scenario.base {
        Base::Plan(_) => Ok(()),
        Base::Question(question) => {
            Cluster::from_toml(&toml_text(&table(&question.cluster)), "cluster").map(|_| ()).map_err(words)
        }
    }
}

fn changed_cluster(cluster: &Cluster, rest: &str, path: &str, change: &Change) -> Result<Cluster, String> {
    let mut table = table(cluster);
    change_at(&mut table, rest, path, change)?;
    Cluster::from_toml(&toml_text(&table), "cluster").map_err(words)
}

fn changed<T: TomlText>(part: &T, rest: &str, path: &str, change: &Change) -> Result<T, String> {
    let mut table = table(part);
    change_at(&mut table, rest, path, change)?;
    read(table, path)
}

fn read<T: TomlText>(table: Value, path: &str) -> Result<T, String> {
    let unreadable = |error: toml::de::Error| format!("`{path}`: {}", error.message().replace('\n', " "));
    T::read(&toml_text(&table)).map_err(unreadable)
}

fn table(part: &impl TomlText) -> Value {
    Value::Table(part.write().parse().expect("what was written can be read"))
}

fn toml_text(value: &Value) -> String {
    toml::to_string(value).expect("a table that was read can be written")
}

/// An error without the position, which is in generated text.
pub(crate) fn words(error: SpecError) -> String {
    match error {
        SpecError::BadValue { key, value, allowed, .. } => format!("`{key}` is {value}; {allowed}"),
        SpecError::Syntax { message, .. } => message,
        other => other.to_string(),
    }
}

/// Walks to the value at `rest` and changes it; a key that is not there yet may be set, not multiplied.
fn change_at(value: &mut Value, rest: &str, path: &str, change: &Change) -> Result<(), String> {
    let missing = |keys: Vec<&str>| format!("there is no `{path}`; known here are {}", keys.join(", "));
    let Some((key, deeper)) = rest.split_once('.').or((!rest.is_empty()).then_some((rest, ""))) else {
        return Err(format!("`{path}` is a whole table: give one of its keys"));
    };
    let inner = match value {
        Value::Table(table) => {
            let known: Vec<String> = table.keys().cloned().collect();
            match (table.get_mut(key), deeper, change) {
                (Some(inner), _, _) => inner,
                (None, "", Change::To(text)) => {
                    table.insert(key.into(), scalar(text));
                    return Ok(());
                }
                (None, _, _) => return Err(missing(known.iter().map(String::as_str).collect())),
            }
        }
        Value::Array(array) => {
            let length = array.len();
            let index = key.parse::<usize>().ok();
            let inner = index.and_then(|index| array.get_mut(index));
            inner.ok_or_else(|| format!("`{path}`: `{key}` is not an index below {length}"))?
        }
        _ => return Err(format!("there is no `{path}`: what is before `{key}` is a single value")),
    };
    if !deeper.is_empty() {
        return change_at(inner, deeper, path, change);
    }
    match inner {
        // A quantity with its source.
        Value::Table(table) if table.contains_key("value") => {
            let mut quantity = table["value"].clone();
            change_value(&mut quantity, path, change, true)?;
            table.insert("value".into(), quantity);
            let source = match change {
                Change::Times(factor) => format!("varied: x{factor}"),
                Change::To(text) => format!("varied: {text}"),
            };
            table.insert("source".into(), Value::String(source));
            Ok(())
        }
        Value::Table(_) | Value::Array(_) => Err(format!("`{path}` is a whole table: give one of its keys")),
        single => change_value(single, path, change, false),
    }
}

fn change_value(value: &mut Value, path: &str, change: &Change, quantity: bool) -> Result<(), String> {
    *value = match (change, &*value) {
        (Change::To(text), Value::String(_)) if !quantity => Value::String(text.clone()),
        (Change::To(text), _) => scalar(text),
        (Change::Times(factor), Value::Integer(number)) => {
            let product = factor * *number as f64;
            if product.fract() != 0.0 {
                return Err(format!("`{path}` is {number}, and {factor} times that is not whole"));
            }
            Value::Integer(product as i64)
        }
        (Change::Times(factor), Value::Float(number)) => Value::Float(factor * number),
        (Change::Times(factor), Value::String(text)) => {
            let end = text.find(|c: char| !(c.is_ascii_digit() || ".+-_".contains(c))).unwrap_or(text.len());
            let number = text[..end].replace('_', "").parse::<f64>();
            let number = number.map_err(|_| format!("`{path}` is `{text}`, which cannot be multiplied"))?;
            Value::String(format!("{} {}", factor * number, text[end..].trim()))
        }
        (Change::Times(_), other) => return Err(format!("`{path}` is {other}, which cannot be multiplied")),
    };
    Ok(())
}

/// A number or truth where the text is one.
fn scalar(text: &str) -> Value {
    let integer = text.parse().map(Value::Integer);
    let number = integer.or_else(|_| text.parse().map(Value::Float));
    number.or_else(|_| text.parse().map(Value::Boolean)).unwrap_or_else(|_| Value::String(text.into()))
}
