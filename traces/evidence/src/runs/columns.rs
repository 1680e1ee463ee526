//! The columns of tables of runs: which there are, and which one a key of a plan is from.

use super::Run;
use super::rl::PHASE_COLUMNS;
use serde::Deserialize;
use serde::de::value::Error;
use serde::de::{Deserializer, Visitor};
use serde::forward_to_deserialize_any;
use std::sync::LazyLock;
use trainwright_spec::error::SpecError;

/// Keys of a plan, and the columns that their values are from; a key that begins another one is after it.
const KEYS: [(&str, &str); 25] = [
    ("model.blocks.block.attention.kv_heads", "kv_heads"),
    ("model.blocks.block.attention.heads", "heads"),
    ("model.blocks.block.mlp.experts.per_token", "top_k"),
    ("model.blocks.block.mlp.experts.count", "num_experts"),
    ("model.blocks.block.mlp.width", "ffn_hidden"),
    ("model.blocks.count", "layers"),
    ("model.hidden", "hidden"),
    ("model.vocab", "vocab"),
    ("mesh.expert_tensor", "etp"),
    ("mesh.expert_inner", "ep"),
    ("mesh.expert", "ep"),
    ("mesh.tensor_rows", "tp"),
    ("mesh.tensor", "tp"),
    ("mesh.pipeline", "pp"),
    ("mesh.context_inner", "cp"),
    ("mesh.context", "cp"),
    ("mesh.data", "dp"),
    ("mesh.shard", "data_sharding"),
    ("virtual_stages", "vp"),
    ("job.sequence", "seq_len"),
    ("job.global_batch", "global_batch"),
    ("job.precision", "precision"),
    ("cluster.node.nics.bandwidth", "node_network_gbps"),
    ("cluster.node.gpus", "gpus_per_node"),
    ("stack.attention", "attention_kernel"),
];

/// Columns of the published tables that no forecast is made from.
const NOT_READ: [&str; 12] = [
    "assumed",
    "framework_version",
    "measured_mfu_pct",
    "measured_samples_per_s",
    "measured_tflops_per_gpu",
    "mfu_pct",
    "ref_time_s",
    "statement",
    "tflops_definition",
    "total_time_h",
    "train_tp",
    "trainable_params_m",
];

/// Every column that is known.
pub(super) fn known() -> impl Iterator<Item = &'static str> + Clone {
    READ.iter().copied().chain(NOT_READ).chain(PHASE_COLUMNS.iter().map(|(name, _)| *name))
}

/// What is wrong with a plan, in the words of the row that it was made from.
pub(super) fn fault(error: &SpecError) -> String {
    let SpecError::BadValue { key, value, allowed, .. } = error else { return error.to_string() };
    let column = KEYS.iter().find(|(known, _)| known == key).map_or(key.as_str(), |(_, column)| *column);
    let in_columns = |text: String, (key, column): &(&str, &str)| {
        text.replace(&format!("`{key}`"), key).replace(key, &format!("`{column}`"))
    };
    let allowed = KEYS.iter().fold(allowed.clone(), in_columns);
    format!("`{column}` is {value}; {allowed}")
}

/// The columns that rows are read from: the fields of `Run`.
static READ: LazyLock<&'static [&'static str]> = LazyLock::new(|| {
    let mut fields = Fields(&[]);
    // It reads no row: the names of the fields are all that is asked for.
    let _ = Run::deserialize(&mut fields);
    fields.0
});

/// Takes down the names of a struct's fields.
struct Fields(&'static [&'static str]);

impl<'de> Deserializer<'de> for &mut Fields {
    type Error = Error;

    fn deserialize_any<V: Visitor<'de>>(self, _: V) -> Result<V::Value, Error> {
        Err(serde::de::Error::custom("no value"))
    }

    fn deserialize_struct<V: Visitor<'de>>(
        self,
        _: &'static str,
        fields: &'static [&'static str],
        visitor: V,
    ) -> Result<V::Value, Error> {
        self.0 = fields;
        self.deserialize_any(visitor)
    }

    forward_to_deserialize_any! {
        bool i8 i16 i32 i64 u8 u16 u32 u64 f32 f64 char str string bytes byte_buf option unit unit_struct
        newtype_struct seq tuple tuple_struct map enum identifier ignored_any
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::columns::unknown;
    use csv::Reader;

    /// A key's column is that of the longest key that the text has there.
    #[test]
    fn keys_of_plans_are_columns() {
        let check = |key: &str, allowed: &str, expected: &str| {
            let (key, allowed) = (key.to_string(), allowed.to_string());
            let error = SpecError::BadValue { origin: String::new(), key, value: "64".into(), allowed };
            assert_eq!(fault(&error), expected);
        };
        check("mesh.tensor", "the model has 16 heads", "`tp` is 64; the model has 16 heads");
        check(
            "job.sequence",
            "with sequence_parallel it must divide by mesh.tensor = 7",
            "`seq_len` is 64; with sequence_parallel it must divide by `tp` = 7",
        );
        check(
            "mesh.shard",
            "it must divide `mesh.context` x mesh.data",
            "`data_sharding` is 64; it must divide `cp` x `dp`",
        );
        check("mesh.expert_tensor", "", "`etp` is 64; ");
        check("schedule", "", "`schedule` is 64; ");
        for (index, (key, column)) in KEYS.iter().enumerate() {
            assert!(READ.contains(column), "{column}");
            assert!(!KEYS[..index].iter().any(|(before, _)| key.starts_with(before)), "{key} is hidden");
        }
    }

    #[test]
    fn columns_of_the_published_tables_are_known() {
        for name in ["training.csv", "statements.csv", "post_training/training.csv", "post_training/rl.csv"] {
            let path = format!("{}/../published/{name}", env!("CARGO_MANIFEST_DIR"));
            let mut reader = Reader::from_path(path).unwrap();
            assert_eq!(unknown(reader.headers().unwrap().iter(), known()), [], "{name}");
        }
    }
}
