//! The streams of a device. Each runs its launches in order; only events order launches of different streams.

use trainwright_spec::program::Stream;

/// The stream that computes; it is selected at first.
pub(crate) const COMPUTE: usize = 0;

/// From here on: one for the messages between this rank and another one in one direction, where NCCL carries them.
pub(crate) const PAIRS: usize = 7;

/// A device's stream for one of a program. The ops that a program gives to the node's processors are on the stream that
/// computes, since the rank's thread does them.
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
