//! A kernel's shape as text: `m=8192 n=8192 k=4096`.

use crate::model::Mask;
use crate::precision::Precision;
use crate::program::{Access, Direction, FlashVersion, FusedAttention, Kernel};
use crate::units::Bytes;
use std::collections::BTreeMap;

/// Names of the kinds of kernels in a profile.
const KINDS: [&str; 5] = ["gemm", "attention-forward", "attention-backward", "elementwise", "reduction"];

/// The kernel of that kind and shape.
///
/// # Errors
/// A sentence that says what is wrong with it.
pub(super) fn read(kind: &str, shape: &str, precision: Precision) -> Result<Kernel, String> {
    let mut sizes = Sizes::new(kind, shape)?;
    let kernel = match kind {
        "gemm" => Kernel::Gemm {
            count: sizes.number_or("count", 1)?,
            m: sizes.number("m")?,
            n: sizes.number("n")?,
            k: sizes.number("k")?,
            precision,
            adds_to: sizes.optional_number("adds_to")?.map(|bytes| Bytes::new(bytes as f64)),
        },
        "attention-forward" | "attention-backward" => {
            let head_dim = sizes.number("head_dim")?;
            Kernel::FusedAttention(FusedAttention {
                direction: match kind {
                    "attention-forward" => Direction::Forward,
                    _ => Direction::Backward,
                },
                batch: sizes.number("batch")?,
                heads: sizes.number("heads")?,
                kv_heads: sizes.number("kv_heads")?,
                queries: sizes.number("queries")?,
                keys: sizes.number("keys")?,
                head_dim,
                value_head_dim: sizes.number_or("value_head_dim", head_dim)?,
                mask: mask(sizes.word("mask").unwrap_or("full"))?,
                precision,
                version: version(sizes.word("version").unwrap_or("best"))?,
            })
        }
        "elementwise" | "reduction" => Kernel::Streaming {
            access: if kind == "reduction" { Access::Reduction } else { Access::Elementwise },
            read: Bytes::new(sizes.number("bytes")? as f64),
            written: Bytes::ZERO,
        },
        _ => return Err(format!("unknown kernel `{kind}`, expected one of {}", KINDS.join(", "))),
    };
    match sizes.words.first_key_value() {
        Some((name, _)) => Err(format!("{} has no `{name}`", with_article(kind))),
        None => Ok(kernel),
    }
}

/// Kind, shape and precision of a kernel, so that `read` gives it back; of a memory-bound one the bytes in both
/// directions together.
pub(super) fn write(kernel: &Kernel) -> (&'static str, String, Precision) {
    match *kernel {
        Kernel::Gemm { count, m, n, k, precision, adds_to } => {
            let count = if count == 1 { String::new() } else { format!("count={count} ") };
            let adds_to = adds_to.map_or(String::new(), |bytes| format!(" adds_to={}", bytes.get()));
            ("gemm", format!("{count}m={m} n={n} k={k}{adds_to}"), precision)
        }
        Kernel::FusedAttention(attention) => {
            let FusedAttention { batch, heads, kv_heads, queries, keys, head_dim, value_head_dim, .. } =
                attention;
            let kind = match attention.direction {
                Direction::Forward => "attention-forward",
                Direction::Backward => "attention-backward",
            };
            let mask = match attention.mask {
                Mask::Full => "full".to_string(),
                Mask::Causal => "causal".to_string(),
                Mask::Window(window) => format!("window:{window}"),
            };
            let shape = format!(
                "batch={batch} heads={heads} kv_heads={kv_heads} queries={queries} keys={keys} head_dim={head_dim} \
                 value_head_dim={value_head_dim} mask={mask} version={}",
                attention.version.name()
            );
            (kind, shape, attention.precision)
        }
        Kernel::Streaming { access, read, written } => {
            let kind = match access {
                Access::Elementwise => "elementwise",
                Access::Reduction => "reduction",
            };
            // Bytes are moved whatever they mean; every format needs a name.
            (kind, format!("bytes={}", (read + written).get()), Precision::Bf16)
        }
    }
}

fn mask(word: &str) -> Result<Mask, String> {
    match (word, word.strip_prefix("window:").map(str::parse)) {
        ("full", _) => Ok(Mask::Full),
        ("causal", _) => Ok(Mask::Causal),
        (_, Some(Ok(window))) if window > 0 => Ok(Mask::Window(window)),
        _ => Err(format!("unknown mask `{word}`, expected full, causal or window:N")),
    }
}

fn version(word: &str) -> Result<FlashVersion, String> {
    let all = [FlashVersion::Best, FlashVersion::First, FlashVersion::Second, FlashVersion::Third];
    let found = all.into_iter().find(|version| version.name() == word);
    let names = || all.map(FlashVersion::name).join(", ");
    found.ok_or_else(|| format!("unknown version `{word}`, expected one of {}", names()))
}

fn with_article(kind: &str) -> String {
    let article = if kind == "gemm" || kind == "reduction" { "a" } else { "an" };
    format!("{article} {kind}")
}

/// The sizes that have not been read yet.
struct Sizes<'a> {
    kind: &'a str,
    words: BTreeMap<&'a str, &'a str>,
}

impl<'a> Sizes<'a> {
    fn new(kind: &'a str, shape: &'a str) -> Result<Self, String> {
        let mut words = BTreeMap::new();
        for word in shape.split_whitespace() {
            let (name, value) =
                word.split_once('=').ok_or_else(|| format!("`{word}` is not `name=value`"))?;
            if words.insert(name, value).is_some() {
                return Err(format!("`{name}` is given twice"));
            }
        }
        Ok(Self { kind, words })
    }

    fn word(&mut self, name: &str) -> Option<&'a str> {
        self.words.remove(name)
    }

    fn number(&mut self, name: &str) -> Result<usize, String> {
        let value = self.word(name).ok_or_else(|| format!("{} needs `{name}`", with_article(self.kind)))?;
        let number = value.parse().ok().filter(|number| *number > 0);
        number.ok_or_else(|| format!("`{name}={value}` is no whole number above 0"))
    }

    fn optional_number(&mut self, name: &str) -> Result<Option<usize>, String> {
        if self.words.contains_key(name) { self.number(name).map(Some) } else { Ok(None) }
    }

    fn number_or(&mut self, name: &str, otherwise: usize) -> Result<usize, String> {
        if self.words.contains_key(name) { self.number(name) } else { Ok(otherwise) }
    }
}
