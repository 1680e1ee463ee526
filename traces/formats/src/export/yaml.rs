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

#[cfg(test)]
mod tests {
    use super::*;
    use serde_json::json;

    /// Readers of YAML 1.1, such as PyYAML, take `no` and `on` for booleans.
    #[test]
    fn texts_that_look_like_other_values_are_quoted() {
        for text in
            ["no", "yes", "on", "off", "n", "true", "null", "~", "1", "1e3", "0x10", "a: b", "# a", ""]
        {
            let table = Map::from_iter([("key".to_string(), json!(text))]);
            let written = write(&table);
            assert!(
                ["'", "\""].iter().any(|quote| written.starts_with(&format!("key: {quote}"))),
                "{written}"
            );
        }
        let table = json!({ "a": { "b": [1, 2.5], "c": "x" }, "d": true, "e": "no.yml" });
        let expected = "a:\n  b:\n  - 1\n  - 2.5\n  c: x\nd: true\ne: no.yml\n";
        assert_eq!(write(table.as_object().unwrap()), expected);
    }
}
