//! The host's numbers as bytes of a device's, and back. Loops run in vectors: at the start of a run all weights pass here.

use std::borrow::Cow;
use trainwright_kernels::cuda::Number;

/// The bytes of numbers on a device; those of f32 as they lie.
pub(super) fn bytes(numbers: &[f32], number: Number) -> Cow<'_, [u8]> {
    match number {
        Number::F32 => Cow::Borrowed(bytemuck::cast_slice(numbers)),
        Number::Bf16 => {
            let mut bytes = vec![0; 2 * numbers.len()];
            for (to, from) in bytes.as_chunks_mut().0.iter_mut().zip(numbers) {
                *to = narrow(*from).to_le_bytes();
            }
            Cow::Owned(bytes)
        }
    }
}

/// That many numbers, of which `read` writes the bytes.
pub(super) fn numbers(length: usize, number: Number, read: impl FnOnce(&mut [u8])) -> Vec<f32> {
    match number {
        Number::F32 => {
            let mut numbers = vec![0.0; length];
            read(bytemuck::cast_slice_mut(&mut numbers));
            numbers
        }
        Number::Bf16 => {
            let mut narrow = vec![0u16; length];
            read(bytemuck::cast_slice_mut(&mut narrow));
            narrow.iter().map(|upper| f32::from_bits(u32::from(*upper) << 16)).collect()
        }
    }
}

/// Whether all of them are zeros, whose bits are: nobody need bring these.
pub(super) fn are_zeros(numbers: &[f32]) -> bool {
    let bits: &[u32] = bytemuck::cast_slice(numbers);
    // Vectors look at some thousand numbers, then it may be over.
    bits.chunks(4096).all(|some| some.iter().fold(0, |found, bits| found | bits) == 0)
}

/// The nearest bf16, of two the even one.
fn narrow(number: f32) -> u16 {
    let bits = number.to_bits();
    let rounded = bits.wrapping_add(0x7FFF + ((bits >> 16) & 1));
    // A NaN must not become infinite.
    let upper = if number.is_nan() { bits | 0x0040_0000 } else { rounded };
    (upper >> 16) as u16
}

#[cfg(test)]
mod tests {
    use super::*;
    use half::bf16;

    #[test]
    fn numbers_become_the_nearest_and_come_back() {
        // Every upper half, with what is behind it below, at and above the middle.
        let lower = [0u32, 1, 0x7FFF, 0x8000, 0x8001, 0xFFFF];
        let all: Vec<f32> = (0..=0xFFFFu32)
            .flat_map(|upper| lower.map(|lower| f32::from_bits(upper << 16 | lower)))
            .collect();
        let narrow = bytes(&all, Number::Bf16);
        let expected: Vec<u8> = all.iter().flat_map(|x| bf16::from_f32(*x).to_le_bytes()).collect();
        assert!(narrow == expected);
        let back = numbers(all.len(), Number::Bf16, |to| to.copy_from_slice(&narrow));
        for (read, of_half) in back.iter().zip(expected.as_chunks().0) {
            let of_half = bf16::from_le_bytes(*of_half).to_f32();
            assert!(read.to_bits() == of_half.to_bits() || read.is_nan() && of_half.is_nan());
        }
        let back = numbers(all.len(), Number::F32, |to| to.copy_from_slice(&bytes(&all, Number::F32)));
        assert!(back.iter().zip(&all).all(|(read, before)| read.to_bits() == before.to_bits()));
    }

    #[test]
    fn zeros_are_found_unless_one_number_is_none() {
        let mut some = vec![0.0; 10_000];
        assert!(are_zeros(&some) && are_zeros(&[]));
        for at in [0, 4095, 4096, 9999] {
            // One whose bits are not those of a zero.
            some[at] = -0.0;
            assert!(!are_zeros(&some), "{at}");
            some[at] = 0.0;
        }
    }
}
