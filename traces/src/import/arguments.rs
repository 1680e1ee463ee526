//! Arguments as they stand in a command, a shell script or a file with one a line.

use super::Request;
use std::cell::RefCell;
use std::collections::{BTreeMap, BTreeSet};
use std::str::FromStr;
use trainwright_spec::error::SpecError;

/// Flags with their values. Of a flag that stands there twice the last counts, as in Python's argparse.
pub struct Arguments<'a> {
    request: &'a Request<'a>,
    flags: BTreeMap<String, Vec<String>>,
    asked: RefCell<BTreeSet<String>>,
}

impl<'a> Arguments<'a> {
    /// Reads words that begin with `--` and what follows them. Other words at the beginning, such as the command, and
    /// the brackets of shell arrays are skipped; `$NAME` stands for what `NAME=` says before it.
    ///
    /// # Errors
    /// `Syntax` if a quote is not closed.
    pub fn read(request: &'a Request<'a>) -> Result<Self, SpecError> {
        let text = request.text.replace("\\\r\n", " ").replace("\\\n", " ");
        let words = shlex::split(&text).ok_or_else(|| SpecError::Syntax {
            origin: request.origin.into(),
            message: "a quote is not closed".into(),
        })?;
        let mut variables: BTreeMap<String, String> = BTreeMap::new();
        let mut flags = BTreeMap::new();
        let mut open: Option<String> = None;
        for word in words {
            let word = substituted(&word, &variables);
            let word = word.trim_end_matches(')');
            if let Some(flag) = word.strip_prefix("--").filter(|flag| !flag.is_empty()) {
                let (name, value) =
                    flag.split_once('=').map_or((flag, None), |(n, v)| (n, Some(v.to_string())));
                // torchrun and argparse spell names with either.
                let name = format!("--{}", name.replace('_', "-"));
                flags.insert(name.clone(), value.iter().cloned().collect::<Vec<String>>());
                open = value.is_none().then_some(name);
            } else if let Some((name, value)) = assignment(word) {
                variables.insert(name, value);
                open = None;
            } else if word.is_empty() || word.starts_with("${") || word.ends_with(".py") {
                open = None;
            } else if let Some(name) = &open {
                flags.entry(name.clone()).or_default().push(word.to_string());
            }
        }
        Ok(Arguments { request, flags, asked: RefCell::default() })
    }

    /// The values of a flag; none where it is not given.
    pub fn list(&self, flag: &str) -> Option<&[String]> {
        self.asked.borrow_mut().insert(flag.into());
        self.flags.get(flag).map(Vec::as_slice)
    }

    /// Whether a flag is given.
    pub fn has(&self, flag: &str) -> bool {
        self.list(flag).is_some()
    }

    /// The value of a flag as text.
    pub fn text(&self, flag: &str) -> Option<&str> {
        self.list(flag)?.first().map(String::as_str)
    }

    /// The value of a flag as a number of any type.
    ///
    /// # Errors
    /// `BadValue` if it is none.
    pub fn number<T: FromStr>(&self, flag: &str) -> Result<Option<T>, SpecError> {
        let Some(values) = self.list(flag) else { return Ok(None) };
        let text = values.first().map_or("", String::as_str);
        let number =
            text.parse().map_err(|_| self.request.bad(flag, quoted(text), "a number should stand here"));
        number.map(Some)
    }

    /// The value of a flag as a number of things, `missing` if it is not given.
    ///
    /// # Errors
    /// `BadValue` if it is no number from 1 on.
    pub fn count_or(&self, flag: &str, missing: usize) -> Result<usize, SpecError> {
        match self.number(flag)? {
            Some(0) => Err(self.request.bad(flag, 0, "it must be at least 1")),
            number => Ok(number.unwrap_or(missing)),
        }
    }

    /// The value of a flag that must be given.
    ///
    /// # Errors
    /// `MissingKey` and `BadValue`.
    pub fn count(&self, flag: &str) -> Result<usize, SpecError> {
        match self.has(flag) {
            true => self.count_or(flag, 1),
            false => Err(self.request.missing(flag, "a number should stand there")),
        }
    }

    /// Flags that nobody asked for.
    pub fn unread(&self) -> Vec<String> {
        let asked = self.asked.borrow();
        self.flags.keys().filter(|flag| !asked.contains(*flag)).cloned().collect()
    }
}

/// A text in the quotes of messages.
pub fn quoted(text: &str) -> String {
    format!("`{text}`")
}

/// `NAME=value`; an array's bracket is no value.
fn assignment(word: &str) -> Option<(String, String)> {
    let (name, value) = word.split_once('=')?;
    let is_name =
        !name.is_empty() && name.chars().all(|letter| letter.is_ascii_alphanumeric() || letter == '_');
    is_name.then(|| (name.into(), value.into()))
}

/// A word with the variables in it replaced; one that nobody set stays.
fn substituted(word: &str, variables: &BTreeMap<String, String>) -> String {
    let mut text = word.to_string();
    // The longest names first: $GPUS is not the beginning of $GPUS_PER_NODE.
    for (name, value) in variables.iter().rev() {
        text = text.replace(&format!("${{{name}}}"), value).replace(&format!("${name}"), value);
    }
    text
}
