//! The streams of a device. Each does what it is told in order; between them there is no order but by moments.

use trainwright_spec::program::Stream;

/// The one that computes, and does what is told where nobody says otherwise.
pub(crate) const COMPUTE: usize = 0;

/// From here on: one for the messages between this rank and another one in one direction, where NCCL carries them.
pub(crate) const PAIRS: usize = 7;

/// A device's stream for one of a program. What a program lets the node's processors do for a rank is told to the stream that
/// computes, since the rank's thread does it.
pub(crate) fn stream_of(stream: Stream) -> usize {
    match stream {
        Stream::Compute | Stream::Host => COMPUTE,
        Stream::Layer => 1,
        Stream::Data => 2,
        Stream::Send => 3,
        Stream::Receive => 4,
        Stream::ToHost => 5,
        Stream::FromHost => 6,
    }
}
