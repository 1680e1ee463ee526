//! Ranks that are processes, on one host or several: a connection between each two of them.
//!
//! ```text
//! rank 0 listens at the master's address ◄─ every other rank says its number, what it runs, and where it listens
//!        └─ when all are there, everybody hears all addresses; higher ranks connect to lower ones
//! a message: what tells it apart (3 numbers), how many numbers follow, the numbers
//! ```
//!
//! A thread for each peer takes what arrives out of the connection at once, so that sending waits for the network but
//! never for the receiver to want the message. A connection that ends without a farewell means that its rank is dead; who
//! waits hears of it. Numbers travel as they lie in memory: all hosts must have the same byte order.

use super::inbox::{ABORT, FAREWELL, Inbox, Mark, SIGN, mark};
use super::{Heard, Rendezvous, Route, Transport};
use crate::error::{Fault, RunError};
use crate::tensor::{give_back, take_buffer};
use std::io::{self, BufReader, Read, Write};
use std::net::{IpAddr, Ipv4Addr, Shutdown, SocketAddr, TcpListener, TcpStream, ToSocketAddrs};
use std::sync::{Arc, Mutex, PoisonError, TryLockError};
use std::thread;
use std::time::{Duration, Instant};

/// Connections to all other ranks.
pub(crate) struct Connections {
    rank: usize,
    /// By rank; none to itself.
    peers: Vec<Option<Peer>>,
    inbox: Arc<Inbox>,
}

struct Peer {
    stream: Mutex<TcpStream>,
    /// The same connection, for who must end what another thread is writing.
    other: TcpStream,
}

/// The first bytes of a connection: a number that nobody else would send.
const MAGIC: u64 = u64::from_le_bytes(*b"trainwr1");

/// More numbers than any message has; what says more is no message of ours.
const MOST_NUMBERS: u64 = 1 << 40;

impl Connections {
    /// Meets the others, rank 0 listening at `master`. All must say the same `purpose`, by which processes of different runs tell each other apart.
    ///
    /// # Errors
    /// `Meeting` if not everybody comes in time, or someone has another purpose.
    pub fn meet(place: &Rendezvous, master: &str, purpose: u64) -> Result<Self, RunError> {
        let failed = |reason: String| RunError::Meeting { rank: place.rank, master: master.into(), reason };
        let streams = match place.rank {
            0 => receive_all(place, master, purpose),
            _ => join(place, master, purpose),
        };
        let streams = streams.map_err(|error| failed(error.to_string()))?;
        let inbox = Arc::new(Inbox::new(place.world));
        let mut peers = Vec::new();
        for (from, stream) in streams.into_iter().enumerate() {
            let peer = |stream: TcpStream| {
                let (reader, other) = (stream.try_clone()?, stream.try_clone()?);
                let (inbox, to) = (inbox.clone(), place.rank);
                thread::spawn(move || take_from(&inbox, reader, from, to));
                Ok(Peer { stream: Mutex::new(stream), other })
            };
            peers.push(stream.map(peer).transpose().map_err(|error: io::Error| failed(error.to_string()))?);
        }
        Ok(Self { rank: place.rank, peers, inbox })
    }

    /// Tells a rank something; one that is gone hears nothing, and who waits for it will know.
    fn tell(&self, to: usize, mark: Mark, numbers: &[f32]) {
        let Some(peer) = &self.peers[to] else { return };
        let _ = write(&mut peer.stream.lock().unwrap_or_else(PoisonError::into_inner), mark, numbers);
    }

    /// Tells every rank a last thing, and waits for nobody who does not listen: the connection of one that takes nothing is
    /// cut, which ends whoever is writing to it too.
    fn tell_last(&self, mark: Mark) {
        for peer in self.peers.iter().flatten() {
            let _ = peer.other.set_write_timeout(Some(LAST_WORD));
            let until = Instant::now() + LAST_WORD;
            let stream = loop {
                match peer.stream.try_lock() {
                    Ok(stream) => break Some(stream),
                    Err(TryLockError::Poisoned(stream)) => break Some(stream.into_inner()),
                    Err(TryLockError::WouldBlock) if Instant::now() < until => thread::sleep(REST),
                    Err(TryLockError::WouldBlock) => break None,
                }
            };
            let told = stream.map(|mut stream| write(&mut stream, mark, &[]));
            if !matches!(told, Some(Ok(()))) {
                let _ = peer.other.shutdown(Shutdown::Both);
            }
        }
    }
}

/// How long a last word may take.
const LAST_WORD: Duration = Duration::from_millis(500);

