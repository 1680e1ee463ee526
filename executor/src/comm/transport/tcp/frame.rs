//! How messages travel on a connection.
//!
//! ```text
//! a frame: header (3 u32), form (u32: 0 f32, 1 bytes, 2 bf16), how many follow (u64), number of the frame (u32),
//!          the numbers or bytes, CRC-32 of all that (u32)
//! ```
//!
//! Each direction of a connection numbers its frames from 0. So a frame that is missing, comes twice or is cut ends the
//! connection before anything of it is a message. TCP alone loses nothing; what stands between two hosts may. Numbers
//! travel as they lie in memory: all hosts must have the same byte order. Messages all of whose numbers are bf16 numbers
//! travel as such, in half the bytes and without loss.

use crate::comm::transport::header::Header;
use crate::comm::transport::message::Payload;
use crate::device::host_buffers::take_buffer;
use std::io::{self, Read, Write};

/// More bytes than any control message has; the largest one is a rank's record of many steps.
const LONGEST_CONTROL: u64 = 1 << 34;

/// Numbers and bytes for which room is made at once: a header that lies makes no room for what does not come.
const NUMBERS_AT_ONCE: usize = 1 << 22;
const BYTES_AT_ONCE: usize = 1 << 22;

/// Numbers that are made bf16 at a time.
const HALVES_AT_ONCE: usize = 1 << 16;

/// Bytes before a message, and behind it.
const HEADER: usize = 28;
const CHECKSUM: usize = 4;

/// Bytes of messages that are sent in one piece with their headers.
const SMALL: usize = 1 << 14;

/// The forms of a message.
const NUMBERS: u32 = 0;
const BYTES: u32 = 1;
const HALVES: u32 = 2;

/// Writes the frames of one direction.
pub(super) struct FrameWriter<W> {
    to: W,
    /// The number of the next frame.
    next: u32,
}

impl<W: Write> FrameWriter<W> {
    pub fn new(to: W) -> Self {
        Self { to, next: 0 }
    }

    /// Sends a message. After an error the connection is of no use: part of a frame may have gone.
    pub fn send(&mut self, header: Header, payload: &Payload) -> io::Result<()> {
        let (form, count, width) = match payload {
            Payload::Numbers(numbers) if are_bf16(numbers) => (HALVES, numbers.len(), 2),
            Payload::Numbers(numbers) => (NUMBERS, numbers.len(), 4),
            Payload::Bytes(bytes) => (BYTES, bytes.len(), 1),
        };
        let mut first = [0; HEADER];
        for (place, part) in first.chunks_exact_mut(4).zip(header.into_iter().chain([form])) {
            place.copy_from_slice(&part.to_le_bytes());
        }
        first[16..24].copy_from_slice(&(count as u64).to_le_bytes());
        first[24..].copy_from_slice(&self.next.to_le_bytes());
        self.next = self.next.wrapping_add(1);
        if count <= SMALL / width {
            let mut frame = Vec::with_capacity(HEADER + count * width + CHECKSUM);
            put(&mut frame, &first, form, payload)?;
            return self.to.write_all(&frame);
        }
        put(&mut self.to, &first, form, payload)
    }
}

fn put(to: &mut impl Write, first: &[u8; HEADER], form: u32, payload: &Payload) -> io::Result<()> {
    let mut to = Summed::new(to);
    to.write_all(first)?;
    match payload {
        Payload::Numbers(numbers) if form == HALVES => {
            let mut halves = Vec::with_capacity(numbers.len().min(HALVES_AT_ONCE));
            for part in numbers.chunks(HALVES_AT_ONCE) {
                halves.clear();
                halves.extend(part.iter().map(|number| (number.to_bits() >> 16) as u16));
                to.write_all(bytemuck::cast_slice(&halves))?;
            }
        }
        Payload::Numbers(numbers) => to.write_all(bytemuck::cast_slice(numbers))?,
        Payload::Bytes(bytes) => to.write_all(bytes)?,
    }
    let checksum = to.checksum();
    to.inner.write_all(&checksum.to_le_bytes())
}

