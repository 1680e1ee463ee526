//! What blocks compute again in backward: per block everything, some pieces, or nothing; and how a stage's text says so.

use serde::{Deserialize, Serialize};
use std::fmt;
use std::str::FromStr;

/// What a block computes again in backward instead of keeping it; written `full`, `selective`, `none` or
/// `selective(norm+activation)`.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash, Serialize, Deserialize)]
#[serde(try_from = "String", into = "String")]
pub enum Recompute {
    /// The block from its input.
    Full,
    /// The attention core: scores, softmax, dropout, values.
    Selective,
    /// Other pieces, or several.
    Pieces(Pieces),
    /// Nothing.
    None,
}

/// A part of a block that can be computed again by itself.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub enum Piece {
    /// Scores, softmax, dropout, values.
    Core,
    /// The norms before attention and feed-forward part: their outputs are dropped.
    Norm,
    /// The nonlinearities between the matrices, dense and of experts: their outputs are dropped.
    Activation,
    /// The dense feed-forward part from its input.
    Mlp,
    /// The mixture of experts from its input, routing and communication included.
    Experts,
    /// Queries, keys and values out of the latent ones, with their rotation (multi-head latent attention).
    UpProjection,
}

impl Piece {
    /// Every piece, in the order in which they are written.
    ///
    /// They are those of Megatron-Core's `--recompute-modules`: core_attn, layernorm, moe_act, mlp, moe, mla_up_proj.
    pub const ALL: [Piece; 6] =
        [Piece::Core, Piece::Norm, Piece::Activation, Piece::Mlp, Piece::Experts, Piece::UpProjection];

    /// The name in plans and arguments.
    pub fn name(self) -> &'static str {
        match self {
            Piece::Core => "core",
            Piece::Norm => "norm",
            Piece::Activation => "activation",
            Piece::Mlp => "mlp",
            Piece::Experts => "experts",
            Piece::UpProjection => "up-projection",
        }
    }
}

/// A set of pieces.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct Pieces(u8);

impl Pieces {
    /// No piece.
    pub const NONE: Pieces = Pieces(0);

    /// The set with these.
    pub fn of(pieces: &[Piece]) -> Pieces {
        Pieces(pieces.iter().fold(0, |set, piece| set | 1 << *piece as u8))
    }

    /// Whether a piece is in it.
    pub fn contains(self, piece: Piece) -> bool {
        self.0 & 1 << piece as u8 != 0
    }

    /// Those in it, in the order of `Piece::ALL`.
    pub fn iter(self) -> impl Iterator<Item = Piece> {
        Piece::ALL.into_iter().filter(move |piece| self.contains(*piece))
    }
}

impl Recompute {
    /// The choices that a planner has by itself.
    pub const ALL: [Recompute; 3] = [Recompute::Full, Recompute::Selective, Recompute::None];

    /// The name of its kind in arguments and tables.
    pub fn name(self) -> &'static str {
        match self {
            Recompute::Full => "full",
            Recompute::Selective | Recompute::Pieces(_) => "selective",
            Recompute::None => "none",
        }
    }

    /// The pieces that it computes again one by one.
    pub fn pieces(self) -> Pieces {
        match self {
            Recompute::Full | Recompute::None => Pieces::NONE,
            Recompute::Selective => Pieces::of(&[Piece::Core]),
            Recompute::Pieces(pieces) => pieces,
        }
    }

    /// The choice of these pieces.
    pub fn of(pieces: &[Piece]) -> Recompute {
        match Pieces::of(pieces) {
            Pieces::NONE => Recompute::None,
            core if core == Recompute::Selective.pieces() => Recompute::Selective,
            pieces => Recompute::Pieces(pieces),
        }
    }
}

impl fmt::Display for Recompute {
    fn fmt(&self, f: &mut fmt::Formatter) -> fmt::Result {
        match self {
            Recompute::Pieces(pieces) => {
                let names: Vec<&str> = pieces.iter().map(Piece::name).collect();
                f.pad(&format!("selective({})", names.join("+")))
            }
            kind => f.pad(kind.name()),
        }
    }
}

