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

    /// Whether the author wrote this key, a path with dots through tables.
    pub fn has(&self, path: &str) -> bool {
        let mut table = Some(self.root.get_ref());
        path.split('.').all(|part| {
            let value = table.and_then(|table| table.get(part));
            table = value.and_then(|value| value.get_ref().as_table());
            value.is_some()
        })
    }

    /// Where the deepest written part of the path stands; `None` if not even its first key was written.
    fn find(&self, path: &str) -> Option<Range<usize>> {
        let mut parts = path.split('.');
        let (key, mut value) = self.root.get_ref().get_key_value(parts.next()?)?;
        let mut found = key.span();
        for part in parts {
            match value.get_ref() {
                DeValue::Table(table) => match table.get_key_value(part) {
                    Some((key, inner)) => (found, value) = (key.span(), inner),
                    None => break,
                },
                DeValue::Array(array) => match part.parse().ok().and_then(|index: usize| array.get(index)) {
                    Some(inner) => (found, value) = (inner.span(), inner),
                    None => break,
                },
                _ => break,
            }
        }
        Some(found)
    }
}

/// The path of the deepest key whose name or value covers this offset.
fn key_at(table: &DeTable, offset: usize) -> Option<String> {
    let covers = |range: Range<usize>| range.contains(&offset);
    table.iter().find_map(|(key, value)| match below(value, offset) {
        Some(below) => Some(format!("{}.{below}", key.get_ref())),
        None => (covers(key.span()) || covers(value.span())).then(|| key.get_ref().to_string()),
    })
}

/// The path within a value; entries of an array count from 0.
fn below(value: &Spanned<DeValue>, offset: usize) -> Option<String> {
    match value.get_ref() {
        DeValue::Table(inner) => key_at(inner, offset),
        DeValue::Array(array) => {
            array.iter().enumerate().find_map(|(index, inner)| match below(inner, offset) {
                Some(below) => Some(format!("{index}.{below}")),
                None => inner.span().contains(&offset).then(|| index.to_string()),
            })
        }
        _ => None,
    }
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
