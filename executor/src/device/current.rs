//! The device of a rank's thread.

use super::{Cpu, Device, numbers};
use std::cell::RefCell;
use std::rc::Rc;
use trainwright_kernels::Threads;

thread_local! {
    static CURRENT: RefCell<Option<Rc<dyn Device>>> = const { RefCell::new(None) };
}

/// The device of this thread's rank, as long as this value lives: memory is freed there, wherever its owner is dropped.
pub(crate) struct CurrentDevice;

impl CurrentDevice {
    /// Makes `device` this thread's.
    pub fn set(device: Rc<dyn Device>) -> Self {
        numbers::set_allocator(Some(Rc::<dyn Device>::clone(&device)));
        CURRENT.set(Some(device));
        Self
    }

    /// The device; a CPU if none was set.
    pub fn get() -> Rc<dyn Device> {
        CURRENT.with_borrow(Clone::clone).unwrap_or_else(|| Rc::new(Cpu { threads: Threads::ONE }))
    }
}

impl Drop for CurrentDevice {
    fn drop(&mut self) {
        numbers::set_allocator(None);
        CURRENT.set(None);
    }
}