impl FromStr for Recompute {
    type Err = String;

    /// Reads `full` or `selective(norm+activation)`.
    ///
    /// # Errors
    /// Says what is allowed.
    fn from_str(text: &str) -> Result<Self, String> {
        if let Some(kind) = Recompute::ALL.into_iter().find(|kind| kind.name() == text) {
            return Ok(kind);
        }
        let inside = text.strip_prefix("selective").map(str::trim_start);
        let inside = inside.and_then(|rest| rest.strip_prefix('(')?.strip_suffix(')'));
        let named = |name: &str| Piece::ALL.into_iter().find(|piece| piece.name() == name.trim());
        let Some(inside) = inside else {
            return Err(format!("`{text}` is none of full, selective, selective(...), none"));
        };
        let pieces: Result<Vec<Piece>, String> = inside
            .split('+')
            .map(|name| {
                let known = Piece::ALL.map(Piece::name).join(", ");
                named(name).ok_or_else(|| format!("`{}` in `{text}` is none of {known}", name.trim()))
            })
            .collect();
        Ok(Recompute::of(&pieces?))
    }
}

impl TryFrom<String> for Recompute {
    type Error = String;
    fn try_from(text: String) -> Result<Self, String> {
        text.parse()
    }
}

impl From<Recompute> for String {
    fn from(recompute: Recompute) -> String {
        recompute.to_string()
    }
}

/// The blocks of a stage, each with its recompute choice; written `2 full, 8 none`, and what repeats as
/// `4 x (1 full, 2 none)`.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
#[serde(try_from = "String", into = "String")]
pub struct StageBlocks(pub Vec<Recompute>);

/// Equal blocks in a row: how many, and their choice.
type Run = (usize, Recompute);

impl fmt::Display for StageBlocks {
    fn fmt(&self, f: &mut fmt::Formatter) -> fmt::Result {
        let runs: Vec<Run> = self.0.chunk_by(|a, b| a == b).map(|run| (run.len(), run[0])).collect();
        let print = |runs: &[Run]| {
            let texts: Vec<String> = runs.iter().map(|(count, choice)| format!("{count} {choice}")).collect();
            texts.join(", ")
        };
        let mut texts = Vec::new();
        let mut rest = runs.as_slice();
        while !rest.is_empty() {
            match repetition(rest) {
                Some((period, times)) => {
                    texts.push(format!("{times} x ({})", print(&rest[..period])));
                    rest = &rest[period * times..];
                }
                None => {
                    texts.push(print(&rest[..1]));
                    rest = &rest[1..];
                }
            }
        }
        f.pad(&texts.join(", "))
    }
}

/// The most runs of a pattern that is looked for.
const LONGEST_PATTERN: usize = 16;

/// The pattern of two and more runs that stands at the beginning at least three times in a row and covers most; of
/// those the shortest: its length and how often.
fn repetition(runs: &[Run]) -> Option<(usize, usize)> {
    let times = |period: usize| runs.chunks(period).take_while(|chunk| *chunk == &runs[..period]).count();
    let longest = (runs.len() / 3).min(LONGEST_PATTERN);
    let periods = (2..=longest).map(|period| (period, times(period)));
    periods
        .filter(|(_, times)| *times >= 3)
        .max_by_key(|(period, times)| (period * times, usize::MAX - period))
}

/// The most blocks that a text may ask for.
const MOST: usize = 100_000;

impl FromStr for StageBlocks {
    type Err = String;