fn write(stream: &mut TcpStream, mark: Mark, numbers: &[f32]) -> io::Result<()> {
    let mut header = [0; 20];
    for (place, part) in header.chunks_exact_mut(4).zip(mark) {
        place.copy_from_slice(&part.to_le_bytes());
    }
    header[12..].copy_from_slice(&(numbers.len() as u64).to_le_bytes());
    stream.write_all(&header)?;
    stream.write_all(bytemuck::cast_slice(numbers))
}

impl Transport for Connections {
    fn send(&self, route: Route, message: Vec<f32>) {
        if route.to == self.rank {
            self.inbox.put(route, message);
            return;
        }
        self.tell(route.to, mark(route.tag), &message);
        give_back(message);
    }

    fn receive(&self, route: Route) -> Result<Vec<f32>, Fault> {
        self.inbox.take(route)
    }

    fn abort(&self) {
        self.inbox.end(Fault::Aborted);
        self.tell_last(ABORT);
    }

    fn say(&self, to: usize, sign: &[f32]) {
        self.tell(to, SIGN, sign);
    }

    fn heard(&self, from: usize) -> Option<Heard> {
        (from != self.rank).then(|| self.inbox.heard(from))
    }
}

impl Drop for Connections {
    fn drop(&mut self) {
        self.tell_last(FAREWELL);
        for peer in self.peers.iter().flatten() {
            let _ = peer.other.shutdown(Shutdown::Write);
        }
    }
}

/// Takes everything out of a connection until it ends.
fn take_from(inbox: &Inbox, stream: TcpStream, from: usize, to: usize) {
    let mut stream = BufReader::with_capacity(1 << 16, Noticed { stream, inbox, from });
    loop {
        match next(&mut stream) {
            Ok((mark, message)) => {
                if !inbox.sort((from, to), mark, message) {
                    return;
                }
            }
            Err(_) => return inbox.end(Fault::Lost { rank: from }),
        }
    }
}

/// A connection whose every byte is a sign of life: a long message takes its time.
struct Noticed<'a> {
    stream: TcpStream,
    inbox: &'a Inbox,
    from: usize,
}

impl Read for Noticed<'_> {
    fn read(&mut self, buffer: &mut [u8]) -> io::Result<usize> {
        let read = self.stream.read(buffer);
        self.inbox.lives(self.from);
        read
    }
}

/// The next message of a connection.
fn next(stream: &mut impl Read) -> io::Result<(Mark, Vec<f32>)> {
    let mut header = [0; 20];
    stream.read_exact(&mut header)?;
    let part = |at: usize| u32::from_le_bytes([header[at], header[at + 1], header[at + 2], header[at + 3]]);
    let count = u64::from(part(12)) | u64::from(part(16)) << 32;
    if count > MOST_NUMBERS {
        return Err(io::ErrorKind::InvalidData.into());
    }
    let mut message = take_buffer(count as usize);
    stream.read_exact(bytemuck::cast_slice_mut(&mut message))?;
    Ok(([part(0), part(4), part(8)], message))
}

/// What a rank says of itself: rank, world, purpose, port.
type Hello = [u64; 4];

/// Rank 0: waits for all others and tells them of each other.
fn receive_all(place: &Rendezvous, master: &str, purpose: u64) -> io::Result<Vec<Option<TcpStream>>> {
    let until = Instant::now() + place.patience;
    let port = address(master)?.port();
    let listener = TcpListener::bind((Ipv4Addr::UNSPECIFIED, port))?;
    let mut streams: Vec<Option<TcpStream>> = (0..place.world).map(|_| None).collect();
    let mut addresses = vec![SocketAddr::from((Ipv4Addr::UNSPECIFIED, 0)); place.world];
    for missing in (1..place.world).rev() {
        let (mut stream, from) =
            accept(&listener, until).map_err(|error| too_late(error, missing, "ranks have not come"))?;
        let [rank, world, their_purpose, port] = read_numbers(&mut stream, until)?;
        let rank = rank as usize;
        let refuse = |reason: String| Err(io::Error::new(io::ErrorKind::InvalidData, reason));
        if (world as usize, their_purpose) != (place.world, purpose) {
            return refuse(format!("rank {rank} runs another plan or with other settings"));
        }
        if rank == 0 || rank >= place.world || streams[rank].is_some() {
            return refuse(format!("two processes say that they are rank {rank}, of {}", place.world));
        }
        addresses[rank] = SocketAddr::new(from.ip(), port as u16);
        streams[rank] = Some(stream);
    }
    for stream in streams.iter_mut().flatten() {
        for address in &addresses {
            let IpAddr::V4(ip) = address.ip() else {
                return Err(io::Error::new(io::ErrorKind::Unsupported, "addresses must be IPv4"));
            };
            write_numbers(stream, &[u64::from(ip.to_bits()), u64::from(address.port())])?;
        }
    }
    Ok(streams)
}

