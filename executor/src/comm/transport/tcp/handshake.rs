//! How the ranks of a run find each other over TCP.
//!
//! ```text
//! rank 0 listens at the master's address ◄─ every other rank sends its number, what it runs, and where it listens
//!        └─ when all are there, every rank gets all addresses; higher ranks connect to lower ones
//! ```

use crate::comm::transport::rendezvous::Rendezvous;
use std::io::{self, Read, Write};
use std::net::{IpAddr, Ipv4Addr, SocketAddr, TcpListener, TcpStream, ToSocketAddrs};
use std::thread;
use std::time::{Duration, Instant};

/// The first bytes of a connection: a number that nobody else would send.
const MAGIC: u64 = u64::from_le_bytes(*b"trainwr1");

/// How long to rest between two looks.
pub(super) const REST: Duration = Duration::from_millis(20);

/// How long a rank that has connected may take to say who it is; a packet that is lost comes again within seconds.
const INTRODUCTION: Duration = Duration::from_secs(20);

/// A rank's introduction: rank, world, fingerprint, port.
type Hello = [u64; 4];

/// A connection to each other rank.
///
/// # Errors
/// What the system says, or that somebody has not come or runs something else.
pub(super) fn connect_all(
    place: &Rendezvous,
    master: &str,
    fingerprint: u64,
) -> io::Result<Vec<Option<TcpStream>>> {
    match place.rank {
        0 => receive_all(place, master, fingerprint),
        _ => join(place, master, fingerprint),
    }
}

/// Rank 0: waits for all others and sends each the addresses of all.
fn receive_all(place: &Rendezvous, master: &str, fingerprint: u64) -> io::Result<Vec<Option<TcpStream>>> {
    let until = Instant::now() + place.patience;
    let master = address(master)?;
    let listener = TcpListener::bind((Ipv4Addr::UNSPECIFIED, master.port()))
        .map_err(|error| explained(error, &format!("cannot listen at port {}", master.port())))?;
    let mut streams: Vec<Option<TcpStream>> = (0..place.world).map(|_| None).collect();
    let mut addresses = vec![SocketAddr::from((Ipv4Addr::UNSPECIFIED, 0)); place.world];
    for missing in (1..place.world).rev() {
        let (stream, from, [rank, world, their_fingerprint, port]) =
            introduced(&listener, until, || format!("{missing} ranks have not come in time"))?;
        let rank = rank as usize;
        let refuse = |reason: String| Err(io::Error::new(io::ErrorKind::InvalidData, reason));
        if (world as usize, their_fingerprint) != (place.world, fingerprint) {
            return refuse(format!("rank {rank} runs another plan or with other settings"));
        }
        if rank == 0 || rank >= place.world || streams[rank].is_some() {
            return refuse(format!("two processes say that they are rank {rank}, of {}", place.world));
        }
        addresses[rank] = SocketAddr::new(from.ip(), port as u16);
        streams[rank] = Some(stream);
    }
    for (rank, stream) in streams.iter_mut().enumerate() {
        let Some(stream) = stream else { continue };
        for address in &addresses {
            let IpAddr::V4(ip) = address.ip() else {
                return Err(io::Error::new(io::ErrorKind::Unsupported, "addresses must be IPv4"));
            };
            write_numbers(stream, &[u64::from(ip.to_bits()), u64::from(address.port())])
                .map_err(|error| explained(error, &format!("rank {rank} has come and gone again")))?;
        }
    }
    Ok(streams)
}

