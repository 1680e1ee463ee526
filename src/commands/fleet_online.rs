//! `fleet-online`: jobs that arrive over time, under each policy.

use crate::arguments::FleetOnlineArguments;
use crate::error::{CliError, Outcome, refuse};
use crate::inputs;
use crate::output;
use crate::render::fleet_online::{Page, Ran};
use crate::render::json;
use trainwright_fleet::instance::NodeKind;
use trainwright_fleet::online::audit::audit;
use trainwright_fleet::online::speeds::Speeds;
use trainwright_fleet::online::stats::stats;
use trainwright_fleet::online::{Question, simulate_all, trace};
use trainwright_fleet::policies::{POLICIES, Policy, policy};
use trainwright_fleet::throughputs;
use trainwright_spec::units::Seconds;

/// Runs the command.
///
/// # Errors
/// Bad input, and standard output that cannot be written.
pub fn run(arguments: &FleetOnlineArguments) -> Result<Outcome, CliError> {
    let kinds = kinds(arguments)?;
    let no_answer = |path: &str, reason: String| CliError::NoAnswer { reason: format!("{path}: {reason}") };
    let path = if arguments.trace == "-" { "standard input" } else { &arguments.trace };
    let jobs =
        trace::read(&inputs::text(None, &arguments.trace)?).map_err(|reason| no_answer(path, reason))?;
    for (place, user) in arguments.quota.iter().enumerate() {
        let name = &user.name;
        if arguments.quota[..place].iter().any(|other| other.name == *name) {
            return Err(refuse("--quota", name, "each user should stand there once"));
        }
        if jobs.iter().all(|job| job.user.as_ref() != Some(name)) {
            return Err(refuse("--quota", name, "no job of the trace has this `user`"));
        }
    }
    let table = &arguments.throughputs;
    let rows = throughputs::read(&inputs::text(Some("--throughputs"), table)?);
    let speeds = Speeds::new(&rows.map_err(|reason| no_answer(table, reason))?, &kinds);
    let question = Question {
        kinds: &kinds,
        jobs: &jobs,
        users: &arguments.quota,
        speeds: &speeds,
        round: Seconds::new(arguments.round),
        restart: Seconds::new(arguments.restart),
    };
    let asked: Vec<&dyn Policy> = match policy(&arguments.policy) {
        Some(policy) => vec![policy],
        None => POLICIES.to_vec(),
    };
    let outcomes = simulate_all(&question, &asked)?;
    let mut ran = Vec::with_capacity(asked.len());
    for (policy, outcome) in asked.into_iter().zip(outcomes) {
        if let Err(fault) = audit(&question, &outcome) {
            panic!("{} breaks a rule: {fault}", policy.name());
        }
        ran.push(Ran { policy, stats: stats(&question, &outcome), outcome });
    }
    let page = Page { question: &question, ran: &ran };
    output::print(&if arguments.json { json::print(&page.json()) } else { page.text() })?;
    Ok(Outcome::Done)
}

/// The nodes, either way.
fn kinds(arguments: &FleetOnlineArguments) -> Result<Vec<NodeKind>, CliError> {
    let Some(cluster) = &arguments.cluster else {
        let names = arguments.nodes.iter().map(|kind| &kind.name);
        let twice =
            names.clone().enumerate().find(|(place, name)| names.clone().take(*place).any(|of| of == *name));
        return match twice {
            Some((_, name)) => Err(refuse("--nodes", name, "each kind of nodes should stand there once")),
            None => Ok(arguments.nodes.clone()),
        };
    };
    let cluster = inputs::cluster(cluster, &[])?;
    let kinds = (0..cluster.kinds().count()).map(|kind| cluster.only(kind));
    let of = |cluster: trainwright_spec::cluster::Cluster| NodeKind {
        name: cluster.node.name.clone(),
        nodes: cluster.nodes,
        gpus: cluster.node.gpus.value,
    };
    Ok(kinds.map(of).collect())
}
