//! Reading and writing TOML, compiled in this crate for each type.
//!
//! `toml::from_str` and `toml::to_string` are generic: a crate that calls them for a cluster compiles the readers or writers of
//! everything in a cluster once more, some thirty thousand lines of LLVM's. Call these instead.

use crate::cluster::{Cluster, Gpu, Interconnect, Nics, Node};
use crate::job::Job;
use crate::model::Model;
use crate::plan::Plan;
use crate::stack::Stack;

/// A type with a text in TOML. Nothing is checked beyond the types; `from_toml` of clusters, plans and stacks does that.
pub trait TomlText: Sized {
    /// Reads a text.
    ///
    /// # Errors
    /// Those of TOML, and of types that do not fit.
    fn read(text: &str) -> Result<Self, toml::de::Error>;

    /// Writes a text that reads back equal.
    fn write(&self) -> String;
}

macro_rules! texts {
    ($($type:ty)*) => {$(
        impl TomlText for $type {
            fn read(text: &str) -> Result<Self, toml::de::Error> {
                toml::from_str(text)
            }

            fn write(&self) -> String {
                toml::to_string(self).expect("tables, text and numbers")
            }
        }
    )*};
}

texts! { Cluster Gpu Interconnect Nics Node Job Model Plan Stack }