    /// Reads `2 full, 8 none` and `4 x (1 full, 2 none), 1 none`.
    ///
    /// # Errors
    /// Says what is wrong with the text.
    fn from_str(text: &str) -> Result<Self, String> {
        let mut blocks = Vec::new();
        for run in outside_brackets(text).map(str::trim).filter(|run| !run.is_empty()) {
            let (count, rest) = run.split_once(' ').unwrap_or((run, "none"));
            let count: usize = count
                .parse()
                .ok()
                .filter(|count| *count <= MOST)
                .ok_or_else(|| format!("`{run}` does not begin with a number of blocks"))?;
            let pattern = match rest.trim_start().strip_prefix('x') {
                Some(pattern) => repeated(run, pattern)?,
                None => vec![rest.trim().parse().map_err(|_| ends_wrong(run, rest))?],
            };
            if blocks.len() + count * pattern.len() > MOST {
                return Err(format!("`{run}` makes more than {MOST} blocks"));
            }
            blocks.extend(std::iter::repeat_n(pattern, count).flatten());
        }
        Ok(StageBlocks(blocks))
    }
}

/// The blocks of ` (1 full, 2 none)`; `run` is the text around it, for messages.
fn repeated(run: &str, pattern: &str) -> Result<Vec<Recompute>, String> {
    let inside = pattern.trim().strip_prefix('(').and_then(|rest| rest.strip_suffix(')'));
    match inside {
        Some(inside) if !inside.contains(" x") => Ok(inside.parse::<StageBlocks>()?.0),
        _ => Err(format!("`{run}` does not read like `4 x (1 full, 2 none)`")),
    }
}

fn ends_wrong(run: &str, choice: &str) -> String {
    match choice.trim().parse::<Recompute>() {
        Err(message) if choice.contains('(') => message,
        _ => format!("`{run}` ends in none of full, selective, none"),
    }
}

/// The parts between the commas that stand in no brackets.
fn outside_brackets(text: &str) -> impl Iterator<Item = &str> {
    let mut depth = 0usize;
    text.split(move |character| {
        match character {
            '(' => depth += 1,
            ')' => depth = depth.saturating_sub(1),
            _ => {}
        }
        character == ',' && depth == 0
    })
}

impl TryFrom<String> for StageBlocks {
    type Error = String;
    fn try_from(text: String) -> Result<Self, String> {
        text.parse()
    }
}

impl From<StageBlocks> for String {
    fn from(blocks: StageBlocks) -> String {
        blocks.to_string()
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn stage_blocks_are_printed_as_runs_and_read_back() {
        let check = |text: &str, printed: &str, count: usize| {
            let blocks: StageBlocks = text.parse().unwrap();
            assert_eq!((blocks.to_string().as_str(), blocks.0.len()), (printed, count));
            assert_eq!(printed.parse::<StageBlocks>().unwrap(), blocks);
        };
        check("2 full, 8 none", "2 full, 8 none", 10);
        check("3", "3 none", 3);
        check("1 full,1 full, 1 selective", "2 full, 1 selective", 3);
        check("", "", 0);
        check("4 selective(activation+norm), 1 full", "4 selective(norm+activation), 1 full", 5);
        check("2 selective(core)", "2 selective", 2);
        // Every third block.
        check("4 x (1 full, 2 none)", "4 x (1 full, 2 none)", 12);
        check("1 full, 2 none, 1 full, 2 none, 1 full, 2 none", "3 x (1 full, 2 none)", 9);
        check("3 x (1 full, 3 none), 1 full", "3 x (1 full, 3 none), 1 full", 13);
        // Twice is printed as it always was.
        check("1 full, 2 none, 1 full, 2 none", "1 full, 2 none, 1 full, 2 none", 6);
        check("2 x (3)", "6 none", 6);
        for (text, part) in [
            ("x full", "does not begin with a number"),
            ("2 half", "ends in none of full"),
            ("999999999 none", "does not begin with a number"),
            ("2 selective(half)", "`half` in `selective(half)` is none of core, norm,"),
            ("2 selective(norm", "is none of full, selective, selective(...)"),
            ("2 x 1 full", "does not read like"),
            ("2 x (2 x (1 full))", "does not read like"),
            ("1000 x (1000 full)", "more than 100000 blocks"),
        ] {
            let error = text.parse::<StageBlocks>().unwrap_err();
            assert!(error.contains(part), "{text}: {error}");
        }
    }
}
