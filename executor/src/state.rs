//! Weights, gradients and moments of the layers that a rank holds.

use crate::parameters::{Layer, Parameter, ParameterName, parameters};
use crate::sizes::Sizes;
use std::collections::BTreeMap;
use trainwright_spec::model::Model;

/// One layer.
#[derive(Debug)]
pub(crate) struct LayerState {
    /// What is in the buffers.
    pub parameters: Vec<Parameter>,
    /// Weights, every parameter at its offset.
    pub weights: Vec<f32>,
    /// Gradients, likewise.
    pub gradients: Vec<f32>,
    /// By parameter: moments of what this rank updates of it.
    pub moments: Vec<Vec<Vec<f32>>>,
}

/// All layers of a rank.
#[derive(Debug)]
pub(crate) struct State {
    layers: BTreeMap<Layer, LayerState>,
}

impl LayerState {
    fn new(layer: Layer, parameters: Vec<Parameter>, seed: u64, moments: usize) -> Self {
        let length = parameters.last().map_or(0, |last| last.offset + last.padded_length());
        let mut weights = vec![0.0; length];
        parameters.iter().for_each(|parameter| parameter.initialise(layer, seed, &mut weights));
        let of = |parameter: &Parameter| vec![vec![0.0; parameter.piece_length()]; moments];
        let moments = parameters.iter().map(of).collect();
        Self { moments, gradients: vec![0.0; length], weights, parameters }
    }

    fn parameter(&self, name: ParameterName) -> Option<&Parameter> {
        self.parameters.iter().find(|parameter| parameter.name == name)
    }

    /// The weights of a parameter that the layer has.
    pub fn weights(&self, name: ParameterName) -> Option<&[f32]> {
        Some(&self.weights[self.parameter(name)?.range()])
    }

    /// The gradients of a parameter that the layer has.
    pub fn gradients(&mut self, name: ParameterName) -> Option<&mut [f32]> {
        let range = self.parameter(name)?.range();
        Some(&mut self.gradients[range])
    }
}

impl State {
    /// The layers at their start; `copies_embedding` as for `parameters`.
    pub fn new(
        model: &Model,
        layers: impl Iterator<Item = Layer>,
        sizes: &Sizes,
        copies_embedding: bool,
        [seed, moments]: [u64; 2],
    ) -> Self {
        let made = layers.map(|layer| {
            let parameters = parameters(model, layer, sizes, copies_embedding);
            (layer, LayerState::new(layer, parameters, seed, moments as usize))
        });
        Self { layers: made.collect() }
    }

    /// A layer that the rank holds.
    pub fn layer(&self, layer: Layer) -> &LayerState {
        self.layers.get(&layer).expect("a rank runs the layers that it holds")
    }

    /// The same to write.
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

    /// Where the output embedding is: beside the head, or with a tied embedding on the same rank there.
    pub fn output_embedding(&self) -> (Layer, ParameterName) {
        let head = self.layer(Layer::Head);
        let own = [ParameterName::Head, ParameterName::TokenEmbedding];
        match own.into_iter().find(|name| head.parameter(*name).is_some()) {
            Some(name) => (Layer::Head, name),
            None => (Layer::Embedding, ParameterName::TokenEmbedding),
        }
    }
}
