//! How long a kernel of an inference library takes: formulas of mechanisms with coefficients fitted to measurements.
//!
//! Each family has a file: its formula, and the coefficients that it takes. The coefficients are data of the catalog
//! (`spec/catalog/libraries`), one set for each kernel, number format and generation of GPUs. What differs between two GPUs
//! of a generation differs in their published figures. Training's kernels are priced in `compute`, not here.
//!
//! ```
//! use trainwright_sim::libraries::{Call, Chip, Operands, Product, Wanted, estimate};
//! use trainwright_spec::{catalog, cluster::Gpu};
//! let gpu: Gpu = toml::from_str(catalog::text("gpu", "h100-80gb-sxm").unwrap()).unwrap();
//! let call = Call::Product(Product { m: 16, n: 8192, k: 8192, operands: Operands::parse("bf16").unwrap() });
//! let found = estimate(&call, &Chip::new(&gpu), &Wanted::default()).unwrap();
//! // 134 MB of weights at 3.35 TB/s take 40 us.
//! assert!((40e-6..60e-6).contains(&found.time.total().get()), "{:?}", found.time);
//! ```

mod all_reduce;
mod call;
mod call_mixers;
mod choice;
mod decode;
mod exchange;
mod experts;
mod family;
mod latent;
mod parts;
mod prefill;
mod product;
mod recurrent;
mod sparse;

pub use call::{AllReduce, Call, Chip, Decode, Exchange, Experts, Latent, Operands, Prefill, Product};
pub use call_mixers::{Convolution, SparseAttention, StateDecode, StatePrefill};
pub(crate) use choice::lacking;
pub use choice::{Estimate, Unknown, Wanted, coefficients, estimate, estimate_with, kernels};
pub use family::{FAMILIES, family};
pub use parts::{Bound, Coefficient, Family, Parts};

#[cfg(test)]
mod tests {
    use super::*;
    use trainwright_spec::catalog;
    use trainwright_spec::cluster::{Cluster, Gpu};
    use trainwright_spec::library::Library;
    use trainwright_spec::units::Bytes;

    fn gpu(name: &str) -> Gpu {
        toml::from_str(catalog::text("gpu", name).unwrap()).unwrap()
    }

    fn bf16() -> Operands {
        Operands::parse("bf16").unwrap()
    }

    /// The parts with these coefficients in microseconds.
    fn check(call: &Call, chip: &Chip, coefficients: &[f64], expected: [f64; 5]) {
        let Parts { latency, arithmetic, memory, links, overhead } = call.parts(chip, coefficients).unwrap();
        for (part, expected) in [latency, arithmetic, memory, links, overhead].into_iter().zip(expected) {
            let found = 1e6 * part.get();
            assert!((found - expected).abs() <= 1e-3 * expected, "{call}: {found} us, not {expected}");
        }
    }

    #[test]
    fn every_family_has_coefficients_in_the_catalog_and_they_are_physical() {
        for known in FAMILIES {
            let kernels = Library::all().iter().flat_map(|library| &library.kernels);
            let mut fitted = kernels.filter(|kernel| kernel.family == known.name).peekable();
            assert!(fitted.peek().is_some(), "no library has a kernel of {}", known.name);
            for kernel in fitted {
                assert_eq!(kernel.coefficients.len(), known.coefficients.len(), "{kernel:?}");
                for coefficient in known.coefficients {
                    let value = kernel.coefficients[coefficient.name];
                    let range = 0.999 * coefficient.low..=1.001 * coefficient.high;
                    assert!(range.contains(&value), "{} is {value}: {kernel:?}", coefficient.name);
                }
            }
        }
    }

