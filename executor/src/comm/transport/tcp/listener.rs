//! Connections that come to a listening rank, and which of them are processes of its run.
//!
//! ```text
//! who connects ─► magic, nonce ─►                       each connection has a thread, so that a silent one
//!              ◄─ magic, nonce ◄─ listener              delays nobody; strangers are dropped with one line
//!              ─► proof, length, hello; the same with the identity ─► arrivals
//! ```

use super::exchange::{Deadline, LONG, MAGIC, SHORT, read_magic, read_signed};
use crate::comm::transport::rendezvous::Remark;
use crate::comm::transport::token::{Nonce, Token, nonce};
use std::io::{self, Read, Write};
use std::net::{SocketAddr, TcpListener, TcpStream};
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, AtomicUsize, Ordering};
use std::sync::mpsc::{Receiver, Sender, channel};
use std::thread::{self, JoinHandle};
use std::time::{Duration, Instant};

/// How long to rest between two looks.
pub(super) const REST: Duration = Duration::from_millis(20);

/// How long a process that has connected may take to say who it is; a packet that is lost comes again within seconds.
const INTRODUCTION: Duration = Duration::from_secs(20);

/// How many connections may be saying who they are at the same time. One more is dropped.
const MOST_AT_ONCE: usize = 1024;

/// How many strangers are reported.
const MOST_REMARKS: usize = 20;

/// A process that has proved that it knows the token, and its hello.
pub(super) struct Arrival {
    pub stream: TcpStream,
    pub from: SocketAddr,
    pub nonces: [Nonce; 2],
    pub hello: Vec<u8>,
    pub identity: Vec<u8>,
}

/// Listens until it is dropped.
pub(super) struct Listener {
    pub address: SocketAddr,
    arrivals: Receiver<Arrival>,
    shared: Arc<Shared>,
    thread: Option<JoinHandle<()>>,
}

struct Shared {
    token: Token,
    remark: Remark,
    ends: AtomicBool,
    /// Connections that have not said yet who they are.
    open: AtomicUsize,
    /// Strangers so far.
    strangers: AtomicUsize,
}

impl Listener {
    /// Listens at that address alone.
    pub fn new(address: SocketAddr, token: &Token, remark: Remark) -> io::Result<Self> {
        let listener = TcpListener::bind(address)?;
        listener.set_nonblocking(true)?;
        let address = listener.local_addr()?;
        let shared = Arc::new(Shared {
            token: token.clone(),
            remark,
            ends: AtomicBool::new(false),
            open: AtomicUsize::new(0),
            strangers: AtomicUsize::new(0),
        });
        let (sender, arrivals) = channel();
        let accepting = Arc::clone(&shared);
        let thread = thread::Builder::new().name("listener".into());
        let thread = thread.spawn(move || accept_all(&listener, &accepting, &sender))?;
        Ok(Self { address, arrivals, shared, thread: Some(thread) })
    }

    /// The next process that comes; `None` if none does until then.
    pub fn next(&self, until: Instant) -> Option<Arrival> {
        self.arrivals.recv_timeout(until.saturating_duration_since(Instant::now())).ok()
    }

    /// Reports a connection that is dropped.
    pub fn dropped(&self, from: SocketAddr, why: &str) {
        self.shared.dropped(from, why);
    }
}

impl Drop for Listener {
    fn drop(&mut self) {
        self.shared.ends.store(true, Ordering::SeqCst);
        if let Some(thread) = self.thread.take() {
            let _ = thread.join();
        }
    }
}

impl Shared {
    fn dropped(&self, from: SocketAddr, why: &str) {
        match self.strangers.fetch_add(1, Ordering::SeqCst) {
            number if number < MOST_REMARKS => {
                (self.remark.0)(&format!("dropped a connection from {from}: {why}"))
            }
            MOST_REMARKS => (self.remark.0)("dropped more connections, which are not listed"),
            _ => {}
        }
    }
}

fn accept_all(listener: &TcpListener, shared: &Arc<Shared>, arrivals: &Sender<Arrival>) {
    while !shared.ends.load(Ordering::SeqCst) {
        // An error is that of a connection which ended before it was accepted, or of too many open files: both pass.
        let Ok((stream, from)) = listener.accept() else {
            thread::sleep(REST);
            continue;
        };
        if shared.open.fetch_add(1, Ordering::SeqCst) >= MOST_AT_ONCE {
            shared.open.fetch_sub(1, Ordering::SeqCst);
            shared.dropped(from, "too many others have not said who they are either");
            continue;
        }
        let (of_thread, arrivals) = (Arc::clone(shared), arrivals.clone());
        let introduce = move || {
            let introduced = introduction(stream, from, &of_thread.token);
            of_thread.open.fetch_sub(1, Ordering::SeqCst);
            // After the rendezvous nobody waits for it any more.
            if of_thread.ends.load(Ordering::SeqCst) {
                return;
            }
            match introduced {
                Ok(arrival) => drop(arrivals.send(arrival)),
                Err(error) => of_thread.dropped(from, &reason(&error)),
            }
        };
        if thread::Builder::new().name("introduction".into()).spawn(introduce).is_err() {
            shared.open.fetch_sub(1, Ordering::SeqCst);
            shared.dropped(from, "the system gives no more threads");
        }
    }
}

fn introduction(stream: TcpStream, from: SocketAddr, token: &Token) -> io::Result<Arrival> {
    stream.set_nonblocking(false)?;
    stream.set_nodelay(true)?;
    stream.set_write_timeout(Some(INTRODUCTION))?;
    let mut reader = Deadline { stream: &stream, until: Instant::now() + INTRODUCTION };
    read_magic(&mut reader)?;
    let mut theirs = Nonce::default();
    reader.read_exact(&mut theirs)?;
    let nonces = [theirs, nonce()?];
    (&stream).write_all(&[&MAGIC[..], &nonces[1]].concat())?;
    let hello = read_signed(&mut reader, token, b"hello   ", &nonces, SHORT)?;
    let identity = read_signed(&mut reader, token, b"identity", &nonces, LONG)?;
    stream.set_write_timeout(None)?;
    stream.set_read_timeout(None)?;
    Ok(Arrival { stream, from, nonces, hello, identity })
}

/// Why a connection was dropped, for people.
fn reason(error: &io::Error) -> String {
    match error.kind() {
        io::ErrorKind::TimedOut | io::ErrorKind::WouldBlock => {
            format!("it did not say who it is within {} s", INTRODUCTION.as_secs())
        }
        io::ErrorKind::UnexpectedEof => "it ended before it had said who it is".into(),
        _ => error.to_string(),
    }
}
