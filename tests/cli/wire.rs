//! Faults of the network between two processes: a proxy delays, drops, repeats, cuts or damages a frame. The run goes on
//! rightly or ends soon with the rank's name; no step that it reports has other numbers than an undisturbed one.

use crate::kills::each_step;
use crate::long::cases;
use crate::processes::of_two;
use crate::{Folder, Ran, program};
use std::io::{self, Read, Write};
use std::net::{Shutdown, TcpListener, TcpStream};
use std::process::Child;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::thread;
use std::time::{Duration, Instant};

/// Bytes of a frame before its content, with its form and count, and behind it (`executor/src/comm/transport/tcp/frame.rs`).
const HEADER: usize = 28;
const CHECKSUM: usize = 4;

/// What happens to a frame.
#[derive(Debug, Clone, Copy, PartialEq)]
enum Mishap {
    /// Every frame waits for some milliseconds, other ones each.
    Delay,
    /// It does not arrive.
    Drop,
    /// It arrives twice.
    Repeat,
    /// Its last bytes are missing.
    Cut(usize),
    /// A bit of it is another one.
    Flip(usize),
    /// The connection carries nothing from there on, but stands.
    Silence,
}

/// A mishap of the frame with that number, counted from 0, in one direction.
#[derive(Debug, Clone, Copy)]
struct Case {
    mishap: Mishap,
    frame: usize,
    to_rank_0: bool,
}

/// Passes on magic number and nonce, then two texts with proof and length: see the module `exchange` of the transport.
fn pass_rendezvous(from: &mut impl Read, to: &mut impl Write) -> io::Result<()> {
    let mut pass = |length: usize| -> io::Result<Vec<u8>> {
        let mut bytes = vec![0; length];
        from.read_exact(&mut bytes)?;
        to.write_all(&bytes)?;
        Ok(bytes)
    };
    pass(8 + 32)?;
    for _ in 0..2 {
        let head = pass(32 + 4)?;
        pass(u32::from_le_bytes(head[32..].try_into().unwrap()) as usize)?;
    }
    Ok(())
}

/// The next frame, all of it.
fn frame(from: &mut impl Read) -> io::Result<Vec<u8>> {
    let mut frame = vec![0; HEADER];
    from.read_exact(&mut frame)?;
    let width = match u32::from_le_bytes(frame[12..16].try_into().unwrap()) {
        0 => 4,
        1 => 1,
        2 => 2,
        form => panic!("there is no form {form}"),
    };
    let count = u64::from_le_bytes(frame[16..24].try_into().unwrap()) as usize;
    frame.resize(HEADER + count * width + CHECKSUM, 0);
    from.read_exact(&mut frame[HEADER..])?;
    Ok(frame)
}

/// Passes frames on in one direction, with the mishap if there is one, until the connection ends. Whether it happened.
fn pass_frames(mut from: TcpStream, mut to: TcpStream, case: Option<Case>) -> bool {
    let mut happened = false;
    let mut pass = || -> io::Result<()> {
        pass_rendezvous(&mut from, &mut to)?;
        for number in 0.. {
            let mut frame = frame(&mut from)?;
            let Some(Case { mishap, frame: at, .. }) = case else {
                to.write_all(&frame)?;
                continue;
            };
            if mishap == Mishap::Delay {
                thread::sleep(Duration::from_millis([0, 3, 1, 11, 0, 2][number % 6]));
                happened = true;
            }
            happened |= number == at;
            match mishap {
                _ if number != at => to.write_all(&frame)?,
                Mishap::Delay => to.write_all(&frame)?,
                Mishap::Drop => {}
                Mishap::Repeat => to.write_all(&frame.repeat(2))?,
                Mishap::Cut(bytes) => to.write_all(&frame[..frame.len().saturating_sub(bytes)])?,
                Mishap::Flip(place) => {
                    let place = place % (8 * frame.len());
                    frame[place / 8] ^= 1 << (place % 8);
                    to.write_all(&frame)?;
                }
                Mishap::Silence => loop {
                    self::frame(&mut from)?;
                },
            }
        }
        Ok(())
    };
    // Either end has closed its connection; the other one learns of it as without a proxy.
    let _ = pass();
    let _ = to.shutdown(Shutdown::Both);
    let _ = from.shutdown(Shutdown::Both);
    happened
}

/// Between rank 1, which comes to `listener`, and rank 0 at `port`. Whether the mishap happened.
fn proxy(listener: TcpListener, port: u16, case: Case, ends: &AtomicBool) -> bool {
    let (rank_1, _) = listener.accept().unwrap();
    let rank_0 = loop {
        match TcpStream::connect(("127.0.0.1", port)) {
            Ok(stream) => break stream,
            Err(_) if ends.load(Ordering::SeqCst) => return false,
            Err(_) => thread::sleep(Duration::from_millis(20)),
        }
    };
    for stream in [&rank_0, &rank_1] {
        stream.set_nodelay(true).unwrap();
    }
    let [of_0, of_1] =
        [(case.to_rank_0, &rank_1, &rank_0), (!case.to_rank_0, &rank_0, &rank_1)].map(|(is, from, to)| {
            let (from, to) = (from.try_clone().unwrap(), to.try_clone().unwrap());
            thread::spawn(move || pass_frames(from, to, is.then_some(case)))
        });
    [of_0.join().unwrap(), of_1.join().unwrap()].contains(&true)
}