/// Any other rank: comes to rank 0, connects to the ranks below and waits for those above.
fn join(place: &Rendezvous, master: &str, fingerprint: u64) -> io::Result<Vec<Option<TcpStream>>> {
    let until = Instant::now() + place.patience;
    let listener = TcpListener::bind((Ipv4Addr::UNSPECIFIED, 0))?;
    let mut first = connect(|| address(master), until)
        .map_err(|error| explained(error, "rank 0 does not listen there"))?;
    let port = u64::from(listener.local_addr()?.port());
    let hello: Hello = [place.rank as u64, place.world as u64, fingerprint, port];
    let turned_away =
        |error| explained(error, "rank 0 has ended or turned this one away: its message says why");
    introduce(&mut first, &hello).map_err(turned_away)?;
    let mut addresses = Vec::new();
    for _ in 0..place.world {
        let [ip, port] = read_numbers(&mut first, until).map_err(turned_away)?;
        addresses.push(SocketAddr::from((Ipv4Addr::from_bits(ip as u32), port as u16)));
    }
    let mut streams: Vec<Option<TcpStream>> = (0..place.world).map(|_| None).collect();
    streams[0] = Some(first);
    for lower in 1..place.rank {
        let unheard =
            |error| explained(error, &format!("rank {lower} cannot be reached at {}", addresses[lower]));
        let mut stream = connect(|| Ok(addresses[lower]), until).map_err(unheard)?;
        introduce(&mut stream, &hello).map_err(unheard)?;
        streams[lower] = Some(stream);
    }
    for missing in (place.rank + 1..place.world).rev() {
        let missing = missing - place.rank;
        let (stream, _, [rank, ..]) =
            introduced(&listener, until, || format!("{missing} ranks above have not come in time"))?;
        let place = streams.get_mut(rank as usize).filter(|known| known.is_none());
        *place.ok_or(io::ErrorKind::InvalidData)? = Some(stream);
    }
    Ok(streams)
}

/// What happened, and what the system said.
fn explained(error: io::Error, what: &str) -> io::Error {
    io::Error::new(error.kind(), format!("{what}: {error}"))
}

fn address(text: &str) -> io::Result<SocketAddr> {
    let mut known = text.to_socket_addrs()?;
    known.find(SocketAddr::is_ipv4).ok_or_else(|| io::ErrorKind::AddrNotAvailable.into())
}

/// The next rank that comes, and what it says of itself. Who says something else or nothing is none, and not waited for long.
fn introduced(
    listener: &TcpListener,
    until: Instant,
    late: impl Fn() -> String,
) -> io::Result<(TcpStream, SocketAddr, Hello)> {
    listener.set_nonblocking(true)?;
    loop {
        match listener.accept() {
            Ok((mut stream, from)) => {
                stream.set_nonblocking(false)?;
                stream.set_nodelay(true)?;
                let soon = until.min(Instant::now() + INTRODUCTION);
                if let Ok([MAGIC]) = read_numbers(&mut stream, soon)
                    && let Ok(hello) = read_numbers(&mut stream, soon)
                {
                    return Ok((stream, from, hello));
                }
            }
            Err(error) if error.kind() == io::ErrorKind::WouldBlock && Instant::now() < until => {
                thread::sleep(REST);
            }
            Err(error) if error.kind() == io::ErrorKind::WouldBlock => {
                return Err(io::Error::new(io::ErrorKind::TimedOut, late()));
            }
            Err(error) => return Err(error),
        }
    }
}

/// Connects as soon as somebody listens there.
fn connect(address: impl Fn() -> io::Result<SocketAddr>, until: Instant) -> io::Result<TcpStream> {
    loop {
        let left = until.saturating_duration_since(Instant::now());
        match address().and_then(|address| TcpStream::connect_timeout(&address, left.max(REST))) {
            // Where nobody listens yet the system may have given the connection that very port: it then leads to itself.
            Ok(stream) if stream.local_addr()? == stream.peer_addr()? => drop(stream),
            Ok(stream) => {
                stream.set_nodelay(true)?;
                return Ok(stream);
            }
            Err(error) if left.is_zero() => return Err(error),
            Err(_) => thread::sleep(REST),
        }
    }
}

/// Says who connects.
fn introduce(stream: &mut TcpStream, hello: &Hello) -> io::Result<()> {
    write_numbers(stream, &[&[MAGIC], &hello[..]].concat())
}

fn write_numbers(stream: &mut TcpStream, numbers: &[u64]) -> io::Result<()> {
    let bytes: Vec<u8> = numbers.iter().flat_map(|number| number.to_le_bytes()).collect();
    stream.write_all(&bytes)
}

fn read_numbers<const N: usize>(stream: &mut TcpStream, until: Instant) -> io::Result<[u64; N]> {
    let mut numbers = [0; N];
    for number in &mut numbers {
        let left = until.saturating_duration_since(Instant::now()).max(REST);
        stream.set_read_timeout(Some(left))?;
        let mut bytes = [0; 8];
        stream.read_exact(&mut bytes)?;
        *number = u64::from_le_bytes(bytes);
    }
    stream.set_read_timeout(None)?;
    Ok(numbers)
}
