//! How many streams of a process a GPU takes work from side by side.

/// What the driver reads when it begins.
const NAME: &str = "CUDA_DEVICE_MAX_CONNECTIONS";

/// The driver's most. A rank in the middle of a pipeline has 11 streams. Of 8 queues, which are what the driver makes unless it is
/// told, some hold several streams: then a message that waits for its receiver also holds up what its sender needs to receive.
const QUEUES: &str = "32";

/// Asks the driver for a queue for each stream, unless the user has said how many. Does nothing where other threads might read the
/// environment meanwhile, so it comes first in a program; and elsewhere than on Linux, where that cannot be told.
pub fn ask_for_queues() {
    let threads = std::fs::read_dir("/proc/self/task").map(Iterator::count);
    if threads.is_ok_and(|count| count == 1) && std::env::var_os(NAME).is_none() {
        // SAFETY: this is the only thread, and makes no other one meanwhile.
        unsafe { std::env::set_var(NAME, QUEUES) };
    }
}
