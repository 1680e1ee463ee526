//! TensorBoard's event files: scalars by step.
//!
//! A file is a row of records. A record is the length of its message (64 bits), the checksum of that, the message, and the
//! checksum of the message, all with the lowest byte first. A checksum is a CRC-32C, rotated and shifted so that checksums of
//! data with checksums stay apart. The first message names the version of the format.
//!
//! Source: `tensorflow/core/lib/io/record_writer.h`, `core/lib/hash/crc32c.h`, `core/util/event.proto` and
//! `core/framework/summary.proto` of github.com/tensorflow/tensorflow. The messages have the fields that scalars need.

use prost::Message;

/// The format's version, which the first record of a file names.
const VERSION: &str = "brain.Event:2";

/// A message of an event file.
#[derive(Clone, PartialEq, Message)]
pub struct Event {
    /// Seconds since 1970.
    #[prost(double, tag = "1")]
    pub wall_time: f64,
    /// The step.
    #[prost(int64, tag = "2")]
    pub step: i64,
    /// The format's version, in the first record alone.
    #[prost(string, optional, tag = "3")]
    pub file_version: Option<String>,
    /// Values of the step.
    #[prost(message, optional, tag = "5")]
    pub summary: Option<Summary>,
    /// That a run starts at this step.
    #[prost(message, optional, tag = "7")]
    pub session_log: Option<SessionLog>,
}

/// Values of a step.
#[derive(Clone, PartialEq, Message)]
pub struct Summary {
    /// One for each curve.
    #[prost(message, repeated, tag = "1")]
    pub values: Vec<Value>,
}

/// A point of a curve.
#[derive(Clone, PartialEq, Message)]
pub struct Value {
    /// The curve; curves with the same first part before a slash stand together.
    #[prost(string, tag = "1")]
    pub tag: String,
    /// The value.
    #[prost(float, tag = "2")]
    pub simple_value: f32,
}

/// What a run does.
#[derive(Clone, PartialEq, Message)]
pub struct SessionLog {
    /// What it does: 1 is its start.
    #[prost(int32, tag = "1")]
    pub status: i32,
}

const START: i32 = 1;

impl Event {
    /// The first one of a file.
    pub fn version(wall_time: f64) -> Self {
        Self { wall_time, file_version: Some(VERSION.into()), ..Self::default() }
    }

    /// A resumed run begins with a step: TensorBoard drops what earlier files say of this and later steps.
    pub fn restart(wall_time: f64, step: usize) -> Self {
        Self {
            wall_time,
            step: step as i64,
            session_log: Some(SessionLog { status: START }),
            ..Self::default()
        }
    }

    /// Values of a step by tag.
    pub fn scalars<'a>(wall_time: f64, step: usize, values: impl Iterator<Item = (&'a str, f64)>) -> Self {
        let values = values.map(|(tag, value)| Value { tag: tag.into(), simple_value: value as f32 });
        let summary = Some(Summary { values: values.collect() });
        Self { wall_time, step: step as i64, summary, ..Self::default() }
    }

    /// As a record of a file.
    pub fn record(&self) -> Vec<u8> {
        let message = self.encode_to_vec();
        let length = (message.len() as u64).to_le_bytes();
        let checksums = [&length[..], &message].map(|bytes| masked(crc32c::crc32c(bytes)).to_le_bytes());
        [&length[..], &checksums[0], &message, &checksums[1]].concat()
    }
}

/// A checksum as it is stored.
fn masked(checksum: u32) -> u32 {
    checksum.rotate_right(15).wrapping_add(0xa282_ead8)
}

#[cfg(test)]
mod tests {
    use super::*;

    /// The events of a file; `None` if a checksum or a length is wrong.
    fn read(mut bytes: &[u8]) -> Option<Vec<Event>> {
        let mut events = Vec::new();
        while !bytes.is_empty() {
            let (length, rest) = bytes.split_first_chunk::<8>()?;
            let (of_length, rest) = rest.split_first_chunk::<4>()?;
            let (message, rest) = rest.split_at_checked(u64::from_le_bytes(*length) as usize)?;
            let (of_message, rest) = rest.split_first_chunk::<4>()?;
            let fits = |stored: [u8; 4], of: &[u8]| u32::from_le_bytes(stored) == masked(crc32c::crc32c(of));
            if !fits(*of_length, length) || !fits(*of_message, message) {
                return None;
            }
            events.push(Event::decode(message).ok()?);
            bytes = rest;
        }
        Some(events)
    }

    #[test]
    fn events_are_read_as_they_were_written() {
        let values = [("loss/training", 2.5), ("learning_rate", 3e-4)];
        let events = [
            Event::version(1e9),
            Event::restart(1e9 + 1.0, 101),
            Event::scalars(1e9 + 2.0, 101, values.into_iter()),
        ];
        let bytes: Vec<u8> = events.iter().flat_map(Event::record).collect();
        assert_eq!(read(&bytes).unwrap(), events);
        let mut damaged = bytes;
        *damaged.last_mut().unwrap() ^= 1;
        assert_eq!(read(&damaged), None);
    }

    /// A version at time 0 is 13 letters behind a tag and a length.
    #[test]
    fn the_bytes_are_those_of_the_format() {
        // RFC 3720, B.4: the CRC-32C of 32 zeros is 0x8a9136aa.
        assert_eq!(crc32c::crc32c(&[0; 32]), 0x8a91_36aa);
        // 0x8a9136aa turned right by 15 bits is 0x6d551522; + 0xa282ead8 = 0x10fd7fffa.
        assert_eq!(masked(0x8a91_36aa), 0x0fd7_fffa);
        let record = Event::version(0.0).record();
        assert_eq!((record.len(), &record[..8]), (8 + 4 + 15 + 4, &15u64.to_le_bytes()[..]));
        assert_eq!(&record[12..27], b"\x1a\x0dbrain.Event:2");
    }
}
