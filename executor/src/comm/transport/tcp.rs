//! Ranks that are processes, on one host or several: a connection between each two of them.
//!
//! A thread for each peer takes messages out of the connection as they arrive, so that sending waits for the network but
//! never for the receiver to want the message. A connection that ends without a farewell means that its rank is dead, and
//! every waiting rank gets that fault.

mod exchange;
mod frame;
mod handshake;
mod listener;

use super::Joining;
use super::header::Header;
use super::inbox::Inbox;
use super::message::Payload;
use super::peers::{LAST_WORD, Peers, Wire};
use super::rendezvous::Rendezvous;
use crate::error::RunError;
use frame::{FrameReader, FrameWriter};
pub(crate) use frame::{valid_frames, whole_frames};
use listener::REST;
use std::io::{self, BufReader, Read};
use std::net::{Shutdown, TcpStream};
use std::sync::{Arc, Mutex, PoisonError, TryLockError};
use std::thread;
use std::time::Instant;

/// Connections to all other ranks.
pub(crate) type Connections = Peers<Streams>;

/// By rank; `None` for this process.
pub(crate) struct Streams(Vec<Option<Peer>>);

pub(super) struct Peer {
    stream: Mutex<FrameWriter<TcpStream>>,
    /// The same connection, to end what another thread is writing.
    other: TcpStream,
}

impl Connections {
    /// Connects to the others; rank 0 listens at `master`.
    ///
    /// # Errors
    /// `Rendezvous` if not all come in time, `Differs` if one has another identity.
    pub fn connect(place: &Rendezvous, master: &str, joining: &Joining) -> Result<Self, RunError> {
        let failed = |error: io::Error| {
            let reason = error.to_string();
            RunError::Rendezvous { rank: place.rank, master: master.into(), reason }
        };
        let streams = handshake::connect_all(place, master, &joining.identity)?;
        let inbox = Arc::new(Inbox::new(place.rank, place.world));
        let mut peers = Vec::new();
        for (from, stream) in streams.into_iter().enumerate() {
            let peer = |stream: TcpStream| {
                let (reader, other) = (stream.try_clone()?, stream.try_clone()?);
                let (inbox, to, longest) = (inbox.clone(), place.rank, joining.longest);
                thread::spawn(move || take_from(&inbox, reader, (from, to), longest));
                Ok(Peer { stream: Mutex::new(FrameWriter::new(stream)), other })
            };
            peers.push(stream.map(peer).transpose().map_err(failed)?);
        }
        Ok(Self::new(place.rank, inbox, Streams(peers)))
    }
}

impl Wire for Streams {
    fn send(&self, to: usize, header: Header, payload: &Payload) {
        let Some(peer) = &self.0[to] else { return };
        let _ = peer.stream.lock().unwrap_or_else(PoisonError::into_inner).send(header, payload);
    }

    /// The connection to a rank that reads nothing is cut, which ends whoever is writing to it too.
    fn send_last(&self, header: Header) {
        for peer in self.0.iter().flatten() {
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
            let sent = stream.map(|mut stream| stream.send(header, &Payload::Bytes(Vec::new())));
            if !matches!(sent, Some(Ok(()))) {
                let _ = peer.other.shutdown(Shutdown::Both);
            }
        }
    }

    fn close(&mut self) {
        for peer in self.0.iter().flatten() {
            let _ = peer.other.shutdown(Shutdown::Both);
        }
    }
}

/// Takes everything out of a connection until it ends.
fn take_from(inbox: &Inbox, stream: TcpStream, (from, to): (usize, usize), longest: usize) {
    let stream = BufReader::with_capacity(1 << 16, Noticing { stream, inbox, from });
    let mut frames = FrameReader::new(stream, longest);
    loop {
        match frames.next() {
            Ok((header, message)) => {
                if !inbox.sort((from, to), header, message) {
                    return;
                }
            }
            Err(error) => return inbox.lose(from, &how(&error)),
        }
    }
}

