//! Forecasts of other simulators for rows of a table of runs, and their errors beside ours on the same rows.
//!
//! The table has a line for each forecast: `id,peer,version,date,seconds`, the id that of the run.

use crate::statistics::{mean, median};
use csv::ReaderBuilder;
use serde::Deserialize;
use std::collections::BTreeMap;
use std::io::Read;

/// A peer's forecast of a run.
#[derive(Debug, Clone, PartialEq, Deserialize)]
pub struct PeerForecast {
    /// Id of the run.
    pub id: String,
    /// Name of the peer.
    pub peer: String,
    /// Its version or commit.
    pub version: String,
    /// Day of the forecast.
    pub date: String,
    /// Time of a step, in seconds.
    pub seconds: f64,
}

/// Reads a table of forecasts.
///
/// # Errors
/// What is no CSV, or lacks a column or a number.
pub fn read(from: impl Read) -> Result<Vec<PeerForecast>, csv::Error> {
    ReaderBuilder::new().from_reader(from).deserialize().collect()
}

/// A run with the time of a step as measured and as our forecasts give it, in seconds.
#[derive(Debug, Clone, PartialEq)]
pub struct Ours<'a> {
    /// Id of the run.
    pub id: &'a str,
    /// As measured.
    pub measured: f64,
    /// With the calibration, and with the catalog alone.
    pub forecasts: [f64; 2],
}

/// Errors of a peer and ours on the runs that both forecast.
#[derive(Debug, Clone, PartialEq)]
pub struct PeerErrors {
    /// Name of the peer.
    pub peer: String,
    /// Its version or commit.
    pub version: String,
    /// Day of the forecasts.
    pub date: String,
    /// Common runs.
    pub rows: usize,
    /// Median and mean of the absolute errors: the peer's, ours with the calibration, ours with the catalog alone.
    pub errors: [(f64, f64); 3],
}

/// The errors of each peer by name and version; a peer without a common run is left out.
pub fn compare(peers: &[PeerForecast], ours: &[Ours]) -> Vec<PeerErrors> {
    let ours: BTreeMap<&str, &Ours> = ours.iter().map(|run| (run.id, run)).collect();
    let mut common: BTreeMap<(&str, &str, &str), Vec<[f64; 3]>> = BTreeMap::new();
    for PeerForecast { id, peer, version, date, seconds } in peers {
        if let Some(Ours { measured, forecasts: [calibrated, catalog], .. }) = ours.get(id.as_str()) {
            let errors = [seconds, calibrated, catalog].map(|forecast| (forecast / measured - 1.0).abs());
            common.entry((peer, version, date)).or_default().push(errors);
        }
    }
    let judged = common.into_iter().map(|((peer, version, date), rows)| PeerErrors {
        peer: peer.into(),
        version: version.into(),
        date: date.into(),
        rows: rows.len(),
        errors: [0, 1, 2].map(|of| {
            let sizes: Vec<f64> = rows.iter().map(|errors| errors[of]).collect();
            (median(&sizes), mean(&sizes))
        }),
    });
    judged.collect()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn only_runs_that_both_forecast_count() {
        let peers = "id,peer,version,date,seconds\n\
                     a,other,1.0,2026-01-01,2\nb,other,1.0,2026-01-01,6\nunknown,other,1.0,2026-01-01,9\n\
                     unknown,alone,2,2026-01-01,1\n";
        let ours = [
            Ours { id: "a", measured: 4.0, forecasts: [5.0, 3.0] },
            Ours { id: "b", measured: 4.0, forecasts: [4.0, 4.0] },
            Ours { id: "c", measured: 4.0, forecasts: [40.0, 40.0] },
        ];
        let judged = compare(&read(peers.as_bytes()).unwrap(), &ours);
        // The peer: 2 / 4 and 6 / 4, both 50 % off. Ours: 5 / 4 and 4 / 4, then 3 / 4 and 4 / 4.
        assert_eq!(judged.len(), 1);
        assert_eq!((judged[0].peer.as_str(), judged[0].rows), ("other", 2));
        assert_eq!(judged[0].errors, [(0.5, 0.5), (0.125, 0.125), (0.125, 0.125)]);
    }

    #[test]
    fn a_forecast_that_is_no_number_is_refused() {
        let fault =
            read("id,peer,version,date,seconds\na,other,1.0,2026-01-01,fast\n".as_bytes()).unwrap_err();
        assert!(fault.to_string().contains("seconds") || fault.to_string().contains("float"), "{fault}");
    }
}
