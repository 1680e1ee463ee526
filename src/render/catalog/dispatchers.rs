//! Dispatchers: all of them as a table, one as TOML.

use super::print;
use crate::render::table::Column::Left;
use crate::render::table::wrapped_table;
use serde::Serialize;
use trainwright_spec::experts::{DISPATCHERS, Dispatcher, Move, Visits};
use trainwright_spec::units::Bytes;

/// Every dispatcher.
pub fn list() -> String {
    let rows = DISPATCHERS.iter();
    let rows = rows.map(|dispatcher| [dispatcher.name(), dispatcher.summary(), dispatcher.source()]);
    let rows = rows.map(|row| row.map(str::to_string).into()).collect();
    wrapped_table(&[Left("dispatcher"), Left("summary"), Left("source")], rows)
        + "T tokens of a rank, each to k experts; h hidden width, e bytes of an element, E expert ranks\n"
}

/// A dispatcher with its moves for DeepSeek-V3's experts.
pub fn entry(dispatcher: &dyn Dispatcher) -> String {
    let (own, per_token, expert, inner) = (4096, 8, 64, 8);
    let visits = Visits {
        token: Bytes::new(2.0 * 7168.0),
        own,
        sent: own * per_token,
        rows: own * per_token,
        node_rows: 4.0 * own as f64,
        expert,
        inner,
        expert_tensor: 1,
    };
    let exchange = |each: Move| match each {
        Move::Exchange { kind, axis, bytes } => {
            Some(DispatcherExchange { collective: kind.name(), axis: axis.name(), bytes: bytes.get() })
        }
        Move::Copy { .. } | Move::Sort(_) => None,
    };
    print(&DispatcherEntry {
        name: dispatcher.name(),
        summary: dispatcher.summary(),
        source: dispatcher.source(),
        example: DispatcherExample {
            tokens: own,
            per_token,
            nodes_per_token: 4,
            hidden: 7168,
            expert,
            expert_inner: inner,
            exchanges: dispatcher.moves(&visits).into_iter().filter_map(exchange).collect(),
        },
    })
}

#[derive(Serialize)]
struct DispatcherEntry {
    name: &'static str,
    summary: &'static str,
    source: &'static str,
    example: DispatcherExample,
}

#[derive(Serialize)]
struct DispatcherExample {
    tokens: usize,
    per_token: usize,
    nodes_per_token: usize,
    hidden: usize,
    expert: usize,
    expert_inner: usize,
    exchanges: Vec<DispatcherExchange>,
}

#[derive(Serialize)]
struct DispatcherExchange {
    collective: &'static str,
    axis: &'static str,
    bytes: f64,
}
