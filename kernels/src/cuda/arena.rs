//! Memory of a device in a few large segments, handed out from front to back. The arena frees all at once; the caller reuses single
//! allocations.

use super::launch::Address;

/// Alignment of each address in bytes: the one of the fastest matrix products.
const ALIGNMENT: usize = 256;

/// Segments of memory and how much of each is handed out.
#[derive(Debug, Default)]
pub struct Arena {
    segments: Vec<Segment>,
}

#[derive(Debug)]
struct Segment {
    base: Address,
    size: usize,
    used: usize,
}

/// Bytes of a segment, unless one allocation needs more: few calls for a small model, little waste for a large one.
const SEGMENT: usize = 256 << 20;

impl Arena {
    /// Memory of the first segment with room, or of a new one from `reserve`, which gets its size in bytes.
    ///
    /// # Errors
    /// Those of `reserve`. If there is no memory for a segment of the usual size, one of just `bytes` is tried first.
    pub fn take<E>(
        &mut self,
        bytes: usize,
        mut reserve: impl FnMut(usize) -> Result<Address, E>,
    ) -> Result<Address, E> {
        let rounded = bytes.next_multiple_of(ALIGNMENT);
        let has_room = |segment: &Segment| segment.size - segment.used >= rounded;
        let index = match self.segments.iter().position(has_room) {
            Some(index) => index,
            None => {
                let large = SEGMENT.max(rounded);
                let (base, size) = match reserve(large) {
                    Ok(base) => (base, large),
                    Err(_) => (reserve(rounded)?, rounded),
                };
                self.segments.push(Segment { base, size, used: 0 });
                self.segments.len() - 1
            }
        };
        let segment = &mut self.segments[index];
        let at = segment.base.after(segment.used);
        segment.used += rounded;
        Ok(at)
    }

    /// Bytes of all segments, handed out or not. Segments are freed together, so this is also the peak.
    pub fn reserved(&self) -> usize {
        self.segments.iter().map(|segment| segment.size).sum()
    }

    /// Removes all segments; their addresses, to be freed.
    pub fn clear(&mut self) -> impl Iterator<Item = Address> {
        std::mem::take(&mut self.segments).into_iter().map(|segment| segment.base)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn memory_is_given_out_in_order_from_few_pieces() {
        let mut arena = Arena::default();
        let mut made = Vec::new();
        // Segments lie far apart; there is memory for one large and one small one.
        let mut take = |bytes: usize| {
            arena.take(bytes, |size| {
                if !made.is_empty() && size > 1024 {
                    return Err(size);
                }
                made.push(size);
                Ok(Address((made.len() as u64) << 40))
            })
        };
        let at = |segment: u64, offset: usize| Ok(Address((segment << 40) + offset as u64));
        assert_eq!([take(1), take(300)], [at(1, 0), at(1, 256)]);
        // A line of 256 and two for 300 bytes.
        assert_eq!(take(SEGMENT - 3 * 256), at(1, 3 * 256));
        assert_eq!(take(1000), at(2, 0), "a small segment where there is no room for a large one");
        assert_eq!(take(2 * SEGMENT), Err(2 * SEGMENT));
        assert_eq!(made, [SEGMENT, 1024]);
        assert_eq!(arena.reserved(), SEGMENT + 1024, "what is left over of a segment is reserved, too");
        assert_eq!(arena.clear().collect::<Vec<_>>(), [Address(1 << 40), Address(2 << 40)]);
        assert_eq!((arena.clear().count(), arena.reserved()), (0, 0));
    }
}
