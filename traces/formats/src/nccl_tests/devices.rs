//! The list of ranks at the head of a run: how many there are, on which nodes, in which groups.

use super::{LogError, LoggedGroup};
use std::collections::BTreeMap;

/// The device lines of one run.
#[derive(Debug, Clone, Default)]
pub(super) struct Devices {
    ranks: BTreeMap<usize, Device>,
}

#[derive(Debug, Clone)]
struct Device {
    group: usize,
    host: String,
    name: Option<String>,
}

impl Devices {
    /// Adds the rank of a comment line (without its `#`) like
    /// `Rank  3 Group  0 Pid  4711 on  node-a device  3 [0x0f] NVIDIA A100`; other lines are left alone.
    pub fn add(&mut self, comment: &str, origin: &str, line: usize) -> Result<(), LogError> {
        let words: Vec<&str> = comment.split_whitespace().collect();
        let after = |name: &str| words.iter().position(|word| *word == name).and_then(|at| words.get(at + 1));
        let number = |name: &str| after(name).and_then(|word| word.parse::<usize>().ok());
        let (Some(&"Rank"), Some(rank), Some(host), Some(_)) =
            (words.first(), number("Rank"), after("on"), number("device"))
        else {
            return Ok(());
        };
        let name = comment.split_once(']').map(|(_, name)| name.trim().to_string());
        let device = Device {
            group: number("Group").unwrap_or(0),
            host: (*host).into(),
            name: name.filter(|name| !name.is_empty()),
        };
        match self.ranks.insert(rank, device) {
            None => Ok(()),
            Some(_) => Err(LogError::Twice { origin: origin.into(), line, rank }),
        }
    }

    /// The GPU of the first rank.
    pub fn gpu(&self) -> Option<String> {
        self.ranks.values().next()?.name.clone()
    }

    /// The group of the first rank, whose times are printed; `None` if ranks are missing.
    pub fn group(&self, origin: &str) -> Result<Option<LoggedGroup>, LogError> {
        let complete = self.ranks.keys().enumerate().all(|(index, rank)| index == *rank);
        let Some(first) = self.ranks.values().next().filter(|_| complete) else { return Ok(None) };
        let mut ranks_of: BTreeMap<&str, usize> = BTreeMap::new();
        for device in self.ranks.values().filter(|device| device.group == first.group) {
            *ranks_of.entry(&device.host).or_default() += 1;
        }
        let sizes = || ranks_of.values().copied();
        let (most, fewest) = (sizes().max().unwrap_or(0), sizes().min().unwrap_or(0));
        if most != fewest {
            return Err(LogError::Uneven { origin: origin.into(), most, fewest });
        }
        let here = self.ranks.values().filter(|device| device.host == first.host);
        let mut groups: Vec<usize> = here.map(|device| device.group).collect();
        groups.sort_unstable();
        groups.dedup();
        Ok(Some(LoggedGroup { nodes: ranks_of.len(), ranks_per_node: most, groups: groups.len() }))
    }
}
