//! Weights, gradients and moments of the layers that a rank holds.
//!
//! If they are sharded, a rank owns one shard of every parameter. Its shards of a layer are neighbours in one buffer; the full
//! buffer is there only while weights are gathered, or until gradients are reduced.

mod layer_state;

pub(crate) use layer_state::{LayerState, Loaded, Making, Owned};

use crate::comm::heartbeat::Heartbeat;
use crate::device::{Device, Numbers, Slice};
use crate::train::parameters::{Layer, Parameter, ParameterName, parameters};
use crate::train::sizes::Sizes;
use layer_state::Kind;
use std::collections::BTreeMap;
use trainwright_kernels::cuda::Number;
use trainwright_kernels::packed::PackedWeight;
use trainwright_spec::model::Model;
use trainwright_spec::plan::Offload;

/// All layers of a rank.
#[derive(Debug)]
pub(crate) struct State {
    layers: BTreeMap<Layer, LayerState>,
}

impl State {
    /// The layers at their start; `copies_embedding` as for `parameters`.
    pub fn new(
        model: &Model,
        layers: impl Iterator<Item = Layer>,
        sizes: &Sizes,
        copies_embedding: bool,
        making: Making,
    ) -> Self {
        let made = layers.map(|layer| {
            let parameters = parameters(model, layer, sizes, copies_embedding);
            (layer, LayerState::new(layer, parameters, sizes, making))
        });
        Self { layers: made.collect() }
    }

    /// Takes over what `load` has of each layer's parameters.
    pub fn load<E>(
        &mut self,
        mut load: impl FnMut(Layer, &Parameter) -> Result<Option<Loaded>, E>,
    ) -> Result<(), E> {
        let mut layers = self.layers.iter_mut();
        layers.try_for_each(|(layer, state)| state.load(|parameter| load(*layer, parameter)))
    }

    /// Takes over what `load` has of each layer's parameters, of which `pack` makes some smaller.
    pub fn load_packed<E>(
        &mut self,
        mut load: impl FnMut(Layer, &Parameter) -> Result<Option<Loaded>, E>,
        pack: impl Fn(&Parameter, &Loaded, &[f32]) -> Option<PackedWeight>,
    ) -> Result<(), E> {
        let mut layers = self.layers.iter_mut();
        layers.try_for_each(|(layer, state)| state.load_packed(|parameter| load(*layer, parameter), &pack))
    }

    /// Takes everything from the host to a device but what is offloaded. All numbers of a layer are a beat.
    pub fn bring_to(&mut self, device: &dyn Device, offload: &Offload, heartbeat: &Heartbeat) {
        self.each(|numbers, kind| {
            heartbeat.beat();
            if kind == Kind::Moments && offload.optimizer.is_some() {
                return;
            }
            if let Numbers::Host(data) = std::mem::take(numbers) {
                let number = if kind == Kind::Weights { device.number() } else { Number::F32 };
                *numbers = device.take(data, number);
            }
        });
    }

    /// Takes everything from a device to the host.
    pub fn bring_back(&mut self, device: &dyn Device, heartbeat: &Heartbeat) {
        self.each(|numbers, _| {
            heartbeat.beat();
            if let Slice::Device(_) = numbers.slice() {
                *numbers = device.read(numbers.slice()).into_owned().into();
            }
        });
    }

    fn each(&mut self, mut work: impl FnMut(&mut Numbers, Kind)) {
        self.layers.values_mut().for_each(|layer| layer.each(&mut work));
    }

    /// A layer that the rank holds.
    pub fn layer(&self, layer: Layer) -> &LayerState {
        self.layers.get(&layer).expect("a rank runs the layers that it holds")
    }

    /// A layer's state, to write.
    pub fn layer_mut(&mut self, layer: Layer) -> &mut LayerState {
        self.layers.get_mut(&layer).expect("a rank runs the layers that it holds")
    }

    /// All of them.
    pub fn layers(&self) -> impl Iterator<Item = (Layer, &LayerState)> {
        self.layers.iter().map(|(layer, state)| (*layer, state))
    }

    /// All of them to write.
    pub fn layers_mut(&mut self) -> impl Iterator<Item = (Layer, &mut LayerState)> {
        self.layers.iter_mut().map(|(layer, state)| (*layer, state))
    }