/// The end of a process, which is killed if it takes longer than a minute.
fn ended_in_time(mut child: Child, what: &str) -> Ran {
    let began = Instant::now();
    while child.try_wait().unwrap().is_none() {
        if began.elapsed() > Duration::from_secs(60) {
            child.kill().unwrap();
            panic!("{what}: it hangs: {:?}", child.wait_with_output());
        }
        thread::sleep(Duration::from_millis(10));
    }
    Ran::from(child.wait_with_output().unwrap())
}

/// Two processes with the proxy between them.
fn run(folder: &Folder, steps: u64, case: Case) -> [Ran; 2] {
    let free = TcpListener::bind(("127.0.0.1", 0)).unwrap();
    let port = free.local_addr().unwrap().port();
    drop(free);
    let listener = TcpListener::bind(("127.0.0.1", 0)).unwrap();
    let by_proxy = listener.local_addr().unwrap().port();
    let ends = Arc::new(AtomicBool::new(false));
    let of_proxy = Arc::clone(&ends);
    let proxy = thread::spawn(move || proxy(listener, port, case, &of_proxy));
    let _ = std::fs::remove_file(folder.path("metrics"));
    let run = format!(
        "run plan.toml --transport tcp --metrics metrics --log-interval 1000000 --patience 3 --steps {steps}"
    );
    let start = |rank: &str, port: u16| {
        let place = [("RANK", rank), ("WORLD_SIZE", "2"), ("MASTER_PORT", &port.to_string())];
        program(&folder.path(""), &run).envs(place).spawn().unwrap()
    };
    let processes = [start("0", port), start("1", by_proxy)];
    let ran = processes.map(|process| ended_in_time(process, &format!("{case:?}")));
    ends.store(true, Ordering::SeqCst);
    assert!(proxy.join().unwrap(), "{case:?}: the run ended before it, {ran:?}");
    ran
}

/// Each mishap in both directions at a few frames, at hundred of them in long tests; `TRAINWRIGHT_MISHAPS` asks for another number.
#[test]
fn whatever_happens_to_a_frame_the_run_is_right_or_ends_with_the_rank_s_name() {
    let folder = of_two();
    let steps = 40;
    assert_eq!(folder.run(&format!("run plan.toml --metrics undisturbed --steps {steps}")).code, 0);
    let undisturbed = each_step(&folder.path("undisturbed"));
    let mishaps = [
        Mishap::Drop,
        Mishap::Repeat,
        Mishap::Cut(1),
        Mishap::Cut(4),
        Mishap::Cut(60),
        Mishap::Cut(HEADER + 2),
        Mishap::Flip(8 * HEADER + 3),
        Mishap::Flip(16 * 8),
        Mishap::Silence,
    ];
    let (count, mut random) = (cases("TRAINWRIGHT_MISHAPS", 2 * mishaps.len(), 100), 7u64);
    for number in 0..count {
        random = random.wrapping_mul(6_364_136_223_846_793_005).wrapping_add(1_442_695_040_888_963_407);
        let mishap = mishaps[number % mishaps.len()];
        let case = Case {
            mishap,
            frame: (random >> 33) as usize % 60,
            to_rank_0: (number / mishaps.len()).is_multiple_of(2),
        };
        let began = Instant::now();
        let ran = run(&folder, steps, case);
        // Three seconds without anything, a quarter more on ranks other than 0, and what starting and parting take.
        assert!(began.elapsed() < Duration::from_secs(30), "{case:?} took {:?}", began.elapsed());
        let found = each_step(&folder.path("metrics"));
        assert_eq!(found, undisturbed[..found.len()], "{case:?}: {ran:?}");
        let [receiver, sender] = if case.to_rank_0 { [0, 1] } else { [1, 0] };
        assert_eq!((ran[0].code, ran[1].code), (1, 1), "{case:?}: {ran:?}");
        let names = |ran: &Ran, rank: usize| ran.stderr.contains(&format!("rank {rank} "));
        assert!(names(&ran[receiver], sender), "{case:?}: {ran:?}");
        assert!(ran.iter().all(|ran| ran.stderr.lines().count() == 1), "{case:?}: {ran:?}");
    }
}

#[test]
fn delays_of_frames_change_nothing() {
    let folder = of_two();
    assert_eq!(folder.run("run plan.toml --metrics undisturbed --steps 12").code, 0);
    for to_rank_0 in [true, false] {
        let ran = run(&folder, 12, Case { mishap: Mishap::Delay, frame: 0, to_rank_0 });
        assert!(ran.iter().all(|ran| ran.code == 0 && ran.stderr.is_empty()), "{ran:?}");
        assert_eq!(each_step(&folder.path("metrics")), each_step(&folder.path("undisturbed")));
    }
}