/// Whether each number is one in bf16: the lower half of its bits is zero. Numbers in f32 are found out by the first few.
fn are_bf16(numbers: &[f32]) -> bool {
    let part_is = |part: &[f32]| part.iter().fold(0, |bits, number| bits | number.to_bits()) & 0xFFFF == 0;
    numbers.chunks(64).all(part_is)
}

/// Reads the frames of one direction.
pub(super) struct FrameReader<R> {
    from: R,
    next: u32,
    /// The most numbers of a message.
    longest: usize,
}

impl<R: Read> FrameReader<R> {
    pub fn new(from: R, longest: usize) -> Self {
        Self { from, next: 0, longest }
    }

    /// The next message.
    ///
    /// # Errors
    /// Those of the connection; `InvalidData` with what is wrong for anything but the next frame as it was sent.
    pub fn next(&mut self) -> io::Result<(Header, Payload)> {
        let mut from = Summed::new(&mut self.from);
        let mut first = [0; HEADER];
        from.read_exact(&mut first)?;
        let part = |at: usize| u32::from_le_bytes([first[at], first[at + 1], first[at + 2], first[at + 3]]);
        let count = u64::from(part(16)) | u64::from(part(20)) << 32;
        if part(24) != self.next {
            return Err(invalid(format!("frame {} came where frame {} should", part(24), self.next)));
        }
        self.next = self.next.wrapping_add(1);
        let payload = match part(12) {
            NUMBERS if count <= self.longest as u64 => Payload::Numbers(numbers(&mut from, count as usize)?),
            HALVES if count <= self.longest as u64 => Payload::Numbers(halves(&mut from, count as usize)?),
            BYTES if count <= LONGEST_CONTROL => {
                let mut bytes = Vec::new();
                while bytes.len() < count as usize {
                    let had = bytes.len();
                    bytes.resize((count as usize).min(had + BYTES_AT_ONCE), 0);
                    from.read_exact(&mut bytes[had..])?;
                }
                Payload::Bytes(bytes)
            }
            NUMBERS | HALVES => {
                let longest = self.longest;
                return Err(invalid(format!(
                    "a header announces {count} numbers, the plan's messages have at most {longest}"
                )));
            }
            _ => return Err(invalid("what came from it is no message of a rank".into())),
        };
        let (mut sent, checksum) = ([0; CHECKSUM], from.checksum());
        from.inner.read_exact(&mut sent)?;
        match u32::from_le_bytes(sent) == checksum {
            true => Ok(([part(0), part(4), part(8)], payload)),
            false => Err(invalid(format!("the checksum of frame {} is wrong", part(24)))),
        }
    }
}

fn invalid(what: String) -> io::Error {
    io::Error::new(io::ErrorKind::InvalidData, what)
}

/// That many f32.
fn numbers(stream: &mut impl Read, count: usize) -> io::Result<Vec<f32>> {
    let mut numbers = take_buffer(count.min(NUMBERS_AT_ONCE));
    let mut read = 0;
    while read < count {
        numbers.resize(count.min(read + NUMBERS_AT_ONCE), 0.0);
        stream.read_exact(bytemuck::cast_slice_mut(&mut numbers[read..]))?;
        read = numbers.len();
    }
    Ok(numbers)
}

/// That many bf16, as f32.
fn halves(stream: &mut impl Read, count: usize) -> io::Result<Vec<f32>> {
    let mut numbers = take_buffer(count.min(NUMBERS_AT_ONCE));
    numbers.clear();
    let mut halves = vec![0u16; count.min(HALVES_AT_ONCE)];
    while numbers.len() < count {
        let part = &mut halves[..(count - numbers.len()).min(HALVES_AT_ONCE)];
        stream.read_exact(bytemuck::cast_slice_mut(part))?;
        numbers.extend(part.iter().map(|half| f32::from_bits(u32::from(*half) << 16)));
    }
    Ok(numbers)
}