    /// The layers whose weights a layer reads: a head also those of the embedding, if it is tied to the one here.
    pub fn read_by(&self, layer: Layer) -> impl Iterator<Item = Layer> + use<> {
        let tied = layer == Layer::Head && self.output_embedding().0 == Layer::Embedding;
        std::iter::once(layer).chain(tied.then_some(Layer::Embedding))
    }

    /// Where the output embedding is: in the head, or in the tied embedding of the same rank.
    pub fn output_embedding(&self) -> (Layer, ParameterName) {
        let head = self.layer(Layer::Head);
        let names = [ParameterName::Head, ParameterName::TokenEmbedding];
        match names.into_iter().find(|name| head.has(*name)) {
            Some(name) => (Layer::Head, name),
            None => (Layer::Embedding, ParameterName::TokenEmbedding),
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::device::Cpu;
    use trainwright_kernels::{Threads, elementwise};
    use trainwright_spec::model::hf::from_hugging_face;
    use trainwright_spec::plan::Plan;

    /// GPT-2's architecture with a block of width 8, on one of two ranks.
    fn state(data_sharding: &str, precision: &str, heartbeat: &Heartbeat) -> State {
        let text = format!(
            r#"model = "gpt2"
cluster = "h100-pcie-pair"
stack = "trainwright"
job = {{ sequence = 16, global_batch = 2, precision = "{precision}", optimizer = "adamw", gradient_clipping = true }}
mesh = {{ tensor = 1, pipeline = 1, data = 2 }}
micro_batch = 1
schedule = "1f1b"
virtual_stages = 1
sequence_parallel = false
data_sharding = "{data_sharding}"
stages = ["12 none"]"#
        );
        let small = r#"{"model_type": "gpt2", "n_embd": 8, "n_head": 2, "n_layer": 12, "n_positions": 16, "vocab_size": 67}"#;
        let model = from_hugging_face(small, "config.json").unwrap();
        let plan = Plan { model, ..Plan::from_toml(&text, "plan.toml").unwrap() };
        let making = Making { seed: 3, blank: false, moments: 2, threads: Threads::ONE, heartbeat };
        let layers = [Layer::Embedding, Layer::Block(0)].into_iter();
        State::new(&plan.model, layers, &Sizes::of(&plan, 1), false, making)
    }

    #[test]
    fn all_that_is_not_a_weight_begins_as_zeros_of_the_length_of_what_is_owned() {
        for (sharding, precision) in
            [("none", "fp32"), ("zero1", "bf16"), ("zero2", "fp32"), ("zero3", "bf16")]
        {
            let mut state = state(sharding, precision, &Heartbeat::default());
            for (_, layer) in state.layers_mut() {
                layer.owned(|Owned { parameter, weights, gradients, moments }| {
                    let [first, second, masters @ ..] = moments else { panic!("Adam has two moments") };
                    let weights = weights.host();
                    for zeros in [gradients.host(), first.host(), second.host()] {
                        assert_eq!(zeros, vec![0.0; parameter.shard_length()], "{sharding}");
                    }
                    // The f32 weights that bf16 ones are rounded from.
                    for master in masters.iter() {
                        let mut rounded = master.host().to_vec();
                        elementwise::round_to_bf16(&mut rounded);
                        assert_eq!(rounded, weights, "{sharding}");
                    }
                    assert_eq!(masters.len(), usize::from(precision == "bf16"));
                });
                let [owned, full] = [Parameter::shard_length, Parameter::padded_length]
                    .map(|length| layer.parameters.iter().map(length).sum::<usize>());
                let kept = if sharding == "zero1" { full } else { owned };
                assert_eq!(layer.gradients.bytes(), 4 * kept, "{sharding}");
            }
        }
    }

    #[test]
    fn what_takes_long_before_and_after_a_run_beats() {
        let heartbeat = Heartbeat::default();
        // The third word of a rank's status.
        let mut known = 0;
        let mut beats = || {
            let before = std::mem::replace(&mut known, heartbeat.to_bytes()[16] as usize);
            known - before
        };
        let mut state = state("none", "fp32", &heartbeat);
        let parameters: usize = state.layers().map(|(_, layer)| layer.parameters.len()).sum();
        assert_eq!(beats(), parameters);
        let device = Cpu { threads: Threads::ONE };
        // Each layer's weights and gradients, each parameter's moments.
        state.bring_to(&device, &Offload::default(), &heartbeat);
        assert_eq!(beats(), 2 * 2 + 2 * parameters);
        state.bring_back(&device, &heartbeat);
        assert_eq!(beats(), 2 * 2 + 2 * parameters);
    }
}
