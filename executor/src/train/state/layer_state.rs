//! One layer's weights, gradients and moments.

use crate::comm::heartbeat::Heartbeat;
use crate::device::host_buffers::return_buffer;
use crate::device::{Device, Numbers, Slice, SliceMut};
use crate::train::offload_store::Stored;
use crate::train::parameters::{Layer, Parameter, ParameterName, Sharing};
use crate::train::sizes::{Divides, Sizes};
use std::collections::BTreeMap;
use std::ops::Range;
use trainwright_kernels::cuda::Number;
use trainwright_kernels::packed::{PackedWeight, WeightRows};
use trainwright_kernels::{Threads, elementwise};

/// One layer.
#[derive(Debug)]
pub(crate) struct LayerState {
    /// What is in the buffers.
    pub parameters: Vec<Parameter>,
    /// Every parameter's weights.
    pub weights: Sharded,
    /// Weights in fewer bits, which are not among `weights`; empty in trainings.
    packed: BTreeMap<ParameterName, PackedWeight>,
    /// Every parameter's gradients.
    pub gradients: Sharded,
    /// By parameter: moments of the elements that this rank updates, and the f32 weights if weights are rounded.
    pub moments: Vec<Vec<Numbers>>,
    /// Whether weights are rounded to bf16. Then the last of each parameter's moments are its f32 weights.
    rounds: bool,
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
pub(super) enum Kind {
    Weights,
    Gradients,
    Moments,
}

/// How layers are made at their start.
#[derive(Debug, Clone, Copy)]
pub(crate) struct Making<'a> {
    /// From which weights follow.
    pub seed: u64,
    /// Whether they stay zeros, for a file to fill in.
    pub blank: bool,
    /// How many the optimizer has of each number.
    pub moments: u64,
    pub threads: Threads,
    /// A layer may take a while: each of its parameters is a beat.
    pub heartbeat: &'a Heartbeat,
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
        let of_shard = |parameter: &Parameter| {
            let range = at..at + parameter.shard_length();
            at = range.end;
            range
        };
        match &mut self.shard {
            Some(shard) => shard.slice_mut().parts(parameters.iter().map(of_shard)),
            None => self.full.slice_mut().parts(parameters.iter().map(Parameter::local_shard)),
        }
    }

    /// A parameter's shard, to read: from the shards' buffer if there is one, else from the full one.
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
    pub(super) fn new(layer: Layer, parameters: Vec<Parameter>, sizes: &Sizes, making: Making) -> Self {
        let length = parameters.last().map_or(0, |last| last.offset + last.padded_length());
        let mut weights = vec![0.0; length];
        for parameter in &parameters {
            if !making.blank {
                parameter.initialise(layer, making.seed, &mut weights, making.threads);
            }
            making.heartbeat.beat();
        }
        let of = |parameter: &Parameter| {
            let zeros = (0..making.moments).map(|_| vec![0.0; parameter.shard_length()]);
            // What the optimizer updates where weights are rounded.
            let master = sizes.rounds.then(|| weights[parameter.local_shard()].to_vec());
            zeros.chain(master).map(Numbers::Host).collect()
        };
        let moments = parameters.iter().map(of).collect();
        if sizes.rounds {
            elementwise::round_to_bf16(&mut weights);
        }
        let sums =
            |sharing| parameters.iter().any(|parameter| parameter.sharing == sharing && parameter.shards > 1);
        let reduced =
            [0, [Sharing::Dense, Sharing::Routed].into_iter().filter(|sharing| sums(*sharing)).count()];
        let has_replicas = sizes.replicas > 1;
        let sharded = |shard: Vec<f32>| Sharded { shard: Some(shard.into()), full: Numbers::default() };
        let unsharded = |full: Vec<f32>| Sharded { shard: None, full: full.into() };
        let owned = parameters.iter().map(Parameter::shard_length).sum();
        let gradients = match sizes.divides >= Divides::Gradients {
            true => sharded(vec![0.0; owned]),
            false => unsharded(vec![0.0; length]),
        };
        let weights = if sizes.divides >= Divides::Weights {
            let mut shard = Vec::with_capacity(owned);
            parameters
                .iter()
                .for_each(|parameter| shard.extend_from_slice(&weights[parameter.local_shard()]));
            sharded(shard)
        } else {
            unsharded(weights)
        };
        Self {
            moments,
            gradients,
            weights,
            packed: BTreeMap::new(),
            parameters,
            rounds: sizes.rounds,
            stored: Vec::new(),
            fresh: None,
            has_replicas,
            reduced,
            length,
        }
    }

    /// Whether the layer has a parameter, packed or not.
    pub(super) fn has(&self, name: ParameterName) -> bool {
        self.packed.contains_key(&name) || self.parameter(name).is_some()
    }

    pub(super) fn parameter(&self, name: ParameterName) -> Option<&Parameter> {
        self.parameters.iter().find(|parameter| parameter.name == name)
    }

    /// The weights of a parameter that the layer has.
    pub fn read(&self, name: ParameterName) -> Option<Slice<'_>> {
        Some(self.weights.full.slice().part(self.parameter(name)?.range()))
    }

    /// The rows of a matrix that the host has, packed or not.
    pub fn weight_rows(&self, name: ParameterName) -> Option<WeightRows<'_>> {
        let packed = self.packed.get(&name).map(PackedWeight::rows);
        packed.or_else(|| Some(WeightRows::F32(self.read(name)?.host())))
    }

    /// Bytes of all weights.
    pub fn weight_bytes(&self) -> usize {
        self.weights.bytes() + self.packed.values().map(PackedWeight::bytes).sum::<usize>()
    }

    /// Takes over what `load` has of each parameter, to read only: `pack` makes some of them smaller, given the elements that the
    /// rank has. What is left is moved together.
    pub(super) fn load_packed<E>(
        &mut self,
        mut load: impl FnMut(&Parameter) -> Result<Option<Loaded>, E>,
        pack: impl Fn(&Parameter, &Loaded, &[f32]) -> Option<PackedWeight>,
    ) -> Result<(), E> {
        let full = self.weights.full.host_mut();
        let mut rest = Vec::new();
        for mut parameter in std::mem::take(&mut self.parameters) {
            let loaded = load(&parameter)?;
            if let Some(loaded) = &loaded {
                parameter.fill(&loaded.weights, full);
            }
            let local = &full[parameter.range()];
            match loaded.and_then(|loaded| pack(&parameter, &loaded, local)) {
                Some(packed) => drop(self.packed.insert(parameter.name, packed)),
                None => {
                    parameter.offset = rest.len();
                    rest.extend_from_slice(local);
                    self.parameters.push(parameter);
                }
            }
        }
        self.length = rest.len();
        self.weights.full = rest.into();
        Ok(())
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

    /// The weights of the first parameter to read, and the gradients of both to write.
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
        let of_group = || self.parameters.iter().filter(|parameter| parameter.sharing == sharing);
        match (of_group().next(), of_group().next_back()) {
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
            let (of_full, of_shard) = (parameter.local_shard(), at..at + parameter.shard_length());
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
                    device.copy(full.slice_mut().part(parameter.local_shard()), shard);
                }
            }
        }
        full.slice_mut()
    }

    /// What this rank updates: each parameter with its gradients.
    pub fn gradient_shards(&self) -> impl Iterator<Item = (&Parameter, Slice<'_>)> {
        let mut at = 0;
        self.parameters.iter().map(move |parameter| {
            let places = [parameter.local_shard(), at..at + parameter.shard_length()];
            at = places[1].end;
            (parameter, self.gradients.read(places))
        })
    }

    /// Visits all numbers.
    pub(super) fn each(&mut self, mut work: impl FnMut(&mut Numbers, Kind)) {
        self.weights.each(|numbers| work(numbers, Kind::Weights));
        self.gradients.each(|numbers| work(numbers, Kind::Gradients));
        self.moments.iter_mut().flatten().for_each(|numbers| work(numbers, Kind::Moments));
    }

    /// Visits what this rank updates, parameter by parameter.
    pub fn owned(&mut self, visit: impl FnMut(Owned)) {
        self.all_owned().for_each(visit);
    }

    /// What the update of each parameter works on.
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

    /// What this rank updates of a parameter: its f32 weights, then each of its moments. Rounded weights follow from the f32
    /// ones, so that they are not among them.
    pub fn shard(&mut self, device: &dyn Device, name: ParameterName) -> Vec<f32> {
        let (mut shard, rounds) = (Vec::new(), self.rounds);
        self.owned(|owned| {
            if owned.parameter.name == name {
                let (weights, moments) = match (rounds, &*owned.moments) {
                    (true, [moments @ .., master]) => (master.slice(), moments),
                    (_, moments) => (owned.weights.as_slice(), moments),
                };
                shard.extend_from_slice(&device.read(weights));
                moments.iter().for_each(|moment| shard.extend_from_slice(&device.read(moment.slice())));
            }
        });
        shard
    }

    /// Takes over what `load` has of each parameter: weights are those of a file, to the last bit where they are f32.
    pub(super) fn load<E>(
        &mut self,
        mut load: impl FnMut(&Parameter) -> Result<Option<Loaded>, E>,
    ) -> Result<(), E> {
        let mut first = 0;
        for (parameter, moments) in self.parameters.iter().zip(&mut self.moments) {
            let range = first..first + parameter.shard_length();
            first = range.end;
            let Some(loaded) = load(parameter)? else { continue };
            if let (true, Some(master)) = (self.rounds, moments.last_mut()) {
                parameter.collect(&loaded.weights, master.host_mut());
            }
            let weights = match &mut self.weights.shard {
                None => {
                    let full = self.weights.full.host_mut();
                    parameter.fill(&loaded.weights, full);
                    &mut full[parameter.range()]
                }
                Some(shard) => {
                    let shard = &mut shard.host_mut()[range];
                    parameter.collect(&loaded.weights, shard);
                    shard
                }
            };
            if self.rounds {
                elementwise::round_to_bf16(weights);
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
                let range = parameter.local_shard();
                parameter.put(into, |at| range.contains(&at).then(|| shard[first + at - range.start]));
            }
        }
    }
}
