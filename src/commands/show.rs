//! `show`: what the catalog and the registries have.

use crate::arguments::{List, ShowArguments};
use crate::error::{CliError, Outcome};
use crate::output;
use crate::render::catalog::{
    self as lists, choices, context, data, dispatchers, network, optimizers, schedules, tensor, tools,
};
use trainwright_formats::export::exporter;
use trainwright_formats::import::importer;
use trainwright_spec::catalog;
use trainwright_spec::context::context_scheme;
use trainwright_spec::data::data_scheme;
use trainwright_spec::error::SpecError;
use trainwright_spec::experts::dispatcher;
use trainwright_spec::optimizer::optimizer;
use trainwright_spec::schedule::schedule;
use trainwright_spec::tensor::tensor_scheme;

/// Runs the command.
///
/// # Errors
/// A name that does not exist.
pub fn run(arguments: &ShowArguments) -> Result<Outcome, CliError> {
    let text = match &arguments.name {
        None => list(arguments.list),
        Some(name) => entry(arguments.list, &name.to_lowercase()),
    };
    output::print(&text.map_err(|error| CliError::of_input(None, error))?)?;
    Ok(Outcome::Done)
}

fn list(list: List) -> Result<String, SpecError> {
    match list {
        List::Models => lists::models(),
        List::Gpus => lists::gpus(),
        List::Clusters => lists::clusters(),
        List::Nodes => lists::nodes(),
        List::Stacks => lists::stacks(),
        List::Choices => Ok(choices::list()),
        List::Schedules => Ok(schedules::list()),
        List::ContextSchemes => Ok(context::list()),
        List::DataSchemes => Ok(data::list()),
        List::TensorSchemes => Ok(tensor::list()),
        List::Optimizers => Ok(optimizers::list()),
        List::Dispatchers => Ok(dispatchers::list()),
        List::Interconnects => network::interconnects(),
        List::Nics => network::nics(),
        List::Fabrics => network::fabrics(),
        List::Collectives => network::collectives(),
        List::Algorithms => network::algorithms(),
        List::Nccl => network::nccl(),
        List::Exporters => Ok(tools::exporters()),
        List::Importers => Ok(tools::importers()),
        List::Reliabilities => tools::reliabilities(),
    }
}

fn entry(list: List, name: &str) -> Result<String, SpecError> {
    let file = |kind| catalog::text(kind, name).map(str::to_string);
    match list {
        List::Models => file("model"),
        List::Gpus => file("gpu"),
        List::Clusters => file("cluster"),
        List::Nodes => file("node"),
        List::Stacks => file("stack"),
        List::Choices => choices::entry(name),
        List::Schedules => schedule(name).map(schedules::entry),
        List::ContextSchemes => context_scheme(name).map(context::entry),
        List::DataSchemes => data_scheme(name).map(data::entry),
        List::TensorSchemes => tensor_scheme(name).map(tensor::entry),
        List::Optimizers => optimizer(name).map(optimizers::entry),
        List::Dispatchers => dispatcher(name).map(dispatchers::entry),
        List::Interconnects => file("interconnect"),
        List::Nics => file("nic"),
        List::Fabrics => network::fabric_entry(name),
        List::Collectives => network::collective_entry(name),
        List::Algorithms => network::algorithm_entry(name),
        List::Nccl => file("nccl"),
        List::Exporters => exporter(name).map(tools::exporter_entry),
        List::Reliabilities => file("reliabilities"),
        List::Importers => importer(name).map(tools::importer_entry),
    }
}
