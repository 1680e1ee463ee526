//! Arguments of a command, a shell script or a file with one a line.

use super::keys::{FileKey, Keys, shortened};
use super::{Imported, Request, arithmetic};
use std::cell::RefCell;
use std::collections::{BTreeMap, BTreeSet};
use trainwright_spec::error::SpecError;
use trainwright_spec::limits::Count;
use trainwright_spec::plan::Plan;

/// Flags with their values. The last of repeated flags counts, as in Python's argparse.
pub struct Arguments<'a> {
    request: &'a Request<'a>,
    flags: BTreeMap<String, Vec<String>>,
    /// What a script sets.
    variables: BTreeMap<String, String>,
    read: RefCell<BTreeSet<String>>,
    assumed: RefCell<Vec<String>>,
}

impl<'a> Arguments<'a> {
    /// Reads words that begin with `--` and what follows them. Other words at the beginning, like the command, and
    /// the brackets of shell arrays are skipped; `$NAME` stands for the value of an earlier `NAME=`, and `$((…))` for
    /// that of its expression.
    ///
    /// # Errors
    /// `Syntax` if a quote is not closed, or a variable stands for more than `LONGEST_WORD` letters.
    pub fn read(request: &'a Request<'a>) -> Result<Self, SpecError> {
        // A comment ends with its line, even if that ends with a backslash.
        let is_comment = |line: &&str| line.trim_start().starts_with('#');
        let lines: Vec<&str> = request.text.lines().filter(|line| !is_comment(line)).collect();
        let text = arithmetic::without_blanks(&lines.join("\n").replace("\\\n", " "));
        let words = shlex::split(&text).ok_or_else(|| SpecError::Syntax {
            origin: request.origin.into(),
            message: "a quote is not closed".into(),
        })?;
        let mut variables: BTreeMap<String, String> = BTreeMap::new();
        let mut flags = BTreeMap::new();
        let mut open: Option<String> = None;
        for word in words {
            let word = substituted(&word, &variables).ok_or_else(|| SpecError::Syntax {
                origin: request.origin.into(),
                message: format!("a word with its variables has more than {LONGEST_WORD} letters"),
            })?;
            // An array's element `"--flag value"` is a flag and its value, as the shell splits it again.
            let parts: Vec<&str> = match word.trim_start().starts_with("--") {
                true => word.split_whitespace().collect(),
                false => vec![&word],
            };
            for part in parts {
                // `NAME=(--flag` begins an array.
                let (array, rest) = part.split_once("=(").map_or(("", part), |(name, rest)| (name, rest));
                if !array.is_empty() {
                    open = None;
                }
                Self::word(rest, &mut variables, &mut flags, &mut open);
            }
        }
        Ok(Self { variables, ..Self::of_flags(request, flags) })
    }

    /// Adds a word of a script.
    fn word(
        word: &str,
        variables: &mut BTreeMap<String, String>,
        flags: &mut BTreeMap<String, Vec<String>>,
        open: &mut Option<String>,
    ) {
        {
            let word = match word.starts_with('(') {
                true => word.trim_end_matches(')'),
                false => without_closing(word),
            };
            if let Some(flag) = word.strip_prefix("--").filter(|flag| !flag.is_empty()) {
                let (name, value) =
                    flag.split_once('=').map_or((flag, None), |(n, v)| (n, Some(v.to_string())));
                // torchrun and argparse spell names with either.
                let name = format!("--{}", name.replace('_', "-"));
                flags.insert(name.clone(), value.iter().cloned().collect::<Vec<String>>());
                *open = value.is_none().then_some(name);
            } else if let Some((name, value)) = assignment(word) {
                variables.insert(name, value);
                *open = None;
            } else if word.is_empty()
                || word.starts_with("${")
                || word.ends_with(".py")
                || word.contains("=(")
                || KEYWORDS.contains(&word)
            {
                *open = None;
            } else if let Some(name) = &*open {
                flags.entry(name.clone()).or_default().push(word.to_string());
            }
        }
    }

    /// Flags that were found by other means.
    pub fn of_flags(request: &'a Request<'a>, mut flags: BTreeMap<String, Vec<String>>) -> Self {
        for (name, value) in &request.settings {
            let name = format!("--{}", name.trim_start_matches('-').replace('_', "-"));
            match value.as_str() {
                "false" => drop(flags.remove(&name)),
                "true" => drop(flags.insert(name, Vec::new())),
                value => drop(flags.insert(name, value.split_whitespace().map(String::from).collect())),
            }
        }
        let variables = BTreeMap::new();
        Arguments { request, flags, variables, read: RefCell::default(), assumed: RefCell::default() }
    }

    /// With further flags, which replace those of the same name.
    pub fn with(mut self, flags: Vec<(&str, &str)>) -> Self {
        for (flag, value) in flags {
            let values = value.split_whitespace().map(String::from).collect();
            self.flags.insert(flag.into(), values);
        }
        self
    }

