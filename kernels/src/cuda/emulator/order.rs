//! The happens-before order of work. A stream runs its work in order; it knows another stream's work only from events it waited
//! for, with all that the other stream knew then. An access to memory must know all writes there, and a write also all reads.
//!
//! This module runs nothing: it checks the order of accesses, whenever the emulator makes them.
//!
//! Source: Lamport 1978, "Time, clocks, and the ordering of events in a distributed system", CACM 21(7); Fidge 1988, vector
//! clocks.

use std::collections::BTreeMap;
use std::ops::Range;

/// A device's number and a stream of it.
pub(super) type Name = (u64, usize);

/// The work of each stream that is known: all up to a number.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub(super) struct Clock(BTreeMap<Name, u64>);

impl Clock {
    pub fn knows(&self, work: (Name, u64)) -> bool {
        self.0.get(&work.0).is_some_and(|known| *known >= work.1)
    }

    fn join(&mut self, other: &Clock) {
        for (name, known) in &other.0 {
            let merged = self.0.entry(*name).or_default();
            *merged = (*merged).max(*known);
        }
    }
}

/// The streams of a device, and its host.
#[derive(Debug)]
pub(super) struct Order {
    device: u64,
    selected: usize,
    streams: Vec<Clock>,
    host: Clock,
}

impl Order {
    /// The order of the device of that number.
    pub fn new(device: u64) -> Self {
        Self { device, selected: 0, streams: vec![Clock::default()], host: Clock::default() }
    }

    /// Selects the stream of the work that follows.
    pub fn select(&mut self, stream: usize) {
        if self.streams.len() <= stream {
            self.streams.resize_with(stream + 1, Clock::default);
        }
        self.selected = stream;
    }

    /// New work of the selected stream: its name and number, and the stream's clock.
    pub fn work(&mut self) -> ((Name, u64), &Clock) {
        let clock = &mut self.streams[self.selected];
        clock.join(&self.host);
        let name = (self.device, self.selected);
        let number = clock.0.entry(name).or_default();
        *number += 1;
        let work = (name, *number);
        (work, &self.streams[self.selected])
    }

    /// An event behind the selected stream's work: its clock.
    pub fn record(&mut self) -> Clock {
        self.work().1.clone()
    }

    /// The selected stream waits for an event.
    pub fn wait(&mut self, event: &Clock) {
        self.streams[self.selected].join(event);
    }

    /// The host waits for an event.
    pub fn wait_on_host(&mut self, event: &Clock) {
        self.host.join(event);
    }

    /// The host's clock.
    pub fn host(&self) -> &Clock {
        &self.host
    }

    /// The host waits for the selected stream.
    pub fn finish(&mut self) {
        let Self { selected, streams, host, .. } = self;
        host.join(&streams[*selected]);
    }

    /// The host waits for all streams.
    pub fn finish_all(&mut self) {
        let Self { streams, host, .. } = self;
        streams.iter().for_each(|stream| host.join(stream));
    }
}

/// The last accesses to a buffer's bytes.
#[derive(Debug, Default)]
pub(super) struct History {
    writes: Vec<Access>,
    reads: Vec<Access>,
}

#[derive(Debug)]
struct Access {
    bytes: Range<usize>,
    by: (Name, u64),
}

/// The most accesses kept for a buffer. Beyond that the oldest are dropped, and faults with them are missed.
const KEPT: usize = 128;

impl History {
    /// Records a read.
    ///
    /// # Errors
    /// The stream whose write it should have waited for.
    pub fn read(&mut self, bytes: Range<usize>, by: (Name, u64), known: &Clock) -> Result<(), Name> {
        unknown(&self.writes, &bytes, known)?;
        let within = |access: &Access| access.by.0 == by.0 && is_within(&access.bytes, &bytes);
        self.reads.retain(|access| !within(access));
        keep(&mut self.reads, Access { bytes, by });
        Ok(())
    }

    /// Records a write.
    ///
    /// # Errors
    /// The stream whose write or read it should have waited for.
    pub fn write(&mut self, bytes: Range<usize>, by: (Name, u64), known: &Clock) -> Result<(), Name> {
        unknown(&self.writes, &bytes, known)?;
        unknown(&self.reads, &bytes, known)?;
        // A stream that knows this write knows them too.
        self.reads.retain(|access| !is_within(&access.bytes, &bytes));
        self.writes.retain(|access| !is_within(&access.bytes, &bytes));
        keep(&mut self.writes, Access { bytes, by });
        Ok(())
    }
}

impl History {
    /// As `write`, for an access of the host, which is over when it returns.
    pub fn check_host(&self, bytes: Range<usize>, known: &Clock) -> Result<(), Name> {
        unknown(&self.writes, &bytes, known)?;
        unknown(&self.reads, &bytes, known)
    }
}

fn unknown(all: &[Access], bytes: &Range<usize>, known: &Clock) -> Result<(), Name> {
    let meets = |access: &&Access| access.bytes.start < bytes.end && bytes.start < access.bytes.end;
    match all.iter().filter(meets).find(|access| !known.knows(access.by)) {
        Some(access) => Err(access.by.0),
        None => Ok(()),
    }
}

fn is_within(inner: &Range<usize>, outer: &Range<usize>) -> bool {
    outer.start <= inner.start && inner.end <= outer.end
}

fn keep(all: &mut Vec<Access>, access: Access) {
    if all.len() == KEPT {
        all.remove(0);
    }
    all.push(access);
}

#[cfg(test)]
mod tests {
    use super::*;

    fn write(history: &mut History, bytes: Range<usize>, order: &mut Order) -> Result<(), Name> {
        let (by, known) = order.work();
        history.write(bytes, by, known)
    }

    fn read(history: &mut History, bytes: Range<usize>, order: &mut Order) -> Result<(), Name> {
        let (by, known) = order.work();
        history.read(bytes, by, known)
    }

    #[test]
    fn who_reads_waits_for_who_wrote_and_who_writes_for_who_read() {
        let (mut history, mut one, mut other) = (History::default(), Order::new(1), Order::new(2));
        write(&mut history, 0..8, &mut one).unwrap();
        let written = one.record();
        assert_eq!(read(&mut history, 4..6, &mut other), Err((1, 0)));
        read(&mut history, 8..9, &mut other).unwrap();
        other.wait(&written);
        read(&mut history, 4..6, &mut other).unwrap();
        // Both may read. The owner may write bytes that the other has not read, and the rest after waiting.
        read(&mut history, 4..6, &mut one).unwrap();
        write(&mut history, 0..4, &mut one).unwrap();
        assert_eq!(write(&mut history, 4..8, &mut one), Err((2, 0)));
        one.wait(&other.record());
        write(&mut history, 4..8, &mut one).unwrap();
    }

    #[test]
    fn streams_of_a_device_have_no_order_but_by_events_and_the_host() {
        let (mut history, mut order) = (History::default(), Order::new(1));
        write(&mut history, 0..8, &mut order).unwrap();
        order.select(1);
        assert_eq!(write(&mut history, 0..8, &mut order), Err((1, 0)));
        order.select(0);
        order.finish();
        order.select(1);
        write(&mut history, 0..8, &mut order).unwrap();
        order.select(2);
        assert_eq!(read(&mut history, 0..1, &mut order), Err((1, 1)));
        assert_eq!(history.check_host(0..1, order.host()), Err((1, 1)));
        order.select(1);
        let written = order.record();
        order.wait_on_host(&written);
        history.check_host(0..1, order.host()).unwrap();
        order.finish_all();
        read(&mut history, 0..1, &mut order).unwrap();
    }
}
