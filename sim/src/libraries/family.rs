//! Families of kernels: every formula, and which one counts for a call.

use super::{
    Call, Chip, Family, Parts, all_reduce, decode, exchange, experts, latent, prefill, product, recurrent,
    sparse,
};
use trainwright_spec::precision::Precision;

/// Every family.
pub static FAMILIES: [&Family; 13] = [
    &product::FAMILY,
    &decode::FAMILY,
    &prefill::FAMILY,
    &latent::FAMILY,
    &experts::FAMILY,
    &all_reduce::FAMILY,
    &exchange::FAMILY,
    &recurrent::PREFILL,
    &recurrent::DECODE,
    &recurrent::CONVOLUTION,
    &recurrent::CONVOLUTION_STEP,
    &sparse::DECODE,
    &sparse::PREFILL,
];

/// The family of that name; `None` if there is none.
pub fn family(name: &str) -> Option<&'static Family> {
    FAMILIES.into_iter().find(|family| family.name == name)
}

impl Call {
    /// The family whose formula gives its time.
    pub fn family(&self) -> &'static Family {
        match self {
            Call::Product(_) => &product::FAMILY,
            Call::Decode(_) => &decode::FAMILY,
            Call::Prefill(_) => &prefill::FAMILY,
            Call::Latent(_) => &latent::FAMILY,
            Call::Experts(_) => &experts::FAMILY,
            Call::AllReduce(_) => &all_reduce::FAMILY,
            Call::Exchange(_) => &exchange::FAMILY,
            Call::StatePrefill(_) => &recurrent::PREFILL,
            Call::StateDecode(_) => &recurrent::DECODE,
            Call::Convolution(call) if call.step => &recurrent::CONVOLUTION_STEP,
            Call::Convolution(_) => &recurrent::CONVOLUTION,
            Call::Sparse(call) if call.prompt => &sparse::PREFILL,
            Call::Sparse(_) => &sparse::DECODE,
        }
    }

    /// The format by which coefficients are looked up.
    pub fn format(&self) -> &'static str {
        match self {
            Call::Product(product) => product.operands.name,
            Call::Decode(decode) => decode.cache.name,
            Call::Prefill(prefill) if prefill.math == Precision::Bf16 => "bfloat16",
            Call::Prefill(prefill) => prefill.cache.name,
            Call::Latent(latent) => latent.cache.name,
            Call::Experts(experts) => experts.operands.name,
            Call::Exchange(exchange) => exchange.element.name,
            Call::AllReduce(_) | Call::StatePrefill(_) | Call::StateDecode(_) | Call::Convolution(_) => {
                "bfloat16"
            }
            Call::Sparse(sparse) => sparse.operands.name,
        }
    }

    /// The parts of its time with these coefficients, in the order of its family; `None` if the GPU lacks the number format or
    /// the links.
    ///
    /// # Panics
    /// If there are fewer coefficients than the family has.
    pub fn parts(&self, chip: &Chip, coefficients: &[f64]) -> Option<Parts> {
        match self {
            Call::Product(product) => product::parts(product, chip, coefficients),
            Call::Decode(decode) => decode::parts(decode, chip, coefficients),
            Call::Prefill(prefill) => prefill::parts(prefill, chip, coefficients),
            Call::Latent(latent) => latent::parts(latent, chip, coefficients),
            Call::Experts(experts) => experts::parts(experts, chip, coefficients),
            Call::Exchange(exchange) => exchange::parts(exchange, chip, coefficients),
            Call::AllReduce(call) => all_reduce::parts(call, chip, coefficients),
            Call::StatePrefill(call) => recurrent::prefill(call, chip, coefficients),
            Call::StateDecode(call) => recurrent::decode(call, chip, coefficients),
            Call::Convolution(call) => recurrent::convolution(call, chip, coefficients),
            Call::Sparse(call) => sparse::parts(call, chip, coefficients),
        }
    }
}
