//! Matrix products, alone and as the linear layers of a transformer block with their operands' quantisation.

use super::{Measured, read};
use serde::Deserialize;
use trainwright_spec::precision::Precision;
use trainwright_spec::program::{Access, Kernel};
use trainwright_spec::units::{Bytes, Seconds};

#[derive(Deserialize)]
struct Row {
    family: String,
    gpu: String,
    precision: Precision,
    count: usize,
    m: usize,
    n: usize,
    k: usize,
    time_us: f64,
    source: String,
}

/// The four products of a block, in the pass that it says.
#[derive(Deserialize)]
struct LayerRow {
    gpu: String,
    precision: Precision,
    scaling: String,
    pass: String,
    casts: String,
    tokens: usize,
    hidden: usize,
    ffn: usize,
    time_us: f64,
    source: String,
}

pub fn rows() -> impl Iterator<Item = Measured> {
    let products = read::<Row>(include_str!("../data/products.csv")).map(product);
    products.chain(read::<LayerRow>(include_str!("../data/layer_products.csv")).map(layer))
}

fn product(row: Row) -> Measured {
    let Row { count, m, n, k, precision, .. } = row;
    let kernel = format!("{} {precision}", row.family);
    let time = Seconds::new(row.time_us * 1e-6);
    Measured::of_kernels(
        row.gpu,
        kernel,
        row.source,
        time,
        &[Kernel::Gemm { count, m, n, k, precision, adds_to: None }],
    )
}

/// Query-key-value, projection and both feed-forward products; with casts, each operand is quantised before, with a pass
/// over it for its largest value where the scale of a whole tensor is that of its values.
fn layer(row: LayerRow) -> Measured {
    let LayerRow { tokens, hidden, ffn, precision, .. } = row;
    let weights = [[hidden, 3 * hidden], [hidden, hidden], [hidden, ffn], [ffn, hidden]];
    let mut kernels = Vec::new();
    for [inner, outer] in weights {
        // Of the product: m, n, k.
        let [m, n, k] = match row.pass.as_str() {
            "forward" => [tokens, outer, inner],
            "input-gradient" => [tokens, inner, outer],
            "weight-gradient" => [inner, outer, tokens],
            other => panic!("unknown pass {other}"),
        };
        kernels.push(Kernel::Gemm { count: 1, m, n, k, precision, adds_to: None });
        let Some(quantisation) = precision.quantisation().filter(|_| row.casts == "yes") else { continue };
        for elements in [(m * k) as f64, (k * n) as f64] {
            let read = precision.storage_bytes() * elements;
            let written = precision.operand_bytes() * elements * quantisation.copies as f64;
            if quantisation.maximum_first || row.scaling == "current" {
                kernels.push(Kernel::Streaming { access: Access::Reduction, read, written: Bytes::ZERO });
            }
            kernels.push(Kernel::Streaming { access: Access::Elementwise, read, written });
        }
    }
    let casts = if row.casts == "yes" { ", casts too" } else { "" };
    let kernel = format!("linear layers {precision}{casts}");
    let time = Seconds::new(row.time_us * 1e-6);
    Measured::of_kernels(row.gpu, kernel, row.source, time, &kernels)
}
