//! A run whose ranks are processes, on one or several machines.

use super::{Outcome, StepReport, host_memory, outcome, run_ranks};
use crate::comm::local_ranks::LocalRanks;
use crate::comm::transport::{Identity, Joining, Rendezvous};
use crate::error::RunError;
use crate::train::checkpoint::content;
use crate::train::data::tokens::Tokens;
use crate::train::optimizer::Optimizer;
use crate::train::settings::Settings;
use crate::train::supported;
use std::sync::Arc;
use std::time::Instant;
use trainwright_spec::plan::Plan;

/// Trains as this process's rank of a run; `progress` gets each step on rank 0. The outcome is rank 0's:
/// the others have none.
///
/// # Errors
/// As `train`; `Rendezvous` if the processes do not find each other.
pub fn train_in_processes(
    place: &Rendezvous,
    plan: &Plan,
    tokens: &Tokens,
    settings: &Settings,
    progress: &mut dyn FnMut(&StepReport),
) -> Result<Option<Outcome>, RunError> {
    let plan = settings.device.with_executor_stack(plan)?;
    supported::check(&plan)?;
    check_place(place, &plan)?;
    // Before the others can have allocated anything: all wait for each other behind this.
    host_memory::check(&plan, settings, place.ranks_of_host())?;
    let here = connected(place, &plan, tokens, settings)?;
    let transport = Arc::clone(&here.transport);
    // So that the others need not find out by waiting that this process ends before its rank has begun.
    let ran = run_ranks(plan, tokens, settings, here, progress).inspect_err(|_| transport.abort())?;
    drop(transport);
    Ok((place.rank == 0).then(|| outcome(ran, settings)))
}

/// Refuses a number of processes that is not the plan's number of ranks.
pub(super) fn check_place(place: &Rendezvous, plan: &Plan) -> Result<(), RunError> {
    let ranks = plan.mesh.ranks();
    if place.world == ranks && place.rank < ranks {
        return Ok(());
    }
    let allowed = format!("this is process {} of {}, and each runs one rank", place.rank, place.world);
    Err(RunError::Refused { key: "mesh".into(), value: format!("{ranks} ranks"), allowed })
}

/// This process's rank, connected with those of the others, which begin with the same.
pub(super) fn connected(
    place: &Rendezvous,
    plan: &Plan,
    tokens: &Tokens,
    settings: &Settings,
) -> Result<LocalRanks, RunError> {
    let joining = Joining { identity: identity(plan, tokens, settings)?, longest: longest_message(plan) };
    let transport = place.connect(&joining)?;
    place.barrier(&*transport).map_err(|fault| RunError::Rendezvous {
        rank: place.rank,
        master: place.via.to_string(),
        reason: fault.to_string(),
    })?;
    Ok(LocalRanks {
        ranks: vec![place.rank],
        local_rank: Some(place.local_rank.unwrap_or(place.rank)),
        transport,
        // Nearly the same instant in all processes: all leave the barrier now.
        began: Instant::now(),
    })
}

/// Everything that processes of a run must have in common: program, plan, settings, data, and the weights they begin with.
///
/// # Errors
/// `Checkpoint` if the run begins with files that cannot be read.
fn identity(plan: &Plan, tokens: &Tokens, settings: &Settings) -> Result<Identity, RunError> {
    let order = if cfg!(target_endian = "little") { "little-endian" } else { "big-endian" };
    Ok(Identity::default()
        .with("program", &format!("{} {order}", env!("CARGO_PKG_VERSION")))
        .with("plan", plan)
        .with("settings", settings)
        .with("data", tokens)
        .with("start", &content(&settings.start)?))
}

