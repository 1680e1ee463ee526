//! How many streams of a process a GPU serves concurrently.

/// The variable that the driver reads when it starts.
const NAME: &str = "CUDA_DEVICE_MAX_CONNECTIONS";

/// The driver's maximum. A rank in the middle of a pipeline has 11 streams. With 8 queues, the driver's default, streams share
/// queues, and a send that waits for its receiver blocks a receive of the same rank behind it.
const QUEUES: &str = "32";

/// Asks the driver for a queue for each stream, unless the user has set a number. Does nothing if the process has other threads,
/// which might read the environment meanwhile, so a program calls it first; and nothing on systems other than Linux, where the
/// number of threads is unknown.
pub fn ask_for_queues() {
    let threads = std::fs::read_dir("/proc/self/task").map(Iterator::count);
    if threads.is_ok_and(|count| count == 1) && std::env::var_os(NAME).is_none() {
        // SAFETY: this is the only thread, and makes no other one meanwhile.
        unsafe { std::env::set_var(NAME, QUEUES) };
    }
}