/// Any other rank: comes to rank 0, connects to the ranks below and waits for those above.
fn join(place: &Rendezvous, master: &str, purpose: u64) -> io::Result<Vec<Option<TcpStream>>> {
    let until = Instant::now() + place.patience;
    let listener = TcpListener::bind((Ipv4Addr::UNSPECIFIED, 0))?;
    let mut master = connect(|| address(master), until)?;
    let port = u64::from(listener.local_addr()?.port());
    let hello: Hello = [place.rank as u64, place.world as u64, purpose, port];
    write_numbers(&mut master, &[MAGIC])?;
    write_numbers(&mut master, &hello)?;
    let mut addresses = Vec::new();
    for _ in 0..place.world {
        let [ip, port] = read_plain(&mut master, until)?;
        addresses.push(SocketAddr::from((Ipv4Addr::from_bits(ip as u32), port as u16)));
    }
    let mut streams: Vec<Option<TcpStream>> = (0..place.world).map(|_| None).collect();
    streams[0] = Some(master);
    for lower in 1..place.rank {
        let mut stream = connect(|| Ok(addresses[lower]), until)?;
        write_numbers(&mut stream, &[MAGIC])?;
        write_numbers(&mut stream, &hello)?;
        streams[lower] = Some(stream);
    }
    for missing in (place.rank + 1..place.world).rev() {
        let (mut stream, _) = accept(&listener, until)
            .map_err(|error| too_late(error, missing - place.rank, "ranks above have not come"))?;
        let [rank, ..]: Hello = read_numbers(&mut stream, until)?;
        let place = streams.get_mut(rank as usize).filter(|known| known.is_none());
        *place.ok_or(io::ErrorKind::InvalidData)? = Some(stream);
    }
    Ok(streams)
}

fn too_late(error: io::Error, missing: usize, what: &str) -> io::Error {
    match error.kind() {
        io::ErrorKind::TimedOut => io::Error::new(error.kind(), format!("{missing} {what} in time")),
        _ => error,
    }
}

fn address(text: &str) -> io::Result<SocketAddr> {
    let mut known = text.to_socket_addrs()?;
    known.find(SocketAddr::is_ipv4).ok_or_else(|| io::ErrorKind::AddrNotAvailable.into())
}

/// How long to rest between two looks.
const REST: Duration = Duration::from_millis(20);