    #[test]
    fn formulas_give_what_one_can_compute_by_hand() {
        let h100 = gpu("h100-80gb-sxm");
        // A cache that nothing fits in.
        let chip = Chip { cache: Bytes::ZERO, ..Chip::new(&h100) };
        // 1 x 1024 x 132 * 64: 132 tiles of 64 columns or fewer; weights 17.3 MB at 3.35 TB/s take 5.163 us. The smallest
        // tile loads 80 x 2 B x 1024 at 12 times the 25.38 GB/s of a multiprocessor: 0.538 us.
        let product = Call::Product(Product { m: 1, n: 132 * 64, k: 1024, operands: bf16() });
        let parts = product.parts(&chip, &[3.0, 1.0, 1.0, 0.0, 12.0, 1.0, 100.0]).unwrap();
        assert_eq!(parts.bound(), Bound::Memory);
        assert!((1e6 * parts.memory.get() - 5.172).abs() < 0.01, "{parts:?}");
        assert!((1e6 * parts.arithmetic.get() - 0.538).abs() < 0.001, "{parts:?}");
        // 2 x 8 heads x 128 x 2 x 8064 keys x 2 B = 66.06 MB and 32 kB of queries: 19.73 us; log2(1 + 63) = 6 doublings; 16
        // rows on 132 multiprocessors.
        let decode = Decode {
            batch: 2,
            heads: 32,
            kv_heads: 8,
            head_dim: 128,
            history: 8064,
            window: None,
            cache: bf16(),
        };
        let coefficients = [10.0, 1.0, 1.0, 0.5, 1.32, 1.0];
        check(&Call::Decode(decode), &chip, &coefficients, [10.0, 0.2672, 19.73, 0.0, 3.16]);
        // A window of 128 keys has one doubling and 1.0486 MB.
        let windowed = Call::Decode(Decode { window: Some(128), ..decode });
        check(&windowed, &chip, &coefficients, [10.0, 0.00424, 0.3228, 0.0, 0.66]);
        // 256 heads work in 16 groups of 16: 2 x 128 x 1000 x 1088 FLOP; 1000 x 576 x 2 B and 128 x 1088 x 2 B.
        let latent = Call::Latent(Latent { batch: 1, heads: 128, history: 1024, cache: bf16() });
        check(&latent, &chip, &[10.0, 1.0, 1.0, 1.32, 1.0, 1.0], [10.0, 0.28837, 0.43528, 0.0, 3.1899]);
        // Balanced: 64 tokens x 2 over 2 GPUs are 64 rows at all 4 experts of this one. 4 x 3 x 1024 x 512 weights of 2 B;
        // rows are padded to 4 x 32; 2 passes over 64 rows and one over 128, of 1536 elements.
        let experts = Experts {
            tokens: 64,
            hidden: 1024,
            inner: 512,
            experts: 8,
            chosen: 2,
            tensor_parallel: 1,
            expert_parallel: 2,
            gated: true,
            skewed: false,
            exchanged: false,
            operands: bf16(),
        };
        let coefficients = [30.0, 1.0, 1.0, 32.0, 0.1, 2.0, 1.0, 4.0];
        check(&Call::Experts(experts), &chip, &coefficients, [30.0, 0.40714, 3.7562, 0.0, 0.4 + 0.23476]);
    }

    #[test]
    fn states_take_what_one_can_compute_by_hand() {
        let h100 = gpu("h100-80gb-sxm");
        let chip = Chip { cache: Bytes::ZERO, ..Chip::new(&h100) };
        // 64 x 32 states of 128 x 128 x 4 B, read and written: 268.435 MB; queries, keys, values and outputs of 2 x (16 + 32) x 128
        // x 2 B for each of 64 sequences: 1.573 MB. 80.60 us at 3.35 TB/s. 2048 rows of 1.32 us on 132 multiprocessors.
        let decode = StateDecode { batch: 64, heads: 32, key_heads: 16, key_dim: 128, value_dim: 128 };
        check(&Call::StateDecode(decode), &chip, &[4.0, 1.0, 1.32, 1.0], [4.0, 0.0, 80.599, 0.0, 20.48]);
        // 8192 tokens are 128 chunks of 64, one after the other; 32 heads leave multiprocessors idle. For a token and head
        // 2 (5 x 64 x 128 + 3 x 128 x 128) FLOP at 989.4 TFLOP/s; 8192 x 2 x 48 x 128 x 2 B and 32 states twice.
        let prefill = StatePrefill {
            batch: 1,
            heads: 32,
            key_heads: 16,
            key_dim: 128,
            value_dim: 128,
            queries: 8192,
            chunk: 64,
            rule: trainwright_spec::model::Rule::GatedDelta,
        };
        let parts = Call::StatePrefill(prefill).parts(&chip, &[10.0, 1.0, 1.0, 2.0]).unwrap();
        assert!((1e6 * parts.overhead.get() - 256.0).abs() < 1e-9, "{parts:?}");
        assert!((1e6 * parts.arithmetic.get() - 47.75).abs() < 0.05, "{parts:?}");
        assert!((1e6 * parts.memory.get() - 61.35).abs() < 0.05, "{parts:?}");
        // 16 sequences fill 512 / 132 multiprocessors.
        let more = StatePrefill { batch: 16, ..prefill };
        let parts = Call::StatePrefill(more).parts(&chip, &[10.0, 1.0, 1.0, 2.0]).unwrap();
        assert!((1e6 * parts.overhead.get() - 256.0 * 512.0 / 132.0).abs() < 1e-6, "{parts:?}");
        // 1000 tokens of 10 sequences and 4 tokens of each, 8192 channels, read and written in 16 bits.
        let convolution = Convolution { tokens: 1000, sequences: 10, channels: 8192, width: 4, step: false };
        check(&Call::Convolution(convolution), &chip, &[3.0, 1.0, 1.0], [3.0, 0.0, 10.173, 0.0, 0.0]);
    }