/// How a connection ended, for people.
fn how(error: &io::Error) -> String {
    use io::ErrorKind::{ConnectionAborted, ConnectionReset, InvalidData, UnexpectedEof};
    match error.kind() {
        UnexpectedEof => "its process ended: it closed the connection without a farewell".into(),
        ConnectionReset | ConnectionAborted => format!("its process ended or was ended: {error}"),
        InvalidData => format!("the connection to it carries something else than it sent: {error}"),
        _ => format!("its host cannot be reached: {error}"),
    }
}

/// A connection each of whose bytes is a heartbeat: a long message takes its time.
struct Noticing<'a> {
    stream: TcpStream,
    inbox: &'a Inbox,
    from: usize,
}

impl Read for Noticing<'_> {
    fn read(&mut self, buffer: &mut [u8]) -> io::Result<usize> {
        let read = self.stream.read(buffer)?;
        if read > 0 {
            self.inbox.saw(self.from);
        }
        Ok(read)
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::comm::transport::header::header_of;
    use crate::comm::transport::{Envelope, Identity, Remark, RendezvousVia, Tag, Token, Transport};
    use crate::error::Fault;
    use std::io::Write;
    use std::net::TcpListener;
    use std::sync::atomic::{AtomicBool, Ordering};
    use std::time::Duration;
    use trainwright_spec::program::Channel;

    /// A port that is free now.
    fn free_port() -> u16 {
        TcpListener::bind(("127.0.0.1", 0)).unwrap().local_addr().unwrap().port()
    }

    fn place(rank: usize, world: usize, port: u16, patience: Duration) -> Rendezvous {
        let via = RendezvousVia::Tcp(format!("127.0.0.1:{port}"));
        let (token, remark) = (Token::new("secret"), Remark::default());
        Rendezvous { rank, world, local_rank: None, local_world: None, via, patience, token, remark }
    }

    fn joined(place: &Rendezvous, plan: &str) -> Result<Connections, RunError> {
        let identity = Identity::default().with("plan", &plan);
        Connections::connect(place, &place.via.to_string(), &Joining { identity, longest: 1 << 20 })
    }

    fn connect(rank: usize, world: usize, port: u16, patience: Duration) -> Result<Connections, RunError> {
        joined(&place(rank, world, port, patience), "a plan")
    }

    const LONG: Duration = Duration::from_secs(20);

    /// What each of `world` ranks makes of its connections.
    fn each<R: Send>(world: usize, work: impl Fn(usize, Connections) -> R + Sync) -> Vec<R> {
        let (port, work) = (free_port(), &work);
        let rank = |rank| move || work(rank, connect(rank, world, port, LONG).unwrap());
        thread::scope(|scope| {
            let threads: Vec<_> = (0..world).map(|number| scope.spawn(rank(number))).collect();
            threads.into_iter().map(|thread| thread.join().unwrap()).collect()
        })
    }

    #[test]
    fn every_rank_hears_every_other_and_tags_tell_messages_apart() {
        let received = each(4, |rank, connections| {
            let envelope = |from, to, tag| Envelope { from, to, tag };
            let tags = [Tag::Group(3), Tag::Stage(Channel::Gradient(1), 2), Tag::Report];
            for to in 0..4 {
                for (index, tag) in tags.into_iter().enumerate() {
                    connections.send(envelope(rank, to, tag), vec![(10 * rank + index) as f32; 70_000]);
                }
            }
            // In another order than they were sent in.
            let all = (0..4).flat_map(|from| tags.map(|tag| (from, tag)).into_iter().rev());
            let received: Vec<f32> = all
                .map(|(from, tag)| {
                    let message = connections.receive(envelope(from, rank, tag)).unwrap();
                    assert!(message.len() == 70_000 && message.iter().all(|number| *number == message[0]));
                    message[0]
                })
                .collect();
            received
        });
        let expected: Vec<f32> =
            (0..4).flat_map(|from| [2, 1, 0].map(|index| (10 * from + index) as f32)).collect();
        assert_eq!(received, vec![expected; 4]);
    }

    #[test]
    fn who_waits_hears_of_a_dead_rank_and_of_one_that_gave_up() {
        let ends = |how: fn(&Connections)| {
            each(3, move |rank, connections| {
                if rank == 2 {
                    how(&connections);
                    return None;
                }
                Some(connections.receive(Envelope { from: 2, to: rank, tag: Tag::Group(0) }))
            })
        };
        let dead = ends(|connections| {
            for peer in connections.wire().0.iter().flatten() {
                peer.other.shutdown(Shutdown::Both).unwrap();
            }
        });
        for fault in &dead[..2] {
            let said = fault.as_ref().unwrap().as_ref().unwrap_err().to_string();
            assert!(said.starts_with("rank 2 is gone: its process ended"), "{said}");
            assert!(said.contains("s after they connected"), "{said}");
        }
        let gave_up = ends(|connections| connections.abort());
        assert_eq!(gave_up[..2], [Some(Err(Fault::Aborted)), Some(Err(Fault::Aborted))]);
    }

    /// What is on its way when a process ends would be thrown away as soon as another one speaks to it.
    #[test]
    fn nobody_leaves_before_the_others_have_said_farewell() {
        let pause = Duration::from_millis(400);
        let leaves = AtomicBool::new(false);
        let left = each(2, |rank, connections| {
            let envelope = Envelope { from: 1, to: 0, tag: Tag::Group(0) };
            if rank == 0 {
                let received = connections.receive(envelope).unwrap().len();
                thread::sleep(pause);
                connections.send_status(1, &[1]);
                leaves.store(true, Ordering::SeqCst);
                return (received, true);
            }
            connections.send(envelope, vec![1.0; 9]);
            drop(connections);
            (9, leaves.load(Ordering::SeqCst))
        });
        assert_eq!(left, [(9, true); 2], "rank 1 left before rank 0 did");
    }

    /// What was remarked in the test of strangers.
    static REMARKS: Mutex<Vec<String>> = Mutex::new(Vec::new());

    /// Each kind of stranger comes before the rank; none is counted, delays the rank or ends the run.
    #[test]
    fn strangers_are_dropped_with_a_line_and_the_run_goes_on() {
        let port = free_port();
        let remark = Remark(|text| REMARKS.lock().unwrap().push(text.into()));
        thread::scope(|scope| {
            let rank_0 = Rendezvous { remark, ..place(0, 2, port, LONG) };
            let first = scope.spawn(move || joined(&rank_0, "a plan").map(drop));
            let stranger = || loop {
                if let Ok(stranger) = TcpStream::connect(("127.0.0.1", port)) {
                    break stranger;
                }
            };
            let _silent = stranger();
            let mut half = stranger();
            half.write_all(b"train").unwrap();
            drop(half);
            stranger().write_all(b"GET / HTTP/1.1\r\nHost: somebody\r\n\r\n").unwrap();
            let began = Instant::now();
            let guess = Rendezvous { token: Token::new("guess"), ..place(1, 2, port, LONG) };
            let turned_away = joined(&guess, "a plan").err().unwrap().to_string();
            assert!(turned_away.contains("is TRAINWRIGHT_TOKEN the same?"), "{turned_away}");
            for (rank, world, said) in [(1, 3, "this run has 2 ranks"), (2, 2, "rank 2, of 2")] {
                let other = joined(&place(rank, world, port, LONG), "a plan").err().unwrap().to_string();
                assert!(other.contains(said), "{other}");
            }
            let second = scope.spawn(move || connect(1, 2, port, LONG).map(drop));
            assert_eq!((first.join().unwrap(), second.join().unwrap()), (Ok(()), Ok(())));
            assert!(began.elapsed() < LONG / 2, "the silent one was waited for");
        });
        let remarks = REMARKS.lock().unwrap();
        let count = |text: &str| remarks.iter().filter(|remark| remark.contains(text)).count();
        assert_eq!(count("it ended before it had said who it is"), 1, "{remarks:?}");
        assert_eq!(count("is not what a rank of this version says"), 1, "{remarks:?}");
        assert_eq!(count("its TRAINWRIGHT_TOKEN is another one"), 1, "{remarks:?}");
        assert_eq!(count("dropped a connection from 127.0.0.1:"), remarks.len(), "{remarks:?}");
        assert_eq!(remarks.len(), 5, "{remarks:?}");
    }

    #[test]
    fn a_rank_with_another_identity_ends_the_run_with_what_differs() {
        let port = free_port();
        let (first, second) = thread::scope(|scope| {
            let other = scope.spawn(move || joined(&place(1, 2, port, LONG), "another plan").err());
            (connect(0, 2, port, LONG).err(), other.join().unwrap())
        });
        let differences = "`plan` is another plan on rank 1 and a plan on rank 0".into();
        let expected = Some(RunError::Differs { rank: 1, differences });
        assert_eq!((&first, &second), (&expected, &expected));
        let error = connect(0, 3, free_port(), Duration::from_millis(50)).err().unwrap().to_string();
        assert!(error.contains("2 ranks have not come in time"), "{error}");
    }

    #[test]
    fn ranks_meet_at_an_ipv6_address_and_listen_nowhere_else() {
        let Ok(free) = TcpListener::bind(("::1", 0)) else { return println!("skipped: no IPv6 here") };
        let port = free.local_addr().unwrap().port();
        drop(free);
        let rank = |rank| {
            let via = RendezvousVia::Tcp(format!("[::1]:{port}"));
            let place = Rendezvous { via, ..place(rank, 3, port, LONG) };
            move || joined(&place, "a plan").map(drop)
        };
        let ranks = [rank(0), rank(1), rank(2)];
        thread::scope(|scope| {
            let [first, rest @ ..] = ranks;
            let first = scope.spawn(first);
            while TcpStream::connect(("::1", port)).is_err() {
                thread::yield_now();
            }
            assert!(TcpStream::connect(("127.0.0.1", port)).is_err(), "only the address asked for");
            let others = rest.map(|rank| scope.spawn(rank));
            assert_eq!(first.join().unwrap(), Ok(()));
            others.into_iter().for_each(|other| assert_eq!(other.join().unwrap(), Ok(())));
        });
    }

    #[test]
    fn statuses_arrive_and_a_rank_that_reads_nothing_holds_nobody_up() {
        let listener = TcpListener::bind(("127.0.0.1", 0)).unwrap();
        // A connection at whose other end nobody reads, and a thread that writes into it until there is no room.
        let stuck = TcpStream::connect(listener.local_addr().unwrap()).unwrap();
        let _held = listener.accept().unwrap();
        let other = stuck.try_clone().unwrap();
        let peer = Peer { stream: Mutex::new(FrameWriter::new(stuck)), other };
        let inbox = Arc::new(Inbox::new(0, 2));
        let connections = Connections::new(0, inbox, Streams(vec![None, Some(peer)]));
        thread::scope(|scope| {
            scope.spawn(|| {
                connections.wire().send(1, header_of(Tag::Report), &Payload::Numbers(vec![0.0; 1 << 26]))
            });
            thread::sleep(Duration::from_millis(100));
            // Returns, and the writer ends: else this test would not.
            connections.abort();
        });
        let received = each(2, |rank, connections| {
            connections.send_status(1 - rank, &[rank as u8]);
            // What comes behind it says that it has come.
            connections.send(Envelope { from: rank, to: 1 - rank, tag: Tag::Report }, Vec::new());
            connections.receive(Envelope { from: 1 - rank, to: rank, tag: Tag::Report }).unwrap();
            connections.peer_status(1 - rank).unwrap().status
        });
        assert_eq!(received, [Some(vec![1]), Some(vec![0])]);
    }
}
