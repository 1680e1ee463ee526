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

use super::{Route, Tag, Transport};
use crate::error::{Fault, RunError};
use crate::tensor::{give_back, take_buffer};
use std::collections::{BTreeMap, VecDeque};
use std::io::{self, BufReader, Read, Write};
use std::net::{IpAddr, Ipv4Addr, Shutdown, SocketAddr, TcpListener, TcpStream, ToSocketAddrs};
use std::sync::{Arc, Condvar, Mutex, MutexGuard, PoisonError};
use std::thread;
use std::time::{Duration, Instant};
use trainwright_spec::program::Channel;

/// Which of how many processes this one is, and where they meet.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Rendezvous {
    /// This process's rank.
    pub rank: usize,
    /// How many processes there are.
    pub world: usize,
    /// Where rank 0 listens, as `host:port`.
    pub master: String,
    /// How long to wait until everybody is there.
    pub patience: Duration,
}

/// Connections to all other ranks.
pub(crate) struct Connections {
    rank: usize,
    /// By rank; none to itself.
    peers: Vec<Option<Mutex<TcpStream>>>,
    inbox: Arc<Inbox>,
}

#[derive(Default)]
struct Inbox {
    content: Mutex<Content>,
    changed: Condvar,
}

#[derive(Default)]
struct Content {
    messages: BTreeMap<Route, VecDeque<Vec<f32>>>,
    ended: Option<Fault>,
}

/// The first bytes of a connection: a number that nobody else would send.
const MAGIC: u64 = u64::from_le_bytes(*b"trainwr1");

/// What says that nothing comes after it, and that a rank has given up.
const FAREWELL: [u32; 3] = [u32::MAX, 0, 0];
const ABORT: [u32; 3] = [u32::MAX, 1, 0];

/// More numbers than any message has; what says more is no message of ours.
const MOST_NUMBERS: u64 = 1 << 40;

impl Connections {
    /// Meets the others. All must say the same `purpose`, by which processes of different runs tell each other apart.
    ///
    /// # Errors
    /// `Meeting` if not everybody comes in time, or someone has another purpose.
    pub fn meet(place: &Rendezvous, purpose: u64) -> Result<Self, RunError> {
        let failed =
            |reason: String| RunError::Meeting { rank: place.rank, master: place.master.clone(), reason };
        let streams = match place.rank {
            0 => receive_all(place, purpose),
            _ => join(place, purpose),
        };
        let streams = streams.map_err(|error| failed(error.to_string()))?;
        let inbox = Arc::new(Inbox::default());
        for (from, stream) in streams.iter().enumerate() {
            let Some(stream) = stream else { continue };
            let reader = stream.try_clone().map_err(|error| failed(error.to_string()))?;
            let (inbox, to) = (inbox.clone(), place.rank);
            thread::spawn(move || inbox.take_from(reader, from, to));
        }
        let peers = streams.into_iter().map(|stream| stream.map(Mutex::new)).collect();
        Ok(Self { rank: place.rank, peers, inbox })
    }

    /// Tells a rank something; one that is gone hears nothing, and who waits for it will know.
    fn tell(&self, to: usize, mark: [u32; 3], numbers: &[f32]) {
        let Some(peer) = &self.peers[to] else { return };
        let mut stream = peer.lock().unwrap_or_else(PoisonError::into_inner);
        let mut header = [0; 20];
        for (place, part) in header.chunks_exact_mut(4).zip(mark) {
            place.copy_from_slice(&part.to_le_bytes());
        }
        header[12..].copy_from_slice(&(numbers.len() as u64).to_le_bytes());
        let _ = stream.write_all(&header).and_then(|()| stream.write_all(bytemuck::cast_slice(numbers)));
    }
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
        let mut content = self.inbox.lock();
        loop {
            if let Some(message) = content.messages.get_mut(&route).and_then(VecDeque::pop_front) {
                return Ok(message);
            }
            if let Some(fault) = &content.ended {
                return Err(fault.clone());
            }
            content = self.inbox.changed.wait(content).unwrap_or_else(PoisonError::into_inner);
        }
    }

    fn abort(&self) {
        self.inbox.end(Fault::Aborted);
        (0..self.peers.len()).for_each(|rank| self.tell(rank, ABORT, &[]));
    }
}

