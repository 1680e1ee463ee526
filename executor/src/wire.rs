//! The readers of what other processes send, by name: tests give them damaged bytes.

use crate::comm::transport::{Identity, valid_frames, whole_frames};
use crate::train::generation::batch::Batch;
use crate::train::run::{is_report, valid_reports};

/// A reader of bytes from a connection.
pub struct WireReader {
    /// What is read.
    pub name: &'static str,
    /// Bytes that it reads.
    pub valid: fn() -> Vec<Vec<u8>>,
    /// Whether bytes are of that kind.
    pub reads: fn(&[u8]) -> bool,
}

/// Every reader of bytes from a connection.
pub const WIRE_READERS: [WireReader; 4] = [
    WireReader { name: "frames", valid: valid_frames, reads: whole_frames },
    WireReader {
        name: "identity",
        valid: || vec![Identity::default().with("steps", &10).with("plan", &"text").to_bytes()],
        reads: |bytes| {
            let identity = Identity::from_bytes(bytes);
            // A difference is a message to people.
            identity
                .as_ref()
                .map(|other| Identity::default().with("steps", &9).difference(1, other))
                .is_some()
        },
    },
    WireReader { name: "report", valid: valid_reports, reads: is_report },
    WireReader {
        name: "batch",
        valid: || {
            let part = crate::BatchPart { sequence: 4, first: 0, tokens: vec![7, 8], samples: true };
            vec![Batch { freed: vec![3, 9], parts: vec![part] }.to_bytes()]
        },
        reads: |bytes| Batch::from_bytes(bytes).is_some(),
    },
];
