//! Weights, gradients and moments of the layers that a rank holds.
//!
//! If they are sharded, a rank owns one shard of every parameter. Its shards of a layer are neighbours in one buffer; the full
//! buffer is there only while weights are gathered, or until gradients are reduced.

use crate::comm::heartbeat::Heartbeat;
use crate::device::host_buffers::return_buffer;
use crate::device::{Device, Numbers, Slice, SliceMut};
use crate::train::offload_store::Stored;
use crate::train::parameters::{Layer, Parameter, ParameterName, Sharing, parameters};
use crate::train::sizes::{Divides, Sizes};
use std::collections::BTreeMap;
use std::ops::Range;
use trainwright_kernels::cuda::Number;
use trainwright_kernels::{Threads, elementwise};
use trainwright_spec::model::Model;
use trainwright_spec::plan::Offload;

/// One layer.
#[derive(Debug)]
pub(crate) struct LayerState {
    /// What is in the buffers.
    pub parameters: Vec<Parameter>,
    /// Every parameter's weights.
    pub weights: Sharded,
    /// Every parameter's gradients.
    pub gradients: Sharded,
    /// By parameter: moments of the elements that this rank updates, and the f32 weights if weights are rounded.
    pub moments: Vec<Vec<Numbers>>,
    /// Where the moments are while they are on a drive.
    pub stored: Vec<Stored>,
    /// Sums over a set of ranks that are still to be summed over all sets.
    pub fresh: Option<Numbers>,
    /// Whether there are several sets.
    pub has_replicas: bool,
    /// How many sums of gradients there have been since the full buffer was allocated, and how many there are in all.
    reduced: [usize; 2],
    /// Elements of the full buffer.
    length: usize,
}

/// Numbers for every parameter of a layer.
#[derive(Debug, Default)]
pub(crate) struct Sharded {
    /// Every parameter at its offset; empty while it is not gathered.
    pub full: Numbers,
    /// The rank's shard of each parameter, if only those are kept.
    pub shard: Option<Numbers>,
}

/// A parameter as a file has it.
pub(crate) struct Loaded {
    pub weights: Vec<f32>,
    /// Empty if the file has none.
    pub moments: Vec<Vec<f32>>,
}

/// What some numbers are.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum Kind {
    Weights,
    Gradients,
    Moments,
}

/// How layers are made at their start.
#[derive(Debug, Clone, Copy)]
pub(crate) struct Making<'a> {
    /// From which weights follow.
    pub seed: u64,
    /// How many the optimizer has of each number.
    pub moments: u64,
    pub threads: Threads,
    /// A layer may take a while: each of its parameters is a beat.
    pub heartbeat: &'a Heartbeat,
}

/// All layers of a rank.
#[derive(Debug)]
pub(crate) struct State {
    layers: BTreeMap<Layer, LayerState>,
}

impl Sharded {
    /// Frees the full buffer, if shards are kept.
    pub fn free_full(&mut self) {
        if self.shard.is_some()
            && let Numbers::Host(data) = std::mem::take(&mut self.full)
        {
            return_buffer(data);
        }
    }

    /// Bytes that are there.
    pub fn bytes(&self) -> usize {
        self.full.bytes() + self.shard.as_ref().map_or(0, Numbers::bytes)
    }

    /// The rank's shard of each parameter.
    fn shards(&mut self, parameters: &[Parameter]) -> Vec<SliceMut<'_>> {
        let mut at = 0;
        let of_own = |parameter: &Parameter| {
            let range = at..at + parameter.shard_length();
            at = range.end;
            range
        };
        match &mut self.shard {
            Some(shard) => shard.slice_mut().parts(parameters.iter().map(of_own)),
            None => self.full.slice_mut().parts(parameters.iter().map(Parameter::own_shard)),
        }
    }

    /// The same to read.
    fn read(&self, [of_full, of_shard]: [Range<usize>; 2]) -> Slice<'_> {
        match &self.shard {
            Some(shard) => shard.slice().part(of_shard),
            None => self.full.slice().part(of_full),
        }
    }

    fn each(&mut self, mut work: impl FnMut(&mut Numbers)) {
        work(&mut self.full);
        self.shard.iter_mut().for_each(work);
    }
}

/// What the update of one parameter works on.
pub(crate) struct Owned<'a> {
    pub parameter: &'a Parameter,
    pub weights: SliceMut<'a>,
    pub gradients: SliceMut<'a>,
    pub moments: &'a mut [Numbers],
}

