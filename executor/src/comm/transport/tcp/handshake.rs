//! How the ranks of a run find each other over TCP.
//!
//! ```text
//! rank 0 listens at the master's address ◄─ every other rank sends its number, its identity, and where it listens
//!        └─ when all are there, every rank gets all addresses; higher ranks connect to lower ones
//! ```
//!
//! A connection that does not prove that it knows the run's token, and a rank that this run does not have or has
//! already, is dropped, and the run goes on. A rank of this run with another identity ends it, with what differs.

use super::exchange::{Deadline, LONG, MAGIC, read_magic, read_signed, write_signed};
use super::listener::{Arrival, Listener, REST};
use crate::comm::transport::identity::Identity;
use crate::comm::transport::rendezvous::Rendezvous;
use crate::comm::transport::token::{Nonce, nonce};
use crate::error::RunError;
use std::io::{self, ErrorKind, Read, Write};
use std::net::{IpAddr, SocketAddr, TcpStream, ToSocketAddrs};
use std::thread;
use std::time::{Duration, Instant};

/// A rank's introduction: rank, world, port.
type Hello = [u64; 3];

/// The first byte of rank 0's answer. The addresses of all ranks follow, or why not.
const WELCOME: u8 = 0;
const NOT_OF_THIS_RUN: u8 = 1;
const DIFFERS: u8 = 2;

/// How long one write of the rendezvous may take.
const WRITING: Duration = Duration::from_secs(20);

/// By rank; `None` for this process.
type Streams = Vec<Option<TcpStream>>;

/// A connection to each other rank.
///
/// # Errors
/// `Rendezvous` with what the system says or who has not come, `Differs` if a rank has another identity.
pub(super) fn connect_all(
    place: &Rendezvous,
    master: &str,
    identity: &Identity,
) -> Result<Streams, RunError> {
    let failed = |failure| match failure {
        Failure::System(error) => {
            RunError::Rendezvous { rank: place.rank, master: master.into(), reason: error.to_string() }
        }
        Failure::Differs { rank, differences } => RunError::Differs { rank, differences },
    };
    match place.rank {
        0 => receive_all(place, master, identity).map_err(failed),
        _ => join(place, master, identity).map_err(failed),
    }
}

/// Why the ranks do not connect.
enum Failure {
    System(io::Error),
    /// This rank has another identity than rank 0.
    Differs {
        rank: usize,
        differences: String,
    },
}

impl From<io::Error> for Failure {
    fn from(error: io::Error) -> Self {
        Failure::System(error)
    }
}

/// A rank that rank 0 knows.
struct Known {
    stream: TcpStream,
    nonces: [Nonce; 2],
    /// Where it listens.
    address: SocketAddr,
}

/// Rank 0: waits for all others and sends each the addresses of all.
fn receive_all(place: &Rendezvous, master: &str, identity: &Identity) -> Result<Streams, Failure> {
    let until = Instant::now() + place.patience;
    let address = addresses(master)?[0];
    let listener = Listener::new(address, &place.token, place.remark)
        .map_err(|error| explained(error, &format!("cannot listen at {address}")))?;
    if place.token.is_empty() && !address.ip().is_loopback() && place.world > 1 {
        let text = "TRAINWRIGHT_TOKEN is not set: whoever reaches";
        (place.remark.0)(&format!("{text} {address} can take part in this run or end it"));
    }
    let mut ranks: Vec<Option<Known>> = (0..place.world).map(|_| None).collect();
    let missing = |ranks: &[Option<Known>]| ranks.iter().skip(1).filter(|rank| rank.is_none()).count();
    while missing(&ranks) > 0 {
        let Some(arrival) = listener.next(until) else {
            let late = format!("{} ranks have not come in time", missing(&ranks));
            return Err(io::Error::new(ErrorKind::TimedOut, late).into());
        };
        let (from, hello) = (arrival.from, hello_of(&arrival));
        match admit(place, identity, &ranks, &arrival, hello) {
            Ok((rank, port)) => {
                let Arrival { mut stream, nonces, .. } = arrival;
                let address = SocketAddr::new(from.ip(), port);
                match answer(place, &mut stream, &nonces, WELCOME, b"") {
                    Ok(()) => ranks[rank] = Some(Known { stream, nonces, address }),
                    Err(error) => listener.dropped(from, &error.to_string()),
                }
            }
            Err((kind, why)) => {
                let (rank, mut stream) = (hello.map_or(0, |[rank, ..]| rank as usize), arrival.stream);
                // A process that has gone again need not learn why it was turned away.
                let _ = answer(place, &mut stream, &arrival.nonces, kind, why.as_bytes());
                if kind == DIFFERS {
                    return Err(Failure::Differs { rank, differences: why });
                }
                listener.dropped(from, &why);
            }
        }
    }
    let addresses: Vec<String> = ranks
        .iter()
        .map(|rank| rank.as_ref().map(|known| known.address.to_string()).unwrap_or_default())
        .collect();
    let addresses = serde_json::to_vec(&addresses).expect("texts are JSON");
    let mut streams: Streams = Vec::new();
    for (rank, known) in ranks.into_iter().enumerate() {
        let Some(Known { mut stream, nonces, .. }) = known else {
            streams.push(None);
            continue;
        };
        write_signed(&mut stream, &place.token, b"addresse", &nonces, &addresses)
            .map_err(|error| explained(error, &format!("rank {rank} has come and gone again")))?;
        stream.set_write_timeout(None)?;
        streams.push(Some(stream));
    }
    Ok(streams)
}

