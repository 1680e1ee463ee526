//! Columns of a table that nothing is read from: a misspelt name must not pass for a blank column.

use trainwright_spec::catalog::nearest;

/// A column that no forecast is made from and no published table has.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct UnknownColumn {
    /// Its name.
    pub name: String,
    /// The known one that is spelt most like it, if one is.
    pub nearest: Option<String>,
}

impl UnknownColumn {
    /// One line on all of them, for people; `None` if there are none.
    pub fn remark(unknown: &[Self]) -> Option<String> {
        let names = unknown.iter().map(|Self { name, nearest }| match nearest {
            Some(nearest) => format!("`{name}` (nearest: `{nearest}`)"),
            None => format!("`{name}`"),
        });
        let names: Vec<String> = names.collect();
        (!names.is_empty()).then(|| format!("columns that are not known and not read: {}", names.join(", ")))
    }
}

/// Those of a table's columns that are none of `known`, in order.
pub(crate) fn unknown<'a>(
    headers: impl Iterator<Item = &'a str>,
    known: impl Iterator<Item = &'static str> + Clone,
) -> Vec<UnknownColumn> {
    let unknown = headers.filter(|header| !header.is_empty() && !known.clone().any(|name| name == *header));
    let found = |name: &str| UnknownColumn {
        name: name.into(),
        nearest: nearest(name, known.clone()).into_iter().next(),
    };
    unknown.map(found).collect()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn unknown_columns_come_with_the_nearest_known_one() {
        let known = ["id", "tp", "micro_batch", "gpu"];
        let found = unknown(["id", "microbatch", "tpp", "gpu", "", "zzz"].into_iter(), known.into_iter());
        let names: Vec<(&str, Option<&str>)> =
            found.iter().map(|column| (column.name.as_str(), column.nearest.as_deref())).collect();
        assert_eq!(names, [("microbatch", Some("micro_batch")), ("tpp", Some("tp")), ("zzz", None)]);
        let text = "columns that are not known and not read: `microbatch` (nearest: `micro_batch`), `tpp` (nearest: `tp`), `zzz`";
        assert_eq!(UnknownColumn::remark(&found).as_deref(), Some(text));
        assert_eq!(UnknownColumn::remark(&[]), None);
    }
}
