//! Tables as YAML: nested mappings in blocks, everything else as JSON, which is YAML too.

use serde_json::{Map, Value};

/// Writes a mapping.
pub fn write(table: &Map<String, Value>) -> String {
    let mut text = String::new();
    write_at(table, 0, &mut text);
    text
}

fn write_at(table: &Map<String, Value>, depth: usize, text: &mut String) {
    for (key, value) in table {
        let indent = "  ".repeat(depth);
        match value {
            Value::Object(inner) if !inner.is_empty() => {
                *text += &format!("{indent}{key}:\n");
                write_at(inner, depth + 1, text);
            }
            value => *text += &format!("{indent}{key}: {value}\n"),
        }
    }
}

/// Sets `model.recompute.granularity`-like paths in a mapping.
pub fn set(table: &mut Map<String, Value>, path: &str, value: Value) {
    match path.split_once('.') {
        None => {
            table.insert(path.into(), value);
        }
        Some((first, rest)) => {
            let inner = table.entry(first).or_insert_with(|| Value::Object(Map::new()));
            let inner = inner.as_object_mut().expect("a path leads through tables");
            set(inner, rest, value);
        }
    }
}
