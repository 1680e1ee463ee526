//! The section on other simulators.

use crate::render::table::Table;
use trainwright_evidence::peers::PeerErrors;

/// The section, for errors on rows of each kind, by its name; nothing without peers.
pub fn section(peers: &[(&str, PeerErrors)]) -> String {
    if peers.is_empty() {
        return String::new();
    }
    let cell = |(median, mean): (f64, f64)| format!("{:.1} / {:.1}", 100.0 * median, 100.0 * mean);
    let table = Table::of(peers)
        .left("peer", |(_, peer)| format!("{} {}", peer.peer, peer.version))
        .left("run on", |(_, peer)| &peer.date)
        .left("rows", |(kind, _)| kind)
        .right("common rows", |(_, peer)| peer.rows)
        .right("peer", move |(_, peer)| cell(peer.errors[0]))
        .right("Trainwright", move |(_, peer)| cell(peer.errors[1]))
        .right("catalog alone", move |(_, peer)| cell(peer.errors[2]))
        .markdown();
    format!(
        "## Other simulators on the same rows\n\n\
         Errors of step times in %, median / mean, on the rows that the peer can express and Trainwright forecasts. Trainwright's\n\
         calibration has seen those of quality A; the last column is without it. `tests/tools/peers/peers.py` makes the peers'\n\
         forecasts (`traces/published/peers.csv`) and says what each cannot express.\n\n{table}\n",
    )
}
