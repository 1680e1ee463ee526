//! Tensor fusion: small gradients wait for each other and are reduced together, as Horovod does it.

use crate::units::{Bytes, Picoseconds};

/// How a background loop fuses what is ready.
///
/// The loop wakes at every multiple of `cycle`. It then takes all gradients that are ready, in the order in which
/// they became so, and puts one after the other into a buffer; one that no longer fits starts the next buffer.
/// Each buffer is reduced by one all-reduce, in order. A gradient larger than the buffer is reduced alone.
///
/// Assumes that waking, copying into the buffer and agreeing with other ranks take no time, and that all gradients
/// have one precision: the loop can then not pack better by looking further ahead.
/// Source: Sergeev & Del Balso 2018, arXiv 1802.05799, "Tensor Fusion"; Horovod docs/tensor-fusion.rst.
#[derive(Debug, Clone, Copy, PartialEq)]
pub struct Fusion {
    /// Size of the buffer (`HOROVOD_FUSION_THRESHOLD`); zero: nothing is fused.
    pub threshold: Bytes,
    /// Time between two looks (`HOROVOD_CYCLE_TIME`); zero: gradients start at once, fused if ready together.
    pub cycle: Picoseconds,
}

impl Fusion {
    /// Horovod's defaults since version 0.21: 128 MiB, 1 ms.
    ///
    /// Source: Horovod's release notes 0.21.0 (change 2468); before, 64 MiB and 5 ms.
    pub const HOROVOD: Fusion =
        Fusion { threshold: Bytes::new(128.0 * 1024.0 * 1024.0), cycle: Picoseconds(1_000_000_000) };

    /// The all-reduces that start, in order. None can start before its `start`; whether it does, or waits for the one
    /// before, is for whoever times them.
    pub fn fuse(&self, gradients: &[Gradient]) -> Vec<FusedAllReduce> {
        let mut order: Vec<usize> = (0..gradients.len()).collect();
        order.sort_by_key(|index| gradients[*index].ready);
        let mut fused: Vec<FusedAllReduce> = Vec::new();
        for index in order {
            let Gradient { ready, bytes } = gradients[index];
            let start = self.next_look(ready);
            match fused.last_mut() {
                Some(last) if last.start == start && last.bytes + bytes <= self.threshold => {
                    last.bytes += bytes;
                    last.gradients.push(index);
                }
                _ => fused.push(FusedAllReduce { start, bytes, gradients: vec![index] }),
            }
        }
        fused
    }

    /// The first multiple of the cycle that is not before `ready`.
    fn next_look(&self, ready: Picoseconds) -> Picoseconds {
        match self.cycle {
            Picoseconds::ZERO => ready,
            Picoseconds(cycle) => Picoseconds(ready.0.div_ceil(cycle).saturating_mul(cycle)),
        }
    }
}

/// A gradient that waits for its all-reduce.
#[derive(Debug, Clone, Copy, PartialEq)]
pub struct Gradient {
    /// When it is computed.
    pub ready: Picoseconds,
    /// Its size.
    pub bytes: Bytes,
}

/// An all-reduce of one or several gradients.
#[derive(Debug, Clone, PartialEq)]
pub struct FusedAllReduce {
    /// When it can start.
    pub start: Picoseconds,
    /// Size of all of them.
    pub bytes: Bytes,
    /// Which, by their place in the list of gradients.
    pub gradients: Vec<usize>,
}

#[cfg(test)]
mod tests {
    use super::*;

    /// Fuses gradients of (ready, bytes) with a buffer of 100 bytes and a cycle of 10.
    fn check(given: &[(u64, f64)], expected: &[(u64, f64, &[usize])]) {
        let fusion = Fusion { threshold: Bytes::new(100.0), cycle: Picoseconds(10) };
        check_with(fusion, given, expected);
    }

    fn check_with(fusion: Fusion, given: &[(u64, f64)], expected: &[(u64, f64, &[usize])]) {
        let gradient =
            |(ready, bytes): &(u64, f64)| Gradient { ready: Picoseconds(*ready), bytes: Bytes::new(*bytes) };
        let gradients: Vec<Gradient> = given.iter().map(gradient).collect();
        let fused = fusion.fuse(&gradients);
        let found: Vec<(u64, f64, &[usize])> =
            fused.iter().map(|one| (one.start.0, one.bytes.get(), one.gradients.as_slice())).collect();
        assert_eq!(found, expected, "{fusion:?} of {given:?}");
    }

    #[test]
    fn what_is_ready_at_a_look_is_fused_up_to_the_buffer() {
        check(&[], &[]);
        // The looks are at 0, 10, 20: 3 and 9 are found at 10, and so is one that is ready exactly then; 11 waits for 20.
        check(&[(3, 20.0), (9, 30.0), (10, 40.0), (11, 1.0)], &[(10, 90.0, &[0, 1, 2]), (20, 1.0, &[3])]);
        // 60 + 40 fill the buffer to the byte; the next one starts another at the same look.
        check(&[(1, 60.0), (2, 40.0), (3, 1.0)], &[(10, 100.0, &[0, 1]), (10, 1.0, &[2])]);
        // A tensor that does not fit ends the buffer, even though the one after it would still fit.
        check(&[(1, 60.0), (2, 50.0), (3, 10.0)], &[(10, 60.0, &[0]), (10, 60.0, &[1, 2])]);
        // Too large for any buffer: alone, before and after.
        check(&[(0, 10.0), (0, 250.0), (0, 10.0)], &[(0, 10.0, &[0]), (0, 250.0, &[1]), (0, 10.0, &[2])]);
        // In the order of readiness, not of the list; equals in the order of the list.
        check(&[(19, 5.0), (2, 6.0), (2, 7.0)], &[(10, 13.0, &[1, 2]), (20, 5.0, &[0])]);
    }

    #[test]
    fn no_buffer_fuses_nothing_and_no_cycle_waits_for_nothing() {
        let unfused = Fusion { threshold: Bytes::ZERO, cycle: Picoseconds(10) };
        check_with(unfused, &[(1, 2.0), (2, 3.0)], &[(10, 2.0, &[0]), (10, 3.0, &[1])]);
        let at_once = Fusion { threshold: Bytes::new(100.0), cycle: Picoseconds::ZERO };
        check_with(at_once, &[(1, 2.0), (2, 3.0), (2, 4.0)], &[(1, 2.0, &[0]), (2, 7.0, &[1, 2])]);
    }

    #[test]
    fn horovods_defaults_hold_32_gradients_of_4_mib_for_up_to_a_millisecond() {
        let mib = 1024.0 * 1024.0;
        let gradient = Gradient { ready: Picoseconds(1), bytes: Bytes::new(4.0 * mib) };
        let fused = Fusion::HOROVOD.fuse(&[gradient; 33]);
        let sizes: Vec<usize> = fused.iter().map(|one| one.gradients.len()).collect();
        assert_eq!(sizes, [32, 1]);
        assert!(fused.iter().all(|one| one.start == Picoseconds(1_000_000_000)));
    }
}
