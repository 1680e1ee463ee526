//! Damage to JSON and TOML that leaves the syntax as it is: values, keys and lists.

use super::{Draws, Words, numbers};
use serde_json::{Map, Value};

/// JSON with one to four damages; `None` if it is none.
pub fn json(intact: &[u8], words: &Words, draws: &mut Draws) -> Option<Vec<u8>> {
    let mut tree: Value = serde_json::from_slice(intact).ok()?;
    damage(&mut tree, words, draws);
    serde_json::to_vec(&tree).ok()
}

/// TOML with one to four damages; `None` if it is none, or has become what TOML has not.
pub fn toml(intact: &[u8], words: &Words, draws: &mut Draws) -> Option<Vec<u8>> {
    let table: toml::Table = toml::from_str(std::str::from_utf8(intact).ok()?).ok()?;
    let mut tree = serde_json::to_value(table).ok()?;
    damage(&mut tree, words, draws);
    toml::to_string(&tree).ok().map(String::into_bytes)
}

/// Lines of JSON, one of them damaged.
pub fn json_lines(intact: &[u8], words: &Words, draws: &mut Draws) -> Option<Vec<u8>> {
    let mut lines: Vec<&[u8]> = intact.split(|byte| *byte == b'\n').collect();
    let at = draws.below(lines.len());
    let damaged = json(lines[at], words, draws)?;
    lines[at] = &damaged;
    Some(lines.join(&b'\n'))
}

fn damage(tree: &mut Value, words: &Words, draws: &mut Draws) {
    for _ in 0..1 + draws.below(4) {
        let donor = node(tree, draws).clone();
        change(node(tree, draws), donor, words, draws);
    }
}

/// One of all values of a tree.
fn node<'a>(tree: &'a mut Value, draws: &mut Draws) -> &'a mut Value {
    let mut left = draws.below(count(tree));
    find(tree, &mut left).expect("the number is below the count")
}

fn count(tree: &Value) -> usize {
    1 + match tree {
        Value::Object(entries) => entries.values().map(count).sum(),
        Value::Array(values) => values.iter().map(count).sum::<usize>(),
        _ => 0,
    }
}

fn find<'a>(tree: &'a mut Value, left: &mut usize) -> Option<&'a mut Value> {
    if *left == 0 {
        return Some(tree);
    }
    *left -= 1;
    match tree {
        Value::Object(entries) => entries.values_mut().find_map(|value| find(value, left)),
        Value::Array(values) => values.iter_mut().find_map(|value| find(value, left)),
        _ => None,
    }
}

fn change(value: &mut Value, donor: Value, words: &Words, draws: &mut Draws) {
    match (value, draws.below(10)) {
        (value, 0) => *value = donor,
        (value, 1) => *value = other(draws),
        (Value::Object(entries), what) if !entries.is_empty() => keys(entries, what, donor, words, draws),
        (Value::Array(values), what) => list(values, what, donor, draws),
        (Value::Number(number), _) => {
            let text = numbers::written(&number.to_string(), draws);
            *number = match (text.parse::<u64>(), text.parse::<i64>(), text.parse::<f64>()) {
                (Ok(whole), _, _) => whole.into(),
                (_, Ok(whole), _) => whole.into(),
                (_, _, Ok(real)) => serde_json::Number::from_f64(real).unwrap_or_else(|| 0.into()),
                _ => numbers::whole(draws).into(),
            };
        }
        (Value::String(text), 2..5) => *text = numbers::odd(draws),
        // A text may hold numbers, such as a shape or a stage's blocks.
        (Value::String(text), 5..8) => *text = super::text::damaged(text, words, draws),
        (Value::String(text), _) => *text = words.draw(draws).into(),
        (value, _) => *value = numbers::whole(draws).into(),
    }
}

fn keys(entries: &mut Map<String, Value>, what: usize, donor: Value, words: &Words, draws: &mut Draws) {
    let names: Vec<String> = entries.keys().cloned().collect();
    let name = &names[draws.below(names.len())];
    match what {
        2..5 => drop(entries.remove(name)),
        5 => {
            let value = entries.remove(name).unwrap_or_default();
            entries.insert(words.draw(draws).into(), value);
        }
        6 => drop(entries.insert(numbers::odd(draws), donor)),
        7 => drop(entries.insert(words.draw(draws).into(), other(draws))),
        _ => drop(entries.insert(words.draw(draws).into(), donor)),
    }
}

fn list(values: &mut Vec<Value>, what: usize, donor: Value, draws: &mut Draws) {
    match what {
        2 => values.clear(),
        3 if !values.is_empty() => drop(values.remove(draws.below(values.len()))),
        4 => values.reverse(),
        5 if !values.is_empty() => {
            let value = values[draws.below(values.len())].clone();
            values.extend(vec![value; draws.of(&[1, 7, 500])]);
        }
        _ => values.push(donor),
    }
}

/// A value of any type.
fn other(draws: &mut Draws) -> Value {
    match draws.below(8) {
        0 => Value::Null,
        1 => Value::Bool(draws.below(2) == 0),
        2 => Value::Array(Vec::new()),
        3 => Value::Object(Map::new()),
        4 => (0..draws.of(&[3, 60, 120])).fold(Value::from(1), |value, _| Value::Array(vec![value])),
        5 => numbers::odd(draws).into(),
        6 => (draws.below(2000) as f64 / 7.0 - 100.0).into(),
        _ => numbers::whole(draws).into(),
    }
}
