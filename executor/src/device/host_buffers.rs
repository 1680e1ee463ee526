//! Buffers of the host, kept by length when they are returned and handed out again, so that a training step asks the system
//! for no memory after the first one. Each thread, so each rank, has a separate store; a device with separate memory keeps that.

use std::cell::RefCell;
use std::collections::BTreeMap;

/// The buffers of one rank that nobody uses, and how many are in use.
#[derive(Default)]
struct Pool {
    free: BTreeMap<usize, Vec<Vec<f32>>>,
    /// How many of each length were handed out and have not come back.
    out: BTreeMap<usize, usize>,
}

thread_local! {
    static POOL: RefCell<Pool> = RefCell::default();
}

/// A buffer of that length, uninitialised.
pub(crate) fn take_buffer(length: usize) -> Vec<f32> {
    let kept = POOL.with_borrow_mut(|pool| {
        *pool.out.entry(length).or_default() += 1;
        pool.free.get_mut(&length).and_then(Vec::pop)
    });
    kept.unwrap_or_else(|| vec![0.0; length])
}

/// Keeps a buffer for the next `take_buffer` of its length. Not more are kept than were handed out, so that buffers made
/// elsewhere do not pile up.
pub(crate) fn return_buffer(data: Vec<f32>) {
    let _ = POOL.try_with(|pool| {
        let mut pool = pool.borrow_mut();
        let out = pool.out.entry(data.len()).or_default();
        if *out > 0 {
            *out -= 1;
            pool.free.entry(data.len()).or_default().push(data);
        }
    });
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::device::tensor::Tensor;

    #[test]
    fn buffers_that_were_made_elsewhere_do_not_pile_up() {
        for _ in 0..10 {
            let taken = take_buffer(777);
            drop(Tensor::of(vec![0.0; 777], 1));
            return_buffer(taken);
        }
        assert_eq!(POOL.with_borrow(|pool| pool.free[&777].len()), 1);
    }
}
