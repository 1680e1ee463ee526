//! Bytes of a rendezvous: magic numbers and signed texts, read until a deadline.

use crate::comm::transport::token::{Nonce, Proof, Token};
use std::io::{self, Read, Write};
use std::net::TcpStream;
use std::time::{Duration, Instant};

/// The first bytes in each direction. Another version of these exchanges has another number.
pub(super) const MAGIC: [u8; 8] = *b"trainwr3";

/// The longest hello, which a stranger could send too, in bytes.
pub(super) const SHORT: usize = 256;

/// The longest text of a process that has proved that it knows the token: an identity has the plan in it, an answer
/// the addresses of all ranks.
pub(super) const LONG: usize = 16 << 20;

/// How many bytes are made room for at once: no more than twice what has come is ever allocated.
const AT_ONCE: usize = 64 << 10;

/// Reads until an instant, however slowly bytes come.
pub(super) struct Deadline<'a> {
    pub stream: &'a TcpStream,
    pub until: Instant,
}

impl Read for Deadline<'_> {
    fn read(&mut self, buffer: &mut [u8]) -> io::Result<usize> {
        let left = self.until.saturating_duration_since(Instant::now());
        if left.is_zero() {
            return Err(io::ErrorKind::TimedOut.into());
        }
        self.stream.set_read_timeout(Some(left.max(Duration::from_millis(1))))?;
        self.stream.read(buffer)
    }
}

/// Reads the magic number.
pub(super) fn read_magic(from: &mut impl Read) -> io::Result<()> {
    let mut magic = [0; MAGIC.len()];
    from.read_exact(&mut magic)?;
    match magic == MAGIC {
        true => Ok(()),
        false => Err(invalid("what it says is not what a rank of this version says")),
    }
}

/// Writes a proof, the length of a text and the text.
pub(super) fn write_signed(
    mut to: impl Write,
    token: &Token,
    purpose: &[u8; 8],
    nonces: &[Nonce; 2],
    content: &[u8],
) -> io::Result<()> {
    let length = (content.len() as u32).to_le_bytes();
    to.write_all(&[&token.proof(purpose, nonces, content)[..], &length, content].concat())
}

/// Reads what `write_signed` wrote, at most `longest` bytes.
pub(super) fn read_signed(
    from: &mut impl Read,
    token: &Token,
    purpose: &[u8; 8],
    nonces: &[Nonce; 2],
    longest: usize,
) -> io::Result<Vec<u8>> {
    let (mut proof, mut length) = (Proof::default(), [0; 4]);
    from.read_exact(&mut proof)?;
    from.read_exact(&mut length)?;
    let length = u32::from_le_bytes(length) as usize;
    if length > longest {
        return Err(invalid("what it says is not what a rank of this version says"));
    }
    let mut content = Vec::new();
    while content.len() < length {
        let had = content.len();
        content.resize(length.min(had + AT_ONCE), 0);
        from.read_exact(&mut content[had..])?;
    }
    match token.verifies(purpose, nonces, &content, &proof) {
        true => Ok(content),
        false => Err(invalid("its TRAINWRIGHT_TOKEN is another one")),
    }
}

fn invalid(reason: &str) -> io::Error {
    io::Error::new(io::ErrorKind::InvalidData, reason)
}
