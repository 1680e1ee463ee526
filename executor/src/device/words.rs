//! Whole numbers of the host that a device reads: tokens.

use std::ops::Range;
use trainwright_kernels::cuda::Address;

/// Tokens of a microbatch before a device has them.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(crate) struct HostWords {
    pub numbers: Vec<u32>,
    /// The order in which a device sums the gradient of the table that they look up, if it wants one.
    pub sorted: Option<Sorted>,
}

/// Tokens in the order of the entries that they look up.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(crate) struct Sorted {
    /// Tokens whose entries are in the table, by entry, those of an entry in their order; zeros behind them. As long as there
    /// are tokens, so that it takes as much memory in every step.
    pub order: Vec<u32>,
    /// Where each row's tokens begin in `order`, and where the last row's end.
    pub starts: Vec<u32>,
}

impl Sorted {
    /// A counting sort; the table has these entries.
    pub fn of(tokens: &[u32], entries: Range<usize>) -> Self {
        let row =
            |token: &u32| (*token as usize).checked_sub(entries.start).filter(|row| *row < entries.len());
        let mut starts = vec![0; entries.len() + 1];
        tokens.iter().filter_map(row).for_each(|row| starts[row + 1] += 1);
        for row in 0..entries.len() {
            starts[row + 1] += starts[row];
        }
        let (mut next, mut order) = (starts.clone(), vec![0; tokens.len()]);
        for (token, row) in tokens.iter().enumerate().filter_map(|(at, token)| Some((at, row(token)?))) {
            order[next[row] as usize] = token as u32;
            next[row] += 1;
        }
        Self { order, starts }
    }
}

/// Numbers that the host knows, and where a device with separate memory has them too.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(crate) struct Words {
    host: Vec<u32>,
    there: Option<There>,
}

#[derive(Debug, Clone, Copy, PartialEq, Eq)]
struct There {
    numbers: Address,
    sorted: Option<SortedOnDevice>,
}

/// A `Sorted` in a device's memory.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) struct SortedOnDevice {
    pub order: Address,
    pub starts: Address,
    /// Rows of the table.
    pub rows: usize,
}

impl Words {
    /// Of the host alone.
    pub fn on_host(host: Vec<u32>) -> Self {
        Self { host, there: None }
    }

    /// There too.
    pub fn there(host: Vec<u32>, numbers: Address, sorted: Option<SortedOnDevice>) -> Self {
        Self { host, there: Some(There { numbers, sorted }) }
    }

    /// How many.
    pub fn len(&self) -> usize {
        self.host.len()
    }

    /// For the host.
    pub fn host(&self) -> &[u32] {
        &self.host
    }

    /// For the device.
    pub fn device(&self) -> Address {
        self.of_device().numbers
    }

    /// Their order for the device.
    pub fn sorted(&self) -> SortedOnDevice {
        self.of_device().sorted.expect("tokens of a table with a gradient are brought with their order")
    }

    fn of_device(&self) -> There {
        self.there.expect("a device's tokens are brought to it before a step")
    }
}

#[cfg(test)]
mod tests {
    use super::Sorted;

    #[test]
    fn tokens_of_an_entry_keep_their_order() {
        // The table has entries 5 to 8: tokens 1, 4 and 6 look up others, which are rows of another rank.
        let tokens = [7, 4, 5, 7, 9, 5, 0, 8];
        let expected = Sorted { order: vec![2, 5, 0, 3, 7, 0, 0, 0], starts: vec![0, 2, 2, 4, 5] };
        assert_eq!(Sorted::of(&tokens, 5..9), expected);
        assert_eq!(Sorted::of(&[], 5..7), Sorted { order: vec![], starts: vec![0; 3] });
    }
}