impl LayerState {
    /// Memory that is zeros is not touched: the system gives it so, and may never have to.
    fn new(layer: Layer, parameters: Vec<Parameter>, sizes: &Sizes, making: Making) -> Self {
        let length = parameters.last().map_or(0, |last| last.offset + last.padded_length());
        let mut weights = vec![0.0; length];
        for parameter in &parameters {
            parameter.initialise(layer, making.seed, &mut weights, making.threads);
            making.heartbeat.beat();
        }
        let of = |parameter: &Parameter| {
            let zeros = (0..making.moments).map(|_| vec![0.0; parameter.shard_length()]);
            // What the optimizer updates where weights are rounded.
            let master = sizes.rounds.then(|| weights[parameter.own_shard()].to_vec());
            zeros.chain(master).map(Numbers::Host).collect()
        };
        let moments = parameters.iter().map(of).collect();
        if sizes.rounds {
            elementwise::round_to_bf16(&mut weights);
        }
        let sums = |sharing| parameters.iter().any(|own| own.sharing == sharing && own.shards > 1);
        let reduced = [0, [Sharing::Dense, Sharing::Routed].into_iter().filter(|own| sums(*own)).count()];
        let has_replicas = sizes.replicas > 1;
        let sharded = |shard: Vec<f32>| Sharded { shard: Some(shard.into()), full: Numbers::default() };
        let unsharded = |full: Vec<f32>| Sharded { shard: None, full: full.into() };
        let owned = parameters.iter().map(Parameter::shard_length).sum();
        let gradients = match sizes.divides >= Divides::Gradients {
            true => sharded(vec![0.0; owned]),
            false => unsharded(vec![0.0; length]),
        };
        let weights = if sizes.divides >= Divides::Weights {
            let mut own = Vec::with_capacity(owned);
            parameters.iter().for_each(|parameter| own.extend_from_slice(&weights[parameter.own_shard()]));
            sharded(own)
        } else {
            unsharded(weights)
        };
        Self {
            moments,
            gradients,
            weights,
            parameters,
            stored: Vec::new(),
            fresh: None,
            has_replicas,
            reduced,
            length,
        }
    }

    fn parameter(&self, name: ParameterName) -> Option<&Parameter> {
        self.parameters.iter().find(|parameter| parameter.name == name)
    }

