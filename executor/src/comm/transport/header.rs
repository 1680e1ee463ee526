//! The header by which processes distinguish messages.

use super::message::Tag;
use trainwright_spec::program::Channel;

/// The words before a message.
pub(crate) type Header = [u32; 3];

/// Nothing comes behind this from its sender.
pub(super) const FAREWELL: Header = [u32::MAX, 0, 0];
/// The sender's run has failed.
pub(super) const ABORT: Header = [u32::MAX, 1, 0];
/// The status of the sender's rank follows.
pub(super) const STATUS: Header = [u32::MAX, 2, 0];
/// What the sender's process runs follows: the first message of MPI's rendezvous.
#[cfg(feature = "mpi")]
pub(super) const HELLO: Header = [u32::MAX, 3, 0];

/// The header of a message with that tag.
pub(crate) fn header_of(tag: Tag) -> Header {
    match tag {
        Tag::Stage(Channel::Activation(stage), microbatch) => [0, stage as u32, microbatch as u32],
        Tag::Stage(Channel::Gradient(stage), microbatch) => [1, stage as u32, microbatch as u32],
        Tag::Group(group) => [2, group as u32, 0],
        Tag::Report => [3, 0, 0],
        Tag::Sent => [4, 0, 0],
        Tag::Taken => [5, 0, 0],
        Tag::Stop => [6, 0, 0],
    }
}

/// The tag of a message with that header; `None` if no message has it.
pub(crate) fn tag_of([kind, first, second]: Header) -> Option<Tag> {
    let (first, second) = (first as usize, second as usize);
    match kind {
        0 => Some(Tag::Stage(Channel::Activation(first), second)),
        1 => Some(Tag::Stage(Channel::Gradient(first), second)),
        2 => Some(Tag::Group(first)),
        3 => Some(Tag::Report),
        4 => Some(Tag::Sent),
        5 => Some(Tag::Taken),
        6 => Some(Tag::Stop),
        _ => None,
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_tag_comes_back_from_its_header() {
        let plain = [Tag::Report, Tag::Sent, Tag::Taken, Tag::Stop];
        for tag in [Tag::Group(3), Tag::Stage(Channel::Gradient(1), 2)].into_iter().chain(plain) {
            assert_eq!(tag_of(header_of(tag)), Some(tag));
        }
        assert_eq!(tag_of([9, 0, 0]), None);
    }
}
