//! Action lists as text, and as the CSV of torch.distributed.pipelining.
//!
//! Text has a line for each rank, with blanks between actions; a joint pass of two is written `(0F7;7B3)`:
//!
//! ```
//! use trainwright_spec::schedule::text;
//! let lists = text::read("0F0 0F1 0B0 0B1\n1F0 1B0 1F1 1B1\n", "example").unwrap();
//! assert_eq!(text::write_csv(&lists), "0F0,0F1,0B0,0B1\n1F0,1B0,1F1,1B1\n");
//! ```
//!
//! The CSV has a row for each rank. In torch's `compute_only` form a cell is an action, empty where the rank idles, or
//! `(0F7;7B3)OVERLAP_F_B`; its `compute_comms` form adds cells for messages, sharding and gradient reduction, which
//! follow from the actions and are skipped.

use super::{Action, ActionLists};
use crate::error::SpecError;

/// Cells of the `compute_comms` form that are no actions.
const COMMUNICATION: [&str; 10] = [
    "SEND_F",
    "RECV_F",
    "SEND_B",
    "RECV_B",
    "WAIT_SEND_F",
    "WAIT_SEND_B",
    "UNSHARD",
    "RESHARD",
    "REDUCE_GRAD",
    "WAIT_REDUCE_GRAD",
];

/// Reads a line for each rank; empty lines are skipped. `origin` names the file in messages.
///
/// # Errors
/// `Syntax` with the line and what is not an action.
pub fn read(text: &str, origin: &str) -> Result<ActionLists, SpecError> {
    rows(text, origin, char::is_whitespace)
}

/// Writes a line for each rank.
pub fn write(lists: &ActionLists) -> String {
    lines(lists).into_iter().map(|line| line + "\n").collect()
}

/// The line of each rank.
pub fn lines(lists: &ActionLists) -> Vec<String> {
    written(lists, " ", "")
}

/// Reads torch's CSV in either form. `origin` names the file in messages.
///
/// # Errors
/// `Syntax` with the line and what is not a cell.
pub fn read_csv(text: &str, origin: &str) -> Result<ActionLists, SpecError> {
    rows(text, origin, |separator| separator == ',')
}

/// Writes torch's CSV in the `compute_only` form.
pub fn write_csv(lists: &ActionLists) -> String {
    written(lists, ",", "OVERLAP_F_B").into_iter().map(|row| row + "\n").collect()
}

fn written(lists: &ActionLists, separator: &str, overlap: &str) -> Vec<String> {
    let rank = |(actions, joint): (&Vec<Action>, &Vec<usize>)| {
        let mut cells = Vec::new();
        let mut at = 0;
        while at < actions.len() {
            if joint.contains(&at) && at + 1 < actions.len() {
                cells.push(format!("({};{}){overlap}", actions[at], actions[at + 1]));
                at += 2;
            } else {
                cells.push(actions[at].to_string());
                at += 1;
            }
        }
        cells.join(separator)
    };
    lists.ranks.iter().zip(&lists.joint).map(rank).collect()
}

fn rows(text: &str, origin: &str, separator: impl Fn(char) -> bool) -> Result<ActionLists, SpecError> {
    let mut lists = ActionLists::default();
    for (number, line) in text.lines().enumerate().filter(|(_, line)| !line.trim().is_empty()) {
        let (mut actions, mut joint) = (Vec::new(), Vec::new());
        for cell in line.split(&separator).map(str::trim).filter(|cell| !cell.is_empty()) {
            let read = cell_actions(cell).map_err(|message| SpecError::Syntax {
                origin: origin.into(),
                message: format!("line {}: {message}", number + 1),
            })?;
            joint.extend((read.len() == 2).then_some(actions.len()));
            actions.extend(read);
        }
        lists.ranks.push(actions);
        lists.joint.push(joint);
    }
    Ok(lists)
}

/// The action of a cell, the two of a joint pass, or no action.
fn cell_actions(cell: &str) -> Result<Vec<Action>, String> {
    if let Some(pair) = cell.strip_suffix("OVERLAP_F_B").unwrap_or(cell).strip_prefix('(') {
        let both = pair.strip_suffix(')').and_then(|pair| pair.split_once(';'));
        let (one, other) = both.ok_or_else(|| format!("`{cell}` is not a joint pass such as (0F7;7B3)"))?;
        return Ok(vec![one.parse()?, other.parse()?]);
    }
    let name = cell.trim_matches(|digit: char| digit.is_ascii_digit());
    if COMMUNICATION.contains(&name) { Ok(Vec::new()) } else { Ok(vec![cell.parse()?]) }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn messages_and_idle_cells_are_skipped() {
        let comms = "0UNSHARD,0F0,0SEND_F0,,(0F1;1B0)OVERLAP_F_B,0WAIT_SEND_F0,1RECV_B1,1I1,1W1,0REDUCE_GRAD";
        let lists = read_csv(comms, "test").unwrap();
        assert_eq!(write_csv(&lists), "0F0,(0F1;1B0)OVERLAP_F_B,1I1,1W1\n");
        assert_eq!(write(&lists), "0F0 (0F1;1B0) 1I1 1W1\n");
        assert_eq!(read(&write(&lists), "test").unwrap(), lists);
    }

    #[test]
    fn what_is_no_action_is_named_with_its_line() {
        let check = |text: &str, expected: &str| {
            assert_eq!(read_csv(text, "file.csv").unwrap_err().to_string(), expected);
        };
        check(
            "0F0\n0F0,0X1",
            "file.csv: line 2: `0X1` is not an action such as 2F0 (stage 2, forward, microbatch 0)",
        );
        check("(0F0,0B1)", "file.csv: line 1: `(0F0` is not a joint pass such as (0F7;7B3)");
    }
}
