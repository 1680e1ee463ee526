//! Memory of one piece, given out from front to back.

use super::launch::{Address, DeviceError};

/// What every address is a multiple of: what the fastest matrix products ask for.
const ALIGNMENT: usize = 256;

/// A piece of memory and how much of it is given out.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Arena {
    base: Address,
    size: usize,
    used: usize,
    peak: usize,
}

/// How far an arena was used at some time.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Mark(usize);

impl Arena {
    /// All of a piece of memory.
    pub fn new(base: Address, size: usize) -> Self {
        Self { base, size, used: 0, peak: 0 }
    }

    /// That many bytes of it.
    pub fn take(&mut self, bytes: usize) -> Result<Address, DeviceError> {
        let rounded = bytes.div_ceil(ALIGNMENT) * ALIGNMENT;
        let free = self.size - self.used;
        if rounded > free {
            return Err(DeviceError::Full { size: self.size, free, wanted: rounded });
        }
        let at = self.base.after(self.used);
        self.used += rounded;
        self.peak = self.peak.max(self.used);
        Ok(at)
    }

    /// Where it stands.
    pub fn mark(&self) -> Mark {
        Mark(self.used)
    }

    /// Takes back all that was given since then.
    pub fn release(&mut self, mark: Mark) {
        assert!(mark.0 <= self.used, "marks are given back in the other order than they were made");
        self.used = mark.0;
    }

    /// The most bytes that were given out at a time.
    pub fn peak(&self) -> usize {
        self.peak
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn memory_is_given_out_in_order_and_the_peak_stays_known() {
        let mut arena = Arena::new(Address(4096), 1024);
        assert_eq!(arena.take(1), Ok(Address(4096)));
        let mark = arena.mark();
        assert_eq!(arena.take(300), Ok(Address(4096 + 256)));
        arena.release(mark);
        // 768 bytes are left again.
        assert_eq!(arena.take(769), Err(DeviceError::Full { size: 1024, free: 768, wanted: 1024 }));
        assert_eq!(arena.take(256), Ok(Address(4096 + 256)));
        // One line of 256 and two for 300 bytes.
        assert_eq!(arena.peak(), 768);
    }
}
