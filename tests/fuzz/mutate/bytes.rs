//! Damage to any bytes.

use super::{Draws, Words, numbers};

/// Bytes of which some are flipped, cut off, doubled, or set to extreme numbers of 1 to 8 bytes.
pub fn bytes(intact: &[u8], _: &Words, draws: &mut Draws) -> Option<Vec<u8>> {
    let mut bytes = intact.to_vec();
    for _ in 0..1 + draws.below(3) {
        if bytes.is_empty() {
            return Some(bytes);
        }
        // Headers are at the beginning.
        let end = if draws.below(2) == 0 { bytes.len() } else { bytes.len().min(64) };
        let at = draws.below(end);
        let some = (at + 1 + draws.below(16)).min(bytes.len());
        match draws.below(8) {
            0 | 1 => bytes = flipped(&bytes, draws),
            2 => bytes.truncate(at),
            3 => bytes[at..some].fill(0xff),
            4 => bytes[at..some].fill(0),
            5 => {
                let doubled = bytes[at..some].to_vec();
                bytes.splice(at..at, doubled);
            }
            _ => {
                let width = draws.of(&[1, 2, 4, 8]).min(bytes.len() - at);
                let number = numbers::whole(draws).to_le_bytes();
                bytes[at..at + width].copy_from_slice(&number[..width]);
            }
        }
    }
    Some(bytes)
}

/// A few bits flipped.
pub fn flipped(bytes: &[u8], draws: &mut Draws) -> Vec<u8> {
    let mut bytes = bytes.to_vec();
    for _ in 0..1 + draws.below(4) {
        if !bytes.is_empty() {
            let at = draws.below(bytes.len());
            bytes[at] ^= 1 << draws.below(8);
        }
    }
    bytes
}

/// Bytes behind a JSON header with its length before it, as safetensors have them: the header is damaged, and its length
/// mostly put right.
pub fn with_json_header(intact: &[u8], words: &Words, draws: &mut Draws) -> Option<Vec<u8>> {
    let (length, rest) = intact.split_first_chunk::<8>()?;
    let (header, data) = rest.split_at_checked(u64::from_le_bytes(*length) as usize)?;
    let header = super::tree::json(header, words, draws)?;
    let length = match draws.below(8) {
        0 => numbers::whole(draws),
        _ => header.len() as u64,
    };
    Some([&length.to_le_bytes()[..], &header, data].concat())
}

/// Bytes with a checksum (CRC-32) behind them, which is put right again.
pub fn with_checksum(intact: &[u8], words: &Words, draws: &mut Draws) -> Option<Vec<u8>> {
    let (content, _) = intact.split_last_chunk::<4>()?;
    let mut damaged = bytes(content, words, draws)?;
    let checksum = crc32fast::hash(&damaged);
    damaged.extend(checksum.to_le_bytes());
    Some(damaged)
}