    /// The values of a flag; `None` if it is not given.
    pub fn list(&self, flag: &str) -> Option<&[String]> {
        self.read.borrow_mut().insert(flag.into());
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

    /// The value of a flag as a finite number.
    ///
    /// # Errors
    /// `BadValue` if it is none.
    pub fn number(&self, flag: &str) -> Result<Option<f64>, SpecError> {
        let finite = |text: &str| text.parse().ok().filter(|number: &f64| number.is_finite());
        self.parsed(flag, "a number should stand here", finite)
    }

    /// The value of a flag as a number that counts something.
    ///
    /// # Errors
    /// `BadValue` if it is none, or not between the limits.
    pub fn optional_count(&self, flag: &str, count: Count) -> Result<Option<usize>, SpecError> {
        let allowed = |text: &str| text.parse().ok().filter(|number| count.allows(*number));
        Ok(self.parsed(flag, &count.expected(), allowed)?.map(|number| number as usize))
    }

    fn parsed<T>(
        &self,
        flag: &str,
        allowed: &str,
        parse: impl Fn(&str) -> Option<T>,
    ) -> Result<Option<T>, SpecError> {
        let Some(values) = self.list(flag) else { return Ok(None) };
        let text = values.first().map_or("", String::as_str);
        let bad = || match arithmetic::fault(text, &self.variables) {
            Some(fault) => self.request.bad_text(flag, text, format!("{fault}; {allowed}")),
            None => self.request.bad_text(flag, text, allowed),
        };
        parse(text).map(Some).ok_or_else(bad)
    }

    /// The value of a flag as a count, `missing` if it is not given.
    ///
    /// # Errors
    /// As `optional_count`.
    pub fn count_or(&self, flag: &str, missing: usize, count: Count) -> Result<usize, SpecError> {
        Ok(self.optional_count(flag, count)?.unwrap_or(missing))
    }

    /// The value of a flag that must be given.
    ///
    /// # Errors
    /// `MissingKey`, and as `optional_count`.
    pub fn count(&self, flag: &str, count: Count) -> Result<usize, SpecError> {
        let given = self.optional_count(flag, count)?;
        given.ok_or_else(|| self.request.missing(flag, count.expected()))
    }

    /// Notes that a flag is not given and `value` was taken.
    pub fn assume(&self, flag: &str, value: impl ToString) {
        self.assumed.borrow_mut().push(format!("{flag} {}", value.to_string()));
    }

    /// Refuses flags that exclude each other.
    ///
    /// # Errors
    /// `BadValue` with the first two that are both given.
    pub fn exclude(&self, pairs: &[(&str, &str)]) -> Result<(), SpecError> {
        match pairs.iter().find(|(one, other)| self.has(one) && self.has(other)) {
            Some((one, other)) => {
                Err(self.request.bad(one, format!("given beside `{other}`"), "only one of them may be given"))
            }
            None => Ok(()),
        }
    }

    /// The plan of the arguments, with what was read and taken, and the flags of `keys`.
    pub fn imported(&self, plan: Plan, keys: Keys) -> Imported {
        let key = |(choice, key): &(&'static str, &'static str)| FileKey {
            choice,
            key,
            value: self.flags.get(*key).map(|values| match values.is_empty() {
                true => "given".into(),
                false => quoted(&shortened(&values.join(" "))),
            }),
        };
        let keys = keys.iter().map(key).collect();
        Imported { plan, unread: self.unread(), assumed: self.assumed.borrow().clone(), keys }
    }

    /// Flags that were not read.
    fn unread(&self) -> Vec<String> {
        let read = self.read.borrow();
        self.flags.keys().filter(|flag| !read.contains(*flag)).cloned().collect()
    }
}

/// A text in the quotes of messages.
pub fn quoted(text: &str) -> String {
    format!("`{text}`")
}

/// A word without the brackets at its end that it does not open: they close an array.
fn without_closing(word: &str) -> &str {
    let [opened, closed] = ['(', ')'].map(|bracket| word.matches(bracket).count());
    let at_end = word.len() - word.trim_end_matches(')').len();
    &word[..word.len() - at_end.min(closed.saturating_sub(opened))]
}

/// Words of the shell that end an argument.
const KEYWORDS: [&str; 8] = ["if", "then", "else", "elif", "fi", "[[", "]]", "torchrun"];

/// `NAME=value`; an array's bracket is no value.
fn assignment(word: &str) -> Option<(String, String)> {
    let (name, value) = word.split_once('=')?;
    if value.starts_with('(') {
        return None;
    }
    let is_name =
        !name.is_empty() && name.chars().all(|letter| letter.is_ascii_alphanumeric() || letter == '_');
    is_name.then(|| (name.into(), value.into()))
}

/// Letters of a word once its variables are replaced: variables that stand for two of the one before would double it
/// without end.
const LONGEST_WORD: usize = 1 << 16;

/// A word with the variables and the arithmetic in it replaced; what has no value stays. `None` if it becomes longer than
/// `LONGEST_WORD`.
fn substituted(word: &str, variables: &BTreeMap<String, String>) -> Option<String> {
    let mut text = word.to_string();
    // The longest names first: $GPUS is not the beginning of $GPUS_PER_NODE.
    for (name, value) in variables.iter().rev() {
        for written in [format!("${{{name}}}"), format!("${name}")] {
            let longer = text.matches(&written).count().saturating_mul(value.len());
            if longer > LONGEST_WORD {
                return None;
            }
            text = text.replace(&written, value);
        }
    }
    Some(arithmetic::evaluated(&with_defaults(&text), variables))
}

/// `${NAME:-value}` of a variable that is not set is its value.
fn with_defaults(text: &str) -> String {
    let mut out = String::new();
    let mut rest = text;
    while let Some(start) = rest.find("${") {
        let Some(length) = rest[start..].find('}') else { break };
        let inside = &rest[start + 2..start + length];
        out += &rest[..start];
        match inside.split_once(":-") {
            Some((_, value)) => out += value.trim_matches('"'),
            None => out += &rest[start..start + length + 1],
        }
        rest = &rest[start + length + 1..];
    }
    out + rest
}
