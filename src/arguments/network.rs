//! The arguments of `network`.

use super::{count, one_of, within};
use clap::Args;
use clap::builder::{PossibleValuesParser, TypedValueParser};
use trainwright_sim::network::{ALGORITHMS, Forced, Protocol};
use trainwright_spec::catalog;
use trainwright_spec::collective::{self, CollectiveKind};
use trainwright_spec::nccl::Nccl;
use trainwright_spec::units::Bytes;

/// The largest message.
const MOST_BYTES: f64 = (1u64 << 50) as f64;

/// Arguments of `network`.
#[derive(Debug, Args)]
pub struct NetworkArguments {
    /// A cluster or nodes of the catalog (`selene`, `dgx-h100:16`), or a TOML file
    #[arg(long)]
    pub cluster: String,
    /// Which collective, as nccl-tests or torch spell it [default: that of the log]
    #[arg(long, value_name = "NAME", value_parser = collective)]
    pub collective: Option<CollectiveKind>,
    /// Sizes: `8..8G`, `1M`, or `1K,1M,1G`, in powers of 1024 [default: those of the log, 8..8G without one]
    #[arg(long, value_name = "SIZES", value_parser = sizes, allow_negative_numbers = true)]
    pub bytes: Option<Sizes>,
    /// What each size of a range is multiplied by
    #[arg(long, value_name = "N", default_value = "2", value_parser = factor, allow_negative_numbers = true)]
    pub factor: usize,
    /// A log of nccl-tests to compare with; `-` is standard input
    #[arg(long, value_name = "FILE")]
    pub log: Option<String>,
    /// Write the log's times as a profile of the cluster, for `--profile`
    #[arg(long, value_name = "FILE", requires = "log")]
    pub write_profile: Option<String>,
    /// A profile of the cluster's network, whose times are then used where it has them
    #[arg(long, value_name = "FILE")]
    pub profile: Option<String>,
    /// Write a plot as SVG
    #[arg(long, value_name = "FILE")]
    pub svg: Option<String>,
    /// Write a plot as PNG
    #[arg(long, value_name = "FILE")]
    pub png: Option<String>,
    /// Write the forecast as nccl-tests would print it
    #[arg(long, value_name = "FILE")]
    pub write_log: Option<String>,
    /// Print the answer as JSON
    #[arg(long)]
    pub json: bool,
    /// The group.
    #[command(flatten)]
    pub group: GroupArguments,
    /// Choices taken from NCCL.
    #[command(flatten)]
    pub forced: ForcedArguments,
}

/// The ranks of a collective.
#[derive(Debug, Args)]
#[command(next_help_heading = "The group [default: that of the log, all GPUs without one]")]
pub struct GroupArguments {
    /// Number of GPUs, node by node
    #[arg(long, value_name = "N", value_parser = count, allow_negative_numbers = true)]
    pub gpus: Option<usize>,
    /// Number of nodes
    #[arg(long, value_name = "N", value_parser = count, allow_negative_numbers = true)]
    pub nodes: Option<usize>,
    /// Number of GPUs of each node [default: all]
    #[arg(long, value_name = "N", value_parser = count, allow_negative_numbers = true)]
    pub ranks_per_node: Option<usize>,
    /// These GPUs, counted through all nodes: `0,8,16`
    #[arg(long, value_name = "N,N", value_delimiter = ',', value_parser = rank, allow_negative_numbers = true, conflicts_with_all = ["gpus", "nodes", "ranks_per_node"])]
    pub ranks: Option<Vec<usize>>,
}

impl GroupArguments {
    /// Whether no argument was given.
    pub fn is_empty(&self) -> bool {
        self.gpus.is_none() && self.nodes.is_none() && self.ranks_per_node.is_none() && self.ranks.is_none()
    }
}

/// Choices that NCCL is forced to.
#[derive(Debug, Args)]
#[command(next_help_heading = "Instead of what NCCL would choose")]
pub struct ForcedArguments {
    /// This algorithm: one of NCCL's, or else one that is timed step by step on the cluster's links
    #[arg(long, value_name = "NAME", value_parser = algorithms(), conflicts_with = "profile")]
    pub algorithm: Option<&'static str>,
    /// The algorithm step by step even where NCCL has one of that name
    #[arg(long, requires = "algorithm", conflicts_with_all = ["protocol", "channels"])]
    pub by_steps: bool,
    /// By steps, with groups of this shape on the whole cluster at once
    #[arg(long, requires = "algorithm", conflicts_with_all = ["protocol", "channels", "ranks"])]
    pub side_by_side: bool,
    /// This protocol
    #[arg(long, value_parser = one_of(&Protocol::ALL, Protocol::name), conflicts_with = "profile")]
    pub protocol: Option<Protocol>,
    /// Number of channels
    #[arg(long, value_name = "N", value_parser = count, allow_negative_numbers = true, conflicts_with = "profile")]
    pub channels: Option<usize>,
    /// This version of NCCL, whose constants make its choice [default: that of the cluster, or the newest]
    #[arg(long, value_name = "VERSION", value_parser = versions())]
    pub nccl: Option<Nccl>,
}

