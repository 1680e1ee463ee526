//! `show`: entries of the catalog and of the registries.

use crate::arguments::{List, ShowArguments};
use crate::error::{CliError, Outcome};
use crate::output;
use crate::render::catalog::{self as files, Shown, network, registries};
use trainwright_formats::export::exporter;
use trainwright_formats::import::importer;
use trainwright_spec::catalog;
use trainwright_spec::context::context_scheme;
use trainwright_spec::data::data_scheme;
use trainwright_spec::experts::dispatcher;
use trainwright_spec::optimizer::optimizer;
use trainwright_spec::schedule::schedule;
use trainwright_spec::tensor::tensor_scheme;

/// Runs the command.
///
/// # Errors
/// A name that does not exist.
pub fn run(arguments: &ShowArguments) -> Result<Outcome, CliError> {
    let (list, entry) = renderers(arguments.list);
    let text = match &arguments.name {
        None => list(),
        Some(name) => entry(&name.to_lowercase()),
    };
    output::print(&text.map_err(|error| CliError::of_input(None, error))?)?;
    Ok(Outcome::Done)
}

type ShowList = fn() -> Shown;

/// Shows the entry of a name.
type ShowEntry = fn(&str) -> Shown;

fn renderers(list: List) -> (ShowList, ShowEntry) {
    match list {
        List::Models => (files::models, |name| file("model", name)),
        List::Gpus => (files::gpus, |name| file("gpu", name)),
        List::Clusters => (files::clusters, |name| file("cluster", name)),
        List::Nodes => (files::nodes, |name| file("node", name)),
        List::Stacks => (files::stacks, |name| file("stack", name)),
        List::Engines => (files::engines, |name| file("engine", name)),
        List::Controllers => (files::controllers, |name| file("controller", name)),
        List::Choices => (registries::choices, registries::choice),
        List::Schedules => (registries::schedules, |name| schedule(name).map(registries::schedule)),
        List::ContextSchemes => {
            (registries::context_schemes, |name| context_scheme(name).map(registries::context_scheme))
        }
        List::DataSchemes => {
            (registries::data_schemes, |name| data_scheme(name).map(registries::data_scheme))
        }
        List::TensorSchemes => {
            (registries::tensor_schemes, |name| tensor_scheme(name).map(registries::tensor_scheme))
        }
        List::Optimizers => (registries::optimizers, |name| optimizer(name).map(registries::optimizer)),
        List::Dispatchers => (registries::dispatchers, |name| dispatcher(name).map(registries::dispatcher)),
        List::Interconnects => (network::interconnects, |name| file("interconnect", name)),
        List::Nics => (network::nics, |name| file("nic", name)),
        List::Fabrics => (network::fabrics, network::fabric),
        List::Collectives => (network::collectives, network::collective),
        List::Algorithms => (network::algorithms, network::algorithm),
        List::Nccl => (network::nccl, |name| file("nccl", name)),
        List::Exporters => (registries::exporters, |name| exporter(name).map(registries::exporter)),
        List::Importers => (registries::importers, |name| importer(name).map(registries::importer)),
        List::Reliabilities => (files::reliabilities, |name| file("reliabilities", name)),
    }
}

fn file(kind: &'static str, name: &str) -> Shown {
    catalog::text(kind, name).map(str::to_string)
}
