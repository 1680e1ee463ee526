//! The collective of a log: by the name of the program, or by the numbers of its table.

use trainwright_spec::collective::CollectiveKind;

/// The collective whose program a line names (`all_reduce_perf`, `./build/alltoall_perf -b 8`), if it does.
pub(super) fn named(line: &str) -> Option<CollectiveKind> {
    let words = line.split(|letter: char| !letter.is_ascii_alphanumeric() && letter != '_');
    let programs = words.map(|word| word.strip_suffix("_mpi").unwrap_or(word));
    programs.filter(|word| word.ends_with("_perf")).find_map(|word| word.parse().ok())
}

/// Properties of the collective that one row shows.
#[derive(Debug, Clone, Copy)]
pub(super) struct Hints {
    /// Whether values are added: the column `redop` has a name other than `none`.
    pub adds: Option<bool>,
    /// Whether there is a root: the column `root` is not negative.
    pub has_root: Option<bool>,
    /// Algorithm bandwidth as printed, GB/s with two decimals.
    pub algorithm_bandwidth: f64,
    /// Bus bandwidth as printed.
    pub bus_bandwidth: f64,
}

/// The only collective over `ranks` with these properties; `None` if there are several.
pub(super) fn infer(hints: Hints, ranks: usize) -> Option<CollectiveKind> {
    let ratio = hints.bus_bandwidth / hints.algorithm_bandwidth;
    // Half of the last printed digit, in both.
    let slack = 0.005 * (1.0 + ratio) / hints.algorithm_bandwidth;
    let suits = |kind: &CollectiveKind| {
        let adds = matches!(
            kind,
            CollectiveKind::AllReduce | CollectiveKind::ReduceScatter | CollectiveKind::Reduce
        );
        let has_root = matches!(kind, CollectiveKind::Broadcast | CollectiveKind::Reduce);
        *kind != CollectiveKind::Barrier
            && (kind.bus_factor(ranks) - ratio).abs() <= slack
            && hints.adds.is_none_or(|given| given == adds)
            && hints.has_root.is_none_or(|given| given == has_root)
    };
    let mut kinds = CollectiveKind::ALL.into_iter().filter(suits);
    kinds.next().filter(|_| kinds.next().is_none())
}
