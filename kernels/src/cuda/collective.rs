//! Collectives and messages between devices with separate memories.

use super::launch::Address;

/// A group's unique id; one member makes it and sends it to the others.
pub type GroupName = [u8; 128];

/// One device's membership of a group.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Membership {
    /// The group's id.
    pub name: GroupName,
    /// The device's index among the members.
    pub place: usize,
    /// How many members.
    pub size: usize,
}

/// A collective of a group, or a message of a group of two.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Collective {
    /// The sum over members, for all members, in place.
    AllReduce {
        /// count.
        x: Address,
        /// Elements.
        count: usize,
    },
    /// A shard of the sum over members for each.
    ReduceScatter {
        /// size · count.
        from: Address,
        /// count.
        to: Address,
        /// Elements of a shard.
        count: usize,
    },
    /// All members' arrays, concatenated.
    AllGather {
        /// count.
        from: Address,
        /// size · count.
        to: Address,
        /// Elements of each member.
        count: usize,
    },
    /// A message to the other member of a group of two. It is over when that one has received it.
    Send {
        /// count.
        x: Address,
        /// Elements.
        count: usize,
    },
    /// A message from the other member of a group of two.
    Receive {
        /// count.
        x: Address,
        /// Elements.
        count: usize,
    },
}
