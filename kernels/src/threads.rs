//! How many threads a kernel may use. Results do not depend on it.

use rayon::prelude::*;

/// A number of threads, at least one.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Threads(usize);

/// Work below this many additions runs on one thread: waking another takes as long as some ten thousand additions.
const SMALL: usize = 1 << 14;

impl Threads {
    /// The caller's thread alone.
    pub const ONE: Threads = Threads(1);

    /// That many; one if `count` is 0.
    pub fn new(count: usize) -> Self {
        Threads(count.max(1))
    }

    /// How many.
    pub(crate) fn count(self) -> usize {
        self.0
    }

    /// Gives each thread chunks of `length` numbers, with the number of the first one.
    pub(crate) fn chunks<T: Send>(
        self,
        data: &mut [T],
        length: usize,
        work: impl Fn(usize, &mut [T]) + Sync,
    ) {
        match self.0 {
            1 => work(0, data),
            _ => data.par_chunks_mut(length).enumerate().for_each(|(at, data)| work(at * length, data)),
        }
    }

    /// As the matrix products want it.
    pub(crate) fn parallelism(self) -> gemm_common::Parallelism {
        match self.0 {
            1 => gemm_common::Parallelism::None,
            count => gemm_common::Parallelism::Rayon(count),
        }
    }

    /// Gives each thread some rows of `data`, `width` numbers each, with the number of the first one.
    pub fn rows<T: Send>(self, data: &mut [T], width: usize, work: impl Fn(usize, &mut [T]) + Sync) {
        let rows = data.len() / width.max(1);
        if self.0 == 1 || rows < 2 {
            return work(0, data);
        }
        let share = rows.div_ceil(self.0);
        let parts = data.par_chunks_mut(share * width).enumerate();
        parts.for_each(|(part, data)| work(part * share, data));
    }

    /// Gives each thread a part of `data` and the same part of the others.
    pub(crate) fn parts<T: Send, const N: usize>(
        self,
        data: [&mut [T]; N],
        work: impl Fn(usize, [&mut [T]; N]) + Sync,
    ) {
        let length = data[0].len();
        if self.0 == 1 || length < SMALL {
            return work(0, data);
        }
        let share = length.div_ceil(self.0);
        let mut parts: Vec<Vec<&mut [T]>> = Vec::new();
        for data in data {
            for (part, chunk) in data.chunks_mut(share).enumerate() {
                if part == parts.len() {
                    parts.push(Vec::with_capacity(N));
                }
                parts[part].push(chunk);
            }
        }
        parts.into_par_iter().enumerate().for_each(|(part, chunks)| {
            let chunks = <[&mut [T]; N]>::try_from(chunks).unwrap_or_else(|_| unreachable!("equal lengths"));
            work(part * share, chunks);
        });
    }

    /// Calls `work` for each of 0..`count` and returns what it makes, in order.
    pub(crate) fn each<R: Send>(self, count: usize, work: impl Fn(usize) -> R + Sync + Send) -> Vec<R> {
        match self.0 {
            1 => (0..count).map(work).collect(),
            _ => (0..count).into_par_iter().map(work).collect(),
        }
    }
}