/// Sums up the bytes that go through it.
struct Summed<'a, T> {
    inner: &'a mut T,
    sum: crc32fast::Hasher,
}

impl<'a, T> Summed<'a, T> {
    fn new(inner: &'a mut T) -> Self {
        Self { inner, sum: crc32fast::Hasher::new() }
    }

    fn checksum(&self) -> u32 {
        self.sum.clone().finalize()
    }
}

impl<T: Read> Read for Summed<'_, T> {
    fn read(&mut self, buffer: &mut [u8]) -> io::Result<usize> {
        let read = self.inner.read(buffer)?;
        self.sum.update(&buffer[..read]);
        Ok(read)
    }
}

impl<T: Write> Write for Summed<'_, T> {
    fn write(&mut self, bytes: &[u8]) -> io::Result<usize> {
        let written = self.inner.write(bytes)?;
        self.sum.update(&bytes[..written]);
        Ok(written)
    }

    fn flush(&mut self) -> io::Result<()> {
        self.inner.flush()
    }
}

/// Frames of every form, one behind the other.
pub(crate) fn valid_frames() -> Vec<Vec<u8>> {
    let payloads = [
        Payload::Numbers(vec![0.1, 0.2, 0.3]),
        Payload::Numbers(vec![1.0, 2.0]),
        Payload::Bytes((0..20).collect()),
    ];
    let frame = |payload: &Payload| {
        let mut writer = FrameWriter::new(Vec::new());
        writer.send([7, 8, 9], payload).expect("a vector takes every byte");
        writer.to
    };
    payloads.iter().map(frame).collect()
}

/// The most numbers of a message that `whole_frames` reads.
const LONGEST_OF_TESTS: usize = 1 << 24;

