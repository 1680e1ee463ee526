//! The environment that the driver reads. Without a harness: no other thread is there at first.

use trainwright_kernels::cuda::ask_for_queues;

const NAME: &str = "CUDA_DEVICE_MAX_CONNECTIONS";

fn main() {
    if !cfg!(target_os = "linux") {
        return;
    }
    let asked = || {
        ask_for_queues();
        std::env::var(NAME).ok()
    };
    // SAFETY: no other thread is there, here and below.
    unsafe { std::env::remove_var(NAME) };
    assert_eq!(asked().as_deref(), Some("32"));
    // What the user says stays.
    unsafe { std::env::set_var(NAME, "1") };
    assert_eq!(asked().as_deref(), Some("1"));
    unsafe { std::env::remove_var(NAME) };
    let from_another_thread = std::thread::scope(|scope| scope.spawn(asked).join().unwrap());
    assert_eq!(from_another_thread, None);
}