impl ForcedArguments {
    /// The forced choices.
    pub fn choice(&self) -> Forced {
        Forced { algorithm: self.algorithm, protocol: self.protocol, channels: self.channels }
    }
}

/// Sizes of messages.
#[derive(Debug, Clone, PartialEq)]
pub enum Sizes {
    /// Each of them.
    List(Vec<Bytes>),
    /// From one to another, each a factor larger than the one before.
    Range(Bytes, Bytes),
}

impl Sizes {
    /// Every size, ascending.
    pub fn all(&self, factor: usize) -> Vec<Bytes> {
        match self {
            Sizes::List(sizes) => {
                let mut sizes = sizes.clone();
                sizes.sort_by(|a, b| a.get().total_cmp(&b.get()));
                sizes.dedup();
                sizes
            }
            Sizes::Range(first, last) => {
                let larger = |size: &Bytes| Some(*size * factor as f64);
                std::iter::successors(Some(*first), larger).take_while(|size| size <= last).collect()
            }
        }
    }
}

fn sizes(text: &str) -> Result<Sizes, String> {
    let Some((first, last)) = text.split_once("..") else {
        return text.split(',').map(size).collect::<Result<_, _>>().map(Sizes::List);
    };
    match (size(first)?, size(last)?) {
        (first, last) if first > last => Err("the first size of a range is the smaller one".into()),
        (first, last) => Ok(Sizes::Range(first, last)),
    }
}

/// `8`, `64K`, `1.5M`, `8G`, as nccl-tests reads it.
fn size(text: &str) -> Result<Bytes, String> {
    let text = text.trim();
    let number = text.trim_end_matches("iB").trim_end_matches(['K', 'M', 'G', 'T', 'k', 'm', 'g', 't']);
    let scale = match text[number.len()..].to_uppercase().trim_end_matches("IB") {
        "" => Some(1.0),
        "K" => Some(1024.0),
        "M" => Some(1024f64.powi(2)),
        "G" => Some(1024f64.powi(3)),
        "T" => Some(1024f64.powi(4)),
        _ => None,
    };
    let bytes = number.parse::<f64>().ok().zip(scale).map(|(number, scale)| number * scale);
    bytes
        .filter(|bytes| bytes.fract() == 0.0 && (1.0..=MOST_BYTES).contains(bytes))
        .map(Bytes::new)
        .ok_or_else(|| {
            format!(
                "`{text}` is no size: a whole number of bytes from 1 to 1024T, where 64K is 64 times 1024"
            )
        })
}

fn rank(text: &str) -> Result<usize, String> {
    within(text, 0, super::MOST).map_err(|error| format!("{error}; more of them with commas between"))
}

fn factor(text: &str) -> Result<usize, String> {
    within(text, 2, 1 << 20)
}

fn collective(text: &str) -> Result<CollectiveKind, String> {
    text.parse().map_err(|_| {
        let names = CollectiveKind::ALL.map(CollectiveKind::name);
        let nearest = catalog::nearest(&text.replace('_', "-"), names.into_iter());
        let nearest =
            if nearest.is_empty() { String::new() } else { format!(" (nearest: {})", nearest.join(", ")) };
        format!("it is none of {}{nearest}", names.join(", "))
    })
}

fn algorithms() -> impl TypedValueParser<Value = &'static str> {
    let names = || {
        let nccl: Vec<&str> = ALGORITHMS.iter().map(|algorithm| algorithm.name()).collect();
        let by_steps = collective::ALGORITHMS.iter().map(|algorithm| algorithm.name());
        let others: Vec<&str> = by_steps.filter(|name| !nccl.contains(name)).collect();
        nccl.into_iter().chain(others)
    };
    PossibleValuesParser::new(names())
        .map(move |text| names().find(|name| *name == text).expect("the accepted names are the algorithms'"))
}

fn versions() -> impl TypedValueParser<Value = Nccl> {
    PossibleValuesParser::new(Nccl::all().map(Nccl::name)).try_map(|name| name.parse::<Nccl>())
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn sizes_are_read_as_nccl_tests_reads_them() {
        let check = |text: &str, factor: usize, expected: &[f64]| {
            let sizes = sizes(text).unwrap().all(factor);
            assert_eq!(sizes.iter().map(|size| size.get()).collect::<Vec<_>>(), expected, "{text}");
        };
        check("8..64", 2, &[8.0, 16.0, 32.0, 64.0]);
        check("8..100", 2, &[8.0, 16.0, 32.0, 64.0]);
        check("1K..1M", 32, &[1024.0, 32768.0, 1048576.0]);
        check("1K..1M", 1024, &[1024.0, 1048576.0]);
        check("7..7", 2, &[7.0]);
        check("1.5M", 2, &[1572864.0]);
        check("1G,1KiB,3,1K", 2, &[3.0, 1024.0, 1073741824.0]);
    }

    #[test]
    fn invalid_sizes_are_refused() {
        for text in ["", "8..", "..8", "0", "-1", "1KB", "1.3", "2000T", "8G..8", "x", "1,,2", "nan"] {
            assert!(sizes(text).is_err(), "{text}");
        }
    }
}
