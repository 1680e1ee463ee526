//! Collectives and messages among devices that have a memory each.

use super::launch::Address;

/// What a group of devices is known by; one of them makes it and gives it to the others.
pub type GroupName = [u8; 128];

/// One device's place in a group.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Membership {
    /// The group.
    pub name: GroupName,
    /// Which of its members.
    pub place: usize,
    /// How many there are.
    pub size: usize,
}

/// What a group does with numbers of all its members.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Collective {
    /// The sum of every member's, in every member's.
    AllReduce {
        /// count.
        x: Address,
        /// How many.
        count: usize,
    },
    /// Each member's share of the sum.
    ReduceScatter {
        /// size · count.
        from: Address,
        /// count.
        to: Address,
        /// How many a share is.
        count: usize,
    },
    /// Every member's, one behind the other.
    AllGather {
        /// count.
        from: Address,
        /// size · count.
        to: Address,
        /// How many each has.
        count: usize,
    },
    /// To the other member of a group of two, which receives as many. It is over when that one has them.
    Send {
        /// count.
        x: Address,
        /// How many.
        count: usize,
    },
    /// What the other member of a group of two sends.
    Receive {
        /// count.
        x: Address,
        /// How many.
        count: usize,
    },
}