    /// The weights of a parameter that the layer has.
    pub fn read(&self, name: ParameterName) -> Option<Slice<'_>> {
        Some(self.weights.full.slice().part(self.parameter(name)?.range()))
    }

    /// The gradients of a parameter that the layer has, to add to.
    pub fn write(&mut self, device: &dyn Device, name: ParameterName) -> Option<SliceMut<'_>> {
        let range = self.parameter(name)?.range();
        Some(self.full_gradients(device).part(range))
    }

    /// Those of two parameters, of which the second one stands behind the first.
    pub fn write_both(
        &mut self,
        device: &dyn Device,
        names: [ParameterName; 2],
    ) -> [Option<SliceMut<'_>>; 2] {
        self.read_and_write_both(device, names).1
    }

    /// The same beside the weights of the first one.
    pub fn read_and_write_both(
        &mut self,
        device: &dyn Device,
        names: [ParameterName; 2],
    ) -> (Option<Slice<'_>>, [Option<SliceMut<'_>>; 2]) {
        let [first, second] = names.map(|name| self.parameter(name).map(Parameter::range));
        self.full_gradients(device);
        let Self { weights, gradients, .. } = self;
        let read = first.clone().map(|first| weights.full.slice().part(first));
        let full = gradients.full.slice_mut();
        let Some(second) = second else {
            return (read, [first.map(|first| full.part(first)), None]);
        };
        let [before, behind] = full.split_at(second.start);
        (read, [first.map(|first| before.part(first)), Some(behind.part(0..second.len()))])
    }

    fn full_gradients(&mut self, device: &dyn Device) -> SliceMut<'_> {
        if self.gradients.full.is_empty() {
            self.gradients.full = device.any(self.length, Number::F32);
            device.zero(self.gradients.full.slice_mut());
        }
        self.gradients.full.slice_mut()
    }

    /// Where the parameters that some ranks share are in the full buffer.
    pub fn range(&self, sharing: Sharing) -> Range<usize> {
        let own = || self.parameters.iter().filter(|parameter| parameter.sharing == sharing);
        match (own().next(), own().next_back()) {
            (Some(first), Some(last)) => first.offset..last.offset + last.padded_length(),
            _ => 0..0,
        }
    }

    /// Takes in the sums of this rank's shards of the gradients that some ranks share. The last of them frees the full
    /// buffer, if only shards are kept.
    pub fn take_in(&mut self, device: &dyn Device, sharing: Sharing, sums: Numbers) {
        let (mut taken, mut at) = (0, 0);
        let last = self.reduced[0] + 1 >= self.reduced[1];
        for parameter in &self.parameters {
            let (of_full, of_shard) = (parameter.own_shard(), at..at + parameter.shard_length());
            at = of_shard.end;
            let Sharded { full, shard } = &mut self.gradients;
            if parameter.sharing == sharing {
                let sum = sums.slice().part(taken..taken + of_full.len());
                taken += of_full.len();
                match shard {
                    Some(shard) => device.add(shard.slice_mut().part(of_shard), sum),
                    None => device.copy(full.slice_mut().part(of_full), sum),
                }
            } else if let (true, 1, Some(shard)) = (last, parameter.shards, shard) {
                device.add(shard.slice_mut().part(of_shard), full.slice().part(of_full));
            }
        }
        if let Numbers::Host(data) = sums {
            return_buffer(data);
        }
        self.reduced[0] += 1;
        if last {
            self.reduced[0] = 0;
            self.gradients.free_full();
        }
    }

    /// The full buffer of the weights, to be gathered. Parameters that this rank does not share are there already.
    pub fn full_weights(&mut self, device: &dyn Device) -> SliceMut<'_> {
        let Sharded { full, shard } = &mut self.weights;
        if full.is_empty() {
            *full = device.any(self.length, device.number());
            let mut at = 0;
            for parameter in &self.parameters {
                let of_shard = at..at + parameter.shard_length();
                at = of_shard.end;
                if let (1, Some(shard)) = (parameter.shards, &shard) {
                    let shard = shard.slice().part(of_shard);
                    device.copy(full.slice_mut().part(parameter.own_shard()), shard);
                }
            }
        }
        full.slice_mut()
    }

    /// What this rank updates: each parameter with its gradients.
    pub fn own_gradients(&self) -> impl Iterator<Item = (&Parameter, Slice<'_>)> {
        let mut at = 0;
        self.parameters.iter().map(move |parameter| {
            let places = [parameter.own_shard(), at..at + parameter.shard_length()];
            at = places[1].end;
            (parameter, self.gradients.read(places))
        })
    }

    /// Visits all numbers.
    fn each(&mut self, mut work: impl FnMut(&mut Numbers, Kind)) {
        self.weights.each(|numbers| work(numbers, Kind::Weights));
        self.gradients.each(|numbers| work(numbers, Kind::Gradients));
        self.moments.iter_mut().flatten().for_each(|numbers| work(numbers, Kind::Moments));
    }

    /// Visits what this rank updates, parameter by parameter.
    pub fn owned(&mut self, visit: impl FnMut(Owned)) {
        self.all_owned().for_each(visit);
    }

    /// The same all at a time.
    pub fn all_owned(&mut self) -> impl Iterator<Item = Owned<'_>> {
        let Self { parameters, weights, gradients, moments, .. } = self;
        let (weights, gradients) = (weights.shards(parameters), gradients.shards(parameters));
        let numbers = weights.into_iter().zip(gradients).zip(moments);
        parameters.iter().zip(numbers).map(|(parameter, ((weights, gradients), moments))| Owned {
            parameter,
            weights,
            gradients,
            moments,
        })
    }

    /// What this rank updates of a parameter: its weights, then each of its moments.
    pub fn piece(&mut self, device: &dyn Device, name: ParameterName) -> Vec<f32> {
        let mut piece = Vec::new();
        self.owned(|owned| {
            if owned.parameter.name == name {
                piece.extend_from_slice(&device.read(owned.weights.as_slice()));
                owned.moments.iter().for_each(|moment| piece.extend_from_slice(&device.read(moment.slice())));
            }
        });
        piece
    }

    /// Takes over what `load` has of each parameter.
    fn load<E>(&mut self, mut load: impl FnMut(&Parameter) -> Result<Option<Loaded>, E>) -> Result<(), E> {
        let mut first = 0;
        for (parameter, moments) in self.parameters.iter().zip(&mut self.moments) {
            let own = first..first + parameter.shard_length();
            first = own.end;
            let Some(loaded) = load(parameter)? else { continue };
            match &mut self.weights.shard {
                None => parameter.fill(&loaded.weights, self.weights.full.host_mut()),
                Some(shard) => parameter.collect(&loaded.weights, &mut shard.host_mut()[own]),
            }
            for (moment, loaded) in moments.iter_mut().zip(&loaded.moments) {
                parameter.collect(loaded, moment.host_mut());
            }
        }
        Ok(())
    }

    /// Copies this rank's elements of the parameter of that index into the full parameter.
    pub fn put(&self, index: usize, into: &mut [f32]) {
        let parameter = &self.parameters[index];
        match &self.weights.shard {
            None => {
                let full = self.weights.full.host();
                parameter.put(into, |at| Some(full[at]));
            }
            Some(shard) => {
                let shard = shard.host();
                let first: usize = self.parameters[..index].iter().map(Parameter::shard_length).sum();
                let range = parameter.own_shard();
                parameter.put(into, |at| range.contains(&at).then(|| shard[first + at - range.start]));
            }
        }
    }
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

    /// The layers whose weights a layer reads: a head also those of the embedding, if it is tied to the one here.
    pub fn read_by(&self, layer: Layer) -> impl Iterator<Item = Layer> + use<> {
        let tied = layer == Layer::Head && self.output_embedding().0 == Layer::Embedding;
        std::iter::once(layer).chain(tied.then_some(Layer::Embedding))
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

#[cfg(test)]
mod tests {
    use super::*;
    use crate::device::Cpu;
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
        let making = Making { seed: 3, moments: 2, threads: Threads::ONE, heartbeat };
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
