//! Pipelines as text.
//!
//! ```text
//! 1f1b, 3 stages, 4 microbatches, F = 1, B = 2; one cell per unit of time
//! rank 0 | F0 F1 F2 .. .. .. .. B0 == F3 B1 == .. B2 == .. B3 ==
//! rank 1 | .. F0 F1 .. .. B0 == F2 B1 == F3 B2 == .. B3 == .. ..
//! rank 2 | .. .. F0 B0 == F1 B1 == F2 B2 == F3 B3 == .. .. .. ..
//! ```
//!
//! A cell shows the action that fills most of it: its letter and microbatch where it begins, `==` while it goes on,
//! `##` for work outside of the actions (reducing gradients, updating weights), `..` for none. With virtual stages
//! the stage comes first, as everywhere else: `2F0`.

use crate::actions::{Extent, extents, rows, stages};
use crate::timeline::Timeline;
use std::fmt;
use trainwright_spec::schedule::Action;
use trainwright_spec::units::Picoseconds;

/// How a drawing is scaled.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Style {
    /// The most characters in a line; `None` for no limit. A wider drawing loses its middle.
    pub columns: Option<usize>,
    /// The time that a cell stands for. `None` takes the one that fills the columns, but none in which an action could
    /// disappear, and prints it in a first line.
    pub unit: Option<Picoseconds>,
}

impl Style {
    /// One cell for each `unit` of time, all of them: for timelines small enough to check by eye.
    pub fn exact(unit: Picoseconds) -> Style {
        Style { columns: None, unit: Some(unit) }
    }

    /// As much as fits into lines of `columns` characters.
    pub fn fitting(columns: usize) -> Style {
        Style { columns: Some(columns), unit: None }
    }
}

/// Draws the actions of a timeline, a row for each rank, in lines that end with a newline.
pub fn draw(timeline: &Timeline, style: &Style) -> String {
    let order = rows(timeline);
    let extents: Vec<Vec<Extent>> = order.iter().map(|&rank| extents(timeline, rank)).collect();
    let naming =
        if extents.iter().all(|row| stages(row).len() <= 1) { Naming::Microbatch } else { Naming::Stage };
    let cell_width = extents
        .iter()
        .flatten()
        .filter_map(|extent| extent.action)
        .map(|action| naming.name(action).len())
        .fold(2, usize::max);
    let rank_width =
        order.iter().map(|&rank| timeline.ranks[rank].rank.to_string().len()).max().unwrap_or_default();

    let grid = Grid::new(timeline.duration, shortest(&extents), style, |columns| {
        let label = "rank ".len() + rank_width + " |".len();
        columns.saturating_sub(label) / (cell_width + 1)
    });
    let mut text = if style.unit.is_none() { grid.to_string() } else { String::new() };
    for (&rank, extents) in order.iter().zip(&extents) {
        text.push_str(&format!("rank {:>rank_width$} |", timeline.ranks[rank].rank));
        text.push_str(&row(&grid, extents, naming, cell_width));
        text.push('\n');
    }
    text
}

/// How a cell names an action.
#[derive(Debug, Clone, Copy)]
enum Naming {
    /// `F0`
    Microbatch,
    /// `2F0`
    Stage,
}

impl Naming {
    fn name(self, action: Action) -> String {
        match self {
            Naming::Microbatch => format!("{}{}", action.kind.letter(), action.microbatch),
            Naming::Stage => action.to_string(),
        }
    }
}

/// The cells of a row: `0..head`, then `mark..count`, where the mark stands for all from `head` to `mark`.
#[derive(Debug)]
struct Grid {
    unit: u64,
    duration: u64,
    count: u64,
    head: u64,
    mark: u64,
}

impl Grid {
    /// `capacity` says how many cells fit into a number of columns.
    fn new(
        duration: Picoseconds,
        shortest: Picoseconds,
        style: &Style,
        capacity: impl Fn(usize) -> usize,
    ) -> Grid {
        // A row with its middle left out needs a cell before, one for the mark and one after.
        let capacity = style.columns.map(|columns| capacity(columns).max(3) as u64);
        let filling = capacity.map(|cells| duration.0.div_ceil(cells));
        let unit = style
            .unit
            .map_or_else(|| filling.map_or(shortest.0, |filling| filling.min(shortest.0)), |unit| unit.0);
        let unit = unit.max(1);
        let count = duration.0.div_ceil(unit);
        let (head, mark) = match capacity {
            Some(cells) if cells < count => (cells / 2, count - (cells - cells / 2)),
            _ => (count, count),
        };
        Grid { unit, duration: duration.0, count, head, mark }
    }
}

impl fmt::Display for Grid {
    fn fmt(&self, f: &mut fmt::Formatter) -> fmt::Result {
        write!(f, "one cell is {}", Picoseconds(self.unit))?;
        if self.head < self.count {
            let left_out = (self.mark + 1 - self.head) * self.unit;
            write!(f, ", … leaves out {} of {}", Picoseconds(left_out), Picoseconds(self.duration))?;
        }
        f.write_str("\n")
    }
}

/// The shortest action, so that one cell of that length shows each; the whole step if there is none.
fn shortest(extents: &[Vec<Extent>]) -> Picoseconds {
    let actions = extents.iter().flatten().filter(|extent| extent.action.is_some());
    actions.map(Extent::length).min().unwrap_or(Picoseconds(u64::MAX))
}

fn row(grid: &Grid, extents: &[Extent], naming: Naming, width: usize) -> String {
    let mut text = String::new();
    let mut before = None;
    let mut first = 0;
    for cell in (0..grid.head).chain(grid.mark..grid.count) {
        let start = cell * grid.unit;
        let end = (start + grid.unit).min(grid.duration);
        while extents.get(first).is_some_and(|extent| extent.end.0 <= start) {
            first += 1;
        }
        let shown = most(start, end, &extents[first..]);
        let content = match shown.map(|extent| extent.action) {
            _ if cell == grid.mark => "…".to_string(),
            None => ".".repeat(width),
            Some(None) => "#".repeat(width),
            Some(Some(_)) if shown == before => "=".repeat(width),
            Some(Some(action)) => naming.name(action),
        };
        text.push_str(&format!(" {content:width$}"));
        before = shown;
    }
    text.truncate(text.trim_end().len());
    text
}

/// The extent that fills most of a cell; `None` if more of it is idle. Of two equal ones the later wins, so that an
/// action of a cell's length that two cells share is shown in at least one of them.
fn most(start: u64, end: u64, extents: &[Extent]) -> Option<&Extent> {
    let within = extents.iter().take_while(|extent| extent.start.0 < end);
    let filled = within.map(|extent| (extent.end.0.min(end) - extent.start.0.max(start), extent));
    let idle = (end - start).saturating_sub(filled.clone().map(|(time, _)| time).sum());
    let (time, winner) = filled.max_by_key(|&(time, _)| time)?;
    (time >= idle).then_some(winner)
}