/// Whether bytes are whole frames, the first with number 0.
pub(crate) fn whole_frames(bytes: &[u8]) -> bool {
    let mut rest = bytes;
    let mut reader = FrameReader::new(&mut rest, LONGEST_OF_TESTS);
    loop {
        match reader.next() {
            Ok(_) if reader.from.is_empty() => return true,
            Ok(_) => {}
            Err(_) => return false,
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    /// Some messages of every form, small and large.
    fn messages() -> Vec<(Header, Payload)> {
        let numbers: Vec<f32> = (0..20_000).map(|number| number as f32 / 3.0).collect();
        let bf16 = (0..20_000).map(|number| f32::from_bits(number << 16)).collect();
        let bytes = Payload::Bytes((0..200).collect());
        let all = [Payload::Numbers(numbers), bytes, Payload::Numbers(bf16), Payload::Bytes(Vec::new())];
        all.into_iter().enumerate().map(|(index, payload)| ([7, 8, index as u32], payload)).collect()
    }

    /// The frames of these messages, each by itself.
    fn frames() -> Vec<Vec<u8>> {
        let mut writer = FrameWriter::new(Vec::new());
        let frame = |(header, payload): &(Header, Payload)| {
            writer.send(*header, payload).unwrap();
            std::mem::take(&mut writer.to)
        };
        messages().iter().map(frame).collect()
    }

    /// How many messages come out of some bytes, and what ends them.
    fn read(bytes: &[u8]) -> (usize, io::Error) {
        let mut reader = FrameReader::new(bytes, 20_000);
        let mut sent = messages().into_iter();
        loop {
            match reader.next() {
                Ok(message) => assert!(sent.next().is_some_and(|sent| sent == message), "another message"),
                Err(error) => return (messages().len() - sent.len(), error),
            }
        }
    }

    #[test]
    fn bf16_numbers_travel_in_two_bytes_each_and_all_numbers_keep_their_bits() {
        let bf16: Vec<f32> = (0..100_001).map(|number| f32::from_bits(number << 16)).collect();
        // One number with any of the bits that bf16 has not makes all of them f32.
        let mixed = (0..16).map(|bit| {
            let mut numbers = bf16.clone();
            numbers[100_000] = f32::from_bits(1.0f32.to_bits() | 1 << bit);
            (numbers, 4)
        });
        for (numbers, bytes) in [(bf16.clone(), 2), (Vec::new(), 2)].into_iter().chain(mixed) {
            let (count, mut writer) = (numbers.len(), FrameWriter::new(Vec::new()));
            writer.send([7, 8, 9], &Payload::Numbers(numbers.clone())).unwrap();
            assert_eq!(writer.to.len(), HEADER + bytes * count + CHECKSUM);
            let (header, Payload::Numbers(read)) = FrameReader::new(&writer.to[..], count).next().unwrap()
            else {
                panic!("numbers are numbers")
            };
            let bits = |numbers: &[f32]| numbers.iter().map(|number| number.to_bits()).collect::<Vec<_>>();
            assert_eq!((header, bits(&read)), ([7, 8, 9], bits(&numbers)));
        }
    }

    #[test]
    fn a_frame_that_is_missing_comes_twice_or_is_damaged_is_no_message() {
        let frames = frames();
        let (complete, end) = read(&frames.concat());
        assert_eq!((complete, end.kind()), (4, io::ErrorKind::UnexpectedEof));
        let check = |bytes: &[u8], most: usize, expected: &str| {
            let (count, error) = read(bytes);
            assert!(count <= most && error.to_string().contains(expected), "{count}: {error}");
        };
        for (number, frame) in frames.iter().enumerate() {
            let [before, behind] = [frames[..number].concat(), frames[number + 1..].concat()];
            if number + 1 < frames.len() {
                let expected = format!("frame {} came where frame {number} should", number + 1);
                check(&[&before[..], &behind].concat(), number, &expected);
            }
            let expected = format!("frame {number} came where frame {} should", number + 1);
            check(&[&before[..], frame, frame, &behind].concat(), number + 1, &expected);
            // Cut anywhere, with the frames behind it and enough of others.
            for cut in [1, 2, 4, 5, 17, frame.len() / 2].into_iter().filter(|cut| *cut < frame.len()) {
                let cut = [&before[..], &frame[..frame.len() - cut], &behind, &vec![0; 100_000]].concat();
                check(&cut, number, "");
            }
            // Each bit of its first bytes, one in its middle and one of its last.
            let places = (0..8 * HEADER).chain([4 * frame.len(), 8 * frame.len() - 1]);
            for place in places {
                let mut damaged = frame.clone();
                damaged[place / 8] ^= 1 << (place % 8);
                check(&[&before[..], &damaged, &behind].concat(), number, "");
            }
        }
    }

    /// A header that promises more than a plan's messages have is none, and one that lies gets room only for what comes.
    #[test]
    fn a_header_that_lies_is_refused_without_room_for_it() {
        let error = |form: u32, count: u64, longest| {
            let mut header = [0; HEADER];
            header[12..16].copy_from_slice(&form.to_le_bytes());
            header[16..24].copy_from_slice(&count.to_le_bytes());
            FrameReader::new(&header[..], longest).next().unwrap_err()
        };
        for form in [NUMBERS, HALVES] {
            let text = error(form, 1001, 1000).to_string();
            assert_eq!(text, "a header announces 1001 numbers, the plan's messages have at most 1000");
            // 4 TB: no machine of a test has room for that.
            assert_eq!(error(form, 1 << 40, 1 << 41).kind(), io::ErrorKind::UnexpectedEof);
        }
        assert_eq!(error(BYTES, u64::MAX, 1000).kind(), io::ErrorKind::InvalidData);
        assert_eq!(error(9, 0, 1000).kind(), io::ErrorKind::InvalidData);
    }
}