    #[test]
    fn sums_and_exchanges_go_over_the_links() {
        let cluster = Cluster::from_name("dgx-h100").unwrap();
        let chip = Chip::of(&cluster);
        let sum = |bytes: f64| Call::AllReduce(AllReduce { gpus: 8, message: Bytes::new(bytes) });
        // 7 x 45 kB at 450 GB/s take 0.7 us; two steps 2 x 7 / 8 x 45 kB: 0.175 us and 3 us more.
        check(&sum(45e3), &chip, &[5.0, 1.0, 1.0, 3.0, 1.0], [8.0, 0.0, 0.0, 0.7, 0.0]);
        // 45 MB: 700 us in one step, 175 us in two.
        check(&sum(45e6), &chip, &[5.0, 1.0, 1.0, 3.0, 1.0], [11.0, 0.0, 0.0, 175.0, 0.0]);
        // With one expert a token goes to one of 8 GPUs, in 7 of 8 cases to another: 1000 x 4096 x 7 / 8 x 2 B.
        let exchange = Exchange { gpus: 8, tokens: 1000, hidden: 4096, chosen: 1, element: bf16() };
        check(&Call::Exchange(exchange), &chip, &[30.0, 0.5, 0.01], [30.0, 0.0, 0.0, 31.858, 10.0]);
        assert!(
            sum(45e3).parts(&Chip::new(&cluster.node.gpu), &[5.0, 1.0, 1.0, 3.0, 1.0]).is_none(),
            "no links"
        );
    }

    #[test]
    fn prefill_reads_half_of_a_prompt_and_all_of_the_cache() {
        let h100 = gpu("h100-80gb-sxm");
        let chip = Chip::new(&h100);
        let prefill = Prefill {
            batch: 8,
            heads: 33,
            kv_heads: 33,
            head_dim: 128,
            value_head_dim: 128,
            queries: 8192,
            history: 0,
            window: None,
            math: trainwright_spec::precision::Precision::Bf16,
            cache: bf16(),
        };
        let time = |prefill: Prefill| {
            Call::Prefill(prefill).parts(&chip, &[10.0, 1.0, 1.0, 0.1, 0.01, 1.0]).unwrap().arithmetic.get()
        };
        // 264 x 64 blocks on 132 multiprocessors are 128 waves of 4096 + 64 keys, and half a block of 8192 at the end; with as
        // long a history 8192 keys more for each.
        let ratio = time(Prefill { history: 8192, ..prefill }) / time(prefill);
        let expected = (128.0 * (4160.0 + 8192.0) + 8192.0) / (128.0 * 4160.0 + 4096.0);
        assert!((ratio / expected - 1.0).abs() < 1e-3, "{ratio}, not {expected}");
        // A window far shorter than the prompt: 1024 keys and half a block, less what the first queries lack.
        let ratio = time(Prefill { window: Some(1024), ..prefill }) / time(prefill);
        assert!((0.2..0.28).contains(&ratio), "{ratio}");
    }

    #[test]
    fn the_fit_of_the_gpus_generation_counts_and_the_format_must_be_the_same() {
        let h100 = gpu("h100-80gb-sxm");
        let call = |name: &str| {
            Call::Product(Product { m: 8, n: 4096, k: 4096, operands: Operands::parse(name).unwrap() })
        };
        let wanted = Wanted { library: Some("vllm"), ..Wanted::default() };
        let found = estimate(&call("bf16"), &Chip::new(&h100), &wanted).unwrap();
        assert_eq!((found.library.as_str(), found.fitted.on.as_str()), ("vllm", "hopper"));
        // Hopper has no matrix units for 4 bits.
        let error = estimate(&call("nvfp4"), &Chip::new(&h100), &wanted).unwrap_err();
        assert_eq!(error.to_string(), "h100-80gb-sxm lacks the number format nvfp4");
        // V100 was not measured: the joint fit of all generations.
        let v100 = gpu("a10-24gb");
        let v100 = Gpu { generation: trainwright_spec::cluster::Generation::Volta, ..v100 };
        assert_eq!(estimate(&call("bf16"), &Chip::new(&v100), &wanted).unwrap().fitted.on, "any");
    }
}
