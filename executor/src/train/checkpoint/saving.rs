//! Saving: every rank sends its shards to rank 0, parameter by parameter, which writes full tensors.
//!
//! A checkpoint does not depend on how the state was sharded, so any plan can read it.

use super::folder::{Draft, Trainer};
use super::hugging_face;
use super::names::{Stored, stored};
use super::source::{Beginning, moment_names};
use super::tensors::TensorWriter;
use crate::comm::heartbeat::Heartbeat;
use crate::comm::transport::{Envelope, Tag, Transport};
use crate::device::Device;
use crate::error::CheckpointError;
use crate::error::Fault;
use crate::train::data::tokens::Tokens;
use crate::train::offload_store::OffloadStore;
use crate::train::parameters::{Layer, Parameter, ParameterName};
use crate::train::settings::Saving;
use crate::train::state::State;
use std::collections::BTreeMap;
use trainwright_spec::plan::Plan;

/// Which rank has which part of a parameter.
#[derive(Debug)]
struct Part {
    rank: usize,
    layer: Layer,
    parameter: Parameter,
}

/// What all ranks have, each part of it once.
#[derive(Debug, Default)]
pub(crate) struct Inventory(BTreeMap<(Layer, ParameterName), Vec<Part>>);

impl Inventory {
    /// Adds a rank's parts of a layer's parameters that no earlier rank has.
    pub fn add(&mut self, rank: usize, layer: Layer, parameters: Vec<Parameter>) {
        for parameter in parameters {
            let parts = self.0.entry((parameter.home(layer), parameter.name)).or_default();
            if !parts.iter().any(|part| part.parameter.same_part(&parameter)) {
                parts.push(Part { rank, layer, parameter });
            }
        }
    }
}

/// The inputs of a save.
pub(crate) struct Saver<'a> {
    pub plan: &'a Plan,
    pub tokens: &'a Tokens,
    pub beginning: &'a Beginning,
    pub saving: &'a Saving,
    pub inventory: &'a Inventory,
    pub transport: &'a dyn Transport,
    /// Every tensor is a beat.
    pub heartbeat: &'a Heartbeat,
    pub device: &'a dyn Device,
    /// Numbers the group of all ranks: behind those of the program.
    pub group: usize,
    pub moments: u64,
}

impl Saver<'_> {
    /// Whether a checkpoint follows on a step, of which `last` is the run's last one.
    pub fn is_due(&self, step: usize, last: usize) -> bool {
        step == last || self.saving.every.is_some_and(|every| step.is_multiple_of(every.get()))
    }

    /// One rank's part in a checkpoint; `store` has the moments that are on a drive.
    pub fn save(
        &self,
        rank: usize,
        step: usize,
        state: &mut State,
        store: &mut OffloadStore,
    ) -> Result<(), Fault> {
        if rank == 0 {
            return self.write(step, state, store);
        }
        for part in self.inventory.0.values().flatten().filter(|part| part.rank == rank) {
            self.transport.receive_bytes(Envelope { from: 0, to: rank, tag: Tag::Group(self.group) })?;
            let shard = self.own_shard(part, state, store)?;
            self.transport.send(Envelope { from: rank, to: 0, tag: Tag::Group(self.group) }, shard);
        }
        Ok(())
    }

    /// This rank's part of a parameter: its f32 weights, then each of its moments. Those of the layer that are on a drive come
    /// and go back.
    fn own_shard(&self, part: &Part, state: &mut State, store: &mut OffloadStore) -> Result<Vec<f32>, Fault> {
        let layer = state.layer_mut(part.layer);
        let stored = std::mem::take(&mut layer.stored);
        store.load_moments(layer.moments.iter_mut().flatten(), stored)?;
        let shard = layer.shard(self.device, part.parameter.name);
        layer.stored = store.store_moments(layer.moments.iter_mut().flatten())?;
        Ok(shard)
    }

    /// Any rank's part.
    fn shard(&self, part: &Part, state: &mut State, store: &mut OffloadStore) -> Result<Vec<f32>, Fault> {
        if part.rank == 0 {
            return self.own_shard(part, state, store);
        }
        // The owner waits to be asked, so that no more than one parameter is in flight.
        let tag = Tag::Group(self.group);
        self.transport.send_bytes(Envelope { from: 0, to: part.rank, tag }, Vec::new());
        self.transport.receive(Envelope { from: part.rank, to: 0, tag })
    }

    fn write(&self, step: usize, state: &mut State, store: &mut OffloadStore) -> Result<(), Fault> {
        let draft = Draft::new(&self.saving.folder, step)?;
        let tensors: Vec<(Vec<Stored>, &Vec<Part>)> = self
            .inventory
            .0
            .iter()
            .map(|(key, parts)| {
                let (layer, name) = *key;
                (stored(&self.plan.model, layer, name, parts[0].parameter.full_shape), parts)
            })
            .collect();
        let names = moment_names(self.moments);
        let all = || tensors.iter().flat_map(|(stored, _)| stored);
        let weights: Vec<_> = all().map(|tensor| (tensor.name.clone(), tensor.shape())).collect();
        let of_moments = |tensor: &Stored| {
            let (name, shape) = (tensor.name.clone(), tensor.shape());
            names.iter().map(move |moment| (format!("{name}.{moment}"), shape.clone())).collect::<Vec<_>>()
        };
        let moments: Vec<_> = all().flat_map(of_moments).collect();
        let mut weights = TensorWriter::new(&draft.path.join("model.safetensors"), &weights)?;
        let mut moments = TensorWriter::new(&draft.path.join("optimizer.safetensors"), &moments)?;
        for (stored, parts) in &tensors {
            let [rows, columns] = parts[0].parameter.full_shape;
            let mut full = vec![vec![0.0; rows * columns]; 1 + names.len()];
            self.heartbeat.beat();
            for part in *parts {
                let shards = self.shard(part, state, store)?;
                let length = part.parameter.shard_length();
                for (array, shard) in full.iter_mut().zip(shards.chunks_exact(length)) {
                    part.parameter.spread(shard, array);
                }
            }
            for tensor in stored {
                weights.add(&tensor.take(&full[0]))?;
                full[1..].iter().try_for_each(|array| moments.add(&tensor.take(array)))?;
            }
        }
        let checksums = [weights.finish()?, moments.finish()?].into_iter().collect();
        self.write_rest(&draft)?;
        let trainer = Trainer {
            step,
            seed: self.beginning.seed,
            optimizer: self.plan.job.optimizer.clone(),
            sequences: self.beginning.sequences + (step - self.beginning.step) * self.plan.job.global_batch,
            sequence: self.plan.job.sequence,
            data: self.tokens.fingerprint().into(),
            tokenizer: self.tokens.tokenizer().name(),
            checksums,
            checksum: None,
        };
        Ok(draft.finish(&trainer, self.saving.keep.get())?)
    }

    fn write_rest(&self, draft: &Draft) -> Result<(), CheckpointError> {
        if let Some(config) = hugging_face::config(&self.plan.model, self.beginning.limit.as_ref()) {
            draft.write("config.json", config.as_bytes())?;
        }
        if let Some(tokenizer) = self.tokens.tokenizer().file() {
            draft.write("tokenizer.json", tokenizer)?;
        }
        Ok(())
    }
}