impl Drop for Connections {
    fn drop(&mut self) {
        for rank in 0..self.peers.len() {
            self.tell(rank, FAREWELL, &[]);
        }
        for peer in self.peers.iter().flatten() {
            let _ = peer.lock().unwrap_or_else(PoisonError::into_inner).shutdown(Shutdown::Write);
        }
    }
}

impl Inbox {
    fn lock(&self) -> MutexGuard<'_, Content> {
        self.content.lock().unwrap_or_else(PoisonError::into_inner)
    }

    fn put(&self, route: Route, message: Vec<f32>) {
        self.lock().messages.entry(route).or_default().push_back(message);
        self.changed.notify_all();
    }

    /// Nothing comes any more: the first reason stays.
    fn end(&self, fault: Fault) {
        self.lock().ended.get_or_insert(fault);
        self.changed.notify_all();
    }

    /// Takes everything out of a connection until it ends.
    fn take_from(&self, stream: TcpStream, from: usize, to: usize) {
        let mut stream = BufReader::with_capacity(1 << 16, stream);
        loop {
            match next(&mut stream) {
                Ok((FAREWELL, _)) => return,
                Ok((ABORT, _)) => return self.end(Fault::Aborted),
                Ok((mark, message)) => match tag(mark) {
                    Some(tag) => self.put(Route { from, to, tag }, message),
                    None => return self.end(Fault::Lost { rank: from }),
                },
                Err(_) => return self.end(Fault::Lost { rank: from }),
            }
        }
    }
}

/// The next message of a connection.
fn next(stream: &mut impl Read) -> io::Result<([u32; 3], Vec<f32>)> {
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

fn mark(tag: Tag) -> [u32; 3] {
    match tag {
        Tag::Stage(Channel::Activation(stage), microbatch) => [0, stage as u32, microbatch as u32],
        Tag::Stage(Channel::Gradient(stage), microbatch) => [1, stage as u32, microbatch as u32],
        Tag::Group(group) => [2, group as u32, 0],
        Tag::Report => [3, 0, 0],
    }
}

fn tag([kind, first, second]: [u32; 3]) -> Option<Tag> {
    let (first, second) = (first as usize, second as usize);
    match kind {
        0 => Some(Tag::Stage(Channel::Activation(first), second)),
        1 => Some(Tag::Stage(Channel::Gradient(first), second)),
        2 => Some(Tag::Group(first)),
        3 => Some(Tag::Report),
        _ => None,
    }
}

/// What a rank says of itself: rank, world, purpose, port.
type Hello = [u64; 4];

/// Rank 0: waits for all others and tells them of each other.
fn receive_all(place: &Rendezvous, purpose: u64) -> io::Result<Vec<Option<TcpStream>>> {
    let until = Instant::now() + place.patience;
    let port = address(&place.master)?.port();
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
fn join(place: &Rendezvous, purpose: u64) -> io::Result<Vec<Option<TcpStream>>> {
    let until = Instant::now() + place.patience;
    let listener = TcpListener::bind((Ipv4Addr::UNSPECIFIED, 0))?;
    let mut master = connect(|| address(&place.master), until)?;
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

    /// A port that is free now.
    fn free_port() -> u16 {
        TcpListener::bind(("127.0.0.1", 0)).unwrap().local_addr().unwrap().port()
    }

    fn place(rank: usize, world: usize, port: u16) -> Rendezvous {
        let master = format!("127.0.0.1:{port}");
        Rendezvous { rank, world, master, patience: Duration::from_secs(20) }
    }

    /// What each of `world` ranks makes of its connections.
    fn each<R: Send>(world: usize, work: impl Fn(usize, Connections) -> R + Sync) -> Vec<R> {
        let (port, work) = (free_port(), &work);
        let rank = |rank| move || work(rank, Connections::meet(&place(rank, world, port), 7).unwrap());
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
                peer.lock().unwrap().shutdown(Shutdown::Both).unwrap();
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
            let other = scope.spawn(move || {
                let place = Rendezvous { patience: Duration::from_secs(5), ..place(1, 2, port) };
                Connections::meet(&place, 8).err()
            });
            (Connections::meet(&place(0, 2, port), 7).err(), other.join().unwrap())
        });
        assert!(first.unwrap().to_string().contains("rank 1 runs another plan"));
        assert!(second.is_some());
        let alone = Rendezvous { patience: Duration::from_millis(50), ..place(0, 3, free_port()) };
        let error = Connections::meet(&alone, 7).err().unwrap().to_string();
        assert!(error.contains("2 ranks have not come in time"), "{error}");
    }
}
