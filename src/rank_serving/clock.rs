//! Clocks for steps: the wall's, and that of the processor, which other programs change less.

use crate::error::{CliError, refuse};
use std::fs;
use std::time::{Duration, Instant};
use trainwright_spec::units::Seconds;

/// Time for a rank that has sent its tokens to go to sleep: only then has the system counted all that it has used.
const SETTLING: Duration = Duration::from_micros(300);

/// The time since the clock was made.
pub fn wall_clock() -> impl FnMut() -> Seconds {
    let began = Instant::now();
    move || Seconds::new(began.elapsed().as_secs_f64())
}

/// The processor time of all threads of this process, in a file of the system for each. Threads that end take theirs with them:
/// ranks with threads of their own for kernels cannot be timed so.
///
/// # Errors
/// `Argument` if the system does not count it.
pub fn processor_clock() -> Result<impl FnMut() -> Seconds, CliError> {
    if used().is_none() {
        return Err(refuse("--processor-time", "given", "this system does not say what a thread has used"));
    }
    Ok(|| {
        std::thread::sleep(SETTLING);
        used().expect("the system counted it before")
    })
}

/// `None` if the system does not count it.
fn used() -> Option<Seconds> {
    let mut nanoseconds = 0;
    for thread in fs::read_dir("/proc/self/task").ok()? {
        // A thread that has just ended has no file any more.
        let Ok(text) = fs::read_to_string(thread.ok()?.path().join("schedstat")) else { continue };
        nanoseconds += text.split_whitespace().next()?.parse::<u64>().ok()?;
    }
    Some(Seconds::new(1e-9 * nanoseconds as f64))
}
