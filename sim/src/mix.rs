//! Numbers that depend on others as if drawn at random, the same in every run.

/// A word whose every bit depends on every bit of `word`.
///
/// Source: the finalizer of SplitMix64, Steele, Lea & Flood 2014, OOPSLA, figure 17.
pub(crate) fn mixed(mut word: u64) -> u64 {
    word = (word ^ (word >> 30)).wrapping_mul(0xbf58_476d_1ce4_e5b9);
    word = (word ^ (word >> 27)).wrapping_mul(0x94d0_49bb_1331_11eb);
    word ^ (word >> 31)
}

/// Spreads small numbers over 64 bits: `number` steps of SplitMix64, whose step is 2⁶⁴ over the golden ratio.
pub(crate) fn spread(number: u64) -> u64 {
    number.wrapping_mul(0x9e37_79b9_7f4a_7c15)
}
