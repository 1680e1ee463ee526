//! Model, cluster and software of a plan: each as a full table, as plans are written, or by its name in the catalog,
//! `cluster = "dgx-a100:2"`, as people write them. An entry of which one thing differs is
//! `cluster = { base = "dgx-a100:2", calibration = "published" }`.

use crate::cluster::Cluster;
use crate::error::SpecError;
use crate::model::{Model, preset::preset};
use crate::stack::Stack;
use serde::de::value::MapAccessDeserializer;
use serde::de::{
    DeserializeOwned, DeserializeSeed, Deserializer, Error, IntoDeserializer, MapAccess, Visitor,
};
use serde::{Serialize, Serializer};
use std::fmt;
use std::marker::PhantomData;

/// The key of the entry's name in a table that says what differs from it.
pub(super) const BASE: &str = "base";

/// A type whose values the catalog has by name.
pub(crate) trait Named: DeserializeOwned + Serialize + PartialEq {
    /// Its kind in messages.
    const WHAT: &'static str;

    /// The entry of that name.
    fn named(name: &str) -> Result<Self, SpecError>;

    /// The value's own name.
    fn name(&self) -> &str;

    /// Changes what may differ from the entry; the keys that it knows, for another one.
    fn set(&mut self, _key: &str, _value: String) -> Result<(), &'static str> {
        Err("nothing")
    }
}

impl Named for Model {
    const WHAT: &'static str = "a model";

    fn named(name: &str) -> Result<Self, SpecError> {
        preset(name)
    }

    fn name(&self) -> &str {
        &self.name
    }
}

impl Named for Cluster {
    const WHAT: &'static str = "a cluster";

    fn named(name: &str) -> Result<Self, SpecError> {
        Cluster::from_name(name)
    }

    fn name(&self) -> &str {
        &self.name
    }

    fn set(&mut self, key: &str, value: String) -> Result<(), &'static str> {
        match key {
            "calibration" => {
                self.calibration = Some(value);
                Ok(())
            }
            _ => Err("`calibration`"),
        }
    }
}

impl Named for Stack {
    const WHAT: &'static str = "a stack";

    fn named(name: &str) -> Result<Self, SpecError> {
        Stack::from_name(name)
    }

    fn name(&self) -> &str {
        &self.name
    }
}

/// Writes the name of the catalog's entry that is equal, or else a table.
pub(crate) fn write<T: Named, S: Serializer>(value: &T, serializer: S) -> Result<S::Ok, S::Error> {
    match T::named(value.name()).is_ok_and(|entry| entry == *value) {
        true => serializer.serialize_str(value.name()),
        false => value.serialize(serializer),
    }
}

/// Reads a table or a name.
pub(crate) fn read<'de, T: Named, D: Deserializer<'de>>(deserializer: D) -> Result<T, D::Error> {
    deserializer.deserialize_any(NameOrTable(PhantomData))
}

struct NameOrTable<T>(PhantomData<T>);

impl<'de, T: Named> Visitor<'de> for NameOrTable<T> {
    type Value = T;

    fn expecting(&self, f: &mut fmt::Formatter) -> fmt::Result {
        write!(f, "the table of {} or its name in the catalog", T::WHAT)
    }

    fn visit_str<E: Error>(self, name: &str) -> Result<T, E> {
        T::named(name).map_err(|error| match error {
            SpecError::BadValue { key, value, allowed, .. } => {
                E::custom(format!("`{key}` is {value}; {allowed}"))
            }
            other => E::custom(other),
        })
    }

    fn visit_map<A: MapAccess<'de>>(self, mut table: A) -> Result<T, A::Error> {
        let first: Option<String> = table.next_key()?;
        if first.as_deref() != Some(BASE) {
            return T::deserialize(MapAccessDeserializer::new(WithFirst { first, rest: table }));
        }
        let mut entry = self.visit_str(&table.next_value::<String>()?)?;
        while let Some(key) = table.next_key::<String>()? {
            entry.set(&key, table.next_value()?).map_err(|known| {
                A::Error::custom(format!("`{key}` is unknown beside `{BASE}`, where {known} may stand"))
            })?;
        }
        Ok(entry)
    }
}

/// A table whose first key has been read.
struct WithFirst<A> {
    first: Option<String>,
    rest: A,
}

impl<'de, A: MapAccess<'de>> MapAccess<'de> for WithFirst<A> {
    type Error = A::Error;

    fn next_key_seed<K: DeserializeSeed<'de>>(&mut self, seed: K) -> Result<Option<K::Value>, A::Error> {
        match self.first.take() {
            Some(key) => seed.deserialize(key.into_deserializer()).map(Some),
            None => self.rest.next_key_seed(seed),
        }
    }

    fn next_value_seed<V: DeserializeSeed<'de>>(&mut self, seed: V) -> Result<V::Value, A::Error> {
        self.rest.next_value_seed(seed)
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use serde::{Deserialize, Serialize};

    #[derive(Debug, PartialEq, Serialize, Deserialize)]
    struct File {
        #[serde(deserialize_with = "read")]
        stack: Stack,
        #[serde(deserialize_with = "read")]
        cluster: Cluster,
        #[serde(deserialize_with = "read")]
        model: Model,
    }

    const NAMES: &str = "stack = \"deepspeed\"\ncluster = \"dgx-a100:2\"\nmodel = \"gpt2\"\n";

    #[test]
    fn a_name_is_the_entry_of_the_catalog() {
        let file: File = toml::from_str(NAMES).unwrap();
        assert_eq!(file.stack, Stack::from_name("deepspeed").unwrap());
        assert_eq!(file.cluster, Cluster::from_name("dgx-a100:2").unwrap());
        assert_eq!(file.model, preset("gpt2").unwrap());
        let written = toml::to_string(&file).unwrap();
        assert!(written.contains("[cluster.node.gpu]"), "what is written stands alone");
        assert_eq!(toml::from_str::<File>(&written).unwrap(), file);
    }

    #[test]
    fn an_entry_may_differ_in_its_calibration() {
        let text = NAMES.replace("\"dgx-a100:2\"", "{ base = \"dgx-a100:2\", calibration = \"none\" }");
        let cluster = toml::from_str::<File>(&text).unwrap().cluster;
        let named = Cluster::from_name("dgx-a100:2").unwrap();
        assert_eq!(cluster, Cluster { calibration: Some("none".into()), ..named });
        let error = toml::from_str::<File>(&text.replace("calibration", "nodes")).unwrap_err().to_string();
        assert!(error.contains("`nodes` is unknown beside `base`, where `calibration` may stand"), "{error}");
    }

    #[test]
    fn what_is_wrong_is_said_with_its_line() {
        let check = |from: &str, to: &str, line: &str, message: &str| {
            let error = toml::from_str::<File>(&NAMES.replace(from, to)).unwrap_err().to_string();
            assert!(error.contains(line) && error.contains(message), "{error}");
        };
        check("gpt2", "gtp2", "line 3", "unknown model `gtp2` (nearest: gpt2");
        check("deepspeed", "deepsped", "line 1", "unknown stack `deepsped` (nearest: deepspeed");
        check("a100:2", "a100:0", "line 2", "`cluster` is `dgx-a100:0`; after the colon stands a number");
        check("\"gpt2\"", "2", "line 3", "expected the table of a model or its name in the catalog");
        check("\"gpt2\"", "{ name = 1 }", "line 3", "invalid type: integer `1`, expected a string");
        check("\"gpt2\"", "{ heads = 1 }", "line 3", "unknown field `heads`");
    }
}
