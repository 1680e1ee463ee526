//! Damage to Chakra's execution traces that leaves them messages of protocol buffers.

use super::{Draws, Words, numbers};
use prost::Message;
use trainwright_formats::chakra::{self, Node, Value};

/// A trace with a few other nodes; `None` if it is none.
pub fn chakra(intact: &[u8], words: &Words, draws: &mut Draws) -> Option<Vec<u8>> {
    let (metadata, mut nodes) = chakra::read(intact, "f").ok()?;
    for _ in 0..1 + draws.below(4) {
        if nodes.is_empty() {
            break;
        }
        let (at, other) = (draws.below(nodes.len()), draws.below(nodes.len()));
        match draws.below(8) {
            0 => drop(nodes.remove(at)),
            1 => nodes.insert(at, nodes[other].clone()),
            2 => nodes.swap(at, other),
            3 => {
                let number = draws.of(&[0, other as u64, at as u64, nodes.len() as u64, u64::MAX]);
                nodes[at].data_dependencies.push(number);
            }
            4 => nodes[at].kind = draws.below(9) as i32 - 1,
            _ => change(&mut nodes[at], words, draws),
        }
    }
    let mut bytes = metadata.encode_length_delimited_to_vec();
    nodes.iter().for_each(|node| bytes.extend(node.encode_length_delimited_to_vec()));
    Some(bytes)
}

fn change(node: &mut Node, words: &Words, draws: &mut Draws) {
    if node.attributes.is_empty() {
        node.id = numbers::whole(draws);
        return;
    }
    let at = draws.below(node.attributes.len());
    match draws.below(6) {
        0 => drop(node.attributes.remove(at)),
        1 => node.duration_micros = numbers::whole(draws),
        2 => node.attributes[at].name = words.draw(draws).into(),
        _ => node.attributes[at].value = Some(value(draws)),
    }
}

fn value(draws: &mut Draws) -> Value {
    let whole = numbers::whole(draws);
    match draws.below(6) {
        0 => Value::Double(f64::from_bits(whole)),
        1 => Value::Int32(whole as i32),
        2 => Value::Int64(whole as i64),
        3 => Value::Uint64(whole),
        4 => Value::Text(numbers::odd(draws)),
        _ => Value::Double(whole as f64),
    }
}