fn hello_of(arrival: &Arrival) -> Option<Hello> {
    let (words, rest) = arrival.hello.as_chunks();
    let hello: Hello =
        words.iter().map(|word| u64::from_le_bytes(*word)).collect::<Vec<_>>().try_into().ok()?;
    rest.is_empty().then_some(hello)
}

/// The rank of who has come and the port at which it listens; else the kind of the answer, and why.
fn admit(
    place: &Rendezvous,
    identity: &Identity,
    ranks: &[Option<Known>],
    arrival: &Arrival,
    hello: Option<Hello>,
) -> Result<(usize, u16), (u8, String)> {
    let refuse = |why: String| Err((NOT_OF_THIS_RUN, why));
    let (Some([rank, world, port]), Some(theirs)) = (hello, Identity::from_bytes(&arrival.identity)) else {
        return refuse("what it says is not what a rank of this version says".into());
    };
    if world as usize != place.world {
        return refuse(format!("it is rank {rank} of {world}, and this run has {} ranks", place.world));
    }
    let rank = rank as usize;
    if rank == 0 || rank >= place.world {
        return refuse(format!("it says that it is rank {rank}, of {}", place.world));
    }
    if ranks[rank].as_ref().is_some_and(|known| is_open(&known.stream)) {
        return refuse(format!("it says that it is rank {rank}, which has come already"));
    }
    match identity.difference(rank, &theirs) {
        None => Ok((rank, port as u16)),
        Some(differences) => Err((DIFFERS, differences)),
    }
}

/// Whether the other end has not closed a connection on which nothing is expected.
fn is_open(stream: &TcpStream) -> bool {
    let looked = stream.set_nonblocking(true).and_then(|()| stream.peek(&mut [0]));
    let _ = stream.set_nonblocking(false);
    matches!(looked, Err(error) if error.kind() == ErrorKind::WouldBlock)
}

fn answer(
    place: &Rendezvous,
    stream: &mut TcpStream,
    nonces: &[Nonce; 2],
    kind: u8,
    text: &[u8],
) -> io::Result<()> {
    stream.set_write_timeout(Some(WRITING))?;
    write_signed(stream, &place.token, b"answer  ", nonces, &[&[kind], text].concat())
}

