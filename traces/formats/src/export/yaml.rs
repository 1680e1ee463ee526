//! Tables as YAML.

use serde_json::{Map, Value};

/// Writes a mapping, in its order.
pub fn write(table: &Map<String, Value>) -> String {
    serde_saphyr::to_string(table).expect("a table with text keys")
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
