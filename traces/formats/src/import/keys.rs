//! Which keys of a file decide which choices of its plan, so that what the plan's check refuses is said of the file.
//!
//! An importer has one table of them. The plan's key and value stand behind what is allowed: they are what the check
//! is about, and a key of the file need not have the same values.

use trainwright_spec::error::SpecError;

/// Keys of plans, or the beginnings of them up to a dot, each with a key of the tool's files. Of several keys for a
/// choice the first that a file sets to more than `NEUTRAL` counts; the more special choice stands first.
pub type Keys = &'static [(&'static str, &'static str)];

/// A key of a file that decides a choice of its plan.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct FileKey {
    /// The choice, as in `Keys`.
    pub choice: &'static str,
    /// The key of the file.
    pub key: &'static str,
    /// Its value there as messages show it; `None` if the file does not have it.
    pub value: Option<String>,
}

/// Values of keys that leave a choice to others.
const NEUTRAL: [&str; 4] = ["false", "0", "1", "`none`"];

impl FileKey {
    fn decides(&self, choice: &str) -> bool {
        let rest = choice.strip_prefix(self.choice);
        rest.is_some_and(|rest| rest.is_empty() || rest.starts_with('.'))
    }

    /// How likely it is that this key is meant.
    fn weight(&self) -> usize {
        match self.value.as_deref() {
            None => 0,
            Some(value) if NEUTRAL.contains(&value) => 1,
            Some(_) => 2,
        }
    }
}

/// What the check of a plan refuses, said of the key of the file that decides it; as it is if no key is known.
pub fn in_file(fault: SpecError, keys: &[FileKey]) -> SpecError {
    let SpecError::BadValue { origin, key, value, allowed } = fault else { return fault };
    // The first of the likeliest: `max_by_key` takes the last.
    let deciding = keys.iter().rev().filter(|file| file.decides(&key));
    let Some(file) = deciding.max_by_key(|file| file.weight()) else {
        return SpecError::BadValue { origin, key, value, allowed };
    };
    let shown = file.value.clone().unwrap_or_else(|| "not given".into());
    let allowed = match shown.trim_matches('`') == value.trim_matches('`') {
        true => allowed,
        false => format!("{allowed} (`{key}` of the plan is {value})"),
    };
    SpecError::BadValue { origin, key: file.key.into(), value: shown, allowed }
}

/// The longest value of a file in a message.
const LONGEST: usize = 60;

/// A value of a file, cut to what fits into a message.
pub fn shortened(value: &str) -> String {
    match value.char_indices().nth(LONGEST) {
        Some((end, _)) => format!("{}…", &value[..end]),
        None => value.into(),
    }
}