/// Any other rank: comes to rank 0, connects to the ranks below and waits for those above.
fn join(place: &Rendezvous, master: &str, identity: &Identity) -> Result<Streams, Failure> {
    let until = Instant::now() + place.patience;
    let mut first =
        connect(master, until).map_err(|error| explained(error, "rank 0 does not listen there"))?;
    // Where rank 0 is reached from, so the others reach this rank there too.
    let here = SocketAddr::new(first.local_addr()?.ip(), 0);
    let listener = Listener::new(here, &place.token, place.remark)
        .map_err(|error| explained(error, &format!("cannot listen at {here}")))?;
    let hello: Hello = [place.rank as u64, place.world as u64, listener.address.port().into()];
    let turned_away = |error: io::Error| match error.kind() {
        ErrorKind::InvalidData => error,
        _ => explained(error, "rank 0 has ended or turned this one away: is TRAINWRIGHT_TOKEN the same?"),
    };
    let nonces = introduce(place, &mut first, until, &hello, &identity.to_bytes()).map_err(turned_away)?;
    match answer_of(place, &first, until, &nonces).map_err(turned_away)? {
        (WELCOME, _) => {}
        (DIFFERS, differences) => return Err(Failure::Differs { rank: place.rank, differences }),
        (_, why) => {
            let refused = format!("rank 0 turned this process away: {why}");
            return Err(io::Error::new(ErrorKind::ConnectionRefused, refused).into());
        }
    }
    let mut reader = Deadline { stream: &first, until };
    let addresses = read_signed(&mut reader, &place.token, b"addresse", &nonces, LONG)
        .map_err(|error| explained(error, "rank 0 has ended"))?;
    let addresses: Vec<String> = serde_json::from_slice(&addresses).map_err(io::Error::from)?;
    let mut streams: Streams = (0..place.world).map(|_| None).collect();
    for (lower, address) in addresses.iter().enumerate().take(place.rank).skip(1) {
        let unheard = |error| explained(error, &format!("rank {lower} cannot be reached at {address}"));
        let mut stream = connect(address, until).map_err(unheard)?;
        let nonces = introduce(place, &mut stream, until, &hello, b"").map_err(unheard)?;
        answer_of(place, &stream, until, &nonces).map_err(unheard)?;
        stream.set_read_timeout(None)?;
        streams[lower] = Some(stream);
    }
    while let missing @ 1.. = streams[place.rank + 1..].iter().filter(|stream| stream.is_none()).count() {
        let Some(mut arrival) = listener.next(until) else {
            let late = format!("{missing} ranks above have not come in time");
            return Err(io::Error::new(ErrorKind::TimedOut, late).into());
        };
        let rank = hello_of(&arrival).map_or(0, |[rank, ..]| rank as usize);
        match streams.get(rank) {
            Some(None) if rank > place.rank => {
                answer(place, &mut arrival.stream, &arrival.nonces, WELCOME, b"")?;
                arrival.stream.set_write_timeout(None)?;
                streams[rank] = Some(arrival.stream);
            }
            _ => listener.dropped(arrival.from, "it is no rank above this one, or has come already"),
        }
    }
    first.set_read_timeout(None)?;
    streams[0] = Some(first);
    Ok(streams)
}

/// What happened, and what the system said.
fn explained(error: io::Error, what: &str) -> io::Error {
    io::Error::new(error.kind(), format!("{what}: {error}"))
}

/// The addresses of `host:port`, IPv4 first.
fn addresses(text: &str) -> io::Result<Vec<SocketAddr>> {
    let mut known: Vec<SocketAddr> = text.to_socket_addrs()?.collect();
    known.sort_by_key(|address| matches!(address.ip(), IpAddr::V6(_)));
    if known.is_empty() { Err(ErrorKind::AddrNotAvailable.into()) } else { Ok(known) }
}

/// Connects as soon as somebody listens there.
fn connect(address: &str, until: Instant) -> io::Result<TcpStream> {
    let once = |left: Duration| {
        let mut last: io::Error = ErrorKind::AddrNotAvailable.into();
        for address in addresses(address)? {
            match TcpStream::connect_timeout(&address, left.max(REST)) {
                // Where nobody listens yet the system may have given the connection that very port: it then leads to itself.
                Ok(stream) if stream.local_addr()? == stream.peer_addr()? => drop(stream),
                Ok(stream) => return Ok(stream),
                Err(error) => last = error,
            }
        }
        Err(last)
    };
    loop {
        let left = until.saturating_duration_since(Instant::now());
        match once(left) {
            Ok(stream) => {
                stream.set_nodelay(true)?;
                return Ok(stream);
            }
            Err(error) if left.is_zero() => return Err(error),
            Err(_) => thread::sleep(REST),
        }
    }
}

/// Says who connects, and proves it.
fn introduce(
    place: &Rendezvous,
    stream: &mut TcpStream,
    until: Instant,
    hello: &Hello,
    identity: &[u8],
) -> io::Result<[Nonce; 2]> {
    let mut nonces = [nonce()?, Nonce::default()];
    stream.write_all(&[&MAGIC[..], &nonces[0]].concat())?;
    let mut reader = Deadline { stream, until };
    read_magic(&mut reader)?;
    reader.read_exact(&mut nonces[1])?;
    let hello: Vec<u8> = hello.iter().flat_map(|word| word.to_le_bytes()).collect();
    write_signed(&mut *stream, &place.token, b"hello   ", &nonces, &hello)?;
    write_signed(&mut *stream, &place.token, b"identity", &nonces, identity)?;
    Ok(nonces)
}

/// The kind of an answer and its text.
fn answer_of(
    place: &Rendezvous,
    stream: &TcpStream,
    until: Instant,
    nonces: &[Nonce; 2],
) -> io::Result<(u8, String)> {
    let mut reader = Deadline { stream, until };
    let answer = read_signed(&mut reader, &place.token, b"answer  ", nonces, LONG)?;
    let (kind, text) = answer.split_first().ok_or(ErrorKind::InvalidData)?;
    Ok((*kind, String::from_utf8_lossy(text).into_owned()))
}