/// An upper bound of the numbers in a message of a run: all weights with their moments, or a row for each token of a step,
/// as wide as the vocabulary and all matrices together. A larger count is no message of a rank.
fn longest_message(plan: &Plan) -> usize {
    let model = &plan.model;
    let moments = Optimizer::of_name(&plan.job.optimizer).map_or(0, Optimizer::moments);
    let parameters = model.parameters() as usize;
    let state = parameters.saturating_mul(1 + moments as usize);
    let widest = model.vocab + parameters / model.hidden.max(1);
    let rows = plan.job.tokens().saturating_mul(widest);
    // Twice, for what alignment adds.
    state.max(rows).saturating_mul(2)
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::comm::routes::Route;
    use crate::comm::transport::RendezvousVia;
    use crate::device::{DeviceKind, LocalRank};
    use crate::train::graph_capture::GraphUse;
    use std::time::Duration;
    use trainwright_spec::mesh::Mesh;
    use trainwright_spec::model::hf::from_hugging_face;
    use trainwright_spec::plan::{Recompute, StageBlocks};
    use trainwright_spec::program::Axis;

    /// An emulated GPU for each rank, also where ranks are processes: those of this test are threads that connect by TCP.
    fn gpus() -> DeviceKind {
        let gpu = |rank: LocalRank| Some((rank.number as u128 + 1).to_le_bytes());
        DeviceKind { gpu, ..DeviceKind::from_name("emulated-gpus").unwrap() }
    }

    /// Whether the emulator can be had.
    fn is_there() -> bool {
        (gpus().require)().inspect_err(|error| println!("skipped: {error}")).is_ok()
    }

    fn plan([pipeline, virtual_stages]: [usize; 2], schedule: &str) -> Plan {
        let stages = vec![format!("{} none", 12 / (pipeline * virtual_stages)); pipeline * virtual_stages];
        let cluster = if pipeline == 2 { "h100-pcie-pair" } else { "a100-pcie-4-bridged:1" };
        let text = format!(
            r#"
            model = "gpt2"
            cluster = "{cluster}"
            stack = "trainwright"
            job = {{ sequence = 8, global_batch = 4, precision = "bf16", optimizer = "adamw", gradient_clipping = true }}
            mesh = {{ tensor = 1, pipeline = {pipeline}, data = 1 }}
            micro_batch = 1
            schedule = "{schedule}"
            virtual_stages = {virtual_stages}
            sequence_parallel = false
            data_sharding = "none"
            stages = {stages:?}
            "#
        );
        let small = r#"{"model_type": "gpt2", "n_embd": 16, "n_head": 2, "n_layer": 4, "n_positions": 8, "vocab_size": 20,
            "resid_pdrop": 0.0, "embd_pdrop": 0.0, "attn_pdrop": 0.0}"#;
        let model = from_hugging_face(small, "config.json").unwrap();
        let blocks = 4 / stages.len();
        let stages = stages.iter().map(|_| StageBlocks(vec![Recompute::None; blocks])).collect();
        Plan { model, stages, ..Plan::from_toml(&text, "plan.toml").unwrap() }
    }

    fn settings(device: DeviceKind) -> Settings {
        Settings { steps: 2, device, ..Settings::default() }
    }

    /// Rank 0's outcome of a run whose ranks are connected as processes are.
    fn by_processes(plan: &Plan, settings: Settings) -> Outcome {
        let free = std::net::TcpListener::bind(("127.0.0.1", 0)).unwrap().local_addr().unwrap().to_string();
        let world = plan.mesh.ranks();
        let (tokens, free) = (Tokens::synthetic(20, 500, 3), &free);
        let run = |rank| {
            let patience = Duration::from_secs(60);
            let via = RendezvousVia::Tcp(free.clone());
            let (token, remark) = Default::default();
            let place =
                Rendezvous { rank, world, local_rank: None, local_world: None, via, patience, token, remark };
            train_in_processes(&place, plan, &tokens, &settings, &mut |_| {}).unwrap()
        };
        let run = &run;
        std::thread::scope(|scope| {
            let threads: Vec<_> = (0..world).map(|rank| scope.spawn(move || run(rank))).collect();
            let ends = threads.into_iter().map(|thread| thread.join().unwrap());
            ends.flatten().next().expect("rank 0 has an outcome")
        })
    }

    fn losses(outcome: &Outcome) -> Vec<u64> {
        outcome.steps.iter().map(|step| step.loss.to_bits()).collect()
    }

    #[test]
    fn every_schedule_gives_the_losses_of_messages_through_the_host() {
        if !is_there() {
            return;
        }
        for (shape, schedule) in
            [([4, 1], "1f1b"), ([2, 2], "interleaved"), ([4, 1], "zb-h1"), ([2, 2], "dualpipev")]
        {
            let plan = plan(shape, schedule);
            let by_nccl = by_processes(&plan, settings(gpus()));
            assert_eq!(by_nccl.routes[&Axis::Pipeline], Route::Nccl, "{schedule}");
            let by_host = by_processes(&plan, settings(DeviceKind::from_name("emulated").unwrap()));
            assert!(by_host.routes.is_empty(), "{schedule}: {:?}", by_host.routes);
            assert_eq!(losses(&by_nccl), losses(&by_host), "{schedule}");
        }
    }

    /// A graph holds the collectives of ranks that have a process and a GPU each: the bits are those of ops enqueued one by one.
    #[test]
    fn a_graph_holds_the_collectives_of_processes() {
        if !is_there() {
            return;
        }
        let stages = vec![StageBlocks(vec![Recompute::None; 4])];
        let plan = Plan { mesh: Mesh::new(2, 1, 1), stages, ..plan([2, 1], "1f1b") };
        let run = |graph| by_processes(&plan, Settings { steps: 7, graph, ..settings(gpus()) });
        let [with, without] = [true, false].map(run);
        assert_eq!(with.routes[&Axis::Tensor], Route::Nccl);
        assert!(matches!(with.graph, Some(GraphUse::From(4 | 5))), "{:?}", with.graph);
        assert_eq!(without.graph, Some(GraphUse::No("it was turned off".into())));
        assert_eq!(losses(&with), losses(&without));
    }
}
