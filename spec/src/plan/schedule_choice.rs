//! Which schedule a plan takes.

use crate::schedule::{Custom, text};
use serde::{Deserialize, Serialize};
use std::fmt;

/// A schedule of the registry by its name, or lists of actions, a line for each rank:
/// `schedule = "zb-h1"` or `schedule = ["0F0 0F1 0B0 0B1", "1F0 1B0 1F1 1B1"]`, or the rows of torch's CSV.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
#[serde(try_from = "Written", into = "Written")]
pub enum ScheduleChoice {
    /// One of the registry.
    Named(String),
    /// The actions themselves.
    Actions(Box<Custom>),
}

/// Its form in the file.
#[derive(Serialize, Deserialize)]
#[serde(untagged, expecting = "expected the name of a schedule or a list of actions, a text for each rank")]
enum Written {
    Name(String),
    Actions(Vec<String>),
}

impl From<&str> for ScheduleChoice {
    fn from(name: &str) -> Self {
        ScheduleChoice::Named(name.into())
    }
}

impl fmt::Display for ScheduleChoice {
    fn fmt(&self, f: &mut fmt::Formatter) -> fmt::Result {
        match self {
            ScheduleChoice::Named(name) => f.pad(name),
            ScheduleChoice::Actions(_) => f.pad("custom"),
        }
    }
}

impl PartialEq<&str> for ScheduleChoice {
    fn eq(&self, name: &&str) -> bool {
        matches!(self, ScheduleChoice::Named(chosen) if chosen == name)
    }
}

impl TryFrom<Written> for ScheduleChoice {
    type Error = String;

    fn try_from(written: Written) -> Result<Self, String> {
        let lines = match written {
            Written::Name(name) => return Ok(ScheduleChoice::Named(name)),
            Written::Actions(lines) => lines.join("\n"),
        };
        // torch's CSV has commas and empty cells between actions, text has blanks.
        let read = if lines.contains(',') { text::read_csv } else { text::read };
        let lists = read(&lines, "schedule").map_err(|error| error.to_string())?;
        if lists.ranks.is_empty() {
            return Err("schedule: a list has the actions of each rank, as in `0F0 0B0`".into());
        }
        let custom = Custom::new(lists).map_err(|fault| format!("schedule: {fault}"))?;
        Ok(ScheduleChoice::Actions(Box::new(custom)))
    }
}

impl From<ScheduleChoice> for Written {
    fn from(choice: ScheduleChoice) -> Written {
        match choice {
            ScheduleChoice::Named(name) => Written::Name(name),
            ScheduleChoice::Actions(custom) => Written::Actions(text::lines(custom.action_lists())),
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[derive(Debug, PartialEq, Serialize, Deserialize)]
    struct File {
        schedule: ScheduleChoice,
    }

    #[test]
    fn names_and_actions_read_back_equal() {
        for text in [
            "schedule = \"zb-h1\"\n",
            "schedule = [\n    \"0F0 (0F1;0B0) 0B1\",\n    \"1F0 1I0 1F1 1W0 1B1\",\n]\n",
        ] {
            let file: File = toml::from_str(text).unwrap();
            assert_eq!(toml::from_str::<File>(&toml::to_string(&file).unwrap()).unwrap(), file);
        }
    }

    #[test]
    fn rows_of_torch_s_csv_are_actions() {
        let read = |text: &str| toml::from_str::<File>(text).unwrap();
        let csv = "schedule = [\"0F0,0F1,,0B0,,0B1\", \",1F0,1B0,1F1,1B1,\"]";
        assert_eq!(read(csv), read("schedule = [\"0F0 0F1 0B0 0B1\", \"1F0 1B0 1F1 1B1\"]"));
    }

    #[test]
    fn faults_of_the_actions_are_named() {
        let check = |text: &str, expected: &str| {
            let error = toml::from_str::<File>(text).unwrap_err().to_string();
            assert!(error.contains(expected), "{error}");
        };
        check("schedule = [\"0F0 0B0\", \"1F0\"]", "schedule: 1I0 is missing");
        check("schedule = 3", "expected the name of a schedule or a list of actions");
        check("schedule = [\"\"]", "schedule: a list has the actions of each rank");
        check("schedule = [\"0F0 0X0\"]", "schedule: line 1: `0X0` is not an action");
    }
}