fn accept(listener: &TcpListener, until: Instant) -> io::Result<(TcpStream, SocketAddr)> {
    listener.set_nonblocking(true)?;
    loop {
        match listener.accept() {
            Ok((stream, from)) => {
                stream.set_nonblocking(false)?;
                stream.set_nodelay(true)?;
                return Ok((stream, from));
            }
            Err(error) if error.kind() == io::ErrorKind::WouldBlock && Instant::now() < until => {
                thread::sleep(REST);
            }
            Err(error) if error.kind() == io::ErrorKind::WouldBlock => {
                return Err(io::ErrorKind::TimedOut.into());
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
            Ok(stream) => {
                stream.set_nodelay(true)?;
                return Ok(stream);
            }
            Err(error) if left.is_zero() => return Err(error),
            Err(_) => thread::sleep(REST),
        }
    }
}

fn write_numbers(stream: &mut TcpStream, numbers: &[u64]) -> io::Result<()> {
    let bytes: Vec<u8> = numbers.iter().flat_map(|number| number.to_le_bytes()).collect();
    stream.write_all(&bytes)
}

/// What stands behind the first bytes of a connection.
fn read_numbers<const N: usize>(stream: &mut TcpStream, until: Instant) -> io::Result<[u64; N]> {
    match read_plain(stream, until)? {
        [MAGIC] => read_plain(stream, until),
        _ => Err(io::Error::new(io::ErrorKind::InvalidData, "something else than a rank connected")),
    }
}

fn read_plain<const N: usize>(stream: &mut TcpStream, until: Instant) -> io::Result<[u64; N]> {
    let left = until.saturating_duration_since(Instant::now()).max(REST);
    stream.set_read_timeout(Some(left))?;
    let mut numbers = [0; N];
    for number in &mut numbers {
        let mut bytes = [0; 8];
        stream.read_exact(&mut bytes)?;
        *number = u64::from_le_bytes(bytes);
    }
    stream.set_read_timeout(None)?;
    Ok(numbers)
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::transport::{Meets, Tag};
    use trainwright_spec::program::Channel;

    /// A port that is free now.
    fn free_port() -> u16 {
        TcpListener::bind(("127.0.0.1", 0)).unwrap().local_addr().unwrap().port()
    }

    fn meet(rank: usize, world: usize, port: u16, patience: Duration) -> Result<Connections, RunError> {
        let master = format!("127.0.0.1:{port}");
        let place = Rendezvous { rank, world, local: None, meets: Meets::At(master.clone()), patience };
        // Who comes to the wrong place has another purpose.
        Connections::meet(&place, &master, if patience < LONG { 8 } else { 7 })
    }

    const LONG: Duration = Duration::from_secs(20);

    /// What each of `world` ranks makes of its connections.
    fn each<R: Send>(world: usize, work: impl Fn(usize, Connections) -> R + Sync) -> Vec<R> {
        let (port, work) = (free_port(), &work);
        let rank = |rank| move || work(rank, meet(rank, world, port, LONG).unwrap());
        thread::scope(|scope| {
            let threads: Vec<_> = (0..world).map(|number| scope.spawn(rank(number))).collect();
            threads.into_iter().map(|thread| thread.join().unwrap()).collect()
        })
    }

    #[test]
    fn every_rank_hears_every_other_and_tags_tell_messages_apart() {
        let heard = each(4, |own, connections| {
            let route = |from, to, tag| Route { from, to, tag };
            let tags = [Tag::Group(3), Tag::Stage(Channel::Gradient(1), 2), Tag::Report];
            for to in 0..4 {
                for (index, tag) in tags.into_iter().enumerate() {
                    connections.send(route(own, to, tag), vec![(10 * own + index) as f32; 70_000]);
                }
            }
            // In another order than they were sent in.
            let all = (0..4).flat_map(|from| tags.map(|tag| (from, tag)).into_iter().rev());
            let heard: Vec<f32> = all
                .map(|(from, tag)| {
                    let message = connections.receive(route(from, own, tag)).unwrap();
                    assert!(message.len() == 70_000 && message.iter().all(|number| *number == message[0]));
                    message[0]
                })
                .collect();
            heard
        });
        let expected: Vec<f32> =
            (0..4).flat_map(|from| [2, 1, 0].map(|index| (10 * from + index) as f32)).collect();
        assert_eq!(heard, vec![expected; 4]);
    }

    #[test]
    fn who_waits_hears_of_a_dead_rank_and_of_one_that_gave_up() {
        let ends = |how: fn(&Connections)| {
            each(3, move |own, connections| {
                if own == 2 {
                    how(&connections);
                    return None;
                }
                Some(connections.receive(Route { from: 2, to: own, tag: Tag::Group(0) }))
            })
        };
        let dead = ends(|connections| {
            for peer in connections.peers.iter().flatten() {
                peer.other.shutdown(Shutdown::Both).unwrap();
            }
        });
        assert_eq!(dead[..2], [Some(Err(Fault::Lost { rank: 2 })), Some(Err(Fault::Lost { rank: 2 }))]);
        let gave_up = ends(|connections| connections.abort());
        assert_eq!(gave_up[..2], [Some(Err(Fault::Aborted)), Some(Err(Fault::Aborted))]);
    }

    #[test]
    fn processes_of_different_runs_do_not_meet() {
        let port = free_port();
        let (first, second) = thread::scope(|scope| {
            let other = scope.spawn(move || meet(1, 2, port, Duration::from_secs(5)).err());
            (meet(0, 2, port, LONG).err(), other.join().unwrap())
        });
        assert!(first.unwrap().to_string().contains("rank 1 runs another plan"));
        assert!(second.is_some());
        let error = meet(0, 3, free_port(), Duration::from_millis(50)).err().unwrap().to_string();
        assert!(error.contains("2 ranks have not come in time"), "{error}");
    }

    #[test]
    fn signs_arrive_and_a_rank_that_takes_nothing_holds_nobody_up() {
        let own = TcpListener::bind(("127.0.0.1", 0)).unwrap();
        // A connection at whose other end nobody reads, and a thread that writes into it until there is no room.
        let stuck = TcpStream::connect(own.local_addr().unwrap()).unwrap();
        let _held = own.accept().unwrap();
        let other = stuck.try_clone().unwrap();
        let peer = Peer { stream: Mutex::new(stuck), other };
        let connections =
            Connections { rank: 0, peers: vec![None, Some(peer)], inbox: Arc::new(Inbox::new(2)) };
        thread::scope(|scope| {
            scope.spawn(|| connections.tell(1, mark(Tag::Report), &vec![0.0; 1 << 26]));
            thread::sleep(Duration::from_millis(100));
            // Returns, and the writer ends: else this test would not.
            connections.abort();
        });
        let heard = each(2, |own, connections| {
            connections.say(1 - own, &[own as f32]);
            // What comes behind it says that it has come.
            connections.send(Route { from: own, to: 1 - own, tag: Tag::Report }, Vec::new());
            connections.receive(Route { from: 1 - own, to: own, tag: Tag::Report }).unwrap();
            connections.heard(1 - own).unwrap().sign
        });
        assert_eq!(heard, [Some(vec![1.0]), Some(vec![0.0])]);
    }
}
