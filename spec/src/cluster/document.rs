//! TOML text that remembers where each key stands, so that an error can name file, line and key.

use crate::error::SpecError;
use serde::de::DeserializeOwned;
use std::ops::Range;
use toml::Spanned;
use toml::de::{DeTable, DeValue, Deserializer, Error};

/// A parsed text as its author wrote it.
pub(super) struct Document<'a> {
    origin: String,
    text: &'a str,
    root: Spanned<DeTable<'a>>,
}

impl<'a> Document<'a> {
    /// Parses `text`; `origin` is the file's name for messages.
    pub fn parse(text: &'a str, origin: &str) -> Result<Self, SpecError> {
        match DeTable::parse(text) {
            Ok(root) => Ok(Self { origin: origin.into(), text, root }),
            Err(error) => Err(SpecError::Syntax {
                origin: place(origin, text, error.span()),
                message: one_line(error.message()),
            }),
        }
    }

    /// A copy of the tables, to fill in what the author left to the catalog.
    pub fn tables(&self) -> Spanned<DeTable<'a>> {
        self.root.clone()
    }

    /// Reads a value out of `tables`, a completed copy of this document's.
    pub fn read<T: DeserializeOwned>(&self, tables: Spanned<DeTable<'a>>) -> Result<T, SpecError> {
        T::deserialize(Deserializer::from(tables)).map_err(|error| self.unreadable(&error))
    }

    /// The error for a value that makes no sense; `key` is a path with dots, perhaps of a key the catalog filled in.
    pub fn refuse(&self, key: &str, value: String, allowed: String) -> SpecError {
        let origin = place(&self.origin, self.text, self.find(key));
        SpecError::BadValue { origin, key: key.into(), value, allowed }
    }

    fn unreadable(&self, error: &Error) -> SpecError {
        let message = match error.span().and_then(|span| key_at(self.root.get_ref(), span.start)) {
            Some(key) => format!("`{key}`: {}", one_line(error.message())),
            None => one_line(error.message()),
        };
        SpecError::Syntax { origin: place(&self.origin, self.text, error.span()), message }
    }

    /// Where the deepest written part of the path stands; none if not even its first key was written.
    fn find(&self, path: &str) -> Option<Range<usize>> {
        let (mut table, mut found) = (Some(self.root.get_ref()), None);
        for part in path.split('.') {
            let Some((key, value)) =
                table.and_then(|table| table.iter().find(|(key, _)| *key.get_ref() == part))
            else {
                break;
            };
            found = Some(key.span());
            table = value.get_ref().as_table();
        }
        found
    }
}

/// The path of the deepest key whose name or value covers this offset.
fn key_at(table: &DeTable, offset: usize) -> Option<String> {
    let covers = |range: Range<usize>| range.contains(&offset);
    table.iter().find_map(|(key, value)| {
        let below = match value.get_ref() {
            DeValue::Table(inner) => key_at(inner, offset),
            _ => None,
        };
        match below {
            Some(below) => Some(format!("{}.{below}", key.get_ref())),
            None => (covers(key.span()) || covers(value.span())).then(|| key.get_ref().to_string()),
        }
    })
}

/// `file.toml:12`, or only the file where no place is known.
fn place(origin: &str, text: &str, span: Option<Range<usize>>) -> String {
    match span {
        Some(span) => {
            let line = text.as_bytes().iter().take(span.start).filter(|byte| **byte == b'\n').count() + 1;
            format!("{origin}:{line}")
        }
        None => origin.into(),
    }
}

fn one_line(message: &str) -> String {
    message.trim().replace('\n', "; ")
}
