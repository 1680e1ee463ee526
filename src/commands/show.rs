//! `show`: what the catalog and the registries have.

use crate::arguments::{List, ShowArguments};
use crate::error::{CliError, Outcome};
use crate::output;
use crate::render::catalog::{self as lists, network};
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
        List::Choices => Ok(lists::choices()),
        List::Schedules => Ok(lists::schedules()),
        List::ContextSchemes => Ok(lists::context_schemes()),
        List::DataSchemes => Ok(lists::data_schemes()),
        List::TensorSchemes => Ok(lists::tensor_schemes()),
        List::Optimizers => Ok(lists::optimizers()),
        List::Dispatchers => Ok(lists::dispatchers()),
        List::Interconnects => network::interconnects(),
        List::Nics => network::nics(),
        List::Fabrics => network::fabrics(),
        List::Collectives => network::collectives(),
        List::Algorithms => network::algorithms(),
        List::Nccl => network::nccl(),
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
        List::Choices => lists::choice_entry(name),
        List::Schedules => schedule(name).map(lists::schedule_entry),
        List::ContextSchemes => context_scheme(name).map(lists::context_scheme_entry),
        List::DataSchemes => data_scheme(name).map(lists::data_scheme_entry),
        List::TensorSchemes => tensor_scheme(name).map(lists::tensor_scheme_entry),
        List::Optimizers => optimizer(name).map(lists::optimizer_entry),
        List::Dispatchers => dispatcher(name).map(lists::dispatcher_entry),
        List::Interconnects => file("interconnect"),
        List::Nics => file("nic"),
        List::Fabrics => network::fabric_entry(name),
        List::Collectives => network::collective_entry(name),
        List::Algorithms => network::algorithm_entry(name),
        List::Nccl => file("nccl"),
    }
}
